"""The queries with joins and rankings, each drawn by a function of the events, as ``docs/nexmark.md`` shows it.

A query whose rows replace earlier ones names the columns of which the last row counts (``catalogue``).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream


def q3(events: Events) -> Stream:
    """Local items: who sells auctions of category 10 in three states."""
    people = events.persons().where("state IN ('OR', 'ID', 'CA')").select("id", "name", "city", "state")
    items = events.auctions().where("category = 10").select("id AS auction", "seller")
    return people.key_by("id").join(items.key_by("seller")).select("name", "city", "state", "auction")


def bids_in_time(auctions: Stream, bids: Stream) -> Stream:
    """Of q4, q6 and q9: each auction with each bid that came while it was open."""
    return auctions.key_by("id").interval_join(
        bids.key_by("auction"), left_time="dateTime", right_time="dateTime", lower=0, upper="expires"
    )


def q4(events: Events) -> Stream:
    """Average price for a category: of the highest bids of its auctions so far."""
    auctions = events.auctions().select("id", "category", "dateTime", "expires")
    pairs = bids_in_time(auctions, events.bids().select("auction", "price", "dateTime"))
    ended = pairs.key_by("id", "category").tumbling_window("expires", "1 second")
    return ended.aggregate(final=("max", "price")).key_by("category").aggregate(avg=("avg", "final"))


def q6(events: Events) -> Stream:
    """Average price of a seller: of the last eleven highest bids, in the order of their times."""
    auctions = events.auctions().select("id", "seller", "dateTime", "expires")
    pairs = bids_in_time(auctions, events.bids().select("auction", "price", "dateTime"))
    ended = pairs.key_by("id").tumbling_window("expires", "1 second")
    highest = ended.top(1, by=("price", "right_dateTime ASC"))

    def on_sale(seller: int, sale: Any, ctx: Any) -> None:
        waiting = ctx.state("waiting").get() or {}
        ctx.state("waiting").put({**waiting, sale.right_dateTime: sale.price})
        ctx.event_timer(sale.right_dateTime + timedelta(hours=1))  # no sale before this one can come after that

    def on_order(seller: int, at_ms: int, ctx: Any) -> Iterator[Any]:
        waiting = ctx.state("waiting").get()
        first = min(waiting)
        last = [*(ctx.state("last").get() or []), waiting.pop(first)][-11:]
        ctx.state("waiting").put(waiting)
        ctx.state("last").put(last)
        yield seller, sum(last) / len(last)

    return highest.key_by("seller").process(on_sale, on_timer=on_order, schema="seller long, avg double")


def q9(events: Events) -> Stream:
    """Winning bids: of each auction the highest bid so far, the earliest of equal ones."""
    pairs = bids_in_time(events.auctions(), events.bids())
    return pairs.deduplicate("id", keep="last", order_by=("price", "right_dateTime DESC"))


def q18(events: Events) -> Stream:
    """Last bid: of each bidder for each auction."""
    return events.bids().deduplicate("bidder", "auction", keep="last", order_by="dateTime")


def q19(events: Events) -> Stream:
    """Auction top ten: of each auction the ten highest bids so far, the earliest of equal ones first."""
    return events.bids().key_by("auction").top(10, by=("price", "dateTime ASC"), output="rank_number")


def q20(events: Events) -> Stream:
    """Expand bids: every bid for an auction of category 10, with the auction."""
    items = events.auctions().where("category = 10")
    return events.bids().key_by("auction").join(items.key_by("id"))
