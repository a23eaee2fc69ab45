"""What the coordinator needs of the part of the driver that divides checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId


class Divider(Protocol):
    """Divides complete checkpoints of a running job; called by the storage worker."""

    def check(self, checkpoint: CheckpointId, parallelism: int) -> None:
        """Raise ``ConfigurationError`` if ``checkpoint`` cannot be divided for another parallelism. Stores nothing."""

    def files(self, checkpoint: CheckpointId, parallelism: int) -> Mapping[SubtaskId, tuple[StateFile, ...]]:
        """The files in storage that the subtasks of another parallelism take from those before, if ``checkpoint`` is
        divided. Stores nothing; raises the errors of ``check``."""

    def divide(self, checkpoint: CheckpointId, new: CheckpointId, generation: Generation, parallelism: int) -> None:
        """Store the checkpoint ``new``: ``checkpoint`` for another parallelism. ``generation``: of the running
        subtasks. Raises ``ConfigurationError`` if it cannot be divided."""
