"""What a source is: a picklable descriptor and, per subtask, a reader that can begin at any position it ever reported.

Rules:

- The driver calls ``planned()`` once; what it returns (with files, sizes, row counts) goes to the slots, so that every
  deployment of a job sees the same splits. A reader that finds anything else raises ``InputError``. A program that is
  resumed takes over what was planned by ``split_plan`` and ``with_split_plan``; without them it plans again.
- ``reader(index, parallelism)`` is a pure function of descriptor and arguments: the readers of all indexes together
  give every row exactly once, on any slot.
- Another parallelism: ``redealt`` makes positions for another number of readers, so that none of the rows that are left
  is lost or read twice.
- Replay: after ``open(position)`` a reader gives exactly the rows that followed when ``position()`` returned that
  value, in the same order, perhaps in other batches.
- ``read`` never returns more than ``max_rows`` rows and holds bounded memory, except for a single row larger than that.
- A *live* source gets its rows while the job runs, from several places at once (partitions, files). What there is to
  read depends on the moment, so its reader chooses (``LiveReader.choose``). The step logs the choice as a number, and a
  replay reads by the same number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.state.durable.seals import SigningKey


class SourceReader(ABC):
    """The reader of one subtask. Used by one thread; never waits.

    ``metrics``: running totals (``rows``, and ``invalid_lines`` where text can be bad). They belong to the position, so
    that replayed rows are not counted twice.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, int] = {"rows": 0}

    @abstractmethod
    def open(self, position: JsonValue) -> None:
        """Begin at ``position``, or at the start when it is ``None``. Called once, before the first ``read``.

        Raises ``InputError`` when the position does not fit the source.
        """

    @abstractmethod
    def read(self, max_rows: int) -> pa.RecordBatch | None:
        """The next 1 to ``max_rows`` rows; an empty batch when there are none just now; ``None`` when exhausted."""

    @abstractmethod
    def position(self) -> JsonValue:
        """Where the next ``read`` begins."""

    def committed(self, position: JsonValue) -> None:
        """A checkpoint that has this ``position`` is complete: nothing before it will be read again."""
        return None

    def gauges(self) -> Mapping[str, int]:
        """What is true just now, for ``job.metrics()``: ``lag_rows``, rows that are there and were not read."""
        return {}

    def close(self) -> None:
        """Give back what is held; called once, also after a failure."""
        return None


LAG_ROWS = "lag_rows"
"""The gauge that ``flinkplus status`` shows as rows behind."""

MAX_CHOICE = (1 << 29) - 1
"""The highest number of a choice: what a determinant can hold."""


class LiveReader(SourceReader):
    """The reader of a live source. A thread of its own may fetch rows ahead; all methods are called by one thread and
    never wait.

    Rules: what ``read(choice)`` returns is a function of the position and the choice alone. A choice is made from what
    is there to read already; the outside world must be able to give the same rows again until ``committed``.
    """

    @abstractmethod
    def begin(self, woken: Callable[[Exception | None], None]) -> None:
        """Begin to fetch; called once, after ``open``. ``woken``: to be called, in any thread, when ``choose`` or
        ``can_read`` may answer otherwise than before, or with an error that ends the subtask."""

    @abstractmethod
    def choose(self, max_rows: int) -> int | None:
        """What to read next, 0 to ``MAX_CHOICE``: up to ``max_rows`` rows, or the end of the source. ``None``: nothing
        is there just now. Changes nothing: it may be called several times before a read, or without one."""

    @abstractmethod
    def can_read(self, choice: int) -> bool:
        """Whether ``read(choice)`` has all it needs. A replay waits until then."""

    @abstractmethod
    def rows_of(self, choice: int) -> int:
        """The highest number of rows that ``read(choice)`` gives. Depends on the choice alone, not on the position."""

    @abstractmethod
    def read(self, choice: int) -> pa.RecordBatch | None:
        """The rows of a choice, exactly as when it was made; ``None`` when that was the end of the source."""


class Source(ABC):
    """A source in the logical graph: ``name`` (unique in the job) and ``schema`` (logical, plain types).

    ``is_live``: its readers are ``LiveReader``.
    ``is_repeatable``: what was read can be read again. Otherwise its readers raise ``InputLost`` in ``can_read``: the
    job goes back to the last complete checkpoint, and loses what was read since.
    """

    is_live: ClassVar[bool] = False
    is_repeatable: ClassVar[bool] = True

    name: str
    schema: pa.Schema

    def planned(self) -> Source:
        """The descriptor with all that readers must agree on; called in the driver. Raises ``InputError``."""
        return self

    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        """Positions for ``parallelism`` readers that together give exactly the rows that are left.

        ``positions``: those of all readers so far, by index; ``None`` is the start.
        Raises ``ConfigurationError`` when the source cannot do that, ``InputError`` for a position that does not fit.
        """
        raise ConfigurationError(
            f"source {self.name!r} does not say how its positions are dealt to another number of subtasks "
            "(Source.redealt): resume the job at the parallelism that it had"
        )

    def settings(self) -> Mapping[str, JsonValue]:
        """What its positions depend on: with any other settings, a position of it means nothing. JSON."""
        return {}

    def split_plan(self) -> JsonValue:
        """What ``planned`` has found, for ``with_split_plan``; ``None``: nothing. JSON."""
        return None

    def with_split_plan(self, plan: JsonValue) -> Source:
        """The source, planned as the one with these ``settings`` was. Raises ``ValueError`` or ``TypeError``."""
        return self

    def placed(self, checkpoint_dir: str, key: SigningKey) -> Source:
        """The source in a run of the job, with its checkpoint directory; called in the driver, for each run.

        ``key``: of the user, for what the source keeps there. It stays in the driver.
        """
        return self

    def sign_again(self) -> None:
        """Sign what the source keeps in the checkpoint directory with the key of ``placed``: another one has signed it,
        and the user trusts it. Raises ``OSError``, ``InputError``."""
        return None

    def secrets(self) -> Mapping[str, str]:
        """What slots need to read, and no pickle of the source has; shipped with their credentials. Called in the
        driver. Raises ``ConfigurationError`` if something is not known there."""
        return {}

    def with_secrets(self, secrets: Mapping[str, str]) -> Source:
        """A copy with what ``secrets`` gave, in a slot."""
        return self

    @abstractmethod
    def reader(self, index: int, parallelism: int) -> SourceReader:
        """The reader for subtask ``index`` of ``parallelism``; ``open`` must be called before the first ``read``."""
