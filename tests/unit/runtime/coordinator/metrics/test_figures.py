"""Figures of a job: the last checkpoint's counters are the final ones."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Literal

import pytest

from flinkplus.graph import JobGraph, Node
from flinkplus.operators.rows.tokenize import Tokenize
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.effects import CheckpointOutcome, CheckpointStats
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.sources.text import SCHEMA
from tests.handles import handle_of, part_of


def heartbeat(rows: int) -> dict[str, Any]:
    operators = {"words": {"rows_in": rows, "rows_out": rows}}
    return {"words[0]": {"rows_out": rows, "keys": 0, "bytes": 0, "reads": 0, "busy_s": 0.0, "operators": operators}}


def of_words(kind: Literal["source", "operator"] = "operator", mode: str = "aligned") -> Figures:
    graph = JobGraph()
    graph.add(Node("words", kind, Tokenize("words", "value", "word"), SCHEMA))
    graph.vertices = graph.fuse_draft()
    return Figures(graph, mode)


def test_the_phases_of_a_checkpoint() -> None:
    figures = of_words("source")
    before_s = time.time()
    figures.triggered(1)
    waited_s = time.time() + 0.002
    while time.time() < waited_s:
        pass
    begun_s = time.time()
    for subtask, alignment_ms in (("words[0]", 2.0), ("words[1]", 0.5)):
        handle = replace(START, begun_s=begun_s, alignment_ms=alignment_ms, sync_ms=1.0, async_ms=7.0)
        figures.snapshot(1, subtask, handle)
    (phases,) = figures.checkpoints()
    assert phases["chain_ms"] is None, "no standby has it"
    figures.replicated(1)
    figures.replicated(1)
    figures.replicated(2)
    (phases,) = figures.checkpoints()
    ended_ms = (time.time() - before_s) * 1e3
    assert 2.0 <= phases["trigger_ms"] <= phases["durable_ms"] <= phases["chain_ms"] <= ended_ms
    assert (phases["alignment_ms"], phases["sync_ms"], phases["async_ms"]) == (2.0, 1.0, 7.0)


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "synchronous"])
def test_how_a_checkpoint_was_taken(mode: str) -> None:
    """One that may be unaligned is so if a barrier overtook anywhere."""
    figures = of_words(mode=mode)
    figures.triggered(1)
    figures.snapshot(1, "words[0]", START)
    (found,) = figures.checkpoints()
    assert (found["mode"], found["in_flight_bytes"]) == ("synchronous" if mode == "synchronous" else "aligned", 0)
    if mode == "unaligned":
        for subtask, size in (("words[1]", 300), ("words[2]", 40)):
            handle = handle_of(in_flight_bytes=size)
            figures.snapshot(1, subtask, replace(handle, overtaken=True, bytes_new=5, bytes_total=9))
        (found,) = figures.checkpoints()
        assert (found["mode"], found["in_flight_bytes"]) == ("unaligned", 340)
        assert (found["bytes_new"], found["bytes_total"]) == (350, 358), "it is stored, too"


def test_what_a_successor_says_again_changes_nothing_in_a_checkpoint_that_is_over() -> None:
    figures = of_words()
    figures.triggered(1)
    figures.snapshot(1, "words[0]", replace(START, bytes_total=4_000, keys=4))
    stats = CheckpointStats(CheckpointId(1), Generation(1), False, CheckpointOutcome.COMPLETE, "", 0, 1, 2, 1, 1, None)
    figures.checkpoint(stats)
    before = figures.checkpoints()
    figures.snapshot(1, "words[0]", replace(START, bytes_total=1_000, keys=1, sync_ms=99.0))
    assert figures.checkpoints() == before


def test_why_checkpoints_were_given_up_is_told_and_counted() -> None:
    figures = of_words()
    for number, cause in enumerate((AbortCause.OVER_BUDGET, AbortCause.OTHER, None), 1):
        figures.triggered(number)
        outcome = CheckpointOutcome.COMPLETE if cause is None else CheckpointOutcome.ABORTED
        stats = CheckpointStats(CheckpointId(number), Generation(1), False, outcome, "", 0, 1, 2, 1, 1, cause)
        figures.checkpoint(stats)
    assert [found["cause"] for found in figures.checkpoints()] == ["over budget", "other", ""]
    assert (figures.completed, figures.aborted, figures.over_budget) == (1, 2, 1)


def test_a_late_heartbeat_does_not_take_back_the_final_counters() -> None:
    figures = of_words()
    figures.update(heartbeat(5))
    figures.triggered(CheckpointId(1))
    counters = {"words": part_of(rows_in=7, rows_out=9, own={"invalid_lines": 2})}
    figures.snapshot(1, "words[0]", replace(handle_of(operators=counters), keys=3, bytes_total=11))
    complete = CheckpointOutcome.COMPLETE
    figures.checkpoint(CheckpointStats(CheckpointId(1), Generation(1), True, complete, "", 0, 4, 5, 1, 1))
    figures.update(heartbeat(6))
    assert figures.operators() == {"words": {"rows_in": 7, "rows_out": 9, "invalid_lines": 2}}
    assert figures.totals()["state_keys"] == 3


def test_a_finished_job_has_every_total_without_a_heartbeat() -> None:
    """Jobs that end at once, and finished ones that are resumed, have only their final checkpoint's counters."""
    heard, unheard = of_words(), of_words()
    heard.update(heartbeat(0))
    for figures in (heard, unheard):
        counters = {"words": part_of(rows_in=7, rows_out=9)}
        figures.adopt(1, {"words[0]": replace(handle_of(operators=counters), keys=3, bytes_total=11)})
    assert unheard.totals() == heard.totals()
    assert unheard.totals()["state_keys"] == 3
    assert unheard.rows_out("words") == heard.rows_out("words") == {"words[0]": 9}
