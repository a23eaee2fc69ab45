"""The rows of several steps, as they pass through operators and a partitioner together.

Rules: rows keep their order, and the step that they belong to. Only small batches of plain columns are joined, and only
where each would be plain when it is split among consumers (``columns.decoded``): so the form of what is sent does not
depend on whether steps were joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import pyarrow as pa

from flinkplus.operators.base.columns import (
    MAX_DECODED_BYTES,
    SMALL_ROWS,
    SchemaMemo,
    cut_at,
    decoded_schema_of,
    holds_dictionary,
    merge,
)
from flinkplus.operators.base.operator import OperatorInstance


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Small batches of consecutive steps, as one with plain columns. ``ends``: for each step, the row after its last
    one."""

    batch: pa.RecordBatch
    ends: list[int]

    @property
    def widest(self) -> int:
        """The most rows that a step has."""
        return max(end - at for at, end in pairwise([0, *self.ends]))

    def separate(self) -> list[list[pa.RecordBatch]]:
        """The batch of each step; none for a step without rows."""
        return [[piece] if piece.num_rows else [] for piece in cut_at(self.batch, self.ends)]


StepBatches = JoinedRows | list[list[pa.RecordBatch]]
"""The rows of several steps: one batch in all, or for each step a list of batches."""


def _has_own_form(dtype: pa.DataType) -> bool:
    """Whether equal rows of this type may have other bytes in another batch (``canonical`` leaves such columns
    alone)."""
    own = pa.types.is_list_view(dtype) or pa.types.is_large_list_view(dtype) or pa.types.is_union(dtype)
    inner = [dtype.field(at).type for at in range(dtype.num_fields)]
    return own or pa.types.is_run_end_encoded(dtype) or any(map(_has_own_form, inner))


def _long_columns(schema: pa.Schema) -> list[int] | None:
    """Positions of the columns whose values may be long; ``None`` when a column's form depends on the batch."""
    if any(holds_dictionary(field.type) or _has_own_form(field.type) for field in schema):
        return None
    return [at for at, field in enumerate(schema) if not pa.types.is_primitive(field.type)]


_long_columns_of = SchemaMemo(_long_columns)


def join(steps: Sequence[Sequence[pa.RecordBatch]]) -> JoinedRows | None:
    """The rows of all ``steps`` as one batch; ``None`` where that is not possible (see the module's rules). What a step
    has in several batches counts as one."""
    batches = [batch for step in steps for batch in step]
    schema = batches[0].schema if batches else None
    if schema is None or any(not batch.schema.equals(schema, check_metadata=True) for batch in batches[1:]):
        return None
    long = _long_columns_of(schema)
    if long is None:
        return None
    counts = [sum(batch.num_rows for batch in step) for step in steps]
    for step, rows in zip(steps, counts, strict=True):
        if rows > SMALL_ROWS:
            return None
        if any(rows * sum(batch.column(at).nbytes for batch in step) > MAX_DECODED_BYTES for at in long):
            return None
    return JoinedRows(merge(batches), list(accumulate(counts)))


def joined(steps: StepBatches) -> JoinedRows | None:
    """``join``, where no step has several batches, which would be sent apart."""
    if isinstance(steps, JoinedRows):
        return steps
    return None if any(len(batches) > 1 for batches in steps) else join(steps)


def separate(steps: StepBatches) -> list[list[pa.RecordBatch]]:
    """The batches of each step."""
    return steps.separate() if isinstance(steps, JoinedRows) else steps


def batches_of(steps: StepBatches) -> list[pa.RecordBatch]:
    """All batches in order."""
    return [steps.batch] if isinstance(steps, JoinedRows) else [batch for step in steps for batch in step]


def count_steps(steps: StepBatches) -> int:
    """The number of steps."""
    return len(steps.ends if isinstance(steps, JoinedRows) else steps)


def count_rows(steps: StepBatches) -> int:
    """The number of rows of all steps."""
    return sum(batch.num_rows for batch in batches_of(steps))


def process_together(instance: OperatorInstance, steps: StepBatches) -> StepBatches:
    """What an operator that joins steps gives for the input of each."""
    together = joined(steps) if instance.gives_row_for_row else None
    if together is not None:
        return JoinedRows(_plain(merge(list(instance.process(together.batch)))), together.ends)
    return [[given for batch in batches for given in instance.process(batch)] for batches in separate(steps)]


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` without dictionary-encoded columns."""
    if not any(isinstance(column, pa.DictionaryArray) for column in batch.columns):
        return batch
    columns = [c.dictionary.take(c.indices) if isinstance(c, pa.DictionaryArray) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=decoded_schema_of(batch.schema))
