"""Staged batches: complete ones are read, in order, by all readers together; replays read the same."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.batches.area import ReadyBatch, StagingArea
from flinkplus.sources.batches.pieces import RowCut
from flinkplus.sources.batches.reader import BatchReader
from flinkplus.sources.batches.source import StreamedBatches

SCHEMA = pa.schema([("n", pa.int64())])
PATIENCE_S = 10.0


def stage(area: StagingArea, number: int, rows: range, files: int = 2, before: int = 0) -> ReadyBatch | None:
    """As the driver does; Spark would write the files."""
    folder, place = area.new_folder(number)
    os.makedirs(place)
    for file in range(files):
        pq.write_table(pa.table({"n": list(rows)[file::files]}), f"{place}/part-{file}.parquet", row_group_size=3)
    return area.complete(number, folder, SCHEMA, before, lambda: None)


class Reading:
    """A reader, driven as a subtask drives it. ``steps``: position before, choice and rows of each."""

    def __init__(self, source: StreamedBatches, index: int = 0, parallelism: int = 1, position: Any = None) -> None:
        self.errors: list[Exception] = []
        self.steps: list[tuple[Any, int, list[int] | None]] = []
        self._event = threading.Event()
        self.reader: BatchReader = source.reader(index, parallelism)
        self.reader.open(position)
        self.reader.begin(self._woken)

    def _woken(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
        self._event.set()

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._event.clear()
            found = condition()
            if self.errors:
                raise self.errors[0]
            if found is not None and found is not False:
                return found
            assert time.monotonic() < deadline_s
            self._event.wait(0.5)

    def step(self, max_rows: int = 4) -> list[int] | None:
        return self.read(self.until(lambda: self.reader.choose(max_rows)))

    def read(self, choice: int) -> list[int] | None:
        before = json.loads(json.dumps(self.reader.position()))
        self.until(lambda: self.reader.can_read(choice))
        batch = self.reader.read(choice)
        rows = None if batch is None else batch["n"].to_pylist()
        assert rows is None or len(rows) == self.reader.rows_of(choice) == choice
        self.steps.append((before, choice, rows))
        return rows

    def rows(self, count: int, max_rows: int = 4) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            more = self.step(max_rows)
            assert more is not None
            found += more
        return found


@contextmanager
def reading(*given: Any) -> Iterator[Reading]:
    run = Reading(*given)
    try:
        yield run
    finally:
        run.reader.close()


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path / "area"))


@pytest.fixture
def source(area: StagingArea) -> StreamedBatches:
    return StreamedBatches("frame", SCHEMA).staged_in(area.location)


def test_batches_are_read_when_they_are_complete(area: StagingArea, source: StreamedBatches) -> None:
    with reading(source) as run:
        assert run.reader.choose(4) is None
        folder, place = area.new_folder(0)
        os.makedirs(place)
        pq.write_table(pa.table({"n": [1, 2]}), f"{place}/part-0.parquet")
        Path(area.location, "ready").mkdir()
        Path(area.location, "ready", f"{0:020d}.json.ab.tmp").write_text("{")  # it is being written
        assert run.reader.choose(4) is None
        batch = area.complete(0, folder, SCHEMA, 0, lambda: None)
        assert batch is not None and (batch.rows, batch.rows_so_far) == (2, 2)
        assert run.rows(2) == [1, 2]
        stage(area, 3, range(3, 10), before=2)  # those between had no rows
        run.until(lambda: run.reader.gauges()["lag_rows"] == 7)
        assert sorted(run.rows(7)) == list(range(3, 10))
        assert run.reader.gauges() == {"lag_rows": 0} and run.reader.metrics["rows"] == 9
        area.end(lambda: None)
        assert run.step() is None


def test_a_batch_without_rows_is_not_there(area: StagingArea) -> None:
    assert stage(area, 0, range(0)) is None
    assert area.ready() == ([], False) and list(Path(area.location).glob("batches/*")) == []


def test_another_driver_makes_no_batch_visible(area: StagingArea) -> None:
    folder, place = area.new_folder(0)
    os.makedirs(place)
    pq.write_table(pa.table({"n": [1]}), f"{place}/part-0.parquet")

    def replaced() -> None:
        raise InputError("another driver")

    with pytest.raises(InputError, match="another driver"):
        area.complete(0, folder, SCHEMA, 0, replaced)
    assert area.ready() == ([], False)
    area.remove_incomplete()
    assert list(Path(area.location).glob("batches/*")) == []


def test_incomplete_batches_are_removed_and_complete_ones_stay(area: StagingArea) -> None:
    batch = stage(area, 0, range(4))
    assert batch is not None
    os.makedirs(area.new_folder(1)[1])
    area.remove_incomplete()
    assert [path.name for path in Path(area.location).glob("batches/*")] == [batch.folder]
    area.remove(batch)
    area.remove(batch)
    assert list(Path(area.location).glob("*/*")) == []


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_replay_reads_the_same_though_more_is_there(
    area: StagingArea, source: StreamedBatches, parallelism: int
) -> None:
    total, sizes = 0, (7, 1, 1, 2, 20, 1)
    for number, size in enumerate(sizes):
        stage(area, number, range(total, total + size), before=total)
        total += size
    runs = []
    for index in range(parallelism):
        shares = [RowCut(index, parallelism).of(number, 0, size) for number, size in enumerate(sizes)]
        with reading(source, index, parallelism) as run:
            run.rows(sum(end - start for start, end in shares))
            runs.append(run)
    assert sorted(row for run in runs for _, _, rows in run.steps for row in rows or []) == list(range(total))
    stage(area, 6, range(total, total + 9), before=total)
    area.end(lambda: None)
    for index, run in enumerate(runs):
        for at, (position, _, _) in enumerate(run.steps):
            with reading(source, index, parallelism, position) as again:
                for _, choice, rows in run.steps[at:]:
                    assert again.read(choice) == rows


def test_rows_of_several_batches_are_read_together(area: StagingArea, source: StreamedBatches) -> None:
    for number in range(6):
        stage(area, number, range(number, number + 1), files=1, before=number)
    with reading(source) as run:
        run.until(lambda: (run.reader.choose(100) or 0) >= 4)
        assert run.step(3) == [0, 1, 2]
        assert run.rows(3) == [3, 4, 5]


def test_another_parallelism_in_the_middle_of_batches(area: StagingArea, source: StreamedBatches) -> None:
    chance = random.Random(5)
    total = 0
    for number in range(8):
        stage(area, number, range(total, total + 9), before=total)
        total += 9
    area.end(lambda: None)
    found: list[int] = []
    positions: list[Any] = [None, None]
    for parallelism in (2, 3, 1, 4):
        if parallelism != 2:
            positions = source.redealt(positions, parallelism)
        for index in range(parallelism):
            with reading(source, index, parallelism, positions[index]) as run:
                for _ in range(chance.randrange(4)):
                    found += run.step() or []
                positions[index] = run.reader.position()
    for index in range(4):
        with reading(source, index, 4, positions[index]) as run:
            while (more := run.step(9)) is not None:
                found += more
    assert sorted(found) == list(range(total))


def test_a_listing_that_misses_a_batch_before_the_last(
    area: StagingArea, source: StreamedBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory is not listed at once: of two batches that are completed meanwhile, it may show the second alone."""
    stage(area, 0, range(4), files=1)
    stage(area, 1, range(4, 8), files=1, before=4)
    listed = StagingArea.ready
    calls: list[None] = []

    def ready(one: StagingArea) -> tuple[list[int], bool]:
        calls.append(None)
        numbers, ended = listed(one)
        return [number for number in numbers if len(calls) > 1 or number != 0], ended

    monkeypatch.setattr(StagingArea, "ready", ready)
    with reading(source) as run:
        assert run.rows(8) == list(range(8))
        for position, choice, rows in run.steps:
            calls.clear()
            with reading(source, 0, 1, position) as again:
                assert again.read(choice) == rows


def test_damaged_batches_are_named(area: StagingArea, source: StreamedBatches) -> None:
    batch = stage(area, 0, range(4))
    assert batch is not None
    for path in Path(area.location).glob("batches/*/part-0*"):
        path.write_bytes(b"")
    with reading(source) as run, pytest.raises(InputError, match=r"cannot read '.*part-0\.parquet'"):
        run.step()
    (marker,) = Path(area.location).glob("ready/*.json")
    for text in ("{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "files": [[1]]}'):
        marker.write_text(text)
        with reading(source) as run, pytest.raises(InputError, match="is damaged: "):
            run.step()


def test_a_source_without_an_area_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no staging area"):
        StreamedBatches("frame", SCHEMA).reader(0, 1)


def test_what_was_planned_comes_back(source: StreamedBatches) -> None:
    assert StreamedBatches("frame", SCHEMA).with_split_plan(source.split_plan()) == source
    assert source.floor(None) == 0
