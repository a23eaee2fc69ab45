"""The watermark of a subtask against the plain minimum over its channels."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS, IDLE_MS, InputWatermarks
from flinkplus.protocol.vocabulary.ids import ChannelId

CHANNELS = [ChannelId(0, 0, 0), ChannelId(0, 1, 0), ChannelId(1, 0, 0)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.one_of(st.none(), st.integers(1, 5))), max_size=30),
    st.sets(st.integers(0, 30)),
)
def test_the_least_of_all_channels(events: list[tuple[int, int | None]], restarts: set[int]) -> None:
    """``None`` ends the channel, a number raises it by as much; a snapshot and its restoring change nothing."""
    watermarks = InputWatermarks(CHANNELS)
    known: dict[int, int] = {}
    ended: set[int] = set()
    told: int | None = None
    for number, (at, rise) in enumerate(events):
        if number in restarts:
            watermarks = InputWatermarks(CHANNELS, watermarks.saved(), [CHANNELS[i] for i in sorted(ended)])
        if at in ended or (rise is None and len(ended) == 2):
            continue
        if rise is None:
            ended.add(at)
            risen = watermarks.end(CHANNELS[at])
        else:
            known[at] = known.get(at, -3) + rise
            risen = watermarks.advance(CHANNELS[at], known[at])
        waiting = [i for i in range(3) if i not in ended]
        expected = min(known[i] for i in waiting) if all(i in known for i in waiting) else None
        assert risen == (expected if expected != told else None)
        assert expected is None or told is None or expected >= told
        told = expected if expected is not None else told


@pytest.mark.parametrize("watermark_ms", [4, 5, END_OF_TIME_MS])
def test_one_that_does_not_rise_changes_nothing(watermark_ms: int) -> None:
    watermarks = InputWatermarks(CHANNELS[:1])
    assert watermarks.advance(CHANNELS[0], 5) == 5
    assert watermarks.advance(CHANNELS[0], watermark_ms) is None
    assert watermarks.saved() == {"0:0->0": 5}
    assert watermarks.advance(CHANNELS[0], 6) == 6


def test_nothing_is_saved_where_nobody_sends_any() -> None:
    watermarks = InputWatermarks(CHANNELS)
    assert watermarks.end(CHANNELS[0]) is None
    assert watermarks.saved() == {}


@given(
    st.lists(st.tuples(st.integers(0, 2), st.one_of(st.just("idle"), st.integers(-3, 5))), max_size=40),
    st.sets(st.integers(0, 40)),
)
def test_idle_channels_do_not_count_until_their_next_watermark(
    events: list[tuple[int, int | str]], restarts: set[int]
) -> None:
    """A number is a watermark, so much higher than the last one of its channel. A snapshot and its restoring change
    nothing."""
    watermarks = InputWatermarks(CHANNELS)
    last, idle, told = dict.fromkeys(range(3), 0), set[int](), IDLE_MS
    known: set[int] = set()
    for number, (at, event) in enumerate(events):
        if number in restarts:
            watermarks = InputWatermarks(CHANNELS, watermarks.saved())
        if isinstance(event, str):
            risen = watermarks.advance(CHANNELS[at], IDLE_MS)
            idle.add(at)
            known.add(at)
        else:
            last[at] = last[at] + event if at in idle else last[at] + max(event, 1)
            risen = watermarks.advance(CHANNELS[at], last[at])
            idle.discard(at)
            known.add(at)
        counted = [last[i] for i in range(3) if i not in idle]
        least = min(counted, default=told) if known == {0, 1, 2} else told
        assert risen == (least if least > told else None)
        told = max(told, least)


def test_when_all_channels_are_idle_the_watermark_stays() -> None:
    watermarks = InputWatermarks(CHANNELS[:2])
    assert watermarks.advance(CHANNELS[0], 5) is None
    assert watermarks.advance(CHANNELS[1], IDLE_MS) == 5
    assert watermarks.advance(CHANNELS[0], IDLE_MS) is None
    watermarks = InputWatermarks(CHANNELS[:2], watermarks.saved())
    assert watermarks.advance(CHANNELS[1], 3) is None, "it does not go back"
    assert watermarks.advance(CHANNELS[1], 4) is None
    watermarks = InputWatermarks(CHANNELS[:2], watermarks.saved())
    assert watermarks.advance(CHANNELS[1], 5) is None
    assert watermarks.advance(CHANNELS[1], 6) == 6
    assert watermarks.advance(CHANNELS[0], 1) is None
    assert watermarks.end(CHANNELS[0]) is None
    assert watermarks.advance(CHANNELS[1], 7) == 7
    assert watermarks.advance(CHANNELS[0], IDLE_MS) is None, "it has ended"
