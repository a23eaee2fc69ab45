"""Snapshot handles and manifests that say only what a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flinkplus.protocol.snapshot.files import StagedFile, StateFile
from flinkplus.protocol.snapshot.handle import START, OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest


def handle_of(*files: StateFile, checkpoint: int = 1, subtask: str = "count[0]", **saved: Any) -> SnapshotHandle:
    """``saved``: fields of the operator state."""
    return replace(START, subtask=subtask, checkpoint=checkpoint, files=files, operator_state=OperatorState(**saved))


def part_of(staged: Sequence[StagedFile] = (), **fields: Any) -> OperatorPart:
    """An operator's part, by default of one that has seen no row."""
    return OperatorPart(**{"rows_in": 0, "rows_out": 0, "staged": tuple(staged), **fields})


def copied(parts: Mapping[str, OperatorPart]) -> dict[str, OperatorPart]:
    """As they are after they were JSON."""
    return {name: OperatorPart.from_json(json.loads(json.dumps(part.to_json()))) for name, part in parts.items()}


def manifest_of(
    checkpoint: int, *files: StateFile, generation: int = 1, subtasks: Mapping[str, SnapshotHandle] | None = None
) -> Manifest:
    """``files``: each of a subtask of its own."""
    handles = {f"count[{index}]": handle_of(file, checkpoint=checkpoint) for index, file in enumerate(files)}
    return Manifest(checkpoint=checkpoint, generation=generation, subtasks={**handles, **(subtasks or {})})
