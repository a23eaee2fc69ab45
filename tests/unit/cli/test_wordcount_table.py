"""The table of checkpoints at the end of ``flinkplus wordcount``, and settings that are refused before Spark starts."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from flinkplus.cli.wordcount import CHECKPOINT_PHASES, WordCount, check_usage, checkpoint_table
from flinkplus.errors import ConfigurationError


def checkpoint(mode: str, in_flight_bytes: int) -> dict[str, Any]:
    return {
        **dict.fromkeys(CHECKPOINT_PHASES.values(), 1.0),
        "bytes_new": 10,
        "bytes_total": 100,
        "mode": mode,
        "in_flight_bytes": in_flight_bytes,
    }


def test_it_says_how_checkpoints_were_taken_and_what_was_in_flight() -> None:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(checkpoint_table([checkpoint("unaligned", 3_000), checkpoint("aligned", 0)]))
    lines = captured.get().splitlines()
    assert any("bytes in flight" in line and "1,500" in line and "3,000" in line for line in lines)
    assert any("taken" in line and "1 unaligned, 1 aligned" in line for line in lines)


def test_a_time_out_without_unaligned_checkpoints_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="aligned_timeout"):
        check_usage(WordCount(options={"aligned_timeout": 1.0}))
