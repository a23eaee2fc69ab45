"""Every source at one parallelism, then at another, and another: each row once, in order, wherever readers stood."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources import dealing, generator, splits
from flinkplus.sources.base import Source
from flinkplus.sources.dealing import BlockRun, Extent, Stage, deal_blocks, deal_stages
from flinkplus.sources.generator import Generator
from flinkplus.sources.parquet import StagedParquet
from flinkplus.sources.text import TextFiles
from tests.examples import examples
from tests.unit.sources.source_checks import opened

REPEAT = 3


def of_rows(count: int | None) -> Source:
    return Generator("g", lambda number: number, "n long", count=count)


def of_blocks(count: int | None) -> Source:
    rows = Generator("g", lambda s, n: pa.record_batch({"n": range(s, s + n)}), "n long", count, True, block_rows=5)
    return rows.planned()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Source, Counter[Any]]]:
    """Each with its rows."""
    folder = tmp_path_factory.mktemp("input")
    lines = [f"line {number}" * (number % 4) for number in range(90)]
    (folder / "a.txt").write_text("\n".join(lines[:40]) + "\n")
    (folder / "b.txt").write_text("\r\n".join(lines[40:]))
    text = TextFiles("t", folder, repeat=REPEAT, split_bytes=64, chunk_bytes=50).planned()
    table = pa.table({"n": range(100)})
    pq.write_table(table.slice(0, 70), folder / "0.parquet", row_group_size=30)
    pq.write_table(table.slice(70), folder / "1.parquet")
    files = (str(folder / "0.parquet"), str(folder / "1.parquet"))
    parquet = StagedParquet("p", files, pa.schema([("n", pa.int64())]), repeat=REPEAT).planned()
    numbers: Counter[Any] = Counter(range(100))
    text = TextFiles("t", str(folder / "*.txt"), repeat=REPEAT, split_bytes=64, chunk_bytes=50).planned()
    return {
        "rows": (of_rows(100), numbers),
        "blocks": (of_blocks(100), numbers),
        "blocks that end half-way": (of_blocks(98), Counter(range(98))),
        "text": (text, Counter(lines * REPEAT)),
        "parquet": (parquet, Counter(list(range(100)) * REPEAT)),
        "no rows": (of_rows(0), Counter()),
    }


def run(source: Source, scales: list[int], rng: random.Random, rest: bool = True) -> list[list[Any]]:
    """What all readers give at the first parallelism, then at the next, each reader up to a place of its own; at the
    last one to the end. The rows of each reader by itself."""
    positions: list[Any] = [None] * scales[0]
    given: list[list[Any]] = []
    rows = 0
    for at, parallelism in enumerate(scales):
        if at:
            positions = source.redealt(positions, parallelism)
        assert len(positions) == parallelism
        for index in range(parallelism):
            reader = opened(source, index, parallelism, positions[index])
            mine: list[Any] = []
            budget = rng.choice([0, 1, 3, 20, 60]) if at < len(scales) - 1 or not rest else 1 << 40
            while budget > 0 and (batch := reader.read(min(budget, rng.randint(1, 9)))) is not None:
                mine += batch.column(0).to_pylist()
                budget -= batch.num_rows
            positions[index] = reader.position()
            given.append(mine)
            reader.close()
        rows = sum(opened(source, i, parallelism, p).metrics["rows"] for i, p in enumerate(positions))
    assert rows == sum(map(len, given))
    return given


KINDS = ["rows", "blocks", "blocks that end half-way", "text", "parquet", "no rows"]


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(st.sampled_from([1, 2, 3, 5, 16]), min_size=2, max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_each_row_once(sources: Any, kind: str, scales: list[int], rng: random.Random) -> None:
    source, expected = sources[kind]
    assert Counter(row for mine in run(source, scales, rng) for row in mine) == expected


@pytest.mark.parametrize("make", [of_rows, of_blocks])
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.randoms(use_true_random=False))
@settings(max_examples=examples(40), deadline=None)
def test_a_generator_without_end(make: Callable[[None], Source], scales: list[int], rng: random.Random) -> None:
    """Of what was read nothing twice; each reader's rows rise; nothing is left out for ever."""
    given = run(make(None), scales, rng, rest=False)
    rows = [row for mine in given for row in mine]
    assert len(set(rows)) == len(rows)
    assert all(mine == sorted(mine) for mine in given)
    source = make(None)
    positions = source.redealt([None] * scales[0], scales[1])
    first = [opened(source, at, scales[1], position).read(50) for at, position in enumerate(positions)]
    assert set(range(50)) <= {n for batch in first if batch is not None for n in batch.column(0).to_pylist()}


