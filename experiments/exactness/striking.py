"""Failures and rescales of a running job, carried out; what was done, and how each rescale ended.

Rules: slots and subtasks come and go with rescales, so a failure names its subtask among those that there are when it
comes. No subtask is ordered twice to raise while another one is left. A rescale that is refused because the job is not
running, or is just being switched over, is requested again. Nothing waits for a rescale beyond ``LAST`` of the input.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from experiments.exactness.rescales import CHECKPOINT, DONE, FAILURE, REQUESTED, RUNS, SWITCH, Rescale
from experiments.exactness.strikes import EXCEPTION, WORDS, Case, Strike
from experiments.harness.running import parallelism_of
from experiments.harness.workload import Trigger
from flinkplus.api.job import JobHandle
from flinkplus.errors import ConfigurationError, InsufficientSlots, MoveRefused, SubtaskNotRunning
from flinkplus.runtime.coordinator.membership.moves import PlannedMove

LAST = 0.7
"""The share of the input at whose end the failures come in any case, so that the job recovers while it has input."""
KILL_S = 0.5
"""After this time a kill looks again which subtasks there are."""
ORDER = (REQUESTED, CHECKPOINT, SWITCH, RUNS, DONE)


class Progress:
    """How far a rescale is, by what the job shows."""

    def __init__(self, move: PlannedMove, job: JobHandle) -> None:
        self._move, self._job = move, job
        self._reached = REQUESTED

    def look(self) -> str:
        """The moment that it has reached; never one before an earlier answer."""
        state, left = self._job.state, self._move.left
        if self._move.status != "under_way":
            self._reached = DONE
        elif state != "running":
            self._advance(SWITCH)
        elif self._reached in (SWITCH, RUNS):
            self._advance(RUNS)
        elif left == ["checkpoint"]:
            self._advance(CHECKPOINT)
        return self._reached

    def _advance(self, moment: str) -> None:
        self._reached = max(self._reached, moment, key=ORDER.index)

    def has_reached(self, moment: str) -> bool:
        return ORDER.index(self.look()) >= ORDER.index(moment)


class Striking:
    """All of one run. ``until``: waits for a condition of the job, and raises when the run is over.

    ``struck``, ``requests``: what was done so far.
    """

    def __init__(
        self,
        job: JobHandle,
        case: Case,
        raises: Mapping[str, Trigger],
        until: Callable[[Callable[[], bool]], None],
        stop: threading.Event,
    ) -> None:
        self._job, self._case, self._raises, self._until, self._stop = job, case, raises, until, stop
        self._moves: list[PlannedMove | None] = []
        self._parallelism = case.parallelism
        self._ordered: set[tuple[str, int]] = set()
        self.struck: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    def run(self) -> None:
        """Carry out everything."""
        for number, strike in enumerate(self._case.strikes):
            if number:
                self._stop.wait(self._case.apart_s)
            beside = [rescale for rescale in self._case.rescales if rescale.strike == number]
            for rescale in beside:
                if rescale.moment != FAILURE:
                    self._rescale(rescale)
            if self._job.done:
                self._until(lambda: False)  # raises with the reason
            self._strike(strike)
            for rescale in beside:
                if rescale.moment == FAILURE:
                    self._stop.wait(rescale.delay_s)
                    self._request(rescale)

    def note(self) -> None:
        """Write down how the requests ended."""
        for request, move in zip(self.requests, self._moves, strict=True):
            if move is not None:
                request |= {"status": move.status, "reason": move.reason}

    # --- rescales

    def _rescale(self, rescale: Rescale) -> None:
        """Request it, and wait for the moment of the failure."""
        move = self._request(rescale)
        if move is not None:
            progress = Progress(move, self._job)
            self._until(lambda: progress.has_reached(rescale.moment) or self._is_late())
        if not self._is_late():
            self._stop.wait(rescale.delay_s)

    def _request(self, rescale: Rescale) -> PlannedMove | None:
        request = {"parallelism": rescale.parallelism, "at_s": time.time(), "status": "refused", "reason": ""}
        self.requests.append(request)
        self._moves.append(None)

        def answered() -> bool:
            try:
                self._moves[-1] = self._job.rescale(rescale.parallelism)
            except MoveRefused as refusal:
                request["reason"] = str(refusal)
                return self._is_late()
            except InsufficientSlots as refusal:
                request["reason"] = str(refusal)
            return True

        self._until(answered)
        return self._moves[-1]

    def _is_late(self) -> bool:
        return self._job.done or sum(self._job.rows_out(WORDS).values()) >= LAST * self._case.rows

    # --- failures

    def _strike(self, strike: Strike) -> None:
        noted = {"missing": self._job.missing_standbys(), "state": self._job.state}
        if strike.kind == EXCEPTION:
            index, parallelism = free_index(strike, self._known(), self._ordered), self._parallelism
            self._ordered.add((strike.stage, index))
            at_s = time.time()
            self._raises[strike.stage].pull(index)
        else:
            index, parallelism, at_s = self._kill(strike)
        subtask = f"{strike.stage}[{index}]"
        self.struck.append({"subtask": subtask, "at_s": at_s, "parallelism": parallelism, **noted})

    def _known(self) -> int:
        """The parallelism; while the job is interrupted, the last that was known: its slots are there to be killed."""
        self._parallelism = parallelism_of(self._job) or self._parallelism
        return self._parallelism

    def _kill(self, strike: Strike) -> tuple[int, int, float]:
        """Returns the subtask's number, the parallelism, and when."""
        found = (0, 0, 0.0)

        def killed() -> bool:
            nonlocal found
            parallelism = self._known()
            found = strike.index % parallelism, parallelism, time.time()
            try:
                self._job.kill(f"{strike.stage}[{found[0]}]", timeout=KILL_S)
            except (ConfigurationError, SubtaskNotRunning):  # there are other subtasks by now, or none
                return False
            return True

        self._until(killed)
        return found

    def raised(self) -> int:
        """How many exceptions came to pass."""
        return sum(self._raises[stage].raised_s(index) is not None for stage, index in self._ordered)


def free_index(strike: Strike, parallelism: int, ordered: set[tuple[str, int]]) -> int:
    """Which of so many subtasks is to raise: the one drawn, or the next one that was not ordered to before."""
    indexes = [(strike.index + further) % parallelism for further in range(parallelism)]
    return next((index for index in indexes if (strike.stage, index) not in ordered), indexes[0])
