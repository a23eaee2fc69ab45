"""The queries that look at one event at a time: each is drawn by a function of the events, as ``docs/nexmark.md`` shows
it."""

from __future__ import annotations

import pyarrow as pa

from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream


def q0(events: Events) -> Stream:
    """Pass through: every bid."""
    return events.bids().select("auction", "bidder", "price", "dateTime", "extra")


def q1(events: Events) -> Stream:
    """Currency: every bid, with its price in euros."""
    return events.bids().select("auction", "bidder", "0.908 * price AS price", "dateTime", "extra")


def q2(events: Events) -> Stream:
    """Selection: bids for certain auctions."""
    return events.bids().where("auction % 123 = 0").select("auction", "price")


def q10(events: Events) -> Stream:
    """Log to files: every bid, in folders by day and minute."""
    dt, hm = "date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm"
    return events.bids().select("auction", "bidder", "price", "dateTime", "extra", dt, hm)


def q13(events: Events) -> Stream:
    """Bounded side input: every bid with the value of its key in a table, which is sent to all slots."""
    values = pa.array([f"value-{key * 7919 % 10_000}" for key in range(10_000)])

    def joined(bids: pa.RecordBatch) -> pa.RecordBatch:
        return bids.append_column("value", values.take(bids["key"])).drop_columns("key")

    bids = events.bids().select("auction", "bidder", "price", "dateTime", "auction % 10000 AS key")
    schema = "auction long, bidder long, price long, dateTime timestamp_ntz, value string"
    return bids.map_batches(joined, schema=schema)


def q14(events: Events) -> Stream:
    """Calculation: bids in a range of euros, with the time of day and the number of letters c."""
    time_of_day = """
        CASE WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END AS bidTimeType"""
    letters = "length(extra) - length(replace(extra, 'c', '')) AS c_counts"
    bids = events.bids().with_column("price", "0.908 * price").where("price > 1000000 AND price < 50000000")
    return bids.select("auction", "bidder", "price", time_of_day, "dateTime", "extra", letters)


def q21(events: Events) -> Stream:
    """Add a channel ID: of a hot channel its number, otherwise what the URL says; bids without one are left out."""
    channel_id = """
        CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id"""
    return events.bids().select("auction", "bidder", "price", "channel", channel_id).where("channel_id <> ''")


def q22(events: Events) -> Stream:
    """Directories of the URL: every bid, with three parts of its URL."""
    directories = [f"parts[{at + 2}] AS dir{at}" for at in (1, 2, 3)]
    bids = events.bids().with_column("parts", "split(url, '/')")
    return bids.select("auction", "bidder", "price", "channel", *directories)
