"""Drawing joins: what is drawn, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.functions import col
from flinkplus.operators.joins.timed import KeyedJoin
from tests.unit.api.drawing import environment, numbers, shape

AUCTIONS, BIDS = "id long, opened timestamp, expires timestamp, note string", "auction long, at timestamp, note string"


def streams(marked: bool = True) -> tuple[Any, Any]:
    env = environment()
    left, right = numbers(env, "auctions", AUCTIONS), numbers(env, "bids", BIDS)
    if marked:
        left, right = left.with_watermark("opened", 1), right.with_watermark("at", 1)
    return left.key_by("id"), right.key_by("auction")


def join_of(stream: Any) -> KeyedJoin:
    body = stream._env.graph.nodes[stream._origins[0]].body
    assert isinstance(body, KeyedJoin)
    return body


def test_a_regular_join_needs_no_event_time() -> None:
    left, right = streams(marked=False)
    joined = left.join(right, how="full", name="pairs")
    joined.discard(name="out")
    assert joined.schema.names == ["id", "opened", "expires", "left_note", "auction", "at", "right_note"]
    assert joined.schema.field("id").nullable and joined.schema.field("at").nullable
    assert shape(joined._env.graph)[-1] == (
        "pairs+out",
        [("auctions", "hash", ("id",)), ("bids", "hash", ("auction",))],
    )


def test_event_time_ends_at_a_join_of_all_rows() -> None:
    left, right = streams()
    joined = left.join(right)
    with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
        joined.key_by("id").tumbling_window("at", "1 minute").count()
    again = joined.with_watermark("at", "1 hour").key_by("id").tumbling_window("at", "1 minute").count()
    assert again.schema.names == ["id", "window_start", "window_end", "count"]


def test_a_time_to_live_is_a_distance_of_times() -> None:
    left, right = streams()
    join = join_of(left.join(right, state_ttl="1 hour", left_time="opened", right_time="at"))
    assert (join.bounds.lower_ms, join.bounds.upper_ms) == (-3_600_000, 3_600_000)


def test_bounds_from_columns() -> None:
    left, right = streams()
    times = {"left_time": "opened", "right_time": "at"}
    bounds = join_of(left.interval_join(right, **times, lower=0, upper="expires")).bounds
    assert (bounds.lower_ms, bounds.upper_ms, bounds.owner, str(bounds.upper)) == (0, None, 0, "expires")
    assert bounds.settings == {"lower_ms": 0, "upper_ms": None, "upper": "left: expires"}
    times = {"left_time": "at", "right_time": "opened"}
    bounds = join_of(right.interval_join(left, **times, lower=0, upper=col("right.expires"))).bounds
    assert (bounds.lower_ms, bounds.upper_ms, bounds.owner, str(bounds.upper)) == (None, 0, 1, "expires")
    bounds = join_of(
        right.interval_join(left, **times, lower="opened", upper="opened + INTERVAL 5 MINUTES", within="10 minutes")
    ).bounds
    assert (bounds.lower_ms, bounds.upper_ms, bounds.owner) == (-600_000, 600_000, 1)


def test_key_columns_of_one_name_are_one_column() -> None:
    env = environment()
    left, right = (numbers(env, name, "k string not null, v long not null").key_by("k") for name in ("one", "two"))
    joined = left.join(right, how="left", left_prefix="", right_prefix="other_")
    assert joined.schema == pa.schema(
        [
            pa.field("k", pa.string(), False),
            pa.field("v", pa.int64(), False),
            pa.field("other_v", pa.int64(), True),
        ]
    )


def test_a_join_of_windows() -> None:
    left, right = streams()
    pairs = left.tumbling_window("opened", "1 minute").join(right.tumbling_window("at", "1 minute"), how="left")
    assert pairs.schema.names[-2:] == ["window_start", "window_end"]
    counts = left.tumbling_window("opened", "1 minute").count()
    again = counts.key_by("id").tumbling_window("window_start", "1 minute")
    both = again.join(right.tumbling_window("at", "1 minute"))
    assert both.schema.names == ["id", "window_start", "window_end", "count", "auction", "at", "note"]


TIMES = {"left_time": "opened", "right_time": "at"}
REFUSED: dict[str, tuple[Any, str]] = {
    "how": (lambda a, b: a.join(b, how="outer"), "how must be one of inner, left, right, full, not 'outer'"),
    "a stream": (lambda a, b: a.join(b._stream), "joins keyed streams, not a Stream: use key_by"),
    "another environment": (lambda a, b: a.join(streams()[1]), "drawn in one StreamEnvironment"),
    "times alone": (lambda a, b: a.join(b, left_time="opened"), "left_time and right_time belong to state_ttl"),
    "no times": (lambda a, b: a.join(b, state_ttl=5), "state_ttl is event time; give left_time and right_time"),
    "a negative time to live": (lambda a, b: a.join(b, state_ttl=-1, **TIMES), "state_ttl must be at least 0 ms"),
    "types of keys": (
        lambda a, b: a.join(b._stream.key_by("note")),
        r"the keys \('id',\) and \('note',\) are of different types: int64 and string",
    ),
    "no column": (
        lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="left.expire"),
        r"upper: no column 'expire' among .* did you mean 'expires'",
    ),
    "a column of none": (
        lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="x"),
        "x may be of either side; take columns of one",
    ),
    "both sides": (
        lambda a, b: a.interval_join(b, **TIMES, lower="opened", upper="right.at"),
        "lower and upper are of columns of different sides",
    ),
    "mixed": (
        lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="greatest(left.expires, right.at)"),
        "has columns of both sides; take columns of one side",
    ),
    "ambiguous": (lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="note"), "note may be of either side"),
    "no time": (
        lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="left.note"),
        "upper: note is string; a bound is a duration, or a time",
    ),
    "no expression": (
        lambda a, b: a.interval_join(b, **TIMES, lower=0, upper="expires +"),
        "is neither a duration such as '10 seconds' nor an expression",
    ),
    "kept for ever": (
        lambda a, b: a.interval_join(b, **TIMES, lower="opened", upper="expires"),
        "says of no row of the other side when it can be dropped; give within",
    ),
    "a time that is None": (
        lambda a, b: a.interval_join(b, left_time=None, right_time="at", lower=0, upper=1),
        "give left_time and right_time, the columns",
    ),
    "a time that is no text": (
        lambda a, b: a.interval_join(b, left_time=5, right_time="at", lower=0, upper=1),
        "no column 5 among",
    ),
    "a list of how": (lambda a, b: a.join(b, how=["left"]), r"how must be one of .* not \['left'\]"),
    "a prefix": (lambda a, b: a.join(b, left_prefix=5), "a prefix of columns is text, not 5"),
    "narrow": (
        lambda a, b: a.interval_join(b, **TIMES, lower=5, upper=9, within=3),
        "lower and upper allow no pair that is within 3000 ms",
    ),
    "order": (lambda a, b: a.interval_join(b, **TIMES, lower=1, upper=0), r"lower \(1000 ms\) is above upper \(0 ms\)"),
    "windows and a stream": (
        lambda a, b: a.tumbling_window("opened", 5).join(b),
        "joins windows with windows, not with a KeyedStream",
    ),
    "other windows": (
        lambda a, b: a.tumbling_window("opened", 5).join(b.tumbling_window("at", 6)),
        "the windows of both sides must be the same, not 5000 ms and 6000 ms",
    ),
    "other offsets": (
        lambda a, b: a.tumbling_window("opened", 5, offset=1).join(b.tumbling_window("at", 5)),
        "must be the same, not 5000 ms with the offset 1000 ms and 5000 ms",
    ),
    "sessions": (
        lambda a, b: a.session_window("opened", 5).join(b.session_window("at", 5)),
        "sessions are not joined",
    ),
    "lateness": (
        lambda a, b: a.tumbling_window("opened", 5, allowed_lateness=1).join(b.tumbling_window("at", 5)),
        "takes no allowed_lateness, emit_every and on_late",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_joined(what: str) -> None:
    draw, message = REFUSED[what]
    with pytest.raises(ConfigurationError, match=message):
        draw(*streams())


def test_without_event_time() -> None:
    left, right = streams(marked=False)
    for draw in (
        lambda: left.join(right, state_ttl=5, **cast("dict[str, Any]", TIMES)),
        lambda: left.interval_join(right, **TIMES, lower=0, upper=1),
        lambda: left.tumbling_window("opened", 5).join(right.tumbling_window("at", 5)),
    ):
        with pytest.raises(ConfigurationError, match="needs event time: call with_watermark"):
            draw()


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_in_a_loop(how: Any) -> None:
    """Rows that nothing matches would come when the loop has ended."""
    env = environment()
    other = numbers(env, "other", "k string, w long").key_by("k")

    def body(rows: Any) -> tuple[Any, Any]:
        pairs = rows.key_by("k").join(other, how=how, name="pairs")
        return pairs.where("v > 1").select("k", "w AS v"), pairs

    if how == "inner":
        numbers(env, "rows", "k string, v long").iterate(body).discard()
        env.graph.fuse()
    else:
        with pytest.raises(ConfigurationError, match="'pairs' gives rows at the end of all input, and is in loop"):
            numbers(env, "rows", "k string, v long").iterate(body)
