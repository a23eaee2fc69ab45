"""Rows that wait for answers from outside, as ``flinkplus.operators.calls`` has them.

The outside cannot be repeated: it answers when it likes, and the same question again with another answer. What it
answered shows in the size of the messages that are made of the row. An answer is stored in ``World.answers``,
which outlives processes, and can be stored by a process that has died meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flinkplus.protocol.vocabulary.ids import CheckpointId
from tests.simulation.graph import Row

if TYPE_CHECKING:
    from tests.simulation.subtask import SimSubtask

Together = tuple[tuple[int, int], ...]
"""Numbers of rows, each with its answer."""
CALLS_MS = (0, 1, 1, 2, 5)
LATE = 0.02
LATE_MS = 40
MAX_ANSWER = 50
TOGETHER = 4


class SimAnswers:
    """``AnswersPort`` of one subtask. ``saved``: what ``saved`` gave; ``logged``: its steps may be repeated."""

    def __init__(self, owner: SimSubtask, saved: Mapping[str, Any], logged: bool) -> None:
        self._owner, self._world, self._slot, self._logged = owner, owner.slot.world, owner.slot, logged
        self._parameters = self._world.parameters
        self._key = str(owner.id)
        self._rows: dict[int, Row] = dict(saved.get("rows", ()))
        self._next: int = saved.get("next", 0)
        self._taken: int = saved.get("taken", 0)
        self._marks: deque[tuple[int, int]] = deque(saved.get("marks", ()))
        self._latest_ms: int | None = saved.get("latest_ms")
        self._to_ask = sorted(self._rows)
        self._order: deque[int] = deque()
        self._came: dict[int, int] = {}
        self._ready: deque[tuple[int, Together]] = deque()
        self._storing = False
        self._last = max([self._taken, *(number for key, number in self._world.answers if key == self._key)])
        self._taken_at: dict[CheckpointId, int] = {}

    # --- rows

    def wait(self, rows: Sequence[Row]) -> None:
        """Rows that a step took."""
        for row in rows:
            self._rows[self._next] = row
            self._to_ask.append(self._next)
            self._next += 1

    def holds(self, watermark_ms: int) -> bool:
        """Whether a watermark waits for rows."""
        self._latest_ms = watermark_ms
        if self._rows:
            self._marks.append((self._next, watermark_ms))
        return bool(self._rows)

    @property
    def waiting(self) -> int:
        return len(self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) >= self._parameters.ask_capacity

    # --- asking

    def ask(self) -> None:
        rng, world = self._world.rng_asked, self._world
        numbers, self._to_ask = [number for number in self._to_ask if number in self._rows], []
        self._order.extend(numbers)
        for number in numbers:
            took_ms = LATE_MS if rng.random() < LATE else rng.choice(CALLS_MS)
            world.at(world.now_ms + took_ms, self._slot.event, self._has_come, number, rng.randrange(MAX_ANSWER))

    def _has_come(self, number: int, answer: int) -> None:
        self._came[number] = answer
        self._store()

    def _next_together(self) -> Together:
        if not self._parameters.ask_in_order:
            return tuple((number, self._came.pop(number)) for number in list(self._came)[:TOGETHER])
        found: list[tuple[int, int]] = []
        while self._order and self._order[0] in self._came and len(found) < TOGETHER:
            number = self._order.popleft()
            found.append((number, self._came.pop(number)))
        return tuple(found)

    def _store(self) -> None:
        if self._storing or self._owner.closed:
            return
        together = self._next_together()
        if not together:
            return
        if not self._logged:
            self._is_ready(self._last + 1, together)
            self._store()
            return
        self._storing = True
        self._write(self._last + 1, together)

    def _write(self, number: int, together: Together) -> None:
        world = self._world
        world.at(world.now_ms + world.storage_ms(), self._written, number, together)

    def _written(self, number: int, together: Together) -> None:
        """In storage: also when the process has died meanwhile."""
        if (self._key, number) in self._world.answers:
            self._write(number + 1, together)
            return
        self._world.answers[self._key, number] = together
        self._slot.event(self._is_stored, number, together)

    def _is_stored(self, number: int, together: Together) -> None:
        self._storing = False
        self._is_ready(number, together)
        self._store()

    def _is_ready(self, number: int, together: Together) -> None:
        self._last = max(self._last, number)
        self._ready.append((number, together))

    # --- answers

    def repeats(self, choices: Sequence[int]) -> None:
        number, at_ms = self._taken, self._world.now_ms
        for choice in choices:
            number, at_ms = number + choice, at_ms + self._world.storage_ms()
            self._world.at(at_ms, self._slot.event, self._fetched, number)

    def _fetched(self, number: int) -> None:
        self._world.checks.counts["answers_repeated"] += 1
        self._is_ready(number, self._world.answers[self._key, number])

    def choose(self) -> int | None:
        return self._ready[0][0] - self._taken if self._ready else None

    def can_take(self, choice: int) -> bool:
        return bool(self._ready) and self._ready[0][0] == self._taken + choice

    def take(self, choice: int) -> Iterator[None]:
        owner, checks = self._owner, self._world.checks
        checks.works(owner)
        checks.counts["answers_taken"] += 1
        if checks.exact:
            checks.causes.takes(owner, (), determinants=0)
        self._taken += choice
        _, together = self._ready.popleft()
        rows = tuple(self._rows.pop(number) for number, _ in together)
        yield from owner.answered(rows, sum(answer for _, answer in together))
        oldest = min(self._rows, default=self._next)
        while self._marks and self._marks[0][0] <= oldest:
            _, mark_ms = self._marks.popleft()
            if mark_ms > owner.advanced_ms:  # after a division it may have been sent on before
                yield from owner.advances(mark_ms)

    # --- snapshots

    def saved(self, checkpoint: CheckpointId) -> dict[str, Any]:
        self._taken_at[checkpoint] = self._taken
        return {
            "rows": tuple(self._rows.items()),
            "next": self._next,
            "taken": self._taken,
            "marks": tuple(self._marks),
            "latest_ms": self._latest_ms,
        }

    def complete(self, checkpoint: CheckpointId) -> None:
        taken = self._taken_at.get(checkpoint, 0)
        for key, number in list(self._world.answers):
            if key == self._key and number <= taken:
                del self._world.answers[key, number]


def inherited(saved: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> dict[str, Any]:
    """What a subtask of another parallelism begins with: ``rows``, for which the event time of all waits."""
    if not saved[0]:
        return {}
    known = [one["latest_ms"] for one in saved]
    marks = ((len(rows), min(known)),) if rows and None not in known else ()
    return {"rows": tuple(enumerate(rows)), "next": len(rows), "taken": 0, "marks": marks, "latest_ms": None}
