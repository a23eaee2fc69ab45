"""The experiment on exactness, for real and small: exact as the product is, and with the damage that missing parts do.

Each part of the protocol is left out alone, and with all others that protect against the same damage. Without them a
failover of any subtask with consumers does damage: so the first run shows it, as a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chain_backup.zookeeper.embedded import EmbeddedZooKeeper
from experiments.exactness import experiment
from experiments.exactness.experiment import PATIENCE_S, Settings
from experiments.harness.running import Context

pytestmark = pytest.mark.integration
HANGS_S = 15.0
"""A job that lacks determinants may wait for good, for the end of its input: there is another one."""
MORE_S = {"determinants,digests": 5.0}
TAKEN_BACK = {
    "determinants": "NondeterministicOperator",
    "bundles": "NondeterministicOperator",
    "bundles,digests": "determinants",
}
"""Jobs without these parts roll back; what the reason says."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    with EmbeddedZooKeeper() as server:
        yield server.hosts


def outcomes(
    spark: SparkSession, zookeeper: str, path: Path, settings: Settings, patience_s: float = PATIENCE_S
) -> Iterator[dict[str, Any]]:
    return experiment.outcomes(Context(spark, settings, path), settings.cases(), zookeeper, patience_s)


def test_every_row_is_exact(spark: SparkSession, zookeeper: str, tmp_path: Path) -> None:
    """Three failures at once with a rescale before the last, one, and two 50 ms apart, of slots and of single subtasks;
    none of those without a rescale rolls back."""
    runs = [
        run
        for first, count in ((2, 1), (9, 2))
        for run in outcomes(spark, zookeeper, tmp_path, Settings(runs=count, first=first, seed=1))
    ]
    assert [(run["exact"], run["error"], run["damage"]) for run in runs] == [(True, None, {})] * 3
    assert [run["rows_out"] for run in runs] == [run["rows"] for run in runs]
    rescaled, *others = runs
    assert all(run["failovers"] > 0 and not run["fallbacks"] and not run["requests"] for run in others), others
    (request,) = rescaled["requests"]
    assert (request["parallelism"], request["status"]) == (2, "done") or request["reason"] == "the job is over"
    assert len(rescaled["struck"]) == 3
    assert list(tmp_path.iterdir()) == [], "what a run made is gone"


@pytest.mark.long  # the simulator shows the same; on a busy machine a job without determinants may wait for good
@pytest.mark.timeout(900)
@pytest.mark.parametrize("parts", ["determinants,digests", "suppression,filter,cursor"])
def test_a_job_that_lacks_all_parts_against_one_kind_of_damage_is_damaged(
    spark: SparkSession, zookeeper: str, tmp_path: Path, parts: str
) -> None:
    settings = Settings(runs=20, seed=1, without=tuple(parts.split(",")), more_s=MORE_S.get(parts, 0.0))
    assert settings.does_damage
    found = []
    for run in outcomes(spark, zookeeper, tmp_path, settings, HANGS_S):
        found.append((run["failovers"], run["damage"]))
        if run["damage"]:
            break
    assert found[-1][1], found


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "parts",
    [
        "suppression,cursor",
        *TAKEN_BACK,
        "suppression,filter",
    ],
)
def test_a_job_that_lacks_fewer_parts_is_exact(spark: SparkSession, zookeeper: str, tmp_path: Path, parts: str) -> None:
    """What is left protects it: digests take a job without determinants or bundles back, and without digests the
    determinants that consumers know differ; the filter or the cursor alone drops what is sent again."""
    settings = Settings(runs=1, first=1, seed=1, without=tuple(parts.split(",")))
    assert not settings.does_damage
    (run,) = outcomes(spark, zookeeper, tmp_path, settings)
    assert (run["exact"], run["error"]) == (True, None), run
    ids = run["message_ids"]
    if parts in TAKEN_BACK:
        assert run["fallbacks"] and TAKEN_BACK[parts] in run["fallback_reasons"][0], run
    else:
        assert run["failovers"] and not run["fallbacks"] and ids["known"] > 0, "nothing was sent again"
        assert ids["stored"] > 0 and ids["fetched"] > 0, "RocksDB was not asked"
    assert ids["conflicts"] == 0
