"""The begin of a run of a job: takes over its checkpoints, prepares its output, finds the newest checkpoint.

Rules: if another driver has taken the job over, nothing is changed (``Runs.begin``).
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError, CorruptCheckpoint, UntrustedCheckpoint
from flinkplus.protocol.program.comparison import Comparison, Requests
from flinkplus.protocol.program.description import Program
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.job.checks import check_mode, has_channel_state
from flinkplus.runtime.job.plan import Plan, plan_bytes
from flinkplus.runtime.job.rescaling.former import Former
from flinkplus.runtime.job.rescaling.keyed import StatePlace
from flinkplus.runtime.job.rescaling.rescale import Rescaling, parallelism_at
from flinkplus.runtime.job.upgrading.former_output import Adoption
from flinkplus.runtime.job.upgrading.programs import put_program
from flinkplus.runtime.job.upgrading.visible_rows import rows_made_by
from flinkplus.runtime.transport.auth.credentials import JOB
from flinkplus.state.durable.blobs import PLAN_BLOB, ZOOKEEPER_BLOB
from flinkplus.state.durable.savepoint import origin_of
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.removal import remove_folder

GENERATIONS_PER_RUN = 100_000
log = logging.getLogger("flinkplus")


def begin_run(
    plan: Plan,
    storage: CheckpointStorage,
    resume: bool,
    taken_over: Callable[[str], None],
    scratch: Path,
    requests: Requests | None = None,
) -> tuple[Plan, Commits, Restore]:
    """Take over the checkpoints, prepare the output, and find where the job begins. A new job stores its plan before it
    changes its output, so that the next run knows that the output is its own (``Ownership.has_begun``).

    Returns the plan as well: it has the parallelism of the checkpoint if the job must begin at that (``visible_rows``).

    ``scratch``: a directory for files that are needed only here.
    ``requests``: of a program that may differ from the one that the checkpoint is of; ``None``: it must not.

    Raises ``ConfigurationError`` for a checkpoint of another parallelism that cannot be divided, or of a program that
    does not fit.
    """
    origin = origin_of(storage) if resume else None
    before = rows_made_by(plan, storage) if resume else None
    run = storage.runs.number
    if resume or not run:  # otherwise the run began before the directory was prepared
        run = storage.begin()
    storage.sign_again()
    commits = Commits(plan.graph.sinks(), storage, taken_over, plan.graph.program(plan.options.max_parallelism))
    if not resume:
        if run > 1:
            storage.manifests.withdraw_after(0)
        put_program(storage, plan)
        storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
    try:
        if not resume:
            commits.prepare(resume=False)
        elif origin is not None:
            commits.begins_with(origin)
        elif not storage.manifests.checkpoints():
            commits.prepare_again()
        restore = Restore(generation=Generation((run - 1) * GENERATIONS_PER_RUN))
        if resume:
            adoption = Adoption(plan, storage, commits, requests, taken_over, origin, before, restore.generation)
            restore = _find_restore(storage, commits, restore, adoption.adopt)
            if adoption.plan.options.parallelism != plan.options.parallelism:
                restore.wanted, plan = plan.options.parallelism, adoption.plan
            _transform(plan, commits, restore, storage, scratch, adoption.change)
        if resume and not restore.finished:
            storage.blobs.put_signed(PLAN_BLOB, plan_bytes(plan))
            put_program(storage, plan)
        return plan, commits, restore
    except BaseException:
        if not resume:
            commits.discard()  # otherwise the next attempt finds data in its output directory
        raise


def _transform(
    plan: Plan, commits: Commits, restore: Restore, storage: CheckpointStorage, scratch: Path, change: Comparison | None
) -> None:
    """If the checkpoint is one of another parallelism or program, make it into one of this; keep older ones out of
    reach. ``change``: from its program to this one."""
    if restore.checkpoint is None or restore.finished or change is None:
        return
    manifest, after = commits.manifest(restore.checkpoint), plan.options.parallelism
    before = parallelism_at(manifest, change.old.vertices)
    if before == after and change.is_direct:
        check_mode(manifest, plan.options)
        _check_in_flight(Former(plan.graph, change, manifest, before))
        known = restore.available
        restore.available = tuple(c for c in known if c == restore.checkpoint or _fits(c, plan, change, commits))
        restore.older = tuple(c for c in known if c not in restore.available)
        return
    checkpoint = restore.next_checkpoint
    _divide(commits, _rescaling(plan, storage, scratch, manifest, checkpoint, restore.generation, after, change))
    restore.checkpoint, restore.available, restore.older = checkpoint, (checkpoint,), restore.available
    restore.next_checkpoint = CheckpointId(checkpoint + 1)


def _divide(commits: Commits, division: AbstractContextManager[Rescaling]) -> None:
    """Store the checkpoint that ``division`` makes."""
    with division as rescaling:
        manifest, place = rescaling.manifest, rescaling.place
        before, after = rescaling.before, rescaling.after
        log.info("checkpoint %d of %d subtasks is made into one of %d", manifest.checkpoint, before, after)
        handles = rescaling.handles()
    new, generation = CheckpointId(place.checkpoint), Generation(place.generation)
    commits.store(new, generation, handles, final=False, divided_from=manifest.checkpoint)


@contextmanager
def _rescaling(
    plan: Plan,
    storage: CheckpointStorage,
    scratch: Path,
    manifest: Manifest,
    checkpoint: CheckpointId,
    generation: Generation,
    after: int,
    change: Comparison | None = None,
) -> Iterator[Rescaling]:
    """How ``checkpoint`` is made: the one of ``manifest``, for parallelism ``after``. ``change``: from its program to
    this one; ``None``: it is this. What is left on the local disk is removed at the end."""
    vertices = [vertex.name for vertex in plan.graph.vertices] if change is None else change.old.vertices
    before, options = parallelism_at(manifest, vertices), plan.options
    place = StatePlace(scratch / "rescaling", storage.state_files, generation, checkpoint, options.max_parallelism)
    try:
        yield Rescaling(plan.graph, manifest, before, after, place, change, options.in_flight_bytes)
    finally:
        remove_folder(place.folder)


@dataclass(frozen=True)
class CheckpointDivider:
    """``Divider`` of a running job. Afterwards its plan has the new parallelism. A job that dies in between has a
    checkpoint of another parallelism than its plan, which counts at a resume."""

    plan: Plan
    commits: Commits
    storage: CheckpointStorage
    scratch: Path

    def check(self, checkpoint: CheckpointId, parallelism: int) -> None:
        with self._looking_at(checkpoint, parallelism) as rescaling:
            rescaling.check()

    def files(self, checkpoint: CheckpointId, parallelism: int) -> Mapping[SubtaskId, tuple[StateFile, ...]]:
        with self._looking_at(checkpoint, parallelism) as rescaling:
            return rescaling.shared_files()

    def _looking_at(self, checkpoint: CheckpointId, parallelism: int) -> AbstractContextManager[Rescaling]:
        """The division of ``checkpoint``, which is not stored."""
        manifest = self.commits.manifest(checkpoint)
        generation = Generation(manifest.generation)
        return _rescaling(self.plan, self.storage, self.scratch, manifest, checkpoint, generation, parallelism)

    def divide(self, checkpoint: CheckpointId, new: CheckpointId, generation: Generation, parallelism: int) -> None:
        manifest = self.commits.manifest(checkpoint)
        _divide(
            self.commits,
            _rescaling(self.plan, self.storage, self.scratch, manifest, new, generation, parallelism),
        )
        after = replace(self.plan, options=replace(self.plan.options, parallelism=parallelism))
        self.storage.blobs.put_signed(PLAN_BLOB, plan_bytes(after))


def _check_in_flight(former: Former) -> None:
    """Raises ``ConfigurationError`` for messages in flight whose rows are others in this program."""
    in_flight = any(handle.operator_state.in_flight for handle in former.manifest.subtasks.values())
    if in_flight and len(former.edges) < len(former.program.edges):
        raise ConfigurationError(
            f"checkpoint {former.manifest.checkpoint} holds messages in flight, and the program has changed the "
            "columns of rows that are sent: resume the program before with a higher aligned_timeout, until a "
            "checkpoint completes within it, or stop it with a savepoint, which is aligned (in a loop, once it is "
            "empty); then the new one"
        )


def _fits(checkpoint: CheckpointId, plan: Plan, change: Comparison, commits: Commits) -> bool:
    """Whether the job can fall back to a checkpoint: it is of this parallelism, program and mode."""
    try:
        manifest = commits.manifest(checkpoint)
        program = change.new if manifest.program is None else manifest.program
        same = program.restores_as(change.new) and _columns(program) == _columns(change.old)
        mode = plan.options.checkpoint_mode == "unaligned" or not has_channel_state(manifest)
        return same and mode and parallelism_at(manifest, program.vertices) == plan.options.parallelism
    except (CorruptCheckpoint, UntrustedCheckpoint):
        return True  # a restore finds the error


def _columns(program: Program) -> object:
    return {name: operator.columns for name, operator in program.operators.items()}


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


def _find_restore(
    storage: CheckpointStorage,
    commits: Commits,
    restore: Restore,
    adopt: Callable[[CheckpointId, Manifest], None] | None = None,
) -> Restore:
    """Find the newest valid checkpoint, commit its output, retract later output. Without any checkpoint the job begins
    at the start. Raises ``CorruptCheckpoint`` if all checkpoints are invalid. ``adopt``: instead of ``commits.adopt``.
    """
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
    (adopt or commits.adopt)(CheckpointId(checkpoint), manifest)
    restore.checkpoint = CheckpointId(checkpoint)
    restore.available = tuple(CheckpointId(c) for c in known if c <= checkpoint)
    restore.next_checkpoint = CheckpointId(max(known) + 1)
    restore.draining = any(handle.operator_state.drained for handle in manifest.subtasks.values())
    restore.finished = manifest.final
    if restore.finished:
        commits.finish()
    return restore
