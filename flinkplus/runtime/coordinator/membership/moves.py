"""Planned moves: a user requests them in any thread; the coordinator's thread decides and carries them out.

Rules: every request ends, at the latest with the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from chain_backup.failover.effects import MoveStatus, ReportMove
from chain_backup.failover.events import HostDrainRequested, HostUndrainRequested, MoveRequested
from flinkplus.errors import FlinkPlusError, InsufficientSlots, MoveCancelled, MoveRefused, RedundancyAtRisk
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines

ANSWER_TIMEOUT_S = 10.0
KEPT = 1000  # remembered requests


@dataclass(frozen=True)
class ScaleReported:
    """Progress of a request for spare slots, as ``ReportMove`` for other moves.

    ``left``: subtasks still to be moved, and slots that are starting or ending.
    ``no_room``: Spark cannot run that many slots.
    """

    request: int
    status: MoveStatus
    reason: str = ""
    left: tuple[str, ...] = ()
    at_risk: bool = False
    no_room: bool = False


class PlannedMove:
    """A request and its progress. Any thread may read it."""

    def __init__(self, description: str, number: int) -> None:
        self.number = number
        self.on_answer: Callable[[], None] | None = None
        """Called once, in the coordinator's thread, when the request is accepted or refused."""
        self._description = description
        self._answered = threading.Event()
        self._ended = threading.Event()
        self._report: ReportMove | ScaleReported | None = None

    def __repr__(self) -> str:
        return f"<{self._description}: {self.status}>"

    @property
    def status(self) -> MoveStatus | None:
        """``under_way``, ``done``, ``cancelled`` or ``refused``; ``None``: not answered yet."""
        return None if self._report is None else self._report.status

    @property
    def left(self) -> list[str]:
        """Subtasks still to be moved (``["count[1]"]``), and slots that are starting or ending (``["slot-4"]``)."""
        return [] if self._report is None else [str(subtask) for subtask in self._report.left]

    @property
    def reason(self) -> str:
        return "" if self._report is None else self._report.reason

    def await_done(self, timeout: float | None = None) -> None:
        """Wait until the request is done.

        Raises ``MoveCancelled``, ``MoveRefused`` or ``InsufficientSlots`` when it was not carried out,
        ``TimeoutError`` after ``timeout`` seconds.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(
                f"{self._description}: not done within {timeout} s; left: {', '.join(self.left) or 'nothing'}"
            )
        self.check()

    def await_answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Wait until the request is accepted or refused. Raises as ``await_done``."""
        if not self._answered.wait(timeout_s):
            raise TimeoutError(f"{self._description}: no answer within {timeout_s} s")
        self.check()

    def check(self) -> None:
        """Raise the error of a refused or cancelled request, as ``await_done``."""
        report = self._report
        if report is None or report.status not in ("refused", "cancelled"):
            return
        kind: type[FlinkPlusError] = MoveCancelled
        if isinstance(report, ScaleReported) and report.no_room:
            kind = InsufficientSlots
        elif report.status == "refused":
            kind = RedundancyAtRisk if report.at_risk else MoveRefused
        raise kind(f"{self._description}: {report.reason}")

    def report(self, report: ReportMove | ScaleReported) -> None:
        self._report = report
        if report.status != "under_way":
            self._ended.set()
        first = not self._answered.is_set()
        self._answered.set()
        if first and self.on_answer is not None:
            self.on_answer()


