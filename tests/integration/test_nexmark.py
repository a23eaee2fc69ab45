"""Queries of Nexmark on Spark, for real and small: outputs as DuckDB has them, with and without a kill; Flink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from experiments.harness.running import Context
from experiments.nexmark import experiment
from experiments.nexmark.catalogue import NAMES
from experiments.nexmark.experiment import NexmarkSettings
from experiments.nexmark.flink_sql import FLINK
from tests.integration.conftest import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install 'flinkplus[experiments]'")


def runs(spark: SparkSession, directory: Path, **given: Any) -> list[dict[str, Any]]:
    patient = [f"{name}_timeout={PATIENCE_S}" for name in ("slot", "deploy")]  # the machine may be busy
    settings = NexmarkSettings(**{"parallelism": 2, "interval": 0.3, "more_options": patient, **given})
    settings.check()
    return list(experiment.runs(Context(spark, settings, directory)))


@pytest.mark.long
def test_windows_and_joins_are_exact(spark: SparkSession, tmp_path: Path) -> None:
    """q7: windows of windows, and a join with them."""
    (run,) = runs(spark, tmp_path, queries=("q7",), events=30_000, throughput=False)
    assert run["error"] is None and run["exact"] is True, run
    assert run["rows"] >= 3 and list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_query_is_exact_with_a_kill(spark: SparkSession, tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"queries": (name,), "events": 60_000, "kill": True, "kill_seconds": 12.0}
    undisturbed, killed = runs(spark, tmp_path, throughput=False, **given)
    for run in (undisturbed, killed):
        assert run["error"] is None and run["exact"] is True, run
        assert run["rows"] > 0
    assert killed["recoveries"] >= 1 and 0 < killed["read_at_kill"] < 60_000


@pytest.mark.long
def test_throughput(spark: SparkSession, tmp_path: Path) -> None:
    found = runs(spark, tmp_path, queries=("q2", "q12"), compare=False, seconds=2.0)
    assert [(run["query"], run["kind"], run["error"]) for run in found] == [
        ("q2", "throughput", None),
        ("q12", "throughput", None),
    ]
    for run in found:
        assert run["events_per_s"] > 0 and run["cpu_s_per_million"] > 0 and run["rss_mb"] > 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", FLINK)
def test_flink_runs_a_query(spark: SparkSession, tmp_path: Path, name: str) -> None:
    given: dict[str, Any] = {"engine": ("flink-memory", "flink-rocksdb"), "seconds": 2.0}
    for run in runs(spark, tmp_path, queries=(name,), **given):
        assert run["error"] is None and run["events_per_s"] > 0 and run["cpu_s_per_million"] > 0, run
