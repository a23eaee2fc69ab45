"""Steps that take answers: a subtask may ask something outside of the job, and its rows wait for the answers.

The determinant of such a step is a number. The port chooses it from the answers that have come
(``AnswersPort.choose``), and takes by the number alone: a successor that is given the same number takes the same
answers, at the same place among its other steps, and asks nothing again for them. So what a choice names is stored,
where a successor finds it, before it is chosen. An answer that no step has taken has had no effect: its row is asked
again.

Rules:

- nothing is asked while steps are repeated: a repeated step may take the answer;
- a subtask with as many waiting rows as it may have takes no records, but barriers, watermarks and ends of input;
- the end of input is a step of its own (``NO_MORE``), behind the last answer.

One thread, that of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flinkplus.protocol.determinants.determinants import Choice, unpack
from flinkplus.protocol.subtask.parts import SubtaskParts
from flinkplus.protocol.subtask.ports import AnswersPort

NO_MORE = 0
"""The value of ``Choice.READ`` in the step that ends a subtask which waits for nothing any more."""


class AnswerSide:
    """The steps of one subtask that take answers.

    ``answers``: what it has asked.
    ``input_ended``: whether all its inputs have ended, and it has not.
    ``end``: sends the end of input.
    """

    def __init__(
        self,
        parts: SubtaskParts,
        answers: AnswersPort,
        input_ended: Callable[[], bool],
        end: Callable[[], Iterator[None]],
    ) -> None:
        self._history = parts.history
        self._replay = parts.replay
        self._answers = answers
        self._input_ended = input_ended
        self._end = end
        choices = [value for choice, value in map(unpack, self._replay.determinants) if choice is Choice.READ]
        answers.repeats([value for value in choices if value != NO_MORE])

    @property
    def takes_records(self) -> bool:
        """Whether further rows may wait."""
        return not self._answers.full

    @property
    def has_work(self) -> bool:
        """Whether a new step can begin here."""
        return self._choice() is not None

    @property
    def can_repeat(self) -> bool:
        """Whether the next step to repeat has the answers that it took."""
        choice = self._replay.next_read
        return choice is None or choice == NO_MORE or self._answers.can_take(choice)

    def _choice(self) -> int | None:
        choice = self._answers.choose()
        if choice is None and not self._answers.waiting and self._input_ended():
            return NO_MORE
        return choice

    def begin(self) -> Iterator[None] | None:
        """Begin a new step; ``None``: nothing has come, and there is something to wait for."""
        choice = self._choice()
        return None if choice is None else self.take(choice)

    def take(self, choice: int) -> Iterator[None]:
        """A step that takes the answers of a choice, or ends."""
        self._history.begin(Choice.READ, choice)
        return self._end() if choice == NO_MORE else self._answers.take(choice)

    def ask(self) -> None:
        """Ask for the rows that the steps so far have taken, if none is left to repeat."""
        if not self._replay.active:
            self._answers.ask()
