"""From a fused graph to a running job, and from a running job to nothing left behind.

``start_job`` checks everything that can be checked before anything runs; ``resume_job`` does the same from what a
checkpoint
directory holds. A ``RunningJob`` owns the coordinator, the Spark jobs of the slots and the job's own directory.

Rules: what was begun is undone when a later step fails. Of the drivers that want to run a job one may: nothing of its
checkpoints and its output is touched before that is settled (``claim``, ``registry``), and never by one that was
replaced (``Runs.begin``). However the job ends (finish, failure, ``cancel``, the
interpreter's exit) the slots are stopped, the ports closed and the job's directory removed.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import tempfile
import threading
import time
import uuid
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from flinkplus.config import Options, options_from
from flinkplus.errors import (
    CheckpointDirectoryError,
    ConfigurationError,
    CorruptCheckpoint,
    FlinkPlusError,
    JobFailed,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.base.logs import about, install, wanted
from flinkplus.runtime.coordinator.commands.operations import StatusCommand
from flinkplus.runtime.coordinator.coordinator import Coordinator, dispatch_at
from flinkplus.runtime.coordinator.dispatch.registry import JobRegistry
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.coordinator.setup.placements import find_strategy
from flinkplus.runtime.host.cleanup import remove_tree
from flinkplus.runtime.host.scratch import JOB_PREFIX, mark_over, mark_running, sweep_jobs, wait_for_slots
from flinkplus.runtime.job import staging
from flinkplus.runtime.job.checks import check_faults, check_loops, check_mode, recovery_of
from flinkplus.runtime.job.claim import Claim
from flinkplus.runtime.job.finished import FinishedJob, metrics_of
from flinkplus.runtime.job.launcher import SlotJobs, check_cluster, coordinator_hosts
from flinkplus.runtime.job.local_masters import local_master
from flinkplus.runtime.job.open_ports import warn_of_open_ports
from flinkplus.runtime.job.plan import FoundJob, Plan, adopt, identity_of, load_plan_of, written
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.operations.access_file import ACCESS_FILE, Access, publish, withdraw, write_access
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.transport.auth.credentials import JOB, Credentials
from flinkplus.sources.base import Source
from flinkplus.sources.parquet import StagedParquet
from flinkplus.state.durable.blobs import PLAN_BLOB, ZOOKEEPER_BLOB
from flinkplus.state.durable.ownership import Resume
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.files import absolute

GENERATIONS_PER_RUN = 100_000
GRACEFUL_STOP_S = 2.0
STORAGE_PATIENCE_S = 10.0
"""At the end of a job, for a write that hangs."""
EXIT_WAIT_S = 20.0
REMOVE_PATIENCE_S = 5.0
SHOWN = 100
"""Checkpoints, recoveries and handovers that ``status`` tells of, the last ones."""

log = logging.getLogger("flinkplus")


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

    With ``resume="auto"`` a job that has not begun begins, one that has is continued, and one that has finished is
    returned as it is. ``trust``: continue it whichever key has signed it.
    """
    if resume == "auto" and options.checkpoint_dir is None:
        raise ConfigurationError(
            "resume='auto' needs checkpoint_dir: without it the checkpoints are deleted when the job ends"
        )
    _check(spark, graph, options)
    directory = JobDirectory(spark, options)
    claimed: CheckpointStorage | None = None
    try:
        key = find_key(options.signing_key, options.checkpoint_dir, make=trust or resume is not True)
        storage = CheckpointStorage(directory.checkpoints, key=key, trust=trust)
        identity = identity_of(name, graph, options)
        begun = storage.ownership.prepare(
            identity, resume, lambda: directory.claim(_continues(storage, resume)), output_id
        )
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
        return _launch(spark, plan, storage, directory, begun, finished_is_fine=resume == "auto")
    except BaseException:
        if claimed is not None:
            claimed.ownership.release()
        directory.remove()
        raise


def _check(spark: SparkSession, graph: JobGraph, options: Options) -> None:
    """What is found out before anything is made: options that the job cannot have, a cluster without room for it."""
    check_loops(graph, options)
    check_faults(graph, options)
    wanted(options.log)
    check_cluster(spark, options.parallelism)
    warn_of_open_ports(spark)
    find_strategy(options.placement)


