"""What an operator is: a picklable descriptor in the graph and, per subtask, an instance turning batches into batches.

Rules:

- A descriptor (``Operator``) holds settings and user functions only. It travels to the slots by cloudpickle;
  ``create`` makes the instance there. A descriptor is never changed after the graph is built.
- An instance belongs to one subtask and is called from one thread at a time. Everything it emits comes out of
  ``process`` and ``end`` as an iterable of record batches, lazily where a batch can explode, so that the caller may
  wait for room in its output logs between two of them. **The caller must exhaust the iterable** before it takes the
  next input or a snapshot.
- Schemas are *logical*: ``output_schema`` names plain types, but a string or binary column of a batch may travel
  dictionary-encoded (``pa.DictionaryArray``). Built-in operators take both; ``flinkplus.operators.base.columns.plain``
  decodes.
- No output batch is empty, and none is larger than about ``MAX_OUTPUT_ROWS`` rows unless its input was.
- An instance is deterministic: the same state and the same input batches give the same output batches. The time of day
  and random numbers come from ``OperatorContext`` alone.
- Event time: a watermark *w* (milliseconds) says that no row before *w* will come any more. It rises from call to call
  of ``on_watermark``; what an operator emits there comes before it. At the end of all input it is ``END_OF_TIME_MS``.
- Keyed state goes through ``OperatorContext.state`` and is snapshotted by its owner, not by the operator.
  ``snapshot`` is for the small rest (JSON), and is taken between two ``process`` calls.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InvariantViolation
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS

__all__ = [
    "END_OF_TIME_MS",
    "MAX_OUTPUT_ROWS",
    "Dtype",
    "JsonValue",
    "KeyedOperator",
    "KeyedState",
    "NumberStateLike",
    "ObjectStateLike",
    "Operator",
    "OperatorContext",
    "OperatorInstance",
    "WatermarkMaker",
]

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""What may stand in a snapshot, a source position or a staged file's description."""

MAX_OUTPUT_ROWS = 65_536
"""Rows after which built-in operators cut their output into a further batch."""


Dtype = Literal["int64", "float64"]
R = TypeVar("R")


