"""The coordinator: the driver-side end of a job, which runs the protocol core and obeys it.

One thread owns the core (``JobProtocol``, ``CheckpointCoordinator``), the table of slots and all figures;
everything else
puts events into its inbox: control streams, the worker that writes manifests and commits output, the user's calls.

Rules: the core decides, this class carries out. Slow work (storage, sinks) is done by one worker thread, in order,
and comes
back as an event. Whatever happens, the job ends in FINISHED, FAILED or CANCELLED with everything given back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from typing_extensions import assert_never

from flinkplus.config import Options
from flinkplus.errors import (
    CorruptCheckpoint,
    CorruptState,
    FlinkPlusError,
    InsufficientSlots,
    JobCancelled,
    JobFailed,
    PeerProtocolError,
    UserFunctionError,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol import effects, events
from flinkplus.protocol.checkpointing import CheckpointCoordinator
from flinkplus.protocol.config import CheckpointConfig, RecoveryConfig
from flinkplus.protocol.effects import JobState
from flinkplus.protocol.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.job import JobProtocol
from flinkplus.runtime import control
from flinkplus.runtime.commits import Commits
from flinkplus.runtime.faults import Faults
from flinkplus.runtime.figures import Figures
from flinkplus.runtime.links import ControlArrived, ControlLost, LinkEvent, Rendezvous
from flinkplus.runtime.members import Member, Members
from flinkplus.runtime.names import find_subtask, parse_subtask
from flinkplus.runtime.recoveries import RecoveryLog

MAX_IDLE_S = 0.2
STOP_AT_ONCE_S = 3.0
RESTART_PATIENCE = 3  # Spark itself takes up to spark.network.timeout, 120 s, to see that a host is gone
FIRST_CHECKPOINT = CheckpointId(1)
NO_GENERATION = Generation(0)
log = logging.getLogger("flinkplus.coordinator")


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The worker finished something: an event for one of the machines."""

    event: events.CheckpointingEvent | events.JobEvent


@dataclass(frozen=True, slots=True)
class SlotsDown:
    """Spark ended the job of the slots; all of them are gone."""

    reason: str


@dataclass(frozen=True, slots=True)
class UserAsked:
    """A call of the user's, to be run in the coordinator's thread."""

    action: Callable[[], None]


Inbox = LinkEvent | WorkDone | SlotsDown | UserAsked


@dataclass
class Restore:
    """Where a resumed job begins: a complete checkpoint, those it could fall back to, and the generation before.

    ``draining``: the input was being ended. So it must be again: some sources may have ended early, and for good.
    """

    checkpoint: CheckpointId | None = None
    available: tuple[CheckpointId, ...] = ()
    next_checkpoint: CheckpointId = FIRST_CHECKPOINT
    generation: Generation = NO_GENERATION
    draining: bool = False


@dataclass
class JobResult:
    """How the job ended; ``error`` is what ``await_finish`` raises."""

    state: JobState | None = None
    error: FlinkPlusError | None = None
    done: threading.Event = field(default_factory=threading.Event)


def configs(options: Options) -> tuple[CheckpointConfig, RecoveryConfig]:
    """The core's limits from the user's options."""

    def ms(seconds: float) -> int:
        return round(seconds * 1000)

    checkpoints = CheckpointConfig(
        interval_ms=None if options.checkpoint_interval is None else max(1, ms(options.checkpoint_interval)),
        timeout_ms=ms(options.checkpoint_timeout),
        min_pause_ms=ms(options.checkpoint_min_pause),
        max_concurrent=options.max_concurrent_checkpoints,
        retained=options.retained_checkpoints,
    )
    recovery = RecoveryConfig(
        max_restarts=options.max_restarts,
        max_slot_losses=options.max_slot_losses,
        slot_timeout_ms=ms(options.slot_timeout),
        restart_slot_timeout_ms=ms(RESTART_PATIENCE * options.slot_timeout),
        deploy_timeout_ms=ms(options.deploy_timeout),
    )
    return checkpoints, recovery


