"""All queries: how each is drawn, which rows of its output count, and what FlinkPlus lacks for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from experiments.nexmark import stateful, stateless, windows
from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream

PROCESSING_TIME = "processing-time windows"
DISTINCT = "aggregates with filters, count_distinct among them"


@dataclass(frozen=True)
class Query:
    """``draw``: draws it on FlinkPlus; ``None``: it ``lacks`` an operator.

    ``last_of``: the columns of which the last row counts; empty: all rows count.
    ``partition_by``: of the files that it writes.
    ``about``: what it is, where ``draw`` does not say so.
    ``helpers``: functions of this project that ``draw`` calls, which the documentation shows beside it.
    ``awkward``: what the API should have, so that the query is as short as its SQL.
    """

    name: str
    draw: Callable[[Events], Stream] | None = None
    last_of: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    lacks: str = ""
    about: str = ""
    helpers: tuple[Callable[..., Stream], ...] = ()
    awkward: str = ""

    @property
    def title(self) -> str:
        """What it is, without a full stop."""
        return (self.about or inspect.getdoc(self.draw) or "").removesuffix(".")


SELECT = "select with expressions, in place of a function of a batch and a schema"
QUERIES = {
    query.name: query
    for query in (
        Query("q0", stateless.q0, awkward=SELECT),
        Query("q1", stateless.q1, awkward=SELECT),
        Query("q2", stateless.q2, awkward="where with expressions; PyArrow has no remainder"),
        Query("q3", stateful.q3, awkward="a regular join: the interval join keeps all rows, by a bound of 1,000 days"),
        Query(
            "q4",
            stateful.q4,
            ("category",),
            helpers=(stateful.bids_in_time, stateful.highest_bids),
            awkward="running avg; an interval join whose bounds are columns (dateTime to expires)",
        ),
        Query("q5", windows.q5, awkward="hopping windows; top of a window, once"),
        Query(
            "q6",
            stateful.q6,
            helpers=(stateful.bids_in_time, stateful.highest_bids),
            awkward="rows in the order of time, and an average over the last rows of a key",
        ),
        Query("q7", windows.q7, awkward="window join; top of a window, once, with the whole row"),
        Query("q8", windows.q8, awkward="window join"),
        Query(
            "q9",
            stateful.q9,
            ("id",),
            helpers=(stateful.bids_in_time,),
            awkward="top of whole rows, by several columns",
        ),
        Query("q10", stateless.q10, partition_by=("dt", "hm"), awkward=SELECT),
        Query("q11", windows.q11, awkward="session windows: this is row by row"),
        Query(
            "q12",
            lacks=PROCESSING_TIME,
            about="Processing-time windows: bids of a bidder in each ten seconds of the clock",
        ),
        Query("q13", stateless.q13, awkward="lookup join with a DataFrame that is sent to all slots"),
        Query("q14", stateless.q14, awkward=SELECT),
        Query("q15", windows.q15, helpers=(windows.bid_statistics,), awkward=DISTINCT),
        Query("q16", windows.q16, helpers=(windows.bid_statistics,), awkward=DISTINCT),
        Query(
            "q17", windows.q17, awkward="aggregates with filters; running ones, so that rows come before the day ends"
        ),
        Query("q18", stateful.q18, ("bidder", "auction"), awkward="deduplicate(keep='last'): reduce is row by row"),
        Query("q19", stateful.q19, ("auction", "rank_number"), awkward="top of whole rows, by several columns"),
        Query("q20", stateful.q20, awkward="a regular join, as q3"),
        Query("q21", stateless.q21, awkward=SELECT),
        Query("q22", stateless.q22, awkward=SELECT),
    )
}
NAMES = tuple(QUERIES)
DRAWN = tuple(name for name, query in QUERIES.items() if query.draw is not None)
