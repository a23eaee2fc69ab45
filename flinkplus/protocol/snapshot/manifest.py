"""The manifest: the durable description of a checkpoint. A checkpoint exists if its manifest does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from flinkplus.documents import Document
from flinkplus.errors import CorruptCheckpoint
from flinkplus.path_names import checked_subtask
from flinkplus.protocol.program.description import Program
from flinkplus.protocol.snapshot.files import StagedFile, StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle

MANIFEST_FORMAT = 1
"""Format of the JSON; ``state.durable.seals`` has the format of the line before it."""


@dataclass(frozen=True, kw_only=True)
class CommittedOutput(Document):
    """The output of one sink in a checkpoint: ``files`` not yet committed, and all ``rows`` since the start."""

    files: tuple[StagedFile, ...]
    rows: int


@dataclass(frozen=True, kw_only=True)
class Manifest(Document):
    """A complete checkpoint.

    ``subtasks``: by name.
    ``final``: whether it is the last one of a finished job.
    ``time_s``: since the Unix epoch.
    ``commits``: by sink.
    ``program``: the one that took the checkpoint; ``None``: not known, so that only the same one can restore it.
    ``divided_from``: the checkpoint that this one was made of, for another parallelism or program; 0: it was taken.
    """

    FORMAT: ClassVar[int] = MANIFEST_FORMAT
    REFUSED: ClassVar[type[Exception]] = CorruptCheckpoint

    checkpoint: int
    generation: int
    subtasks: dict[str, SnapshotHandle]
    final: bool = False
    time_s: float = 0.0
    commits: dict[str, CommittedOutput] = field(default_factory=dict)
    program: Program | None = None
    divided_from: int = 0

    def check_names(self) -> None:
        for subtask in self.subtasks:
            checked_subtask(subtask)

    @property
    def files(self) -> list[StateFile]:
        """All its state files, without repeats, in the order of subtasks: each file in storage once."""
        return list({file.stored: file for handle in self.subtasks.values() for file in handle.files}.values())


def settled(manifest: Manifest) -> Manifest:
    """The same checkpoint, whose output is committed: it has nothing staged."""
    subtasks = {}
    for subtask, handle in manifest.subtasks.items():
        operators = {name: replace(part, staged=()) for name, part in handle.operator_state.operators.items()}
        subtasks[subtask] = replace(handle, operator_state=replace(handle.operator_state, operators=operators))
    commits = {sink: CommittedOutput(files=(), rows=part.rows) for sink, part in manifest.commits.items()}
    return replace(manifest, subtasks=subtasks, commits=commits)
