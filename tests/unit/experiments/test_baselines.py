"""FlinkPlus beside other engines: notes, figures, recoveries, summary and tables, from runs that never ran."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from experiments.baselines import flink, java_tools, jobs, measure, recovery, summary
from experiments.baselines.case import (
    ENGINES,
    FAILURES,
    FLINKPLUS,
    RECOVERY,
    STEADY,
    THROUGHPUT,
    WORKER,
    Case,
    RunFailed,
    job_options,
)
from experiments.baselines.experiment import EXPERIMENT, BaselinesSettings
from experiments.baselines.failures import drawn
from experiments.baselines.java_tools import BaselineMissing
from experiments.baselines.notes import NOTED, Line, read_notes
from experiments.baselines.recovery import Struck
from experiments.baselines.text import Text
from experiments.baselines.trees import TreeSampler, end_tree, kill_tree, tree
from experiments.harness import console
from experiments.harness.arguments import add_options, settings_from
from experiments.harness.statistics import spread_shares
from experiments.harness.text import WORDS_PER_LINE
from flinkplus.errors import ConfigurationError

SETTINGS = BaselinesSettings(engines=(FLINKPLUS, "flink-memory"), jobs=("three-sums",), parallelism=(2,), runs=2)


def parsed(*arguments: str) -> BaselinesSettings:
    parser = argparse.ArgumentParser()
    add_options(parser, BaselinesSettings)
    return settings_from(parser.parse_args(arguments), BaselinesSettings)


def lines(*entries: tuple[float, float, int, tuple[tuple[int, int], ...]]) -> list[Line]:
    return [Line(*entry) for entry in entries]


# --- options and cases


def test_options() -> None:
    settings = parsed("--engines", "spark,flinkplus", "--jobs", "window", "--parallelism", "2,8", "--runs", "3")
    assert settings.engines == ("spark", "flinkplus") and settings.jobs == ("window",)
    assert settings.parallelism == (2, 8) and settings.runs == 3 and settings.rate == 30_000.0
    assert parsed().engines == ENGINES and parsed().parallelism == (1, 2, 4, 8, 16)
    settings.check()
    with pytest.raises(ConfigurationError, match="parallelism"):
        parsed("--parallelism", "100000").check()


@pytest.mark.parametrize("wrong", [("--engines", "storm"), ("--jobs", ""), ("--measures", "steady,steady")])
def test_wrong_options(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*wrong)
    assert "is not a list of" in capsys.readouterr().err


def test_engines_take_turns_within_a_run() -> None:
    cases = [(case.run, case.measure, case.engine) for case in SETTINGS.cases()]
    assert cases[:2] == [(0, "throughput", "flinkplus"), (0, "throughput", "flink-memory")]
    assert cases[6:8] == [(1, "throughput", "flink-memory"), (1, "throughput", "flinkplus")]
    failures = {(case.engine, case.run): case.failures for case in SETTINGS.cases() if case.measure == RECOVERY}
    for run in range(2):
        ours, theirs = failures[FLINKPLUS, run], failures["flink-memory", run]
        assert theirs == tuple(failure for failure in ours if failure.kind != WORKER), "the same for all engines"
    assert EXPERIMENT.total(SETTINGS) == 2 * (2 + 2 + 3 + 2)


def test_a_case_is_the_same_behind_json() -> None:
    case = next(case for case in SETTINGS.cases() if case.measure == RECOVERY)
    assert tuple(failure.kind for failure in case.failures) == FAILURES
    assert Case.from_json(case.to_json()) == case
    assert case.paced == SETTINGS.rate and SETTINGS.cases()[0].paced is None


def test_failures_cover_the_interval_evenly() -> None:
    found = spread_shares(30, np.random.default_rng(1))
    assert sorted(int(share * 30) for share in found) == list(range(30)), "one in each part"
    assert found != sorted(found) and spread_shares(30, np.random.default_rng(1)) == found
    first, second = (drawn(kind, 30, 4, (1, 0)) for kind in FAILURES[:2])
    assert [failure.share for failure in first] != [failure.share for failure in second]
    assert {failure.index for failure in first} == {0, 1, 2, 3}


def test_repeated_failures_share_the_interval_of_all_runs() -> None:
    settings = parsed("--jobs", "three-sums", "--parallelism", "4", "--measures", "recovery", "--failures", "worker")
    settings = dataclasses.replace(settings, runs=3, repeats=5)
    cases = settings.cases()
    assert [(case.engine, len(case.failures)) for case in cases] == [(FLINKPLUS, 5)] * 3, "others have no worker"
    moments = [int(failure.share * 15) for case in cases for failure in case.failures]
    assert sorted(moments) == list(range(15))
    with pytest.raises(ConfigurationError, match="nothing to run"):
        dataclasses.replace(settings, engines=("spark",)).check()


def test_options_of_the_jobs_of_flinkplus() -> None:
    settings = parsed("--memtable-entries", "10000", "--option", "batch_rows=100", "--transport", "grpc")
    settings.check()
    (case, *_) = (case for case in settings.cases() if case.engine == FLINKPLUS)
    options = dict(case.options)
    assert (options["memtable_entries"], options["batch_rows"], options["transport"]) == (10_000, 100, "grpc")
    assert all(not case.options for case in settings.cases() if case.engine != FLINKPLUS)
    assert "memtable_entries" not in parsed().options(1), "the default stays the product's"
    assert job_options(["recovery=rollback"], {}) == {"recovery": "rollback"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("memtable_entries=5", "memtable_entries has an option of its own"),
        ("parallelism=3", "parallelism has an option of its own"),
        ("batch_rws=5", "unknown.*batchRws"),
        ("batch_rows=many", "batchRows must be a number"),
        ("batch_rows", "batchRows must be a number"),
    ],
)
def test_wrong_options_of_the_jobs(wrong: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parsed("--option", wrong, "--memtable-entries", "10000").check()


def test_the_text_holds_most_of_its_vocabulary(tmp_path: Path) -> None:
    assert Text().words == 1_100_000 and Text(1_000_000).words == 3_000_000
    Text(100, uniform=True).write(tmp_path / "text", 1)
    counts = Counter((tmp_path / "text").read_text().split())
    assert len(counts) == 100 and max(counts.values()) < 1.1 * min(counts.values())


def test_settings_of_flink(tmp_path: Path) -> None:
    case = BaselinesSettings(engines=("flink-rocksdb",), interval=0.5).cases()[0]
    found = flink.settings_of(case, tmp_path)
    assert found["state.backend.type"] == "rocksdb" and found["execution.checkpointing.interval"] == "500ms"
    bound = {name: value for name, value in flink.cluster_settings().items() if name.endswith(("address", "host"))}
    assert len(bound) == 6 and set(bound.values()) == {"127.0.0.1"}


# --- the jobs


def test_rows_are_due_in_the_order_of_their_subtask() -> None:
    layout = jobs.Layout(parallelism=2, width=10, rate=1_000.0, block_rows=4)
    due = layout.due_ms(np.array([0, 1, 3, 4, 8, 9]))
    assert due.tolist() == [0.0, 20.0, 60.0, 0.0, 80.0, 100.0], "blocks 0 and 2 are of subtask 0, block 1 of subtask 1"
    assert jobs.Layout(2, 1, None).due_ms(np.array([7])).tolist() == [0.0]


def test_java_programs_have_the_numbers_of_the_jobs() -> None:
    for program in ("flink", "spark"):
        text = (java_tools.SOURCES / program / "Jobs.java").read_text()
        assert f"FACTORS = {{{', '.join(f'{factor:_}' for factor in jobs.FACTORS)}}}" in text
        assert f"KEYS = {{{', '.join(f'{keys:_}' if keys > 999 else str(keys) for keys in jobs.KEYS)}}}" in text
        assert f"WORDS_PER_LINE = {WORDS_PER_LINE}" in text
    assert f"ROWS_PER_MS = {jobs.WINDOW_ROWS_PER_MS}" in (java_tools.SOURCES / "flink" / "Rows.java").read_text()


def test_rows_and_words() -> None:
    batch = jobs.KeyedRows()(50_021, 2)
    assert batch.column("user").to_pylist() == [0, 48_271] and batch.column("value").to_pylist() == [50_021, 50_022]
    timed = jobs.KeyedRows(jobs.Layout(1, 1, 100.0))(0, 3)
    assert timed.column("at").to_pylist() == [0, 10, 20]
    words = jobs.words_of(pa.record_batch({"line": ["a b", "c"], "value": [5, 6]}))
    assert words.to_pydict() == {"word": ["a", "b", "c"], "value": [5, 5, 6]}


# --- notes


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    line = Line(1000.5, 900.25, 7, ((-1, 2), (30, 5)))
    (tmp_path / f"{NOTED}-3.out").write_text(line.text() + "1001.000 900.250 9 1")
    assert read_notes(tmp_path) == {3: [line]}, "a half-written line is left out"
    late = read_notes(tmp_path, origin_ms=10.0)[3][0].late
    assert late == ((-11, 2), (20, 5))
    with pytest.raises(ValueError, match="not enough values"):
        Line.parsed("12")


# --- figures


def test_rows_are_counted_over_incarnations() -> None:
    of_one = lines((0, 0, 0, ()), (1000, 0, 100, ()), (2000, 2000, 1, ()), (3000, 2000, 51, ()))
    assert measure.rows_at(of_one, 500) == 50.0
    assert measure.rows_at(of_one, 2500) == 100 + 26
    assert measure.rows_between({0: of_one, 1: of_one}, 500, 2500) == 2 * 76


def test_latency_counts_the_wait_of_every_row() -> None:
    """An engine that stands still for a second: each row that was due meanwhile has waited, not one of them."""
    stall = tuple((late, 10) for late in range(1000, 0, -10))
    notes = {0: lines((100, 0, 1000, ((1, 1000),)), (1100, 0, 2000, stall))}
    counts = measure.latencies(notes, 0, 2000)
    assert sum(counts.values()) == 2000
    assert measure.latency_figures(counts) == {"latency_p50_ms": 1.0, "latency_p99_ms": 980.0}
    assert measure.latencies(notes, 0, 1000) == Counter({1: 1000})


def test_percentiles_of_counts() -> None:
    assert measure.percentile_of({}, 50) is None
    assert measure.percentile_of({5: 1, 7: 1}, 50) == 5.0
    assert measure.percentile_of({5: 98, 7: 1, 9: 1}, 99) == 7.0
    assert measure.percentile_of({5: 98, 7: 1, 9: 1}, 100) == 9.0


def test_a_row_before_its_time_is_an_error() -> None:
    with pytest.raises(RunFailed, match="before it was due"):
        measure.latency_figures(Counter({-60: 1, 5: 10}))


def test_a_rate_is_held_when_rows_do_not_come_later_and_later() -> None:
    even = {0: lines(*((float(at), 0.0, at, ((20, 10),)) for at in range(100, 10_000, 100)))}
    assert measure.held(even, 0, 10_000)
    behind = {0: lines(*((float(at), 0.0, at, ((at // 10, 10),)) for at in range(100, 10_000, 100)))}
    assert not measure.held(behind, 0, 10_000)
    assert not measure.held({}, 0, 10_000)


# --- recovery


def before_and_after(recovered: float, late_then: int) -> list[Line]:
    """Rows that are 10 ms late every 50 ms until 5,000; the next incarnation repeats, then catches up."""
    usual = [(float(at), 100.0, at, ((10, 5),)) for at in range(100, 5_001, 50)]
    again = [(recovered - 30, recovered - 30, 1, ((int(recovered) - 4_900, 5),))]
    new = [(recovered, recovered - 30, 2, ((late_then, 5),))]
    calm = [(recovered + at, recovered - 30, 3 + at, ((12, 5),)) for at in range(50, 600, 50)]
    return lines(*usual, *again, *new, *calm)


def test_recovery_is_the_first_row_that_was_due_later() -> None:
    notes = {0: before_and_after(5_300.0, late_then=250), 1: lines((5_010, 100.0, 1, ((10, 1),)))}
    struck = Struck(5_020.0, (0,), "a failure")
    assert recovery.first_output_ms(notes, struck) == 250.0
    assert recovery.recovery_ms(notes, struck) == 280.0
    assert recovery.normal_ms(notes, struck) == 30.0
    assert recovery.caught_up_ms(notes, struck, 280.0) == 330.0
    assert recovery.recovery_ms(notes, Struck(5_020.0, (0, 1), "both")) is None, "partition 1 did not come back"
    assert recovery.caught_up_ms(notes, struck, None) is None


def test_a_failure_waits_for_its_moment_of_the_interval() -> None:
    assert recovery.wait_s(0.7, 1.0, checkpoint_ms=10_000.0, now_ms=10_500.0) == pytest.approx(0.2)
    assert recovery.wait_s(0.7, 1.0, checkpoint_ms=10_000.0, now_ms=10_900.0) == pytest.approx(0.8)
    assert recovery.wait_s(0.7, 1.0, checkpoint_ms=10_000.0, now_ms=12_600.0) == pytest.approx(0.1), "one is overdue"
    assert recovery.wait_s(0.7, 1.0, checkpoint_ms=None, now_ms=10_500.0) == 0.7


def reported(begin_s: float | None, detect_ms: float | None) -> dict[str, Any]:
    phases = {f"{phase}_ms": 2.0 for phase in ("fence", "promote", "restore", "replay", "registry", "caught_up")}
    known = {"mode": "standby", "recovery_ms": 9.0, "fallback": None, "subtasks": ["out[1]"], **phases}
    return {**known, "begin_s": begin_s, "detect_ms": detect_ms}


def test_detection_counts_from_the_failure() -> None:
    """Of a process that others kill the engine knows when it noticed, of an exception also when it was raised."""
    killed = recovery.phases_of(reported(5.004, None), struck_ms=5_000.0)
    assert killed["detect_ms"] == 4.0 and killed["fence_ms"] == 2.0 and "subtasks" not in killed
    assert recovery.phases_of(reported(5.001, 3.0), struck_ms=5_000.0)["detect_ms"] == 4.0
    assert recovery.phases_of(reported(None, None), struck_ms=5_000.0)["detect_ms"] is None


class Running:
    """A job that runs, and puts out nothing."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def roots(self) -> list[int]:
        return []

    def origin_ms(self) -> float:
        return 0.0

    def check(self) -> None:
        return None