def _continues(storage: CheckpointStorage, resume: Resume) -> bool:
    return storage.ownership.has_begun() if resume == "auto" else resume


def resume_job(spark: SparkSession, found: FoundJob, overrides: dict[str, Any]) -> RunningJob | FinishedJob:
    """Continue a job. ``overrides``: options of this run that differ from those of the plan."""
    checkpoint_dir, storage, plan = found.checkpoint_dir, found.storage, found.plan
    if overrides.get("parallelism", plan.options.parallelism) != plan.options.parallelism:
        raise ConfigurationError(
            f"the job runs at parallelism {plan.options.parallelism}; its state cannot be resumed at another"
        )
    given = options_from({}, {**vars(plan.options), **overrides, "checkpoint_dir": checkpoint_dir})
    check_mode(plan.options, given)
    _check(spark, plan.graph, given)
    directory = JobDirectory(spark, given)
    try:
        job = identity_of(plan.name, plan.graph, given)
        storage.ownership.prepare(job, resume=True, claim=lambda: directory.claim(resume=True))
        return _launch(spark, replace(plan, options=given), storage, directory, resume=True)
    except BaseException:
        directory.remove()
        raise


def _launch(
    spark: SparkSession,
    plan: Plan,
    storage: CheckpointStorage,
    directory: JobDirectory,
    resume: bool,
    finished_is_fine: bool = False,
) -> RunningJob | FinishedJob:
    plan = replace(plan, options=recovery_of(plan.graph, plan.options))
    for node in plan.graph.nodes:
        if isinstance(node.body, Source) and not resume:
            node.body = node.body.planned()
    credentials = Credentials.made(plan.options, plan.output_id, _lasting_secret(plan.options, storage))
    registry = _registry_of(spark, plan, directory, credentials)
    try:
        if resume and registry is not None and plan.options.zookeeper is not None:
            registry.elect_first()
        commits, restore = _begin_run(plan, storage, resume)
        if not restore.finished:
            return RunningJob(spark, plan, storage, commits, restore, directory, credentials, registry)
        if not finished_is_fine:
            raise CheckpointDirectoryError(
                "the job has finished: its last checkpoint is final, nothing is left to resume"
            )
        finished = FinishedJob(
            plan.name, plan.output_id, plan.graph, plan.options, directory.checkpoints, commits, restore
        )
    except BaseException:
        if registry is not None:
            registry.close()
        raise
    if registry is not None:
        registry.close()
    directory.remove()
    return finished


def _begin_run(plan: Plan, storage: CheckpointStorage, resume: bool) -> tuple[Commits, Restore]:
    """Take the checkpoints over, have the output ready, and find where the job begins.

    A new job stores its plan before it touches its output: whatever the driver dies of from then on, the next run knows
    whose output that is (``Ownership.has_begun``).
    """
    runs = _earlier_runs(storage, resume)
    storage.runs.begin(runs + 1)
    storage.sign_again()
    commits = Commits(plan.graph, storage)
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


def _lasting_secret(options: Options, storage: CheckpointStorage) -> bytes | None:
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


def _registry_of(
    spark: SparkSession, plan: Plan, directory: JobDirectory, credentials: Credentials
) -> JobRegistry | None:
    """Whoever recovers beside the stream needs one; and whoever has an ensemble is the only driver of the job there."""
    if not plan.options.local and plan.options.zookeeper is None:
        return None
    bind, reach = coordinator_hosts(spark)
    return JobRegistry(
        plan.options,
        plan.output_id,
        directory.path / "zookeeper",
        bind,
        reach,
        credentials.zookeeper,
        credentials.registry_certificates,
    )


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


