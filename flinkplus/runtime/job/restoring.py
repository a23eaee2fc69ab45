"""The begin of a run of a job: takes over its checkpoints, prepares its output, finds the newest checkpoint.

Rules: if another driver has taken the job over, nothing is changed (``Runs.begin``).
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path

from flinkplus.config import Options
from flinkplus.errors import CorruptCheckpoint, UntrustedCheckpoint
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job.plan import Plan, plan_bytes
from flinkplus.runtime.job.rescaling.keyed import StatePlace
from flinkplus.runtime.job.rescaling.rescale import Rescaling, parallelism_of
from flinkplus.runtime.transport.auth.credentials import JOB
from flinkplus.state.durable.blobs import PLAN_BLOB, ZOOKEEPER_BLOB
from flinkplus.state.durable.savepoint import origin_of
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.removal import remove_folder

GENERATIONS_PER_RUN = 100_000
log = logging.getLogger("flinkplus")


def begin_run(
    plan: Plan, storage: CheckpointStorage, resume: bool, taken_over: Callable[[str], None], scratch: Path
) -> tuple[Commits, Restore]:
    """Take over the checkpoints, prepare the output, and find where the job begins. A new job stores its plan before it
    changes its output, so that the next run knows that the output is its own (``Ownership.has_begun``).

    ``scratch``: a directory for files that are needed only here. Raises ``ConfigurationError`` for a checkpoint of
    another parallelism that cannot be divided.
    """
    runs = _earlier_runs(storage, resume)
    storage.runs.begin(runs + 1)
    storage.sign_again()
    commits = Commits(plan.graph, storage, taken_over)
    if not resume:
        if runs:
            storage.manifests.withdraw_after(0)
        storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    try:
        origin = origin_of(storage) if resume else None
        if origin is not None:
            commits.succeed(origin, begun=storage.manifests.checkpoints()[-1] > origin.checkpoint)
        elif resume and not storage.manifests.checkpoints():
            commits.prepare_again()
        else:
            commits.prepare(resume)
        restore = Restore(generation=Generation(runs * GENERATIONS_PER_RUN))
        if resume:
            restore = _find_restore(storage, commits, restore)
            _rescale(plan, commits, restore, storage, scratch)
        if resume and not restore.finished:
            storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
        return commits, restore
    except BaseException:
        if not resume:
            commits.discard()  # otherwise the next attempt finds data in its output directory
        raise


def _rescale(plan: Plan, commits: Commits, restore: Restore, storage: CheckpointStorage, scratch: Path) -> None:
    """If the checkpoint is one of another parallelism, make it into one of this; keep older ones out of reach."""
    if restore.checkpoint is None or restore.finished:
        return
    manifest, after = commits.manifest(restore.checkpoint), plan.options.parallelism
    before = parallelism_of(manifest, plan.graph)
    if before == after:
        known = restore.available
        restore.available = tuple(c for c in known if _has_parallelism(after, c, plan, commits))
        restore.older = tuple(c for c in known if c not in restore.available)
        return
    log.info("checkpoint %d is divided among %d subtasks instead of %d", restore.checkpoint, after, before)
    checkpoint = restore.next_checkpoint
    groups = plan.options.max_parallelism
    place = StatePlace(scratch / "rescaling", storage.state_files, restore.generation, checkpoint, groups)
    try:
        handles = Rescaling(plan.graph, manifest, before, after, place).handles()
    finally:
        remove_folder(place.folder)
    commits.store(checkpoint, restore.generation, handles, final=False)
    restore.checkpoint, restore.available, restore.older = checkpoint, (checkpoint,), restore.available
    restore.next_checkpoint = CheckpointId(checkpoint + 1)


def _has_parallelism(parallelism: int, checkpoint: CheckpointId, plan: Plan, commits: Commits) -> bool:
    try:
        return parallelism_of(commits.manifest(checkpoint), plan.graph) == parallelism
    except (CorruptCheckpoint, UntrustedCheckpoint):
        return True  # a restore finds the error


def lasting_secret(options: Options, storage: CheckpointStorage) -> bytes | None:
    """The secret from which all runs of a job derive the password of its nodes in an ensemble; ``None``: no nodes."""
    if options.zookeeper is None or options.zookeeper_acl != JOB:
        return None
    try:
        return storage.blobs.get_signed(ZOOKEEPER_BLOB)
    except CorruptCheckpoint:
        made = secrets.token_bytes(32)
        storage.blobs.put_signed(ZOOKEEPER_BLOB, made, private=True)
        return made


def _earlier_runs(storage: CheckpointStorage, resume: bool) -> int:
    """The maximum number of earlier runs, whose late writes must be distinguishable from those of the next run."""
    try:
        return storage.runs.earlier()
    except CorruptCheckpoint as error:
        if not resume:
            return 0
        log.warning("the number of earlier runs is taken from the newest checkpoint: %s", error)
    found = storage.manifests.latest_valid()
    return 1 if found is None else found[1].generation // GENERATIONS_PER_RUN + 1


def _find_restore(storage: CheckpointStorage, commits: Commits, restore: Restore) -> Restore:
    """Find the newest valid checkpoint, commit its output, retract later output. Without any checkpoint the job begins
    at the start. Raises ``CorruptCheckpoint`` if all checkpoints are invalid."""
    known = storage.manifests.checkpoints()
    found = storage.manifests.latest_valid()
    if found is None:
        commits.retract_after(None)
        return restore
    checkpoint, manifest, skipped = found
    for reason in skipped:
        warnings.warn(
            f"checkpoint refused, resuming from checkpoint {checkpoint}: {reason}", RuntimeWarning, stacklevel=2
        )
    commits.adopt(CheckpointId(checkpoint), manifest)
    restore.checkpoint = CheckpointId(checkpoint)
    restore.available = tuple(CheckpointId(c) for c in known if c <= checkpoint)
    restore.next_checkpoint = CheckpointId(max(known) + 1)
    restore.draining = any(handle.operator_state.drained for handle in manifest.subtasks.values())
    restore.finished = manifest.final
    if restore.finished:
        commits.finish()
    return restore
