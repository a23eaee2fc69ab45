"""The queries with windows, each drawn by a function of the events, as ``docs/nexmark.md`` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream

EPOCH = datetime(1970, 1, 1)


def q5(events: Events) -> Stream:
    """Hot items: of each ten seconds, every two, the auctions with the most bids."""

    def in_five(panes: pa.RecordBatch) -> pa.RecordBatch:
        starts = [pc.subtract(panes["window_start"], timedelta(seconds=back)) for back in (0, 2, 4, 6, 8)]
        kept = {name: pa.concat_arrays([panes[name]] * 5) for name in ("auction", "n")}
        return pa.record_batch({**kept, "starttime": pa.concat_arrays(starts)})

    panes = events.bids().key_by("auction").tumbling_window("dateTime", "2 seconds").count(output="n")
    hops = panes.map_batches(in_five, schema="auction long, n long, starttime timestamp_ntz")
    timed = hops.with_watermark("starttime", "10 seconds")  # a pane is part of windows that begin 8 s before it
    counts = timed.key_by("auction").tumbling_window("starttime", "2 seconds").sum("n", output="num")
    most = counts.gather().tumbling_window("window_start", "2 seconds").aggregate(maxn=("max", "num"))
    pairs = counts.key_by("num").interval_join(
        most.key_by("maxn"), left_time="window_start", right_time="window_start", lower=0, upper=0
    )
    return pairs.map_batches(lambda rows: rows.select(["auction", "num"]), schema="auction long, num long")


def q7(events: Events) -> Stream:
    """Highest bid: of each ten seconds the bids with the highest price."""
    bids = events.bids()
    of_auctions = bids.key_by("auction").tumbling_window("dateTime", "10 seconds").aggregate(price=("max", "price"))
    highest = of_auctions.gather().tumbling_window("window_start", "10 seconds").aggregate(maxprice=("max", "price"))
    pairs = bids.key_by("price").interval_join(
        highest.key_by("maxprice"), left_time="dateTime", right_time="window_end", lower=0, upper="10 seconds"
    )
    return pairs.map_batches(
        lambda rows: rows.select(["auction", "price", "bidder", "dateTime", "extra"]),
        schema="auction long, price long, bidder long, dateTime timestamp_ntz, extra string",
    )


def q8(events: Events) -> Stream:
    """Monitor new users: persons who have begun to sell within the ten seconds in which they came."""
    people = events.persons().key_by("id", "name").tumbling_window("dateTime", "10 seconds").count(output="persons")
    sellers = events.auctions().key_by("seller").tumbling_window("dateTime", "10 seconds").count(output="auctions")
    pairs = people.key_by("id").interval_join(
        sellers.key_by("seller"), left_time="window_start", right_time="window_start", lower=0, upper=0
    )
    return pairs.map_batches(
        lambda rows: rows.select(["id", "name", "left_window_start"]).rename_columns(["id", "name", "starttime"]),
        schema="id long, name string, starttime timestamp_ntz",
    )


def q11(events: Events) -> Stream:
    """User sessions: bids of a bidder with at most ten seconds between."""
    gap = timedelta(seconds=10)

    def on_bid(bidder: int, bid: Any, ctx: Any) -> None:
        first, last, count = bid.dateTime, bid.dateTime, 1
        apart = []
        for session in ctx.state("sessions").get() or []:
            if session[0] - last > gap or first - session[1] > gap:
                apart.append(session)
            else:
                first, last, count = min(first, session[0]), max(last, session[1]), count + session[2]
        ctx.state("sessions").put([*apart, (first, last, count)])
        ctx.event_timer(bid.dateTime + gap + timedelta(milliseconds=1))

    def on_end(bidder: int, at_ms: int, ctx: Any) -> Iterator[Any]:
        sessions = ctx.state("sessions").get()
        over = [session for session in sessions if (session[1] + gap - EPOCH) < timedelta(milliseconds=at_ms)]
        ctx.state("sessions").put([session for session in sessions if session not in over])
        for first, last, count in over:
            yield bidder, count, first, last + gap

    return (
        events.bids()
        .key_by("bidder")
        .process(
            on_bid,
            on_timer=on_end,
            schema="bidder long, bid_count long, starttime timestamp_ntz, endtime timestamp_ntz",
        )
    )


RANKED = ", ".join(f"{kind}{rank} long" for kind in ("bids", "bidder", "auction") for rank in range(4))
"""Columns of q15 and q16: ones and zeros, which are summed; rank 0 is of all prices."""


def bid_statistics(bids: Stream, keys: dict[str, str]) -> Stream:
    """Of q15 and q16: of each day, and value of ``keys`` (name -> type), numbers of bids, and of different bidders and
    auctions, of all prices and of three ranks of prices; and the last minute of the day."""
    by = "".join(f"{name} {kind}, " for name, kind in keys.items())

    def parts(rows: pa.RecordBatch) -> dict[str, Any]:
        return {name: rows[name] for name in (*keys, "dateTime", "minute")}

    def with_minute(rows: pa.RecordBatch) -> pa.RecordBatch:
        times = rows["dateTime"]
        minute = pc.add(pc.multiply(pc.hour(times), 60), pc.minute(times))
        return pa.record_batch(
            {**{name: rows[name] for name in (*keys, "dateTime", "price", "bidder", "auction")}, "minute": minute}
        )

    def ranks(rows: pa.RecordBatch) -> Any:
        return 1 + np.searchsorted([10_000, 1_000_000], rows["price"].to_numpy(), side="right")

    def ones(rows: dict[str, Any], chosen: Any) -> pa.RecordBatch:
        names = [field.split()[0] for field in RANKED.split(", ")]
        columns = {name: pa.array((chosen == at).astype(np.int64)) for at, name in enumerate(names)}
        return pa.record_batch({**rows, **columns})

    def of_bids(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield ones(parts(rows), np.zeros(len(rows), np.int64))
        yield ones(parts(rows), ranks(rows))

    def values(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        day = pc.floor_temporal(rows["dateTime"], unit="day")
        for at, column in ((4, "bidder"), (8, "auction")):
            for which in (np.full(len(rows), at), at + ranks(rows)):
                yield pa.record_batch({**parts(rows), "day": day, "which": which, "value": rows[column]})

    kept = f"{by}dateTime timestamp_ntz, minute long"
    minutes = bids.map_batches(with_minute, schema=f"{kept}, price long, bidder long, auction long")
    bids_of = minutes.map_batches(of_bids, schema=f"{kept}, {RANKED}")
    some = minutes.map_batches(values, schema=f"{kept}, day timestamp_ntz, which long, value long")
    first = some.deduplicate(*keys, "day", "which", "value")
    firsts = first.map_batches(lambda rows: ones(parts(rows), rows["which"].to_numpy()), schema=bids_of.schema)
    both = bids_of.union(firsts)
    grouped = both.key_by(*keys) if keys else both.gather()
    sums: dict[str, Any] = {
        name: ("sum", name) for name in bids_of.schema.names if name not in (*keys, "dateTime", "minute")
    }
    return grouped.tumbling_window("dateTime", "1 day").aggregate(last=("max", "minute"), **sums)


def q15(events: Events) -> Stream:
    """Bidding statistics: of each day numbers of bids, bidders and auctions, by ranks of prices."""
    days = bid_statistics(events.bids(), {})
    columns = days.schema.names[3:]

    def dated(rows: pa.RecordBatch) -> pa.RecordBatch:
        day = pc.strftime(rows["window_start"], "%Y-%m-%d")
        return pa.record_batch({"day": day, **{name: rows[name] for name in columns}})

    return days.map_batches(dated, schema=f"day string, {RANKED}")


def q16(events: Events) -> Stream:
    """Channel statistics: the same of each channel and day, with the last minute."""
    days = bid_statistics(events.bids(), {"channel": "string"})
    columns = days.schema.names[4:]

    def dated(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = {
            "day": pc.strftime(rows["window_start"], "%Y-%m-%d"),
            "minute": [f"{at // 60:02}:{at % 60:02}" for at in rows["last"].to_pylist()],
        }
        return pa.record_batch({"channel": rows["channel"], **texts, **{name: rows[name] for name in columns}})

    return days.map_batches(dated, schema=f"channel string, day string, minute string, {RANKED}")


def q17(events: Events) -> Stream:
    """Auction statistics: of each auction and day numbers of bids, and least, highest, mean and sum of prices."""

    def ranked(bids: pa.RecordBatch) -> pa.RecordBatch:
        price = bids["price"]
        low, high = pc.less(price, 10_000), pc.greater_equal(price, 1_000_000)
        ranks = {"rank1": low, "rank2": pc.invert(pc.or_(low, high)), "rank3": high}
        numbers = {name: rank.cast(pa.int64()) for name, rank in ranks.items()}
        return pa.record_batch({"auction": bids["auction"], "price": price, "dateTime": bids["dateTime"], **numbers})

    rows = events.bids().map_batches(
        ranked, schema="auction long, price long, dateTime timestamp_ntz, rank1 long, rank2 long, rank3 long"
    )
    ranks: dict[str, Any] = {f"rank{rank}_bids": ("sum", f"rank{rank}") for rank in (1, 2, 3)}
    prices: dict[str, Any] = {f"{name}_price": (name, "price") for name in ("min", "max", "mean", "sum")}
    days = rows.key_by("auction").tumbling_window("dateTime", "1 day").aggregate(total_bids="count", **ranks, **prices)
    columns = ["auction", "window_start", "total_bids", *ranks, *prices]
    return days.map_batches(
        lambda rows: rows.select(columns), schema=pa.schema([days.schema.field(name) for name in columns])
    )
