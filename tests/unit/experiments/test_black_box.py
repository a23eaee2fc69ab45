"""The checker that knows the input alone, with made-up outputs; and what comes of its findings."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.blackbox import feeding, pipelines
from experiments.blackbox.checker import delta
from experiments.blackbox.checker.delta import DeltaWatch
from experiments.blackbox.checker.files import FilesWatch
from experiments.blackbox.checker.history import (
    DOUBLED,
    KINDS,
    LOST,
    REORDERED,
    RETRACTED,
    TORN,
    WRONG,
    History,
    Input,
    Row,
    linked,
)
from experiments.blackbox.experiment import EXPERIMENT, BlackBoxSettings, more, runs
from experiments.blackbox.faults import BROKER, RESCALE, WEIGHTS, drawn
from experiments.blackbox.faults import KINDS as FAULTS
from experiments.blackbox.feeding import FileFeeder
from experiments.blackbox.pipelines import PIPELINES, Job, Place
from experiments.blackbox.tables import summarize, tables
from experiments.harness.console import show
from experiments.harness.running import Context as RunContext
from experiments.harness.running import RunError
from flinkplus.errors import ConfigurationError

CHECKER = Path(pipelines.__file__).parent / "checker"
TWO_STAGES = Input(rows=600, readers=3, keys=7, buckets=5, seed=11, cuts=False)
ONE_STAGE = replace(TWO_STAGES, buckets=0, cuts=True)


def interleaving(given: Input, seed: int) -> list[Row]:
    """What a job makes that takes rows of its readers in a random order, by the words of ``history``."""
    chance = random.Random(seed)
    readers = [list(range(reader, given.rows, given.readers)) for reader in range(given.readers)]
    counts: defaultdict[int, int] = defaultdict(int)
    ends: defaultdict[int, tuple[int, str]] = defaultdict(lambda: (0, ""))
    rows = []
    while left := [reader for reader in readers if reader]:
        i = chance.choice(left).pop(0)
        a = given.key(i)
        counts[a] += 1
        n = counts[a]
        place = given.bucket(a, n) if given.buckets else a
        m, chain = ends[place]
        chain = linked(chain, i, a, n)
        ends[place] = m + 1, chain
        rows.append(Row(i, a, n, place if given.buckets else 0, m + 1 if given.buckets else 0, chain))
    return rows


def looks(rows: list[Row], seed: int) -> Iterator[list[Row]]:
    """Rows as they become visible: in their order, some at a time."""
    chance = random.Random(seed)
    rows = list(rows)
    while rows:
        count = chance.randint(1, 40)
        found, rows = rows[:count], rows[count:]
        chance.shuffle(found)
        yield found


def history(given: Input, rows: list[Row], seed: int = 1) -> History:
    found = History(given)
    for seen in looks(rows, seed):
        found.take(seen)
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("given", [TWO_STAGES, ONE_STAGE], ids=["two", "one"])
def test_any_interleaving_is_exact(given: Input, seed: int) -> None:
    rows = interleaving(given, seed)
    found = history(replace(given, cuts=False), rows, seed)
    found.compare(random.Random(seed).sample(rows, len(rows)))
    found.end()
    assert found.exact, found.examples


def test_a_cut_has_the_first_rows_of_each_reader() -> None:
    rows = interleaving(ONE_STAGE, 1)
    found = History(ONE_STAGE)
    for at in range(0, len(rows), 50):
        found.take(rows[at : at + 50])
    found.end()
    assert found.exact, found.examples
    torn = History(ONE_STAGE)
    torn.take([row for row in rows[:300] if row.a != 3])  # as if one subtask's file were not committed
    assert torn.found[TORN] > 0 and torn.found[REORDERED] == 0


def without(rows: list[Row], at: int) -> list[Row]:
    return rows[:at] + rows[at + 1 :]


def swapped(rows: list[Row], at: int) -> list[Row]:
    """Two rows of a key and a reader have changed numbers."""
    one = rows[at]
    other = next(row for row in rows[at + 1 :] if row.a == one.a and row.i % 3 == one.i % 3)
    changed = {one.i: one._replace(i=other.i), other.i: other._replace(i=one.i)}
    return [changed.get(row.i, row) for row in rows]


DAMAGE: dict[str, tuple[str, Callable[[list[Row]], list[Row]]]] = {
    "a row is missing in the middle": (REORDERED, lambda rows: without(rows, 300)),
    "the last row is missing": (LOST, lambda rows: rows[:-1]),
    "a row comes again": (DOUBLED, lambda rows: [*rows, rows[17]]),
    "a number comes again": (
        DOUBLED,
        lambda rows: [*rows[:-1], rows[-1]._replace(n=1, b=TWO_STAGES.bucket(rows[-1].a, 1))],
    ),
    "rows of a reader change places": (REORDERED, lambda rows: swapped(rows, 100)),
    "a hash does not follow": (REORDERED, lambda rows: [*rows[:50], rows[50]._replace(chain="no"), *rows[51:]]),
    "no such row": (WRONG, lambda rows: [*rows, rows[0]._replace(i=600)]),
    "another key": (WRONG, lambda rows: [rows[0]._replace(a=rows[0].a + 1), *rows[1:]]),
    "another bucket": (WRONG, lambda rows: [rows[0]._replace(b=rows[0].b + 1), *rows[1:]]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: str) -> None:
    kind, change = DAMAGE[damage]
    found = history(TWO_STAGES, change(interleaving(TWO_STAGES, 5)))
    found.end()
    assert found.found[kind] > 0, found.found
    assert found.examples[kind]


def test_a_row_that_is_taken_back_is_found_once() -> None:
    rows = interleaving(TWO_STAGES, 2)
    found = history(TWO_STAGES, rows[:200])
    found.compare(without(rows[:200], 100))
    found.compare(without(rows[:210], 100))
    assert {kind: times for kind, times in found.found.items() if times} == {RETRACTED: 1}
    assert "it is gone" in found.examples[RETRACTED][0]
    changed = history(TWO_STAGES, rows[:200])
    changed.compare([*rows[:199], rows[199]._replace(m=rows[199].m + 1)])
    assert changed.found[RETRACTED] == 1 and "now it is Row" in changed.examples[RETRACTED][0]


def test_a_mixed_history_is_found() -> None:
    """What a job shows that goes back after row 200 and then chooses otherwise, without taking anything back."""
    first, second = interleaving(TWO_STAGES, 3), interleaving(TWO_STAGES, 4)
    shown = {row.i for row in first[:200]}
    found = history(TWO_STAGES, [*first[:200], *(row for row in second if row.i not in shown)])
    assert found.found[DOUBLED] > 0


def test_a_second_copy_is_found_by_a_full_look() -> None:
    rows = interleaving(TWO_STAGES, 2)
    found = history(TWO_STAGES, rows)
    found.compare([*rows, rows[3]])
    found.compare([*rows, rows[3]])
    assert {kind: times for kind, times in found.found.items() if times} == {DOUBLED: 1}


# --- the stages of the jobs, against the words of the checker


class Context:
    """The state of a key, as a stage uses it."""

    def __init__(self) -> None:
        self.value: Any = None

    def state(self, name: str) -> Context:
        return self

    def get(self, default: Any) -> Any:
        return default if self.value is None else self.value

    def put(self, value: Any) -> None:
        self.value = value


class Given:
    """A row, as a stage is given it."""

    def __init__(self, **columns: Any) -> None:
        self.__dict__.update(columns)


def test_the_stages_do_what_the_checker_expects() -> None:
    given = Input(rows=300, readers=2, keys=pipelines.KEYS, buckets=pipelines.BUCKETS, seed=9, cuts=False)
    contexts: defaultdict[int, Context] = defaultdict(Context)
    counts: defaultdict[int, int] = defaultdict(int)
    two, one = [], []
    keyed: defaultdict[int, Context] = defaultdict(Context)
    for i in range(300):
        row = pipelines.NumberedRow(9)(i)
        counts[row[1]] += 1
        batch = pa.record_batch({"i": [row[0]], "a": [row[1]], "n": [counts[row[1]]]})
        (b,) = pipelines.with_bucket(batch).column("b").to_pylist()
        two += pipelines.ranked(b, Given(i=row[0], a=row[1], n=counts[row[1]]), contexts[b])
        one += [
            (*found[:3], 0, 0, found[3])
            for found in pipelines.numbered(row[1], Given(i=row[0], a=row[1]), keyed[row[1]])
        ]
    for rows, spec in ((two, given), (one, replace(given, buckets=0))):
        found = history(spec, [Row(*row) for row in rows])
        found.end()
        assert found.exact, found.examples
    assert json.loads(pipelines.NumberedRecord(9)(7)) == {"i": 7, "a": given.key(7)}
    lines = pa.record_batch({"value": ["7", "8"]})
    assert pipelines.Numbers(9)(lines).column("a").to_pylist() == [given.key(7), given.key(8)]


# --- files


def write_batch(directory: Path, batch: str, *files: tuple[str, list[Row]]) -> None:
    lines = ["v1"]
    for name, rows in files:
        path = directory / name
        if rows:
            columns = {field: [getattr(row, field) for row in rows] for field in ("i", "a", "n", "chain")}
            pq.write_table(pa.table(columns), path)
        lines.append(json.dumps({"path": path.as_uri(), "size": 1, "action": "add"}))
    (directory / "_spark_metadata").mkdir(exist_ok=True)
    (directory / "_spark_metadata" / batch).write_text("\n".join(lines))


def test_files_are_visible_when_the_list_names_them(tmp_path: Path) -> None:
    rows = interleaving(ONE_STAGE, 6)
    found = History(ONE_STAGE)
    watch = FilesWatch(found, tmp_path)
    watch.look()
    assert watch.looks == 0 and not watch.look_at_all()
    write_batch(tmp_path, "9.compact")
    write_batch(tmp_path, "10", ("a b.parquet", rows[:300]))
    pq.write_table(pa.table({"i": [1]}), tmp_path / "not-listed.parquet")
    watch.look()
    assert len(found.known) == 300
    write_batch(tmp_path, "11", ("c.parquet", rows[300:]))
    assert watch.look_at_all() and len(found.known) == 600
    found.end()
    assert found.exact, found.examples


def test_files_that_go_and_files_that_are_torn(tmp_path: Path) -> None:
    rows = interleaving(ONE_STAGE, 6)
    found = History(ONE_STAGE)
    watch = FilesWatch(found, tmp_path)
    write_batch(tmp_path, "10", ("a.parquet", rows[:200]), ("b.parquet", rows[200:300]))
    watch.look()
    write_batch(tmp_path, "10", ("a.parquet", rows[:200]))
    watch.look()
    assert found.found[RETRACTED] == 100
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    write_batch(tmp_path, "11", ("d.parquet", []), ("gone.parquet", []))
    watch.look()
    assert found.found[TORN] == 2


# --- a Delta table


def write_version(table: Path, version: int, *files: tuple[str, list[Row]], more: str = "", rows: int = 0) -> None:
    """A commit. ``rows``: how many more the log says of each file; ``more``: further lines."""
    lines = [json.dumps({"commitInfo": {}})]
    for name, found in files:
        path = table / name
        if found:
            pq.write_table(pa.table({field: [getattr(row, field) for row in found] for field in Row._fields}), path)
        size = path.stat().st_size if path.exists() else 1
        stats = json.dumps({"numRecords": len(found) + rows})
        lines.append(json.dumps({"add": {"path": name.replace(" ", "%20"), "size": size, "stats": stats}}))
    (table / delta.LOG).mkdir(exist_ok=True)
    (table / delta.LOG / f"{version:020}.json").write_text("\n".join([*lines, more]))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, History, DeltaWatch]:
    """Its watch looks at the files each time. The rows are those of ``CUTS``."""
    monkeypatch.setattr(delta, "CHECK_S", -1.0)
    found = History(CUTS)
    return tmp_path, found, DeltaWatch(found, tmp_path)


CUTS = replace(TWO_STAGES, cuts=True)


def test_the_versions_of_a_table_are_cuts(table: tuple[Path, History, DeltaWatch]) -> None:
    directory, found, watch = table
    rows = interleaving(CUTS, 6)
    assert not watch.look_at_all() and watch.looks == 0
    write_version(directory, 0)
    write_version(directory, 1, ("a b.parquet", rows[:100]), ("c.parquet", rows[100:300]))
    pq.write_table(pa.table({"i": [1]}), directory / "not-added.parquet")
    (directory / delta.LOG / "_last_checkpoint").write_text("{}")
    watch.look()
    assert len(found.known) == 300
    write_version(directory, 2)
    write_version(directory, 3, ("d.parquet", rows[300:]))
    assert watch.look_at_all()
    found.end()
    assert found.exact and watch.looks == 2, found.examples
    torn = History(CUTS)
    write_version(directory, 1, ("c.parquet", [row for row in rows[:300] if row.b != 2]))
    DeltaWatch(torn, directory).look()
    assert torn.found[TORN] > 0


def removes(directory: Path) -> None:
    write_version(directory, 2, more=json.dumps({"remove": {"path": "a.parquet"}}))


def overwrites(directory: Path) -> None:
    write_version(directory, 1)


def lengthens(directory: Path) -> None:
    with (directory / "a.parquet").open("ab") as file:
        file.write(b"PAR1")


TAMPERING: dict[str, tuple[str, int, Callable[[Path], object]]] = {
    "a version removes a file": (RETRACTED, 200, removes),
    "a file is gone": (RETRACTED, 200, lambda directory: (directory / "a.parquet").unlink()),
    "a version has changed": (RETRACTED, 1, overwrites),
    "a version is gone": (RETRACTED, 1, lambda directory: (directory / delta.LOG / f"{1:020}.json").unlink()),
    "a version is left out": (TORN, 1, lambda directory: write_version(directory, 3)),
    "a line is no action": (TORN, 1, lambda directory: write_version(directory, 2, more='{"add"')),
    "a file is not there": (TORN, 1, lambda directory: write_version(directory, 2, ("b.parquet", []))),
    "a file is added again": (TORN, 1, lambda directory: write_version(directory, 2, ("a.parquet", []), rows=200)),
    "a file has other bytes": (TORN, 1, lengthens),
}


@pytest.mark.parametrize("tampering", TAMPERING)
def test_what_happens_to_a_table_is_found(table: tuple[Path, History, DeltaWatch], tampering: str) -> None:
    directory, found, watch = table
    kind, times, tamper = TAMPERING[tampering]
    write_version(directory, 0)
    write_version(directory, 1, ("a.parquet", interleaving(CUTS, 6)[:200]))
    watch.look()
    assert found.exact and len(found.known) == 200, found.examples
    tamper(directory)
    watch.look()
    watch.look_at_all()
    assert found.found[kind] >= times and found.examples[kind], found.found


def test_a_file_with_fewer_rows_than_the_log_says(table: tuple[Path, History, DeltaWatch]) -> None:
    directory, found, watch = table
    write_version(directory, 0, ("a.parquet", interleaving(CUTS, 6)[:200]), rows=1)
    watch.look()
    assert {kind: times for kind, times in found.found.items() if times} == {TORN: 1}


# --- feeders


def test_files_come_whole_in_their_order_and_wait_for_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "PAUSES_S", (0.0,))
    monkeypatch.setattr(feeding, "LEAD_S", 0.005)
    visible = [0]
    feeder = FileFeeder(100, 10_000.0, 1, lambda: visible[0], 20, tmp_path, lambda file: f"{file}\n")
    feeder.start()
    try:
        deadline = time.monotonic() + 30
        while feeder.given < 40 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert feeder.given == 40, "50 rows may be ahead, and a file has 20"
        with feeder.held():
            feeder.hurry()
            visible[0] = 100
            assert not feeder._stop.wait(0.02) and len(list(tmp_path.glob("*.txt"))) == 2
        while feeder.given < 100 and time.monotonic() < deadline:
            time.sleep(0.001)
    finally:
        feeder.close()
    feeder.check()
    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["0\n", "1\n", "2\n", "3\n", "4\n"]


def test_a_feeder_that_fails(tmp_path: Path) -> None:
    feeder = FileFeeder(100, 1e6, 1, lambda: 0, 20, tmp_path / "missing", str)
    feeder.start()
    feeder._thread.join()
    with pytest.raises(RunError, match="could not be given: FileNotFoundError"):
        feeder.check()
    feeder.close()


# --- the checker as a program


def test_the_checker_imports_nothing_of_the_project() -> None:
    allowed = {*sys.stdlib_module_names, "psycopg", "pyarrow"}
    sources = sorted(CHECKER.glob("*.py"))
    assert len(sources) == 6
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= 1
                names = [] if node.level else [node.module or ""]
            assert {name.partition(".")[0] for name in names} <= allowed, (path.name, names)


def test_the_checker_runs_by_itself(tmp_path: Path) -> None:
    rows = interleaving(ONE_STAGE, 7)
    output = tmp_path / "output"
    output.mkdir()
    write_batch(output, "10", ("a.parquet", rows[:-1]))
    given = {"input": ONE_STAGE.__dict__, "directory": str(output), "status": str(tmp_path / "status.json")}
    for line, lost in (("", 1), ("unfinished\n", 0)):
        done = subprocess.run(
            [sys.executable, "-m", "checker"],
            cwd=CHECKER.parent,
            input=json.dumps(given) + "\n" + line,
            text=True,
            timeout=60,
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        status = json.loads((tmp_path / "status.json").read_text())
        assert status["done"] and status["rows"] == 599 and status["found"][LOST] == lost


# --- faults, rounds, rows


def test_faults_come_from_the_seed() -> None:
    kinds = FAULTS
    assert set(kinds) == set(WEIGHTS)
    one = drawn(3, 1, "postgres-at-once", kinds, 400)
    assert one == drawn(3, 1, "postgres-at-once", kinds, 400) != drawn(4, 1, "postgres-at-once", kinds, 400)
    assert {draw.kind for draw in one.draws} >= set(kinds) - {RESCALE}
    rescaled = [number for number in range(60) if drawn(number, 1, "", kinds, 100).rescales]
    assert 10 < len(rescaled) < 30 and drawn(0, 1, "", (RESCALE,), 1).rescales
    assert 50 < sum(draw.overlaps for draw in one.draws) < 150
    assert not one.draws[0].overlaps
    assert {drawn(number, 1, "", kinds, 1).recovery for number in range(20)} == {"standby", "rollback", "partial"}


def test_what_may_come_and_how_a_round_is_repeated() -> None:
    settings = BlackBoxSettings(seed=7, kind=("slot", "cut"))
    assert settings.kinds("files-parquet") == ("slot",) and settings.kinds("postgres-at-once") == ("slot", "cut")
    assert settings.pipelines == ("postgres-at-once", "postgres-checkpoint", "files-parquet", "files-delta")
    assert [settings.round(number).pipeline for number in range(5)] == [*settings.pipelines, "postgres-at-once"]
    assert replace(settings, kafka_jars="here").pipelines == tuple(PIPELINES)
    assert "--seed 7 --first 2 --rounds 1" in settings.repeated(settings.round(2))
    with pytest.raises(ConfigurationError, match="meets none"):
        BlackBoxSettings(kind=("cut",)).check()
    for fault, pipeline in (("apart", "postgres-at-once"), ("late", "postgres-at-once"), ("halves", "files-delta")):
        with pytest.raises(ConfigurationError, match=f"--break {fault} is for --pipeline {pipeline}"):
            BlackBoxSettings(broken=fault).check()
    with pytest.raises(ConfigurationError, match="kafka-postgres-at-once needs --kafka-jars DIR"):
        BlackBoxSettings(pipeline=("kafka-postgres-at-once",)).check()


def test_jars_that_are_none(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    with pytest.raises(ConfigurationError, match="no jars of Kafka"):
        BlackBoxSettings(pipeline=("kafka-postgres-at-once",), kafka_jars=str(tmp_path)).check()


def test_which_faults_a_pipeline_meets() -> None:
    """All that can come: rescales where rows are not visible at once, servers where there are any."""
    for name, pipeline in PIPELINES.items():
        expected = {"slot", "two-slots", "all-slots", "driver", "stop"}
        expected |= set() if "files" in name else {"server", "cut", "deaf", "pause"}
        expected |= {BROKER} if "kafka" in name else set()
        expected |= set() if "at-once" in name else {RESCALE}
        assert set(pipeline.kinds) == expected
    fixed = [drawn(number, 1, "files-delta", FAULTS, 100, PIPELINES["files-delta"].rescaled) for number in range(20)]
    assert all(one.rescales for one in fixed)


def test_parts_are_put_together(tmp_path: Path) -> None:
    paths = []
    for part, found in enumerate((rounds()[:1], rounds()[1:])):
        path = tmp_path / f"{part}.json"
        path.write_text(json.dumps({"experiment": "black-box", "commit": f"c{part}", "nice": part, "runs": found}))
        paths.append(str(path))
    settings = BlackBoxSettings(parts=",".join(paths))
    settings.check()
    assert [(one["part"], one["round"]) for one in runs(RunContext(None, settings, tmp_path))] == [
        (0, 0),
        (1, 1),
        (1, 2),
    ]
    assert [(part["commit"], part["nice"]) for part in more(settings)["parts"]] == [("c0", 0), ("c1", 1)]
    (tmp_path / "0.json").write_text('{"experiment": "soak"}')
    with pytest.raises(ConfigurationError, match=r"0\.json is not of"):
        settings.check()
    with pytest.raises(ConfigurationError, match="cannot read none"):
        BlackBoxSettings(parts="none").check()


def test_a_job_survives_its_document() -> None:
    job = Job("files-parquet", 10, 5.0, 3, Place("here"), {"parallelism": 3})
    assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert (job.readers, replace(job, rescales=True).readers) == (3, 10)
    assert RESCALE in PIPELINES["files-parquet"].kinds and RESCALE not in PIPELINES["postgres-at-once"].kinds


def rounds() -> list[dict[str, Any]]:
    def fault(kind: str, **found: int) -> dict[str, Any]:
        return {"kind": kind, "overlaps": False, "found": found, "recovered_s": 1.5}

    exact = {"round": 0, "pipeline": "postgres-at-once", "struck": [fault("slot"), fault("driver")], "found": {}}
    exact |= {"exact": True, "error": None, "rows": 10, "looks": 4, "took_s": 2.0, "examples": {}}
    damaged = {**exact, "round": 1, "struck": [fault("slot", doubled=2)], "found": {"doubled": 2}, "exact": False}
    failed = {**exact, "round": 2, "pipeline": "files-parquet", "struck": [], "exact": False, "error": "RunError: no"}
    return [exact, {**damaged, "examples": {"doubled": ["row 4"]}}, failed]


def test_rows_by_pipeline_and_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    found = summarize(rounds())
    files, table, everything = found["summary"]
    assert (files["pipeline"], files["failed"], files["faults"]) == ("files-parquet", 1, 0)
    assert (table["rounds"], table["exact"], table["faults"], table["doubled"]) == (2, 1, 3, 2)
    assert everything["pipeline"] == "all" and {*KINDS, "rows", "looks", "took_s"} <= set(everything)
    assert [(row["kind"], row["faults"], row["doubled"]) for row in found["by_kind"]] == [
        ("driver", 1, 0),
        ("slot", 2, 2),
    ]
    show(*tables({"runs": rounds(), **found}))
    shown = capsys.readouterr().out
    assert "RunError: no" in shown and "row 4" in shown
    settings = BlackBoxSettings()
    assert not EXPERIMENT.passed(settings, {"runs": rounds()})
    assert EXPERIMENT.passed(settings, {"runs": rounds()[:1]})
    broken = replace(settings, broken="apart")
    assert EXPERIMENT.passed(broken, {"runs": rounds()}) and not EXPERIMENT.passed(broken, {"runs": rounds()[:1]})