class JobDirectory:
    """The job's own directory in this machine's temporary space.

    It holds the slots' scratch (local masters), and the checkpoints when the user gave no directory for them.
    """

    def __init__(self, spark: SparkSession, options: Options) -> None:
        master = spark.sparkContext.master or ""
        self.local = local_master(master) is not None
        self.one_host = self.local or master.startswith("local-cluster")
        if options.checkpoint_dir is None and not self.one_host:
            raise ConfigurationError(
                f"on {master} the slots run on other machines: give checkpoint_dir, a directory or URI that all of "
                "them can reach"
            )
        try:
            sweep_jobs(options.work_dir)
            self.path = Path(tempfile.mkdtemp(prefix=JOB_PREFIX, dir=options.work_dir))
        except OSError as error:
            raise ConfigurationError(f"work_dir {options.work_dir!r} cannot be used: {error}") from error
        self._alive: int | None = mark_running(self.path)
        self.ephemeral = options.checkpoint_dir is None
        self._ensemble = options.zookeeper is not None
        self._claim: Claim | None = None
        self.checkpoints = absolute(options.checkpoint_dir or str(self.path / "checkpoints"))
        self.scratch = str(self.path) if self.local else None

    def claim(self, resume: bool) -> None:
        """Have the checkpoints to ourselves until ``remove``. Raises ``JobRunsElsewhere``."""
        if not self.ephemeral:
            self._claim = Claim(self.checkpoints, tried=resume and self._ensemble)

    def remove(self, run: str | None = None) -> None:
        """Remove the directory, when the slots of this ``run`` (``None``: there were none) have left it."""
        mark_over(self.path)
        if run is not None:
            wait_for_slots(run, self.path, REMOVE_PATIENCE_S)
        remove_tree(self.path, REMOVE_PATIENCE_S)
        if self._claim is not None:
            self._claim.release()
        alive, self._alive = self._alive, None
        if alive is not None:
            os.close(alive)


