"""From a fused graph to a running job: ``start_job`` from a program, ``resume_job`` from a checkpoint directory.

Rules: checks come before anything runs. When a step fails, earlier steps are undone. Checkpoints and output stay
untouched until it is certain that no other driver runs the job (``directory``, ``registry``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from flinkplus.config import Options, options_from
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.base.logs import wanted
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.registry import JobRegistry
from flinkplus.runtime.coordinator.setup.configs import find_strategy
from flinkplus.runtime.coordinator.setup.outcome import JobResult
from flinkplus.runtime.job import staging
from flinkplus.runtime.job.checks import check_faults, check_loops, check_mode, recovery_of
from flinkplus.runtime.job.directory import JobDirectory
from flinkplus.runtime.job.finished import FinishedJob
from flinkplus.runtime.job.launcher import check_cluster, coordinator_hosts
from flinkplus.runtime.job.open_ports import warn_of_open_ports
from flinkplus.runtime.job.plan import FoundJob, Plan, adopt, identity_of, load_plan_of
from flinkplus.runtime.job.restoring import begin_run, lasting_secret
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.sources.base import Source
from flinkplus.sources.parquet import StagedParquet
from flinkplus.state.durable.ownership import Resume
from flinkplus.state.durable.storage import CheckpointStorage


def start_job(
    spark: SparkSession,
    name: str,
    graph: JobGraph,
    options: Options,
    frames: dict[str, DataFrame],
    output_id: str,
    resume: Resume,
    trust: bool = False,
) -> RunningJob | FinishedJob:
    """Check, prepare and start a job; returns once its slots are being started.

    With ``resume="auto"`` a new job starts, an unfinished one resumes, and a finished one is returned as it is.
    ``trust``: resume it even if another key has signed its plan.
    """
    if resume == "auto" and options.checkpoint_dir is None:
        raise ConfigurationError(
            "resume='auto' needs checkpoint_dir: without it the checkpoints are deleted when the job ends"
        )
    check(spark, graph, options)
    directory = JobDirectory(spark, options)
    claimed: CheckpointStorage | None = None
    try:
        key = find_key(options.signing_key, options.checkpoint_dir, make=trust or resume is not True)
        storage = CheckpointStorage(directory.checkpoints, key=key, trust=trust)
        identity = identity_of(name, graph, options)

        def claim() -> None:
            directory.claim(storage.ownership.has_begun() if resume == "auto" else resume)

        begun = storage.ownership.prepare(identity, resume, claim, output_id)
        claimed = None if begun else storage
        old = load_plan_of(identity, storage, directory.checkpoints) if begun else None
        if old is not None:
            output_id = old.output_id
            check_mode(old.options, options)
            adopt(graph, old)
        else:
            for source_name, frame in frames.items():
                node = next(node for node in graph.nodes if node.name == source_name)
                assert isinstance(node.body, StagedParquet)
                node.body = staging.stage(frame, node.body, directory.checkpoints)
        storage.signed.job_id = output_id
        plan = Plan(name, output_id, graph, options)
        return launch(spark, plan, storage, directory, begun, auto=resume == "auto")
    except BaseException:
        if claimed is not None:
            claimed.ownership.release()
        directory.remove()
        raise


def check(spark: SparkSession, graph: JobGraph, options: Options) -> None:
    """Checks of the options and of the cluster that need no files."""
    check_loops(graph, options)
    check_faults(graph, options)
    wanted(options.log)
    check_cluster(spark, options.parallelism)
    warn_of_open_ports(spark)
    find_strategy(options.placement)


def resume_job(spark: SparkSession, found: FoundJob, overrides: dict[str, Any]) -> RunningJob | FinishedJob:
    """Resume a job. ``overrides``: options of this run that differ from those of the plan."""
    checkpoint_dir, storage, plan = found.checkpoint_dir, found.storage, found.plan
    given = options_from({}, {**vars(plan.options), **overrides, "checkpoint_dir": checkpoint_dir})
    check_mode(plan.options, given)
    check(spark, plan.graph, given)
    directory = JobDirectory(spark, given)
    try:
        job = identity_of(plan.name, plan.graph, given)
        storage.ownership.prepare(job, resume=True, claim=lambda: directory.claim(resume=True))
        return launch(spark, replace(plan, options=given), storage, directory, resume=True, auto=False)
    except BaseException:
        directory.remove()
        raise


def launch(
    spark: SparkSession, plan: Plan, storage: CheckpointStorage, directory: JobDirectory, resume: bool, auto: bool
) -> RunningJob | FinishedJob:
    plan = replace(plan, options=recovery_of(plan.graph, plan.options))
    for node in plan.graph.nodes:
        if isinstance(node.body, Source) and not resume:
            node.body = node.body.planned()
    credentials = Credentials.made(plan.options, plan.output_id, lasting_secret(plan.options, storage))
    calls = Calls(Inbox(), JobResult())
    registry = _registry_of(spark, plan, directory, credentials, calls)
    try:
        if resume and registry is not None and plan.options.zookeeper is not None:
            registry.elect_first()
        commits, restore = begin_run(plan, storage, resume, calls.taken_over, directory.path)
        if not restore.finished:
            return RunningJob(spark, plan, storage, commits, restore, directory, credentials, calls, registry)
        if not auto:
            raise CheckpointDirectoryError("the job has finished: its last checkpoint is final, and cannot be resumed")
        finished = FinishedJob(plan, directory.checkpoints, commits, restore)
    except BaseException:
        if registry is not None:
            registry.close()
        raise
    if registry is not None:
        registry.close()
    directory.remove()
    return finished


def _registry_of(
    spark: SparkSession, plan: Plan, directory: JobDirectory, credentials: Credentials, calls: Calls
) -> JobRegistry | None:
    """``None`` for a job that needs no ZooKeeper: local recovery does, and an ensemble excludes a second driver."""
    if not plan.options.local and plan.options.zookeeper is None:
        return None
    data, reported, give_up = directory.path / "zookeeper", calls.registry_reported, calls.give_up
    auth, certificates = credentials.zookeeper, credentials.registry_certificates
    hosts = coordinator_hosts(spark)
    return JobRegistry(plan.options, plan.output_id, data, *hosts, reported, give_up, auth, certificates)
