"""All queries: how each is drawn, and what of its output is compared."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from experiments.nexmark import stateful, stateless, windows
from experiments.nexmark.expected import FOUND
from experiments.nexmark.streams import Events
from flinkplus.api.streams.stream import Stream


@dataclass(frozen=True)
class Query:
    """``draw``: draws it on FlinkPlus.

    ``last_of``: the columns of which the last row counts; empty: all rows count.
    ``found``: SQL over the output, the table ``made``: its rows are compared in place of those of the output.
    ``partition_by``: of the files that it writes.
    ``helpers``: functions of this project that ``draw`` calls, which the documentation shows beside it.
    ``awkward``: what the API should have, so that the query is as short as its SQL, or faster.
    """

    name: str
    draw: Callable[[Events], Stream]
    last_of: tuple[str, ...] = ()
    found: str = ""
    partition_by: tuple[str, ...] = ()
    helpers: tuple[Callable[..., Any], ...] = ()
    awkward: str = ""

    @property
    def title(self) -> str:
        """What it is, without a full stop."""
        return (inspect.getdoc(self.draw) or "").removesuffix(".")


COUNTED = (windows.ranked, windows.by_rank)
QUERIES = {
    query.name: query
    for query in (
        Query("q0", stateless.q0),
        Query("q1", stateless.q1),
        Query("q2", stateless.q2),
        Query("q3", stateful.q3),
        Query("q4", stateful.q4, ("category",), helpers=(stateful.bids_in_time,)),
        Query("q5", windows.q5, awkward="gather after a top of each subtask"),
        Query(
            "q6",
            stateful.q6,
            helpers=(stateful.bids_in_time,),
            awkward="rows in the order of time, and an average over the last rows of a key",
        ),
        Query(
            "q7",
            windows.q7,
            awkward="gather after a maximum of each subtask, here of each auction",
        ),
        Query("q8", windows.q8, awkward="a semi join: sellers are counted so that each of them comes once"),
        Query("q9", stateful.q9, ("id",), helpers=(stateful.bids_in_time,)),
        Query("q10", stateless.q10, partition_by=("dt", "hm")),
        Query("q11", windows.q11, awkward="a row of a session takes several times as long as one of a hopping window"),
        Query("q12", windows.q12, found=FOUND["q12"]),
        Query("q13", stateless.q13, awkward="lookup join with a DataFrame that is sent to all slots"),
        Query("q14", stateless.q14),
        Query("q15", windows.q15, ("day",), helpers=COUNTED),
        Query("q16", windows.q16, ("channel", "day"), helpers=COUNTED),
        Query("q17", windows.q17, ("auction", "day"), helpers=COUNTED),
        Query("q18", stateful.q18, ("bidder", "auction")),
        Query("q19", stateful.q19, ("auction", "rank_number")),
        Query("q20", stateful.q20),
        Query("q21", stateless.q21),
        Query("q22", stateless.q22),
    )
}
NAMES = tuple(QUERIES)
