"""A snapshot holds what has changed, and hardly more, however large the state is; a full one holds everything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from experiments import snapshots
from experiments.harness import console
from experiments.harness.running import Context
from experiments.snapshots import EXPERIMENT, FULL, INCREMENTAL, SnapshotSettings, State, shares, size_and_time


def test_an_incremental_snapshot_has_what_changed_and_a_full_one_everything(tmp_path: Path) -> None:
    state = State(tmp_path, 3_000, seed=1)
    state.fill()
    for share in (0.02, 0.5, 1.0, 0.02):  # each behind a full one, so that no earlier change is left in it
        incremental, full = state.change(share)
        assert (incremental["kind"], full["kind"]) == (INCREMENTAL, FULL)
        assert incremental["changed_keys"] == full["changed_keys"] == round(share * 3_000)
        assert 1.0 < incremental["new_mb"] / incremental["changed_mb"] <= 1.3
        assert 3.0 < full["new_mb"] < 3.3
        assert incremental["sync_ms"] == full["sync_ms"] > 0 and full["async_ms"] > 0 and incremental["spill_ms"] == 0
    stored = list((tmp_path / "checkpoints" / "state").rglob("*.sst"))
    assert len(stored) == 1, "what a base replaces is removed"
    state.close()


def test_changes_beyond_memory_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MEMTABLE_ENTRIES", 500)
    monkeypatch.setattr(snapshots, "FILLED_AT_ONCE", 400)
    state = State(tmp_path, 2_000, seed=1)
    state.fill()
    incremental, full = state.change(1.0)
    assert incremental["spill_ms"] > 0
    assert incremental["new_mb"] > 2.0, "also what was written before the snapshot"
    assert 2.0 < full["new_mb"] < 2.3
    state.close()


def test_runs_take_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    settings = SnapshotSettings(state_mb=(1, 2), changed=(0.1, 1.0), rounds=2)
    found = list(snapshots.runs(Context(None, settings, tmp_path)))
    assert len(found) == EXPERIMENT.total(settings) == 16
    one = [(run["round"], run["changed"], run["kind"]) for run in found if run["state_mb"] == 1]
    assert one[::2] == [(0, 0.1, INCREMENTAL), (0, 1.0, INCREMENTAL), (1, 1.0, INCREMENTAL), (1, 0.1, INCREMENTAL)]
    assert list(tmp_path.iterdir()) == []


def made_up_run(kind: str, new_mb: float, state_mb: int = 10) -> dict[str, Any]:
    known = {"state_mb": state_mb, "changed": 0.1, "changed_mb": 1.0, "spill_ms": 0.0}
    return {**known, "kind": kind, "new_mb": new_mb, "sync_ms": 0.1, "async_ms": 10 * new_mb}


def test_summary_table_and_picture(tmp_path: Path) -> None:
    document = EXPERIMENT.document(SnapshotSettings(), tmp_path / "snapshots.json")
    assert not size_and_time(document.content, tmp_path / "no.png")
    for new_mb in (1.0, 1.1, 1.5):
        document.add(made_up_run(INCREMENTAL, new_mb))
        document.add(made_up_run(FULL, 10 * new_mb))
    incremental, full = document.content["summary"]
    assert (incremental["n"], incremental["new_mb"], incremental["bytes_by_changed"]) == (3, 1.1, 1.1)
    assert (full["async_ms"], full["async_low_ms"], full["async_high_ms"]) == (110.0, 100.0, 150.0)
    console.show(*EXPERIMENT.tables(document.content))
    assert size_and_time(document.content, tmp_path / "snapshots.png")
    assert (tmp_path / "snapshots.png").read_bytes().startswith(b"\x89PNG")


def test_a_share_is_one_at_most() -> None:
    assert shares("0.01,1") == (0.01, 1.0)
    with pytest.raises(argparse.ArgumentTypeError, match="1 at most"):
        shares("0.1,2")