def test_counters_of_an_engine_are_those_of_the_time_measured(tmp_path: Path) -> None:
    case = dataclasses.replace(SETTINGS.cases()[0], parallelism=1, seconds=0.01, settle=0.0)
    now_ms = time.time() * 1e3
    rows = lines((now_ms - 1e3, now_ms - 1e3, 0, ()), (now_ms + 1e4, now_ms - 1e3, 100, ()))
    (tmp_path / f"{NOTED}-0.out").write_text("".join(line.text() for line in rows))
    totals = iter(({"reads": 100}, {"reads": 130}))
    found = measure.measured(Running(tmp_path), case, threading.Event(), lambda: next(totals))
    assert found["reads"] == 30 and found["rows_per_s"] > 0


def test_the_old_incarnation_does_not_count() -> None:
    notes = {0: lines((4_000, 100.0, 1, ((10, 1),)), (5_050, 100.0, 2, ((10, 1),)))}
    assert recovery.recovery_ms(notes, Struck(5_000.0, (0,), "a failure")) is None


# --- summary, document, tables


def made_up(engine: str, measured: str, run: int, figure: float, **more: Any) -> dict[str, Any]:
    known = {"engine": engine, "job": "three-sums", "parallelism": 2, "measure": measured, "run": run}
    known |= {"failure": "exception" if measured == RECOVERY else None, "error": None}
    return {**known, summary.FIGURES[summary.LEADING[measured]]: figure, **more}


