"""What ``process`` and ``transform_with_state`` draw, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from flinkplus.api.streams.stream import Stream
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.schema import columns_text
from flinkplus.operators.keyed.keyed_rows import Process
from flinkplus.operators.processors.transform import TransformWithState
from tests.stateful_processors import OUTPUT, RunningCount
from tests.unit.api.drawing import environment, numbers


def nothing(*_: Any) -> None: ...


def drawn(stream: Stream) -> Any:
    return stream._env.graph.nodes[stream._origins[0]].body


def test_state_expires_by_event_time_where_there_is_any() -> None:
    plain = numbers(environment(), "a")
    timed = plain.with_processing_time("at")
    for stream, by_event_time in ((plain, False), (timed, True)):
        process = drawn(stream.key_by("k").process(nothing, schema="n long"))
        assert isinstance(process, Process) and process.by_event_time is by_event_time and not process.has_clock
    assert drawn(plain.key_by("k").process(nothing, schema="n long", on_processing_timer=nothing)).has_clock


def test_timers_of_processing_time_in_a_loop_are_refused() -> None:
    def looped(**timers: Any) -> None:
        env = environment()

        def body(rows: Stream) -> tuple[Stream, Stream]:
            again = rows.key_by("k").process(nothing, schema="k string, v long", name="p", **timers)
            return again, rows.map(lambda row: row[:2], schema="k string, v long")

        numbers(env, "a").iterate(body, name="loop").discard()
        env.graph.fuse()

    looped()
    with pytest.raises(ConfigurationError, match="operator 'p' is in a loop, and has timers of processing time"):
        looped(on_processing_timer=nothing)
    env = environment()
    loop = numbers(env, "a").iterate(lambda rows: (rows.map(tuple, schema="k string, v long"), rows), name="loop")
    loop.key_by("k").process(nothing, schema="n long", on_processing_timer=nothing).discard()
    env.graph.fuse()


def test_transform_with_state() -> None:
    keyed = numbers(environment(), "a").key_by("k")
    stream = keyed.transform_with_state(RunningCount(), schema=OUTPUT, time_mode="ProcessingTime")  # type: ignore[arg-type]
    assert columns_text(stream.schema) == "k string, count int64, total int64"
    body = drawn(stream)
    assert isinstance(body, TransformWithState) and body.time_mode == "processing_time" and body.has_clock
    cases: list[tuple[dict[str, Any], str]] = [
        ({"time_mode": "event_time"}, "needs event time: call with_watermark"),
        ({"time_mode": "soon"}, "time_mode is one of"),
        ({"initial_state": 1}, "initial_state is not supported"),
        ({"schema": 7}, "a schema is text or a StructType"),
    ]
    for wrong, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            keyed.transform_with_state(RunningCount(), **{"schema": OUTPUT, **wrong})
    with pytest.raises(ConfigurationError, match="needs key_by before"):
        numbers(environment(), "b").gather().transform_with_state(RunningCount(), schema=OUTPUT)
