"""The queries that look at one event at a time: each is drawn by a function of the events, as ``docs/nexmark.md`` shows
it."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream


def q0(events: Events) -> Stream:
    """Pass through: every bid."""
    columns = ["auction", "bidder", "price", "dateTime", "extra"]
    return events.bids().map_batches(
        lambda bids: bids.select(columns),
        schema="auction long, bidder long, price long, dateTime timestamp_ntz, extra string",
    )


def q1(events: Events) -> Stream:
    """Currency: every bid, with its price in euros."""

    def in_euros(bids: pa.RecordBatch) -> pa.RecordBatch:
        euros = pc.multiply(bids["price"].cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.908")))
        columns = [bids["auction"], bids["bidder"], euros, bids["dateTime"], bids["extra"]]
        return pa.record_batch(columns, names=["auction", "bidder", "price", "dateTime", "extra"])

    return events.bids().map_batches(
        in_euros,
        schema="auction long, bidder long, price decimal(24, 3), dateTime timestamp_ntz, extra string",
    )


def q2(events: Events) -> Stream:
    """Selection: bids for certain auctions."""

    def chosen(bids: pa.RecordBatch) -> pa.RecordBatch:
        return bids.select(["auction", "price"]).filter(pa.array(bids["auction"].to_numpy() % 123 == 0))

    return events.bids().map_batches(chosen, schema="auction long, price long")


def q10(events: Events) -> Stream:
    """Log to files: every bid, in folders by day and minute."""

    def dated(bids: pa.RecordBatch) -> pa.RecordBatch:
        times = bids["dateTime"]
        more = {"dt": pc.strftime(times, "%Y-%m-%d"), "hm": pc.strftime(times, "%H:%M")}
        kept = {name: bids[name] for name in ("auction", "bidder", "price", "dateTime", "extra")}
        return pa.record_batch({**kept, **more})

    return events.bids().map_batches(
        dated,
        schema="auction long, bidder long, price long, dateTime timestamp_ntz, extra string, dt string, hm string",
    )


def q13(events: Events) -> Stream:
    """Bounded side input: every bid with the value of its key in a table, which is sent to all slots."""
    keys = np.arange(10_000)
    values = pa.array([f"value-{key * 7919 % 10_000}" for key in keys.tolist()])

    def joined(bids: pa.RecordBatch) -> pa.RecordBatch:
        value = values.take(pa.array(bids["auction"].to_numpy() % len(values)))
        kept = {name: bids[name] for name in ("auction", "bidder", "price", "dateTime")}
        return pa.record_batch({**kept, "value": value})

    return events.bids().map_batches(
        joined, schema="auction long, bidder long, price long, dateTime timestamp_ntz, value string"
    )


def q14(events: Events) -> Stream:
    """Calculation: bids in a range of euros, with the time of day and the number of letters c."""

    def calculated(bids: pa.RecordBatch) -> pa.RecordBatch:
        euros = pc.multiply(bids["price"].cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.908")))
        wanted = pc.and_(pc.greater(euros, Decimal(1_000_000)), pc.less(euros, Decimal(50_000_000)))
        hours = pc.hour(bids["dateTime"])
        day = pc.and_(pc.greater_equal(hours, 8), pc.less_equal(hours, 18))
        night = pc.or_(pc.less_equal(hours, 6), pc.greater_equal(hours, 20))
        kind = pc.if_else(day, "dayTime", pc.if_else(night, "nightTime", "otherTime"))
        letters = pc.count_substring(bids["extra"], "c").cast(pa.int64())
        columns = [bids["auction"], bids["bidder"], euros, kind, bids["dateTime"], bids["extra"], letters]
        names = ["auction", "bidder", "price", "bidTimeType", "dateTime", "extra", "c_counts"]
        return pa.record_batch(columns, names=names).filter(wanted)

    return events.bids().map_batches(
        calculated,
        schema="auction long, bidder long, price decimal(24, 3), bidTimeType string, dateTime timestamp_ntz, "
        "extra string, c_counts long",
    )


def q21(events: Events) -> Stream:
    """Add a channel ID: of a hot channel its number, otherwise what the URL says; bids without one are left out."""
    hot = pa.array(["apple", "google", "facebook", "baidu"])

    def identified(bids: pa.RecordBatch) -> pa.RecordBatch:
        known = pc.index_in(pc.ascii_lower(bids["channel"]), hot).cast(pa.string())
        in_url = pc.extract_regex(bids["url"], "(?:&|^)channel_id=(?P<id>[^&]*)")
        channel_id = pc.coalesce(known, pc.struct_field(in_url, "id"))
        kept = {name: bids[name] for name in ("auction", "bidder", "price", "channel")}
        return pa.record_batch({**kept, "channel_id": channel_id}).filter(pc.is_valid(channel_id))

    return events.bids().map_batches(
        identified, schema="auction long, bidder long, price long, channel string, channel_id string"
    )


def q22(events: Events) -> Stream:
    """Directories of the URL: every bid, with three parts of its URL."""

    def split(bids: pa.RecordBatch) -> pa.RecordBatch:
        parts = pc.split_pattern(bids["url"], "/")
        kept = {name: bids[name] for name in ("auction", "bidder", "price", "channel")}
        return pa.record_batch({**kept, **{f"dir{at}": pc.list_element(parts, at + 2) for at in (1, 2, 3)}})

    return events.bids().map_batches(
        split,
        schema="auction long, bidder long, price long, channel string, dir1 string, dir2 string, dir3 string",
    )
