"""The types of a DataFrame's columns, without a session."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types

from flinkplus.errors import ConfigurationError
from flinkplus.runtime.job.spark_types import arrow_schema

BINARY, LOWER = types.StringType("UTF8_BINARY"), types.StringType("UTF8_LCASE")


@pytest.mark.parametrize(
    ("dtype", "column"),
    [
        (LOWER, "s"),
        (types.StringType("UNICODE_CI"), "s"),
        (types.ArrayType(LOWER), "s.element"),
        (types.MapType(LOWER, BINARY), "s.key"),
        (types.StructType([types.StructField("in", LOWER)]), "s.in"),
    ],
)
def test_a_collation_that_would_be_lost_is_refused(dtype: types.DataType, column: str) -> None:
    with pytest.raises(ConfigurationError, match=f"column '{column}' has the collation .*UTF8_BINARY.*lower"):
        arrow_schema(types.StructType([types.StructField("s", dtype)]))


def test_text_that_is_compared_byte_by_byte_passes() -> None:
    fields = [types.StructField("s", BINARY), types.StructField("v", types.VarcharType(5))]
    assert arrow_schema(types.StructType(fields)).types == [pa.string(), pa.string()]
