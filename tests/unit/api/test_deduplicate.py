"""What ``deduplicate`` draws."""

from __future__ import annotations

import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.operators.keyed.deduplicate import Deduplicate
from tests.unit.api.drawing import environment, numbers, shape


def test_rows_meet_by_what_is_to_differ() -> None:
    env = environment()
    stream = numbers(env, "a").union(numbers(env, "b"))
    first = stream.deduplicate("k", ttl="10 minutes").deduplicate("k", "v", name="again")
    assert first.schema == stream.schema
    first.discard(name="out")
    assert shape(env.graph) == [
        ("a", []),
        ("b", []),
        ("deduplicate", [("a", "hash", ("k",)), ("b", "hash", ("k",))]),
        ("again+out", [("deduplicate", "hash", ("k", "v"))]),
    ]
    assert [node.body for node in env.graph.nodes[2:4]] == [
        Deduplicate("deduplicate", ("k",), 600_000),
        Deduplicate("again", ("k", "v"), None),
    ]


def test_what_cannot_be() -> None:
    a = numbers(environment(), "a")
    with pytest.raises(ConfigurationError, match="ttl must be at least 1 ms"):
        a.deduplicate("k", ttl=0)
    with pytest.raises(ConfigurationError, match="at least one column"):
        a.deduplicate()
    with pytest.raises(ConfigurationError, match="'x' is not among"):
        a.deduplicate("x")
    with pytest.raises(ConfigurationError, match="keep='last'; it is 'first', or 'last' with order_by"):
        a.deduplicate("k", keep="last")
    with pytest.raises(ConfigurationError, match="or 'last' with order_by"):
        a.deduplicate("k", order_by="v")
    with pytest.raises(ConfigurationError, match="takes no ttl"):
        a.deduplicate("k", keep="last", order_by="v", ttl=1)
    with pytest.raises(ConfigurationError, match=r"no column 'vv'.*did you mean 'v'"):
        a.deduplicate("k", keep="last", order_by="vv")
    with pytest.raises(ConfigurationError, match=r"deduplicate: order_by names no column, or one twice"):
        a.deduplicate("k", keep="last", order_by=("v", "v DESC"))
    with pytest.raises(ConfigurationError, match="order_by 'k' is string, and must be a whole number"):
        a.deduplicate("v", keep="last", order_by="k")
