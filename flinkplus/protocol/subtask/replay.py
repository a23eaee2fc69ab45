"""What a promoted subtask repeats, and the time of day that each step has.

A successor repeats the steps that any survivor knows of, in the same order. Orders that arrive meanwhile wait until it
has finished. A source of a job that repeats nothing (at most once) reads the rows again whose effects were seen, and
sends nothing of them.

The clock is read once in a step; what it said is a determinant of the step, and is repeated with it.

Rules: one thread, that of the steps. When nothing is left to repeat, every message that a consumer had received must
have been made again (``take_finished`` is then true, once; ``OutputChannels.check_remade`` does the check).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from flinkplus.errors import NondeterministicOperator
from flinkplus.protocol.determinants.determinants import (
    CHOICE_MASK,
    CLOCK_CHOICES,
    Choice,
    InputPart,
    StepClock,
    unpack,
)
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.incarnation import Promotion
from flinkplus.protocol.vocabulary.ids import SubtaskId

PASSED_OVER_ROWS = 16_384
"""Rows that one step passes over, at most."""


class Replay:
    """What is still to be repeated of one subtask.

    ``logs``: whether its steps are logged.

    ``determinants``: of the steps to repeat, the next one first.
    ``deferred``: orders that wait for the end of the replay, or of a step.
    ``rows_to_skip``: rows that a source is to read and not to send.
    """

    def __init__(self, promotion: Promotion | None, logs: bool) -> None:
        self.determinants = deque(promotion.determinants if promotion is not None and logs else ())
        self._bundle: list[InputPart] = []
        self.deferred: list[Callable[[], None]] = []
        self.rows_to_skip = 0 if promotion is None else promotion.pass_over
        self.unchecked = promotion is not None and logs
        """Whether the check at the end of the replay is still to be done."""

    @property
    def active(self) -> bool:
        """Whether anything is left to repeat."""
        return bool(self.determinants) or self.rows_to_skip > 0

    def next_bundle(self, channels: int) -> Sequence[InputPart]:
        """What the next step takes, of a subtask with so many input ``channels``; empty when it takes no messages.

        Raises ``NondeterministicOperator`` when the determinants end within the bundle.
        """
        if not self._bundle and self.determinants and self.determinants[0] & CHOICE_MASK == Choice.INPUT:
            for determinant in self.determinants:
                choice, value = unpack(determinant)
                if choice is not Choice.INPUT:
                    break
                self._bundle.append(InputPart.of(value, channels))
                if not self._bundle[-1].more:
                    return self._bundle
            raise NondeterministicOperator("the determinants of a bundle of messages are not whole")
        return self._bundle

    def take_bundle(self) -> Sequence[InputPart]:
        """The step of ``next_bundle`` begins: its determinants are used up."""
        bundle, self._bundle = self._bundle, []
        for _ in bundle:
            self.determinants.popleft()
        return bundle

    def take_finished(self) -> bool:
        """Whether the replay has ended since the last call."""
        if not self.unchecked or self.determinants:
            return False
        self.unchecked = False
        return True

    def carry_out_deferred(self) -> None:
        """Carry out the orders that waited."""
        orders, self.deferred = self.deferred, []
        for order in orders:
            order()

    def rows_to_skip_now(self) -> int:
        """How many rows the next step reads and does not send."""
        return min(self.rows_to_skip, PASSED_OVER_ROWS)

    def skipped(self, rows: int, more: bool) -> None:
        """A step read ``rows`` and did not send them; ``more``: the source has further ones."""
        self.rows_to_skip = max(0, self.rows_to_skip - rows) if more else 0


class StepTime:
    """The time of day of each step: read once, logged, and the same when the step is repeated. It never goes back,
    not on another machine either.

    ``wall_ms``: the time of day, in milliseconds since the Unix epoch.
    ``ms``: where the clock of the version stood.
    """

    def __init__(
        self, subtask: SubtaskId, history: StepHistory, replay: Replay, wall_ms: Callable[[], int], ms: int
    ) -> None:
        self._id = subtask
        self._history = history
        self._replay = replay
        self._wall_ms = wall_ms
        self._clock = StepClock(ms)
        self._read_in = -1  # the step in which the clock was read last

    @property
    def ms(self) -> int:
        """What the clock said last."""
        return self._clock.ms

    def now_ms(self) -> int:
        """The time of day of the step under way.

        Raises ``NondeterministicOperator`` when a repeated step asks for it and did not before.
        """
        if self._read_in != self._history.begun:
            self._read_in = self._history.begun
            self._read()
        return self._clock.ms

    def _read(self) -> None:
        determinants = self._replay.determinants
        choice: Choice | None = None
        while determinants and choice is not Choice.CLOCK:
            choice, value = unpack(determinants[0])
            if choice not in CLOCK_CHOICES:
                raise NondeterministicOperator(f"{self._id} reads the clock where its predecessor did not")
            determinants.popleft()
            self._move(choice, value)
        if choice is not Choice.CLOCK:
            for chosen, value in self._clock.read(self._wall_ms()):
                self._move(chosen, value)

    def _move(self, choice: Choice, value: int) -> None:
        if self._history.steps is not None:
            self._history.steps.begin(choice, value)
        self._clock.move(choice, value)
