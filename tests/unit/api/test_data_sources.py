"""``env.from_data_source`` and ``env.from_socket``: what is drawn, shipped, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.runtime.job.checks import check_recipes, check_sources
from flinkplus.sources.planned.source import DataSourceBatches
from flinkplus.sources.python.source import DataSourcePartitions, DataSourceStream
from tests.unit.api.drawing import environment

STRUCT = types.StructType().add("n", "long", False).add("text", "string")
ARROW = pa.schema([pa.field("n", pa.int64(), False), ("text", pa.string())])


class Simple(SimpleDataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.options = options


class Batch(DataSourceReader):
    def __init__(self, given: Any) -> None:
        self.given = given

    def partitions(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def read(self, partition: InputPartition) -> Iterator[tuple[int, str]]:
        yield 1, repr(partition)


class Both(DataSource):
    given: Any = (InputPartition(3), InputPartition(4))

    def schema(self) -> types.StructType:
        return STRUCT

    def simpleStreamReader(self, schema: types.StructType) -> Any:
        assert schema == STRUCT
        return Simple(self.options)

    def reader(self, schema: types.StructType) -> Any:
        return Batch(self.given)


class Planned(Both):
    def streamReader(self, schema: types.StructType) -> Any:
        class Reader(DataSourceStreamReader):
            def read(self, partition: InputPartition) -> Any:
                return iter(())

        return Reader()


class Nothing(DataSource):
    pass


class Wrong(Both):
    def simpleStreamReader(self, schema: types.StructType) -> Any:
        return object()


class Broken(Both):
    def schema(self) -> Any:
        raise LookupError(f"no table for {self.options.get('password')}")


def drawn(kind: Any, **arguments: Any) -> Any:
    env = environment(parallelism=2)
    env.from_data_source(kind, **arguments)
    return env.graph.nodes[0].body


def test_a_stream_is_drawn_with_the_schema_of_the_data_source() -> None:
    source = drawn(Both, options={"Path": "x"}, poll="1 second")
    assert isinstance(source, DataSourceStream)
    assert (source.name, source.schema, source.spark_schema, source.poll_s) == ("data-source", ARROW, STRUCT, 1.0)
    reader: Any = cloudpickle.loads(cloudpickle.dumps(source)).stream_reader()
    assert reader.options["pAth"] == "x"


def test_a_given_schema_counts() -> None:
    assert drawn(Both, schema=ARROW).spark_schema == STRUCT
    assert drawn(Both, schema=STRUCT).schema == ARROW


def test_secret_options_are_not_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    source = drawn(Both, options={"path": "x", "Password": "hunter2", "api-Token": "abc"})
    shipped = cloudpickle.dumps(source)
    assert b"hunter2" not in shipped and b"abc" not in shipped and "hunter2" not in repr(source)
    assert source.secrets() == {"password": "hunter2", "api-token": "abc"}
    there: Any = cloudpickle.loads(shipped)
    reader: Any = there.with_secrets(source.secrets()).stream_reader()
    assert dict(reader.options) == {"path": "x", "password": "hunter2", "api-token": "abc"}
    monkeypatch.setenv("DATA_SOURCE_PASSWORD", "other")
    with pytest.raises(ConfigurationError, match=r"'api-token' is not known here.*DATA_SOURCE_API_TOKEN"):
        there.secrets()
    monkeypatch.setenv("DATA_SOURCE_API_TOKEN", "xyz")
    assert there.secrets() == {"password": "other", "api-token": "xyz"}


def test_partitions_are_planned_once_and_kept() -> None:
    source = drawn(Both, batch=True)
    assert isinstance(source, DataSourcePartitions) and source.split_plan() is None
    planned = source.planned()
    assert planned.planned() is planned
    again = source.with_split_plan(planned.split_plan())
    assert [*again.read_partition(1)] == [(1, "InputPartition(value=4)")]
    assert [len(again.reader(index, 2).position()["left"]) for index in range(2)] == [1, 1]  # type: ignore[call-overload, index, arg-type]
    assert again.redealt([None, None], 1) == [{"format": 1, "left": [[0, 0], [1, 0]], "rows": 0}]


@pytest.mark.parametrize("given", [(), NotImplementedError()])
def test_a_reader_without_partitions_has_one(given: Any) -> None:
    class One(Both):
        pass

    One.given = given
    planned = drawn(One, batch=True).planned()
    assert [*planned.read_partition(0)] == [(1, "InputPartition(value=None)")]


@pytest.mark.parametrize(
    ("given", "message"), [([1], "must be an InputPartition, not int"), (LookupError("no"), "raised LookupError: no")]
)
def test_partitions_that_cannot_be_planned_are_an_error(given: Any, message: str) -> None:
    class Bad(Both):
        pass

    Bad.given = given
    with pytest.raises(InputError, match=f"source 'data-source': partitions of Bad.*{message}"):
        drawn(Bad, batch=True).planned()


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("registered", {}, "subclass of pyspark's DataSource, not 'registered'"),
        (Both, {"options": {"n": 1}}, "options of a data source are text; 'n' is not"),
        (Nothing, {}, "Nothing has no schema of its own: give schema"),
        (Nothing, {"schema": STRUCT}, r"Nothing has neither streamReader\(\) nor simpleStreamReader\(\); batch=True"),
        (Nothing, {"schema": STRUCT, "batch": True}, r"Nothing has no reader\(\)"),
        (Planned, {"trigger": {"once": True}}, "trigger must be {'availableNow': True}, not {'once': True}"),
        (Planned, {"max_unread_batches": 0}, "max_unread_batches must be at least 1"),
        (Both, {"trigger": {"availableNow": True}}, r"trigger is for a data source with a streamReader\(\)"),
        (Both, {"max_unread_batches": 3}, r"max_unread_batches is for a data source with a streamReader\(\)"),
        (Wrong, {}, "simpleStreamReader of Wrong returned object"),
        (Broken, {"options": {"password": "hunter2"}}, r"Broken raised LookupError: no table for \*\*\*"),
        (Both, {"schema": 5}, "a schema is text, a StructType or a pyarrow.Schema"),
        (Both, {"schema": types.StructType().add("v", types.VariantType())}, "source 'data-source': column 'v'"),
        (Both, {"poll": "soon"}, "poll must be"),
    ],
)
def test_what_cannot_be_read_is_refused(kind: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        drawn(kind, **arguments)


def test_a_stream_reader_comes_first() -> None:
    source = drawn(Planned, trigger={"availableNow": True}, max_unread_batches=3)
    assert isinstance(source, DataSourceBatches)
    assert (source.available_now, source.max_unread_batches, source.folder) == (True, 3, None)
    assert not drawn(Planned).available_now
    planned = source.planned()
    assert planned.folder is not None and planned.folder.startswith("data-source-") and planned.planned() is planned
    assert planned.begun([None, None]) == 0 == planned.floor(None)
    assert source.settings() == {"data source": "Planned", "reader": "streamReader"}


def test_the_partitions_of_a_data_source_that_also_streams_can_be_read_once() -> None:
    assert isinstance(drawn(Planned, batch=True), DataSourcePartitions)


@pytest.mark.parametrize("port", [0, 65536, "9999", True])
def test_what_is_no_port_is_refused(port: Any) -> None:
    with pytest.raises(ConfigurationError, match="source 'socket': port must be 1 to 65535"):
        environment().from_socket("127.0.0.1", port)


def test_a_socket_warns_and_is_refused_where_rows_are_never_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    env = environment(parallelism=2, checkpoint_interval=1.0)
    lines = env.from_socket("127.0.0.1", 9999)
    assert "source 'socket': a socket cannot be read again" in caplog.text
    lines.to_postgres("postgresql://db.example/x", "lines", visibility="at_once")
    graph = env.graph.fuse()
    check_sources(graph, env.options)
    with pytest.raises(ConfigurationError, match=r"at_once.*cannot be used with a source that cannot be read again"):
        check_recipes(graph, env.options)
