"""The queries with joins and rankings, each drawn by a function of the events, as ``docs/nexmark.md`` shows it.

A query whose rows replace earlier ones names the columns of which the last row counts (``catalogue``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream

EVER = "1000 days"
"""Farther apart than any two events: an interval join with it is a join of everything that has come."""
LONGEST = "1 hour"
"""Longer than any auction is open (``events``), at every rate that the experiment takes."""


def q3(events: Events) -> Stream:
    """Local items: who sells auctions of category 10 in three states."""

    def local(persons: pa.RecordBatch) -> pa.RecordBatch:
        wanted = pc.is_in(persons["state"], pa.array(["OR", "ID", "CA"]))
        return persons.select(["id", "name", "city", "state", "dateTime"]).filter(wanted)

    def of_category(auctions: pa.RecordBatch) -> pa.RecordBatch:
        columns = [auctions["id"], auctions["seller"], auctions["dateTime"]]
        opened = pa.record_batch(columns, names=["auction", "seller", "opened"])
        return opened.filter(pc.equal(auctions["category"], 10))

    people = events.persons().map_batches(
        local, schema="id long, name string, city string, state string, dateTime timestamp_ntz"
    )
    items = events.auctions().map_batches(of_category, schema="auction long, seller long, opened timestamp_ntz")
    pairs = people.key_by("id").interval_join(
        items.key_by("seller"), left_time="dateTime", right_time="opened", lower=f"-{EVER}", upper=EVER
    )
    return pairs.map_batches(
        lambda rows: rows.select(["name", "city", "state", "auction"]),
        schema="name string, city string, state string, auction long",
    )


def bids_in_time(events: Events) -> Stream:
    """Of q4, q6 and q9: each auction with each bid that came while it was open."""
    pairs = (
        events.auctions()
        .key_by("id")
        .interval_join(
            events.bids().key_by("auction"), left_time="dateTime", right_time="dateTime", lower=0, upper=LONGEST
        )
    )
    return pairs.map_batches(
        lambda rows: rows.filter(pc.less_equal(rows["right_dateTime"], rows["expires"])), schema=pairs.schema
    )


def highest_bids(events: Events) -> Stream:
    """Of q4 and q6: the highest bid of each auction, once, when the auction is over."""

    def on_bid(auction: int, bid: Any, ctx: Any) -> None:
        best = ctx.state("best")
        known = best.get()
        if known is None or (bid.price, known.right_dateTime) > (known.price, bid.right_dateTime):
            best.put(bid)
        ctx.event_timer(bid.expires + timedelta(milliseconds=1))

    def on_end(auction: int, at_ms: int, ctx: Any) -> Iterator[Any]:
        best = ctx.state("best").get()
        yield best.category, best.seller, best.price, best.right_dateTime

    return (
        bids_in_time(events)
        .key_by("id")
        .process(on_bid, on_timer=on_end, schema="category long, seller long, final long, dateTime timestamp_ntz")
    )


def q4(events: Events) -> Stream:
    """Average price for a category: of the highest bids of its auctions so far."""
    sums = highest_bids(events).map_batches(
        lambda rows: pa.record_batch({"category": rows["category"], "total": rows["final"], "n": [1] * len(rows)}),
        schema="category long, total long, n long",
    )
    running = sums.key_by("category").reduce(
        lambda one, other: (one.category, one.total + other.total, one.n + other.n)
    )
    return running.map(lambda row: (row.category, row.total / row.n), schema="category long, avg double")


def q6(events: Events) -> Stream:
    """Average price of a seller: of the last eleven highest bids, in the order of their times."""

    def on_sale(seller: int, sale: Any, ctx: Any) -> None:
        waiting = ctx.state("waiting").get() or {}
        ctx.state("waiting").put({**waiting, sale.dateTime: sale.final})
        ctx.event_timer(sale.dateTime + timedelta(hours=1))  # no sale before this one can come after that

    def on_order(seller: int, at_ms: int, ctx: Any) -> Iterator[Any]:
        waiting = ctx.state("waiting").get()
        first = min(waiting)
        last = [*(ctx.state("last").get() or []), waiting.pop(first)][-11:]
        ctx.state("waiting").put(waiting)
        ctx.state("last").put(last)
        yield seller, sum(last) / len(last)

    return highest_bids(events).key_by("seller").process(on_sale, on_timer=on_order, schema="seller long, avg double")


def q9(events: Events) -> Stream:
    """Winning bids: of each auction the highest bid so far, the earliest of equal ones."""

    def better(best: Any, bid: Any) -> Any:
        return bid if (bid.price, best.right_dateTime) > (best.price, bid.right_dateTime) else best

    return bids_in_time(events).key_by("id").reduce(better)


def q18(events: Events) -> Stream:
    """Last bid: of each bidder for each auction."""
    return (
        events.bids()
        .key_by("bidder", "auction")
        .reduce(lambda last, bid: bid if bid.dateTime >= last.dateTime else last)
    )


def q19(events: Events) -> Stream:
    """Auction top ten: of each auction the ten highest bids so far, the earliest of equal ones first."""

    def on_bid(auction: int, bid: Any, ctx: Any) -> Iterator[Any]:
        before = ctx.state("top").get() or []
        top = sorted([*before, tuple(bid)], key=lambda row: (-row[2], row[5]))[:10]
        if top != before:
            ctx.state("top").put(top)
            for rank, row in enumerate(top):
                if rank >= len(before) or before[rank] != row:
                    yield (*row, rank + 1)

    return (
        events.bids()
        .key_by("auction")
        .process(
            on_bid,
            schema="auction long, bidder long, price long, channel string, url string, dateTime timestamp_ntz, "
            "extra string, rank_number long",
        )
    )


def q20(events: Events) -> Stream:
    """Expand bids: every bid for an auction of category 10, with the auction."""
    items = events.auctions()
    chosen = items.map_batches(lambda rows: rows.filter(pc.equal(rows["category"], 10)), schema=items.schema)
    return (
        events.bids()
        .key_by("auction")
        .interval_join(chosen.key_by("id"), left_time="dateTime", right_time="dateTime", lower=f"-{EVER}", upper=EVER)
    )
