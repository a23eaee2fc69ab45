"""How a new job starts from a savepoint.

It has an ID and a checkpoint directory of its own. The savepoint is copied there as its first checkpoint, and is
not needed after that; from then on the job is resumed as any other. So whatever a resume accepts, another program
or parallelism, is accepted here, and whatever it refuses is refused with the same errors.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from flinkplus.config import Options, options_from
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.protocol.program.comparison import Comparison, Requests
from flinkplus.protocol.program.description import Program
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job.directory import JobDirectory
from flinkplus.runtime.job.finished import FinishedJob
from flinkplus.runtime.job.plan import FoundJob, Plan, identity_of, plan_bytes
from flinkplus.runtime.job.restoring import GENERATIONS_PER_RUN
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.start import check_settings, compare_with, launch, plan_sources, resume_job
from flinkplus.runtime.job.streams.queries import streamed
from flinkplus.runtime.job.upgrading.programs import (
    NO_CHANGE,
    adopt_splits,
    bind_sinks,
    check_permitted,
    continued_outputs,
    place_sources,
    put_program,
    sign_sources_again,
    stage_in,
    with_moved_input,
)
from flinkplus.state.durable.savepoint import FoundSavepoint
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import absolute


def find_savepoint(location: str, signing_key: str | None, trust: bool) -> FoundSavepoint:
    """The savepoint at ``location``. Nothing of its program is loaded.

    Raises ``CheckpointDirectoryError`` for what is no savepoint; ``UntrustedCheckpoint``.
    """
    storage = CheckpointStorage(absolute(location), trust=trust)
    _, job_id = storage.ownership.job_and_id(lambda: find_key(signing_key, location, make=trust))
    if storage.ownership.savepoint is None:
        raise CheckpointDirectoryError(
            f"{location!r} is the checkpoint directory of a job, not a savepoint: resume the job there, or take a "
            "savepoint of it (job.savepoint, flinkplus savepoint)"
        )
    return FoundSavepoint(storage, storage.ownership.savepoint, job_id)


def has_checkpoints(options: Options) -> bool:
    """Whether a job can be resumed from the checkpoint directory of these options."""
    if options.checkpoint_dir is None:
        return False
    return bool(CheckpointStorage(absolute(options.checkpoint_dir)).manifests.checkpoints())


@dataclass(frozen=True)
class NewJob:
    """A job that begins with a savepoint.

    ``change``: from the program of the savepoint to this one. ``splits``: what was planned for the sources of that one.
    ``frames``: the DataFrames among the sources of this one.
    ``requests``: see ``begin_run``.
    """

    plan: Plan
    savepoint: FoundSavepoint
    change: Comparison
    splits: Mapping[str, Any]
    frames: Mapping[str, DataFrame] = field(default_factory=dict)
    requests: Requests | None = None

    def start(self, spark: SparkSession) -> RunningJob | FinishedJob:
        plan, options = self.plan, self.plan.options
        check_settings(spark, plan.graph, options)
        directory = JobDirectory(spark, options)
        claimed: CheckpointStorage | None = None
        try:
            key = find_key(options.signing_key, options.checkpoint_dir, make=True)
            storage = CheckpointStorage(directory.checkpoints, key=key)
            storage.runs.look()
            identity = identity_of(plan.name, plan.graph, options)

            def claim() -> None:
                directory.claim(resume=False)
                storage.begin()

            storage.ownership.prepare(identity, False, claim, plan.output_id)
            claimed = storage
            storage.signed.job_id = plan.output_id
            continued = continued_outputs(self.change)
            stage_in(plan.graph, directory.checkpoints)
            Commits(plan.graph.sinks(), storage).check_successor(self.savepoint.origin, continued)
            manifest = self.savepoint.manifest()
            manifest = replace(manifest, program=self._plan_sources(directory.checkpoints, storage))
            run = manifest.generation // GENERATIONS_PER_RUN + 1
            self.savepoint.begin(storage, manifest, plan_bytes(plan), run)
            if self.savepoint.storage.signed.trust:
                place_sources(plan.graph, storage)
                sign_sources_again(plan.graph)
            claimed = None  # from here on the job is resumed, whatever happens
            return launch(
                spark, plan, storage, directory, resume=True, auto=False, requests=self.requests, frames=self.frames
            )
        except BaseException:
            if claimed is not None:
                claimed.ownership.release()
            directory.remove()
            raise

    def _plan_sources(self, directory: str, storage: CheckpointStorage) -> Program:
        """Sources that go on read what was planned for them, staged input at its new place; the others begin.

        Returns the program of the savepoint with its staged input there.
        """
        graph = self.plan.graph
        for name in streamed(graph):
            if self.change.origins.get(name) is not None:
                raise ConfigurationError(
                    f"source {name!r} is a streaming DataFrame: its query, and what it has staged, belong to the job "
                    "that took the savepoint, so no other job can continue it. Give the source another name, and "
                    f"drop_state=[{self.change.origins[name]!r}], to begin it anew"
                )
        program, splits = with_moved_input(self.change.old, self.splits, directory)
        going_on = adopt_splits(graph, replace(self.change, old=program), splits)
        plan_sources(graph, self.frames, directory, going_on, begun=True)
        put_program(storage, self.plan, splits)
        return program


def start_drawn(
    spark: SparkSession,
    name: str,
    graph: JobGraph,
    options: Options,
    frames: Mapping[str, DataFrame],
    output_id: str,
    start_from: str,
    trust: bool,
    requests: Requests,
) -> RunningJob | FinishedJob:
    """Start the job that was drawn from the savepoint ``start_from``, which may be of a job with any name.

    Raises as ``find_savepoint``, and ``ConfigurationError`` if the program does not fit the savepoint.
    """
    savepoint = find_savepoint(start_from, options.signing_key, trust)
    change, splits = _compared(savepoint, graph, options, requests)
    return NewJob(Plan(name, output_id, graph, options), savepoint, change, splits, frames, requests).start(spark)


def _compared(
    savepoint: FoundSavepoint, graph: JobGraph, options: Options, requests: Requests
) -> tuple[Comparison, Mapping[str, Any]]:
    """The program of a savepoint compared with ``graph``, and what was planned for its sources."""
    storage = savepoint.storage
    found = compare_with(storage, None, graph, options, requests)
    if found is None:
        raise CheckpointDirectoryError(f"the savepoint {storage.uri!r} is damaged: its plan and manifest are missing")
    _, change, splits = found
    return check_permitted(change, storage.uri), splits


def resume_found(
    spark: SparkSession, found: FoundJob, new_checkpoint_dir: str | None, overrides: dict[str, Any]
) -> RunningJob | FinishedJob:
    """Resume a job from its checkpoint directory, or start a new one from a savepoint, as it was drawn.

    ``new_checkpoint_dir``: of the new job. Raises ``ConfigurationError`` if it is missing, or the job is not a new one.
    """
    document = found.storage.ownership.savepoint
    if document is not None:
        savepoint = FoundSavepoint(found.storage, document, found.plan.output_id)
        return _start_as_drawn(spark, found, savepoint, new_checkpoint_dir, overrides)
    if new_checkpoint_dir is not None:
        raise ConfigurationError(
            f"{found.checkpoint_dir!r} is the checkpoint directory of the job, which keeps its checkpoints there: a "
            "new one is only given with a savepoint"
        )
    return resume_job(spark, found, overrides)


def _start_as_drawn(
    spark: SparkSession,
    found: FoundJob,
    savepoint: FoundSavepoint,
    checkpoint_dir: str | None,
    overrides: dict[str, Any],
) -> RunningJob | FinishedJob:
    """Start a new job from a savepoint, as the job was drawn. ``overrides``: options that differ from its plan's.

    Raises ``ConfigurationError`` without a checkpoint directory for the new job.
    """
    if checkpoint_dir is None:
        raise ConfigurationError(
            f"{found.checkpoint_dir!r} is a savepoint, which is never written to: give the job that starts from it a "
            "new checkpoint directory (new_checkpoint_dir=DIR, --checkpoint-dir DIR)"
        )
    plan = found.plan
    options = options_from({}, {**vars(plan.options), **overrides, "checkpoint_dir": checkpoint_dir})
    output_id = f"job-{uuid.uuid4().hex[:12]}"
    bind_sinks(plan.graph, output_id)
    change, splits = _compared(savepoint, plan.graph, options, NO_CHANGE)
    return NewJob(Plan(plan.name, output_id, plan.graph, options), savepoint, change, splits).start(spark)
