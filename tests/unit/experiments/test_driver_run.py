"""A driver that is killed: from log and marks to the phases of its restart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.recovery.driver_program import marker, read_marks
from experiments.recovery.driver_run import ENDED, RUNS, first_output, logged_at, phases
from experiments.recovery.experiment import Settings
from experiments.recovery.jobs import ThreeSumsJob, WordCountJob, document_of, job_of_document
from experiments.recovery.summary import summarize
from flinkplus.errors import ConfigurationError


def test_the_log_has_the_first_end_and_the_first_start_after_the_kill() -> None:
    def line(second: int, message: str) -> str:
        return json.dumps(
            {"time": f"1970-01-01T00:00:{second:02}.500Z", "logger": "flinkplus.supervise", "message": message}
        )

    text = "\n".join(
        [
            line(1, "driver 1 runs: p.py"),
            "a line of Java",
            line(11, "driver 1 has ended after 10.0 s: killed"),
            line(12, "driver 2 runs: p.py"),
            line(20, "driver 2 has ended after 8.0 s: well"),
        ]
    )
    assert logged_at(text, 11.0) == {ENDED: 11.5, RUNS: 12.5}


def test_the_phases_add_up_to_the_recovery() -> None:
    names = ("begun", "imported", "spark", "executed", "deploying", "running", "output")
    marks: dict[str, float | None] = {name: 102.0 + at / 10 for at, name in enumerate(names)}
    found = phases(100.0, {ENDED: 100.5, RUNS: 101.0}, marks, 103.0)
    assert sum(value or 0.0 for value in found.values()) == pytest.approx(3_000.0)
    assert (found["noticed_ms"], found["begun_ms"], found["repeated_ms"]) == (500.0, 1_000.0, 400.0)
    unknown = phases(100.0, {ENDED: 100.5, RUNS: 101.0}, {**marks, "deploying": None}, 103.0)
    assert unknown["slots_ms"] is None and unknown["restored_ms"] is None and unknown["output_ms"] == 100.0


def test_the_first_output_is_that_of_the_last_partition() -> None:
    trace = {"a": [(1.0, 5), (3.0, 2)], "b": [(1.0, 5), (4.0, 3)]}
    assert first_output(trace, 2.0) == 4.0
    assert first_output(trace, 3.5) is None and first_output({}, 0.0) is None


@pytest.mark.parametrize(
    "job", [WordCountJob(Path("t"), Path("o"), 5, 2.0), ThreeSumsJob(Path("o"), 5, 2.0)], ids=["wordcount", "sums"]
)
def test_a_job_goes_to_another_process(job: WordCountJob | ThreeSumsJob) -> None:
    assert job_of_document(json.loads(json.dumps(document_of(job)))) == job


def test_marks_are_those_of_all_runs(tmp_path: Path) -> None:
    assert read_marks(tmp_path / "marks") == []
    mark = marker(tmp_path / "marks")
    mark("a")
    mark("b", 1.0, rows=3)
    first, second = read_marks(tmp_path / "marks")
    assert first["mark"] == "a" and (second["time_s"], second["rows"]) == (1.0, 3)


def test_one_kill_of_a_driver_in_each_job_and_none_on_a_cluster() -> None:
    settings = Settings(parallelism=(2,), failure=("driver",), runs=3)
    settings.check()
    assert [len(case.kills) for case in settings.cases()] == [1] * 6
    assert settings.rows(settings.cases()[0]) == 30_000 * 38
    with pytest.raises(ConfigurationError, match="without --cluster"):
        Settings(failure=("driver",), hosts=2).check()


def test_the_summary_has_the_median_of_each_phase() -> None:
    case = {
        "parallelism": 2,
        "recovery": "standby",
        "failure": "driver",
        "state_keys": 0,
        "exact": True,
        "fallback": None,
    }
    runs = [{**case, "recovery_ms": ms, "restart_phases": {"noticed_ms": ms}} for ms in (1.0, 2.0, 9.0)]
    assert summarize(runs, 1, 1.0)[0]["restart_phases"] == {"noticed_ms": 2.0}
    assert "restart_phases" not in summarize([{**case, "recovery_ms": 1.0}], 1, 1.0)[0]
