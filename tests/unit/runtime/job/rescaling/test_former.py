"""A checkpoint seen from another program: event time, what was in flight, and inputs that had ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from flinkplus import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.protocol.program.comparison import Requests, compare
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.runtime.job.rescaling.former import Former
from flinkplus.runtime.job.rescaling.in_flight import InFlight
from flinkplus.runtime.job.rescaling.keyed import StatePlace
from flinkplus.runtime.job.rescaling.rescale import Rescaling
from flinkplus.runtime.job.restoring import _check_in_flight
from tests.unit.api.drawing import environment, numbers
from tests.unit.runtime.job.rescaling.test_in_flight import message

Draw = Callable[[StreamEnvironment], Any]
GROUPS = 20


def graph_of(draw: Draw) -> JobGraph:
    env = environment(max_parallelism=GROUPS, parallelism=2)
    draw(env)
    return env.graph.fuse()


def checkpoint(
    graph: JobGraph, watermarks: Mapping[str, int | None], ended: tuple[str, ...] = (), **saved: Any
) -> Manifest:
    """At parallelism 2; in subtask 1 event time is 5 further. ``ended``: vertices. ``saved``: of the last vertex."""
    handles = {}
    for vertex in graph.vertices:
        for index in range(2):
            parts = {}
            for name in vertex.name.split("+"):
                at = watermarks.get(name)
                parts[name] = OperatorPart(rows_in=0, rows_out=0, watermark_ms=None if at is None else at + 5 * index)
            last = saved if vertex is graph.vertices[-1] else {}
            state = OperatorState(operators=parts, ended=vertex.name in ended, **last)
            subtask = f"{vertex.name}[{index}]"
            handles[subtask] = SnapshotHandle(
                subtask=subtask, generation=1, checkpoint=3, files=(), operator_state=state
            )
    return Manifest(checkpoint=3, generation=1, subtasks=handles, program=graph.program(GROUPS))


def seen(before: Draw, after: Draw, watermarks: Mapping[str, int | None], **others: Any) -> Former:
    old, new = graph_of(before), graph_of(after)
    change = compare(old.program(GROUPS), new.program(GROUPS), Requests())
    return Former(new, change, checkpoint(old, watermarks, **others), 2)


def windowed(between: Callable[[Stream], Stream], after: Callable[[Stream], Stream]) -> Draw:
    def draw(env: StreamEnvironment) -> None:
        rows = between(numbers(env, "rows").with_watermark("v", "0 seconds", name="marked"))
        after(rows.key_by("k").tumbling_window("v", "1 second").count(name="window")).discard(name="out")

    return draw


def same(rows: Stream) -> Stream:
    return rows


def kept(rows: Stream) -> Stream:
    return rows.filter(lambda row: True, name="kept")


def test_an_operator_that_was_moved_promises_nothing_of_its_old_place() -> None:
    times = {"rows": None, "marked": 5_000, "kept": 5_000, "window": 4_000, "out": 4_000}
    moved = seen(windowed(kept, same), windowed(same, kept), times)
    assert named(moved) == {"rows": None, "marked": 5_000, "window": 4_000, "kept": 4_000, "out": 4_000}
    assert moved.promised(0) == 5_000
    back = seen(windowed(same, kept), windowed(kept, same), {**times, "kept": 4_000})
    assert named(back)["kept"] == 5_000 == back.promised(0)


def named(former: Former) -> dict[str, int | None]:
    return {former.graph.nodes[at].name: known for at, known in former.event_times.items()}


def test_a_new_operator_and_an_unknown_time() -> None:
    new = seen(windowed(same, same), windowed(kept, kept_after), {"marked": 5_000, "window": 4_000, "out": 4_000})
    assert named(new)["kept"] == 5_000 and named(new)["after"] == 4_000
    unknown = seen(windowed(same, same), windowed(kept, same), {})
    assert set(named(unknown).values()) == {None}


def kept_after(rows: Stream) -> Stream:
    return rows.filter(lambda row: True, name="after")


def counted(*sources: str, name: str = "count", schema: str = "k string, v long") -> Draw:
    def draw(env: StreamEnvironment) -> None:
        first, *others = [numbers(env, source, schema) for source in sources]
        rows = first.union(*others, name="both") if others else first
        rows.key_by("k").count(name=name).discard(name="out")

    return draw


def rescaling(former: Former) -> Rescaling:
    place = StatePlace(None, None, 4, 4, GROUPS)  # type: ignore[arg-type]
    return Rescaling(former.graph, former.manifest, 2, 2, place, former.change)


def test_a_new_source_is_refused_before_an_operator_whose_input_had_ended() -> None:
    ended = ("first", "count+out")
    former = seen(counted("first"), counted("first", "second"), {}, ended=ended)
    assert former.ended_before_new_input() == "count"
    with pytest.raises(ConfigurationError, match="the input of operator 'count' had ended"):
        rescaling(former).handles()
    assert seen(counted("first"), counted("first", "second"), {}, ended=("first",)).ended_before_new_input() is None
    assert seen(counted("first"), counted("first"), {}, ended=ended).ended_before_new_input() is None


IN_FLIGHT = {"0:0->1": ["something"]}


def test_messages_in_flight_pass_if_their_rows_stay() -> None:
    former = seen(counted("rows"), counted("rows"), {}, in_flight=IN_FLIGHT)
    assert former.change.is_direct
    _check_in_flight(former)
    _check_in_flight(seen(counted("rows"), counted("rows", schema="k string, v int"), {}))
    other = seen(counted("rows"), counted("rows", schema="k string, v int"), {}, in_flight=IN_FLIGHT)
    assert other.change.is_direct, "nothing that is kept has other columns"
    with pytest.raises(ConfigurationError, match=r"checkpoint 3 holds messages in flight.*higher aligned_timeout"):
        _check_in_flight(other)


def test_messages_that_were_overtaken_are_refused_where_the_graph_has_changed() -> None:
    former = seen(counted("rows"), windowless(kept), {})
    handles = {name: replace(handle, overtaken=True) for name, handle in former.manifest.subtasks.items()}
    overtaken = replace(former, manifest=replace(former.manifest, subtasks=handles))
    with pytest.raises(ConfigurationError, match=r"checkpoint 3 is unaligned.*: resume the program as it was and with"):
        rescaling(overtaken).handles()


def windowless(between: Callable[[Stream], Stream]) -> Draw:
    def draw(env: StreamEnvironment) -> None:
        between(numbers(env, "rows")).key_by("k").count(name="count").discard(name="out")

    return draw


def test_rows_in_a_loop_follow_their_exchange_or_are_refused() -> None:
    former = seen(counted("rows"), both(counted_of("other", "more"), counted("rows")), {})
    assert former.edges == {0: 1}
    in_flight = InFlight(former.graph, 2, GROUPS, former.edges)
    state = OperatorState(in_flight={"0:0->1": [message(ChannelId(0, 0, 1), 3, [1, 2, 3])]})
    in_flight.add([state])
    assert {name.edge for name in in_flight.counts} == {1}
    gone = seen(counted("rows"), windowless(kept), {})
    assert gone.edges == {}
    with pytest.raises(ConfigurationError, match=r"rows in flight on an exchange \(number 0\).*once the loop is empty"):
        InFlight(gone.graph, 2, GROUPS, gone.edges).add([state])


def counted_of(source: str, name: str) -> Draw:
    return lambda env: numbers(env, source).key_by("k").count(name=name).discard(name=f"{name} out")


def both(*draws: Draw) -> Draw:
    def draw(env: StreamEnvironment) -> None:
        for one in draws:
            one(env)

    return draw
