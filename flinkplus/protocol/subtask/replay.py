"""What a promoted subtask repeats, and the time of day of each step.

A successor repeats the steps that any survivor knows of, in the same order; a subtask that is deployed, those that the
recipes of sinks hold. Orders that arrive meanwhile wait until
replay ends. In a job that does not repeat steps (at most once), a source reads the rows again whose effects were seen,
and sends none of them.

A step reads the clock once; the time is a determinant of the step, and is repeated with it.

Rules: one thread, that of the steps. When replay ends, every message that a consumer had received must have been
regenerated (``take_finished`` is then true, once; ``OutputChannels.check_remade`` does the check).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

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
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import SubtaskId


class Replay:
    """The steps that one subtask still has to repeat.

    ``logs``: whether its steps are logged.
    ``repeats``: without a promotion, determinants of the steps to repeat.

    ``determinants``: of the steps to repeat, the next one first.
    ``deferred``: orders that wait for the end of the replay, or of a step.
    ``rows_to_skip``: rows that a source must still read without sending them.
    """

    def __init__(self, promotion: Promotion | None, logs: bool, repeats: Sequence[int] = ()) -> None:
        known = repeats if promotion is None else promotion.determinants
        self.determinants = deque(known if logs else ())
        self._bundle: list[InputPart] = []
        self.deferred: list[Callable[[], None]] = []
        self.rows_to_skip = 0 if promotion is None else promotion.pass_over
        self.unchecked = (promotion is not None or bool(repeats)) and logs
        """Whether the check at the end of the replay is still due."""

    @property
    def active(self) -> bool:
        """Whether anything is left to repeat."""
        return bool(self.determinants) or self.rows_to_skip > 0

    @property
    def next_read(self) -> int | None:
        """What the next step reads of its source; ``None``: it does something else."""
        if not self.determinants or self.determinants[0] & CHOICE_MASK != Choice.READ:
            return None
        return unpack(self.determinants[0])[1]

    def next_bundle(self, channels: int) -> Sequence[InputPart]:
        """The bundle of the next step; empty when that step takes no messages.

        ``channels``: the number of the subtask's input channels.
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
            raise NondeterministicOperator("the determinants of a bundle of messages are incomplete")
        return self._bundle

    def bundles_ahead(self, channels: int) -> Iterator[Sequence[InputPart]]:
        """The bundles of the next steps, one after the other, up to the first step that takes no messages or may read
        the clock. ``channels``: see ``next_bundle``."""
        bundle: list[InputPart] = []
        whole: Sequence[InputPart] = ()
        for determinant in self.determinants:
            choice, value = unpack(determinant)
            if choice in CLOCK_CHOICES:
                return  # of the step before, which is not yielded
            if whole:
                yield whole
            if choice is not Choice.INPUT:
                return
            bundle.append(InputPart.of(value, channels))
            whole = () if bundle[-1].more else bundle
            bundle = [] if whole else bundle
        if whole:
            yield whole

    def reads_ahead(self) -> Iterator[int]:
        """What each of the next steps reads of the source, up to the first step of another kind, or that read the
        clock."""
        read: int | None = None
        for determinant in self.determinants:
            choice, value = unpack(determinant)
            if read is not None and choice not in CLOCK_CHOICES:
                yield read
            if choice is not Choice.READ:
                return
            read = value
        if read is not None:
            yield read

    def take_steps(self, determinants: int) -> None:
        """The steps of the next ``determinants`` begin, together: remove them."""
        self._bundle = []
        for _ in range(determinants):
            self.determinants.popleft()

    def take_bundle(self) -> Sequence[InputPart]:
        """The step of ``next_bundle`` begins: remove its determinants."""
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
        """Carry out the deferred orders."""
        orders, self.deferred = self.deferred, []
        for order in orders:
            order()

    def skipped(self, rows: int, more: bool) -> None:
        """A step read ``rows`` without sending them; ``more``: whether the source has further rows."""
        self.rows_to_skip = max(0, self.rows_to_skip - rows) if more else 0


class StepTime:
    """The time of day of each step: read once, logged, and the same when the step is repeated. It never goes back, even
    when the subtask moves to another host.

    ``wall_ms``: returns the time of day, in milliseconds since the Unix epoch.
    ``ms``: the step clock of the version that the subtask starts from.
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
        """The last time that a step read."""
        return self._clock.ms

    def now_ms(self) -> int:
        """The time of day of the current step. Raises ``NondeterministicOperator`` when a repeated step reads it, and
        the original step did not."""
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
