"""When rows become visible: the check of the table, and figures from made-up answers of a reader."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.baselines.jobs import Layout
from experiments.harness.console import show
from experiments.harness.running import RunError
from experiments.visibility import job, measure, pictures
from experiments.visibility.experiment import EXPERIMENT, VisibilitySettings, _without_password
from experiments.visibility.reader import Polls
from experiments.visibility.summary import summarize
from experiments.visibility.tables import tables

COUNT = 40_000


def columns(count: int = COUNT) -> tuple[Any, Any, Any]:
    table = job.numbered_rows(count)
    keys, values, ns = (table[name].to_numpy().copy() for name in ("key", "value", "n"))
    return keys, values, ns


def test_the_rows_of_one_client_are_exact() -> None:
    keys, values, ns = columns()
    assert job.check(keys, values, ns, COUNT) == job.Findings(0, 0, 0)
    (of_one_key,) = np.nonzero(keys == keys[0])
    assert ns[of_one_key].tolist() == list(range(1, len(of_one_key) + 1))
    text = b"".join(job.csv_pieces(job.numbered_rows(3))).decode()
    assert list(csv.reader(text.splitlines())) == [
        ["0", "0", "1", "1"],
        ["8243", "1", "1", "1"],
        ["6479", "2", "1", "1"],
    ]


def test_rows_of_a_key_may_come_in_any_order() -> None:
    keys, values, ns = columns()
    (of_one_key,) = np.nonzero(keys == keys[0])
    ns[of_one_key] = ns[of_one_key][::-1]
    assert job.check(keys, values, ns, COUNT).exact


def test_damage_of_a_table_is_found() -> None:
    keys, values, ns = columns()
    assert job.check(keys[:-1], values[:-1], ns[:-1], COUNT) == job.Findings(lost=1, doubled=0, wrong=0)
    twice = job.check(np.r_[keys, keys[:1]], np.r_[values, values[:1]], np.r_[ns, ns[:1]], COUNT)
    assert (twice.lost, twice.doubled) == (0, 1) and twice.wrong > 0
    ns[5] += 1
    assert not job.check(keys, values, ns, COUNT).exact
    keys, values, ns = columns()
    keys[7] += 1
    assert not job.check(keys, values, ns, COUNT).exact
    assert job.check(keys[:0], values[:0], ns[:0], 2) == job.Findings(lost=2, doubled=0, wrong=0)


# --- figures

LAYOUT = Layout(2, 1, 1_000.0, block_rows=10)


def polls(late_ms: float, count: int, every_ms: float = 10.0, origin_s: float = 100.0) -> Polls:
    """Each row is readable so late, at the next poll."""
    due_ms = LAYOUT.due_ms(np.arange(count))
    numbers = np.argsort(due_ms, kind="stable")
    answered = origin_s + np.arange(1, 2 + (due_ms.max() + late_ms) / every_ms) * every_ms / 1e3
    poll = np.ceil((due_ms[numbers] + late_ms) / every_ms - 1e-9).astype(int) - 1
    return Polls(answered - 0.001, answered, numbers, np.maximum(poll, 0))


def test_a_time_counts_from_when_the_row_was_due() -> None:
    times = measure.times_ms(polls(20.0, 1_000), LAYOUT, 100.0, 1_000)
    found = measure.steady_figures(times, LAYOUT, 0.1, 0.5)
    assert found["rows"] == 400
    assert 20 <= found["p50_ms"] <= 30 and found["max_ms"] == pytest.approx(29, abs=1.1)
    assert len(found["quantiles_ms"]) == len(measure.QUANTILES)


def test_rows_that_wait_for_a_slow_job_count_with_all_of_their_wait() -> None:
    """Nothing is readable for 300 ms; then everything is."""
    seen = polls(5.0, 1_000)
    stalled = np.maximum(seen.readable_s, np.where(seen.readable_s > 100.2, 100.5, 0))
    late = Polls(seen.asked_s, np.r_[seen.answered_s, stalled], seen.numbers, len(seen.answered_s) + seen.poll)
    late = Polls(late.asked_s, stalled, seen.numbers, np.arange(len(stalled)))
    times = measure.times_ms(late, LAYOUT, 100.0, 1_000)
    assert measure.steady_figures(times, LAYOUT, 0.2, 0.5)["p50_ms"] == pytest.approx(150, abs=12)


def test_a_row_that_was_never_seen_is_an_error() -> None:
    seen = polls(20.0, 1_000)
    keep = seen.numbers != 500
    times = measure.times_ms(
        Polls(seen.asked_s, seen.answered_s, seen.numbers[keep], seen.poll[keep]), LAYOUT, 100.0, 1_000
    )
    with pytest.raises(RunError, match="never saw 1 of"):
        measure.steady_figures(times, LAYOUT, 0.1, 0.9)
    with pytest.raises(RunError, match="never saw 0 of 0"):
        measure.between(times, LAYOUT, 5.0, 6.0)


def test_a_row_that_comes_before_it_is_due_is_an_error() -> None:
    with pytest.raises(RunError, match="before it was due"):
        measure.times_ms(polls(20.0, 1_000), LAYOUT, 100.3, 1_000)


def test_around_a_kill() -> None:
    layout = Layout(2, 1, 1_000.0, block_rows=10)
    seen = polls(20.0, 6_000)
    readable = np.where((seen.readable_s > 103.1) & (seen.readable_s < 103.4), 103.4, seen.readable_s)
    times = measure.times_ms(
        Polls(seen.asked_s, readable, seen.numbers, np.arange(len(readable))), layout, 100.0, 6_000
    )
    found = measure.kill_figures(times, layout, 3.0)
    assert found["around_kill_ms"] == pytest.approx(320, abs=12)
    assert len(found["around_kill_line_ms"]) == 150 and max(found["around_kill_line_ms"]) == found["around_kill_ms"]
    assert measure.kill_figures(times, layout, 2.0)["around_kill_ms"] <= 31


def test_the_resolution_of_a_reader() -> None:
    figures = measure.resolution_figures(polls(5.0, 1_000, every_ms=4.0))
    assert figures["reader_p50_ms"] == pytest.approx(5.0, abs=0.1)


def test_rows_a_second_count_between_changes() -> None:
    assert measure.rate_between_changes([(0.0, 5), (0.5, 5), (1.0, 100), (1.5, 100), (2.0, 300), (9.0, 300)]) == 200
    assert measure.rate_between_changes([(0.0, 5), (1.0, 10), (2.0, 10)]) is None
    assert measure.rate_between_changes([]) is None


# --- what is shown


def content() -> dict[str, Any]:
    line = [30.0] * 150
    steady = {"kind": "steady", "run": 0, "p50_ms": 18.0, "p99_ms": 40.0, "max_ms": 60.0, "around_kill_ms": 90.0}
    steady |= {"quantiles_ms": list(range(1, 104)), "around_kill_line_ms": line, "exact": True, "error": None}
    steady |= {"reader_p50_ms": 1.5, "reader_p99_ms": 3.0, "reader_max_ms": 9.0, "reader_cores": 0.1}
    failed = {"kind": "steady", "run": 1, "p50_ms": None, "p99_ms": None, "exact": False, "error": "RunError: no"}
    runs: list[dict[str, Any]] = [
        {**steady, "visibility": "at_once"},
        {**steady, "visibility": "checkpoint", "p50_ms": 600.0},
        {**failed, "visibility": "checkpoint"},
        {"kind": "throughput", "visibility": "at_once", "run": 0, "rows_per_s": 50_000.0, "error": None},
        {"kind": "copy", "visibility": None, "run": 0, "rows_per_s": 500_000.0, "error": None},
    ]
    runs = [{"flush_interval": 0.015, **run} for run in runs]
    return {"runs": runs, "summary": summarize(runs, 10_000.0, 4, 1)}


def test_a_row_for_each_visibility() -> None:
    at_once, checkpoint = content()["summary"]
    wanted = {"visibility": "at_once", "rate": 10_000.0, "parallelism": 4, "p50_ms": 18.0, "p99_ms": 40.0, "n": 1}
    wanted |= {"around_kill_ms": 90.0, "exact": True, "rows_per_s": 50_000.0, "copy_rows_per_s": 500_000.0}
    assert wanted.items() <= at_once.items()
    assert (checkpoint["n"], checkpoint["exact"], checkpoint["p50_ms"]) == (2, False, 600.0)
    assert checkpoint["rows_per_s"] is None


def test_tables_and_the_picture_show_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show(*tables(content()))
    shown = capsys.readouterr().out
    assert "18.0" in shown and "10%" in shown and "RunError: no" in shown and "resolution of the reader" in shown
    assert pictures.times(content(), tmp_path / "visibility.png")
    assert (tmp_path / "visibility.png").stat().st_size > 1_000
    found = content()
    for run in (*found["runs"], *found["summary"]):
        run["flush_interval"] = None
    show(*tables(found))
    assert "default" in capsys.readouterr().out and pictures.times(found, tmp_path / "default.png")
    assert not pictures.times({"runs": []}, tmp_path / "none.png")


def test_what_a_round_has_and_no_password_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(VisibilitySettings().kinds) == 5
    assert VisibilitySettings(throughput=False, visibility=("at_once",)).kinds == (("steady", "at_once", None),)
    assert EXPERIMENT.total(VisibilitySettings(runs=3)) == 15
    assert EXPERIMENT.total(VisibilitySettings(runs=1, flush_interval=(0.015, 0.005))) == 9
    dsn = "postgresql://me:secret@host/shop"
    monkeypatch.setattr("sys.argv", ["/bin/flinkplus", "experiment", "visibility", "--dsn", dsn])
    assert "secret" not in str(_without_password(VisibilitySettings(dsn=dsn)))
    monkeypatch.setattr("sys.argv", ["/bin/flinkplus", "experiment", "visibility", f"--dsn={dsn}"])
    hidden = _without_password(VisibilitySettings(dsn=dsn))
    assert "secret" not in str(hidden) and hidden["parameters"]["rate"] == 10_000.0
    assert _without_password(VisibilitySettings()) == {}
