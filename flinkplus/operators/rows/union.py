"""Several streams as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance


@dataclass(frozen=True)
class Union(Operator):
    """Emits every row of every input."""

    name: str

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _UnionInstance()


class _UnionInstance(OperatorInstance):
    joins_steps = gives_row_for_row = True

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if batch.num_rows:
            yield batch
