"""Where a run of a job begins: its checkpoints are taken over, its output is prepared, the newest checkpoint is found.

Rules: a new job stores its plan before it touches its output. Nothing of a run that another driver has replaced is
touched (``Runs.begin``).
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Callable

from flinkplus.config import Options
from flinkplus.errors import CorruptCheckpoint
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job.plan import Plan, written
from flinkplus.runtime.transport.auth.credentials import JOB
from flinkplus.state.durable.blobs import PLAN_BLOB, ZOOKEEPER_BLOB
from flinkplus.state.durable.storage import CheckpointStorage

GENERATIONS_PER_RUN = 100_000
log = logging.getLogger("flinkplus")


def begin_run(
    plan: Plan, storage: CheckpointStorage, resume: bool, taken_over: Callable[[str], None]
) -> tuple[Commits, Restore]:
    """Take the checkpoints over, have the output ready, and find where the job begins.

    A new job stores its plan before it touches its output: whatever the driver dies of from then on, the next run knows
    whose output that is (``Ownership.has_begun``).
    """
    runs = _earlier_runs(storage, resume)
    storage.runs.begin(runs + 1)
    storage.sign_again()
    commits = Commits(plan.graph, storage, taken_over)
    if not resume:
        if runs:
            storage.manifests.withdraw_after(0)
        storage.blobs.put_signed(PLAN_BLOB, written(plan))
    try:
        if resume and not storage.manifests.checkpoints():
            commits.prepare_again()
        else:
            commits.prepare(resume)
        restore = Restore(generation=Generation(runs * GENERATIONS_PER_RUN))
        if resume:
            restore = _find_restore(storage, commits, restore)
        if resume and not restore.finished:
            storage.blobs.put_signed(PLAN_BLOB, written(plan))
        return commits, restore
    except BaseException:
        if not resume:
            commits.discard()  # or what was prepared would refuse the next try
        raise


def lasting_secret(options: Options, storage: CheckpointStorage) -> bytes | None:
    """What all runs of the job derive their password for its nodes in an ensemble from: the next run finds those of the
    last. It is in the checkpoint directory."""
    if options.zookeeper is None or options.zookeeper_acl != JOB:
        return None
    try:
        return storage.blobs.get_signed(ZOOKEEPER_BLOB)
    except CorruptCheckpoint:
        made = secrets.token_bytes(32)
        storage.blobs.put_signed(ZOOKEEPER_BLOB, made, private=True)
        return made


def _earlier_runs(storage: CheckpointStorage, resume: bool) -> int:
    """How many runs of the job there may have been, also of one that begins again with no checkpoint: what they still
    write must not be taken for what the next one writes."""
    try:
        return storage.runs.earlier()
    except CorruptCheckpoint as error:
        if not resume:
            return 0
        log.warning("the number of earlier runs is taken from the newest checkpoint: %s", error)
    found = storage.manifests.latest_valid()
    return 1 if found is None else found[1].generation // GENERATIONS_PER_RUN + 1


def _find_restore(storage: CheckpointStorage, commits: Commits, restore: Restore) -> Restore:
    """The newest checkpoint that is whole; what it covers is committed, what came after is taken back.

    Without any checkpoint the job begins at the start; when there are some and none is whole, ``CorruptCheckpoint``.
    """
    known = storage.manifests.checkpoints()
    found = storage.manifests.latest_valid()
    if found is None:
        commits.retract_after(None)
        return restore
    checkpoint, manifest, skipped = found
    for reason in skipped:
        warnings.warn(
            f"checkpoint refused, going back to checkpoint {checkpoint}: {reason}", RuntimeWarning, stacklevel=2
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
