"""Obeying the machine of local failover: records to ZooKeeper, fences and promotions to slots, what follows elsewhere.

What a new head needs is gathered here: the snapshot handle of its version, and what the fenced slots answered.

Rules: the machine runs only while the job does; any other time failures go to the machine of the job. Every failure
that it takes on is reported there first, to be counted, and what it refuses is rolled back there. A source that is on
its way gets its triggers when it has arrived.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from typing_extensions import assert_never

from chain_backup.failover import effects, events
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.errors import ControlMessageTooLarge, HistoryMismatch
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import EvictSlot, JobState
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import FailureKind
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_channel, parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch, FailoverWorkDone, Machines
from flinkplus.runtime.coordinator.dispatch.registry import RecordWriter
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.promotion.orders import FenceAnswers, Handles
from flinkplus.runtime.coordinator.promotion.renumbering import following, output_cursor
from flinkplus.runtime.coordinator.record.recovery_log import HANDOVER, STANDBY, RecoveryLog
from flinkplus.runtime.coordinator.record.status import ChainStatus

KEPT_REASONS = 100
PROGRESS = (events.HeadPersisted, events.VersionStaged, events.CheckpointCompleted, events.CheckpointAborted)
"""What is told most often; nothing moves by it unless it has an effect."""
log = logging.getLogger("flinkplus.coordinator")


class Failovers:
    """Drives ``FailoverProtocol``.

    ``registry`` (``None``: nobody) takes the records. ``job_state``: of the machine of the job. ``trigger``: tells
    sources to begin a checkpoint; ``pending``: whether that still waits for them. ``evict``: ends a slot's process.
    ``sharing_depth``: of the determinants. ``guarantee``: of the job. ``mode``: what
    recoveries are called.
    """

    def __init__(
        self,
        protocol: FailoverProtocol,
        topology: Topology,
        dispatch: Dispatch,
        machines: Machines,
        deployment: Deployment,
        recoveries: RecoveryLog,
        job_state: Callable[[], JobState],
        evict: Callable[[SlotProcess, str], None],
        trigger: Callable[[CheckpointId, list[SubtaskId], Generation], None],
        pending: Callable[[CheckpointId], bool],
        sharing_depth: int | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        mode: str = STANDBY,
    ) -> None:
        self._mode = mode
        self._guarantee = guarantee
        self._began_from: dict[SubtaskId, CheckpointId] = {}
        self._complete = CheckpointId(0)
        self._given_up: list[CheckpointId] = []  # since then
        self._overtaking: list[CheckpointId] = []  # since then
        self._protocol = protocol
        self._topology = topology
        self.registry: RecordWriter | None = None
        self._dispatch = dispatch
        self._machines = machines
        self._deployment = deployment
        self._recoveries = recoveries
        self._job_state = job_state
        self._evict = evict
        self._trigger = trigger
        self._pending = pending
        self._handles = Handles()
        self._answers = FenceAnswers(topology.lineage(sharing_depth))
        self._joining = Joining(dispatch, deployment)
        self._moving: dict[SubtaskId, None] = {}
        self._held: dict[tuple[CheckpointId, SubtaskId], None] = {}
        self._newest = deployment.generation
        self._promoted_s = 0.0
        self._under_way: effects.RecordFailoverPhase | None = None
        self._writing = (0, 0.0)  # the newest attempt whose records were ordered, and when
        self.replicated: Callable[[CheckpointId], None] | None = None
        """Called when all members of all chains have a version."""
        self.moved: Callable[[effects.ReportMove], None] | None = None
        """Called when there is news of a request."""
        self.counts = {"failovers": 0, "handovers": 0, "fallbacks": 0}
        self.fallback_reasons: deque[str] = deque(maxlen=KEPT_REASONS)

    @property
    def missing_standbys(self) -> int:
        """How many there should be and are not, or are not in step; those of a failover under way count as missing."""
        return self._protocol.missing + self._protocol.active

    # --- the job's life

    def begins_on(self) -> Mapping[SubtaskId, int]:
        """Where a deployment is to put subtasks: not on drained hosts, as far as there are others; empty: where they
        belong. For a job that does not run.
        """
        if not self._protocol.drained_hosts:
            return {}
        try:
            return self._protocol.begins_on(
                {process.slot: process.host for process in self._dispatch.processes.needed()}
            )
        except PlacementError as error:  # the user's own strategy: the start of the deployment says so
            log.warning("cannot place the subtasks without the drained hosts: %s", error)
            return {}

    def started(self, version: CheckpointId, handles: dict[str, SnapshotHandle]) -> None:
        """All slots but the spare ones were told to start what was restored from these handles of ``version`` (0: the
        very start)."""
        self._handles.reset(version, handles)
        self._began_from = dict.fromkeys(self._deployment.assignment, version)
        self._complete, self._given_up, self._overtaking = version, [], []
        self._joining.reset()
        hosts = tuple((process.slot, process.host) for process in self._dispatch.processes.needed())
        cursors = tuple(
            (subtask, cursors_of(self._handles.get(subtask, version))) for subtask in self._deployment.assignment
        )
        heads = tuple(self._deployment.assignment.items())
        self.step(events.JobStarted(self._deployment.generation, version, cursors, hosts, heads))

    def interrupted(self) -> None:
        """A rollback began, or the end."""
        self._moving, self._held = {}, {}
        self._under_way = None
        self._joining.reset()
        self._dispatch.soon(
            lambda: self._apply_all(self._protocol.step(self._dispatch.now_ms(), events.JobInterrupted()))
        )

    @property
    def holdings(self) -> list[ChainStatus]:
        """See ``FailoverProtocol``; none without standbys."""
        return list(self._protocol.holdings) if self._mode == STANDBY else []

    @property
    def moving(self) -> list[SubtaskId]:
        """The subtasks that are on their way."""
        return list(self._moving)

    @property
    def running(self) -> bool:
        """Whether failures are this machine's at all, just now."""
        return self._job_state() is JobState.RUNNING

    @property
    def drained_hosts(self) -> tuple[str, ...]:
        """The hosts that get no work."""
        return self._protocol.drained_hosts

    @property
    def copies(self) -> int:
        """How many members a chain ought to have; 0 while no job runs."""
        return self._protocol.copies

    @property
    def chains(self) -> dict[SubtaskId, tuple[int, ...]]:
        """The slots of each chain, head first; any thread may ask."""
        return dict(self._protocol.chains)

    def is_current(self, subtask: SubtaskId, generation: Generation) -> bool:
        """Whether what ``subtask`` says in ``generation`` counts, while the job runs."""
        return self._protocol.is_current(subtask, generation)

    def next_deadline_ms(self) -> int | None:
        return self._protocol.next_deadline_ms() if self.running else None

    def step(self, event: events.FailoverEvent) -> None:
        """Have the machine take an event; dropped when the job does not run (any more)."""
        self._dispatch.soon(lambda: self._step_now(event))

    def _step_now(self, event: events.FailoverEvent) -> None:
        if not self.running:
            return
        if isinstance(event, events.RecordsWritten):
            self._note_written(event.attempt)
        todo = self._protocol.step(self._dispatch.now_ms(), event)
        if todo or not isinstance(event, PROGRESS):
            heads = self._protocol.heads
            if heads:  # there are none once it gave up
                self._deployment.assignment = heads
                self._deployment.generations = self._protocol.generations
        for effect in todo:
            if isinstance(effect, core.FailureTakenOn):  # before the job knows of the generation that this makes
                self._machines.step_job(effect)
        newest = self._protocol.newest_generation
        if newest > self._newest:
            self._newest = newest
            self._machines.step_job(core.GenerationsUsed(newest))
        self._apply_all(todo)

    # --- failures

    def slot_lost(self, process: SlotProcess, reason: str) -> None:
        """A slot is gone while the job runs; it is off the table already."""
        matters = not self._dispatch.processes.is_spare(process.slot) or self.has_joined(process.slot)
        if matters:
            self._machines.step_job(self._loss_of(process.slot, reason))
        self._machines.step_job(core.SlotLeft(process.slot, process.incarnation, reason))
        if matters:
            self.step(events.SlotLost(process.slot, process.incarnation, reason))
        self._joining.lost(process.slot)

    def _loss_of(self, slot: int, reason: str) -> core.FailureTakenOn:
        """What the loss of ``slot`` counts as. When no subtask is on it, it is a failure of its own."""
        protocol, generations = self._protocol, self._deployment.generations
        hosted = [generations[subtask] for subtask in self._deployment.on(slot) if subtask in generations]
        generation = max(hosted, default=Generation(protocol.newest_generation + 1))
        why = f"slot {slot} was lost: {reason}"
        return core.FailureTakenOn("slot", generation, protocol.recovering, why, None)

    def slot_over(self, slot: int) -> None:
        """A spare slot on which nothing is any more is about to end, on purpose."""
        if self.running:
            self._joining.over(slot)

    def subtask_failed(self, subtask: SubtaskId, generation: Generation, reason: str, error: object) -> None:
        """A subtask says that it failed; it is of the present generation."""
        deterministic = not isinstance(error, HistoryMismatch)
        self.step(events.SubtaskFailed(subtask, generation, reason, error, deterministic))

    # --- what slots say

    def take(self, process: SlotProcess, message: control.ControlMessage) -> bool:
        """A message of a slot; ``False`` when it is not for this machine."""
        match message:
            case control.Staged(generation, subtask, version):
                self.step(
                    events.VersionStaged(
                        parse_subtask(subtask), process.slot, Generation(generation), CheckpointId(version)
                    )
                )
                self._note_replicated(CheckpointId(version))
            case control.Fenced(attempt, received):
                self._answers.add(message)
                cursors = tuple(sorted((parse_channel(name), seq) for name, seq in received.items()))
                self.step(events.SlotFenced(attempt, process.slot, cursors))
            case control.FencedPart(attempt):
                self._answers.add_part(message)
                self.step(events.SlotFencedPart(attempt, process.slot))
            case control.Promoted(attempt, restore_ms, time_s):
                self._recoveries.restored(restore_ms)
                self._promoted_s = max(self._promoted_s, time_s)
                self.step(events.StandbysPromoted(attempt, process.slot))
            case control.PromotionFailed(attempt, subtask, reason):
                log.warning("slot %d cannot take %s over: %s", process.slot, subtask, reason)
                self.step(events.StandbyPromotionFailed(attempt, process.slot, parse_subtask(subtask), reason))
            case control.Connected(serial):
                self._joined(self._joining.ready(process, serial))
            case _:
                return False
        return True

    def acknowledged(
        self, subtask: SubtaskId, generation: Generation, checkpoint: CheckpointId, handle: SnapshotHandle
    ) -> None:
        """The head has a new version, and so has the durable store."""
        self._handles.add(subtask, checkpoint, handle)
        self.step(events.HeadPersisted(subtask, generation, checkpoint, cursors_of(handle)))
        self._dispatch.soon(lambda: self._keep_handles(subtask))
        self._note_replicated(checkpoint)

    def _keep_handles(self, subtask: SubtaskId) -> None:
        versions = self._protocol.versions(subtask)
        if versions:
            self._handles.keep(subtask, versions)

    def _note_replicated(self, version: CheckpointId) -> None:
        if self.replicated is not None and self._protocol.all_have(version):
            self.replicated(version)

    def completed(self, checkpoint: CheckpointId) -> None:
        self._complete = checkpoint
        self._given_up = [other for other in self._given_up if other > checkpoint]
        self._overtaking = [other for other in self._overtaking if other > checkpoint]
        self.step(events.CheckpointCompleted(checkpoint))
        self._dispatch.soon(lambda: self._handles.drop_before(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        self._given_up.append(checkpoint)
        self.step(events.CheckpointAborted(checkpoint))

    def overtaking(self, checkpoint: CheckpointId) -> None:
        """Everybody was told that the barriers of ``checkpoint`` may overtake."""
        self._overtaking.append(checkpoint)

    # --- slots that come back

    def registered(self, process: SlotProcess) -> None:
        """A new incarnation of a slot is there while the job runs: have everyone connect to it."""
        self._joining.begin(process)

    def set_aside(self, slot: int) -> None:
        """A slot that has not joined is not to, for now."""
        self._joining.set_aside(slot)

    def has_joined(self, slot: int) -> bool:
        """Whether a slot takes part in the running job."""
        return self._protocol.is_alive(slot)

    def _joined(self, processes: list[SlotProcess]) -> None:
        for process in [process for process in processes if not self._dispatch.processes.is_over(process.slot)]:
            self._joining.tell(process)  # what it was told when it came may be outdated by now
            self.step(events.SlotJoined(process.slot, process.host))

    # --- triggers that have to wait

    def holds(self, checkpoint: CheckpointId, source: SubtaskId) -> bool:
        """Whether ``source`` is on its way; then it gets its trigger when it has arrived."""
        if source not in self._moving:
            return False
        self._held[(checkpoint, source)] = None
        return True

    def _arrived(self) -> None:
        self._moving = {}
        held, self._held = self._held, {}
        generation = self._deployment.generation
        for checkpoint, source in held:
            if self._pending(checkpoint):
                self._trigger(checkpoint, [source], generation)
        if self._deployment.draining:
            self._dispatch.tell_all(control.Drain(generation))

    # --- effects

    def _apply_all(self, todo: list[effects.FailoverEffect]) -> None:
        for effect in todo:  # all of them first: some are told of others
            if isinstance(effect, effects.PromoteStandbys):
                self._began_from.update({subtask: CheckpointId(version) for subtask, version in effect.subtasks})
        for effect in todo:
            self._apply(effect)

    def _apply(self, effect: effects.FailoverEffect) -> None:
        tell_all = self._dispatch.tell_all
        match effect:
            case effects.WriteRecords(attempt, records):
                self._write(attempt, records)
            case effects.FormChains(chains):
                tell_all(control.Chains({str(s): [generation, list(slots)] for s, generation, slots in chains}))
            case effects.FenceSlots(attempt, generation, failed, slots):
                self._answers.reset(attempt)
                self._promoted_s = 0.0
                fence = control.Fence(attempt, generation, {str(subtask): slot for subtask, slot in failed})
                for slot in slots:
                    self._dispatch.tell(slot, fence)
            case effects.PromoteStandbys():
                self._promote(effect)
            case effects.ReplaceInCheckpoints(subtasks):
                replaced = tuple((subtask, CheckpointId(version)) for subtask, version in subtasks)
                self._machines.step_checkpoints(core.SubtasksReplaced(replaced, not self._guarantee.repeats))
            case effects.RecordFailoverPhase():
                self._record(effect)
            case effects.FinishFailover():
                last, self._under_way = self._under_way, None
                if last is not None:
                    log.info("failover finished: all subtasks are running", extra=about(phase="replay"))
                if last is not None and last.phase == "replay":
                    self.counts["handovers" if last.kind == HANDOVER else "failovers"] += 1
                elif last is not None:
                    self._recoveries.called_off(last.number)
                self._arrived()
            case core.FailureTakenOn():
                pass  # said above
            case effects.FallBack(kind, subtasks, reason, error):
                self._fall_back(kind, subtasks, reason, error)
            case EvictSlot(slot, _, reason):
                process = self._dispatch.processes.get(slot)
                if process is not None:
                    self._evict(process, reason)
            case effects.TrimLogs(version):
                tell_all(control.Trim(version))
            case effects.ReportMove():
                if self.moved is not None:
                    self.moved(effect)
            case _:
                assert_never(effect)

    def _note_written(self, number: int) -> None:
        attempt, ordered_s = self._writing
        if self._under_way is not None and number == attempt:
            self._recoveries.recorded(self._under_way.number, (self._dispatch.clock.monotonic() - ordered_s) * 1e3)

    def _write(self, attempt: int | None, records: tuple[effects.ChainRecordLike, ...]) -> None:
        if attempt is not None:
            self._writing = (attempt, self._dispatch.clock.monotonic())

        def write() -> None:
            if self.registry is not None:
                self.registry.write(records, urgent=attempt is not None)

        def refused(reason: str) -> FailoverWorkDone | None:
            return None if attempt is None else FailoverWorkDone(events.RecordsRefused(attempt, reason))

        self._dispatch.work(
            self._dispatch.registry,
            write,
            None if attempt is None else FailoverWorkDone(events.RecordsWritten(attempt)),
            refused,
        )

    def _promote(self, effect: effects.PromoteStandbys) -> None:
        deployment = self._deployment
        self._recoveries.restored_from(min(version for _, version in effect.subtasks) or None)
        subtasks = {str(subtask): self._order(subtask, CheckpointId(version)) for subtask, version in effect.subtasks}
        order = control.Promote(
            effect.attempt,
            effect.generation,
            deployment.run,
            deployment.age_s,
            deployment.draining,
            self._complete,
            subtasks,
            deployment.lost_at is not None,
        )
        try:
            self._dispatch.tell(effect.slot, order)
        except ControlMessageTooLarge as error:
            first, _ = effect.subtasks[0]
            self.step(events.StandbyPromotionFailed(effect.attempt, effect.slot, first, str(error)))

    def _order(self, subtask: SubtaskId, version: CheckpointId) -> PromotionOrder:
        """What the new head of ``subtask`` needs to resume from ``version``."""
        handle = self._handles.get(subtask, version)
        order = replace(
            self._answers.order(subtask, self._topology, version, handle),
            given_up=[checkpoint for checkpoint in self._given_up if checkpoint > version],
            overtaking=[checkpoint for checkpoint in self._overtaking if checkpoint > version],
            mark=self._mark_of(subtask),
        )
        if self._guarantee.repeats:
            return order
        order = replace(order, inputs=following(handle, subtask, self._topology, self._start_of))
        if self._guarantee.replays:
            return order
        read = handle.operator_state.steps
        seen = max((rows for rows, _ in self._answers.spans_of(subtask)), default=0)
        return replace(order, determinants=[], ancestors={}, pass_over=max(0, seen - read))

    def _mark_of(self, subtask: SubtaskId) -> int | None:
        """The rows it had put out: a subtask that goes back with its producers cannot see in its input what is new."""
        return None if self._mode == STANDBY else self._recoveries.marks.get(str(subtask), 0)

    def _start_of(self, channel: ChannelId, known: int) -> int:
        """Where a promoted consumer begins that stood at ``known``, without exact replay."""
        name = str(channel)
        kept, sent = self._answers.kept.get(name), self._answers.sent(name)
        if kept is None or sent is None:  # its producer is promoted as well
            producer = self._topology.producer(channel)
            return output_cursor(self._handles.get(producer, self._began_from[producer]), channel)
        return max(known, kept) if self._guarantee.replays else sent

    def _record(self, effect: effects.RecordFailoverPhase) -> None:
        self._under_way = effect
        self._moving.update(dict.fromkeys(effect.moved))
        entered_s = self._dispatch.clock.time()
        if effect.phase == "detect":
            entered_s = self._dispatch.event_s
        elif effect.phase == "replay" and self._promoted_s:
            entered_s = min(entered_s, self._promoted_s)
        names, moved = [str(subtask) for subtask in effect.subtasks], [str(subtask) for subtask in effect.moved]
        fields = about(subtask=", ".join(names), generation=self._protocol.newest_generation, phase=effect.phase)
        what = "handover" if effect.kind == HANDOVER else "failover"
        log.info("%s %d, %s: %s", what, effect.number, effect.phase, effect.reason, extra=fields)
        self._recoveries.entered(
            self._mode, effect.number, effect.phase, effect.kind, names, effect.reason, entered_s, moved
        )

    def _fall_back(
        self, kind: effects.FailoverKind, subtasks: tuple[SubtaskId, ...], reason: str, error: object
    ) -> None:
        last, self._under_way = self._under_way, None
        self._recoveries.refused(None if last is None else last.number, reason)
        self._count_fallback(reason)
        # A failure was counted when it was reported; a handover that failed is nobody's failure until here.
        failure: FailureKind = "slot" if kind == "handover" else kind
        self._machines.step_job(core.FailoverFellBack(failure, subtasks, reason, error, kind != "handover"))

    def _count_fallback(self, reason: str) -> None:
        log.warning("the whole job rolls back: %s", reason, extra=about(phase="fallback"))
        self.counts["fallbacks"] += 1
        self.fallback_reasons.append(reason)


def cursors_of(handle: SnapshotHandle) -> VersionCursors:
    """The cursors that a snapshot was taken at; those of ``START`` are all 0."""
    saved = handle.operator_state
    return VersionCursors(
        {parse_channel(name): seq for name, seq in saved.inputs.items()},
        {parse_channel(name): seq for name, seq in saved.outputs.items()},
    )
