"""What ``select``, ``where`` and their like draw; side outputs as streams."""

from __future__ import annotations

import pytest

from flinkplus import functions as F
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import columns_text
from tests.unit.api.drawing import environment, numbers, shape


def test_columns() -> None:
    stream = numbers(environment(), "a")
    drawn = [
        stream.select("v", "k AS key"),
        stream.select(F.upper("k").alias("up"), F.col("v") / 2),
        stream.with_column("v", "v + 1"),
        stream.with_columns({"w": "v * 2", "k": F.col("v")}),
        stream.where(F.col("v") > 1),
        stream.drop("k"),
        stream.rename({"k": "v", "v": "k"}),
    ]
    assert [columns_text(each.schema) for each in drawn] == [
        "v int64, key string",
        "up string, (v / 2) double",
        "k string, v int64",
        "k int64, v int64, w int64",
        "k string, v int64",
        "v int64",
        "v string, k int64",
    ]


def test_rows_are_fused_and_dead_letters_are_a_stream_of_their_own() -> None:
    env = environment()
    rows = numbers(env, "a").select("10 / v AS x", "k", on_error="dead-letter", name="parse")
    rows.key_by("k").count().discard(name="out")
    letters = rows.dead_letters()
    assert columns_text(letters.schema) == "k string, v int64, operator string, error string"
    letters.discard(name="dead")
    assert shape(env.graph) == [
        ("a+parse+parse dead letters+parse rows+dead", []),
        ("count+out", [("a+parse+parse dead letters+parse rows+dead", "hash", ("k",))]),
    ]


def test_side_outputs_of_process() -> None:
    env = environment()
    keyed = numbers(env, "a").key_by("k")
    rows = keyed.process(lambda key, row, ctx: [], schema="n long", side_outputs={"late": "k string"}, name="p")
    rows.discard()
    rows.side_output("late").discard()
    assert columns_text(rows.side_output("late").schema) == "k string"
    assert shape(env.graph)[1][0] == "p+p late+p rows+discard-2+discard"
    with pytest.raises(ConfigurationError, match="has no side output 'early'; it has 'late'"):
        rows.side_output("early")


def test_rows_that_would_go_nowhere() -> None:
    env = environment()
    rows = numbers(env, "a").where("v > 1", on_error="dead-letter")
    rows.discard()
    with pytest.raises(ConfigurationError, match=r"'where dead letters' go nowhere: end dead_letters\(\)"):
        env.graph.fuse()
    with pytest.raises(ConfigurationError, match="give it on_error='dead-letter'"):
        numbers(env, "b").where("v > 1").dead_letters()
