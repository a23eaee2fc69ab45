"""The data source without Spark: its columns and partitions are what Spark takes."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, StructType

import pyspark_flinkplus
from flinkplus import ConfigurationError, StateDataSource
from flinkplus.operators.keyed.keyed import Count
from flinkplus.operators.keyed.keyed_rows import Reduce
from tests.unit.runtime.job.reading.kept import KeptVertex, Row

SCHEMA = pa.schema(
    [
        ("k", pa.timestamp("us", "UTC")),
        ("small", pa.uint16()),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
        pa.field("s", pa.struct([pa.field("a", pa.int32(), nullable=False), ("b", pa.list_(pa.float64()))])),
        ("t", pa.timestamp("ms")),
    ]
)
MOMENT = datetime.datetime(2026, 1, 31, tzinfo=datetime.timezone.utc)
FIRST = {"k": MOMENT, "small": 1, "tags": {"x": [1]}, "s": {"a": 1, "b": [0.5]}, "t": MOMENT.replace(tzinfo=None)}


def stored(operator: Any, schema: pa.Schema, folder: Path) -> str:
    vertex = KeptVertex(operator, schema, folder, 3)
    rows = [{name: row[name] for name in schema.names} for row in (FIRST, dict.fromkeys(SCHEMA.names))]
    vertex.feed(pa.RecordBatch.from_pylist(rows, schema=schema))
    vertex.store()
    vertex.close()
    return str(vertex.directory)


def read(directory: str, **options: str) -> tuple[pa.Schema, list[Row], int]:
    """Columns, rows, and partitions, as Spark gets them."""
    source = StateDataSource({"path": directory, "trust": "true", **options})
    schema = source.schema()
    reader = pickle.loads(pickle.dumps(source.reader(schema)))
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    assert all(batch.schema.equals(to_arrow_schema(schema, timezone="UTC")) for batch in batches)
    return (
        to_arrow_schema(schema, timezone="UTC"),
        [row for batch in batches for row in batch.to_pylist()],
        len(partitions),
    )


def test_types_that_spark_has_are_typed(tmp_path: Path) -> None:
    schema = pa.schema([field for field in SCHEMA if field.name != "small"])
    directory = stored(Reduce("op", ("k",), lambda a, b: a), schema, tmp_path)
    columns, rows, partitions = read(directory, operator="op")
    assert partitions == 2 and {row["key"]["k"] for row in rows} == {MOMENT, None}
    assert [field.name for field in columns.field("value").type] == schema.names
    (value,) = [row["value"] for row in rows if row["key"]["k"] is not None]
    assert value == {**{name: FIRST[name] for name in schema.names}, "tags": [("x", [1])]}


def test_types_that_spark_lacks_are_json(tmp_path: Path) -> None:
    directory = stored(Count("op", ("small",)), SCHEMA, tmp_path)
    columns, rows, _ = read(directory, operator="op")
    assert columns.field("key").type == pa.string() and pa.types.is_struct(columns.field("value").type)
    assert sorted(row["key"] for row in rows) == ['{"small": 1}', '{"small": null}']
    assert {row["value"]["count"] for row in rows} == {1}
    columns, rows, partitions = read(directory, OPERATOR="op", key="7")
    assert rows == [] and partitions == 1


def test_all_operators_and_one_checkpoint(tmp_path: Path) -> None:
    directory = stored(Count("op", ("k",)), SCHEMA, tmp_path)
    columns, rows, _ = read(directory, checkpoint="2")
    assert [columns.field(name).type for name in ("key", "value")] == [pa.string()] * 2 and len(rows) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opreator": "op"}, "has no option 'opreator'; its options are: path, operator"),
        ({"checkpoint": "x"}, "'x' is not the number of a checkpoint"),
        ({"checkpoint": "7"}, "has no checkpoint 7"),
        ({"operator": "po"}, "the operators with state are: op"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    directory = stored(Count("op", ("k",)), SCHEMA, tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        read(directory, **options)
    with pytest.raises(ConfigurationError, match=r"needs a checkpoint directory: .*load\(DIR\)"):
        StateDataSource({"trust": "true"}).schema()


def test_another_schema_is_refused(tmp_path: Path) -> None:
    directory = stored(Count("op", ("k",)), SCHEMA, tmp_path)
    with pytest.raises(ConfigurationError, match="leave out schema"):
        StateDataSource({"path": directory, "trust": "true"}).reader(StructType().add("a", IntegerType()))


def test_spark_finds_it_by_its_name() -> None:
    assert pyspark_flinkplus.DefaultSource is StateDataSource and StateDataSource.name() == "flinkplus-state"
    assert pyspark_flinkplus.__name__.startswith("pyspark_")
