"""The contract of reading: what an operator says of its stored state, so that it can be shown as rows.

Rules:
- an operator that ``ShowsState`` names the views of its state. A view is data alone, without users' functions: it
  travels to other processes;
- views show what the snapshot means, as the operator would act on it: a timer that has fired and a row that no other
  can match any more are not shown, although a file may still have them;
- rows come in batches. No view holds more in memory than one batch, or, of windows and joins, what the operator itself
  holds to emit or to match: one window, one shelf.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import Dtype, KeyedState, OperatorContext

VALUE, TIMER, WINDOW, ROW = "value", "timer", "window", "row"
"""Kinds of rows: of a key, of a timer of a key, of a key in a window, of a row that is held."""


class StoredState(KeyedState, Protocol):
    """The keyed state of one subtask in a snapshot, to be read (``flinkplus.state.reading.stored.StoredSubtask``)."""

    subtask: str
    max_parallelism: int

    def has(self, name: str, /) -> bool:
        """Whether there is a state of this name."""

    def numbers(self, name: str, dtype: Dtype, /) -> Iterator[tuple[list[bytes], npt.NDArray[Any]]]:
        """The keys and numbers of a state, in batches, by key group and key."""

    def objects(self, name: str, /) -> Iterator[tuple[list[bytes], list[Any]]]:
        """The keys and objects of a state, with stand-ins for classes that hold more than data."""

    def form(self, name: str, /) -> str | None:
        """How the operator makes the objects of a state; ``None``: as they are."""

    def entries(self, name: str, /) -> Iterator[tuple[list[bytes], list[bytes], list[Any]]]:
        """Of a state with several objects for each key: the key of each, what follows it in its name, and the object,
        in batches."""

    def page_names(self, name: str, /) -> Iterator[list[bytes]]:
        """The names of the pages of a state, in batches, ascending."""

    def numbers_of(self, name: str, dtype: Dtype, keys: Sequence[bytes], /) -> npt.NDArray[Any]:
        """The numbers of ``keys``; 0 for an absent one."""


@dataclass(frozen=True)
class ShownRows:
    """Some rows of a view.

    ``keys``: the bytes of each row's key.
    ``values``: an array of the view's ``value_type``; objects if it has none; ``None``: the rows have no value.
    ``timers_ms``: when each timer fires, or each key expires; null: never.
    ``window_ms``: start and end of the window of all these rows.
    """

    keys: list[bytes]
    values: pa.Array | list[Any] | None = None
    timers_ms: pa.Array | None = None
    window_ms: tuple[int, int] | None = None


@dataclass(frozen=True)
class StateView(ABC):
    """One kind of rows of an operator's state.

    ``operator``: its name. ``state``: the name of the state within the operator, if it has several.
    """

    kind: ClassVar[str] = VALUE

    operator: str
    state: str | None = None

    @property
    def value_type(self) -> pa.DataType | None:
        """The type of values; ``None``: objects, shown as JSON."""
        return None

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the states that it reads: that of the operator itself, unless a view says more."""
        return (self.operator,)

    @abstractmethod
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        """The rows of one subtask. ``saved``: what the operator's ``snapshot`` gave."""


@runtime_checkable
class ShowsState(Protocol):
    """An operator that says how its state is shown. The states of any other are shown as they are stored."""

    def state_views(self, schema: pa.Schema, states: Sequence[str], /) -> Sequence[StateView]:
        """The views of its state. ``schema``: of its input. ``states``: the names of the states that it has stored."""


@dataclass(frozen=True, kw_only=True)
class NamedView(StateView):
    """A view that reads one state. ``name``: of the stored state."""

    name: str

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True, kw_only=True)
class ObjectView(NamedView):
    """Objects of a state, as they are."""

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, values in stored.objects(self.name):
            yield ShownRows(keys, values)


@dataclass(frozen=True, kw_only=True)
class NumberView(NamedView):
    """Numbers of a state. ``output``: the column that shows them."""

    dtype: Dtype = "int64"
    output: str

    @property
    @override
    def value_type(self) -> pa.DataType:
        return pa.struct([pa.field(self.output, pa.int64() if self.dtype == "int64" else pa.float64())])

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        for keys, numbers in stored.numbers(self.name, self.dtype):
            yield ShownRows(keys, struct_of([pa.array(numbers)], self.value_type))


def struct_of(columns: Sequence[pa.Array], dtype: pa.DataType) -> pa.StructArray:
    """Columns as one array of the struct ``dtype``."""
    plain = [column.cast(field.type) for column, field in zip(columns, dtype, strict=True)]
    return pa.StructArray.from_arrays(plain, fields=list(dtype))


def reading_context(operator: str, stored: StoredState, schema: pa.Schema) -> OperatorContext:
    """The context of an instance that is only made to read its state."""
    return OperatorContext(operator, stored.subtask, 0, 1, schema, stored)
