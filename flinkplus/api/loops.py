"""What ``iterate`` draws: a loop head, the operators of the user's function, and the back edges.

Rules: only the function that drew a loop can close it, once; so every loop has one head, and only its own rows lead
back to it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import pyarrow as pa

from flinkplus.api.drawing import Drawn, node_of
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.schema import united


class Looped(Drawn, Protocol):
    """The part of a stream that loops use."""

    schema: pa.Schema


S = TypeVar("S", bound=Looped)


def close_loop(graph: JobGraph, rows: S, drawn: Any) -> S:
    """Lead the first of the two streams ``drawn`` back to the head of ``rows``; returns the second.

    Raises ``ConfigurationError`` unless ``drawn`` is two streams of that loop and the feedback has the columns of
    ``rows``; also for nested loops, event time in a loop, and rows that come at the end of all input.
    """
    name, head = rows.name, node_of(rows)
    feedback, output = _two_streams(rows, drawn)
    inside = graph.reached([head])
    if not inside.issuperset(feedback._origins):
        raise ConfigurationError(
            f"loop {name!r}: not all of its feedback, {feedback.name!r}, comes out of the loop; add other rows to the "
            "stream that iterate is called on, by union"
        )
    if head in feedback._origins:
        raise ConfigurationError(f"loop {name!r}: its feedback is its whole input, so rows would circulate for ever")
    if not inside.intersection(output._origins):
        raise ConfigurationError(
            f"loop {name!r} has no exit: its output, {output.name!r}, does not come out of the loop"
        )
    try:
        united([rows.schema, feedback.schema])
    except ConfigurationError as error:
        raise ConfigurationError(
            f"loop {name!r}: its feedback, {feedback.name!r}, must have the columns of its input: {error}"
        ) from None
    _check_inside(graph, head, inside & graph.reached(feedback._origins, backwards=True))
    for origin in feedback._origins:
        graph.link(origin, head, (), "forward")
    return output


def _two_streams(rows: S, drawn: Any) -> tuple[S, S]:
    name, kind = rows.name, type(rows)
    if not isinstance(drawn, tuple) or len(drawn) != 2:
        raise ConfigurationError(
            f"loop {name!r}: its function must return two streams, (feedback, output), not {type(drawn).__name__}"
        )
    for what, stream in zip(("feedback", "output"), drawn, strict=True):
        if not isinstance(stream, kind):
            raise ConfigurationError(f"loop {name!r} has no {what}: {type(stream).__name__} is returned, not a stream")
        if stream._env is not rows._env:
            raise ConfigurationError(f"loop {name!r}: its {what}, {stream.name!r}, is of another StreamEnvironment")
    feedback, output = drawn
    return feedback, output


def _check_inside(graph: JobGraph, head: int, inside: frozenset[int]) -> None:
    """``inside``: the nodes between the head of a loop and its feedback, with both."""
    name = graph.nodes[head].name
    for index in sorted(inside - {head}):
        node = graph.nodes[index]
        if index in graph.loop_heads():
            raise ConfigurationError(f"loop {node.name!r} is inside of loop {name!r}: loops cannot be nested")
        if isinstance(node.body, Operator) and node.body.makes_watermarks:
            raise ConfigurationError(
                f"loop {name!r} cannot contain event time; draw {node.name!r} before or after the loop"
            )
        if isinstance(node.body, Operator) and node.body.holds_rows and node.body.stops_watermarks:
            raise ConfigurationError(
                f"operator {node.name!r} gives rows at the end of all input, and is in loop {name!r}, which has ended "
                "then: draw it before or after the loop"
            )
