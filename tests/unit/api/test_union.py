"""What ``union`` draws."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.runtime.job.checks import check_outputs
from tests.unit.api.drawing import environment, numbers, shape


def test_rows_of_a_union_go_straight_to_their_keys() -> None:
    env = environment()
    a, b, c = (numbers(env, name) for name in "abc")
    a.union(b, c).key_by("k").count(name="count").discard(name="out")
    by_key = ("hash", ("k",))
    assert shape(env.graph) == [
        ("a", []),
        ("b", []),
        ("c", []),
        ("count+out", [("a", *by_key), ("b", *by_key), ("c", *by_key)]),
    ]
    assert env.graph.inputs_of(SubtaskId("count+out", 1), 2) == [
        (ChannelId(edge, index, 1), SubtaskId(name, index)) for edge, name in enumerate("abc") for index in range(2)
    ]
    assert [env.graph.producer_vertex(edge).name for edge in range(3)] == ["a", "b", "c"]
    assert all(env.graph.consumer_vertex(edge).name == "count+out" for edge in range(3))


def test_two_sinks_do_not_write_to_one_place() -> None:
    env = environment()
    a, b = numbers(env, "a"), numbers(env, "b")
    a.union(b).to_text("/out", name="both")
    a.to_text("/out/a", name="one")
    a.discard(name="none")
    check_outputs(env.graph)
    b.to_parquet("/out", name="again")
    with pytest.raises(ConfigurationError, match="sinks 'both' and 'again' both write to /out: give each a place"):
        check_outputs(env.graph)


def test_what_is_fused_with_a_union_is_fused_with_one_operator() -> None:
    env = environment()
    united = numbers(env, "a").union(numbers(env, "b"))
    united.filter(lambda row: row.v > 1, name="some").discard(name="out")
    united.discard(name="all")
    united.key_by("k").count(name="count").discard(name="counted")
    forward = ("forward", ())
    assert shape(env.graph) == [
        ("a", []),
        ("b", []),
        ("union+some+all+out", [("a", *forward), ("b", *forward)]),
        ("count+counted", [("a", "hash", ("k",)), ("b", "hash", ("k",))]),
    ]
    assert united.name == "union"


def test_streams_of_one_vertex_a_union_of_a_union_and_a_stream_with_itself() -> None:
    env = environment()
    a, b = numbers(env, "a"), numbers(env, "b")
    some = a.filter(lambda row: row.v > 1, name="some")
    inner = a.union(some, name="inner")
    inner.union(b, b, name="outer").map(lambda row: row, schema="k string, v long", name="m").discard(name="out")
    forward = ("forward", ())
    assert shape(env.graph) == [
        ("a+some", []),
        ("b", []),
        ("outer+m+out", [("a+some", *forward), ("a+some", *forward), ("b", *forward), ("b", *forward)]),
    ]
    assert [env.graph.nodes[x.producer].name for x in env.graph.exchanges] == ["a", "some", "b", "b"]


def test_the_way_of_the_rows_is_part_of_the_fingerprint() -> None:
    prints = set()
    for route in ("hash", "forward", "gather"):
        env = environment()
        united = numbers(env, "a").union(numbers(env, "b"), name="u")
        united.discard(name="out")
        env.graph.fuse()
        env.graph.exchanges = [type(x)(x.edge, x.producer, x.consumer, (), route) for x in env.graph.exchanges]
        prints.add(env.graph.fingerprint(2))
    assert len(prints) == 3


def test_a_column_may_be_null_when_that_of_one_stream_may() -> None:
    env = environment()
    strict = numbers(env, "strict", "k string not null, v long not null")
    loose = numbers(env, "loose", "k string not null, v long")
    united = strict.union(loose)
    assert united.schema == pa.schema([pa.field("k", pa.string(), False), pa.field("v", pa.int64())])
    united.key_by("k").count(name="count").discard(name="out")
    env.graph.fuse()
    assert env.graph.root_schema(env.graph.vertex_of("count")) == united.schema
    assert env.graph.root_schema(env.graph.vertex_of("strict")) == strict.schema


def test_what_cannot_be_united_is_said() -> None:
    env = environment()
    a = numbers(env, "a")
    with pytest.raises(ConfigurationError, match=r"\(k string, v int64\) and \(k string, n int64\)"):
        a.union(numbers(env, "b", "k string, n long"))
    with pytest.raises(ConfigurationError, match=r"v int64\) and \(k string, v double"):
        a.union(numbers(env, "c", "k string, v double"))
    with pytest.raises(ConfigurationError, match="'d' is of another StreamEnvironment"):
        a.union(numbers(environment(), "d"))
    with pytest.raises(ConfigurationError, match="not KeyedStream; union first, then key_by"):
        a.union(numbers(env, "e").key_by("k"))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="before the first key_by or union"):
        a.union(numbers(env, "f")).throttle(10)
    assert [node.rate for node in env.graph.nodes] == [None] * len(env.graph.nodes)