def test_summary_document_and_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = EXPERIMENT.document(SETTINGS, tmp_path / "baselines.json")
    for run, figure in enumerate((90.0, 100.0, 130.0)):
        document.add(made_up(FLINKPLUS, THROUGHPUT, run, figure, cpu_s_per_million=2.0, state_reads_per_row=0.75))
        document.add(made_up("flink-memory", RECOVERY, run, figure, first_output_ms=figure - 1))
        document.add(made_up(FLINKPLUS, RECOVERY, run, figure, recoveries=[reported(5.0, figure)]))
    document.add(made_up(FLINKPLUS, STEADY, 0, 14.0, latency_p99_ms=20.0, held=False))
    failed = made_up(FLINKPLUS, STEADY, 1, 0.0) | {"error": "it broke"}
    document.add(failed)
    content = json.loads((tmp_path / "baselines.json").read_text())
    rows = {(row["engine"], row["measure"]): row for row in content["summary"]}
    throughput = rows[FLINKPLUS, THROUGHPUT]
    assert (throughput["rows_per_s"], throughput["cpu_s_per_million"], throughput["n"]) == (100.0, 2.0, 3)
    assert throughput["low"] == 90.0 and throughput["high"] == 130.0 and throughput["failure"] is None
    assert throughput["intervals"]["cpu_s_per_million"] == [2.0, 2.0] and throughput["state_in"] == "both"
    assert rows[FLINKPLUS, RECOVERY]["phases"]["detect_ms"] == 100.0
    recovered = rows["flink-memory", RECOVERY]
    assert recovered["phases"] == {} and recovered["intervals"]["recovery_median_ms"] == [90.0, 130.0]
    assert recovered["recovery_median_ms"] == 100.0 and recovered["recovery_p95_ms"] == 127.0
    assert recovered["failure"] == "exception" and recovered["first_output_median_ms"] == 99.0
    steady = rows[FLINKPLUS, STEADY]
    assert (steady["n"], steady["failed"], steady["not_held"], steady["low"]) == (1, 1, 1, None)
    wanted = {"engine", "job", "parallelism", "measure", "rows_per_s", "cpu_s_per_million", "latency_p50_ms"}
    wanted |= {"latency_p99_ms", "failure", "recovery_median_ms", "recovery_p95_ms", "n"}
    assert all(wanted <= row.keys() for row in content["summary"])
    assert {
        "uid",
        "nice",
        "load",
        "usable_cores",
        "commit",
        "versions",
        "flink",
        "spark",
        "flinkplus",
    } <= content.keys()
    console.show(*EXPERIMENT.tables(content))
    text = " ".join(capsys.readouterr().out.split())
    assert "three-sums flinkplus both 2 100 (90 - 130) 2.00 (2.00 - 2.00) - - 0.75 3" in text
    assert "in memory up to 2,000,000 keys" in text
    assert "100 (90 - 130)" in text and "14 *" in text and "the rate was not held" in text
    assert "run 1: it broke" in text and "1, 1 failed" in text
    assert "coordinated" not in text and "a schedule that never waits" in text