class Coordinator:
    """One running job, seen from the driver."""

    def __init__(
        self,
        graph: JobGraph,
        options: Options,
        commits: Commits,
        restore: Restore,
        host: str,
        token: str,
    ) -> None:
        self.graph = graph
        self.options = options
        self.commits = commits
        self.result = JobResult()
        self._inbox: queue.SimpleQueue[Inbox] = queue.SimpleQueue()
        self._rendezvous = Rendezvous(host, token, self._inbox.put)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-storage")
        self._members = Members(options.parallelism)
        self.recoveries = RecoveryLog(options.recovery)
        self.figures = Figures(graph)
        self._subtasks = tuple(sorted(SubtaskId(v.name, i) for v in graph.vertices for i in range(options.parallelism)))
        self._sources = tuple(
            sorted(SubtaskId(v.name, i) for v in graph.vertices if v.is_source for i in range(options.parallelism))
        )
        self._assignment: dict[SubtaskId, int] = {}
        checkpoint_config, recovery_config = configs(options)
        self._checkpoints = CheckpointCoordinator(checkpoint_config, restore.next_checkpoint, restore.available)
        self._job = self._make_job(recovery_config, restore)
        self._generation = restore.generation
        self._faults = Faults(options.faults, restore.generation + 1)
        self._due: deque[Callable[[], None]] = deque()
        self._looked_s = time.monotonic()
        self._draining = restore.draining
        self._run_number = int(restore.generation)
        self.first_started_s: float | None = None
        self.ended_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="flinkplus-coordinator", daemon=True)

    # --- seen from other threads

    def start(self) -> str:
        """Start serving; returns the address slots register at."""
        address = self._rendezvous.start()
        self._thread.start()
        return address

    def slots_down(self, reason: str) -> None:
        self._inbox.put(SlotsDown(reason))

    def give_up(self, reason: str) -> None:
        """End the job now: there is nothing left that could run it."""
        self._inbox.put(UserAsked(lambda: self._end(JobState.FAILED, JobFailed(reason))))

    def cancel(self) -> None:
        """Ask for the end of the job; returns at once."""
        self._inbox.put(UserAsked(lambda: self._step_job(events.CancelRequested())))

    def request_checkpoint(self) -> None:
        self._inbox.put(UserAsked(lambda: self._step_checkpoints(events.CheckpointRequested())))

    def drain(self) -> None:
        """End the input: now, and again after every recovery."""
        self._inbox.put(UserAsked(self._drain))

    def _drain(self) -> None:
        self._draining = True
        self._tell_all(control.Drain(self._generation))

    def kill(self, subtask: SubtaskId) -> None:
        """Fault injection: SIGKILL the process that hosts a subtask; the time is stamped right before the signal."""
        self._inbox.put(UserAsked(lambda: self._kill(subtask)))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # --- the loop

    def _run(self) -> None:
        try:
            while not self.result.done.is_set():
                self._turn()
        except Exception as error:
            log.exception("the coordinator failed")
            self._stop_slots_at_once()
            self._end(JobState.FAILED, JobFailed(f"the coordinator failed: {type(error).__name__}: {error}"))
        finally:
            self._worker.shutdown(wait=True)
            self._rendezvous.close()

    def _stop_slots_at_once(self) -> None:
        """The core cannot go on: have the slots end, without its help, for a bounded time."""
        self._tell_all(control.Stop())
        deadline = time.monotonic() + STOP_AT_ONCE_S
        while self._members.all() and time.monotonic() < deadline:
            try:
                event = self._inbox.get(timeout=MAX_IDLE_S)
            except queue.Empty:
                continue
            if isinstance(event, ControlLost):
                member = self._members.on(event.connection)
                if member is not None:
                    self._members.remove(member.slot)

    def _turn(self) -> None:
        now = _now_ms()
        deadlines = [d for d in (self._job.next_deadline_ms(), self._checkpoints.next_deadline_ms()) if d is not None]
        wait_s = min([MAX_IDLE_S, *(max(0, d - now) / 1000 for d in deadlines)])
        try:
            event: Inbox | None = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            event = None
        if event is not None:
            self._handle(event)
        now = _now_ms()
        if any(d <= now for d in deadlines):
            self._step_job(events.TimeAdvanced())
            self._step_checkpoints(events.TimeAdvanced())
        self._look_for_silent_slots()

    def _handle(self, event: Inbox) -> None:
        match event:
            case ControlArrived(connection, message, _):
                try:
                    self._take(connection, message)
                except PeerProtocolError as error:
                    log.warning("dropped a malformed message of connection %d: %s", connection, error)
            case ControlLost(connection, reason, _):
                member = self._members.on(connection)
                if member is not None:
                    self._lose(member, reason)
            case WorkDone(done):
                self._work_done(done)
            case SlotsDown(reason):
                for member in self._members.all():
                    self._lose(member, reason)
            case UserAsked(action):
                action()
            case _:
                assert_never(event)

    def _lose(self, member: Member, reason: str) -> None:
        self._members.remove(member.slot)
        self._rendezvous.drop(member.connection)
        self._step_job(events.SlotLost(member.slot, member.incarnation, reason))

    def _look_for_silent_slots(self) -> None:
        """Heartbeats that are missing are a slot's fault only if this loop itself was there to hear them."""
        now, before = time.monotonic(), self._looked_s
        self._looked_s = now
        if now - before > self.options.heartbeat_timeout / 2:
            self._members.all_heard(now)
        for member in self._members.silent_since(now - self.options.heartbeat_timeout):
            self._evict(member, f"no heartbeat from slot {member.slot} for {self.options.heartbeat_timeout} s")

    def _take(self, connection: int, message: control.ControlMessage) -> None:
        if isinstance(message, control.Register):
            self._register(connection, message)
            return
        member = self._members.on(connection)
        if member is None:
            return  # a connection that was given up
        member.heard_s = time.monotonic()
        match message:
            case control.Heartbeat(generation, subtasks):
                if generation == self._generation:
                    self.figures.heard(subtasks)
                    for name, counters in subtasks.items():
                        self.recoveries.heard(name, counters["rows_out"])
            case control.Deployed(generation, _):
                self._step_job(events.SlotDeployed(Generation(generation), member.slot))
            case control.RestoreRefused(generation, checkpoint, subtask, reason):
                why = f"state of {subtask}: {reason}"
                self._step_job(events.RestoreFailed(Generation(generation), CheckpointId(checkpoint), why))
            case control.SubtaskFailure():
                self._subtask_failed(message)
            case control.SnapshotAcked(generation, checkpoint, subtask, handle):
                self.figures.snapshot(checkpoint, subtask, handle)
                self._step_checkpoints(
                    events.SnapshotAcknowledged(
                        CheckpointId(checkpoint), parse_subtask(subtask), Generation(generation), handle
                    )
                )
            case control.SnapshotRefused(generation, checkpoint, subtask, reason):
                self._step_checkpoints(
                    events.SnapshotDeclined(
                        CheckpointId(checkpoint), parse_subtask(subtask), Generation(generation), reason
                    )
                )
            case control.Exhausted(generation, subtask):
                self._step_checkpoints(events.SourceExhausted(parse_subtask(subtask), Generation(generation)))
            case control.Progressed(generation, subtask, when_s):
                if generation == self._generation:
                    self.recoveries.progressed(subtask, when_s)
            case control.Stopped():
                self._step_job(events.SlotStopped(member.slot))
            case _:
                log.warning("%s is not for the coordinator", type(message).__name__)

    def _register(self, connection: int, register: control.Register) -> None:
        old = self._members.get(register.slot)
        if old is not None:
            self._lose(old, "replaced by a new attempt")
        member, _ = self._members.register(connection, register, time.monotonic())
        self._rendezvous.send(connection, control.Welcome(member.incarnation))
        self._step_job(events.SlotRegistered(member.slot, member.incarnation))

    def _subtask_failed(self, failure: control.SubtaskFailure) -> None:
        error: FlinkPlusError
        if failure.operator:
            error = UserFunctionError(failure.operator, failure.subtask, failure.row, failure.reason)
            error.args = (failure.reason,)
        else:
            error = JobFailed(f"subtask {failure.subtask}: {failure.reason}")
        log.info("subtask %s failed: %s", failure.subtask, failure.reason)
        subtask = parse_subtask(failure.subtask)
        self._step_job(events.SubtaskFailed(Generation(failure.generation), subtask, failure.reason, error))

    def _kill(self, subtask: SubtaskId) -> None:
        slot = self._assignment.get(subtask)
        member = None if slot is None else self._members.get(slot)
        if member is None:
            log.warning("cannot kill %s: its slot is not registered just now", subtask)
            return
        self.recoveries.kill_stamped(member.slot, time.time())
        if member.host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):  # dead already; its lost stream is about to say so
                os.kill(member.pid, signal.SIGKILL)
        else:
            self._rendezvous.send(member.connection, control.Die())

    def _reach(self, point: str) -> None:
        """A point of fault injection; see ``faults``."""
        self._faults.reach(
            point,
            self._generation,
            strike=lambda name: self._kill(find_subtask(name, self.graph, self.options.parallelism)),
        )

    # --- obeying the checkpoint coordinator

    def _soon(self, action: Callable[[], None]) -> None:
        """Run ``action`` after all that is due before it: effects are carried out list by list, never one in
        another.
        """
        self._due.append(action)
        if len(self._due) > 1:
            return
        while self._due:
            try:
                self._due[0]()
            except BaseException:
                self._due.clear()
                raise
            self._due.popleft()

    def _step_checkpoints(self, event: events.CheckpointingEvent) -> None:
        self._soon(lambda: self._step_checkpoints_now(event))

    def _step_checkpoints_now(self, event: events.CheckpointingEvent) -> None:
        for effect in self._checkpoints.step(_now_ms(), event):
            self._apply_checkpointing(effect)

    def _apply_checkpointing(self, effect: effects.CheckpointingEffect) -> None:
        match effect:
            case effects.TriggerCheckpoint(checkpoint, sources, _, generation):
                self._tell_sources(checkpoint, sources, generation)
            case effects.AbortCheckpoint(checkpoint, reason, generation):
                self._tell_all(control.Abort(generation, checkpoint, reason))
            case effects.StoreManifest(checkpoint, handles, final, generation):
                self._reach("manifest")
                self._work(
                    lambda: self.commits.store(checkpoint, generation, handles, final),
                    events.ManifestStored(checkpoint),
                    lambda reason: events.ManifestFailed(checkpoint, reason),
                )
            case effects.NotifyComplete(checkpoint, generation):
                self._tell_all(control.Complete(generation, checkpoint))
                self._step_job(events.CheckpointCompleted(checkpoint))
            case effects.CommitOutput(checkpoint, _):
                self._reach("commit")
                self._work(
                    lambda: self.commits.commit(checkpoint),
                    events.OutputCommitted(checkpoint),
                    lambda reason: events.CommitFailed(checkpoint, reason),
                )
            case effects.DropCheckpoint(checkpoint):
                self._step_job(events.CheckpointDropped(checkpoint))
                self._worker.submit(self._drop, checkpoint)
            case effects.RecordCheckpoint(stats):
                self.figures.checkpoint(stats)
            case effects.FinalCheckpointCommitted(_):
                self._step_job(events.FinalCommitted())
            case effects.FinalCheckpointAbandoned(_, generation, reason):
                self._step_job(events.FinalAbandoned(generation, reason))
            case effects.CommitAbandoned(_, reason):
                self._step_job(events.CommitAbandoned(reason))
            case effects.CommitsDrained():
                self._step_job(events.OutputDrained())
            case _:
                assert_never(effect)

    def _tell_sources(self, checkpoint: CheckpointId, sources: tuple[SubtaskId, ...], generation: Generation) -> None:
        self.figures.triggered(checkpoint)
        by_slot: dict[int, list[str]] = {}
        for subtask in sources:
            by_slot.setdefault(self._assignment[subtask], []).append(str(subtask))
        for slot, names in by_slot.items():
            self._tell(slot, control.Trigger(generation, checkpoint, names))

    def _tell(self, slot: int, message: control.ControlMessage) -> None:
        member = self._members.get(slot)
        if member is not None:
            self._rendezvous.send(member.connection, message)

    def _tell_all(self, message: control.ControlMessage) -> None:
        for member in self._members.all():
            self._rendezvous.send(member.connection, message)

    def _work(
        self,
        action: Callable[[], None],
        success: events.CheckpointingEvent | events.JobEvent,
        failure: Callable[[str], events.CheckpointingEvent | events.JobEvent],
    ) -> None:
        """Do ``action`` in the worker; its end comes back as an event."""

        def run() -> None:
            try:
                action()
            except Exception as error:
                log.warning("%s: %s", type(error).__name__, error)
                self._inbox.put(WorkDone(failure(f"{type(error).__name__}: {error}")))
            else:
                self._inbox.put(WorkDone(success))

        self._worker.submit(run)

    def _drop(self, checkpoint: CheckpointId) -> None:
        try:
            self.commits.drop(checkpoint)
        except (OSError, FlinkPlusError) as error:
            log.warning("checkpoint %d could not be removed: %s", checkpoint, error)

    def _collect_garbage(self, generation: Generation) -> None:
        try:
            self.commits.collect_garbage(generation)
        except (OSError, FlinkPlusError) as error:
            log.warning("unused state files could not be removed: %s", error)

    def _work_done(self, event: events.CheckpointingEvent | events.JobEvent) -> None:
        match event:
            case events.OutputCommitted():
                self._reach("committed")
                self._step_checkpoints(event)
            case events.ManifestStored() | events.ManifestFailed() | events.CommitFailed():
                self._step_checkpoints(event)
            case events.OutputRetracted() | events.RetractionFailed():
                self._step_job(event)
            case _:
                raise AssertionError(f"{event} does not come from the worker")

    # --- obeying the job protocol

    def _make_job(self, config: RecoveryConfig, restore: Restore) -> JobProtocol:
        return JobProtocol(
            self._subtasks,
            self.options.parallelism,
            config,
            started_ms=_now_ms(),
            restore_from=restore.checkpoint,
            available=restore.available,
            first_generation=Generation(restore.generation + 1),
        )

    def _step_job(self, event: events.JobEvent) -> None:
        self._soon(lambda: self._step_job_now(event))

    def _step_job_now(self, event: events.JobEvent) -> None:
        for effect in self._job.step(_now_ms(), event):
            self._apply_job(effect)

    def _apply_job(self, effect: effects.JobEffect) -> None:
        match effect:
            case effects.InterruptCheckpoints():
                self._step_checkpoints(events.JobInterrupted())
            case effects.DrainCommits():
                self._step_checkpoints(events.DrainRequested())
            case effects.HaltSubtasks(generation):
                self._tell_all(control.Suspend(generation))
            case effects.RetractOutputAfter(checkpoint, reason):
                self._retract(checkpoint, reason)
            case effects.Deploy(generation, restore, assignment):
                self._deploy(generation, restore, dict(assignment))
            case effects.StartSubtasks(generation):
                if self.first_started_s is None:
                    self.first_started_s = time.monotonic()
                age_s = time.monotonic() - self.first_started_s
                self._tell_all(control.Start(generation, self._run_number, age_s))
                if self._draining:
                    self._tell_all(control.Drain(generation))
                self._worker.submit(self._collect_garbage, generation)
                self._step_checkpoints(events.JobRunning(self._subtasks, self._sources, generation))
            case effects.EvictSlot(slot, incarnation, reason):
                member = self._members.get(slot)
                if member is not None and member.incarnation == incarnation:
                    self._evict(member, reason)
            case effects.StopSlots():
                self._tell_all(control.Stop())
            case effects.JobEnded(state, error, reason, failure):
                self._ended(state, error, reason, failure)
            case effects.RecoveryPhase(recovery, phase, failure, subtasks, reason):
                slots = {self._assignment[s] for s in subtasks if s in self._assignment}
                names = [str(s) for s in subtasks]
                self.recoveries.entered(recovery, phase, failure, names, reason, slots, time.time())
            case _:
                assert_never(effect)

    def _retract(self, checkpoint: CheckpointId | None, reason: str) -> None:
        where = "the start" if checkpoint is None else f"checkpoint {checkpoint}"
        log.warning("going back to %s and taking back the output committed since: %s", where, reason)
        self.recoveries.fell_back(f"to {where}: {reason}")
        self._step_checkpoints(events.CheckpointsAbandoned(checkpoint))
        self._soon(  # after the void checkpoints are dropped
            lambda: self._work(
                lambda: self.commits.retract_after(checkpoint),
                events.OutputRetracted(checkpoint),
                lambda why: events.RetractionFailed(checkpoint, why),
            )
        )

    def _deploy(self, generation: Generation, restore: CheckpointId | None, assignment: dict[SubtaskId, int]) -> None:
        self._generation = generation
        self._assignment = assignment
        self.recoveries.restored_from(restore)
        try:
            handles = {} if restore is None else self.commits.handles(restore)
        except (CorruptCheckpoint, CorruptState) as error:
            assert restore is not None
            self._step_job(events.RestoreFailed(generation, restore, str(error)))
            return
        addresses = {str(m.slot): [m.incarnation, m.address] for m in self._members.all()}
        names = {str(subtask): slot for subtask, slot in assignment.items()}
        for slot in range(self.options.parallelism):
            mine = {name for name, host in names.items() if host == slot}
            deploy = control.Deploy(
                generation,
                restore,
                names,
                addresses,
                {name: handle for name, handle in handles.items() if name in mine},
                {name: rows for name, rows in self.recoveries.marks.items() if name in mine},
            )
            self._tell(slot, deploy)

    def _evict(self, member: Member, reason: str) -> None:
        """End a slot's process: by a signal where it can be reached, else by closing its stream, which ends it too."""
        log.warning("ending slot %d: %s", member.slot, reason)
        if member.host == socket.gethostname():
            try:
                os.kill(member.pid, signal.SIGKILL)
            except ProcessLookupError:
                log.info("slot %d is gone already", member.slot)
        self._lose(member, reason)

    def _ended(self, state: JobState, error: object, reason: str, failure: str) -> None:
        if state is JobState.FINISHED:
            self._end(state, None)
        elif state is JobState.CANCELLED:
            self._end(state, JobCancelled("the job was cancelled"))
        elif failure == "slots":
            hint = (
                f"the job needs {self.options.parallelism} Spark tasks at once: give the executors more cores, or "
                "lower parallelism; if none registered, see the executors' logs: their Python must have flinkplus"
            )
            self._end(state, InsufficientSlots(f"{reason}; {hint}"))
        else:
            failed = JobFailed(reason)
            if isinstance(error, BaseException):
                failed.__cause__ = error
            self._end(state, failed)

    def _end(self, state: JobState, error: FlinkPlusError | None) -> None:
        self.ended_s = time.monotonic()
        self.result.state = state
        self.result.error = error
        self.result.done.set()

    # --- figures, from any thread

    @property
    def state(self) -> str:
        """The job's state now, as text."""
        state = self.result.state
        return (state if state is not None else self._job.state).value

    def pids(self) -> dict[int, int]:
        """Process of each registered slot."""
        return {member.slot: member.pid for member in self._members.all()}

    @property
    def slot_restarts(self) -> int:
        return self._members.restarts

    @property
    def assignment(self) -> dict[SubtaskId, int]:
        return dict(self._assignment)


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
