"""What all joins have in common: two sides, each stored on its own, and how they are described and shown."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InvariantViolation
from flinkplus.operators.base.operator import KeyedOperator, OperatorContext, OperatorInstance, described_columns
from flinkplus.operators.base.stored_state import ROW, ShownRows, StateView, StoredState, reading_context, struct_of
from flinkplus.operators.joins.sides import SIDES, JoinSide
from flinkplus.protocol.program.description import StateDescription


@dataclass(frozen=True)
class TwoSidedJoin(KeyedOperator):
    """``keys`` are those of the left; the first ``left_inputs`` inputs of the vertex are of the left side."""

    left: JoinSide
    right: JoinSide
    several_schemas = True

    @property
    def sides(self) -> tuple[JoinSide, JoinSide]:
        return self.left, self.right

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What a program may not change."""

    @override
    def described_state(self, schema: pa.Schema) -> StateDescription:
        rows = {name: described_columns(kept) for name, kept in self.page_schemas(schema).items()}
        keys = tuple(str(self.left.schema.field(key).type) for key in self.left.keys)
        return StateDescription(keys=keys, settings=self.settings, rows=rows, form="pages")

    @override
    @abstractmethod
    def create(self, ctx: OperatorContext) -> TwoSidedInstance: ...

    def state_views(self, schema: pa.Schema, states: Sequence[str]) -> Sequence[StateView]:
        return [SideView(self.name, side, join=self) for side in SIDES]


class TwoSidedInstance(OperatorInstance):
    """Of a ``TwoSidedJoin``."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        raise InvariantViolation(f"{self._ctx.subtask}: a batch that is of neither side")

    @abstractmethod
    def pending(self, which: int) -> Iterator[tuple[pa.Array, Sequence[pa.Array]]]:
        """The keys and columns of the rows of one side that are held, and are needed."""


@dataclass(frozen=True, kw_only=True)
class SideView(StateView):
    """The rows of one side (``state``) that are held; values have both sides, one of them null."""

    kind: ClassVar[str] = ROW

    join: TwoSidedJoin

    @property
    @override
    def value_type(self) -> pa.DataType:
        sides = zip(SIDES, self.join.sides, strict=True)
        return pa.struct([pa.field(name, pa.struct(list(side.schema))) for name, side in sides])

    @property
    @override
    def reads(self) -> tuple[str, ...]:
        return tuple(self.operator + name for name in self.join.page_schemas(self.join.left.schema))

    @override
    def rows(self, stored: StoredState, saved: Any) -> Iterator[ShownRows]:
        assert self.state is not None
        instance = self.join.create(reading_context(self.operator, stored, self.join.left.schema))
        instance.restore(saved)
        value_type = self.value_type
        for keys, columns in instance.pending(SIDES.index(self.state)):
            held = struct_of(columns, value_type.field(self.state).type)
            sides = [held if name == self.state else pa.nulls(len(held), value_type.field(name).type) for name in SIDES]
            yield ShownRows(keys.to_pylist(), pa.StructArray.from_arrays(sides, fields=list(value_type)))
