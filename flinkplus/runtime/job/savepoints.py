"""How a new job starts from a savepoint.

It has an ID and a checkpoint directory of its own. The savepoint is copied there as its first checkpoint, and is
not needed after that; from then on the job is resumed as any other.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from flinkplus.config import Options, options_from
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.job import staging
from flinkplus.runtime.job.directory import JobDirectory
from flinkplus.runtime.job.finished import FinishedJob
from flinkplus.runtime.job.plan import FoundJob, Plan, adopt, find_job, identity_of, plan_bytes
from flinkplus.runtime.job.restoring import GENERATIONS_PER_RUN
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.start import check, launch, resume_job
from flinkplus.sinks.base import Sink
from flinkplus.sources.parquet import StagedParquet
from flinkplus.state.durable.ownership import check_same_job
from flinkplus.state.durable.savepoint import FoundSavepoint
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import absolute


def savepoint_of(found: FoundJob) -> FoundSavepoint | None:
    """The savepoint that was found; ``None``: it is the checkpoint directory of a job."""
    document = found.storage.ownership.savepoint
    if document is None:
        return None
    return FoundSavepoint(found.storage, document, found.plan.output_id)


def find_savepoint(location: str, signing_key: str | None, trust: bool) -> tuple[FoundJob, FoundSavepoint]:
    """Raises as ``find_job``, and ``CheckpointDirectoryError`` for what is no savepoint."""
    found = find_job(absolute(location), signing_key, trust)
    savepoint = savepoint_of(found)
    if savepoint is None:
        raise CheckpointDirectoryError(
            f"{location!r} is the checkpoint directory of a job, not a savepoint: resume the job there, or take a "
            "savepoint of it (job.savepoint, flinkplus savepoint)"
        )
    return found, savepoint


def has_checkpoints(options: Options) -> bool:
    """Whether a job can be resumed from the checkpoint directory of these options."""
    if options.checkpoint_dir is None:
        return False
    return bool(CheckpointStorage(absolute(options.checkpoint_dir)).manifests.checkpoints())


def start_drawn(
    spark: SparkSession, name: str, graph: JobGraph, options: Options, output_id: str, start_from: str, trust: bool
) -> RunningJob | FinishedJob:
    """Start the job that was drawn from the savepoint ``start_from``.

    Raises as ``find_savepoint``, and ``CheckpointDirectoryError`` if the savepoint is of another job.
    """
    found, savepoint = find_savepoint(start_from, options.signing_key, trust)
    there = {**identity_of(found.plan.name, found.plan.graph, found.plan.options), "name": name}
    check_same_job(there, identity_of(name, graph, options), start_from)
    adopt(graph, replace(found.plan, output_id=output_id))
    return _start(spark, Plan(name, output_id, graph, options), savepoint)


def resume_found(
    spark: SparkSession, found: FoundJob, new_checkpoint_dir: str | None, overrides: dict[str, Any]
) -> RunningJob | FinishedJob:
    """Resume a job from its checkpoint directory, or start a new one from a savepoint, as it was drawn.

    ``new_checkpoint_dir``: of the new job. Raises ``ConfigurationError`` if it is missing, or the job is not a new one.
    """
    savepoint = savepoint_of(found)
    if savepoint is not None:
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
    for node in plan.graph.nodes:
        if isinstance(node.body, Sink):
            node.body = node.body.bind(node.schema, output_id)
    return _start(spark, Plan(plan.name, output_id, plan.graph, options), savepoint)


def _start(spark: SparkSession, plan: Plan, savepoint: FoundSavepoint) -> RunningJob | FinishedJob:
    options = plan.options
    check(spark, plan.graph, options)
    directory = JobDirectory(spark, options)
    claimed: CheckpointStorage | None = None
    try:
        for node in plan.graph.nodes:
            if isinstance(node.body, StagedParquet):
                node.body = staging.moved(node.body, directory.checkpoints)
        storage = CheckpointStorage(
            directory.checkpoints, key=find_key(options.signing_key, options.checkpoint_dir, make=True)
        )
        identity = identity_of(plan.name, plan.graph, options)
        storage.ownership.prepare(identity, False, lambda: directory.claim(resume=False), plan.output_id)
        claimed = storage
        storage.signed.job_id = plan.output_id
        Commits(plan.graph, storage).check_successor(savepoint.origin)
        manifest = savepoint.manifest()
        savepoint.begin(storage, manifest, plan_bytes(plan), manifest.generation // GENERATIONS_PER_RUN + 1)
        claimed = None  # from here on the job is resumed, whatever happens
        return launch(spark, plan, storage, directory, resume=True, auto=False)
    except BaseException:
        if claimed is not None:
            claimed.ownership.release()
        directory.remove()
        raise
