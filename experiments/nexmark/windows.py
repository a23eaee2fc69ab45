"""The queries with windows, and those that count by day, each drawn by a function of the events, as ``docs/nexmark.md``
shows it.

A query of days keeps its numbers up to date: each bid gives a row, which takes the place of the one before.
"""

from __future__ import annotations

from typing import Any

from experiments.nexmark.streams import Events
from flinkplus.api.streams.aggregates import agg
from flinkplus.api.streams.stream import Stream


def q5(events: Events) -> Stream:
    """Hot items: of each ten seconds, every two, the auctions with the most bids."""
    bids = events.bids().select("auction", "dateTime")
    counts = bids.key_by("auction").hopping_window("dateTime", "10 seconds", "2 seconds").count(output="num")
    most = counts.gather().tumbling_window("window_start", "2 seconds").top(1, by="num", ties="rank")
    return most.select("auction", "num")


def q7(events: Events) -> Stream:
    """Highest bid: of each ten seconds the bids with the highest price."""
    bids = events.bids().select("auction", "price", "bidder", "dateTime", "extra")
    of_auctions = bids.key_by("auction").tumbling_window("dateTime", "10 seconds").aggregate(price=("max", "price"))
    highest = of_auctions.gather().tumbling_window("window_start", "10 seconds").aggregate(maxprice=("max", "price"))
    pairs = bids.key_by("price").interval_join(
        highest.key_by("maxprice"), left_time="dateTime", right_time="window_end", lower=0, upper="10 seconds"
    )
    return pairs.select("auction", "price", "bidder", "dateTime", "extra")


def q8(events: Events) -> Stream:
    """Monitor new users: persons who have begun to sell within the ten seconds in which they came."""
    sellers = events.auctions().select("seller", "dateTime").key_by("seller")
    selling = sellers.tumbling_window("dateTime", "10 seconds").count()
    people = events.persons().select("id", "name", "dateTime").key_by("id")
    pairs = people.tumbling_window("dateTime", "10 seconds").join(
        selling.key_by("seller").tumbling_window("window_start", "10 seconds")
    )
    return pairs.select("id", "name", "window_start AS starttime")


def q11(events: Events) -> Stream:
    """User sessions: bids of a bidder with at most ten seconds between."""
    bids = events.bids().select("bidder", "dateTime")
    sessions = bids.key_by("bidder").session_window("dateTime", "10 seconds").count(output="bid_count")
    return sessions.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def q12(events: Events) -> Stream:
    """Processing-time windows: bids of a bidder in each ten seconds of the clock."""
    bids = events.bids().select("bidder").with_processing_time("p_time")
    windows = bids.key_by("bidder").tumbling_window("p_time", "10 seconds").count(output="bid_count")
    return windows.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def ranked(bids: Stream, *columns: str) -> Stream:
    """Of q15, q16 and q17: these columns of bids, their day, and which of three ranks of prices they are of."""
    return bids.select(
        *columns,
        "date_format(dateTime, 'yyyy-MM-dd') AS day",
        "price < 10000 AS rank1",
        "price >= 10000 AND price < 1000000 AS rank2",
        "price >= 1000000 AS rank3",
    )


def by_rank(what: str, kind: str, column: str | None = None) -> dict[str, Any]:
    """Of q15, q16 and q17: an aggregate of all bids, and of those of each rank."""
    ranks = {f"rank{rank}_{what}": agg(kind, column, where=f"rank{rank}") for rank in (1, 2, 3)}
    return {f"total_{what}": agg(kind, column), **ranks}


def q15(events: Events) -> Stream:
    """Bidding statistics: of each day numbers of bids, bidders and auctions, by ranks of prices."""
    days = ranked(events.bids(), "bidder", "auction").key_by("day")
    bidders, auctions = by_rank("bidders", "count_distinct", "bidder"), by_rank("auctions", "count_distinct", "auction")
    return days.aggregate(**by_rank("bids", "count"), **bidders, **auctions)


def q16(events: Events) -> Stream:
    """Channel statistics: the same of each channel and day, with the last minute."""
    days = ranked(events.bids(), "channel", "bidder", "auction", "dateTime").key_by("channel", "day")
    bidders, auctions = by_rank("bidders", "count_distinct", "bidder"), by_rank("auctions", "count_distinct", "auction")
    found = days.aggregate(minute=("max", "dateTime"), **by_rank("bids", "count"), **bidders, **auctions)
    return found.with_column("minute", "date_format(minute, 'HH:mm')")


def q17(events: Events) -> Stream:
    """Auction statistics: of each auction and day numbers of bids, and least, highest, mean and sum of prices."""
    prices: dict[str, Any] = {f"{kind}_price": (kind, "price") for kind in ("min", "max", "avg", "sum")}
    days = ranked(events.bids(), "auction", "price").key_by("auction", "day")
    return days.aggregate(**by_rank("bids", "count"), **prices)