def of_pass(kind: str, sources: Any) -> Source:
    return StagedParquet("p", *[getattr(sources[kind][0], name) for name in ("files", "schema")]).planned()


@given(st.lists(st.integers(1, 5), min_size=2, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=examples(30), deadline=None)
def test_rows_in_the_order_of_time_stay_in_order(sources: Any, scales: list[int], rng: random.Random) -> None:
    assert all(mine == sorted(mine) for mine in run(of_pass("parquet", sources), scales, rng))


def test_large_files_are_not_listed_part_by_part() -> None:
    dealt = deal_stages([[Stage(0, 9, (Extent((0,), 0, 1 << 40),))], []], 4, 1 << 20)
    assert [len(stage.extents) for stages in dealt for stage in stages] == [dealing.MAX_PARTS] * 4
    sizes = {sum(e.end - e.start for e in stage.extents) for stages in dealt for stage in stages}
    assert max(sizes) - min(sizes) <= dealing.MAX_PARTS


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "a block behind the frontier is left out": (
        generator,
        "deal_blocks",
        lambda left, n: [[r for r in runs if r.end is None] for runs in deal_blocks(left, n)],
    ),
    "the frontier is one block too early": (
        generator,
        "deal_blocks",
        lambda left, n: [
            [BlockRun(max(0, r.first - 1), r.step) if r.end is None else r for r in runs]
            for runs in deal_blocks(left, n)
        ],
    ),
    "ranges overlap": (
        splits,
        "deal_stages",
        lambda left, n, unit: [
            [
                Stage(s.first, s.end, (s.extents[0]._replace(start=max(0, s.extents[0].start - 9)), *s.extents[1:]))
                for s in x
            ]
            for x in deal_stages(left, n, unit)
        ],
    ),
    "a pass is left out": (splits, "deal_stages", lambda left, n, unit: [x[:-1] for x in deal_stages(left, n, unit)]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(sources: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, wrong = FAULTS[fault]
    monkeypatch.setattr(module, name, wrong)
    source, expected = sources["rows" if module is generator else "parquet"]
    found = [Counter(r for mine in run(source, [3, 2], random.Random(seed)) for r in mine) for seed in range(20)]
    assert any(rows != expected for rows in found)


def test_a_source_that_cannot_be_dealt_anew_says_so() -> None:
    class Mine(Source):
        name = "mine"
        schema = pa.schema([])

        def reader(self, index: int, parallelism: int) -> Any:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="source 'mine' does not say how its positions are dealt"):
        Mine().redealt([None], 2)


def test_stages_of_other_files_are_refused(sources: Any, tmp_path: Path) -> None:
    for kind in ("text", "parquet"):
        source, _ = sources[kind]
        (position, _) = source.redealt([None], 2)
        for stages in ([[0, 1, [[[7], 0, 5]]]], [[0, 1, [[["x"], 0, 5]]]], [[1, 0, [[[0], 0, 5]]]], 5, [[0, 1, []]]):
            with pytest.raises(InputError, match="position"):
                opened(source, 0, 2, position | {"stages": stages})
    for runs in ([[0, 0, None, 0]], [["0", 1, None, 0]], [[0]], 7):
        with pytest.raises(InputError, match="position"):
            opened(of_rows(5), 0, 2, {"format": generator.POSITION_FORMAT, "rows": 0, "runs": runs})
