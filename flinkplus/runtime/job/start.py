"""From a fused graph to a running job: ``start_job`` from a program, ``resume_job`` from a checkpoint directory.

Rules: checks come before anything runs. When a step fails, earlier steps are undone. Checkpoints and output stay
untouched until it is certain that no other driver runs the job (``directory``, ``registry``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from flinkplus.config import Options, options_from
from flinkplus.errors import CheckpointDirectoryError, ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.path_names import checked_name
from flinkplus.protocol.program.comparison import Comparison, Requests, compare
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.base.logs import wanted
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.registry import JobRegistry
from flinkplus.runtime.coordinator.setup.configs import find_strategy
from flinkplus.runtime.coordinator.setup.outcome import JobResult
from flinkplus.runtime.job import staging
from flinkplus.runtime.job.checks import (
    check_barriers,
    check_faults,
    check_loops,
    check_outputs,
    check_recipes,
    check_sources,
    recovery_of,
)
from flinkplus.runtime.job.directory import JobDirectory
from flinkplus.runtime.job.finished import FinishedJob
from flinkplus.runtime.job.launcher import check_cluster, coordinator_hosts
from flinkplus.runtime.job.open_ports import warn_of_open_ports
from flinkplus.runtime.job.plan import FoundJob, Plan, identity_of
from flinkplus.runtime.job.restoring import begin_run, lasting_secret
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.streams.queries import STREAMS, check_frames, streamed
from flinkplus.runtime.job.upgrading.programs import (
    NO_CHANGE,
    adopt_splits,
    bind_sinks,
    check_permitted,
    compared,
    newest,
    place_sources,
    read_program,
    sign_sources_again,
    stage_in,
)
from flinkplus.runtime.operations.web.page import JobPage
from flinkplus.runtime.operations.web.site import site_of
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.sinks.base import Sink
from flinkplus.sources.base import Source
from flinkplus.sources.batches.source import StreamedBatches
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
    requests: Requests = NO_CHANGE,
) -> RunningJob | FinishedJob:
    """Check, prepare and start a job; returns once its slots are being started.

    With ``resume="auto"`` a new job starts, an unfinished one resumes, and a finished one is returned as it is.
    ``trust``: resume it even if another key has signed its plan.
    ``requests``: how another program takes over the state of the job.
    """
    if resume == "auto" and options.checkpoint_dir is None:
        raise ConfigurationError(
            "resume='auto' needs checkpoint_dir: without it the checkpoints are deleted when the job ends"
        )
    check_settings(spark, graph, options)
    directory = JobDirectory(spark, options)
    claimed: CheckpointStorage | None = None
    try:
        key = find_key(options.signing_key, options.checkpoint_dir, make=trust or resume is not True)
        storage = CheckpointStorage(directory.checkpoints, key=key, trust=trust)
        storage.runs.look()
        identity = identity_of(name, graph, options)

        def claim() -> None:
            begun = storage.ownership.has_begun() if resume == "auto" else resume
            directory.claim(begun)
            if not begun:
                storage.begin()

        before = None if resume is False else find_before(storage, name, graph, options, requests)
        begun = storage.ownership.prepare(identity, resume, claim, output_id, upgraded=before is not None)
        claimed = None if begun else storage
        going_on: set[str] = set()
        if before is not None:
            output_id, change, splits = before
            bind_sinks(graph, output_id)
            going_on = adopt_splits(graph, change, splits)
        plan_sources(graph, frames, directory.checkpoints, going_on, begun)
        storage.signed.job_id = output_id
        plan = Plan(name, output_id, graph, options)
        return launch(spark, plan, storage, directory, begun, resume == "auto", requests, frames)
    except BaseException:
        if claimed is not None:
            claimed.ownership.release()
        directory.remove()
        raise


def find_before(
    storage: CheckpointStorage, name: str, graph: JobGraph, options: Options, requests: Requests
) -> tuple[str, Comparison, Mapping[str, Any]] | None:
    """The job that has begun here: its ID, its last program compared with ``graph``, and what was planned for sources.
    ``None``: no job has begun. Changes nothing.

    Raises ``ConfigurationError`` if the program does not fit; ``CheckpointDirectoryError``, ``CorruptCheckpoint`` or
    ``UntrustedCheckpoint`` as reading does.
    """
    change_and_splits = compare_with(storage, requests.names(name), graph, options, requests)
    if change_and_splits is None:
        return None
    job_id, change, splits = change_and_splits
    return job_id, check_permitted(change, storage.uri), splits


def compare_with(
    storage: CheckpointStorage, names: Collection[str] | None, graph: JobGraph, options: Options, requests: Requests
) -> tuple[str, Comparison, Mapping[str, Any]] | None:
    """As ``find_before``, whether the program fits or not. ``names``: that the job may have; ``None``: any."""
    if not storage.ownership.has_begun():
        return None
    _, storage.signed.job_id = storage.ownership.job_and_id()
    found = read_program(storage, names)
    storage.signed.job_id = checked_name(found.job_id)
    manifest, program = newest(storage), graph.program(options.max_parallelism)
    change = compare(found.program, program) if manifest is None else compared(manifest, program, requests)
    if manifest is None:  # nothing has been read or kept: what is the same goes on, all else begins
        change = replace(change, changes=tuple(c for c in change.changes if c.verdict != "refused"))
    return found.job_id, change, found.splits


def plan_sources(
    graph: JobGraph, frames: Mapping[str, DataFrame], directory: str, going_on: Collection[str], begun: bool
) -> None:
    """Let the sources that begin plan their input; stage the DataFrames among them. ``begun``: others are there."""
    for node in graph.nodes:
        if not isinstance(node.body, Source) or node.name in going_on:
            continue
        if isinstance(node.body, StreamedBatches):
            node.body = node.body.staged_in(f"{directory.rstrip('/')}/{STREAMS}/{node.name}-{secrets.token_hex(4)}")
        elif node.name in frames:
            assert isinstance(node.body, StagedParquet)
            folder = f"{node.name}-{secrets.token_hex(4)}" if begun else None  # the program before may need its own
            node.body = staging.stage(frames[node.name], node.body, directory, folder)
        node.body = node.body.planned()


def check_settings(spark: SparkSession, graph: JobGraph, options: Options) -> None:
    """Checks of the options and of the cluster that need no files."""
    check_loops(graph, options)
    check_barriers(graph, options)
    check_sources(graph, options)
    check_outputs(graph)
    check_recipes(graph, options)
    check_faults(graph, options)
    wanted(options.log)
    site_of(options.ui, options.tls)
    check_cluster(spark, options.parallelism, bool(streamed(graph)))
    warn_of_open_ports(spark)
    find_strategy(options.placement)


def resume_job(spark: SparkSession, found: FoundJob, overrides: dict[str, Any]) -> RunningJob | FinishedJob:
    """Resume a job. ``overrides``: options of this run that differ from those of the plan."""
    checkpoint_dir, storage, plan = found.checkpoint_dir, found.storage, found.plan
    given = options_from({}, {**vars(plan.options), **overrides, "checkpoint_dir": checkpoint_dir})
    check_settings(spark, plan.graph, given)
    check_frames(plan.graph, {})
    directory = JobDirectory(spark, given)
    try:
        job = identity_of(plan.name, plan.graph, given)
        storage.ownership.prepare(job, resume=True, claim=lambda: directory.claim(resume=True), upgraded=True)
        return launch(spark, replace(plan, options=given), storage, directory, resume=True, auto=False)
    except BaseException:
        directory.remove()
        raise


def launch(
    spark: SparkSession,
    plan: Plan,
    storage: CheckpointStorage,
    directory: JobDirectory,
    resume: bool,
    auto: bool,
    requests: Requests | None = None,
    frames: Mapping[str, DataFrame] = MappingProxyType({}),
) -> RunningJob | FinishedJob:
    """``requests``: see ``begin_run``. ``frames``: the DataFrames among the sources."""
    plan = replace(plan, options=recovery_of(plan.graph, plan.options))
    trusted = storage.signed.trust
    place_sources(plan.graph, storage)
    credentials = Credentials.made(plan.options, plan.output_id, lasting_secret(plan.options, storage))
    secrets_of = {node.name: node.body.secrets() for node in plan.graph.nodes if isinstance(node.body, Source | Sink)}
    credentials = replace(credentials, connectors={name: found for name, found in secrets_of.items() if found})
    calls = Calls(Inbox(), JobResult())
    registry = _registry_of(spark, plan, directory, credentials, calls)
    try:
        if resume and registry is not None and plan.options.zookeeper is not None:
            registry.elect_first()
        stage_in(plan.graph, directory.checkpoints)
        plan, commits, restore = begin_run(plan, storage, resume, calls.taken_over, directory.path, requests)
        if restore.wanted is not None:
            check_cluster(spark, plan.options.parallelism, bool(streamed(plan.graph)))
        if trusted:
            sign_sources_again(plan.graph)
        if not restore.finished:
            parts = storage, commits, restore, directory, credentials, calls, registry, frames
            return _run(spark, plan, credentials, lambda shells, page: RunningJob(spark, plan, *parts, shells, page))
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


def _run(
    spark: SparkSession,
    plan: Plan,
    credentials: Credentials,
    run: Callable[[Credentials, JobPage | None], RunningJob],
) -> RunningJob:
    """The job that ``run`` starts, given the credentials of shells and the page, whose port is closed if that fails."""
    shells = credentials.for_commands(plan.output_id)
    page = JobPage.opened(plan.options, shells, coordinator_hosts(spark)[1])
    try:
        return run(shells, page)
    except BaseException:
        if page is not None:
            page.end(None)
        raise


def _registry_of(
    spark: SparkSession, plan: Plan, directory: JobDirectory, credentials: Credentials, calls: Calls
) -> JobRegistry | None:
    """``None`` for a job that needs no ZooKeeper: local recovery does, and an ensemble excludes a second driver."""
    if not plan.options.local and plan.options.zookeeper is None:
        return None
    data, reported, give_up = directory.path / "zookeeper", calls.registry_reported, calls.give_up
    auth, certificates = credentials.zookeeper, credentials.registry_certificates
    hosts = coordinator_hosts(spark)
    vertices = [vertex.name for vertex in plan.graph.vertices]
    return JobRegistry(plan.options, plan.output_id, data, *hosts, reported, give_up, auth, certificates, vertices)
