"""Two jobs after one another, and side by side, in one session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts

pytestmark = pytest.mark.integration


def test_side_by_side(spark: SparkSession, corpus: Path, tmp_path: Path) -> None:
    jobs = []
    for number in range(2):
        env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)
        words = env.read_text(str(corpus)).tokenize().throttle(60_000)
        words.key_by("word").count().to_parquet(str(tmp_path / f"out{number}"))
        jobs.append(env.execute(f"job {number}"))
    jobs[0].kill("count:1")
    for number, job in enumerate(jobs):
        job.await_finish(PATIENCE_S)
        assert_exact(tmp_path / f"out{number}", expected_counts(corpus))
