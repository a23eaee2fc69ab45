"""The failover driver: records to ZooKeeper, fences and promotions to slots, other effects to the parts concerned.

Rules: the machine of local failover runs only while the job does. A failover that falls back becomes a rollback.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import assert_never

from chain_backup.failover import effects, events
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.placement import PlacementError
from chain_backup.failover.recovery_line import VersionCursors
from flinkplus.errors import ControlMessageTooLarge
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import FailureKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_channel, parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.registry import RecordWriter
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.drivers.failover_stamps import FailoverStamps
from flinkplus.runtime.coordinator.drivers.recipes import RecipeDriver
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.moves import Moves
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.promotion.promotions import Promotions

log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class FailoverDriver:
    """Carries out the effects of ``FailoverProtocol``.

    ``registry``: stores chain records; ``None``: they are not stored.
    ``figures``: of a job with standbys; ``None``: the job recovers partially.
    ``recipes``: of sinks whose rows are visible at once; ``None``: there are no such sinks.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _failover: FailoverProtocol
    _deployment: Deployment
    promotions: Promotions
    _stamps: FailoverStamps
    _triggers: Triggers
    _registry: RecordWriter | None
    _joining: Joining
    _presence: Presence
    _moves: Moves
    _figures: Figures | None = None
    _recipes: RecipeDriver | None = None

    # --- life cycle of the job

    def avoiding_drained_hosts(self) -> Mapping[SubtaskId, int]:
        """Subtask -> slot of a deployment that avoids drained hosts where it can; empty without drained hosts."""
        if not self._failover.drained_hosts:
            return {}
        try:
            hosts = {process.slot: process.host for process in self._dispatch.processes.needed()}
            return self._failover.deployment_slots(hosts)
        except PlacementError as error:  # of the user's own strategy; the start of the deployment reports it
            log.warning("cannot place the subtasks without the drained hosts: %s", error)
            return {}

    def started(self, version: CheckpointId, handles: dict[str, SnapshotHandle]) -> None:
        """The needed slots start the subtasks from these handles of ``version`` (0: the start of the job)."""
        heads = self._deployment.assignment
        self.promotions.started(version, handles, heads)
        hosts = tuple((process.slot, process.host) for process in self._dispatch.processes.needed())
        cursors = tuple((subtask, cursors_of(self.promotions.handles.get(subtask, version))) for subtask in heads)
        self._machines.step_failover(
            events.JobStarted(self._deployment.generation, version, cursors, hosts, tuple(heads.items()))
        )

    def interrupted(self) -> None:
        """A rollback or the end of the job begins."""
        self._triggers.reset()
        self._stamps.reset()
        self._machines.interrupt_failover()

    # --- checkpoints

    def completed(self, checkpoint: CheckpointId) -> None:
        if self._recipes is not None:
            self._recipes.completed()
        self.promotions.completed(checkpoint)
        self._machines.step_failover(events.CheckpointCompleted(checkpoint))
        self._dispatch.soon(lambda: self.promotions.handles.drop_before(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        self.promotions.aborted(checkpoint)
        self._machines.step_failover(events.CheckpointAborted(checkpoint))

    # --- reports of slots

    def take(self, process: SlotProcess, message: control.ControlMessage) -> bool:
        """Handle a message of a slot; ``False`` if it is not for this machine."""
        step = self._machines.step_failover
        match message:
            case control.Staged(generation, subtask, version):
                number = CheckpointId(version)
                step(events.VersionStaged(parse_subtask(subtask), process.slot, Generation(generation), number))
                self._note_replicated(number)
            case control.Fenced(attempt, received):
                self.promotions.answers.add(message)
                cursors = tuple(sorted((parse_channel(name), seq) for name, seq in received.items()))
                step(events.SlotFenced(attempt, process.slot, cursors))
            case control.FencedPart(attempt):
                self.promotions.answers.add_part(message)
                step(events.SlotFencedPart(attempt, process.slot))
            case control.Promoted(attempt, restore_ms, time_s):
                self._stamps.promoted(restore_ms, time_s)
                step(events.StandbysPromoted(attempt, process.slot))
            case control.PromotionFailed(attempt, subtask, reason):
                log.warning("slot %d cannot promote its standby of %s: %s", process.slot, subtask, reason)
                step(events.StandbyPromotionFailed(attempt, process.slot, parse_subtask(subtask), reason))
            case control.Connected(serial):
                self._joined(self._joining.ready(process, serial))
            case _:
                return False
        return True

    def acknowledged(
        self, subtask: SubtaskId, generation: Generation, checkpoint: CheckpointId, handle: SnapshotHandle
    ) -> None:
        """The head and durable storage have a new version of ``subtask``."""
        self.promotions.handles.add(subtask, checkpoint, handle)
        self._machines.step_failover(events.HeadPersisted(subtask, generation, checkpoint, cursors_of(handle)))
        self._dispatch.soon(lambda: self.promotions.forget_versions(subtask))
        self._note_replicated(checkpoint)

    def _note_replicated(self, version: CheckpointId) -> None:
        if self._figures is not None and self._failover.all_have(version):
            self._figures.replicated(version)

    def _joined(self, processes: list[SlotProcess]) -> None:
        for process in [process for process in processes if not self._dispatch.processes.is_apart(process.slot)]:
            self._joining.send(process)  # the assignment may have changed since it registered
            self._machines.step_failover(events.SlotJoined(process.slot, process.host))

    # --- effects

    def apply(self, todo: list[effects.FailoverEffect]) -> None:
        for effect in todo:  # first, because orders depend on each other
            if isinstance(effect, effects.PromoteStandbys):
                self.promotions.promoting(effect)
        for effect in todo:
            self._apply(effect)

    def _apply(self, effect: effects.FailoverEffect) -> None:
        send_all = self._dispatch.send_all
        match effect:
            case effects.WriteRecords(attempt, records, whole):
                self._write(attempt, records, whole)
            case effects.FormChains(chains):
                send_all(control.Chains({str(s): [generation, list(slots)] for s, generation, slots in chains}))
            case effects.FenceSlots():
                self._fence(effect)
            case effects.PromoteStandbys():
                self._promote(effect)
            case effects.ReplaceInCheckpoints(subtasks):
                replaced = tuple((subtask, CheckpointId(version)) for subtask, version in subtasks)
                self._machines.step_checkpoints(core.SubtasksReplaced(replaced))
            case effects.RecordFailoverPhase():
                self._triggers.moves(effect.moved)
                self._stamps.entered(effect, self._failover.newest_generation)
            case effects.FinishFailover():
                self._stamps.finished()
                self._triggers.arrived()
            case core.FailureTakenOn():
                pass  # reported by ``JobMachines``, before all other effects
            case effects.FallBack():
                self._fall_back(effect)
            case EvictSlot(slot, _, reason):
                process = self._dispatch.processes.get(slot)
                if process is not None:
                    self._presence.evict(process, reason)
            case effects.TrimLogs(version):
                send_all(control.Trim(version))
            case effects.ReportMove():
                self._moves.report(effect)
            case _:
                assert_never(effect)

    def _write(self, attempt: int | None, records: tuple[effects.ChainEntry, ...], whole: bool) -> None:
        if attempt is not None:
            self._stamps.writing(attempt)

        def write() -> None:
            if self._registry is not None:
                self._registry.write(records, urgent=attempt is not None, whole=whole)

        def written() -> None:
            if attempt is not None:
                self._stamps.written(attempt)
                self._machines.step_failover(events.RecordsWritten(attempt))

        def refused(reason: str) -> None:
            if attempt is not None:
                self._machines.step_failover(events.RecordsRefused(attempt, reason))

        self._dispatch.work(self._dispatch.registry, write, written, refused)

    def _fence(self, effect: effects.FenceSlots) -> None:
        self.promotions.answers.reset(effect.attempt)
        self._stamps.fencing()
        if self._recipes is not None:
            self._recipes.fence(effect, self.promotions.complete)
        failed = {str(subtask): slot for subtask, slot in effect.failed}
        for slot in effect.slots:
            self._dispatch.send(slot, control.Fence(effect.attempt, effect.generation, failed))

    def _promote(self, effect: effects.PromoteStandbys) -> None:
        deployment = self._deployment
        self._stamps.restoring(effect)
        subtasks = {str(subtask): self._order(effect.attempt, subtask, version) for subtask, version in effect.subtasks}
        order = control.Promote(
            effect.attempt,
            effect.generation,
            deployment.run,
            deployment.age_s,
            deployment.draining,
            self.promotions.complete,
            subtasks,
            deployment.lost_at is not None,
        )
        try:
            self._dispatch.send(effect.slot, order)
        except ControlMessageTooLarge as error:
            first, _ = effect.subtasks[0]
            self._machines.step_failover(events.StandbyPromotionFailed(effect.attempt, effect.slot, first, str(error)))

    def _order(self, attempt: int, subtask: SubtaskId, version: int) -> PromotionOrder:
        order = self.promotions.order(subtask, CheckpointId(version), self._stamps.mark_of(subtask))
        return order if self._recipes is None else self._recipes.added_to(order, subtask, attempt)

    def _fall_back(self, effect: effects.FallBack) -> None:
        self._stamps.fell_back(effect.reason)
        # A failure was counted when it was reported; a handover that failed is counted here.
        failure: FailureKind = "slot" if effect.kind == "handover" else effect.kind
        counted = effect.kind != "handover"
        self._machines.step_job(core.FailoverFellBack(failure, effect.subtasks, effect.reason, effect.error, counted))


def cursors_of(handle: SnapshotHandle) -> VersionCursors:
    """The cursors at which a snapshot was taken; those of ``START`` are all 0."""
    saved = handle.operator_state
    return VersionCursors(
        {parse_channel(name): seq for name, seq in saved.inputs.items()},
        {parse_channel(name): seq for name, seq in saved.outputs.items()},
    )
