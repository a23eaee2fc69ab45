"""Manifests and commits: how acknowledged snapshots become a durable checkpoint, and its output visible.

A sink's part of a snapshot lists the files it has staged and does not yet know to be in a complete checkpoint. The
manifest names, for each sink, those of them that are new, and those of earlier manifests that are not committed yet. So
a complete checkpoint alone is enough to complete the output, whichever commits were still running. ``rows`` counts
the rows that are in a complete checkpoint, per sink.

Rules: called from one worker thread, in the order the coordinator core gives. Commits are idempotent in the committers.
When another driver has taken the job over, nothing is written, moved or removed any more: ``JobRunsElsewhere``.
Manifests may be large: those before the newest whose output is committed are on storage only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.errors import (
    CorruptCheckpoint,
    FlinkPlusError,
    JobRunsElsewhere,
    OutputDirectoryError,
    UntrustedCheckpoint,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import CommittedOutput, Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.sinks.base import Sink, SinkCommitter, not_yet_committed
from flinkplus.state.durable.storage import CheckpointStorage

log = logging.getLogger("flinkplus")


class Commits:
    """The job's manifests in memory and on storage, and its sinks' committers.

    ``taken_over``: called from the worker's thread when another driver has taken over the job.
    """

    def __init__(
        self, graph: JobGraph, storage: CheckpointStorage, taken_over: Callable[[str], None] = lambda reason: None
    ) -> None:
        self._storage = storage
        self._taken_over = taken_over
        self.sinks: dict[str, Sink] = {n.name: n.body for n in graph.nodes if isinstance(n.body, Sink)}
        self.committers: dict[str, SinkCommitter] = {name: sink.committer() for name, sink in self.sinks.items()}
        self._manifests: dict[int, Manifest] = {}
        self._newest = CheckpointId(0)
        self._unsure = False  # whether the last manifest may be stored, or may appear, although that failed
        self._uncommitted: dict[str, Sequence[StagedFile]] = dict.fromkeys(self.sinks, ())
        self.rows: dict[str, int] = dict.fromkeys(self.sinks, 0)
        for committer in self.committers.values():
            committer.allow_only_if(self._check)

    def _check(self) -> None:
        try:
            self._storage.runs.check()
        except JobRunsElsewhere as error:
            self._taken_over(str(error))
            raise

    @property
    def all_committed(self) -> bool:
        """Whether everything that complete checkpoints cover is visible."""
        return not any(self._uncommitted.values())

    def prepare(self, resume: bool) -> None:
        """Have every output directory ready. Raises ``OutputDirectoryError`` when one holds data already, and not
        ``resume``.
        """
        for committer in self.committers.values():
            committer.prepare(resume)

    def prepare_again(self) -> None:
        """Have every output directory ready for a job that has begun and has no checkpoint: the run before may have
        died before, or while, it prepared them. Raises ``OutputDirectoryError`` when one holds other data.
        """
        for committer in self.committers.values():
            try:
                committer.prepare(resume=True)
            except OutputDirectoryError:
                committer.prepare(resume=False)

    def store(
        self,
        checkpoint: CheckpointId,
        generation: Generation,
        handles: Sequence[tuple[SubtaskId, Any]],
        final: bool,
    ) -> None:
        """Write the manifest of a checkpoint."""
        self._check()
        staged = self._staged(handles)
        commits = {}
        for name, files in staged.items():
            fresh = not_yet_committed(files, self._newest)
            rows = self.rows[name] + sum(file.rows for file in fresh)
            commits[name] = CommittedOutput(files=(*self._uncommitted[name], *fresh), rows=rows)
        manifest = Manifest(
            checkpoint=checkpoint,
            generation=generation,
            final=final,
            time_s=time.time(),
            subtasks={str(subtask): handle for subtask, handle in handles},
            commits=commits,
        )
        self._unsure = True
        self._storage.manifests.write(manifest)
        self._unsure = False
        self._manifests[checkpoint] = manifest
        self._newest = checkpoint
        self.rows = {name: part.rows for name, part in commits.items()}
        self._uncommitted = {name: part.files for name, part in commits.items()}

    def _staged(self, handles: Sequence[tuple[SubtaskId, SnapshotHandle]]) -> dict[str, list[StagedFile]]:
        staged: dict[str, list[StagedFile]] = {name: [] for name in self.sinks}
        for _, handle in handles:
            for name, part in handle.operator_state.operators.items():
                if name in staged:
                    staged[name].extend(part.staged)
        return staged

    def commit(self, checkpoint: CheckpointId) -> None:
        """Make visible what the checkpoint covers; may be called again."""
        self._check()
        manifest = self.manifest(checkpoint)
        for name, part in manifest.commits.items():
            self.committers[name].commit(checkpoint, part.files)
            self._uncommitted[name] = not_yet_committed(self._uncommitted[name], checkpoint)
        self._manifests = {c: m for c, m in self._manifests.items() if c >= checkpoint}

    def manifest(self, checkpoint: CheckpointId) -> Manifest:
        """The manifest, from memory or storage. Raises ``CorruptCheckpoint`` or ``UntrustedCheckpoint``."""
        known = self._manifests.get(checkpoint)
        if known is None:
            known = self._storage.manifests.read(checkpoint)
            self._manifests[checkpoint] = known
        return known

    def adopt(self, checkpoint: CheckpointId, manifest: Manifest) -> None:
        """Continue from a checkpoint of an earlier run: what is newer is dropped, its output is committed where it was
        not.
        """
        self._manifests[checkpoint] = manifest
        self.retract_after(checkpoint)
        self.commit(checkpoint)

    def retract_after(self, checkpoint: CheckpointId | None) -> None:
        """Take back output committed after ``checkpoint``, with which the job continues. Newer checkpoints are void."""
        self._check()
        self._storage.manifests.withdraw_after(checkpoint or 0)
        for committer in self.committers.values():
            committer.retract_after(checkpoint)
        self._manifests = {c: m for c, m in self._manifests.items() if checkpoint is not None and c <= checkpoint}
        self._uncommitted = dict.fromkeys(self.sinks, ())
        try:
            commits = {} if checkpoint is None else self.manifest(checkpoint).commits
        except (CorruptCheckpoint, UntrustedCheckpoint):
            commits = {}  # a restore finds the same, and falls back further
        self._newest = checkpoint or CheckpointId(0)
        self.rows = {name: commits[name].rows if name in commits else 0 for name in self.sinks}

    def collect_garbage(self, generation: Generation) -> None:
        """Remove state files that no manifest names and no running snapshot may name: a deployment begins."""
        self._check()
        self._settle_unsure()
        self._storage.retention.collect_garbage(generation, self._newest)

    def sweep(self, complete: CheckpointId, triggered: CheckpointId) -> None:
        """Remove state files that no checkpoint can name any more, while the job runs."""
        self._check()
        self._settle_unsure()
        self._storage.retention.sweep(complete, triggered)

    def drop(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint, in memory and on storage: an old one, or one whose manifest was not stored for certain.

        The latter is void from now on, should its manifest appear late: the subtasks keep building upon its files.
        """
        self._check()
        self._manifests.pop(checkpoint, None)
        if checkpoint > self._newest:
            self._settle_unsure()
        else:
            self._storage.retention.drop(checkpoint)

    def _settle_unsure(self) -> None:
        """A manifest that was not stored for certain may appear at any time: before anything that it names is removed,
        it is made void."""
        if self._unsure:
            self._storage.manifests.withdraw_after(self._newest)
            self._unsure = False

    def handles(self, checkpoint: CheckpointId) -> dict[str, SnapshotHandle]:
        """Subtask -> snapshot handle of a checkpoint."""
        return self.manifest(checkpoint).subtasks

    def end(self, finished: bool, resumable: bool) -> None:
        """The job is over, no slot is left, and nothing that was given to the storage worker is under way.

        ``finished``: leave only committed output. Otherwise commit what the newest complete checkpoint covers, because
        the job may have ended before that, and remove what is staged beyond it. If that commit fails, a
        job that can be resumed keeps what is staged.
        ``resumable``: whether the user keeps the checkpoint directory.
        """
        self._check()
        if finished:
            self.finish()
        else:
            self._commit_newest()
            if self.all_committed or not resumable:
                self.discard()
        if resumable:
            try:
                self._storage.retention.sweep_all()
            except (OSError, FlinkPlusError) as error:  # the output is complete: this takes nothing from it
                log.warning("keeping unused state files until the job is resumed: %s", error)

    def _commit_newest(self) -> None:
        if self.all_committed:
            return
        try:
            self.commit(self._newest)
        except JobRunsElsewhere:
            raise
        except (OSError, FlinkPlusError) as error:
            log.warning("could not commit the output of checkpoint %d: %s", self._newest, error)

    def finish(self) -> None:
        """The job finished: leave only committed output."""
        self._check()
        for committer in self.committers.values():
            committer.finish()

    def discard(self) -> None:
        """The job ended otherwise: remove what is staged and not committed. A manifest that appears later is void."""
        self._check()
        self._storage.manifests.withdraw_after(self._newest)
        for committer in self.committers.values():
            committer.discard()
