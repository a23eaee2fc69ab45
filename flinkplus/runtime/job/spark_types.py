"""The Arrow type of each Spark type that a DataFrame's column may have, and the reverse.

Rules: a timestamp is an instant: in any session time zone its type is a timestamp in UTC, like the schema text
``timestamp``, so that streams from several sources have equal types. The types are those of the Parquet files that
Spark stages, or lossless casts of them.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types

from flinkplus.errors import ConfigurationError

_SIMPLE: dict[type[types.DataType], pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.ByteType: pa.int8(),
    types.ShortType: pa.int16(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.StringType: pa.string(),
    types.CharType: pa.string(),
    types.VarcharType: pa.string(),
    types.BinaryType: pa.binary(),
    types.DateType: pa.date32(),
    types.TimestampType: pa.timestamp("us", tz="UTC"),
    types.TimestampNTZType: pa.timestamp("us"),
    types.DayTimeIntervalType: pa.duration("us"),
}
BINARY_COLLATION = "UTF8_BINARY"
_INSTEAD = {
    "variant": "cast it to a string (to_json) or to the type that it holds",
    "void": "cast it to a type, such as string",
    "time": "cast it to a string, or to a timestamp of some day",
    "calendar interval": "cast it to a day-time interval, or to a number",
}

_SPARK: dict[pa.DataType, types.DataType] = {
    **{arrow: spark() for spark, arrow in _SIMPLE.items() if spark not in (types.CharType, types.VarcharType)},
    pa.large_string(): types.StringType(),
    pa.large_binary(): types.BinaryType(),
}


def spark_type(dtype: pa.DataType) -> types.DataType | None:
    """The Spark type whose Arrow type ``dtype`` is, or can be cast to; ``None`` for a type that Spark lacks."""
    if pa.types.is_timestamp(dtype):
        return types.TimestampNTZType() if dtype.tz is None else types.TimestampType()
    if pa.types.is_decimal(dtype) and not pa.types.is_decimal256(dtype):
        return types.DecimalType(dtype.precision, dtype.scale)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        element = spark_type(dtype.value_type)
        return None if element is None else types.ArrayType(element, dtype.value_field.nullable)
    if pa.types.is_map(dtype):
        key, item = spark_type(dtype.key_type), spark_type(dtype.item_type)
        return None if key is None or item is None else types.MapType(key, item, dtype.item_field.nullable)
    if pa.types.is_struct(dtype):
        fields = [(field.name, spark_type(field.type), field.nullable) for field in dtype]
        if any(found is None for _, found, _ in fields):
            return None
        return types.StructType([types.StructField(name, found, null) for name, found, null in fields if found])
    return _SPARK.get(dtype)


def arrow_schema(schema: types.StructType, where: str = "from_spark") -> pa.Schema:
    """Raises ``ConfigurationError``, which names ``where``, for an empty schema, duplicate columns, and unsupported
    types."""
    if not schema.fields:
        raise ConfigurationError(f"{where}: there are no columns")
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise ConfigurationError(
                f"{where}: there are two columns {name!r}; rename one, with withColumnsRenamed or toDF"
            )
    return pa.schema([pa.field(f.name, _arrow_type(f.dataType, f.name, where), f.nullable) for f in schema.fields])


def _arrow_type(dtype: types.DataType, column: str, where: str) -> pa.DataType:
    collation = getattr(dtype, "collation", None) or BINARY_COLLATION
    if collation != BINARY_COLLATION:
        raise ConfigurationError(
            f"{where}: column {column!r} has the collation {collation}, but FlinkPlus compares text byte by byte; "
            f"collate it as {BINARY_COLLATION}, and normalize it with lower(...) or the like"
        )
    if isinstance(dtype, types.DecimalType):
        return pa.decimal128(dtype.precision, dtype.scale)
    if isinstance(dtype, types.UserDefinedType):
        return _arrow_type(dtype.sqlType(), column, where)
    if isinstance(dtype, types.ArrayType):
        return pa.list_(
            pa.field("element", _arrow_type(dtype.elementType, f"{column}.element", where), dtype.containsNull)
        )
    if isinstance(dtype, types.MapType):
        key = pa.field("key", _arrow_type(dtype.keyType, f"{column}.key", where), nullable=False)
        return pa.map_(
            key, pa.field("value", _arrow_type(dtype.valueType, f"{column}.value", where), dtype.valueContainsNull)
        )
    if isinstance(dtype, types.StructType):
        if len(set(dtype.names)) < len(dtype.names):
            raise ConfigurationError(f"{where}: the struct in column {column!r} has two fields of one name")
        fields = [
            pa.field(f.name, _arrow_type(f.dataType, f"{column}.{f.name}", where), f.nullable) for f in dtype.fields
        ]
        return pa.struct(fields)
    found = _SIMPLE.get(type(dtype))
    if found is None:
        name = dtype.simpleString()
        instead = next(
            (do for begin, do in _INSTEAD.items() if name.startswith(begin)), "cast it to a string or number"
        )
        raise ConfigurationError(
            f"{where}: column {column!r} has the type {name}, which cannot be staged for a job; {instead}"
        )
    return found