def test_pictures(tmp_path: Path) -> None:
    content = {"summary": summary.summarize([made_up(FLINKPLUS, THROUGHPUT, 0, 100.0)], 1)}
    assert summary.throughput_by_parallelism(content, tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1_000
    assert not summary.recovery_by_parallelism(content, tmp_path / "none.png")


# --- what is missing


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BaselineMissing, match=r"no javac in JAVA_HOME.*openjdk-17-jdk-headless.*--engines flinkplus"):
        java_tools.compiled(("flink",), [], tmp_path / "home", lambda text: None)
    assert not list((tmp_path / "home").iterdir()), "nothing half made is left"


def test_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        code = 0 if "venv" in command else 1
        return subprocess.CompletedProcess(command, code, "", "looking\nERROR: no route to host\n")

    monkeypatch.setattr(subprocess, "run", refused)
    said: list[str] = []
    with pytest.raises(BaselineMissing, match=r"could not be fetched from PyPI \(ERROR: no route.*--flink-home DIR"):
        java_tools.flink_jars(tmp_path / "home", said.append)
    assert said == [f"fetching apache-flink-libraries==2.3.0 from PyPI, once, into {tmp_path / 'home'}"]
    assert not list((tmp_path / "home").iterdir())


def test_a_home_without_flink(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    with pytest.raises(BaselineMissing, match="holds no flink-dist"):
        java_tools.flink_jars(tmp_path, lambda text: None)
    (tmp_path / "file").touch()
    with pytest.raises(BaselineMissing, match="cannot be written"):
        java_tools.compiled(("flink",), [], tmp_path / "file", lambda text: None)


# --- processes


def parent_of_one() -> subprocess.Popen[bytes]:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    deadline_s = time.monotonic() + 20
    while len(tree([parent.pid])) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return parent


def test_the_use_of_a_tree_and_its_end() -> None:
    parent = parent_of_one()
    try:
        with TreeSampler(lambda: [parent.pid]) as sampler:
            time.sleep(0.6)
        processes = tree([parent.pid])
        assert len(processes) == 2
        assert 0.0 < sampler.cpu_s <= 1.5 * sampler.span_s and sampler.rss_mb > 5
    finally:
        end_tree(parent, patience_s=0.5)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def test_a_tree_is_killed_whole() -> None:
    parent = parent_of_one()
    processes = tree([parent.pid])
    kill_tree(parent.pid)
    assert parent.wait(10) == -9
    gone, alive = psutil.wait_procs(processes, 10)
    assert not alive and len(gone) == 2


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_killed_experiment_leaves_no_engine() -> None:
    """As Java is started: its parent is killed and ends nothing itself."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    parent = f"""
import subprocess, time
from experiments.baselines.trees import bound
child = subprocess.Popen(bound({command!r}), start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        child = psutil.Process(int(started.stdout.readline()))
        while child.cmdline() != command:  # it is bound before that; in the midst of an exec it has none
            time.sleep(0.01)
        started.kill()
    child.wait(10)
