"""Shared by the tests of state: a storage in a temporary directory and states that are closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.state import CheckpointStorage, SubtaskState

OpenState = Callable[..., SubtaskState]


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    storage = CheckpointStorage(tmp_path / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    return storage


@pytest.fixture
def open_state(tmp_path: Path, storage: CheckpointStorage) -> Iterator[OpenState]:
    """Makes a ``SubtaskState`` of ``count[0]``; ``work``: name of its work directory, ``generation``: 1."""
    opened: list[SubtaskState] = []

    def open_one(generation: int = 1, work: str = "work", **options: Any) -> SubtaskState:
        state = SubtaskState(
            tmp_path / work, options.pop("storage", storage.state_files), "count[0]", generation, **options
        )
        opened.append(state)
        return state

    yield open_one
    for state in opened:
        state.close()
