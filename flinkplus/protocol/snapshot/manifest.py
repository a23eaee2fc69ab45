"""The manifest: the durable description of a checkpoint. The checkpoint exists when its manifest does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from flinkplus.documents import Document
from flinkplus.errors import CorruptCheckpoint
from flinkplus.path_names import checked_subtask
from flinkplus.protocol.snapshot.files import StagedFile, StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle

MANIFEST_FORMAT = 1
"""Of the JSON; that of the line before it is in ``state.durable.seals``."""


@dataclass(frozen=True, kw_only=True)
class CommittedOutput(Document):
    """What a checkpoint covers of one sink: ``files`` that were not committed yet, and all ``rows`` since the start."""

    files: tuple[StagedFile, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Manifest(Document):
    """A complete checkpoint. ``final``: the last one of a job that has finished. ``time_s``: since the Unix epoch.
    ``subtasks``: by name. ``commits``: by sink."""

    FORMAT: ClassVar[int] = MANIFEST_FORMAT
    REFUSED: ClassVar[type[Exception]] = CorruptCheckpoint

    checkpoint: int
    generation: int
    subtasks: dict[str, SnapshotHandle]
    final: bool = False
    time_s: float = 0.0
    commits: dict[str, CommittedOutput] = field(default_factory=dict)

    def check_names(self) -> None:
        for subtask in self.subtasks:
            checked_subtask(subtask)

    @property
    def files(self) -> list[StateFile]:
        """Every state file that it names, without repeats, in the order of subtasks."""
        return list({file.name: file for handle in self.subtasks.values() for file in handle.files}.values())
