"""The handle of a running job."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

import pyarrow as pa
from typing_extensions import Self

from flinkplus.errors import ConfigurationError
from flinkplus.runtime.faults import check_point
from flinkplus.runtime.finished import FinishedJob
from flinkplus.runtime.move_commands import check_count
from flinkplus.runtime.moves import PlannedMove
from flinkplus.runtime.names import find_subtask
from flinkplus.runtime.output_trace import read_traces
from flinkplus.runtime.running import RunningJob
from flinkplus.sinks.collect import CollectCommitter

KILL_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.02
RUNNING = "running"


def _begun(move: PlannedMove) -> PlannedMove:
    move.await_answer()
    return move


class JobHandle:
    """A job that was started. A context manager too: leaving the block ends a job that still runs, and waits for
    that.
    """

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
        """Where the job's checkpoints are; gone with the job unless ``checkpoint_dir`` was given."""
        return self._running.checkpoint_dir

    @property
    def state(self) -> str:
        """``starting``, ``deploying``, ``running``, ``interrupted``, ``stopping``, ``finished``, ``failed``,
        ``cancelled``.
        """
        return self._running.coordinator.state

    @property
    def done(self) -> bool:
        """Whether the job is over and everything it held was given back."""
        return self._running.closed.is_set()

    def await_finish(self, timeout: float | None = None) -> None:
        """Wait until the job has finished.

        Raises ``JobFailed`` (with the cause) or ``JobCancelled`` when it ended so, ``TimeoutError`` after
        ``timeout`` seconds.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"job {self.name!r} has not finished within {timeout} s; it is {self.state}")
        error = self._running.coordinator.result.error
        if error is not None:
            raise error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job is over, however; ``False`` when ``timeout`` seconds passed first."""
        # In slices: a wait without end cannot be interrupted by Ctrl-C on every platform.
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._running.closed.wait(
            0.1 if deadline is None else max(0.0, min(0.1, deadline - time.monotonic()))
        ):
            if deadline is not None and time.monotonic() >= deadline:
                return False
        return True

    def await_running(self, timeout: float | None = None) -> None:
        """Wait until all subtasks run. Returns at once when they do, or when the job has finished.

        Raises ``JobFailed`` (with the cause) or ``JobCancelled`` when it ended so, ``TimeoutError`` after
        ``timeout`` seconds.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.state != RUNNING:
            if self.done:
                self.await_finish()
                return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                raise TimeoutError(f"job {self.name!r} does not run after {timeout} s; it is {self.state}")
            self.wait(LOOK_AGAIN_S)

    @property
    def running_s(self) -> float | None:
        """Seconds since the job first ran (to its end, when it is over); ``None`` before."""
        return self._running.running_s

    @property
    def restored_from(self) -> int | None:
        """The checkpoint a resumed job began from; of one that had finished before, the final one."""
        return self._running.restored_from

    @property
    def finished_before(self) -> bool:
        """Whether an earlier run had finished the job already, so that nothing was run (``resume="auto"``)."""
        return isinstance(self._running, FinishedJob)

    def drain(self) -> None:
        """End the input now: sources read no more, what was read is finished, the last checkpoint and commit are
        done.
        """
        self._running.coordinator.drain()

    def cancel(self) -> None:
        """End the job now and wait until nothing of it is left. What was committed stays. No error when it is over
        already.
        """
        self._running.cancel()
        self.wait()

    def metrics(self) -> dict[str, Any]:
        """Figures so far: elapsed seconds, rows per operator, committed rows per sink, state, checkpoints, restarts.

        ``operators``: for each, ``rows_in``, ``rows_out``, and metrics of its own, such as ``late_rows`` of those that
        use event time (``docs/event-time.md``).

        ``payload_bytes``: of the records that subtasks have sent each other since they began (anew);
        ``determinant_bytes``: what told beside them how steps began; ``determinant_share``: the one by the other.

        ``message_ids``: how many IDs of messages the filters of the inputs were ``asked`` about, of how many the Bloom
        filter said ``maybe``, how many were ``known``, and the ``false_positive_rate`` of the Bloom filters;
        ``stored``, ``fetched``: chunks of digests written to RocksDB, and asked for there; ``conflicts``: how often
        filter and cursor disagreed, and the job rolled back.

        ``refused_connections``: of those who could not prove to be of the job; ``refused_datagrams``: that were no
        pulses of the job's; ``malformed_frames``: dropped, unread; ``fenced_messages`` (messages, credit, versions) and
        ``fenced_reports`` (acknowledgements and the like): of slots that were given up and of subtasks that were
        replaced, without effect.

        ``copied_bytes``: of state files that standbys took in: ``received`` from other slots, read ``from_storage``,
        and ``kept``: found on the host, where a dead process of the slot had left them.

        ``checkpoints_aborted``: of those that were given up; ``checkpoints_over_budget``: since more was in flight than
        they may hold (option ``in_flight_mb``).

        ``blocked``: sources that stand still, and why (``spill volume full: ...``).

        With standbys: how many ``failovers`` there were, ``handovers`` of work to slots that had come back, and
        ``fallbacks`` to a rollback (``fallback_reasons`` says why); ``zookeeper``: ``connected``, or what is wrong;
        ``zookeeper_restarts``: how often the job's own server had died and was started again.
        """
        return self._running.metrics()

    def rows_out(self, operator: str) -> dict[str, int]:
        """Rows that have left each subtask of an operator, as last reported: ``{"count[0]": 1234, ...}``.

        Raises ``ConfigurationError`` for what is no operator of the job.
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
        """Every planned move of work (to a slot that had come back, or as asked), told like a recovery."""
        return self._running.coordinator.recoveries.handovers()

    def output_trace(self) -> dict[str, list[tuple[float, int]]]:
        """When each subtask with a sink had put out how many rows (``flinkplus.runtime.output_trace``).

        Empty without the option ``trace_output``.
        """
        directory = self._running.coordinator.options.trace_output
        return {} if directory is None else read_traces(directory)

    def checkpoint_now(self) -> None:
        """Ask for a checkpoint at once; returns before it is complete."""
        self._running.coordinator.request_checkpoint()

    def kill(self, subtask: str, at: str | None = None, timeout: float = KILL_TIMEOUT_S) -> bool:
        """Fault injection: SIGKILL the process that hosts ``subtask`` (``count:1``).

        At once, or ``at`` a point: when that process next reaches it; the points are in ``flinkplus.runtime.faults``.
        Waits until the subtask runs, for ``timeout`` seconds at most. Returns ``False`` when the job is over.

        Raises ``ConfigurationError`` for what is no subtask or no point, ``SubtaskNotRunning`` after ``timeout``.
        """
        options = self._running.coordinator.options
        found = find_subtask(subtask, self._running.coordinator.graph, options.parallelism)
        if at is not None:
            check_point(at)
        return self._running.coordinator.kill(found, at, timeout)

    def missing_standbys(self) -> int:
        """How many standbys there should be and are not, or are not in step yet: 0 at full redundancy."""
        return 0 if self.done else self._running.coordinator.missing_standbys()

    def chain_hosts(self) -> dict[str, list[str]]:
        """The host of each member of each subtask's chain, the working one first; empty without standbys."""
        return {} if self.done else self._running.coordinator.chain_hosts()

    def slot_pids(self) -> dict[int, int]:
        """The process of each registered slot."""
        return {} if self.done else self._running.coordinator.pids()

    def placement(self) -> dict[str, str]:
        """The host of each subtask just now, as its slot names it: ``{"count+out[1]": "worker-2", ...}``; without those
        whose slot is away.
        """
        return {} if self.done else self._running.coordinator.placement()

    def chains(self) -> dict[str, list[int]]:
        """The slots that hold the state of each subtask just now, first the one that works on it, or is about to:
        ``{"count+out[1]": [1, 2, 3], ...}``; empty where there is no local recovery.
        """
        return {} if self.done else self._running.coordinator.chains()

    # --- planned moves

    def migrate(self, subtask: str, slot: int) -> PlannedMove:
        """Move ``subtask`` (``count:1``, with all that is fused with it) to ``slot``, without a stop: the slot gets a
        standby if it has none, and takes over right after a complete checkpoint. It is the subtask's home from then on,
        until the next migration, a drain of its host, or a rollback.

        Returns when that is begun; ``await_done`` of what is returned waits for its end. Raises ``MoveRefused`` when
        the slot does not exist, is away, or is on a drained host, and when the job does not run, or has nobody who
        could take over (``recovery``, ``guarantee``).
        """
        coordinator = self._running.coordinator
        found = find_subtask(subtask, coordinator.graph, coordinator.options.parallelism)
        return _begun(coordinator.moves.migrate(found, slot))

    def drain_host(self, host: str, force: bool = False) -> PlannedMove:
        """Move all work and all standbys off ``host``, and give it nothing new until ``undrain_host``.

        Returns when that is begun; ``left`` of what is returned says what is left to do, ``await_done`` waits until
        nothing is. Raises ``RedundancyAtRisk`` when chains would have fewer members, or be on fewer hosts, without
        ``host``, unless ``force``; else ``MoveRefused`` as ``migrate`` does.
        """
        return _begun(self._running.coordinator.moves.drain(host, force))

    def undrain_host(self, host: str) -> None:
        """Use ``host`` again: what belongs there moves back. Raises ``MoveRefused`` when it is not drained."""
        self._running.coordinator.moves.undrain(host).await_answer()

    def scale_spares(self, count: int, force: bool = False) -> PlannedMove:
        """Have ``count`` spare slots, beside those that the job was started with: further ones are started on the
        cluster, and take standbys and moved work like any other; or what is on some of them goes elsewhere, and they
        end.

        Returns when that is begun; ``left`` of what is returned says what is left to do, ``await_done`` waits until
        every chain is as it is planned with the new slots, or nothing is left of the old ones. Raises ``MoveRefused``
        as ``migrate`` does; ``RedundancyAtRisk`` when chains would have fewer members, or be on fewer hosts, unless
        ``force``; ``InsufficientSlots`` when the master is known not to run so many tasks, and, from ``await_done``,
        when Spark has not started some within ``slot_timeout`` seconds: these are given up. ``MoveCancelled``: another
        number was asked for, or the job is over. A job that is resumed has no spare slots.
        """
        return _begun(self._running.coordinator.moves.scale(check_count(count), force))

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
