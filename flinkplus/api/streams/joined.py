"""How joins of two keyed streams are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from flinkplus.errors import ConfigurationError
from flinkplus.graph import Node
from flinkplus.operators.event_time.assigners import Assigner, FixedWindows
from flinkplus.operators.joins.bounds import Bounds
from flinkplus.operators.joins.sides import How, JoinSide
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.joins.windowed import WindowJoin

if TYPE_CHECKING:
    from flinkplus.api.streams.keyed import KeyedStream
    from flinkplus.api.streams.stream import Stream


@dataclass(frozen=True)
class JoinSettings:
    """What all joins have: the operator's name, ``how``, and of both sides the time column and the prefix."""

    name: str
    how: How
    times: tuple[str | None, str | None]
    prefixes: tuple[str, str]

    def sides(self, left: KeyedStream, right: KeyedStream) -> tuple[JoinSide, JoinSide]:
        """The two sides."""
        first, second = (
            JoinSide(stream.schema, stream.keys, time, prefix)
            for stream, time, prefix in zip((left, right), self.times, self.prefixes, strict=True)
        )
        return first, second


def check_streams(name: str, left: KeyedStream, right: KeyedStream) -> None:
    """Raises ``ConfigurationError`` unless both are keyed streams of one environment."""
    if not isinstance(right, type(left)):
        raise ConfigurationError(f"operator {name!r} joins keyed streams, not a {type(right).__name__}: use key_by")
    if right._env is not left._env:
        raise ConfigurationError(f"operator {name!r}: both streams must be drawn in one StreamEnvironment")


def joined(left: KeyedStream, right: KeyedStream, joining: JoinSettings, bounds: Bounds) -> Stream:
    """A regular join, or one by time. Raises ``ConfigurationError``."""
    check_streams(joining.name, left, right)
    if joining.times[0] is not None:
        left._check_event_time(joining.name)
        right._check_event_time(joining.name)
    sides = joining.sides(left, right)
    return _drawn(
        left, right, KeyedJoin(joining.name, left.keys, *sides, bounds, len(left._stream._origins), joining.how)
    )


def windows_joined(left: KeyedStream, right: KeyedStream, joining: JoinSettings, assigner: Assigner) -> Stream:
    """A join of windows. Raises ``ConfigurationError``."""
    check_streams(joining.name, left, right)
    left._check_event_time(joining.name)
    right._check_event_time(joining.name)
    windows = cast("FixedWindows", assigner)  # the join checks it
    sides = joining.sides(left, right)
    inputs = len(left._stream._origins)
    return _drawn(left, right, WindowJoin(joining.name, left.keys, *sides, windows, inputs, joining.how))


def _drawn(left: KeyedStream, right: KeyedStream, join: KeyedJoin | WindowJoin) -> Stream:
    join.check()
    schema, graph = join.output_schema(left.schema), left._env.graph
    origins = (*left._stream._origins, *right._stream._origins)
    node = graph.add(Node(join.name, "operator", join, schema))
    for at, origin in enumerate(origins):
        keys = left.keys if at < join.left_inputs else right.keys
        graph.link(origin, node, keys, "hash" if keys else "gather")
    return left._stream._of(node, schema)