class NumberStateLike(Protocol):
    """Keyed numbers (``flinkplus.state.memtable.NumberState``): a key has a row, rows are gathered and scattered as
    arrays.
    """

    def indices(self, keys: list[bytes], /) -> npt.NDArray[np.int64]:
        """The row of each key; an absent key gets a row with the value 0. Valid until the next call of ``indices``."""

    def gather(self, idx: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """The values of the rows, as a new array."""

    def scatter(self, idx: npt.NDArray[np.int64], values: npt.NDArray[Any], /) -> None:
        """Set the values of distinct rows and mark them dirty."""

    def remove(self, idx: npt.NDArray[np.int64], /) -> None:
        """The keys of distinct rows are absent from now on."""


class ObjectStateLike(Protocol):
    """Keyed objects (``flinkplus.state.memtable.ObjectState``); what is got is the caller's own."""

    def get_many(self, keys: list[bytes], /) -> list[Any]:
        """The value of each key, ``None`` where absent."""

    def put_many(self, keys: list[bytes], values: list[Any], /) -> None:
        """Set the value of each key; ``None`` deletes it. The keys are distinct."""

    def delete_many(self, keys: list[bytes], /) -> None:
        """Remove the keys; absent ones are no error."""


class KeyedState(Protocol):
    """What a keyed operator asks of its subtask's state (``flinkplus.state.backend.SubtaskState``)."""

    def number_state(self, name: str, dtype: Dtype, /) -> NumberStateLike:
        """The numbers kept under ``name``; ``dtype`` is ``'int64'`` or ``'float64'``."""

    def object_state(self, name: str, /) -> ObjectStateLike:
        """The objects kept under ``name``."""


def _outside_of_steps() -> NoReturn:
    raise InvariantViolation("time and randomness belong to a step, and no step is running")


@dataclass(slots=True)
class OperatorContext:
    """What an instance knows of its place in the job.

    ``subtask`` is the text used in errors (``count[1]``); ``input_schema`` is the logical schema of the batches that
    ``process`` gets; ``state`` is ``None`` for a subtask without keyed state; ``metrics`` are running totals, read by
    the slot at any time and restored with the state. ``now_ms`` gives the time of day of the step, ``rng`` the random
    numbers of the step: both the same when a standby repeats it. An operator uses no other clock and no other
    randomness. ``note_row`` (``None``: no need) notes the row that a user's function is about to get: set after the
    loss of a process, so that an input that ends processes can be named.
    """

    operator: str
    subtask: str
    index: int
    parallelism: int
    input_schema: pa.Schema
    state: KeyedState | None = None
    metrics: dict[str, int] = field(default_factory=dict)
    now_ms: Callable[[], int] = _outside_of_steps
    rng: Callable[[], random.Random] = _outside_of_steps
    note_row: Callable[[object], None] | None = None

    def noted(self, rows: Iterable[R]) -> Iterable[R]:
        """``rows``, each of them noted before it is handed on, where there is need."""
        return rows if self.note_row is None else self._noting(rows, self.note_row)

    @staticmethod
    def _noting(rows: Iterable[R], note_row: Callable[[object], None]) -> Iterator[R]:
        for row in rows:
            note_row(row)
            yield row

    def keyed_state(self) -> KeyedState:
        """``state``, for an operator that needs one. Raises ``InvariantViolation`` without state."""
        if self.state is None:
            raise InvariantViolation(f"operator {self.operator!r}, subtask {self.subtask}: created without keyed state")
        return self.state

    def add(self, metric: str, amount: int) -> None:
        """Add ``amount`` to a running total."""
        self.metrics[metric] = self.metrics.get(metric, 0) + amount


class OperatorInstance(ABC):
    """One operator in one subtask."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take one input batch; the returned iterable, exhausted, has done the work and given all its output."""

    @property
    def behind_ms(self) -> int:
        """By how much event times in the output may lie before the watermark of the input: so much later it goes on."""
        return 0

    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """As ``process``, for the root of a vertex with several inputs: ``position`` tells which one, in the order in
        which they were drawn. Overridden by who treats them differently; then no two inputs come in one batch.
        """
        return self.process(batch)

    def on_watermark(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        """No row before this time will come any more; the iterable is as that of ``process``."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """All inputs have ended: give what is left."""
        return ()

    def snapshot(self, checkpoint: int) -> JsonValue:
        """What must be kept besides keyed state; ``None`` when there is nothing."""
        return None

    def restore(self, state: JsonValue) -> None:
        """Take back what ``snapshot`` gave; called once, before the first ``process``."""
        return None

    def checkpoint_complete(self, checkpoint: int) -> None:
        """The checkpoint is complete, for the whole job."""
        return None

    def close(self) -> None:
        """Give back what is held; called once, also after a failure."""
        return None


class WatermarkMaker(OperatorInstance):
    """An operator that makes watermarks of its rows. Those of its input end here, except for the end of time."""

    @property
    @abstractmethod
    def watermark_ms(self) -> int | None:
        """How far event time is, by the rows so far; asked for after each batch, and never goes back."""


class Operator(ABC):
    """A node of the logical graph: ``name`` (unique in the job), and how to make its instances."""

    name: str
    hears_watermarks = False
    """Whether ``on_watermark`` does anything; where no operator does, no watermarks are sent."""
    several_schemas = False
    """Whether its inputs have different schemas, which it then knows itself."""
    makes_watermarks = False
    """Whether its instances are ``WatermarkMaker``s."""
    stops_watermarks = False
    """Whether event time ends here."""

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns whose equal values must meet in one subtask, ``()`` when any partitioning will do."""
        return ()

    @property
    def has_state(self) -> bool:
        """Whether its subtasks have keyed state."""
        return bool(self.key_columns)

    @property
    def holds_rows(self) -> bool:
        """Whether a row may have an effect on the output in a later step than the one that took it."""
        return False

    @abstractmethod
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The logical schema of the output for an input of ``schema``.

        Raises ``ConfigurationError`` when the operator cannot work on such an input; called in the driver, before
        anything runs.
        """

    @abstractmethod
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        """The instance for one subtask."""


@dataclass(frozen=True)
class KeyedOperator(Operator):
    """An operator whose rows with equal ``keys`` meet in one subtask. Without ``keys`` all rows are of one key."""

    name: str
    keys: tuple[str, ...]

    @property
    @override
    def key_columns(self) -> tuple[str, ...]:
        return self.keys

    @property
    @override
    def has_state(self) -> bool:
        return True
