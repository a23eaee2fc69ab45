"""The contract of operators: a picklable descriptor in the graph and, per subtask, an instance that turns batches into
batches.

Rules:

- A descriptor (``Operator``) holds settings and user functions only. It travels to the slots by cloudpickle; ``create``
  makes the instance there. A descriptor never changes after the graph is built.
- An instance belongs to one subtask and is called from one thread at a time. ``process``, ``on_watermark`` and ``end``
  return its output as an iterable of record batches, lazily where a batch can explode, so that the caller can wait for
  room in its output logs. **The caller must exhaust the iterable** before the next input or snapshot.
- Schemas are *logical*: ``output_schema`` names plain types, but a string or binary column of a batch may travel
  dictionary-encoded. Built-in operators take both; ``flinkplus.operators.base.columns.plain`` decodes.
- Output batches are not empty, and have about ``MAX_OUTPUT_ROWS`` rows at most unless the input has more.
- An instance is deterministic: the same state and input batches give the same output batches. Time of day and random
  numbers come from ``OperatorContext`` alone.
- Event time: a watermark *w* (milliseconds) says that no row before *w* will follow. It rises from call to call of
  ``on_watermark``; the output of that call precedes it. At the end of all input it is ``watermarks.END_OF_TIME_MS``.
- Keyed state is accessed through ``OperatorContext.state``; its owner takes the snapshot, not the operator.
  ``snapshot`` is for any other state (small, JSON), and is called between two ``process`` calls.
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
from flinkplus.protocol.program.description import Column, StateDescription

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""Content of a snapshot, a source position or a staged file's description."""

MAX_OUTPUT_ROWS = 65_536
"""Rows after which built-in operators cut their output into a further batch."""


Dtype = Literal["int64", "float64"]
R = TypeVar("R")


