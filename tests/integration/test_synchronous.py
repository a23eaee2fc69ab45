"""Synchronous checkpoints; those in which a slot is killed: ``test_kills.py``."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.errors import ConfigurationError

pytestmark = pytest.mark.integration


def test_synchronous_checkpoints_come_one_at_a_time(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="max_concurrent_checkpoints must be 1"):
        StreamEnvironment(spark, checkpoint_mode="synchronous", max_concurrent_checkpoints=2)
    with pytest.raises(
        ConfigurationError, match="checkpoint_mode must be one of aligned, unaligned, synchronous, not 'none'"
    ):
        StreamEnvironment(spark, checkpoint_mode="none")  # type: ignore[arg-type]
