"""The head of a loop: what comes from outside and what comes round, as one stream."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from flinkplus.operators.rows.union import Union


@dataclass(frozen=True)
class LoopHead(Union):
    """Emits every row of every input. Event time ends here: rows that are fed back are not known in advance."""

    stops_watermarks = True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Rows that are fed back may be null in any column."""
        return pa.schema([field.with_nullable(True) for field in schema])
