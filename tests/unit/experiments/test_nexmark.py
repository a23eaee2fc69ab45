"""Events, comparison and figures of the experiment on Nexmark."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from experiments.baselines.flink import Flink
from experiments.baselines.java_tools import SOURCES
from experiments.harness.console import show
from experiments.harness.running import RunError
from experiments.nexmark import check, flink, texts
from experiments.nexmark.catalogue import NAMES, QUERIES, Query
from experiments.nexmark.events import AUCTION, BID, FIRST_ID, GROUP, KINDS, PERSON, TIME, events, of_kind
from experiments.nexmark.expected import DUCKDB
from experiments.nexmark.experiment import EXPERIMENT, NexmarkSettings, derived
from experiments.nexmark.flink import FlinkRun, _read
from experiments.nexmark.flink_sql import FLINK, FLINK_LACKS
from experiments.nexmark.page import PAGE, written
from experiments.nexmark.summary import passed, tables
from flinkplus.errors import ConfigurationError

FAR = 123_456_789
COUNT = 2_000


def lines(first: int, count: int, events_per_s: int) -> list[str]:
    """Events as ``Events.java`` prints them."""
    numbers = np.arange(first, first + count)
    found: dict[int, str] = {}
    for kind in KINDS:
        batch = events(kind, numbers, events_per_s)
        columns = [
            pa.array(column.cast(pa.int64()).to_numpy() // 1_000) if column.type == TIME else column
            for column in batch.columns
        ]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        found.update(zip(of_kind(kind, numbers).tolist(), ("\t".join(map(str, row)) for row in rows), strict=True))
    return [found[number] for number in sorted(found)]


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_java_makes_the_same_events() -> None:
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    asked = [(1_000, 0, COUNT), (7_000, FAR, COUNT)]
    arguments = [str(number) for one in asked for number in one]
    command = ["java", *quick, str(SOURCES / "nexmark" / "Events.java"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    found = done.stdout.split("\n")[:-1]
    for at, (events_per_s, first, count) in enumerate(asked):
        assert found[at * COUNT : (at + 1) * COUNT] == lines(first, count, events_per_s)


def test_an_event_depends_on_its_number_alone() -> None:
    numbers = np.arange(FAR, FAR + COUNT)
    for kind in KINDS:
        whole = events(kind, numbers)
        parts = [events(kind, part) for part in np.array_split(numbers, 7)]
        assert pa.Table.from_batches(parts) == pa.Table.from_batches([whole])
        assert events(kind, numbers[:0]).num_rows == 0


def test_the_mix_and_its_ratios() -> None:
    numbers = np.arange(FAR // GROUP * GROUP, FAR // GROUP * GROUP + 20_000)
    made = {kind: events(kind, numbers) for kind in KINDS}
    assert {kind: rows.num_rows for kind, rows in made.items()} == {PERSON: 400, AUCTION: 1_200, BID: 18_400}
    bids = made[BID]
    hot = (bids["auction"].to_numpy() - FIRST_ID) % 100 == 0
    assert hot.mean() == pytest.approx(0.5, abs=0.02)
    assert ((bids["bidder"].to_numpy() - FIRST_ID) % 100 == 1).mean() == pytest.approx(0.75, abs=0.02)
    assert ((made[AUCTION]["seller"].to_numpy() - FIRST_ID) % 100 == 0).mean() == pytest.approx(0.75, abs=0.04)
    assert np.isin(bids["channel"].to_pylist(), texts.HOT_CHANNELS).mean() == pytest.approx(0.5, abs=0.02)
    prices = bids["price"].to_numpy()
    assert prices.min() >= 100 and prices.max() < 10**8
    assert (prices < 10_000).mean() == pytest.approx(2 / 6, abs=0.02)
    times = bids["dateTime"].cast(pa.int64()).to_numpy()
    assert len(np.unique(times)) == len(times) and not (times % 1_000).any()


def test_ids_are_of_what_is_there_or_comes_soon() -> None:
    numbers = np.arange(FAR, FAR + 50_000)
    last = of_kind(BID, numbers) // GROUP * 3 + 2 + FIRST_ID
    behind = last - events(BID, numbers)["auction"].to_numpy()
    assert behind.min() >= -10 and behind.max() <= 100
    early = events(BID, np.arange(0, 1_000))
    assert early["auction"].to_numpy().min() >= FIRST_ID and early["bidder"].to_numpy().min() >= FIRST_ID


# --- the comparison


@pytest.fixture(scope="module")
def made() -> dict[str, pa.Table]:
    pytest.importorskip("duckdb")
    return check.input_tables(COUNT)


def expected(name: str, made: dict[str, pa.Table]) -> pa.Table:
    import duckdb

    with duckdb.connect() as connection:
        for kind, table in made.items():
            connection.register(kind, table)
        found = connection.sql(f"SELECT * FROM ({DUCKDB[name]})").to_arrow_table()
    return found.rename_columns([f"c{at}" for at in range(found.num_columns)])


def of_all_rows(name: str, **changes: Any) -> Query:
    """The query as if all rows of its output were compared as they are."""
    return dataclasses.replace(QUERIES[name], **{"last_of": (), "found": "", **changes})


QUICK = ("q4", "q16", "q19")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_each_query_has_rows_to_compare(name: str, made: dict[str, pa.Table]) -> None:
    rows = expected(name, made)
    assert len(rows) > 0
    query = of_all_rows(name)
    assert check.compare(query, rows, made) == check.Findings(len(rows), 0, 0)


def test_damage_of_an_output_is_found(made: dict[str, pa.Table]) -> None:
    rows, query = expected("q1", made), of_all_rows("q1")
    lost = rows.slice(1)
    assert check.compare(query, lost, made) == check.Findings(len(rows), 1, 0)
    doubled = pa.concat_tables([rows, rows.slice(7, 2)])
    assert check.compare(query, doubled, made) == check.Findings(len(rows), 0, 2)
    changed = pa.concat_tables([lost, rows.slice(0, 1).set_column(0, "c0", pa.array([1]))])
    assert check.compare(query, changed, made) == check.Findings(len(rows), 1, 1)
    assert not check.compare(query, changed, made).exact
    with pytest.raises(RunError, match="q1 cannot be compared"):
        check.compare(query, rows.drop_columns(["c0"]), made)


def test_windows_of_the_clock_are_compared_by_their_sums(made: dict[str, pa.Table]) -> None:
    start = 1_764_000_000_000
    rows = expected("q12", made)
    bidders, bids = rows["c0"].to_pylist(), rows["c1"].to_pylist()
    assert max(bids) > 1
    parts = [(bidder, 1, start) for bidder in bidders]
    parts += [(bidder, n - 1, start + 10_000) for bidder, n in zip(bidders, bids, strict=True) if n > 1]

    def found(parts: list[tuple[int, int, int]], length: int = 10_000) -> check.Findings:
        columns = [pa.array(column) for column in zip(*parts, strict=True)]
        starts = columns[2].cast(pa.timestamp("ms", "UTC"))
        ends = pc.add(columns[2], length).cast(pa.timestamp("ms", "UTC"))
        names = ["bidder", "bid_count", "starttime", "endtime"]
        return check.compare(QUERIES["q12"], pa.table([*columns[:2], starts, ends], names), made)

    assert found(parts) == check.Findings(len(rows), 0, 0)
    assert found(parts[1:]).lost == 1, "a window is lost"
    assert found([*parts, parts[0]]).wrong == 1, "a window comes twice"
    assert found([*parts[:-1], (*parts[-1][:2], start)]).wrong == 1, "a window is emitted in two parts"
    assert found(parts, 5_000).wrong == len(rows), "windows are too short"


def test_the_last_row_of_a_key_counts(made: dict[str, pa.Table]) -> None:
    rows = expected("q18", made)
    query = of_all_rows("q18", last_of=("c1", "c0"))
    earlier = rows.set_column(2, "c2", pa.array([0] * len(rows)))
    assert check.compare(query, pa.concat_tables([earlier, rows]), made).exact
    assert check.compare(query, pa.concat_tables([rows, earlier]), made).lost == len(rows)


# --- settings and figures


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flink_conf": ["a"]}, "NAME=VALUE"),
        ({"compare": False, "throughput": False}, "nothing to run"),
        ({"parallelism": 100_000}, "parallelism"),
    ],
)
def test_bad_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        NexmarkSettings(**given).check()


def test_without_duckdb_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(ConfigurationError, match=r"flinkplus\[experiments\]"):
        NexmarkSettings().check()
    NexmarkSettings(compare=False).check()


def test_the_order_of_runs() -> None:
    settings = NexmarkSettings(queries=("q0", "q6"), engine=("flinkplus", "flink-memory"), kill=True, runs=2)
    of_q0 = [("flinkplus", kind) for kind in ("exact", "kill", "throughput")]
    own = [("q6", *case) for case in of_q0]
    assert [case[1:] for case in settings.cases() if case[0] == 0] == [
        *(("q0", *case) for case in of_q0),
        ("q0", "flink-memory", "throughput"),
        *own,
        ("q6", "flink-memory", "lacks"),
    ]
    assert [case[1:] for case in settings.cases() if case[0] == 1] == [
        ("q0", "flink-memory", "throughput"),
        *(("q0", *case) for case in of_q0),
        *own,
    ]
    assert EXPERIMENT.total(settings) == len(settings.cases()) == 15


def run(query: str, engine: str, kind: str, **figures: Any) -> dict[str, Any]:
    return {"query": query, "engine": engine, "kind": kind, "run": 0, "error": None, **figures}


def test_figures_of_queries(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        run("q0", "flinkplus", "exact", exact=True),
        run("q0", "flinkplus", "kill", exact=False, lost=3, wrong=0, recovery_ms=40.0, restart_ms=20.0, mode="standby"),
        *(run("q0", "flinkplus", "throughput", events_per_s=rate, cpu_s_per_million=1.0) for rate in (1.0, 3.0, 8.0)),
        run("q0", "flink-memory", "throughput", events_per_s=1.5, cpu_s_per_million=2.0),
        run("q7", "flinkplus", "throughput", events_per_s=6.0),
        run("q7", "flink-memory", "throughput", events_per_s=0.5),
        run("q6", "flink-memory", "lacks", lacks="updates"),
    ]
    content = {**derived(runs), "runs": runs}
    first = content["queries"][0]
    assert (first["events_per_s"], first["cpu_s_per_million"], first["recovery_ms"]) == (3.0, 1.0, 40.0)
    assert (first["exact"], first["exact_with_kill"]) == (True, False)
    assert first["recovered_by"] == "standby"
    assert content["queries"][1]["exact"] is content["queries"][1]["recovered_by"] is None
    assert content["ratios"] == {
        "flink-memory": {"geometric_mean": pytest.approx(4.899), "least": 2.0, "least_of": "q0", "queries": 2}
    }
    assert not passed(runs) and passed(runs[2:])
    show(*tables(content))
    shown = capsys.readouterr().out
    assert "yes/NO" in shown and "q6, flink-memory: lacks updates" in shown and "lost 3" in shown


def test_the_count_of_flink(tmp_path: Path) -> None:
    progress = tmp_path / "progress"
    assert _read(progress) == (0, 0)
    progress.write_text("17 5\n18 6")
    assert _read(progress) == (17, 5)


WRITES = """
import sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert open(given["--sql"]).read().startswith("SELECT")
count = 0
while True:
    count += 500
    with open(given["--progress"], "a") as progress:
        progress.write(f"{round(time.time() * 1e3)} {count}\\n")
    time.sleep(0.01)
