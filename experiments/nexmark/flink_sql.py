"""Each query in Flink SQL, over the views ``person``, ``auction`` and ``bid``, written from Nexmark's definitions.

Rules: statements are separated by a line with ``;`` alone; the last one is the query, whose rows go to Flink's
``blackhole``. ``count_char`` and ``side_value`` are functions of ``Nexmark.java``: q13 looks its side input up in a
table in memory, as FlinkPlus does. ``dateTime`` is quoted, since it is a word of Flink's SQL.
"""

from __future__ import annotations

_RANKS = """count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""
_DISTINCT = ",\n    ".join(
    f"""count(DISTINCT {column}) AS total_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s"""
    for column in ("bidder", "auction")
)
_HOPS = """SELECT auction, count(*) AS num, window_start AS starttime, window_end AS endtime
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""

FLINK = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
SELECT P.name, P.city, P.state, A.id
FROM auction AS A JOIN person AS P ON A.seller = P.id
WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": """
SELECT category, AVG(final) AS average
FROM (
    SELECT A.category, MAX(B.price) AS final
    FROM auction AS A JOIN bid AS B ON A.id = B.auction
    WHERE B.`dateTime` BETWEEN A.`dateTime` AND A.expires
    GROUP BY A.id, A.category
) GROUP BY category""",
    "q5": f"""
SELECT C.auction, C.num
FROM ({_HOPS}) AS C
JOIN (
    SELECT MAX(num) AS maxn, starttime, endtime FROM ({_HOPS}) GROUP BY starttime, endtime
) AS M
ON C.starttime = M.starttime AND C.endtime = M.endtime AND C.num >= M.maxn""",
    "q7": """
SELECT B.auction, B.price, B.bidder, B.`dateTime`, B.extra
FROM bid AS B
JOIN (
    SELECT MAX(price) AS maxprice, window_end AS ends
    FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end
) AS M
ON B.price = M.maxprice
WHERE B.`dateTime` BETWEEN M.ends - INTERVAL '10' SECOND AND M.ends""",
    "q8": """
SELECT P.id, P.name, P.starttime
FROM (
    SELECT id, name, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY id, name, window_start, window_end
) AS P
JOIN (
    SELECT seller, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    GROUP BY seller, window_start, window_end
) AS A
ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
    "q9": """
SELECT id, itemName, description, initialBid, reserve, opened, expires, seller, category, itemExtra, auction, bidder,
    price, channel, url, bidTime, extra
FROM (
    SELECT A.id, A.itemName, A.description, A.initialBid, A.reserve, A.`dateTime` AS opened, A.expires, A.seller,
        A.category, A.extra AS itemExtra, B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime` AS bidTime,
        B.extra, ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS rank_number
    FROM auction AS A JOIN bid AS B ON A.id = B.auction
    WHERE B.`dateTime` BETWEEN A.`dateTime` AND A.expires
) WHERE rank_number <= 1""",
    "q10": """
SELECT auction, bidder, price, `dateTime`, extra, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS dt,
    DATE_FORMAT(`dateTime`, 'HH:mm') AS hm
FROM bid""",
    "q11": """
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
    "q12": """
CREATE TEMPORARY VIEW read_bid AS SELECT *, PROCTIME() AS p_time FROM bid
;
SELECT bidder, count(*) AS bid_count, window_start AS starttime, window_end AS endtime
FROM TABLE(TUMBLE(TABLE read_bid, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
    "q13": "SELECT auction, bidder, price, `dateTime`, side_value(auction) AS side FROM bid",
    "q14": """
SELECT auction, bidder, 0.908 * price AS price, CASE
        WHEN HOUR(`dateTime`) >= 8 AND HOUR(`dateTime`) <= 18 THEN 'dayTime'
        WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
        ELSE 'otherTime' END AS bidTimeType,
    `dateTime`, extra, count_char(extra, 'c') AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
    "q15": f"""
SELECT DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
    {_RANKS},
    {_DISTINCT}
FROM bid GROUP BY DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')""",
    "q16": f"""
SELECT channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`,
    {_RANKS},
    {_DISTINCT}
FROM bid GROUP BY channel, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')""",
    "q17": f"""
SELECT auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd') AS `day`,
    {_RANKS},
    MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
FROM bid GROUP BY auction, DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')""",
    "q18": """
SELECT auction, bidder, price, channel, url, `dateTime`, extra
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS rank_number FROM bid
) WHERE rank_number <= 1""",
    "q19": """
SELECT *
FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid
) WHERE rank_number <= 10""",
    "q20": """
SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.`dateTime` AS bidTime, B.extra, A.id, A.itemName,
    A.description, A.initialBid, A.reserve, A.`dateTime` AS opened, A.expires, A.seller, A.category,
    A.extra AS itemExtra
FROM bid AS B JOIN auction AS A ON B.auction = A.id
WHERE A.category = 10""",
    "q21": r"""
SELECT auction, bidder, price, channel, CASE
        WHEN LOWER(channel) = 'apple' THEN '0'
        WHEN LOWER(channel) = 'google' THEN '1'
        WHEN LOWER(channel) = 'facebook' THEN '2'
        WHEN LOWER(channel) = 'baidu' THEN '3'
        ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
FROM bid
WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
    OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """
SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1, SPLIT_INDEX(url, '/', 4) AS dir2,
    SPLIT_INDEX(url, '/', 5) AS dir3
FROM bid""",
}
"""By query."""
FLINK_LACKS = {"q6": "Flink's OVER windows take no stream with updates"}
