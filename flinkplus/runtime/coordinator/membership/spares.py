"""Spare slots: started and ended while the job runs, until there are as many as the user requested.

The life of one::

    STARTING -- it has joined --> JOINED -- not needed -----> LEAVING -- in no chain ---> ENDING --> removed
        |                           ^------- needed again -------'                          ^
        '-- timeout, or not needed ---------------------------------------------------------'

Rules: only the coordinator's thread calls this. The numbers of spare slots follow those of the needed slots and are
never reused. A spare slot joins like a restarted slot. The machine of local failover decides what it hosts, and whether
it can leave: no slot in a chain is ended. A new request cancels an unfinished one. A rollback keeps all spare slots.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from enum import Enum

from chain_backup.failover.effects import ReportMove
from chain_backup.failover.events import ScaleRequested
from chain_backup.failover.machine import FailoverProtocol
from flinkplus.errors import InsufficientSlots
from flinkplus.protocol.vocabulary.ids import invariant
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.membership.extra_slots import ExtraSlots
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, ScaleReported

log = logging.getLogger("flinkplus.coordinator")


class SpareState(Enum):
    """The state of a spare slot; see the module."""

    STARTING = "starting"
    JOINED = "joined"
    LEAVING = "leaving"
    ENDING = "ending"


@dataclass(slots=True)
class Spare:
    """One spare slot. ``until_s``: deadline to join (monotonic clock)."""

    state: SpareState
    until_s: float


@dataclass(slots=True)
class _Scale:
    """A request of a user.

    ``going``: slots to be removed.
    ``asked``: number of the request to the machine of local failover; ``None``: not sent yet.
    ``left``: subtasks that the machine reports as still to be moved.
    ``machine_done``: the machine has reported its request as done.
    """

    request: int
    force: bool
    going: tuple[int, ...] = ()
    asked: int | None = None
    left: tuple[str, ...] = ()
    machine_done: bool = False


@dataclass(eq=False, repr=False)
class Spares:
    """The spare slots of one job.

    ``requests``: numbers requests to the machine, and receives the progress of users' requests.
    ``timeout_s``: timeout for a spare slot to start and join.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _failover: FailoverProtocol
    _deployment: Deployment
    _extra: ExtraSlots
    _requests: MoveRequests
    _timeout_s: float

    def __post_init__(self) -> None:
        self._spares: dict[int, Spare] = {}
        self._open: _Scale | None = None
        self._candidate: _Scale | None = None
        self._reported: ScaleReported | None = None

    @property
    def states(self) -> dict[int, SpareState]:
        return {slot: spare.state for slot, spare in self._spares.items()}

    # --- requests

    def scale(self, request: int, count: int, force: bool) -> None:
        """Start or end spare slots until there are ``count``. ``force``: even if chains get shorter, or share hosts."""
        if count and self._deployment.alone and not self._failover.is_partial:
            why = "a job of one slot keeps nothing that another could continue from: rescale it to two first"
            self._requests.report(ScaleReported(request, "refused", why))
            return
        self._note_joined()
        staying = self._in(SpareState.STARTING, SpareState.JOINED)
        if count < len(staying):
            self._shrink(request, staying, len(staying) - count, force)
        else:
            self._grow(request, staying, count, force)

    def _in(self, *states: SpareState) -> list[int]:
        return sorted(slot for slot, spare in self._spares.items() if spare.state in states)

    def _grow(self, request: int, staying: list[int], count: int, force: bool) -> None:
        leaving = self._in(SpareState.LEAVING)
        back = leaving[: count - len(staying)]
        new = count - len(staying) - len(back)
        try:
            if new:
                self._extra.check(len(self._dispatch.processes.own) + len(staying) + len(leaving) + new)
        except InsufficientSlots as error:
            self._requests.report(ScaleReported(request, "refused", str(error), no_room=True))
            return
        self._begin(_Scale(request, force))
        for slot in back:
            self._spares[slot].state = SpareState.JOINED
        for _ in range(new):
            self._start()
        self.look()

    def _shrink(self, request: int, staying: list[int], count: int, force: bool) -> None:
        """Remove slots in this order: not joined yet, without a registered process, fewest subtasks."""
        joined = self._in(SpareState.JOINED)

        def worth(slot: int) -> tuple[bool, bool, int, int]:
            registered = self._dispatch.processes.get(slot) is not None
            return slot in joined, registered, len(self._deployment.on(slot)), -slot

        going = tuple(sorted(sorted(staying, key=worth)[:count]))
        known = [slot for slot in going if slot in joined]
        scale = self._candidate = _Scale(request, force, going)
        self._ask_machine(scale, (*self._in(SpareState.LEAVING), *known))
        if self._candidate is scale:
            self._candidate = None
            self._requests.report(
                ScaleReported(request, "refused", "the job is being interrupted; try again when it runs")
            )

    def _ask_machine(self, scale: _Scale, retiring: tuple[int, ...]) -> None:
        scale.asked = self._requests.next_number()
        self._machines.step_failover(ScaleRequested(scale.asked, tuple(sorted(retiring)), scale.force))

    def _begin(self, scale: _Scale) -> None:
        """Make this the current request; cancel the one before."""
        before, self._open, self._candidate = self._open, scale, None
        if before is not None:
            reason = "replaced by a new request for another number of spare slots"
            self._requests.report(ScaleReported(before.request, "cancelled", reason))

    # --- what the machine reports

    def take(self, report: ReportMove) -> bool:
        """Take the progress of a request to the machine; ``False`` if it is a user's own request."""
        scale = next((s for s in (self._candidate, self._open) if s is not None and s.asked == report.request), None)
        if scale is None:
            return False
        if report.status in ("refused", "cancelled"):
            if scale is self._candidate:
                self._candidate = None
            else:
                self._open = None
            self._requests.report(ScaleReported(scale.request, report.status, report.reason, at_risk=report.at_risk))
            return True
        if scale is self._candidate:
            self._begin(scale)
            for slot in scale.going:
                if self._spares[slot].state is SpareState.JOINED:
                    self._spares[slot].state = SpareState.LEAVING
                else:
                    self._end(slot)
        scale.left = tuple(str(subtask) for subtask in report.left)
        if report.status == "done":
            scale.machine_done = True
            for slot in self._in(SpareState.LEAVING):
                self._end(slot)
        self._dispatch.soon(self.look)
        return True

    # --- progress and timeouts

    def next_deadline_ms(self) -> int | None:
        """When the next timeout of a starting slot passes (the machines' clock)."""
        starting = [spare.until_s for spare in self._spares.values() if spare.state is SpareState.STARTING]
        return int(min(starting) * 1000) + 1 if starting else None

    def look(self) -> None:
        """Continue requests: slots may have joined or ended, or a timeout may have passed."""
        if not self._spares and self._open is None:
            return
        self._note_joined()
        now_s = self._dispatch.clock.monotonic()
        late = [slot for slot in self._in(SpareState.STARTING) if now_s >= self._spares[slot].until_s]
        if late:
            self._give_up(late)
        scale = self._open
        if scale is None:
            return
        starting = self._in(SpareState.STARTING)
        if scale.asked is None and not starting and self._machines.local_failover is not None:
            self._ask_machine(scale, tuple(self._in(SpareState.LEAVING)))
        if self._open is scale:
            self._report_progress(scale, starting + self._in(SpareState.LEAVING, SpareState.ENDING))

    def _report_progress(self, scale: _Scale, slots: list[int]) -> None:
        report = ScaleReported(scale.request, "under_way", left=(*(f"slot-{slot}" for slot in slots), *scale.left))
        if scale.machine_done and not slots:
            self._open = None
            report = replace(report, status="done", left=())
        if report != self._reported:
            self._reported = report
            self._requests.report(report)

    def _note_joined(self) -> None:
        for slot in self._in(SpareState.STARTING):
            if self._failover.is_alive(slot):
                self._spares[slot].state = SpareState.JOINED

    def _give_up(self, late: list[int]) -> None:
        started = any(self._dispatch.processes.get(slot) is not None for slot in late)
        what = "joined" if started else "been started by Spark, which may have no room for more"
        why = f"{', '.join(f'slot-{slot}' for slot in late)} had not {what} after {self._timeout_s:g} s"
        log.warning("cancelling the start of spare slots: %s", why)
        for slot in late:
            self._end(slot)
        scale, self._open = self._open, None
        if scale is not None:
            left = len(self._in(SpareState.STARTING, SpareState.JOINED))
            reason = f"{why}; cancelled; the job now has {left} spare slot{'s'[: left != 1]}"
            self._requests.report(ScaleReported(scale.request, "cancelled", reason, no_room=True))

    # --- one slot

    def _start(self) -> None:
        slot = self._extra.start()
        self._spares[slot] = Spare(SpareState.STARTING, self._dispatch.clock.monotonic() + self._timeout_s)

    def _end(self, slot: int) -> None:
        """End ``slot``, which must be in no chain."""
        used = any(slot in chain for chain in self._failover.chains.values())
        invariant(not used, "a slot that is used ends", slot=slot)
        self._spares[slot].state = SpareState.ENDING
        self._extra.end(slot, lambda: self._gone(slot))

    def _gone(self, slot: int) -> None:
        del self._spares[slot]
        self.look()
