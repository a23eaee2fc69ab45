"""What a source reads in a step, and when it can.

The determinant of a step that reads is a number. The work chooses it from what there is to read at the moment
(``SubtaskWork.next_read``), and reads by the number alone: so a successor that is given the same number reads the same
rows, whatever else there is to read by then. The work of a source whose rows are always there, in one order, chooses
how many of them it reads.

Rules: one thread, that of the steps. A step begins when its work can read without waiting: a new one when the work has
something to choose, a repeated one when all is there that its predecessor read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flinkplus.protocol.determinants.determinants import IDLED, STOPPED, Choice
from flinkplus.protocol.subtask.parts import SubtaskParts

PASSED_OVER_ROWS = 16_384
"""Maximum number of rows that one step skips."""


class SourceSide:
    """The steps of one source that read, end its input, or say that it is idle.

    ``end``: sends the end of input.
    """

    def __init__(self, parts: SubtaskParts, end: Callable[[], Iterator[None]]) -> None:
        self._history = parts.history
        self._replay = parts.replay
        self._outputs = parts.outputs
        self._work = parts.work
        self._end = end

    @property
    def has_work(self) -> bool:
        """Whether there is something to read, or the source will be idle some time."""
        return not self._work.nothing_to_read or self._work.idle_at is not None

    def begins_at(self, now: float) -> float:
        """When the next step may begin, if there is one; in seconds."""
        idle_at = self._work.idle_at
        return self._work.ready_at(now) if idle_at is None else max(now, idle_at)

    @property
    def can_repeat(self) -> bool:
        """Whether the next step to repeat has all that it read."""
        choice = self._replay.next_read
        return choice is None or self._work.can_read(choice)

    def begin(self, draining: bool) -> Iterator[None] | None:
        """Begin a new step; ``None``: there is nothing to read after all.

        ``draining``: the source was ordered to stop reading.
        """
        if draining:
            return self.read(Choice.END, STOPPED)
        choice = self._work.next_read()
        if choice is not None:
            return self.read(Choice.READ, choice)
        return None if self._work.idle_at is None else self.read(Choice.END, IDLED)

    def read(self, choice: Choice, value: int) -> Iterator[None]:
        """A step that reads, ends the input, or says that the source is idle, as ``choice`` says."""
        self._history.begin(choice, value)
        if choice is Choice.READ and (yield from self._work.read_rows(value)):
            return
        yield from self._work.become_idle() if (choice, value) == (Choice.END, IDLED) else self._end()

    def pass_over(self) -> Iterator[None]:
        """Read rows whose effects were seen, without sending them. Only of a source that reads by numbers of rows."""
        before = self._history.rows_read
        self._outputs.silent = True
        try:
            more = yield from self._work.read_rows(min(self._replay.rows_to_skip, PASSED_OVER_ROWS))
        finally:
            self._outputs.silent = False
        self._replay.skipped(self._history.rows_read - before, more)
