"""Processors and memory around a failure: phases, medians, table and picture, from made-up samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.harness import console
from experiments.harness.processes import Sample
from experiments.usage import AFTER_S, BEFORE_S, EXPERIMENT, UsageSettings, aligned, over_time, phases, usage_over_time
from flinkplus.errors import ConfigurationError

ZERO_S = 1_000.0


def made_up_samples(period_s: float = 0.5) -> list[Sample]:
    """One core of two slots before the failure, three after it, and a driver that takes half a core throughout."""
    samples = []
    for number in range(-10, 14):
        at_s = number * period_s
        cores = 1.0 if at_s <= 0 else 3.0
        spent = {"slot 0": 0.5 * cores * period_s, "slot 1": 0.5 * cores * period_s, "driver": 0.5 * period_s}
        samples.append(Sample(ZERO_S + at_s, spent, {"slot 0": 100.0, "slot 1": 150.0, "driver": 50.0 + number}))
    return samples


def made_up_run(recovery: str, caught_up_ms: float | None, error: str | None = None) -> dict[str, Any]:
    return {
        "recovery": recovery,
        "samples": [] if error else aligned(made_up_samples(), ZERO_S),
        "recovery_ms": None if error else 200.0,
        "caught_up_ms": caught_up_ms,
        "words_per_s": 1_000.0,
        "fallback": None,
        "error": error,
    }


def test_samples_are_aligned_at_the_failure() -> None:
    found = aligned(made_up_samples(), ZERO_S)
    assert (found[0]["at_s"], found[-1]["at_s"]) == (-BEFORE_S + 0.5, AFTER_S), "what lies outside is left out"
    before, after = (next(one for one in found if one["at_s"] == at_s) for at_s in (0.0, 0.5))
    assert before["cores"] == {"total": 1.5, "slots": 1.0, "driver": 0.5}
    assert after["cores"] == {"total": 3.5, "slots": 3.0, "driver": 0.5}
    assert after["rss_mb"] == {"total": 301.0, "slots": 250.0, "driver": 51.0}


def test_each_sample_is_of_one_phase() -> None:
    run = made_up_run("standby", 1_200.0)
    found = phases(run)
    assert [found[phase]["seconds"] for phase in ("before", "during", "after")] == [3.0, 1.5, 3.5]
    assert (found["before"]["cores"], found["during"]["cores"]) == (1.5, 3.5)
    assert found["during"]["rss_mb"] == 302.0
    first_row = phases({**run, "caught_up_ms": None})
    assert first_row["during"]["seconds"] == 0.5, "a short recovery has the one sample that it lies in"
    never = phases({**run, "caught_up_ms": None, "recovery_ms": None})
    assert never["during"]["seconds"] == AFTER_S and never["after"]["cores"] is None


def test_time_has_gaps_where_a_run_has_no_samples() -> None:
    run = made_up_run("standby", 1_000.0)
    times_s = np.array([-BEFORE_S, -0.25, 0.25, AFTER_S])
    assert over_time([run, run], "cores", times_s)[1:3] == [[1.5, 1.5], [3.5, 3.5]]
    assert over_time([run], "cores", times_s)[0] == [None]
    assert over_time([run], "rss_mb", times_s)[3] == [310.0]


def test_summary_table_and_picture(tmp_path: Path) -> None:
    document = EXPERIMENT.document(UsageSettings(period=0.5), tmp_path / "usage.json")
    document.content["rate"] = 1_000.0
    assert not usage_over_time(document.content, tmp_path / "no.png")
    for caught_up_ms in (300.0, 900.0, 1_100.0):
        document.add(made_up_run("standby", caught_up_ms))
        document.add(made_up_run("rollback", 2 * caught_up_ms))
    document.add(made_up_run("rollback", None, error="RunError: for this test"))
    standby, rollback = document.content["summary"]
    assert (standby["n"], rollback["n"]) == (3, 3), "a run that failed does not count"
    assert (standby["before_cores"], standby["during_cores"], standby["after_cores"]) == (1.5, 3.5, 3.5)
    assert (standby["caught_up_ms"], standby["during_seconds"]) == (900.0, 1.0)
    assert (rollback["during_low_seconds"], rollback["during_high_seconds"]) == (1.0, 2.5)
    console.show(*EXPERIMENT.tables(document.content))
    assert usage_over_time(document.content, tmp_path / "usage.png")
    assert (tmp_path / "usage.png").read_bytes().startswith(b"\x89PNG")


def test_kills_are_the_same_for_all_modes() -> None:
    settings = UsageSettings(runs=2)
    first, second = settings.kills()
    assert settings.kills() == [first, second] and first.seed != second.seed
    assert EXPERIMENT.total(settings) == 6 and EXPERIMENT.total(replace(settings, rate=10.0)) == 4
    assert "replicas" not in settings.options("rollback") and settings.options("standby")["replicas"] == 3
    with pytest.raises(ConfigurationError, match="parallelism"):
        replace(settings, parallelism=0).check()