class RunningJob:
    """A job from the start of its slots until nothing of it is left; ``closed`` is set then.

    ``job_id`` survives a resume; each run has a number of its own, too.
    """

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        storage: CheckpointStorage,
        commits: Commits,
        restore: Restore,
        directory: JobDirectory,
        credentials: Credentials,
        registry: JobRegistry | None,
    ) -> None:
        self.name = plan.name
        self.job_id = plan.output_id
        self._run = uuid.uuid4().hex[:12]
        self.checkpoint_dir = directory.checkpoints
        self.restored_from = restore.checkpoint
        self.closed = threading.Event()
        self._directory = directory
        self._storage = storage
        self._commits = commits
        self._started_s = time.monotonic()
        self._elapsed_s: float | None = None
        bind, reach = coordinator_hosts(spark)
        for_commands = credentials.for_commands(self.job_id)
        setting = wanted(plan.options.log)
        install(setting)
        log.info("job %r starts", self.name, extra=about(job=self.job_id))
        self.coordinator = Coordinator(
            plan.graph,
            plan.options,
            commits,
            restore,
            dispatch_at(plan.options, bind, credentials, for_commands, directory.path),
        )
        commits.tell(self.coordinator.taken_over)
        self._registry = registry
        if registry is not None:
            self.coordinator.write_records_to(registry)
        self.coordinator.job_id = self.job_id
        self.coordinator.commands.add(StatusCommand, lambda _request: self._status())
        addresses = self.coordinator.start().at(reach)
        driver = (os.getpid(), psutil.Process().create_time())
        self._let_shells_in(
            Access(self.job_id, plan.name, addresses.commands, socket.gethostname(), driver, for_commands)
        )
        if registry is not None:
            registry.begin(self.coordinator.registry_told, self.coordinator.give_up)
        config = SlotConfig(
            job_id=self._run,
            job_name=plan.name,
            slots=plan.options.parallelism,
            first_generation=restore.generation + 1,
            coordinator=addresses.rendezvous,
            lifelines=addresses.lifelines,
            pulses=addresses.pulses,
            credentials=credentials,
            plan=cloudpickle.dumps(plan.graph),
            options=plan.options,
            checkpoint_dir=directory.checkpoints,
            scratch=directory.scratch,
            directory=str(directory.path) if directory.one_host else None,
            driver=driver,
            local=directory.local,
            application=self.job_id,
            log=setting,
        )

        def with_zookeeper() -> SlotConfig:
            return config if self._registry is None else replace(config, zookeeper=self._registry.hosts())

        self._slots = SlotJobs(spark, with_zookeeper, self._run, self.coordinator.slot_failed, self.coordinator.give_up)
        if self.coordinator.spares is not None:
            self.coordinator.spares.jobs = self._slots
        for slot in range(plan.options.parallelism):
            self._slots.start(slot)
        self._closer = threading.Thread(target=self._close_when_done, name="flinkplus-closer", daemon=True)
        self._closer.start()
        _at_exit(self)

    def _let_shells_in(self, access: Access) -> None:
        """Say where commands are taken. A job that cannot runs all the same."""
        try:
            publish(self._storage, write_access(self._directory.path, access), access)
        except (OSError, FlinkPlusError) as error:
            log.warning("job %s accepts no commands: could not publish its access file: %s", self.name, error)

    def _shut_shells_out(self) -> None:
        try:
            path = self._directory.path / ACCESS_FILE
            path.unlink(missing_ok=True)
            withdraw(self._storage, path)
        except (OSError, FlinkPlusError, ValueError) as error:
            log.info(
                "could not remove the command address of job %s from its checkpoint directory: %s", self.name, error
            )

    def cancel(self) -> None:
        """Ask for the end; ``closed`` tells when it is reached."""
        if not self.closed.is_set():
            self.coordinator.cancel()

    def _close_when_done(self) -> None:
        result = self.coordinator.result
        result.done.wait()
        self._elapsed_s = time.monotonic() - self._started_s
        mark_over(self._directory.path)
        try:
            self.coordinator.join(GRACEFUL_STOP_S)
            self._slots.stop(GRACEFUL_STOP_S)
            self._end_output()
        except (OSError, FlinkPlusError) as error:
            log.warning("could not complete the output of job %s: %s", self.name, error)
            if result.error is None:
                result.error = JobFailed(f"the job's output could not be completed: {error}")
        finally:
            self._shut_shells_out()
            if self._registry is not None:
                self._registry.close()
                self.coordinator.join(GRACEFUL_STOP_S)
            self._directory.remove(self._run)
            log.info("job %r ended: %s", self.name, self.coordinator.state, extra=about(job=self.job_id))
            self.closed.set()

    def _end_output(self) -> None:
        """Leave only committed output, unless a write hangs: what that makes complete may need what is staged."""
        if self.coordinator.storage_ended.wait(STORAGE_PATIENCE_S):
            finished = self.coordinator.result.state is JobState.FINISHED
            self._commits.end(finished, resumable=not self._directory.ephemeral)
        else:
            log.warning(
                "job %s ends while a write hangs; keeping its staged output until the job is resumed", self.name
            )

    @property
    def running_s(self) -> float | None:
        """Seconds since the subtasks were first started, to the end of the job."""
        started, ended = self.coordinator.first_started_s, self.coordinator.ended_s
        return None if started is None else (ended or time.monotonic()) - started

    def _status(self) -> dict[str, Any]:
        """What ``flinkplus status`` is told; in the coordinator's thread."""
        options, recoveries = self.coordinator.options, self.coordinator.recoveries
        return {
            "job": {
                "job_id": self.job_id,
                "name": self.name,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "recovery": options.recovery,
                "guarantee": options.guarantee,
                "parallelism": options.parallelism,
                "replicas": (self.coordinator.copies or options.members) if options.standbys else 1,
                "checkpoint_interval_s": options.checkpoint_interval,
                "checkpoint_dir": self.checkpoint_dir,
                "restored_from": self.restored_from,
            },
            "metrics": self.metrics(),
            **self.coordinator.status_figures(),
            "checkpoints": self.coordinator.figures.checkpoints()[-SHOWN:],
            "recoveries": recoveries.as_dicts()[-SHOWN:],
            "handovers": recoveries.handovers()[-SHOWN:],
        }

    def metrics(self) -> dict[str, Any]:
        """Figures so far; see ``JobHandle.metrics``."""
        elapsed_s = self._elapsed_s if self._elapsed_s is not None else time.monotonic() - self._started_s
        restarts = 0 if self._registry is None else self._registry.server_restarts
        return metrics_of(self.coordinator, elapsed_s, self.running_s, restarts)


_running: weakref.WeakSet[RunningJob] = weakref.WeakSet()


def _at_exit(job: RunningJob) -> None:
    if not _running:
        atexit.register(_cancel_all)
    _running.add(job)


def _cancel_all() -> None:
    """The interpreter ends: so do its jobs, before Spark's own exit handlers take the session down."""
    jobs = [job for job in list(_running) if not job.closed.is_set()]
    for job in jobs:
        with contextlib.suppress(FlinkPlusError):
            job.cancel()
    for job in jobs:
        job.closed.wait(EXIT_WAIT_S)
