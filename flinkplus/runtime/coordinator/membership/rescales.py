"""Another parallelism while the job runs: slots are started, the job is switched over at a checkpoint, slots end.

The life of a request::

    STARTING -- all new slots have registered --> PREFETCHING -- slots have the state, or are silent --> CHECKPOINT
        '-- timeout: cancelled

    CHECKPOINT -- one can be divided --> SWITCHING --> ENDING --> done
        |  |   ^------ a failure came first ----'
        |  '-- slots lack much of its state: PREFETCHING
        '-- it cannot: cancelled

Rules: only the coordinator's thread calls this. New slots are reserved until the switch: they take no part in the job,
and their loss costs only time. The machine of the job switches over, and so decides which subtasks a failure meanwhile
restarts. Before that it is checked whether the checkpoint can be divided, while the job runs: a job is not interrupted
for a rescale that is refused. A new request replaces one that has not got as far as the switch, and uses the slots that
it has started.

Where rows are visible at once, sinks hold them back behind the checkpoint that is to be divided, from its trigger to
the switch. If that is called off, or has to wait for something else, the rows are released.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from chain_backup.failover.placement import PlacementError
from flinkplus.config import MOST_SPARES, Options
from flinkplus.errors import (
    ConfigurationError,
    CorruptCheckpoint,
    CorruptState,
    FlinkPlusError,
    InsufficientSlots,
    StateError,
    UntrustedCheckpoint,
    described,
)
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle, is_aligned
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.membership.divider import Divider
from flinkplus.runtime.coordinator.membership.extra_slots import ExtraSlots
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, ScaleReported
from flinkplus.runtime.coordinator.membership.prefetching import MAX_ROUNDS, Places, Prefetching
from flinkplus.runtime.coordinator.record.status import RescaleStatus

UNREADABLE = (CorruptCheckpoint, CorruptState, UntrustedCheckpoint, StateError, OSError)
"""Why one checkpoint cannot be divided, though the next one may."""
log = logging.getLogger("flinkplus.coordinator")


class RescalePhase(Enum):
    """How far a request is; see the module."""

    STARTING = "starting"
    PREFETCHING = "prefetching"
    CHECKPOINT = "checkpoint"
    SWITCHING = "switching"
    ENDING = "ending"


@dataclass(slots=True)
class _Rescale:
    """A request. ``slots``: the needed ones afterwards. ``seen``: the newest complete checkpoint that is too old, or
    cannot be divided. ``asked``: an aligned checkpoint was requested. ``checked``: the newest that was, or is being,
    checked; ``divisible``: that it was found fit.
    ``until_s``: deadline of STARTING (monotonic clock). ``before``: the needed slots so far."""

    request: int
    parallelism: int
    slots: tuple[int, ...]
    before: tuple[int, ...]
    until_s: float
    phase: RescalePhase = RescalePhase.STARTING
    seen: CheckpointId | None = None
    asked: bool = False
    checked: CheckpointId | None = None
    divisible: bool = False


@dataclass(eq=False, repr=False)
class Rescales:
    """The requests of one job for another parallelism, one at a time.

    ``handles``: returns the snapshots of a complete checkpoint.
    ``divider``: checks whether one can be divided for a parallelism; called by the storage worker.
    ``vertices``: names of the job's vertices.
    ``holding``: whether rows are visible at once.
    ``wanted``: the parallelism to continue at as soon as the job runs.
    ``timeout_s``: timeout for new slots to start.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _extra: ExtraSlots
    _requests: MoveRequests
    _handles: Callable[[CheckpointId], Mapping[str, SnapshotHandle]]
    _divider: Divider
    _vertices: Sequence[str]
    _options: Options
    _timeout_s: float
    _holding: bool = False
    _wanted: int | None = None

    def __post_init__(self) -> None:
        self._open: _Rescale | None = None
        self._reserved: list[int] = []
        self._ending: set[int] = set()
        self._reported: ScaleReported | None = None
        self._prefetching = Prefetching(self._dispatch, self._divider.files, self._timeout_s, self.look)

    @property
    def status(self) -> RescaleStatus | None:
        """The request that is under way."""
        rescale = self._open
        if rescale is None:
            return None
        return RescaleStatus(parallelism=rescale.parallelism, phase=rescale.phase.value, left=self._left(rescale))

    @property
    def states(self) -> dict[int, str]:
        """Slots that are not needed yet, or no longer."""
        return {**dict.fromkeys(self._reserved, "starting"), **dict.fromkeys(self._ending, "ending")}

    def next_deadline_ms(self) -> int | None:
        """When the time for new slots to start, or for a report about files, has passed (the machines' clock)."""
        until_s, rescale = None, self._open
        if rescale is not None and rescale.phase is RescalePhase.STARTING:
            until_s = rescale.until_s
        elif rescale is not None and rescale.phase is RescalePhase.PREFETCHING:
            until_s = self._prefetching.deadline_s
        return None if until_s is None else int(until_s * 1000) + 1

    # --- requests

    def begin(self, request: int, parallelism: int) -> None:
        """Continue at ``parallelism``. A request for the present one cancels a request that is under way."""
        refusal = self._refusal(parallelism)
        if refusal is not None:
            self._requests.report(ScaleReported(request, "refused", refusal))
            return
        own = self._dispatch.processes.own
        missing = max(0, parallelism - len(own) - len(self._reserved))
        try:
            if missing:
                spare = len(self._dispatch.processes.numbers) - len(own) - len(self._reserved)
                self._extra.check(max(parallelism, len(own)) + spare)
        except InsufficientSlots as error:
            self._requests.report(ScaleReported(request, "refused", str(error), no_room=True))
            return
        self._replace_open(f"replaced by a request for parallelism {parallelism}")
        for _ in range(missing):
            self._reserved.append(self._extra.start(reserved=True))
        surplus = len(self._reserved) - max(0, parallelism - len(own))
        for slot in self._reserved[len(self._reserved) - surplus :]:
            self._end(slot)
        if parallelism == len(own):
            self._requests.report(ScaleReported(request, "done"))
            return
        slots = (*own, *self._reserved)[:parallelism]
        self._open = _Rescale(request, parallelism, slots, own, self._dispatch.clock.monotonic() + self._timeout_s)
        log.info("the job is to continue at parallelism %d instead of %d", parallelism, len(own))
        self.look()

    def _refusal(self, parallelism: int) -> str | None:
        """Why the job cannot continue at ``parallelism``."""
        options, own, failover = self._options, self._dispatch.processes.own, self._machines.failover
        rescale = self._open
        if rescale is not None and rescale.phase in (RescalePhase.SWITCHING, RescalePhase.ENDING):
            return f"the job is just being switched over to parallelism {rescale.parallelism}; try again when it is"
        most = options.parallelism + MOST_SPARES
        if parallelism > most:
            return f"a job that was started at parallelism {options.parallelism} can have up to {most} slots"
        if failover is not None:
            new = [max(self._dispatch.processes.incarnations) + 1 + n for n in range(parallelism)]
            try:
                failover.chains_on(parallelism, (*own, *new)[:parallelism])
            except PlacementError as error:
                return str(error)
        return None

    def _replace_open(self, reason: str) -> None:
        before, self._open = self._open, None
        if before is not None:
            self._release()
            self._prefetching.end(used=False)
            self._requests.report(ScaleReported(before.request, "cancelled", reason))

    # --- progress

    def look(self) -> None:
        """Continue the request: slots may have registered or ended, a checkpoint may be complete, a timeout passed."""
        rescale = self._open
        if rescale is None:
            self._begin_wanted()
            return
        if rescale.phase is RescalePhase.STARTING:
            self._await_slots(rescale)
        if rescale.phase is RescalePhase.PREFETCHING:
            self._await_files(rescale)
        if rescale.phase is RescalePhase.CHECKPOINT:
            self._await_checkpoint(rescale)
        if self._open is rescale:
            self._report_progress(rescale)

    def _begin_wanted(self) -> None:
        if self._wanted is not None and self._machines.job.state is JobState.RUNNING:
            parallelism, self._wanted = self._wanted, None
            move, _ = self._requests.add(f"continue at parallelism {parallelism}")
            self.begin(move.number, parallelism)

    def _missing(self) -> list[int]:
        return [slot for slot in self._reserved if self._dispatch.processes.get(slot) is None]

    def _await_slots(self, rescale: _Rescale) -> None:
        missing = self._missing()
        if not missing:
            rescale.phase = RescalePhase.PREFETCHING
        elif self._dispatch.clock.monotonic() >= rescale.until_s:
            names = ", ".join(f"slot-{slot}" for slot in missing)
            why = f"Spark, which may have no room for more, had not started {names} after {self._timeout_s:g} s"
            self._cancel(rescale, why, no_room=True)

    def _await_files(self, rescale: _Rescale) -> None:
        """Have slots fetch what they can before the switch."""
        prefetching, newest = self._prefetching, self._machines.job.restore_from
        if prefetching.is_stuck:
            names = ", ".join(f"slot-{slot}" for slot in sorted(prefetching.left))
            log.warning("no slot has fetched state for %g s; left: %s", self._timeout_s, names or "all")
        elif prefetching.is_under_way:
            return
        elif newest not in (None, prefetching.fetched) and prefetching.rounds < MAX_ROUNDS:
            prefetching.begin(newest, rescale.parallelism, self._places(rescale))
            return
        rescale.phase = RescalePhase.CHECKPOINT
        rescale.seen = newest

    def _places(self, rescale: _Rescale) -> Places:
        """Where the subtasks are to run, and to have standbys."""
        failover, processes, slots = self._machines.failover, self._dispatch.processes, rescale.slots
        if failover is None:
            return {subtask: (slots[subtask.index % len(slots)],) for subtask in self._subtasks(rescale.parallelism)}
        hosts = {slot: process.host for slot in slots if (process := processes.get(slot)) is not None}
        try:
            return failover.chains_on(rescale.parallelism, slots, hosts)
        except PlacementError as error:  # the machine refuses the switch, or finds other places by then
            log.info("nothing is prefetched: %s", error)
            return {}

    def _subtasks(self, parallelism: int) -> tuple[SubtaskId, ...]:
        return tuple(sorted(SubtaskId(vertex, number) for vertex in self._vertices for number in range(parallelism)))

    def take_prefetched(self, process: SlotProcess, message: control.Prefetched) -> None:
        """Take the report of a slot about files."""
        self._prefetching.take(process, message)

    def _await_checkpoint(self, rescale: _Rescale) -> None:
        """Switch over right after a checkpoint has become complete, so that little is repeated."""
        machines, newest = self._machines, self._machines.job.restore_from
        failover = machines.failover
        if machines.job.state is not JobState.RUNNING or (failover is not None and failover.active):
            return
        if self._holding:
            self._await_held(rescale, newest)
            return
        if newest is not None and newest != rescale.seen and not self._missing():
            if newest == rescale.checked:
                if rescale.divisible:
                    self._switch(rescale)
                return
            if self._is_aligned(newest):
                self._check_division(rescale, newest)
                return
        if newest != rescale.seen or not machines.checkpoints.pending or not rescale.asked:
            rescale.asked = True
            machines.step_checkpoints(events.CheckpointRequested(aligned=True))
        rescale.seen = newest

    def _await_held(self, rescale: _Rescale, newest: CheckpointId | None) -> None:
        """As ``_await_checkpoint``, where rows are visible at once."""
        checkpoints = self._machines.checkpoints
        if self._missing():
            self._release()
        elif checkpoints.held is None:
            self._machines.step_checkpoints(events.CheckpointRequested(aligned=True, holding=True))
        elif newest == checkpoints.held and newest != rescale.checked:
            self._check_division(rescale, newest)
        elif newest == checkpoints.held and rescale.divisible:
            self._switch(rescale)

    def _release(self) -> None:
        if self._holding:
            self._machines.step_checkpoints(events.OutputReleased())

    def _check_division(self, rescale: _Rescale, checkpoint: CheckpointId) -> None:
        """Find out whether ``checkpoint`` can be divided, while the job runs."""
        rescale.checked, rescale.divisible = checkpoint, False
        refusals: list[str] = []
        divided: dict[SubtaskId, tuple[StateFile, ...]] = {}

        def check() -> None:
            try:
                self._divider.check(checkpoint, rescale.parallelism)
                divided.update(self._prefetching.divided(checkpoint, rescale.parallelism))
            except UNREADABLE:
                raise
            except Exception as error:  # of an operator, too, which is created for the check
                refusals.append(str(error) if isinstance(error, ConfigurationError) else described(error))

        def answered(unreadable: str = "") -> None:
            if self._open is not rescale or rescale.checked != checkpoint:
                return
            if refusals:
                self._cancel(rescale, refusals[0])
                return
            if unreadable:
                log.warning("checkpoint %d cannot be divided: %s", checkpoint, unreadable)
                rescale.seen, rescale.asked = checkpoint, False
                self._release()
            elif self._prefetching.is_worth_a_round(divided, self._places(rescale)):
                rescale.phase, rescale.asked = RescalePhase.PREFETCHING, False
                self._release()
            rescale.divisible = not unreadable
            self.look()

        self._dispatch.work(self._dispatch.storage, check, answered, answered)

    def _switch(self, rescale: _Rescale) -> None:
        rescale.phase = RescalePhase.SWITCHING
        self._machines.step_job(events.RescaleRequested(self._subtasks(rescale.parallelism), rescale.slots))

    def _is_aligned(self, checkpoint: CheckpointId) -> bool:
        """Whether the checkpoint has no messages in flight that barriers have overtaken."""
        try:
            return is_aligned(self._handles(checkpoint).values())
        except FlinkPlusError as error:
            log.warning("checkpoint %d cannot be divided: %s", checkpoint, error)
            return False

    def _left(self, rescale: _Rescale) -> list[str]:
        match rescale.phase:
            case RescalePhase.STARTING:
                return [f"slot-{slot}" for slot in self._missing()]
            case RescalePhase.PREFETCHING:
                return [f"slot-{slot}" for slot in sorted(self._prefetching.left)]
            case RescalePhase.ENDING:
                return [f"slot-{slot}" for slot in sorted(self._ending)]
            case _:
                return ["checkpoint"]

    def _report_progress(self, rescale: _Rescale) -> None:
        report = ScaleReported(rescale.request, "under_way", left=tuple(self._left(rescale)))
        if rescale.phase is RescalePhase.ENDING and not self._ending:
            self._open = None
            report = replace(report, status="done", left=())
        if report != self._reported:
            self._reported = report
            self._requests.report(report)

    def take(self, report: effects.ReportRescale) -> None:
        """Take the answer of the machine of the job."""
        rescale = self._open
        if rescale is None or rescale.phase is not RescalePhase.SWITCHING:
            return
        if report.status == "refused":  # a failure, or a newer checkpoint that is unaligned, came first
            rescale.phase = RescalePhase.CHECKPOINT
        elif report.status == "cancelled":
            self._cancel(rescale, report.reason)
        else:
            rescale.phase = RescalePhase.ENDING
            self._prefetching.end(used=True)
            self._reserved = []
            for slot in rescale.before:
                if slot not in rescale.slots:
                    self._end(slot)
            self._dispatch.soon(self.look)

    def _cancel(self, rescale: _Rescale, reason: str, no_room: bool = False) -> None:
        log.warning("the job stays at parallelism %d: %s", len(self._dispatch.processes.own), reason)
        self._prefetching.end(used=False)
        for slot in tuple(self._reserved):
            self._end(slot)
        self._open = None
        self._release()
        self._requests.report(ScaleReported(rescale.request, "cancelled", reason, no_room=no_room))

    # --- one slot

    def _end(self, slot: int) -> None:
        """End ``slot``, which is not needed."""
        if slot in self._reserved:
            self._reserved.remove(slot)
        self._ending.add(slot)
        self._extra.end(slot, lambda: self._gone(slot))

    def _gone(self, slot: int) -> None:
        self._ending.discard(slot)
        self.look()
