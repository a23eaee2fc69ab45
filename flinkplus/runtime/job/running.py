"""A running job: the coordinator, the Spark jobs of the slots, and the job's own directory.

Rules: every end of the job, even the interpreter's exit, stops the slots, closes the ports and removes its directory.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from flinkplus.config import Options
from flinkplus.errors import FlinkPlusError, JobFailed
from flinkplus.printable import printable
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.runtime.base.logs import about, install, wanted
from flinkplus.runtime.coordinator.commands.operations import StatusCommand
from flinkplus.runtime.coordinator.coordinator import Coordinator
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.listeners import Addresses, Listeners
from flinkplus.runtime.coordinator.dispatch.registry import JobRegistry
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.record.status import JobSummary, Status
from flinkplus.runtime.coordinator.setup.outcome import Restore
from flinkplus.runtime.coordinator.wiring import Parts
from flinkplus.runtime.host.scratch import mark_over
from flinkplus.runtime.job.directory import JobDirectory
from flinkplus.runtime.job.finished import metrics_of
from flinkplus.runtime.job.launcher import SlotJobs, coordinator_hosts
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.restoring import CheckpointDivider
from flinkplus.runtime.job.signing import find_key
from flinkplus.runtime.job.streams.queries import StreamQueries, streamed
from flinkplus.runtime.operations.access_file import ACCESS_FILE, Access, publish, withdraw, write_access
from flinkplus.runtime.operations.web.page import JobPage
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.state.durable.savepoint import SavepointWriter, check_apart
from flinkplus.state.durable.storage import CheckpointStorage

GRACEFUL_STOP_S = 2.0
STORAGE_PATIENCE_S = 10.0  # for writes to storage, at the end of a job
EXIT_WAIT_S = 20.0
SHOWN = 100  # newest checkpoints, recoveries and handovers in the status

log = logging.getLogger("flinkplus")


class RunningJob:
    """A job from the start of its slots to the end of its clean-up, when ``closed`` is set."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        storage: CheckpointStorage,
        commits: Commits,
        restore: Restore,
        directory: JobDirectory,
        credentials: Credentials,
        calls: Calls,
        registry: JobRegistry | None,
        frames: Mapping[str, DataFrame],
        shells: Credentials,
        page: JobPage | None,
    ) -> None:
        self.name = plan.name
        self.job_id = plan.output_id  # the same in all runs
        self._run = uuid.uuid4().hex[:12]
        self.checkpoint_dir = directory.checkpoints
        self.restored_from = restore.checkpoint
        self.closed = threading.Event()
        self._directory = directory
        self._storage = storage
        self._commits = commits
        self._started_s = time.monotonic()
        self._elapsed_s: float | None = None
        self._registry = registry
        self._page = page
        install(wanted(plan.options.log))
        log.info("job %r starts", self.name, extra=about(job=self.job_id))
        bind, reach = coordinator_hosts(spark)
        queries = bool(streamed(plan.graph))
        self._slots = SlotJobs(spark, self._current_config, self._run, self._slot_failed, calls.give_up, queries)
        listeners = Listeners(plan.options, bind, credentials, calls, reach, shells, directory.path)
        divider = CheckpointDivider(plan, commits, storage, directory.path)
        parts = Parts(
            *(plan.graph, plan.options, commits, restore, listeners.dispatch, calls),
            *(registry, self._slots, divider, partial(_savepoint_writer, storage, plan.options)),
        )
        self.coordinator = Coordinator(parts, self.job_id)
        self._queries = StreamQueries(
            *(plan.graph, frames, commits, restore, storage.runs.check, self._has_read, calls.give_up)
        )
        self.coordinator.commands.add(StatusCommand, lambda _request: self._status().to_json())
        addresses = listeners.open(self.coordinator.commands)
        self.coordinator.start()
        if page is not None:
            page.start(plan.graph, self.coordinator.commands, calls.ask, (StatusCommand.__name__, Status))
            self._say_where(page.address)
        driver = (os.getpid(), psutil.Process().create_time())
        self._publish_access(Access(self.job_id, plan.name, addresses.commands, socket.gethostname(), driver, shells))
        if registry is not None:
            registry.begin()
        self._config = self._make_config(plan, restore, credentials, addresses, driver)
        for slot in range(plan.options.parallelism):
            self._slots.start(slot)
        self._queries.begin()
        self._closer = threading.Thread(target=self._close_when_done, name="flinkplus-closer", daemon=True)
        self._closer.start()
        _at_exit(self)

    def _make_config(
        self, plan: Plan, restore: Restore, credentials: Credentials, addresses: Addresses, driver: tuple[int, float]
    ) -> SlotConfig:
        return SlotConfig(
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
            checkpoint_dir=self.checkpoint_dir,
            scratch=self._directory.scratch,
            directory=str(self._directory.path) if self._directory.one_host else None,
            driver=driver,
            local=self._directory.local,
            application=self.job_id,
            log=wanted(plan.options.log),
        )

    def _current_config(self) -> SlotConfig:
        """The configuration to start slots with; waits for ZooKeeper, unless that is started late."""
        if self._registry is None or self._registry.late:
            return self._config
        return replace(self._config, zookeeper=self._registry.hosts())

    def _slot_failed(self, slot: int, reason: str) -> None:
        self.coordinator.slot_failed(slot, reason)

    def _publish_access(self, access: Access) -> None:
        """Publish the address of the command server; a failure is only logged."""
        try:
            publish(self._storage, write_access(self._directory.path, access), access)
        except (OSError, FlinkPlusError) as error:
            log.warning("job %s accepts no commands: could not publish its access file: %s", self.name, error)

    def _withdraw_access(self) -> None:
        try:
            path = self._directory.path / ACCESS_FILE
            path.unlink(missing_ok=True)
            withdraw(self._storage, path)
        except (OSError, FlinkPlusError, ValueError) as error:
            log.info("could not remove the access file of job %s: %s", self.name, error)

    def cancel(self) -> None:
        """Request the end of the job; returns at once."""
        if not self.closed.is_set():
            self.coordinator.cancel()

    def _close_when_done(self) -> None:
        result = self.coordinator.result
        result.done.wait()
        self._elapsed_s = time.monotonic() - self._started_s
        mark_over(self._directory.path)
        try:
            self._queries.stop()
            self.coordinator.join(GRACEFUL_STOP_S)
            self._slots.stop(GRACEFUL_STOP_S)
            self._end_output()
        except (OSError, FlinkPlusError) as error:
            log.warning("could not complete the output of job %s: %s", self.name, error)
            if result.error is None:
                result.error = JobFailed(f"the job's output could not be completed: {error}")
        finally:
            self._commits.close()
            self._withdraw_access()
            if self._registry is not None:
                self._registry.close()
                self.coordinator.join(GRACEFUL_STOP_S)
            self._directory.remove(self._run)
            log.info("job %r ended: %s", self.name, self.coordinator.view.state, extra=about(job=self.job_id))
            try:
                self._end_page()
            finally:
                self.closed.set()

    def _say_where(self, address: str) -> None:
        """Give the address of the page: in the log, if FlinkPlus writes one, otherwise as a line of stderr."""
        if wanted(self.coordinator.options.log) is not None:
            log.info("the page of job %r is at %s", self.name, address, extra=about(job=self.job_id))
            return
        with contextlib.suppress(OSError, ValueError):  # stderr is closed
            print(f"job {printable(self.name)}: {address}", file=sys.stderr, flush=True)

    def _end_page(self) -> None:
        """Show the end of the job, for as long as the options say."""
        if self._page is None:
            return
        status = None
        try:
            if self.coordinator.is_over:  # so its parts may be read here
                status = self._status().to_json()
        except Exception as error:
            log.warning("the page of job %s cannot show its end: %s", self.name, error, exc_info=True)
        self._page.end(status)

    @property
    def ui(self) -> str | None:
        """The address of the job's page."""
        return None if self._page is None else self._page.address

    def _end_output(self) -> None:
        """Leave only committed output, unless a write hangs: the checkpoint that it completes may need staged files."""
        if self.coordinator.storage_ended.wait(STORAGE_PATIENCE_S):
            finished = self.coordinator.result.state is JobState.FINISHED
            self._commits.end(finished, resumable=not self._directory.ephemeral)
        else:
            log.warning("job %s ends while a write hangs; keeping its staged output for a resume", self.name)

    def _has_read(self, source: str, counter: str) -> int:
        return self.coordinator.figures.operators().get(source, {}).get(counter, 0)

    @property
    def running_s(self) -> float | None:
        return self.coordinator.view.running_s()

    def _status(self) -> Status:
        """The status; only in the coordinator's thread."""
        options, view, recoveries = self.coordinator.options, self.coordinator.view, self.coordinator.recoveries
        return Status(
            job=JobSummary(
                job_id=self.job_id,
                name=self.name,
                host=socket.gethostname(),
                pid=os.getpid(),
                recovery=options.recovery,
                guarantee=options.guarantee,
                parallelism=self.coordinator.parts.deployment.parallelism,
                replicas=(view.copies or options.members) if options.standbys else 1,
                checkpoint_interval_s=options.checkpoint_interval,
                checkpoint_dir=self.checkpoint_dir,
                restored_from=self.restored_from,
                ui=self.ui,
            ),
            metrics=self.metrics(),
            slots=view.slots(),
            subtasks=view.subtasks(),
            chains=view.chain_states(),
            drained_hosts=view.drained_hosts(),
            checkpoints=self.coordinator.figures.checkpoints()[-SHOWN:],
            recoveries=recoveries.as_dicts()[-SHOWN:],
            handovers=recoveries.handovers()[-SHOWN:],
            rescaling=view.rescaling(),
            rescales=recoveries.rescales()[-SHOWN:],
            savepoints=self.coordinator.savepoints.as_dicts()[-SHOWN:],
        )

    def metrics(self) -> dict[str, Any]:
        """The current metrics; see ``JobHandle.metrics``."""
        elapsed_s = self._elapsed_s if self._elapsed_s is not None else time.monotonic() - self._started_s
        restarts = 0 if self._registry is None else self._registry.server_restarts
        return metrics_of(self.coordinator, elapsed_s, restarts)


def _savepoint_writer(storage: CheckpointStorage, options: Options, target: str) -> SavepointWriter:
    """Opens ``target`` for a savepoint. Raises ``SavepointRefused``, ``CheckpointDirectoryError``, and
    ``ConfigurationError`` for a key that cannot be used."""
    check_apart(target, storage.uri)
    key = find_key(options.signing_key, target, make=True)
    return SavepointWriter(storage, CheckpointStorage(target, key=key))


_running: weakref.WeakSet[RunningJob] = weakref.WeakSet()


def _at_exit(job: RunningJob) -> None:
    if not _running:
        atexit.register(_cancel_all)
    _running.add(job)


def _cancel_all() -> None:
    """At the exit of the interpreter: end its jobs before Spark's exit handlers stop the session."""
    jobs = [job for job in list(_running) if not job.closed.is_set()]
    for job in jobs:
        with contextlib.suppress(FlinkPlusError):
            job.cancel()
    for job in jobs:
        job.closed.wait(EXIT_WAIT_S)
