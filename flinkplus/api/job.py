"""The handle of a running job."""

from __future__ import annotations

import math
import os
import time
from types import TracebackType
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from flinkplus.errors import ConfigurationError
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.coordinator.commands.moves import check_count, check_parallelism
from flinkplus.runtime.coordinator.drivers.savepoints import Savepoint
from flinkplus.runtime.coordinator.membership.moves import PlannedMove
from flinkplus.runtime.faults.points import check_point
from flinkplus.runtime.job.finished import FinishedJob
from flinkplus.runtime.job.running import RunningJob
from flinkplus.runtime.slot.subtasks.output_trace import read_traces
from flinkplus.sinks.collect import CollectCommitter
from flinkplus.state.file_system import absolute

KILL_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.02
RUNNING = "running"


def _begun(move: PlannedMove) -> PlannedMove:
    move.await_answer()
    return move


class JobHandle:
    """A started job. As a context manager it cancels a job that still runs when the block is left."""

    def __init__(self, running: RunningJob | FinishedJob) -> None:
        self._running = running

    def __repr__(self) -> str:
        return f"<JobHandle {self.name!r} ({self.job_id}): {self.state}>"

    @property
    def name(self) -> str:
        return self._running.name

    @property
    def job_id(self) -> str:
        """The job's name in ZooKeeper and in its output directories, the same after a resume."""
        return self._running.job_id

    @property
    def checkpoint_dir(self) -> str:
        """The directory of the job's checkpoints; removed with the job unless ``checkpoint_dir`` was given."""
        return self._running.checkpoint_dir

    @property
    def state(self) -> str:
        """``starting``, ``deploying``, ``running``, ``interrupted``, ``stopping``, ``finished``, ``failed``,
        ``cancelled`` or ``stopped``."""
        return self._running.coordinator.view.state

    @property
    def done(self) -> bool:
        """Whether the job is over and has released all its resources."""
        return self._running.closed.is_set()

    def await_finish(self, timeout: float | None = None) -> None:
        """Wait until the job has finished, or stopped with a savepoint; ``timeout`` in seconds (``None``: no limit).

        Raises ``JobFailed`` (with the cause), ``JobCancelled``, or ``TimeoutError`` after ``timeout``.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"job {self.name!r} has not finished within {timeout} s; it is {self.state}")
        error = self._running.coordinator.result.error
        if error is not None:
            raise error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job is over, with any result; ``False`` when ``timeout`` seconds passed first."""
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        # In slices: Ctrl-C cannot interrupt an unlimited wait on every platform.
        while not self._running.closed.wait(max(0.0, min(0.1, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                return False
        return True

    def await_running(self, timeout: float | None = None) -> None:
        """Wait until all subtasks run, or the job has finished. Errors and ``timeout`` as in ``await_finish``."""
        deadline_s = math.inf if timeout is None else time.monotonic() + timeout
        while self.state != RUNNING:
            if self.done:
                self.await_finish()
                return
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"job {self.name!r} is not running after {timeout} s; it is {self.state}")
            self.wait(LOOK_AGAIN_S)

    @property
    def running_s(self) -> float | None:
        """Seconds from the job's first start to now, or to its end; ``None`` before it runs."""
        return self._running.running_s

    @property
    def restored_from(self) -> int | None:
        """ID of the checkpoint that the job was resumed from; for a job that had finished before, its last one."""
        return self._running.restored_from

    @property
    def finished_before(self) -> bool:
        """Whether an earlier run had finished the job, so that nothing ran (``resume="auto"``)."""
        return isinstance(self._running, FinishedJob)

    @property
    def ui(self) -> str | None:
        """The address of the job's page (option ``ui``); ``None``: it has none."""
        return self._running.ui

    def drain(self) -> None:
        """End the input now: the sources stop, all rows read are processed, and the last checkpoint is committed."""
        self._running.coordinator.drain()

    def cancel(self) -> None:
        """End the job now, unless it is over, and wait until it has released its resources. Committed output stays."""
        self._running.cancel()
        self.wait()

    def metrics(self) -> dict[str, Any]:
        """Metrics so far: elapsed seconds, rows per operator, committed rows per sink, state, checkpoints, restarts.

        ``operators``: for each operator ``rows_in``, ``rows_out``, and its own metrics, such as ``late_rows`` for event
        time (``docs/event-time.md``).

        Records sent between subtasks, since the subtasks last started:

        - ``payload_bytes``: bytes of records.
        - ``determinant_bytes``: bytes of piggybacked determinants.
        - ``determinant_share``: ``determinant_bytes / payload_bytes``.

        ``message_ids``, the filters of message IDs at the inputs:

        - ``asked``: lookups; ``known``: duplicates among them.
        - ``chunks``: chunks of digests that were needed and not in memory; ``maybe``: positives of the Bloom filter
          among them; ``held``: true positives.
        - ``false_positive_rate``: share of the new chunks that the Bloom filter took for known.
        - ``stored``, ``fetched``: chunks written to RocksDB, and read from it.
        - ``conflicts``: disagreements of filter and cursor, each of which rolled the job back.

        Refused and dropped messages:

        - ``refused_connections``: connections whose peer could not authenticate as part of the job.
        - ``refused_datagrams``: datagrams that were not pulses of the job.
        - ``malformed_frames``: frames that were dropped unread.
        - ``fenced_messages``: ignored messages, credit and versions from replaced slots or subtasks.
        - ``fenced_reports``: ignored acknowledgements and other reports from them.

        State, checkpoints and sources:

        - ``state_keys``, ``state_bytes``: keys of all states; bytes of the files of their newest versions. At another
          parallelism, until each subtask has written a base: an estimate; shared files count for each.
        - ``state_reads``: keys that were looked up in RocksDB, because memory did not have them, since the subtasks
          last started.
        - ``copied_bytes``: bytes of state files at the standbys: ``received`` from other slots, read ``from_storage``,
          or ``kept`` from an ended process of the slot on the same host.
        - ``checkpoints_aborted``: number of aborted checkpoints.
        - ``checkpoints_over_budget``: those aborted because of the limit ``in_flight_mb``.
        - ``blocked``: paused sources, and why each paused (``spill volume full: ...``).

        With standbys:

        - ``failovers``, ``handovers`` (planned moves) and ``fallbacks`` (to a rollback): their numbers.
        - ``fallback_reasons``: the reason of each fallback.
        - ``zookeeper``: ``connected``, or the problem.
        - ``zookeeper_restarts``: restarts of the job's own ZooKeeper server.
        """
        return self._running.metrics()

    def rows_out(self, operator: str) -> dict[str, int]:
        """Output rows of each subtask of an operator, as last reported: ``{"count[0]": 1234, ...}``.

        Raises ``ConfigurationError`` for an unknown operator.
        """
        self._running.coordinator.graph.vertex_of(operator)
        return self._running.coordinator.figures.rows_out(operator)

    def checkpoints(self) -> list[dict[str, Any]]:
        """The last checkpoints, oldest first: id, status, phases in ms (``docs/command-line.md``), bytes, keys."""
        return self._running.coordinator.figures.checkpoints()

    def recoveries(self) -> list[dict[str, Any]]:
        """Every recovery: mode, failure, subtasks, phase times in ms."""
        return self._running.coordinator.recoveries.as_dicts()

    def handovers(self) -> list[dict[str, Any]]:
        """Every planned move (to a restarted slot, or on request), in the form of ``recoveries``."""
        return self._running.coordinator.recoveries.handovers()

    def output_trace(self) -> dict[str, list[tuple[float, int]]]:
        """Times and output rows of each subtask with a sink; empty without the option ``trace_output``."""
        directory = self._running.coordinator.options.trace_output
        return {} if directory is None else read_traces(directory)

    def checkpoint_now(self) -> None:
        """Request a checkpoint; returns before it is complete."""
        self._running.coordinator.request_checkpoint()

    def kill(self, subtask: str, at: str | None = None, timeout: float = KILL_TIMEOUT_S) -> bool:
        """Fault injection: SIGKILL the process that hosts ``subtask`` (``count:1``); ``False`` when the job is over.

        ``at``: a point of ``flinkplus.runtime.faults.points``, at which the process is killed next; ``None``: now.
        ``timeout``: maximum wait for the subtask to run, in seconds.

        Raises ``ConfigurationError`` for an unknown subtask or point, ``SubtaskNotRunning`` after ``timeout``.
        """
        coordinator = self._running.coordinator
        found = find_subtask(subtask, coordinator.graph, coordinator.parts.deployment.parallelism)
        if at is not None:
            check_point(at)
        return coordinator.parts.operations.kill(found, at, timeout)

    def missing_standbys(self) -> int:
        """Number of standbys that are missing or still catching up: 0 at full redundancy."""
        return 0 if self.done else self._running.coordinator.view.missing_standbys()

    def chain_hosts(self) -> dict[str, list[str]]:
        """The host of each member of each subtask's chain, head first; empty without standbys."""
        return {} if self.done else self._running.coordinator.view.chain_hosts()

    def slot_pids(self) -> dict[int, int]:
        """The process ID of each registered slot."""
        return {} if self.done else self._running.coordinator.view.pids()

    def placement(self) -> dict[str, str]:
        """The host of each subtask whose slot is registered: ``{"count+out[1]": "worker-2", ...}``."""
        return {} if self.done else self._running.coordinator.view.placement()

    def chains(self) -> dict[str, list[int]]:
        """The slots of each chain, head first: ``{"count+out[1]": [1, 2, 3], ...}``; empty without local recovery."""
        return {} if self.done else self._running.coordinator.view.chains()

    def migrate(self, subtask: str, slot: int) -> PlannedMove:
        """Move ``subtask`` (``count:1``, with all operators fused with it) to ``slot`` while the job runs.

        The slot gets a standby if it has none, and takes over right after a complete checkpoint. It is then the
        subtask's home until the next migration, a drain of its host, or a rollback.

        Returns when the move has begun; its ``await_done`` waits for the end. Raises ``MoveRefused`` when the slot does
        not exist, is not registered, or is on a drained host, and when the job is not running or has no standbys.
        """
        coordinator = self._running.coordinator
        found = find_subtask(subtask, coordinator.graph, coordinator.parts.deployment.parallelism)
        return _begun(coordinator.moves.migrate(found, slot))

    def drain_host(self, host: str, force: bool = False) -> PlannedMove:
        """Move all work and all standbys off ``host``, and assign nothing to it until ``undrain_host``.

        Returns when the move has begun: its ``left`` says what remains, its ``await_done`` waits for the end. Raises
        ``RedundancyAtRisk`` when chains would have fewer members, or be on fewer hosts, without ``host``, unless
        ``force``; otherwise ``MoveRefused`` as ``migrate`` does.
        """
        return _begun(self._running.coordinator.moves.drain_host(host, force))

    def undrain_host(self, host: str) -> None:
        """Use ``host`` again: subtasks whose home is there move back. Raises ``MoveRefused`` when it is not drained."""
        self._running.coordinator.moves.undrain_host(host).await_answer()

    def scale_spares(self, count: int, force: bool = False) -> PlannedMove:
        """Set the number of spare slots, beside those that the job was started with, to ``count``.

        New slots are started on the cluster, and take standbys and moved work like any other. Surplus slots end when
        their work has moved elsewhere. A resumed job has no spare slots.

        Returns when the move has begun: its ``left`` says what remains. Its ``await_done`` waits until every chain is
        as planned with the new slots, or the old ones are empty. Raises as ``drain_host``, and ``InsufficientSlots``
        when the master cannot run so many tasks. ``await_done`` raises ``InsufficientSlots`` when Spark has not started
        some within ``slot_timeout`` seconds (these are dropped), and ``MoveCancelled`` after a request for another
        number, or when the job is over.
        """
        return _begun(self._running.coordinator.moves.scale(check_count(count), force))

    def rescale(self, parallelism: int) -> PlannedMove:
        """Continue with ``parallelism`` subtasks of each operator, on as many slots, while the job runs.

        New slots are started on the cluster first. Then, right after a complete checkpoint, its state is divided among
        the new subtasks, which continue from there on the slots, old and new; slots that are not needed any more end.
        A failure on the way restarts the job at one parallelism or at the other, never at a mixture.

        Returns when the rescale has begun: its ``left`` says what remains, its ``await_done`` waits for the end. Raises
        ``ConfigurationError`` for less than 1 or more than ``max_parallelism``, ``InsufficientSlots`` when the master
        cannot run so many tasks, ``MoveRefused`` when the job is not running. ``await_done`` raises
        ``InsufficientSlots`` when Spark has not started some slots within ``slot_timeout`` seconds, and
        ``MoveCancelled`` when the state of an operator cannot be divided, after a newer request, or when the job is
        over. The job then stays as it is.
        """
        coordinator = self._running.coordinator
        return _begun(coordinator.moves.rescale(check_parallelism(parallelism, coordinator.options.max_parallelism)))

    def rescales(self) -> list[dict[str, Any]]:
        """The changes of parallelism, oldest first, with the time of each phase as in ``recoveries``.

        No subtask fails in one: ``detect_ms`` is ``None``, ``recovery_ms`` covers all operators with a sink or keyed
        state, and ``restarted`` has the new subtasks. Times of output are up to 0.1 s off.
        """
        return self._running.coordinator.recoveries.rescales()

    def savepoint(self, target: str | os.PathLike[str]) -> Savepoint:
        """Take a savepoint at ``target``, a path or a URI, which must not exist or be empty; the job runs on.

        A savepoint is complete in itself: it may be moved and copied, new jobs start from it (``start_from`` of
        ``StreamEnvironment.execute``), at another parallelism too, and stays until you remove it.

        Returns when the target is taken: its ``status`` says how far it is, its ``await_done`` waits for the end.

        Raises ``SavepointRefused`` when ``target`` is not empty, cannot be written, or is in the checkpoint directory,
        when another savepoint is under way, and when the job is over. ``await_done`` raises ``SavepointError`` when it
        was not completed; the job runs on then.
        """
        savepoint = self._running.coordinator.savepoints.request(absolute(os.fspath(target)), stop=False)
        savepoint.await_answer()
        return savepoint

    def stop_with_savepoint(self, target: str | os.PathLike[str]) -> Savepoint:
        """As ``savepoint``; when it is complete, the job stops, in the state ``stopped``, and ``await_finish`` returns.

        Exactly what the savepoint covers is visible as output. If it fails, the job runs on.
        """
        savepoint = self._running.coordinator.savepoints.request(absolute(os.fspath(target)), stop=True)
        savepoint.await_answer()
        return savepoint

    def collected(self, name: str) -> pa.Table:
        """The committed rows of a ``collect`` sink. Raises ``ConfigurationError`` when there is no such sink."""
        committer = self._running.coordinator.commits.committers.get(name)
        if not isinstance(committer, CollectCommitter):
            raise ConfigurationError(f"{name!r} is not a collect sink of this job")
        return committer.table()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