class MoveRequests:
    """All requests of one job, by number. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = 0
        self._open: dict[int, PlannedMove] = {}
        self._known: dict[int, PlannedMove] = {}
        self._closed = False

    def next_number(self) -> int:
        with self._lock:
            self._requests += 1
            return self._requests

    def find(self, number: int) -> PlannedMove | None:
        """The request of that number; ``None`` if it is unknown or too old."""
        return self._known.get(number)

    def add(self, description: str) -> tuple[PlannedMove, bool]:
        """A new request, and whether it is open: after the end of the job it is refused at once."""
        number = self.next_number()
        move = PlannedMove(description, number)
        with self._lock:
            self._known[number] = move
            self._known.pop(number - KEPT, None)
            closed = self._closed
            if not closed:
                self._open[number] = move
        if closed:
            move.report(ReportMove(number, "refused", "the job is over"))
        return move, not closed

    def report(self, report: ReportMove | ScaleReported) -> None:
        with self._lock:
            move = self._open.get(report.request)
            if move is not None and report.status != "under_way":
                del self._open[report.request]
        if move is not None:
            move.report(report)

    def close(self) -> None:
        """Cancel all open requests: the job is over."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, {}
        for number, move in left.items():
            move.report(ReportMove(number, "cancelled", "the job is over"))


@dataclass(eq=False, repr=False)
class Moves:
    """Begins the requests of one job.

    ``scale``: starts or ends spare slots (see ``Spares.scale``); ``None``: the job cannot have any.
    ``take``: takes reports of requests that ``scale`` has made (see ``Spares.take``).
    ``rescale``: continues at another parallelism (see ``Rescales.begin``); ``None``: that cannot change.
    """

    _calls: Calls
    _machines: JobMachines
    requests: MoveRequests
    _scale: Callable[[int, int, bool], None] | None = None
    _take: Callable[[ReportMove], bool] = lambda _report: False
    _rescale: Callable[[int, int], None] | None = None

    def migrate(self, subtask: SubtaskId, slot: int) -> PlannedMove:
        """Move ``subtask`` to ``slot``."""
        step = self._machines.step_failover
        return self._request(
            f"migrate {subtask} to slot {slot}", lambda number: step(MoveRequested(number, subtask, slot))
        )

    def drain_host(self, host: str, force: bool) -> PlannedMove:
        """Move all subtasks and standbys off ``host``. ``force``: even if chains get shorter, or share hosts."""
        step = self._machines.step_failover
        return self._request(f"drain {host}", lambda number: step(HostDrainRequested(number, host, force)))

    def undrain_host(self, host: str) -> PlannedMove:
        """Allow subtasks and standbys on ``host`` again."""
        step = self._machines.step_failover
        return self._request(f"undrain {host}", lambda number: step(HostUndrainRequested(number, host)))

    def scale(self, count: int, force: bool) -> PlannedMove:
        """Start or end spare slots until there are ``count``. ``force``: as of ``drain_host``."""

        def begin(number: int) -> None:
            if self._scale is not None:
                self._scale(number, count, force)

        return self._request(f"scale to {count} spare slot{'s'[: count != 1]}", begin)

    def rescale(self, parallelism: int) -> PlannedMove:
        """Continue at ``parallelism``."""
        move, is_open = self.requests.add(f"rescale to parallelism {parallelism}")

        def begin() -> None:
            state = self._machines.job.state
            if self._rescale is not None and state is JobState.RUNNING:
                self._rescale(move.number, parallelism)
            else:
                refusal = f"the job is {state.value}; try again when it runs"
                self.requests.report(ReportMove(move.number, "refused", refusal))

        if is_open:
            self._calls.ask(begin)
        return move

    def _request(self, description: str, begin: Callable[[int], None]) -> PlannedMove:
        move, is_open = self.requests.add(description)
        if is_open:
            self._calls.ask(lambda: self._begin(move.number, begin))
        return move

    def _begin(self, number: int, begin: Callable[[int], None]) -> None:
        """In the coordinator's thread."""
        if self._machines.failover is None:
            why = "the job recovers by rollback, so it has no standbys that could take over; use recovery='standby'"
            self.requests.report(ReportMove(number, "refused", why))
        elif self._machines.local_failover is None:
            state = self._machines.job.state.value
            self.requests.report(ReportMove(number, "refused", f"the job is {state}; try again when it runs"))
        else:
            begin(number)

    def report(self, report: ReportMove) -> None:
        """The machine of local failover reports the progress of a request."""
        if not self._take(report):
            self.requests.report(report)
