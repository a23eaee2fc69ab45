"""What makes all rows meet."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from tests.unit.api.drawing import environment, numbers, shape


def test_totals_are_of_all_rows() -> None:
    env = environment()
    a, b = numbers(env, "a"), numbers(env, "b")
    totals = a.union(b).total("v")
    assert totals.schema == a.schema.append(pa.field("total", pa.int64()))
    totals.gather().count(output="n", name="n").discard(name="out")
    assert shape(env.graph) == [
        ("a", []),
        ("b", []),
        ("total", [("a", "gather", ()), ("b", "gather", ())]),
        ("n+out", [("total", "gather", ())]),
    ]
    vertices = env.graph.vertices
    assert [env.graph.has_keyed_state(vertex) for vertex in vertices] == [False, False, True, True]


def test_a_key_of_nothing_is_most_likely_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match=r"at least one column; gather\(\)"):
        numbers(environment(), "a").key_by()
