"""The coordinator: the driver-side end of a job, which runs the protocol core and obeys it.

One thread owns the machines (``JobProtocol``, ``CheckpointCoordinator`` and, with standbys, ``FailoverProtocol``), the
table of slots and all figures; everything else puts events into its inbox: control streams, ZooKeeper, the workers that
write manifests, commit output and write chain records, the user's calls. What the machines order is carried out by a
driver for each: ``JobDriver``, ``CheckpointDriver``, ``Failovers``.

Rules: the core decides, this package carries out. While the job runs with standbys, failures are for the machine of
local failover; else they are for that of the job. Whatever happens, the job ends in FINISHED, FAILED or CANCELLED with
everything given back.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import assert_never

from chain_backup.failover.machine import FailoverProtocol
from chain_backup.zookeeper.records import RegistryEvent
from flinkplus.config import Options
from flinkplus.errors import (
    FlinkPlusError,
    JobFailed,
    JobRunsElsewhere,
    PeerProtocolError,
    SubtaskNotRunning,
    described,
)
from flinkplus.graph import JobGraph
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.liveness.reachability import Reachability
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import earliest_ms
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.base.logs import speak_as
from flinkplus.runtime.base.step_note import LastWords
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import find_subtask, parse_subtask
from flinkplus.runtime.coordinator.commands.moves import MoveCommands
from flinkplus.runtime.coordinator.commands.operations import Operations
from flinkplus.runtime.coordinator.dispatch.dispatch import (
    CheckpointWorkDone,
    Deployment,
    Dispatch,
    FailoverWorkDone,
    InboxEvent,
    JobWorkDone,
    RegistryTold,
    UserAsked,
)
from flinkplus.runtime.coordinator.dispatch.registry import RecordWriter
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.coordinator.drivers.checkpoints import CheckpointDriver
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.drivers.failover import Failovers
from flinkplus.runtime.coordinator.drivers.job import Handles, JobDriver
from flinkplus.runtime.coordinator.drivers.last_words import CrashReports
from flinkplus.runtime.coordinator.membership.moves import Moves
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.spares import Spares
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.promotion.renumbering import matched
from flinkplus.runtime.coordinator.record.recorder import Recorder
from flinkplus.runtime.coordinator.record.recovery_log import RecoveryLog
from flinkplus.runtime.coordinator.record.status import chains_of, slots_of, subtasks_of
from flinkplus.runtime.coordinator.reports import Reports
from flinkplus.runtime.coordinator.setup.limits import configs, reachability_config
from flinkplus.runtime.coordinator.setup.outcome import JobResult, Restore, error_of
from flinkplus.runtime.coordinator.setup.placements import failover_protocol, topology_of
from flinkplus.runtime.faults.injections import KILL
from flinkplus.runtime.faults.points import COORDINATOR_POINTS, STANDBY_POINTS, Faults
from flinkplus.runtime.host.priority import Preference
from flinkplus.runtime.liveness.lifeline import LifelineCut, Lifelines
from flinkplus.runtime.liveness.pulse import Pulses
from flinkplus.runtime.operations.command_server import CommandDoor
from flinkplus.runtime.operations.commands import Commands
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.factory import rendezvous
from flinkplus.runtime.transport.wire.ports import ControlArrived, ControlLost

MAX_IDLE_S = 0.1
LOOK_AGAIN_S = 0.01
STOP_AT_ONCE_S = 3.0
M = TypeVar("M")
log = logging.getLogger("flinkplus.coordinator")


@dataclass(frozen=True)
class Addresses:
    """``host:port`` of where slots register, hold their lifelines to, and send their pulses (``None``: nowhere), and of
    where shells give commands.
    """

    rendezvous: str
    lifelines: str
    pulses: str | None
    commands: str = ""

    def at(self, host: str) -> Addresses:
        """The same ports, as seen from elsewhere."""

        def reached(address: str) -> str:
            return f"{host}:{address.rpartition(':')[2]}"

        pulses = None if self.pulses is None else reached(self.pulses)
        return Addresses(reached(self.rendezvous), reached(self.lifelines), pulses, reached(self.commands))


def dispatch_at(
    options: Options,
    host: str,
    credentials: Credentials,
    for_commands: Credentials | None = None,
    directory: Path | None = None,
) -> Dispatch:
    """Where slots that have ``credentials`` can reach a coordinator on ``host``, and shells that have
    ``for_commands`` (``None``: the job accepts no commands). ``directory``: the job's own, for shells on the same host.
    """
    inbox: Inbox[InboxEvent] = Inbox()
    dispatch = Dispatch(rendezvous(options, credentials, host, inbox), SlotProcesses(options.parallelism), inbox)
    dispatch.make_lifelines = lambda: Lifelines(host, credentials, inbox, inbox.put)
    if for_commands is not None:
        dispatch.make_door = lambda commands: CommandDoor(
            host, for_commands, inbox, commands, lambda action: inbox.put(UserAsked(action)), directory
        )
    timeout_s = options.hang_timeout
    if timeout_s is not None:
        dispatch.make_pulses = lambda: Pulses(host, credentials.secret, timeout_s, inbox, dispatch.clock)
    return dispatch


class Coordinator:
    """One running job, seen from the driver."""

    def __init__(
        self,
        graph: JobGraph,
        options: Options,
        commits: Commits,
        restore: Restore,
        dispatch: Dispatch,
    ) -> None:
        self.graph = graph
        self.options = options
        self.commits = commits
        self.result = JobResult()
        self.commands = Commands()
        self.job_id: str | None = None
        """What the job is called in its logs; to be said before ``start``."""
        self.recoveries = RecoveryLog(self._has_results)
        self.figures = Figures(graph, options.checkpoint_mode)
        self._dispatch = dispatch
        self._inbox = dispatch.inbox
        self._processes = dispatch.processes
        self._deployment = Deployment(
            restore.generation, int(restore.generation), restore.draining, clock=dispatch.clock
        )
        self._faults = Faults(options.faults, restore.generation + 1)
        every = [SubtaskId(v.name, i) for v in graph.vertices for i in range(options.parallelism)]
        sources = tuple(sorted(s for s in every if graph.vertex_of(s.vertex).is_source))
        cycles = graph.cycles()
        loop_heads = tuple(sorted(subtask for subtask in every if subtask.vertex in cycles.loop_heads))
        checkpoint_config, recovery_config = configs(options)
        self._recorder = None if options.record_machines is None else Recorder(Path(options.record_machines))
        self._checkpoints = self._machine(
            "checkpoints", CheckpointCoordinator, checkpoint_config, restore.next_checkpoint, restore.available
        )
        self._job = self._machine(
            "job",
            JobProtocol,
            tuple(sorted(every)),
            options.parallelism,
            recovery_config,
            started_ms=self._dispatch.now_ms(),
            restore_from=restore.checkpoint,
            available=restore.available,
            first_generation=Generation(restore.generation + 1),
        )
        self._checkpoint_driver = CheckpointDriver(
            self._dispatch, self, self._deployment, commits, self.figures, self._reach
        )
        self._presence = Presence(
            self._dispatch,
            self,
            self._deployment,
            self.recoveries,
            options,
            self.taken_over,
            lambda: self._job.state,
            self._machine("reachability", Reachability, reachability_config(options)),
        )
        self._job_driver = JobDriver(
            self._dispatch,
            self,
            self._deployment,
            commits,
            self.recoveries,
            sources,
            loop_heads,
            self._presence.evict,
            self._ended,
        )
        self._failovers = self._make_failovers() if options.local else None
        if not options.promises.repeats or restore.checkpoint is not None:  # an earlier run may have promised less
            self._job_driver.match = partial(matched, topology=topology_of(graph, options.parallelism))
        self._presence.failovers = self._failovers
        self._job_driver.interrupted = self._interrupted
        self._reports = Reports(
            self._dispatch, self, self._deployment, self.recoveries, self.figures, self._presence, self._failovers
        )
        crashes = self._crashes = CrashReports(graph, options.parallelism, self, self._deployment)
        self._presence.ends = crashes.ended_on_purpose
        self._checkpoint_driver.progressed = crashes.completed
        self._operations = Operations(self._dispatch, self._deployment, self._presence, graph, options, self._later)
        self._operations.add_to(self.commands)
        self.moves = Moves(self._ask, lambda: self.state, self._failovers)
        self.spares = self._make_spares()
        MoveCommands(self.moves, graph, options).add_to(self.commands)
        self._preference = Preference()
        self._malformed = 0
        self.ended_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="flinkplus-coordinator", daemon=True)

    def _machine(self, name: str, make: Callable[..., M], *arguments: Any, **settings: Any) -> M:
        """A machine of the core; what it does is recorded where that is asked for."""
        if self._recorder is None:
            return make(*arguments, **settings)
        return self._recorder.machine(name, make, *arguments, **settings)

    def _make_failovers(self) -> Failovers:
        failovers = Failovers(
            failover_protocol(self.graph, self.options, partial(self._machine, "failover", FailoverProtocol)),
            topology_of(self.graph, self.options.parallelism),
            self._dispatch,
            self,
            self._deployment,
            self.recoveries,
            lambda: self._job.state,
            self._presence.evict,
            self._checkpoint_driver.trigger,
            lambda checkpoint: checkpoint in self._checkpoints.pending,
            self.options.depth,
            self.options.promises,
            "partial" if self.options.partial else "standby",
        )
        self._job_driver.started = self._started
        self._job_driver.begins_on = failovers.begins_on
        self._checkpoint_driver.holds = failovers.holds
        self._checkpoint_driver.completed = failovers.completed
        self._checkpoint_driver.aborted = failovers.aborted
        self._checkpoint_driver.overtaking = failovers.overtaking
        if self.options.standbys:
            failovers.replicated = self.figures.replicated
        return failovers

    def _make_spares(self) -> Spares | None:
        if self._failovers is None:
            return None
        moves = self.moves
        moves.spares = Spares(
            self._dispatch,
            self,
            self._deployment,
            self._failovers,
            self.options.slot_timeout,
            moves.next_number,
            moves.told,
            self._ask,
        )
        return moves.spares

    def _started(self, version: CheckpointId, handles: Handles) -> None:
        assert self._failovers is not None
        self._failovers.started(version, handles)
        self._presence.let_spares_join()

    def _interrupted(self) -> None:
        self._presence.interrupted()
        if self._failovers is not None:
            self._failovers.interrupted()

    def _has_results(self, subtask: str) -> bool:
        """Whether a subtask has a sink or keyed state."""
        vertex = self.graph.vertex_of(parse_subtask(subtask).vertex)
        return self.graph.has_sink(vertex) or self.graph.has_keyed_state(vertex)

    # --- seen from other threads

    def start(self) -> Addresses:
        """Start serving."""
        address = self._dispatch.rendezvous.start()
        assert self._dispatch.make_lifelines is not None
        lifelines = self._dispatch.lifelines = self._dispatch.make_lifelines()
        pulses = self._dispatch.pulses = None if self._dispatch.make_pulses is None else self._dispatch.make_pulses()
        door = self._dispatch.door = (
            None if self._dispatch.make_door is None else self._dispatch.make_door(self.commands)
        )
        self._thread.start()
        return Addresses(
            address,
            lifelines.address,
            None if pulses is None else pulses.address,
            "" if door is None else door.address,
        )

    def stand_for_finished(self, checkpoint: CheckpointId) -> None:
        """Instead of ``start``: an earlier run has finished the job with ``checkpoint``; show its figures."""
        self.figures.adopt(checkpoint, self.commits.handles(checkpoint))
        self.moves.close()
        self._end(JobState.FINISHED, None)

    def write_records_to(self, registry: RecordWriter) -> None:
        """Where the records of chains go; to be said before ``start``."""
        if self._failovers is not None:
            self._failovers.registry = registry

    def slot_failed(self, slot: int, reason: str) -> None:
        """The Spark job of a slot failed; it is submitted again."""
        self._ask(lambda: self._presence.slot_failed(slot, f"slot {slot} cannot start: {reason}"))

    def registry_told(self, event: RegistryEvent) -> None:
        self._inbox.put(RegistryTold(event))

    def give_up(self, reason: str) -> None:
        """End the job now: there is nothing left that could run it."""
        self._ask(lambda: self._end(JobState.FAILED, JobFailed(reason)))

    def taken_over(self, reason: str) -> None:
        """End the job here: another driver runs it."""
        error = JobFailed(reason)
        error.__cause__ = JobRunsElsewhere(reason)
        self._ask(lambda: self._end(JobState.FAILED, error))

    def cancel(self) -> None:
        """Ask for the end of the job; returns at once."""
        self._ask(lambda: self.step_job(events.CancelRequested()))

    def request_checkpoint(self) -> None:
        self._ask(lambda: self.step_checkpoints(events.CheckpointRequested()))

    def drain(self) -> None:
        """End the input: now, and again after every recovery."""
        self._ask(self._drain)

    def _drain(self) -> None:
        self._deployment.draining = True
        self._dispatch.tell_all(control.Drain(self._deployment.generation))

    def missing_standbys(self) -> int:
        """How many standbys there should be and are not, or are not in step yet; 0 when the job is over."""
        failovers = self._failovers
        return self._answer(lambda: 0 if failovers is None else failovers.missing_standbys, 0)

    def chain_hosts(self) -> dict[str, list[str]]:
        """The hosts of each chain's members, the head's first; none when the job is over, or has no standbys."""

        def hosts() -> dict[str, list[str]]:
            where = {process.slot: process.host for process in self._processes.all()}
            return {subtask: [where.get(slot, "") for slot in slots] for subtask, slots in self.chains().items()}

        return self._answer(hosts, {})

    def _answer(self, question: Callable[[], M], otherwise: M) -> M:
        """What ``question`` says in the coordinator's thread; ``otherwise`` when the job is over."""
        answer: Future[M] = Future()
        self._ask(lambda: answer.set_result(question()))
        while not self.result.done.is_set():
            with contextlib.suppress(FutureTimeout):
                return answer.result(MAX_IDLE_S)
        return otherwise

    def kill(self, subtask: SubtaskId, point: str | None, timeout_s: float) -> bool:
        """Fault injection: SIGKILL the process that hosts a subtask; the time is stamped right before the signal.

        With a ``point`` (``faults.points``): when that is reached next, by the subtask, by its first standby, or here.
        Waits until there is such a process. Returns false when the job is over. Raises ``SubtaskNotRunning`` after
        ``timeout_s`` seconds.
        """

        def strike() -> bool:
            if self._deployment.first_started_s is None:
                return False
            return self._presence.kill(subtask) if point is None else self._arm(point, subtask)

        until_s = time.monotonic() + timeout_s
        while not self._answer(strike, False):
            if self.result.done.is_set():
                return False
            if time.monotonic() >= until_s:
                raise SubtaskNotRunning(
                    f"{subtask} cannot be killed: it has not run within {timeout_s:g} s, the job is {self.state}"
                )
            time.sleep(LOOK_AGAIN_S)
        return True

    def _arm(self, point: str, subtask: SubtaskId) -> bool:
        if point in COORDINATOR_POINTS:
            self._faults.arm(point, str(subtask))
            return True
        slot = self._deployment.assignment.get(subtask)
        if point in STANDBY_POINTS:
            slot = next(iter(self.chains().get(str(subtask), [])[1:]), None)
        if slot is None or self._processes.get(slot) is None:
            return False
        self._dispatch.tell(slot, control.Inject(KILL, [str(subtask)], point=point))
        return True

    def _ask(self, action: Callable[[], None]) -> None:
        self._inbox.put(UserAsked(action))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._inbox.call_later(delay_s, lambda: self._ask(action))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @property
    def storage_ended(self) -> threading.Event:
        """Set when the job is over and no manifest and no commit is under way any more."""
        return self._dispatch.storage_ended

    # --- the loop

    def _run(self) -> None:
        speak_as(job=self.job_id)
        try:
            while not self.result.done.is_set():
                self._turn()
        except Exception as error:
            log.debug("the coordinator failed", exc_info=True)
            self._stop_slots_at_once()
            failure = JobFailed(f"the coordinator failed: {described(error)}")
            failure.__cause__ = error
            self._end(JobState.FAILED, failure)
        finally:
            self._dispatch.close()
            if self._recorder is not None:
                self._recorder.close()
            self.moves.close()
            self._inbox.close()

    def _stop_slots_at_once(self) -> None:
        """The core cannot go on: have the slots end, without its help, for a bounded time."""
        self._dispatch.tell_all(control.Stop())
        deadline = self._dispatch.clock.monotonic() + STOP_AT_ONCE_S
        while self._processes.all() and self._dispatch.clock.monotonic() < deadline:
            try:
                event = self._inbox.get(timeout=MAX_IDLE_S)
            except queue.Empty:
                continue
            if isinstance(event, ControlLost):
                process = self._processes.on(event.connection)
                if process is not None:
                    self._processes.remove(process.slot)

    def _turn(self) -> None:
        due_ms = self.next_deadline_ms()
        wait_s = MAX_IDLE_S if due_ms is None else min(MAX_IDLE_S, max(0, due_ms - self._dispatch.now_ms()) / 1000)
        try:
            event: InboxEvent | None = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            event = None
        self.turn(event, due_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next ``turn`` is due if nothing happens before."""
        return earliest_ms(
            self._job.next_deadline_ms(),
            self._checkpoints.next_deadline_ms(),
            None if self._failovers is None else self._failovers.next_deadline_ms(),
            self._presence.next_deadline_ms(),
            None if self.spares is None else self.spares.next_deadline_ms(),
        )

    def turn(self, event: InboxEvent | None, due_ms: int | None) -> None:
        """Take an event, if there is one, and do what is due since ``due_ms``, if that has passed."""
        self._dispatch.event_s = self._dispatch.clock.time()
        if event is not None:
            self._handle(event)
        if due_ms is not None and due_ms <= self._dispatch.now_ms():
            self.step_job(events.TimeAdvanced())
            self.step_checkpoints(events.TimeAdvanced())
            if self._failovers is not None:
                self._failovers.step(events.TimeAdvanced())
        self._presence.look_for_silent_slots()
        if self.spares is not None:
            self.spares.look()
        self._preference.end(self._dispatch.clock.monotonic())

    def _handle(self, event: InboxEvent) -> None:
        if _is_failure(event):
            self._preference.begin(self._dispatch.clock.monotonic())
        match event:
            case ControlArrived(connection, message, time_s):
                self._dispatch.event_s = time_s
                try:
                    self._reports.take(connection, message)
                except PeerProtocolError as error:
                    self._malformed += 1
                    log.warning("dropped a malformed message of connection %d: %s", connection, error)
            case ControlLost(connection, reason, time_s):
                self._dispatch.event_s = time_s
                process = self._processes.on(connection)
                if process is not None:
                    self._presence.lose(process, reason)
            case LifelineCut(name, time_s):
                self._dispatch.event_s = time_s
                process = self._processes.with_lifeline(name)
                if process is not None:
                    self._presence.lose(process, "its process ended")
            case CheckpointWorkDone(done):
                self._checkpoint_driver.work_done(done)
            case JobWorkDone(done):
                self.step_job(done)
            case FailoverWorkDone(done):
                if self._failovers is not None:
                    self._failovers.step(done)
            case RegistryTold(told):
                self._presence.registry_told(told)
            case LastWords():
                self._crashes.take(event)
            case UserAsked(action):
                action()
            case _:
                assert_never(event)

    def step_job(self, event: events.JobEvent) -> None:
        """See ``Machines``."""

        def step() -> None:
            for effect in self._job.step(self._dispatch.now_ms(), event):
                self._job_driver.apply(effect)

        self._dispatch.soon(step)

    def step_checkpoints(self, event: events.CheckpointingEvent) -> None:
        """See ``Machines``."""

        def step() -> None:
            for effect in self._checkpoints.step(self._dispatch.now_ms(), event):
                self._checkpoint_driver.apply(effect)

        self._dispatch.soon(step)

    # --- fault injection

    def _reach(self, point: str) -> None:
        """A point of fault injection; see ``faults.points``."""
        self._faults.reach(
            point,
            self._deployment.generation,
            strike=self._strike,
        )

    def _strike(self, name: str) -> None:
        if not self._presence.kill(find_subtask(name, self.graph, self.options.parallelism)):
            log.warning("cannot kill %s: its slot is not registered", name)

    # --- the end

    def _ended(self, ended: effects.EndJob) -> None:
        self._end(ended.state, error_of(ended, self.options.parallelism))

    def _end(self, state: JobState, error: FlinkPlusError | None) -> None:
        self.ended_s = self._dispatch.clock.monotonic()
        self.result.state = state
        self.result.error = error
        self.result.done.set()

    # --- figures, from any thread

    @property
    def state(self) -> str:
        """The job's state now, as text."""
        state = self.result.state
        return (state if state is not None else self._job.state).value

    @property
    def first_started_s(self) -> float | None:
        return self._deployment.first_started_s

    def failover_figures(self) -> dict[str, Any]:
        """What local failover has done so far: counts, why the job rolled back all the same, ZooKeeper."""
        counts = {"failovers": 0, "handovers": 0, "fallbacks": 0}
        if self._failovers is None:
            return {**counts, "fallback_reasons": [], "zookeeper": None}
        return {
            **self._failovers.counts,
            "fallback_reasons": list(self._failovers.fallback_reasons),
            "zookeeper": self._presence.registry_lost or "connected",
        }

    def security_figures(self) -> dict[str, int]:
        """What driver and slots, all that there ever were, have refused: of strangers, and of the fenced."""
        servers = [self._dispatch.rendezvous, self._dispatch.lifelines, self._dispatch.door]
        refused = sum(server.refusals.total for server in servers if server is not None)
        pulses = self._dispatch.pulses
        return {
            "refused_connections": refused + self.figures.refused,
            "refused_datagrams": 0 if pulses is None else pulses.refused,
            "malformed_frames": self._dispatch.rendezvous.malformed + self._malformed + self.figures.malformed,
            "fenced_messages": self.figures.fenced_messages,
            "fenced_reports": self.figures.fenced_reports,
        }

    def status_figures(self) -> dict[str, Any]:
        """Slots, subtasks and chains; only in the coordinator's thread."""
        deployment, processes, failovers = self._deployment, self._processes.all(), self._failovers
        chains = [] if failovers is None else failovers.holdings
        now_s = self._dispatch.clock.monotonic()
        return {
            "slots": slots_of(
                range(self.options.parallelism),
                {} if self.spares is None else {slot: state.value for slot, state in self.spares.states.items()},
                processes,
                self._processes.incarnations,
                deployment.assignment,
                chains,
                now_s,
            ),
            "subtasks": subtasks_of(
                deployment.assignment,
                deployment.generations,
                [process.slot for process in processes],
                () if failovers is None else failovers.moving,
                self.figures.subtasks(),
            ),
            "chains": chains_of(chains),
            "drained_hosts": [] if failovers is None else list(failovers.drained_hosts),
        }

    @property
    def copies(self) -> int:
        """How many there ought to be of each state; 0 while the job does not run, or without standbys."""
        return 0 if self._failovers is None else self._failovers.copies

    def pids(self) -> dict[int, int]:
        """Process of each registered slot."""
        return {process.slot: process.pid for process in self._processes.all()}

    def placement(self) -> dict[str, str]:
        """Host of each subtask whose slot is registered."""
        hosts = {process.slot: process.host for process in self._processes.all()}
        return {str(subtask): hosts[slot] for subtask, slot in self.assignment.items() if slot in hosts}

    def chains(self) -> dict[str, list[int]]:
        """The slots that hold the state of each subtask, first the one that works on it, or is about to."""
        found = {} if self._failovers is None else self._failovers.chains
        return {str(subtask): list(slots) for subtask, slots in found.items()}

    @property
    def slot_restarts(self) -> int:
        return self._processes.restarts

    @property
    def assignment(self) -> dict[SubtaskId, int]:
        """Where each subtask is just now."""
        return dict(self._deployment.assignment)


def _is_failure(event: InboxEvent) -> bool:
    """Whether somebody waits for what follows from ``event``."""
    if isinstance(event, ControlArrived):
        return isinstance(event.message, control.Failed)
    return isinstance(event, (ControlLost, LifelineCut))
