"""The rows of a side of a join beside a list: cells, pages, look-ups, restarts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
from hypothesis import given, settings

from flinkplus.operators.joins import paged
from flinkplus.operators.joins.paged import Index, by_hash
from flinkplus.operators.joins.pairing import Probes, pairs_of
from flinkplus.operators.joins.stored_rows import StoredNumbers, StoredRows
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from tests.examples import examples
from tests.handles import part_of
from tests.unit.operators.joins.drawn import limits, small
from tests.unit.operators.operator_fakes import FakeState

SCHEMA = pa.schema([("#hash", pa.uint64()), ("#key", pa.binary()), ("#time", pa.int64()), ("n", pa.int64())])


def batch(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    columns = [
        pa.array([row[0] for row in rows], pa.uint64()),
        pa.array([b"%d" % row[0] for row in rows], pa.binary()),
        pa.array([row[1] for row in rows], pa.int64()),
        pa.array([row[2] for row in rows], pa.int64()),
    ]
    return by_hash(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


rows = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 1, 5, 9, (1 << 64) - 1]), st.integers(0, 5)), min_size=1, max_size=9
)


@given(st.lists(st.one_of(rows, rows, st.none()), max_size=15), small)
@settings(max_examples=examples(150), deadline=None)
def test_rows_are_found_in_order(steps: list[Any], drawn: dict[str, Any]) -> None:
    """A list of rows is added, ``None`` is a restart."""
    state, kept, number = FakeState(), [], 0
    with limits(drawn):
        stored = StoredRows(state, "s", SCHEMA)
        for step in steps:
            if step is None:
                saved = json.loads(json.dumps(stored.snapshot()))
                stored = StoredRows(state, "s", SCHEMA)
                stored.restore(saved)
                continue
            added = [(*row, number + at) for at, row in enumerate(step)]
            number += len(added)
            kept += added
            stored.add(3, batch(added))
        if not kept:
            return
        probes = Probes(batch([(key, 0, 0) for key in (0, 1, 5, 7, 9)]), np.full(5, 1), np.full(5, 4))
        found: list[list[tuple[int, int]]] = [[] for _ in range(5)]
        for pairs in pairs_of(probes, stored, [3]):
            others = zip(pairs.others.column(2).to_pylist(), pairs.others.column(3).to_pylist(), strict=True)
            for at, other in zip(pairs.at.tolist(), others, strict=True):
                found[at].append(other)
        expected = [
            sorted((ms, n) for hashed, ms, n in kept if hashed == key and 1 <= ms <= 4) for key in (0, 1, 5, 7, 9)
        ]
        assert found == expected
        assert [row for piece in stored.ordered(3) for row in tuples(piece)] == sorted(kept)
        assert Counter(row for piece in stored.pieces(3) for row in tuples(piece)) == Counter(kept)
        stored.drop(3)
        stored.snapshot()
        assert all(objects.content == {} for objects in state.objects.values())


def tuples(piece: pa.RecordBatch) -> list[tuple[int, ...]]:
    return [(row["#hash"], row["#time"], row["n"]) for row in piece.to_pylist()]


@given(st.lists(st.lists(st.integers(0, 30), min_size=1), max_size=10), small)
@settings(max_examples=examples(60), deadline=None)
def test_numbers_are_a_set(steps: list[list[int]], drawn: dict[str, Any]) -> None:
    with limits(drawn):
        numbers = StoredNumbers(FakeState(), "n")
        for step in steps:
            numbers.add_numbers(0, np.array(step, np.uint64))
        known = {number for step in steps for number in step}
        asked = np.array([30, 3, 3, 0, 17, *range(31)], np.uint64)
        assert numbers.has(0, asked).tolist() == [number in known for number in asked.tolist()]
        assert not numbers.has(1, asked).any()


def test_times_that_are_too_far_apart_for_an_index() -> None:
    far = 1 << 52
    spread = (-far, -1, 0, 9, far)
    some = batch([(hashed, ms, 0) for hashed in range(2_000) for ms in spread])
    index = Index.of(some)
    assert index.shift
    hashes = np.arange(2_000, dtype=np.uint64)
    at, starts, ends = index.find(hashes, np.full(2_000, 0), np.full(2_000, 9))
    assert at.tolist() == list(range(2_000))
    assert (starts <= np.arange(2_000) * 5 + 2).all() and (ends >= np.arange(2_000) * 5 + 4).all()
    assert (starts >= np.arange(2_000) * 5).all() and (ends < np.arange(1, 2_001) * 5).all()
    _, starts, ends = index.find(hashes, np.full(2_000, far), np.full(2_000, 1 << 60))
    assert (ends == np.arange(1, 2_001) * 5).all() and (starts < ends).all()


def test_a_look_up_reads_a_few_pages_of_rocksdb(tmp_path: Path) -> None:
    """Rows that are not in memory: after a restart, a look-up of some keys reads a small part of the state."""
    storage = CheckpointStorage(str(tmp_path / "storage"))
    first = SubtaskState(tmp_path / "work", storage.state_files, "join[0]", 1)
    rng = np.random.default_rng(1)
    limit = {"kept": 1 << 10, "cell": 4_096, "read": 1 << 18, "pairs": 1 << 18, "collide": False, "shelf": 1_000}
    with limits(limit):
        paged.PAGE_ROWS = 64  # within ``limits``, which sets it back
        stored = StoredRows(first, "s", SCHEMA)
        hashes = rng.integers(0, 1 << 64, 40_000, np.uint64)
        for start in range(0, len(hashes), 2_000):
            some = hashes[start : start + 2_000].tolist()
            stored.add(0, batch([(hashed, 0, start + at) for at, hashed in enumerate(some)]))
        saved = stored.snapshot()
        handle = first.persist(first.freeze(1, OperatorState(operators={"operator": part_of(state=saved)})))
        second = SubtaskState(tmp_path / "other", storage.state_files, "join[0]", 2)
        second.restore(handle)
        again = StoredRows(second, "s", SCHEMA)
        again.restore(json.loads(json.dumps(saved)))
        wanted = hashes[[5, 17_000, 39_999]]
        probes = Probes(
            batch([(hashed, 0, 0) for hashed in wanted.tolist()]), np.zeros(3, np.int64), np.zeros(3, np.int64)
        )
        found = [n for pairs in pairs_of(probes, again, [0]) for n in pairs.others.column(3).to_pylist()]
        assert sorted(found) == [5, 17_000, 39_999]
        assert second.state_reads() < 100  # of more than 600 pages
    first.close()
    second.close()
