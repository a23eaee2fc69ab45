"""The contract of an operator whose rows wait for answers from outside of the job.

Rules, besides those of ``operator``:

- it is the root of its vertex, and has one input. A row that it takes waits until an answer of its own is taken;
- ``choose`` and ``take`` are those of ``AnswersPort`` in ``protocol.subtask.ports``: what ``take`` gives follows from
  the state and the choice alone. With a ``location``, a choice can be taken by a successor as well;
- a watermark does not pass rows that came before it and wait: it is sent on behind the last of their answers;
- the rows that wait are part of the snapshot. An instance that restores it asks for them again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from flinkplus.operators.base.operator import OperatorInstance


class AskingInstance(OperatorInstance):
    """One operator that asks, in one subtask. All methods are called by one thread, and never wait."""

    @abstractmethod
    def begin(self, location: str | None, woken: Callable[[Exception | None], None]) -> None:
        """Begin, after ``restore``. Called once, before all methods below.

        ``location``: the checkpoint directory, where answers are stored before they are chosen; ``None``: no step is
        repeated, so they need not be.
        ``woken``: to be called, in any thread, when ``choose`` or ``can_take`` may answer otherwise than before, or
        with an error that ends the subtask.
        """

    @property
    @abstractmethod
    def waiting(self) -> int:
        """The number of rows that wait."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether no further rows may wait."""

    @abstractmethod
    def ask(self) -> None:
        """Ask for the rows that are not asked for yet."""

    @abstractmethod
    def repeats(self, choices: Sequence[int]) -> None:
        """These will be taken, in this order, before anything is asked."""

    @abstractmethod
    def choose(self) -> int | None:
        """What to take next, above 0; ``None``: nothing has come."""

    @abstractmethod
    def can_take(self, choice: int) -> bool:
        """Whether the answers of a repeated choice are here, or cannot be had: then ``take`` raises ``AnswersLost``."""

    @abstractmethod
    def take(self, choice: int) -> Iterable[pa.RecordBatch]:
        """The output for the answers of a choice; as that of ``process``."""

    @property
    @abstractmethod
    def passed_ms(self) -> int | None:
        """The last watermark that waits for no row any more, read after ``take``."""
