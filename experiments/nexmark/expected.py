"""What each query should give: SQL for DuckDB over the tables ``person``, ``auction`` and ``bid``.

Rules: columns stand in the order of the query's output, and their names do not matter. Rows may be in any order.

The windows of q12 depend on the clock, so its rows have no expected values. What every correct output has: a bidder has
all its bids in its windows together, one row for each window, and windows of ten seconds that begin at multiples of
ten. ``FOUND`` makes these of the output.
"""

from __future__ import annotations

_BIDS_IN_TIME = """auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"""
_RANKS = """
    count(*), count(*) FILTER (price < 10000), count(*) FILTER (price >= 10000 AND price < 1000000),
    count(*) FILTER (price >= 1000000)"""
_DISTINCT = ",".join(
    f"""
    count(DISTINCT {column}), count(DISTINCT {column}) FILTER (price < 10000),
    count(DISTINCT {column}) FILTER (price >= 10000 AND price < 1000000),
    count(DISTINCT {column}) FILTER (price >= 1000000)"""
    for column in ("bidder", "auction")
)
_WINDOW = "time_bucket(INTERVAL 10 SECONDS, dateTime, TIMESTAMP '1970-01-01')"
_HIGHEST = f"""
    SELECT A.id, A.category, A.seller, B.price, B.dateTime,
        row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) AS rank
    FROM {_BIDS_IN_TIME} QUALIFY rank = 1"""
_HOPS = """
    SELECT auction, count(*) AS num, starttime
    FROM (
        SELECT auction, unnest(range(0, 10, 2)) AS back,
            time_bucket(INTERVAL 2 SECONDS, dateTime, TIMESTAMP '1970-01-01') - to_seconds(back) AS starttime
        FROM bid
    ) GROUP BY auction, starttime"""

DUCKDB = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category, sum(price) / count(*) FROM ({_HIGHEST}) GROUP BY category",
    "q5": f"""
        SELECT auction, num FROM ({_HOPS})
        QUALIFY num = max(num) OVER (PARTITION BY starttime)""",
    "q6": f"""
        SELECT seller, avg(price) OVER (
            PARTITION BY seller ORDER BY dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
        ) FROM ({_HIGHEST})""",
    "q7": f"""
        SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra
        FROM bid B JOIN (
            SELECT max(price) AS maxprice, {_WINDOW} + INTERVAL 10 SECONDS AS ends FROM bid GROUP BY ends
        ) M ON B.price = M.maxprice AND B.dateTime BETWEEN M.ends - INTERVAL 10 SECONDS AND M.ends""",
    "q8": f"""
        SELECT DISTINCT P.id, P.name, P.starttime
        FROM (SELECT id, name, {_WINDOW} AS starttime FROM person) P
        JOIN (SELECT seller, {_WINDOW} AS starttime FROM auction) A
        ON P.id = A.seller AND P.starttime = A.starttime""",
    "q9": f"""
        SELECT A.*, B.* FROM {_BIDS_IN_TIME}
        QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) = 1""",
    "q10": """
        SELECT auction, bidder, price, dateTime, extra, strftime(dateTime, '%Y-%m-%d'), strftime(dateTime, '%H:%M')
        FROM bid""",
    "q11": """
        SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL 10 SECONDS
        FROM (
            SELECT bidder, dateTime, sum(fresh) OVER (PARTITION BY bidder ORDER BY dateTime) AS session
            FROM (
                SELECT bidder, dateTime, CASE WHEN dateTime - lag(dateTime) OVER (
                    PARTITION BY bidder ORDER BY dateTime
                ) <= INTERVAL 10 SECONDS THEN 0 ELSE 1 END AS fresh
                FROM bid
            )
        ) GROUP BY bidder, session""",
    "q12": "SELECT bidder, count(*), true, true FROM bid GROUP BY bidder",
    "q13": """
        SELECT auction, bidder, price, dateTime, 'value-' || (auction % 10000 * 7919 % 10000)::VARCHAR FROM bid""",
    "q14": """
        SELECT auction, bidder, 0.908 * price, CASE
            WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
            ELSE 'otherTime' END, dateTime, extra, length(extra) - length(replace(extra, 'c', ''))
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"SELECT strftime(dateTime, '%Y-%m-%d') AS day, {_RANKS}, {_DISTINCT} FROM bid GROUP BY day",
    "q16": f"""
        SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')), {_RANKS}, {_DISTINCT}
        FROM bid GROUP BY channel, day""",
    "q17": f"""
        SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {_RANKS}, min(price), max(price),
            sum(price) / count(*), sum(price)
        FROM bid GROUP BY auction, day""",
    "q18": """
        SELECT * FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1""",
    "q19": """
        SELECT auction, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number,
            * EXCLUDE (auction)
        FROM bid
        QUALIFY rank_number <= 10""",
    "q20": """
        SELECT B.*, A.* FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": r"""
        SELECT auction, bidder, price, channel, CASE lower(channel)
            WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
            ELSE regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
        FROM bid WHERE channel_id <> ''""",
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4), split_part(url, '/', 5),
            split_part(url, '/', 6)
        FROM bid""",
}
"""By query."""
FOUND = {
    "q12": """
        SELECT bidder, sum(bid_count), count(*) = count(DISTINCT starttime),
            bool_and(epoch_ms(starttime) % 10000 = 0 AND epoch_ms(endtime) - epoch_ms(starttime) = 10000)
        FROM made GROUP BY bidder""",
}
"""SQL over the output, the table ``made``, for a query whose rows are not compared themselves."""
