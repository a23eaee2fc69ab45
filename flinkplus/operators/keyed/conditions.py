"""Conditions on rows: which rows of a batch an aggregate counts.

A condition is the name of a boolean column, or a function that takes a record batch and returns a boolean array with a
value for each row. A null is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.errors import ConfigurationError, UserFunctionError
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.operators.base.row import USER_EXCEPTIONS, Verbatim, user_error
from flinkplus.operators.base.schema import check_column

Where = str | Callable[[pa.RecordBatch], Any]


def check_where(operator: str, schema: pa.Schema, where: Where) -> None:
    """Raises ``ConfigurationError`` when it cannot be a condition on rows of ``schema``."""
    if isinstance(where, str):
        check_column(operator, schema, where)
        dtype = schema.field(where).type
        if not pa.types.is_boolean(dtype):
            raise ConfigurationError(
                f"operator {operator!r}: where names column {where!r}, which is {dtype}, not boolean"
            )
    elif not callable(where):
        raise ConfigurationError(
            f"operator {operator!r}: where is the name of a boolean column or a function of a batch, not {where!r}"
        )


def passed(batch: pa.RecordBatch, where: Where, ctx: OperatorContext) -> npt.NDArray[np.bool_]:
    """Whether each row passes. Raises ``UserFunctionError`` when the function fails or returns something else."""
    if isinstance(where, str):
        flags = batch.column(where)
        if isinstance(flags, pa.DictionaryArray):
            flags = flags.dictionary.take(flags.indices)
        return _flags(flags)
    what = Verbatim(f"where, for a batch of {batch.num_rows} rows")
    try:
        result = where(plain(batch, ctx.input_schema))
    except USER_EXCEPTIONS as error:
        raise user_error(ctx.operator, ctx.subtask, what, error) from error
    if isinstance(result, np.ndarray):
        result = pa.array(result)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array) or not pa.types.is_boolean(result.type) or len(result) != batch.num_rows:
        kind = str(result.type) if isinstance(result, pa.Array) else type(result).__name__
        cause = f"returned {kind}, not a boolean array with a value for each of the rows"
        raise UserFunctionError(ctx.operator, ctx.subtask, what, cause)
    return _flags(result)


def _flags(array: pa.Array) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags
