"""Figures of a job: the last checkpoint's counters are the final ones."""

from __future__ import annotations

from typing import Any

from flinkplus.graph import JobGraph, Node
from flinkplus.operators.tokenize import Tokenize
from flinkplus.protocol.effects import CheckpointOutcome, CheckpointStats
from flinkplus.protocol.ids import CheckpointId, Generation
from flinkplus.runtime.figures import Figures
from flinkplus.sources.text import SCHEMA


def heartbeat(rows: int) -> dict[str, Any]:
    operators = {"words": {"rows_in": rows, "rows_out": rows}}
    return {"words[0]": {"rows_out": rows, "keys": 0, "bytes": 0, "busy_s": 0.0, "operators": operators}}


def test_a_late_heartbeat_does_not_take_back_the_final_counters() -> None:
    graph = JobGraph()
    graph.add(Node("words", "operator", Tokenize("words", "value", "word"), SCHEMA), None, None)
    figures = Figures(graph)
    figures.heard(heartbeat(5))
    figures.triggered(CheckpointId(1))
    counters = {"words": {"rows_in": 7, "rows_out": 9, "own": {"invalid_lines": 2}}}
    figures.snapshot(1, "words[0]", {"operator_state": {"operators": counters}, "keys": 3, "bytes_total": 11})
    complete = CheckpointOutcome.COMPLETE
    figures.checkpoint(CheckpointStats(CheckpointId(1), Generation(1), True, complete, "", 0, 4, 5, 1, 1))
    figures.heard(heartbeat(6))
    assert figures.operators() == {"words": {"rows_in": 7, "rows_out": 9, "invalid_lines": 2}}
    assert figures.totals()["state_keys"] == 3
