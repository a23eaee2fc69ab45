"""Planned moves as a user sees them: asked for in any thread, decided and carried out in the coordinator's.

Rules: every request ends, at the latest with the job; who waits for one is told by a typed error when it did not come
to what was asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from chain_backup.failover.effects import MoveStatus, ReportMove
from chain_backup.failover.events import HostDrainRequested, HostUndrainRequested, MoveRequested
from flinkplus.errors import FlinkPlusError, InsufficientSlots, MoveCancelled, MoveRefused, RedundancyAtRisk
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.membership.spares import ScaleReported, Spares

if TYPE_CHECKING:
    from chain_backup.failover.plans import Request
    from flinkplus.runtime.coordinator.drivers.failover import Failovers

ANSWER_TIMEOUT_S = 10.0
KEPT = 1000
"""Requests that are remembered."""


class PlannedMove:
    """A request, and what became of it. Any thread may look."""

    def __init__(self, told: str, number: int) -> None:
        self.number = number
        self.on_answer: Callable[[], None] | None = None
        """Called once, in the coordinator's thread, when it is known whether it can be."""
        self._told = told
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._report: ReportMove | ScaleReported | None = None

    def __repr__(self) -> str:
        return f"<{self._told}: {self.status}>"

    @property
    def status(self) -> MoveStatus | None:
        """``under_way``, ``done``, ``cancelled``, ``refused``; ``None``: not known yet."""
        return None if self._report is None else self._report.status

    @property
    def left(self) -> list[str]:
        """The subtasks of which something is not yet where it ought to be (``["count[1]"]``), and slots that are on
        their way (``["slot-4"]``)."""
        return [] if self._report is None else [str(subtask) for subtask in self._report.left]

    @property
    def reason(self) -> str:
        """Why it was refused or cancelled."""
        return "" if self._report is None else self._report.reason

    def await_done(self, timeout: float | None = None) -> None:
        """Wait until it is done.

        Raises ``MoveCancelled`` (or ``MoveRefused``, or ``InsufficientSlots``) when it will never be, ``TimeoutError``
        after ``timeout`` seconds.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self._told}: not done within {timeout} s; left: {', '.join(self.left) or 'nothing'}")
        self.check()

    def await_answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until it is known whether it can be. Raises like ``await_done``."""
        if not self._answered.wait(timeout_s):
            raise TimeoutError(f"{self._told}: no answer within {timeout_s} s")
        self.check()

    def check(self) -> None:
        """Raise what ``await_done`` raises, if that is known already."""
        report = self._report
        if report is None or report.status not in ("refused", "cancelled"):
            return
        kind: type[FlinkPlusError] = MoveCancelled
        if isinstance(report, ScaleReported) and report.no_room:
            kind = InsufficientSlots
        elif report.status == "refused":
            kind = RedundancyAtRisk if report.at_risk else MoveRefused
        raise kind(f"{self._told}: {report.reason}")

    def told(self, report: ReportMove | ScaleReported) -> None:
        """There is news of it."""
        self._report = report
        if report.status != "under_way":
            self._ended.set()
        first = not self._answered.is_set()
        self._answered.set()
        if first and self.on_answer is not None:
            self.on_answer()


class Moves:
    """All requests of one job. ``ask``: runs something in the coordinator's thread; ``state``: of the job, as text;
    ``failovers``: ``None`` where nobody can take work over beside the stream."""

    def __init__(
        self, ask: Callable[[Callable[[], None]], None], state: Callable[[], str], failovers: Failovers | None
    ) -> None:
        self._ask = ask
        self._state = state
        self._failovers = failovers
        self._lock = threading.Lock()
        self._requests = 0
        self._open: dict[int, PlannedMove] = {}
        self._known: dict[int, PlannedMove] = {}
        self._closed = False
        self.spares: Spares | None = None
        """Set by whoever has some."""
        if failovers is not None:
            failovers.moved = self.told

    def migrate(self, subtask: SubtaskId, slot: int) -> PlannedMove:
        """Have ``subtask`` work on ``slot``."""
        return self._request(f"migrate {subtask} to slot {slot}", lambda number: MoveRequested(number, subtask, slot))

    def drain_host(self, host: str, force: bool) -> PlannedMove:
        """Have nothing on ``host``."""
        return self._request(f"drain {host}", lambda number: HostDrainRequested(number, host, force))

    def undrain_host(self, host: str) -> PlannedMove:
        """Use ``host`` again."""
        return self._request(f"undrain {host}", lambda number: HostUndrainRequested(number, host))

    def scale(self, count: int, force: bool) -> PlannedMove:
        """Have ``count`` spare slots."""
        told = f"scale to {count} spare slot{'s'[: count != 1]}"
        return self._request(told, lambda number: lambda spares: spares.scale(number, count, force))

    def next_number(self) -> int:
        """A number that no request has."""
        with self._lock:
            self._requests += 1
            return self._requests

    def find(self, number: int) -> PlannedMove | None:
        """One of the last requests."""
        return self._known.get(number)

    def _request(self, told: str, make: Callable[[int], Request | Callable[[Spares], None]]) -> PlannedMove:
        with self._lock:
            self._requests += 1
            number = self._requests
            move = PlannedMove(told, number)
            self._known[number] = move
            self._known.pop(number - KEPT, None)
            closed = self._closed
            if not closed:
                self._open[number] = move
        if closed:
            move.told(ReportMove(number, "refused", "the job is over"))
        else:
            self._ask(lambda: self._begin(number, make(number)))
        return move

    def _begin(self, number: int, request: Request | Callable[[Spares], None]) -> None:
        """In the coordinator's thread."""
        if self._failovers is None:
            why = "the job recovers by rollback, so that nobody can take work over; use recovery='standby'"
            self.told(ReportMove(number, "refused", why))
        elif not self._failovers.running:
            self.told(ReportMove(number, "refused", f"the job is {self._state()}; try again when it runs"))
        elif not callable(request):
            self._failovers.step(request)
        elif self.spares is not None:
            request(self.spares)

    def told(self, report: ReportMove | ScaleReported) -> None:
        """The machine, or whoever has the spare slots, says what became of a request."""
        if isinstance(report, ReportMove) and self.spares is not None and self.spares.told(report):
            return
        with self._lock:
            move = self._open.get(report.request)
            if move is not None and report.status != "under_way":
                del self._open[report.request]
        if move is not None:
            move.told(report)

    def close(self) -> None:
        """The job is over."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, {}
        for number, move in left.items():
            move.told(ReportMove(number, "cancelled", "the job is over"))