"""


@dataclasses.dataclass(frozen=True)
class PythonInstead(Flink):
    """A program in place of Flink."""

    program: str = WRITES

    def command(self, heap_mb: int, directory: Path, main: str, arguments: Sequence[str] = ()) -> list[str]:
        return [sys.executable, "-S", "-c", self.program, *arguments]


def flink_run(directory: Path, program: str) -> FlinkRun:
    return FlinkRun(PythonInstead((), directory, program), "q2", "flink-rocksdb", 2, 1.0, directory, {})


def test_the_rate_of_flink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink, "SETTLE_S", 0.0)
    found = flink_run(tmp_path, WRITES).throughput(0.2, threading.Event())
    assert 0 < found["events_per_s"] <= 51_000 and found["cpu_s_per_million"] >= 0 and found["rss_mb"] > 0
    assert read_is_over(tmp_path / "progress"), "the process has ended"


def read_is_over(progress: Path) -> bool:
    before = progress.read_text()
    time.sleep(0.05)
    return progress.read_text() == before


def test_flink_that_ends_or_is_interrupted(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="Flink has ended: SomeException: broken"):
        flink_run(tmp_path, "raise SystemExit('SomeException: broken')").throughput(0.2, threading.Event())
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunError, match="interrupted"):
        flink_run(tmp_path, "import time; time.sleep(600)").throughput(0.2, stop)


# --- the documentation


def test_every_query_is_drawn_and_has_rows_that_are_expected() -> None:
    assert NAMES == tuple(f"q{number}" for number in range(23)) == tuple(DUCKDB)
    assert sorted([*FLINK, *FLINK_LACKS]) == sorted(NAMES)
    assert all(query.title for query in QUERIES.values())


def test_the_page_shows_the_code_of_each_query() -> None:
    """If not: python -m experiments.nexmark.page"""
    page = PAGE.read_text("utf-8")
    assert written(page) == page


def test_a_page_without_markers_is_not_written() -> None:
    with pytest.raises(ValueError, match="queries: begin"):
        written("text")
