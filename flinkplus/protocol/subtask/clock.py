"""Steps by the time of day, of a subtask whose work waits for times (``SubtaskWork.clock_at``).

Rules: such a step reads the clock, and the time is a determinant of it. These steps and others take turns while input
waits, so that a time that has always come again holds up no input and no barrier. One thread, that of the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flinkplus.protocol.determinants.determinants import TICKED, Choice
from flinkplus.protocol.subtask.parts import SubtaskParts


class ClockSide:
    """The steps by the time of day of one subtask.

    ``ended``: whether it has ended.
    ``has_input``: whether a step could take input.
    """

    def __init__(self, parts: SubtaskParts, ended: Callable[[], bool], has_input: Callable[[], bool]) -> None:
        self._work = parts.work
        self._history = parts.history
        self._ended = ended
        self._has_input = has_input
        self._was_last = False

    @property
    def at(self) -> float | None:
        """When the time has come that the work waits for, in seconds; ``None``: it waits for none."""
        return None if self._ended() else self._work.clock_at

    def begin(self) -> Iterator[None] | None:
        """Begin a step, if the time has come and it is not the turn of others."""
        is_next = not self._ended() and self._work.clock_due and not (self._was_last and self._has_input())
        self._was_last = is_next
        return self.tick() if is_next else None

    def tick(self) -> Iterator[None]:
        """A step because of the time of day, which is read in it."""
        self._history.begin(Choice.END, TICKED)
        return self._work.tick()
