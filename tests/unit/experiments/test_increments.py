"""A snapshot holds what has changed, and hardly more, however large the state is."""

from __future__ import annotations

from pathlib import Path

from experiments.bench_increments import measure


def test_new_bytes_are_those_that_changed(tmp_path: Path) -> None:
    figures = measure(tmp_path, 3_000, share=0.02, same=50, rounds=2)
    assert figures["state_mb"] == 3.0
    assert (figures["share"]["changed_keys"], figures["same"]["changed_keys"]) == (60, 50)
    for kind in ("share", "same"):
        assert 1.0 < figures[kind]["bytes_new_by_changed"] <= 1.3
        assert figures[kind]["sync_ms"] > 0 and figures[kind]["async_ms"] > 0