class NumberStateLike(Protocol):
    """Keyed numbers (``flinkplus.state.memtable.NumberState``): each key has a row, accessed through arrays."""

    def indices(self, keys: list[bytes], /) -> npt.NDArray[np.int64]:
        """The row of each key; an absent key gets a row with the value 0. Valid until the next call of
        ``indices`` or ``indices_of``."""

    def indices_of(
        self, numbers: npt.NDArray[np.int64], encode: Callable[[npt.NDArray[np.int64]], list[bytes]], /
    ) -> npt.NDArray[np.int64]:
        """As ``indices``, for whole numbers, which may repeat; ``encode`` makes their keys."""

    def gather(self, idx: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        """The values of the rows, as a new array."""

    def scatter(self, idx: npt.NDArray[np.int64], values: npt.NDArray[Any], /) -> None:
        """Set the values of distinct rows and mark them dirty."""

    def remove(self, idx: npt.NDArray[np.int64], /) -> None:
        """Remove the keys of distinct rows."""


class ObjectStateLike(Protocol):
    """Keyed objects (``flinkplus.state.memtable.ObjectState``); the caller owns what it gets."""

    def get_many(self, keys: list[bytes], /) -> list[Any]:
        """The value of each key, ``None`` where absent."""

    def put_many(self, keys: list[bytes], values: list[Any], /) -> None:
        """Set the value of each key; ``None`` deletes it. The keys are distinct."""

    def delete_many(self, keys: list[bytes], /) -> None:
        """Remove the keys; absent ones are ignored."""


class EntryStateLike(ObjectStateLike, Protocol):
    """Several objects of each key, by name (``flinkplus.state.entries.EntryState``). Names begin with ``owner``."""

    def owner(self, key: bytes, /) -> bytes:
        """The first bytes of the names of a key's objects."""

    def entries(self, owner: bytes, /) -> Iterator[tuple[bytes, Any]]:
        """What follows ``owner`` in each name, ascending, and the object, as they are now."""


class KeyedState(Protocol):
    """What a keyed operator uses of its subtask's state (``flinkplus.state.backend.SubtaskState``)."""

    def number_state(self, name: str, dtype: Dtype, /) -> NumberStateLike:
        """The numbers stored under ``name``; ``dtype``: ``'int64'`` or ``'float64'``."""

    def object_state(self, name: str, form: str | None = None, /) -> ObjectStateLike:
        """The objects stored under ``name``. ``form``: how the operator makes them, if it has several ways; a state of
        another form is a ``ConfigurationError``."""

    def entry_state(self, name: str, form: str | None = None, /) -> EntryStateLike:
        """As ``object_state``, for several objects of each key."""

    def page_state(self, name: str, /) -> ObjectStateLike:
        """The pages stored under ``name``: objects that hold rows of many keys, under names of the operator's own."""


def _outside_of_steps() -> NoReturn:
    raise InvariantViolation("time and randomness belong to a step, and no step is running")


@dataclass(slots=True)
class OperatorContext:
    """What an instance knows of its place in the job.

    ``subtask``: its name in errors (``count[1]``).
    ``input_schema``: the logical schema of the input batches.
    ``state``: ``None`` for a subtask without keyed state.
    ``metrics``: running totals, read by the slot at any time and restored with the state.
    ``now_ms``, ``rng``: time of day and random numbers of the step; a standby that repeats the step gets the same.
    ``note_row``: records the row that a user's function is about to get, so that an input that kills processes can be
    named; ``None`` until a process was lost.
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
        """``rows``, each recorded before it is yielded if ``note_row`` is set."""
        return rows if self.note_row is None else self._noting(rows, self.note_row)

    @staticmethod
    def _noting(rows: Iterable[R], note_row: Callable[[object], None]) -> Iterator[R]:
        for row in rows:
            note_row(row)
            yield row

    def keyed_state(self) -> KeyedState:
        """``state``, for an operator that needs it. Raises ``InvariantViolation`` without state."""
        if self.state is None:
            raise InvariantViolation(f"operator {self.operator!r}, subtask {self.subtask}: created without keyed state")
        return self.state


@dataclass(frozen=True, slots=True)
class Inherited:
    """What one subtask leaves when the job is resumed at another parallelism.

    ``state``: what its ``snapshot`` gave.
    ``keyed``: its keyed state, to read pages from; ``None`` if it has none of keys of the subtask that inherits.
    ``ended``: its input had ended.
    ``owned``: which of some keys belong to the subtask that inherits.
    """

    state: Any
    keyed: KeyedState | None
    ended: bool
    owned: Callable[[Sequence[bytes]], npt.NDArray[np.bool_]]


def common_watermark(parts: Sequence[Inherited]) -> int | None:
    """The watermark that operators of event time have reached: the same in all, where snapshots are aligned."""
    known = [part.state["watermark_ms"] for part in parts if part.state is not None]
    return max((watermark for watermark in known if watermark is not None), default=None)


def described_columns(schema: pa.Schema) -> tuple[Column, ...]:
    """The columns of a schema, for the description of a program."""
    return tuple(Column(name=field.name, type=str(field.type), nullable=field.nullable) for field in schema)


class OperatorInstance(ABC):
    """One operator in one subtask."""

    joins_steps = False
    """Whether a row's output is the same in any batch and any encoding of columns, and needs neither the clock nor
    random numbers. Then steps may be repeated together (``flinkplus.protocol.subtask.joined``)."""
    gives_row_for_row = False
    """Whether each input row gives one output row, in the same order. With ``joins_steps`` only."""

    @abstractmethod
    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Process one input batch; exhausting the returned iterable completes the work and gives all its output."""

    @property
    def behind_ms(self) -> int:
        """Maximum distance of output rows behind the input's watermark, in ms; reduces the watermark sent on."""
        return 0

    @property
    def delays_watermark(self) -> bool:
        """Whether the watermark of the last ``on_watermark`` is not to be sent on yet (``asking``)."""
        return False

    def process_input(self, position: int, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """As ``process``, for the root of a vertex with several inputs; no batch has rows of two inputs.

        ``position``: number of the input, in the order in which they were drawn.
        """
        return self.process(batch)

    def on_watermark(self, watermark_ms: int) -> Iterable[pa.RecordBatch]:
        """No row before this time will follow; the returned iterable is as that of ``process``."""
        return ()

    @property
    def clock_at_ms(self) -> int | None:
        """When ``on_clock`` is to be called next, in milliseconds since 1970; ``None``: it need not be.

        Only of an operator that ``has_clock``."""
        return None

    def on_clock(self) -> Iterable[pa.RecordBatch]:
        """The time of day may have reached ``clock_at_ms``. It is a step of its own, whose time is ``now_ms``."""
        return ()

    def before_barrier(self) -> Iterable[pa.RecordBatch]:
        """The subtask's barrier follows: emit what is held back until then. Called before the snapshot, and again when
        that is repeated; only for an operator that says so (``Operator.holds_to_barrier``)."""
        return ()

    def end(self) -> Iterable[pa.RecordBatch]:
        """All inputs have ended: emit the remaining output."""
        return ()

    def snapshot(self, checkpoint: int) -> JsonValue:
        """State to save besides keyed state; ``None`` for none."""
        return None

    def restore(self, state: JsonValue) -> None:
        """Restore the result of ``snapshot``; called once, before the first ``process``."""
        return None

    def inherit(self, parts: Sequence[Inherited]) -> None:
        """Take from all subtasks, at another parallelism, what belongs to this one; called instead of ``restore``.

        The states of keys (``number_state``, ``object_state``) are divided without it, and are empty here. Without this
        method, a snapshot that is not ``None`` cannot be resumed at another parallelism.
        """
        return None

    def checkpoint_complete(self, checkpoint: int) -> None:
        """The checkpoint is complete for the whole job."""
        return None

    def close(self) -> None:
        """Release resources; called once, also after a failure."""
        return None


class WatermarkMaker(OperatorInstance):
    """An operator that makes watermarks from its rows. It ignores those of its input, except for the end of time.

    ``idle_after_ms``: for how long its source may have nothing to read before event time no longer waits; ``None``:
    for ever.
    ``is_idle``: event time does not wait for it, until the next rows. A part of the snapshot.
    """

    idle_after_ms: int | None = None
    is_idle = False

    @property
    @abstractmethod
    def watermark_ms(self) -> int | None:
        """Event time by the rows so far, read after each batch; it never falls."""

    def becomes_idle(self) -> bool:
        """Its source has had nothing to read for ``idle_after_ms``. Returns whether event time no longer waits for it;
        otherwise ``watermark_ms`` may have risen, and this is called again after as long a time."""
        self.is_idle = True
        return True


class Operator(ABC):
    """A node of the logical graph: ``name`` (unique in the job), and how to make its instances."""

    name: str
    hears_watermarks = False
    """Whether ``on_watermark`` has an effect; watermarks are sent only if it does for some operator."""
    several_schemas = False
    """Whether its inputs have different schemas; the operator then knows them itself."""
    makes_watermarks = False
    """Whether its instances are ``WatermarkMaker``s."""
    stops_watermarks = False
    """Whether watermarks end here."""
    holds_rows = False
    """Whether a row may affect the output in a later step than the one that processed it."""
    shares_state = False
    """Whether its state is the same in all subtasks, so that any copy will do at another parallelism."""
    asks = False
    """Whether its instances are ``AskingInstance``s; it is the root of its vertex then."""
    holds_to_barrier = False
    """Whether its instances hold rows back until ``before_barrier``."""

    @property
    def has_clock(self) -> bool:
        """Whether its instances have steps by the time of day (``OperatorInstance.clock_at_ms``)."""
        return False

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns whose equal values must meet in one subtask; ``()`` when any partitioning will do."""
        return ()

    @property
    def has_state(self) -> bool:
        """Whether its subtasks have keyed state."""
        return bool(self.key_columns)

    def described_state(self, schema: pa.Schema) -> StateDescription | None:
        """What its state is, for an input of ``schema``; another program's operator takes it if it fits.

        ``None``: it keeps nothing. The default knows the key columns alone.
        """
        return StateDescription(keys=self._key_types(schema)) if self.has_state else None

    def page_schemas(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        """The schemas of the rows in its pages, by what follows its name in the name of a state, where a description of
        the form ``pages`` names them."""
        return {}

    def _key_types(self, schema: pa.Schema) -> tuple[str, ...]:
        return tuple(str(schema.field(key).type) for key in self.key_columns if key in schema.names)

    @abstractmethod
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The logical schema of the output for an input of ``schema``; called in the driver, before the job starts.

        Raises ``ConfigurationError`` when the operator does not support such an input.
        """

    def side_outputs(self, schema: pa.Schema) -> Mapping[str, pa.Schema]:
        """The streams that it gives beside its output, with their schemas (``operators.rows.rejects``).

        Raises ``ConfigurationError``. ``schema``: of the input.
        """
        return {}

    @abstractmethod
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        """The instance for one subtask."""


@dataclass(frozen=True)
class KeyedOperator(Operator):
    """An operator whose rows with equal ``keys`` meet in one subtask. Without ``keys`` all rows have one key."""

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
