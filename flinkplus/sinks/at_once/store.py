"""What a far end offers to the writer of one subtask: transactions that have rows, progress and recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from flinkplus.errors import OutputError
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.determinants.recorded import Recorded

Rows = TypeVar("Rows")
"""Rows of a cut, in the form in which the far end takes them."""


class Encoded(NamedTuple):
    """The rows of a cut. ``content``: bytes that say what they are, the same whenever they are made again; empty:
    there is none. ``rows``: ``Rows``."""

    content: bytes
    rows: Any


@dataclass(frozen=True)
class StepsUpdate:
    """What a transaction changes: steps ``before`` to ``step``, with the ``digest`` after them, and ``rows`` of them.

    ``entries``: with the step at which each cut ended.
    ``trim``: entries before this complete checkpoint go.
    """

    before: int
    step: int
    digest: bytes
    rows: int
    entries: Sequence[tuple[int, RecipeEntry]]
    trim: int


class OutputStore(ABC, Generic[Rows]):
    """The far end of one subtask in one generation. Used by one thread, except for ``is_connected``.

    Methods raise ``OutputUnavailable`` for what another attempt may mend, and ``OutputError`` for what it will not.
    After an ``OutputUnavailable`` it is not known whether a transaction was carried out.
    """

    place: str
    """For errors, such as ``table here/db.counts``."""

    def begin(self, has_successors: bool) -> None:
        """The writer begins. ``has_successors``: see ``RecipeWriter.begin``."""
        return None

    @abstractmethod
    def encoded(self, batches: Sequence[pa.RecordBatch]) -> Encoded:
        """The rows of a cut. Raises ``InputError`` for values that the far end would refuse."""

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether there is a connection."""

    @abstractmethod
    def connect(self) -> Recorded | None:
        """Connect, and read what is recorded; ``None``: nothing. From then on no earlier transaction of the subtask
        can succeed without this connection's noticing it."""

    @abstractmethod
    def store(self, update: StepsUpdate, rows: Sequence[Rows]) -> bool:
        """One transaction with ``rows`` and ``update``. False: another generation may write, or another step than
        ``update.before`` is recorded, and nothing is stored."""

    @abstractmethod
    def recorded(self) -> Recorded | None:
        """What is recorded, after ``store`` has returned false."""

    @abstractmethod
    def disconnect(self) -> None:
        """Let the connection go, also a broken one."""

    def end(self) -> None:
        """The writer has ended, and is disconnected."""
        return None

    @abstractmethod
    def error(self, text: str) -> OutputError:
        """An error about what is stored, which another attempt does not mend."""
