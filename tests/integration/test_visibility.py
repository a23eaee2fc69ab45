"""The experiment on when rows become visible, for real and small."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from experiments.harness.running import Context
from experiments.visibility import experiment, measure, runs
from experiments.visibility.experiment import VisibilitySettings
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("empty_postgres")]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


def settings(postgres: PostgresServer, **given: object) -> VisibilitySettings:
    small = {"parallelism": 2, "rate": 2_000.0, "seconds": 1.0, "interval": 0.3, "runs": 1, "dsn": postgres.dsn}
    return VisibilitySettings(**{**small, **given})  # type: ignore[arg-type]


@pytest.mark.long
def test_a_slot_is_killed_while_a_reader_polls(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("SETTLE_S", 1.0), ("CALM_S", 0.6), ("AFTER_S", 2.2)):
        monkeypatch.setattr(runs, name, seconds)
    monkeypatch.setattr(measure, "SHOWN_MS", (-500.0, 1_000.0))
    given = settings(postgres, visibility=("at_once",), throughput=False)
    (run,) = experiment.runs(Context(spark, given, tmp_path))
    assert run["error"] is None and run["exact"] is True, run
    assert (run["lost"], run["doubled"], run["wrong"]) == (0, 0, 0)
    assert 0 < run["p50_ms"] <= run["p99_ms"] <= run["max_ms"]
    assert run["around_kill_ms"] == pytest.approx(max(run["around_kill_line_ms"][:50]), abs=0.1)
    assert run["recoveries"] >= 1 and 0 < run["reader_p50_ms"] < 1_000
    assert postgres.execute("SELECT to_regclass('flinkplus_visibility_1_0_0')") == [(None,)]


@pytest.mark.long
@pytest.mark.slow
def test_each_kind_of_run(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    found = list(experiment.runs(Context(spark, settings(postgres, kill=False, seconds=4.0), tmp_path)))
    assert [(run["kind"], run["visibility"]) for run in found] == [
        ("steady", "at_once"),
        ("steady", "checkpoint"),
        ("throughput", "at_once"),
        ("throughput", "checkpoint"),
        ("copy", None),
    ]
    assert all(run["error"] is None for run in found), found
    assert all(run["exact"] for run in found[:2]) and all(run["rows_per_s"] > 0 for run in found[2:])
    assert found[0]["p50_ms"] < found[1]["p50_ms"]
