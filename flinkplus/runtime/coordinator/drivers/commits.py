"""Manifests and commits: acknowledged snapshots become a durable checkpoint, and its output becomes visible.

A sink's part of a snapshot lists the files that it has staged and that may not be in a complete checkpoint yet. The
manifest names, for each sink, the new ones among them, and the uncommitted ones of earlier manifests. So one complete
checkpoint suffices to complete the output, whichever commits were still running.

Rules: one worker thread calls this, in the order of the coordinator core. Commits are idempotent in the committers.
Once another driver has taken the job over, every call raises ``JobRunsElsewhere`` and changes nothing. Manifests may be
large: those older than the newest with committed output are kept in storage only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flinkplus import errors
from flinkplus.protocol.determinants.recipe import StoredOutput
from flinkplus.protocol.program.description import Program
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import CommittedOutput, Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.sinks.base import RecipeKeeper, Sink, SinkCommitter, not_yet_committed
from flinkplus.state.durable.savepoint import SavepointOrigin
from flinkplus.state.durable.storage import CheckpointStorage

log = logging.getLogger("flinkplus")


def _ignored(*_: object) -> None:
    return None


class Commits:
    """The job's manifests in memory and in storage, and its sinks' committers. ``rows``: sink -> committed rows.
    ``sinks``: by name. ``taken_over``: called in the worker's thread when another driver has taken the job over.
    ``program``: the one whose checkpoints are stored."""

    def __init__(
        self,
        sinks: Mapping[str, Sink],
        storage: CheckpointStorage,
        taken_over: Callable[[str], None] = lambda reason: None,
        program: Program | None = None,
    ) -> None:
        self._storage = storage
        self._taken_over = taken_over
        self._program = program
        self.sinks: dict[str, Sink] = dict(sinks)
        self.committers: dict[str, SinkCommitter] = {name: sink.committer() for name, sink in self.sinks.items()}
        self._manifests: dict[int, Manifest] = {}
        self._newest = CheckpointId(0)
        self._unsure = False  # whether the write of the last manifest failed, so that it may still appear
        self._uncommitted: dict[str, Sequence[StagedFile]] = dict.fromkeys(self.sinks, ())
        self.rows: dict[str, int] = dict.fromkeys(self.sinks, 0)
        self._origin: SavepointOrigin | None = None
        self.stored: Callable[[CheckpointId, Sequence[tuple[SubtaskId, SnapshotHandle]]], None] = _ignored
        """Called with each checkpoint that is complete, and its snapshots."""
        self.dropped: Callable[[CheckpointId], None] = _ignored
        """Called with each checkpoint that is no longer kept."""
        for committer in self.committers.values():
            committer.allow_only_if(self._check)

    def _check(self) -> None:
        with self._noticing():
            self._storage.runs.check()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Report another driver that has taken the job over. A sink may know of it before the checkpoint directory."""
        try:
            yield
        except errors.JobRunsElsewhere as error:
            self._taken_over(str(error))
            raise

    @property
    def all_committed(self) -> bool:
        """Whether all output of complete checkpoints is visible."""
        return not any(self._uncommitted.values())

    def prepare(self, resume: bool) -> None:
        """Prepare every output. Raises ``OutputError`` if one cannot be used: a directory that holds data, unless
        ``resume``."""
        for committer in self.committers.values():
            committer.prepare(resume)

    def continue_from(self, before: Commits, names: Mapping[str, str]) -> None:
        """Prepare the output to continue that of another program, whose output ``before`` has completed.

        ``names``: sink -> the sink of before whose output it continues; the others begin an output.
        """
        for name, committer in self.committers.items():
            committer.prepare(resume=name in names)
        self._newest, self._manifests = before._newest, before._manifests
        self.rows = {name: before.rows.get(names.get(name, ""), 0) for name in self.sinks}

    def prepare_again(self) -> None:
        """As ``prepare``, for a job without a checkpoint whose run before may have died while it did so."""
        for committer in self.committers.values():
            try:
                committer.prepare(resume=True)
            except errors.OutputUnavailable:
                raise
            except errors.OutputError:
                committer.prepare(resume=False)

    def check_successor(self, origin: SavepointOrigin, continued: Collection[str]) -> None:
        """Raises ``OutputDirectoryError`` if a job that starts from a savepoint cannot have its outputs.

        ``continued``: the sinks that may continue an output of the savepoint's job; the others begin one.
        """
        for name, committer in self.committers.items():
            committer.check_successor(origin.job_id if name in continued else None, origin.checkpoint)

    def begins_with(self, origin: SavepointOrigin) -> None:
        """The job was started from a savepoint, and so cannot begin at the start."""
        self._origin = origin

    def succeed(
        self, origin: SavepointOrigin, manifest: Manifest, names: Mapping[str, str], continued: Collection[str]
    ) -> None:
        """As ``prepare`` and ``adopt``, for a job that continues from the savepoint itself, whose output is complete.

        ``manifest``: of the savepoint. ``names``: sink -> the sink of the savepoint whose rows it counts on.
        ``continued``: as in ``check_successor``, which is called before any output is changed. May be repeated.
        """
        self.check_successor(origin, continued)
        for name, committer in self.committers.items():
            committer.succeed(origin.job_id if name in continued else None, origin.checkpoint)
        checkpoint = CheckpointId(manifest.checkpoint)
        self._manifests[checkpoint] = manifest
        self.retract_after(checkpoint)
        of_savepoint = {name: manifest.commits.get(former) for name, former in names.items()}
        self.rows = {name: part.rows if (part := of_savepoint.get(name)) else 0 for name in self.sinks}

    def store(
        self, checkpoint: CheckpointId, generation: Generation, handles: Sequence[tuple[SubtaskId, Any]], final: bool
    ) -> None:
        """Write the manifest of a checkpoint."""
        self._check()
        commits = {}
        for name, files in self._staged(handles).items():
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
            program=self._program,
        )
        self._unsure = True
        self._storage.manifests.write(manifest)
        self._unsure = False
        self._manifests[checkpoint] = manifest
        self._newest = checkpoint
        self.stored(checkpoint, handles)
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
        """Make the output of a checkpoint visible; idempotent."""
        self._check()
        manifest = self.manifest(checkpoint)
        for name, part in manifest.commits.items():
            with self._noticing():
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
        """Continue from a checkpoint of an earlier run: drop newer checkpoints, commit its remaining output."""
        self._manifests[checkpoint] = manifest
        self.retract_after(checkpoint)
        self.commit(checkpoint)

    def retract_after(self, checkpoint: CheckpointId | None) -> None:
        """Retract output committed after ``checkpoint``, from which the job continues; newer checkpoints are void.

        Raises ``CorruptCheckpoint`` for the start of a job that was started from a savepoint.
        """
        self._check()
        if checkpoint is None and self._origin is not None:
            raise errors.CorruptCheckpoint(
                f"no checkpoint can be restored, and the job began with the savepoint {self._origin.savepoint!r}: "
                "start a new job from it"
            )
        self._storage.manifests.withdraw_after(checkpoint or 0)
        for committer in self.committers.values():
            with self._noticing():
                committer.retract_after(checkpoint)
        self._manifests = {c: m for c, m in self._manifests.items() if checkpoint is not None and c <= checkpoint}
        self._uncommitted = dict.fromkeys(self.sinks, ())
        try:
            commits = {} if checkpoint is None else self.manifest(checkpoint).commits
        except (errors.CorruptCheckpoint, errors.UntrustedCheckpoint):
            commits = {}  # the restore finds the same error, and falls back further
        self._newest = checkpoint or CheckpointId(0)
        self.rows = {name: commits[name].rows if name in commits else 0 for name in self.sinks}

    def collect_garbage(self, generation: Generation) -> None:
        """At the start of a deployment, remove state files that no manifest and no running snapshot can name."""
        self._check()
        self._void_unsure_manifest()
        self._storage.retention.collect_garbage(generation, self._newest)

    def sweep(self, complete: CheckpointId, triggered: CheckpointId) -> None:
        """While the job runs, remove state files that no checkpoint can name any more."""
        self._check()
        self._void_unsure_manifest()
        self._storage.retention.sweep(complete, triggered)

    def drop(self, checkpoint: CheckpointId) -> None:
        """Forget a checkpoint: an old one, or one whose manifest may not have been stored. The latter becomes void,
        also if its manifest appears late; later snapshots refer to its files, so they are kept."""
        self._check()
        self._manifests.pop(checkpoint, None)
        if checkpoint > self._newest:
            self._void_unsure_manifest()
        else:
            self._storage.retention.drop(checkpoint)
            self.dropped(checkpoint)

    def fence_output(
        self, sink: str, generation: Generation, subtasks: Sequence[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]:
        """See ``RecipeKeeper.fence``."""
        self._check()
        keeper = self.committers[sink]
        assert isinstance(keeper, RecipeKeeper)
        with self._noticing():
            return keeper.fence(generation, subtasks, parallelism, patience_s)

    def _void_unsure_manifest(self) -> None:
        """Make a manifest void that may still appear, before files that it names are removed."""
        if self._unsure:
            self._storage.manifests.withdraw_after(self._newest)
            self._unsure = False

    def handles(self, checkpoint: CheckpointId) -> dict[str, SnapshotHandle]:
        """Subtask -> snapshot handle of a checkpoint."""
        return self.manifest(checkpoint).subtasks

    def end(self, finished: bool, resumable: bool) -> None:
        """Complete the output of a job that is over; its slots and the storage worker must have ended.

        ``finished``: leave only committed output. Otherwise commit the output of the newest complete checkpoint, and
        remove other staged output. If that commit fails, a job that can be resumed keeps its staged output.
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
            except (OSError, errors.FlinkPlusError) as error:  # the output is complete all the same
                log.warning("keeping unused state files until the job is resumed: %s", error)

    def _commit_newest(self) -> None:
        if self.all_committed:
            return
        try:
            self.commit(self._newest)
        except errors.JobRunsElsewhere:
            raise
        except (OSError, errors.FlinkPlusError) as error:
            log.warning("could not commit the output of checkpoint %d: %s", self._newest, error)

    def finish(self) -> None:
        """Leave only committed output: the job has finished."""
        self._check()
        for committer in self.committers.values():
            committer.finish()

    def close(self) -> None:
        """This process does not use the sinks again."""
        for committer in self.committers.values():
            committer.close()

    def discard(self) -> None:
        """Remove uncommitted output: the job has not finished. A manifest that appears later is void."""
        self._check()
        self._storage.manifests.withdraw_after(self._newest)
        for committer in self.committers.values():
            committer.discard()
