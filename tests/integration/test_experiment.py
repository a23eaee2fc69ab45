"""The experiment on recoveries, for real and small: its figures, its files, its end by Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from experiments import overhead, usage
from experiments.harness.running import Context
from experiments.overhead import OverheadSettings
from experiments.recovery import experiment as recovery
from experiments.recovery.experiment import Settings
from experiments.rescale import experiment as rescale
from experiments.rescale import live, restore
from experiments.rescale.experiment import RescaleSettings
from experiments.scaling import experiment as scaling
from experiments.scaling.experiment import ScalingSettings
from experiments.usage import UsageSettings
from flinkplus.protocol.vocabulary.phases import DURATIONS
from tests.integration.conftest import wait_until
from tests.integration.programs import cli, program
from tests.typed import Command

pytestmark = pytest.mark.integration


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("failure", ["exception", "sigkill"])
def test_rollbacks_are_measured(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setattr(recovery, "RESTORE_S", 3.0)
    settings = Settings(
        parallelism=(2,), recovery=("rollback",), failure=(failure,), runs=2, rate=5_000, interval=0.3, warm_up=False
    )
    context = Context(spark, settings, tmp_path, recovery.EXPERIMENT.more(settings))
    runs = list(recovery.runs(context))
    (case,) = settings.cases()
    assert [(run["job"], run["kill"], run["run"]) for run in runs] == [(0, 0, 0), (0, 1, 1)]
    for run in runs:
        assert_measured(run, failure)
        assert run["rows"] == settings.rows(case)
        assert run["slot_restarts"] == (2 if failure == "sigkill" else 0)
    first, second = (run["recoveries"][0]["begin_s"] for run in runs)
    assert second - first >= 3 * settings.interval
    (timeline,) = context.content["timelines"]
    assert len(timeline["rows_per_s"]) == 2
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [f"made-up-{settings.rows(case)}.txt"], "what a job made is gone"


def assert_measured(run: dict[str, Any], failure: str) -> None:
    """The figures of a kill that ended in a rollback."""
    assert run["error"] is None and run["exact"] is True, run
    assert (run["parallelism"], run["recovery"], run["failure"], run["fallback"]) == (2, "rollback", failure, None)
    phases = [run[f"{phase}_ms"] for phase in DURATIONS]
    assert all(phase >= 0 for phase in phases)
    assert sum(phases) == pytest.approx(run["recovery_ms"], abs=1)
    assert 1 < run["recovery_ms"] < 20_000
    assert run["caught_up_ms"] >= run["recovery_ms"] - 1
    assert run["output_gap_failed_ms"] >= run["recovery_ms"] - 100
    assert run["output_gap_others_ms"] > 0
    assert run["output_gap_handback_ms"] is None
    assert run["since_trigger_s"] >= run["offset_s"] - 0.01 and run["during_checkpoint"] in (True, False)
    assert 0 < run["busy_share"] <= 1
    assert run["usage"]["total"]["cpu_s"] > 0 and {"driver", "slot 0", "slot 1", "spark"} <= set(
        run["usage"]["processes"]
    )


@pytest.mark.long
@pytest.mark.slow
def test_three_sums_are_handed_back_after_a_kill(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RESTORE_S", 10.0)
    settings = Settings(
        parallelism=(2,),
        recovery=("standby",),
        failure=("sigkill",),
        job="three-sums",
        runs=1,
        rate=3_000,
        interval=0.3,
        warm_up=False,
    )
    (run,) = recovery.runs(Context(spark, settings, tmp_path, recovery.EXPERIMENT.more(settings)))
    assert run["error"] is None and run["exact"] is True and run["wrong"] == 0, run
    assert run["fallback"] is None and run["recovery_ms"] > 0
    assert run["handovers"] and run["output_gap_handback_ms"] > 0


@pytest.mark.long
@pytest.mark.slow
def test_running_time_with_and_without_checkpoints(spark: SparkSession, tmp_path: Path) -> None:
    settings = OverheadSettings(intervals=(0.2,), rounds=1, repeat=2)
    none, *others = overhead.runs(Context(spark, settings, tmp_path))
    assert none["variant"] == "none" and none["checkpoints"] == 1 and none["duration_ms"] is None
    assert [run["mode"] for run in others] == ["aligned", "unaligned", "synchronous"]
    for run in (none, *others):
        assert run["seconds"] > 0 and run["recoveries"] == 0 and run["usage"]["total"]["cpu_s"] > 0
    assert all(run["checkpoints"] > 1 and run["duration_ms"] > 0 for run in others)


@pytest.mark.long
@pytest.mark.slow
def test_processors_and_memory_around_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    settings = UsageSettings(parallelism=2, replicas=2, runs=1, rate=5_000, interval=0.3)
    context = Context(spark, settings, tmp_path)
    standby, rollback = [run for run in usage.runs(context) if run is not None]
    assert (standby["recovery"], rollback["recovery"]) == ("standby", "rollback")
    for run in (standby, rollback):
        assert run["error"] is None and run["recovery_ms"] > 0, run
        assert run["samples"][0]["at_s"] < -2 and run["samples"][-1]["at_s"] > 4
        assert {"driver", "slots", "spark"} <= set(run["samples"][0]["rss_mb"])
    assert [row["n"] for row in usage.summarize([standby, rollback], 1)] == [1, 1]


@pytest.mark.long
@pytest.mark.slow
def test_running_time_measured_and_simulated(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "COSTS_AT", (1, 2))
    monkeypatch.setattr(scaling, "JOBS_OF_ONE_ROW", 1)
    settings = ScalingSettings(parallelism=(1, 4), measured=1, interval=0.2, repeat=1, rounds=1, costs_seconds=0.5)
    context = Context(spark, settings, tmp_path)
    found = list(scaling.runs(context))
    measured = [run for run in found if run is not None and not run["simulated"]]
    assert [(run["parallelism"], run["variant"]) for run in measured] == [(1, "none"), (1, "aligned, 0.2 s")]
    assert measured[0]["checkpoints"] == 1 < measured[1]["checkpoints"]
    assert all(run["seconds"] > 0 and run["recoveries"] == 0 for run in measured)
    costs = context.content["costs"]
    assert [vertex["name"] for vertex in costs["vertices"]] == [
        "lines+tokenize",
        "words+bits",
        "again+lower",
        "last+out",
    ]
    assert costs["crowded"] >= 1 and 0 < costs["job_s"] < measured[0]["seconds"]
    simulated = [run for run in found if run is not None and run["simulated"]]
    assert [(run["parallelism"], run["as_this_machine"]) for run in simulated[::2]] == [
        (1, False),
        (1, False),
        (4, False),
    ]
    assert len(found) == settings.steps


@pytest.mark.long
@pytest.mark.slow
def test_a_running_job_is_rescaled(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "START_S", 1.0)
    settings = RescaleSettings(
        steps=(2, 3), recovery=("rollback",), state_mb=(1,), runs=1, rate=3_000, interval=0.2, calm=0.6, span=4.0
    )
    (run,) = rescale.runs(Context(spark, settings, tmp_path))
    assert run["error"] is None and run["exact"] is True, run
    assert (run["before"], run["after"], run["state_mb"], run["recoveries"]) == (2, 3, 1, 0)
    assert run["state_keys"] > 1_000
    assert 0 < run["switch_gap_ms"] <= run["gap_ms"] and run["without_gap_ms"] > 0
    assert 0 < run["prepare_ms"] < run["moved_ms"] and 0 < run["output_ms"] <= run["caught_up_ms"]
    assert [path.name for path in tmp_path.iterdir()] == [f"made-up-{settings.words(1)}.txt"], "what a job made is gone"


@pytest.mark.long
def test_a_job_is_resumed_at_the_same_and_at_another_parallelism(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "INPUT_S", 1.0)
    settings = RescaleSettings(
        restore=True, steps=(2, 3), recovery=("standby",), state_mb=(1,), runs=1, rate=3_000, interval=0.2, replicas=2
    )
    found = list(rescale.runs(Context(spark, settings, tmp_path)))
    assert [(run["before"], run["after"]) for run in found] == [(2, 2), (2, 3)]
    for run in found:
        assert run["error"] is None and run["exact"] is True, run
        assert run["state_keys"] > 1_000 and run["running_ms"] > 0 and run["output_ms"] > 0
        assert sum(run[name] for name in ("divided_ms", "slots_ms", "subtasks_ms")) == pytest.approx(run["running_ms"])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ctrl_c_keeps_what_was_found(tmp_path: Path) -> None:
    numbers = ["--parallelism", 2, "--rate", 3_000, "--interval", 0.2, "--runs", 50, "--kills", 1, "--no-warm-up"]
    kinds = ["--recovery", "rollback", "--failure", "sigkill", "--beside", 1]
    found = tmp_path / "out" / "recovery.json"
    with program(cli("experiment", "recovery", *numbers, *kinds, "--out", tmp_path / "out"), tmp_path) as run:
        wait_until(lambda: found.exists() or run.process.poll() is not None, "a run", 240)
        before = run.descendants()
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        run.assert_nothing_left(before)
    content = json.loads(found.read_text())
    assert content["interrupted"] is True and content["runs"][0]["exact"] is True
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "recovery.json",
        "recovery.png",
        "timeline.png",
    ]
    assert "Kill to first new output, ms" in run.out
    assert "interrupted; the job was ended" in run.err and "Traceback" not in run.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment"], "the following arguments are required: EXPERIMENT"),
        (["experiment", "recovery", "--parallelism", "2,0"], "'2,0' is not a list of whole numbers from 1 up"),
        (["experiment", "recovery", "--kills", "0"], "0 is not a whole number of at least 1"),
        (["experiment", "recovery", "--job", "magic"], "invalid choice: 'magic'"),
        (["experiment", "recovery", "--recovery", "magic"], "'magic' is not a list of standby, partial, rollback"),
        (["experiment", "recovery", "--recovery", "rollback", "--interval", "0.0001"], "checkpoint_interval must be"),
        (["experiment", "recovery", "--recovery", "rollback", "--json", "/proc/no.json"], "cannot write --json /proc"),
        (["experiment", "cost", "--rounds", "0"], "0 is not a whole number of at least 1"),
        (
            ["experiment", "overhead", "--intervals", "1,0"],
            "'1,0' is not a list of positive numbers, such as 0.25,1,10",
        ),
        (["experiment", "scaling", "--parallelism", "2,0"], "'2,0' is not a list of whole numbers from 1 up"),
        (["experiment", "snapshots", "--changed", "0.1,2"], "'0.1,2' is not a list of shares, which are 1 at most"),
        (["experiment", "rescale", "--steps", "2"], "--steps 2 has no change; give two parallelisms, such as 2,8"),
        (["experiment", "rescale", "--steps", "2,8,2"], "'2,8,2' is not a list of whole numbers from 1 up"),
        (["experiment", "usage", "--failure", "host"], "invalid choice: 'host'"),
        (["experiment", "overhead", "--modes", "magic"], "'magic' is not a list of aligned, unaligned, synchronous"),
    ],
)
def test_wrong_usage(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert out == "" and not (tmp_path / "results").exists()
