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

from flinkplus.protocol.determinants.determinants import Choice
from flinkplus.protocol.subtask.parts import SubtaskParts

PASSED_OVER_ROWS = 16_384
"""Maximum number of rows that one step skips."""


class SourceSide:
    """The steps of one source that read, or end its input.

    ``end``: sends the end of input.
    """

    def __init__(self, parts: SubtaskParts, end: Callable[[], Iterator[None]]) -> None:
        self._history = parts.history
        self._replay = parts.replay
        self._outputs = parts.outputs
        self._work = parts.work
        self._end = end

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
            return self.read(Choice.END, 0)
        choice = self._work.next_read()
        return None if choice is None else self.read(Choice.READ, choice)

    def read(self, choice: Choice, value: int) -> Iterator[None]:
        """A step that reads, or ends the input, as ``choice`` says."""
        self._history.begin(choice, value)
        if choice is not Choice.END and (yield from self._work.read_rows(value)):
            return
        yield from self._end()

    def pass_over(self) -> Iterator[None]:
        """Read rows whose effects were seen, without sending them. Only of a source that reads by numbers of rows."""
        before = self._history.rows_read
        self._outputs.silent = True
        try:
            more = yield from self._work.read_rows(min(self._replay.rows_to_skip, PASSED_OVER_ROWS))
        finally:
            self._outputs.silent = False
        self._replay.skipped(self._history.rows_read - before, more)
