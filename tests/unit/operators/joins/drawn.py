"""Joins in few words: rows of both sides, an operator that is fed with them in drawn batches, and small limits."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

from flinkplus.operators.base import parts
from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import OperatorInstance
from flinkplus.operators.joins import paged, pairing, sides, stored_rows, timed, windowed
from flinkplus.operators.joins.timed import KeyedJoin
from flinkplus.operators.joins.windowed import WindowJoin
from flinkplus.protocol.channels.watermarks import END_OF_TIME_MS
from flinkplus.state.hashing import hash_keys
from tests.unit.operators.operator_fakes import FakeState, context

LEFT = pa.schema([("k", pa.string()), ("ts", pa.int64()), ("n", pa.int32()), ("last", pa.int64())])
RIGHT = pa.schema([("id", pa.string()), ("due", pa.int64()), ("m", pa.int32()), ("until", pa.int64())])
Rows = list[tuple[Any, ...]]

rows = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", None]),
        st.integers(-30, 60),
        st.integers(0, 99),
        st.one_of(st.integers(-30, 90), st.none()),
    ),
    max_size=25,
)
small = st.fixed_dictionaries(
    {
        "kept": st.sampled_from([0, 6, 1 << 20]),
        "cell": st.sampled_from([2, 6, 1 << 16]),
        "read": st.sampled_from([2, 1 << 18]),
        "pairs": st.sampled_from([1, 3, 1 << 18]),
        "collide": st.booleans(),
        "shelf": st.sampled_from([1, 7, 1_000]),
    }
)


def few(keys: pa.Array) -> Any:
    """Hashes of which many are equal."""
    return hash_keys(keys) % np.uint64(2)


@contextlib.contextmanager
def limits(drawn: dict[str, Any]) -> Iterator[None]:
    """Limits that few rows reach."""
    values: list[tuple[Any, str, Any]] = [
        (timed, "LEAST_SHELF_MS", drawn["shelf"]),
        (stored_rows, "KEPT_ROWS", drawn["kept"]),
        (stored_rows, "CELL_ROWS", drawn["cell"]),
        (stored_rows, "GATHERED_ROWS", 2 * drawn["cell"]),
        (parts, "MAX_WAITING_ROWS", drawn["kept"]),
        (paged, "PAGE_ROWS", 2),
        (paged, "PAGES_AT_ONCE", 1),
        (pairing, "MAX_PAIRS", drawn["pairs"]),
        (pairing, "MAX_READ_ROWS", drawn["read"]),
        (windowed, "LOOKED_UP_ROWS", drawn["read"]),
        (sides, "hash_keys", few if drawn["collide"] else hash_keys),
    ]
    with contextlib.ExitStack() as stack:
        for where, name, value in values:
            stack.enter_context(mock.patch.object(where, name, value))
        yield


class Fed:
    """A join that is fed with batches. ``output``: all rows so far; ``sizes``: how they were cut into batches."""

    def __init__(self, operator: KeyedJoin | WindowJoin) -> None:
        self.operator = operator
        self.state = FakeState()
        self.output: Rows = []
        self.sizes: list[int] = []
        self.instance = self._begin({})

    def _begin(self, metrics: dict[str, int]) -> OperatorInstance:
        self.ctx = context(self.operator, LEFT, self.state)
        self.ctx.metrics.update(metrics)
        return self.operator.create(self.ctx)

    def take(self, batches: Any) -> None:
        schema = self.operator.output_schema(LEFT)
        for batch in batches:
            batch.validate(full=True)
            assert batch.num_rows
            self.sizes.append(batch.num_rows)
            self.output += [tuple(row.values()) for row in plain(batch, schema).to_pylist()]

    def feed(self, which: int, rows: Sequence[tuple[Any, ...]]) -> None:
        schema = (LEFT, RIGHT)[which]
        columns = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
        self.take(self.instance.process_input(which, pa.RecordBatch.from_arrays(columns, schema=schema)))

    def advance(self, watermark_ms: int) -> None:
        self.take(self.instance.on_watermark(watermark_ms))

    def restart(self) -> None:
        """A snapshot, and another instance that begins with it."""
        saved = json.loads(json.dumps(self.instance.snapshot(1)))
        self.instance = self._begin(self.ctx.metrics)
        self.instance.restore(saved)

    def end(self) -> None:
        """The end of all input."""
        self.advance(END_OF_TIME_MS)
        self.instance.snapshot(2)
        assert all(objects.content == {} for objects in self.state.objects.values()), "nothing is left behind"


def run(operator: KeyedJoin | WindowJoin, both: tuple[Rows, Rows], cuts: Sequence[int], timed: bool = True) -> Fed:
    """Feed all rows in batches of sizes ``cuts``, in turn; where it says 0, event time advances as far as it can, and
    the job restarts. No row is late."""
    fed = Fed(operator)
    left, right = (list(rows) for rows in both)
    turn = 0
    for size in [*cuts, *[7] * 2 * (len(left) + len(right))]:
        rest = [row[1] for row in (*left, *right)]
        if size == 0:
            if rest and timed:
                fed.advance(min(rest))
            fed.restart()
            continue
        rows = (left, right)[turn]
        if rows:
            fed.feed(turn, rows[:size])
            del rows[:size]
        turn = 1 - turn
    fed.end()
    return fed


def counted(found: Rows) -> Counter[str]:
    """Rows as a multiset."""
    return Counter(map(repr, found))
