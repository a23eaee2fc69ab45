"""The world that a simulated job lives in: time, wires, processes, the driver.

One heap of (time, number, action); an action may put others into it. First there are faults, then all is healed, and
from then on the job must end within ``MAX_STEPS`` actions.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from chain_backup.failover.effects import ChainEntry
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.zookeeper.records import SlotNodeGone, SlotRecord
from flinkplus.config import Options
from flinkplus.errors import PeerProtocolError, ProcessCrashed
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId, parallelism_of
from flinkplus.protocol.vocabulary.in_flight import JOB_SLOTS
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.base.step_note import EDGE, FIELDS, OPERATOR, PRODUCER, SEQ, SUBTASK, LastWords
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.coordinator import Coordinator
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Dispatch, RegistryReported
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.coordinator.membership.moves import PlannedMove
from flinkplus.runtime.coordinator.setup.outcome import JobResult, Restore
from flinkplus.runtime.coordinator.wiring import Parts
from flinkplus.runtime.job.restoring import GENERATIONS_PER_RUN
from flinkplus.runtime.transport.wire.ports import ControlArrived, ControlLost
from tests.simulation.asking import Together
from tests.simulation.checks import Checks, Moved, Parallelism, Violation
from tests.simulation.deadlines import DIED, Deadlines
from tests.simulation.disk import damaged
from tests.simulation.driver import (
    IDLE_TIMEOUT_MS,
    Durable,
    SimCommits,
    SimInbox,
    SimRegistry,
    SimRendezvous,
    SimSpareJobs,
    SimWorker,
    Unavailable,
)
from tests.simulation.endings import Endings
from tests.simulation.faults import Faults
from tests.simulation.graph import RecordId, SimGraph
from tests.simulation.live import Arrivals
from tests.simulation.parameters import HANGS_MS, MOST_SUBTASKS, Fault, Parameters, child
from tests.simulation.phases import names_of, phase_and_kind, rescale_phase
from tests.simulation.rescaling import NotAligned, SimDivider, divide
from tests.simulation.savepoints import SimSavepoints
from tests.simulation.slot import SimSlot
from tests.simulation.standbys import StateFiles
from tests.simulation.story import brief
from tests.simulation.table import SimTable

MAX_STEPS = 150_000
MAX_HEALED_MS = 600_000
SESSION_TIMEOUT_MS = 400
BEAT_MS = 300
HEARTBEAT_TIMEOUT_S = 1.0
LATE_MS = 12
SWEEP_EVERY = 2
MAX_ENDED_BY_INPUT = 4
"""Processes that an input may end in one subtask, for each driver: two at the same place, one where messages are cut in
another way, and one whose last words are still on their way. A row may come to several subtasks at once."""
SPARES_TIMEOUT_S = 0.5
ALLOWED_ENDS = (
    "output not committed",
    "no last checkpoint became complete",
    "the checkpoint was not divided within",
    "the recipe of the output could not be read",
    "the recipe of the output was not read within",
)
"""Reasons with which a job may fail, and is resumed then: the storage refused for too long, or hung with a manifest."""
KINDS = {SubtaskId: "migration", int: "scaling", str: "drain", Parallelism: "rescale"}
"""What a user has asked for."""
NEVER_AN_END = "commit was not answered"
"""A commit that is slow only holds back what is visible."""


class SimClock:
    """Stands for the module ``time``. Half a millisecond on, so that no rounding takes a whole one back."""

    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return (self._world.now_ms + 0.5) / 1000

    time = monotonic


class World:
    """One history. ``run`` makes it; ``trace`` gets its lines when it is a list. ``record``: a file for what the
    coordinator's machines do."""

    def __init__(self, parameters: Parameters, trace: list[str] | None = None, record: Path | None = None) -> None:
        logging.getLogger("flinkplus").setLevel(logging.CRITICAL)  # every fault would be a warning
        self.parameters = parameters
        self.trace = trace
        self.now_ms = 0
        self.steps = 0
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        seed = parameters.seed
        self.rng_network, self.rng_work = child(seed, "network"), child(seed, "work")
        self.rng_storage, self.rng_spark = child(seed, "storage"), child(seed, "spark")
        self.rng_frames = child(seed, "pieces")
        self.rng_copies, self.rng_late = child(seed, "copies"), child(seed, "late")
        self.rng_left = child(seed, "left files")
        self.rng_table = child(seed, "table")
        self.rng_live = child(seed, "live work")
        self.rng_asked = child(seed, "asked")
        self.answers: dict[tuple[str, int], Together] = {}
        self.rng_divided, self.rng_saved = child(seed, "divided"), child(seed, "saved")
        self.clock = SimClock(self)
        self.graph = SimGraph(
            parameters.stages,
            parameters.edges,
            parameters.parallelism,
            parameters.records,
            parameters.keys,
            parameters.loops,
            parameters.groups,
            parameters.at_once,
            parameters.asking,
        )
        self.arrivals = Arrivals(self)
        self.options = options_of(parameters)
        if record is not None:
            self.options = replace(self.options, record_machines=str(record))
        self.files: dict[str, tuple[tuple[int, int], ...]] = {}
        self.replaced: dict[str, tuple[str, ...]] = {}
        self.state_files = StateFiles(self.files, self.replaced)
        self.processes: dict[int, SimSlot] = {}
        self._connections: dict[int, SimSlot] = {}
        self._dropped: set[int] = set()  # never iterated
        self._up_ms: dict[int, int] = {}
        self._down_ms: dict[int, int] = {}
        self._cuts: Counter[tuple[int, int]] = Counter()
        self._silences: Counter[tuple[int, int]] = Counter()
        self._garbles: Counter[tuple[int, int]] = Counter()
        self.forged: set[tuple[int, int]] = set()
        self.breaks_at_join = 0
        self._slow: Counter[tuple[int, int]] = Counter()
        self.duplicates = self.frames_wrong = self.reads_wrong = 0
        self.table_away = 0
        self.uploads_fail = self.storage_fails = self.commits_fail = self.watches_late = self.storage_hangs = 0
        self.reached: Counter[str] = Counter()
        self.on_point: Callable[[str, SimSlot, SubtaskId], None] | None = None
        self.healed = False
        self.violated: Violation | None = None
        self.counts: Counter[str] = Counter()
        self.died: Counter[str] = Counter()
        self.ended: str | None = None
        self._timer_ms: int | None = None
        self._due_ms: int | None = None
        self._beating = False
        self._beaten_ms = -1
        self._runs = 0
        self._moved: dict[int, int] = {}
        self._left: dict[tuple[int, str], dict[str, dict[str, bytes]]] = {}
        self._over: set[int] = set()  # spare slots that Spark does not run any more; never iterated
        self.crowded = self.outages = 0
        self.deadly: RecordId | None = None
        self._ended_in: Counter[SubtaskId] = Counter()
        self._resumes = 0
        self.moves: list[tuple[PlannedMove, Moved, int]] = []
        self.faults = Faults(self)
        self.rescale_faults: list[Fault] = []
        self._rescale_phase = ""
        self.table = SimTable(self)
        self.checks = Checks(self)
        self.durable = Durable(parameters.parallelism)
        self.commits = SimCommits(self, self.durable, 0)
        self.deadlines = Deadlines(self)
        self.endings = Endings(self)
        self.savepoints = SimSavepoints(self)
        self.registry = SimRegistry(self)
        self.coordinator: Coordinator | None = None
        self._workers: list[SimWorker] = []
        self.cyclic: list[Any] = [self]
        self.start_driver()

    # --- time

    def at(self, at_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        """Have ``action`` happen."""
        self._numbers += 1
        heapq.heappush(self._heap, (at_ms, self._numbers, action, arguments))

    def step(self) -> bool:
        """The next action; false when there is none."""
        if not self._heap or self.ended is not None:
            return False
        self.now_ms, _, action, arguments = heapq.heappop(self._heap)
        self.steps += 1
        action(*arguments)
        if self.violated is not None:
            raise self.violated
        return True

    def note(self, text: str, *arguments: Any) -> None:
        """A line of the trace."""
        if self.trace is not None:
            said = tuple(brief(argument) for argument in arguments)
            self.trace.append(f"{self.now_ms:6d} {text % said}")

    def run(self) -> None:
        """The whole history. Raises ``Violation``, or whatever the product raises that it must not."""
        faults = self.faults
        for fault in self.parameters.faults:
            self.at(fault.at_ms, faults.strike, fault)
        last_ms = max((fault.at_ms + fault.duration_ms for fault in self.parameters.faults), default=0)
        self.at(last_ms + 1, faults.heal)
        step, until_ms = self.step, last_ms + MAX_HEALED_MS
        while step():
            if self.steps > MAX_STEPS or self.now_ms > until_ms:
                raise Violation("progress", f"the job has not ended after {self.steps} steps, {self.now_ms} ms")
        if self.ended is None:
            raise Violation("progress", "nothing happens any more, and the job has not ended")
        if self.ended == "finished":
            self.checks.finished()

    def dismantle(self) -> None:
        """Nothing here is looked at again: leave nothing that only the garbage collector would find."""
        for part in self.cyclic:
            vars(part).clear()

    # --- the driver

    def start_driver(self) -> None:
        """A driver starts, or resumes the job."""
        restore = Restore(generation=Generation(self._runs * GENERATIONS_PER_RUN))
        self.commits = SimCommits(self, self.durable, self._runs)
        try:
            checkpoint, final = self.commits.adopt()
        except Unavailable as error:
            self.note("driver does not start: %s", error)
            self.at(self.now_ms + 50, self.start_driver)
            return
        self._runs += 1
        self._left.clear()  # another run takes nothing of this one's over
        if final:
            self._end("finished")
            return
        try:
            parallelism = self._find_restore(restore, checkpoint)
        except Unavailable as error:
            self.note("driver does not start: %s", error)
            self.at(self.now_ms + 50, self.start_driver)
            return
        self.options = replace(self.options, parallelism=parallelism)
        self.registry.records.clear()
        inbox = SimInbox()
        storage = SimWorker(self, "storage", self.storage_ms, lambda: not self.storage_hangs, MAX_HEALED_MS)
        registry = SimWorker(self, "registry", self.registry_ms, lambda: not self.registry.is_away, IDLE_TIMEOUT_MS * 3)
        output = SimWorker(self, "output", self.registry_ms, lambda: True, 0)
        self._workers = [storage, registry, output]
        dispatch = Dispatch(
            SimRendezvous(self),  # type: ignore[arg-type]
            SlotProcesses(parallelism),
            inbox,  # type: ignore[arg-type]
            self.clock,
            storage,
            registry,
            output,
        )
        parts = Parts(
            self.graph,  # type: ignore[arg-type]
            self.options,
            self.commits,  # type: ignore[arg-type]
            restore,
            dispatch,
            Calls(inbox, JobResult(self.clock)),  # type: ignore[arg-type]
            self.registry,
            SimSpareJobs(self, self._runs),
            SimDivider(self, self.commits),
            self.savepoints.writer_for,
        )
        self.coordinator = coordinator = Coordinator(parts)
        coordinator._preference._possible = False  # of a real thread
        made = [*vars(coordinator).values(), *vars(coordinator.parts).values()]
        ours = {id(part): part for part in made if type(part).__module__.startswith("flinkplus.run")}
        self.cyclic += [coordinator, *ours.values()]
        self._over = set()
        for starting in (coordinator.parts.spares, coordinator.parts.rescales):
            if starting is not None:
                starting._timeout_s = SPARES_TIMEOUT_S
        if coordinator.parts.rescales is not None:
            prefetching = coordinator.parts.rescales._prefetching
            prefetching._silence_s = SPARES_TIMEOUT_S
            if self.parameters.little_bytes is not None:
                prefetching._little_bytes = self.parameters.little_bytes
        if self.failover is not None and self.parameters.pending_versions:
            attempts = self.failover._attempts
            attempts._config = replace(attempts._config, pending_versions=True)
        machine = coordinator.parts.machines.checkpoints
        machine._config = replace(machine._config, sweep_every=SWEEP_EVERY)
        if self.parameters.in_flight_bytes is not None:
            self._limit_in_flight(machine, self.parameters.in_flight_bytes)
        self.deadlines.watch(self.coordinator)
        self.endings.watch(self.coordinator)
        self.savepoints.watch(self.coordinator)
        self.note("driver starts, from checkpoint %s", checkpoint)
        for slot in range(parallelism):
            self.at(self.now_ms + self.rng_spark.randint(1, 10), self.start_process, slot, self._runs)
        self._due_ms = self.coordinator.next_deadline_ms()
        self.coordinator_turns()

    def _find_restore(self, restore: Restore, checkpoint: CheckpointId | None) -> int:
        """Fill ``restore``, and divide the checkpoint if the job is resumed at another parallelism: in most cases it is
        that of the plan. Returns the parallelism. Raises ``Unavailable``."""
        parallelism = self.durable.parallelism
        if self._runs > 1 and self.parameters.groups and self.rng_divided.random() < 0.3:
            parallelism = self._wanted(restore, checkpoint, self.rng_divided.randint(1, MOST_SUBTASKS))
        if checkpoint is None:
            self.durable.parallelism = parallelism
            self.checks.begins(parallelism)
            return parallelism
        manifests = self.commits.manifests
        restore.checkpoint, restore.next_checkpoint = checkpoint, CheckpointId(max(manifests) + 1)
        if parallelism_of(manifests[checkpoint]["handles"]) != parallelism:
            new = restore.next_checkpoint
            try:
                divide(self, self.commits, checkpoint, new, restore.generation, parallelism)
                restore.checkpoint, restore.next_checkpoint = new, CheckpointId(new + 1)
                restore.older, restore.available = tuple(map(CheckpointId, sorted(manifests))), (new,)
                return parallelism
            except NotAligned:
                parallelism = parallelism_of(manifests[checkpoint]["handles"])
        known = {number: parallelism_of(manifest["handles"]) for number, manifest in sorted(manifests.items())}
        restore.available = tuple(CheckpointId(number) for number, count in known.items() if count == parallelism)
        restore.older = tuple(CheckpointId(number) for number, count in known.items() if count != parallelism)
        self.durable.parallelism = parallelism
        return parallelism

    def _wanted(self, restore: Restore, checkpoint: CheckpointId | None, parallelism: int) -> int:
        """The parallelism at which a user resumes the job, who wants another one. Raises ``Unavailable``."""
        if not self.parameters.at_once:
            return parallelism
        if checkpoint is None or not self.commits.close_output(restore.generation, checkpoint):
            self.counts["refused_resumes"] += 1
            restore.wanted = None if checkpoint is None else parallelism  # the job is rescaled when it runs
            return self.durable.parallelism
        self.counts["closed_resumes"] += 1
        return parallelism

    @property
    def own(self) -> tuple[int, ...]:
        """The slots that a deployment uses."""
        return tuple(range(self.options.parallelism)) if self.coordinator is None else self.coordinator._processes.own

    @property
    def parallelism(self) -> int:
        """The number of subtasks of each vertex that the coordinator deploys."""
        return self.options.parallelism if self.coordinator is None else self.coordinator.parts.deployment.parallelism

    @property
    def next_generation(self) -> int:
        """The subtasks of later deployments have no lower generation."""
        if self.coordinator is None:
            return self.generations_of(self._runs - 1)  # no process of an earlier run lives
        return self.coordinator.parts.machines.job._newest_used + 1

    @staticmethod
    def _limit_in_flight(machine: CheckpointCoordinator, size_bytes: int) -> None:
        machine._config = replace(
            machine._config, in_flight_slot_bytes=size_bytes, in_flight_job_bytes=JOB_SLOTS * size_bytes
        )

    def crash_driver(self) -> None:
        """The driver is gone, and Spark's tasks with it; somebody resumes the job."""
        if self.coordinator is None or self.ended is not None:
            return
        self.note("driver crashes")
        self.counts["driver_crashes"] += 1
        for worker in self._workers:
            worker.closed = True
        self._resume("its driver is gone")

    def _resume(self, why: str) -> None:
        """Nothing of this run is left but what its storage worker may still do, and the job is resumed."""
        self._resumes += 1
        self.moves.clear()
        self.checks.plans({})
        self.coordinator = None
        self._timer_ms = None
        for process in list(self.processes.values()):
            process.paused = False
            process.end(why)
        self.at(self.now_ms + 50, self.start_driver)

    def generations_of(self, run: int) -> int:
        """The generations of earlier runs are before this one."""
        return run * GENERATIONS_PER_RUN + 1

    def coordinator_turns(self, event: Any = None) -> None:
        """The coordinator takes ``event``, and whatever else there is for it."""
        coordinator = self.coordinator
        if coordinator is None or self.ended is not None:
            return
        self._beat_for_the_healthy(coordinator)
        inbox: Any = coordinator._inbox
        pending = [event] if event is not None else []
        first = True
        due_ms = self._due_ms
        while pending or first or inbox:
            first = False
            taken = pending.pop() if pending else (inbox.popleft() if inbox else None)
            coordinator.turn(taken, due_ms)
            if self.moves:
                self._look_at_moves()
            if self.savepoints.open:
                self.savepoints.look()
            if self.rescale_faults:
                self._look_at_rescale(coordinator)
            self._due_ms = due_ms = coordinator.next_deadline_ms()
            if coordinator.result.state is not None:
                self._job_ended(coordinator)
                return
        if due_ms is not None and (self._timer_ms is None or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            self.at(max(self.now_ms, due_ms), self._timer, coordinator, due_ms)

    def _look_at_rescale(self, coordinator: Coordinator) -> None:
        """Faults that wait for a phase of a rescale strike when it begins."""
        before, self._rescale_phase = self._rescale_phase, rescale_phase(coordinator)
        if self._rescale_phase == before:
            return
        for fault in [one for one in self.rescale_faults if phase_and_kind(one)[0] == self._rescale_phase]:
            self.rescale_faults.remove(fault)
            late_ms = self.rng_divided.choice((0, 0, 1, 3, 8, 20))
            kind, duration_ms = phase_and_kind(fault)[1], fault.duration_ms
            if kind == "hang_storage":
                duration_ms = HANGS_MS[duration_ms % len(HANGS_MS)]
            struck = Fault(self.now_ms + late_ms, kind, fault.target, duration_ms)
            self.at(struck.at_ms, self.faults.strike, struck)

    def _timer(self, coordinator: Coordinator, due_ms: int) -> None:
        if coordinator is self.coordinator:
            if self._timer_ms == due_ms:
                self._timer_ms = None
            self.coordinator_turns()

    def _beat_for_the_healthy(self, coordinator: Coordinator) -> None:
        if self._beaten_ms == self.now_ms:
            return
        self._beaten_ms = self.now_ms
        now_s = self.clock.monotonic()
        for process in coordinator._processes._processes.values():
            if not self._connections[process.connection].paused:
                process.heard_s = now_s

    def beat(self) -> None:
        """Have the coordinator look for silent slots as long as there may be any."""
        if not self._beating:
            self._beating = True
            self.at(self.now_ms + BEAT_MS, self._beat)

    def _beat(self) -> None:
        self._beating = False
        self.coordinator_turns()
        if any(process.paused for process in self.processes.values()):
            self.beat()

    def _job_ended(self, coordinator: Coordinator) -> None:
        state, error = coordinator.result.state, coordinator.result.error
        self.endings.job_over(coordinator)
        self.savepoints.job_over(coordinator)
        for name, count in coordinator.view.failovers().items():
            if isinstance(count, int):
                self.counts[name] += count
        allowed = any(reason in str(error) for reason in ALLOWED_ENDS) and NEVER_AN_END not in str(error)
        crashed = self.deadly is not None and isinstance(getattr(error, "__cause__", None), ProcessCrashed)
        if state not in (JobState.FINISHED, JobState.STOPPED) and not allowed and not crashed:
            raise Violation("progress", f"the job ended {state}: {error}")
        if not self.storage_hangs:
            self._workers[0].work_off()
            self.commits.end(state is JobState.FINISHED)
            self.checks.no_state_left()
        if state is JobState.FINISHED:
            self._end("finished")
            return
        if crashed:
            self._end(f"failed: {error}")
            return
        if state is JobState.STOPPED:
            self.note("the job has stopped, and another one begins with its savepoint")
            self.savepoints.begin_anew(coordinator)
            self._resume("its job is over")
            return
        self.note("the job has failed, and is resumed: %s", error)
        self.counts["failed"] += 1
        self._resume("its job is over")

    def _end(self, how: str) -> None:
        self.note("the job is %s", how)
        self.ended = how

    @property
    def failover(self) -> FailoverProtocol | None:
        return None if self.coordinator is None else self.coordinator.parts.machines.failover

    def process_of(self, slot: int) -> SimSlot | None:
        """The process that the coordinator takes for ``slot``, if it lives."""
        if self.coordinator is None:
            return None
        known = self.coordinator._processes.get(slot)
        process = None if known is None else self._connections[known.connection]
        return process if process is not None and process.alive else None

    def is_at_work(self, subtask: Any) -> bool:
        """Whether the coordinator takes this for the active one."""
        coordinator = self.coordinator
        if coordinator is None or self.process_of(subtask.slot.index) is not subtask.slot:
            return False
        deployment = coordinator.parts.deployment
        return deployment.generations.get(subtask.id) == subtask.generation and self.checks.is_at_work(subtask)

    def storage_ms(self) -> int:
        return self.rng_storage.choice((0, 1, 3, 10, 60) if self.storage_fails else (0, 1, 3, 10))

    def registry_ms(self) -> int:
        return self.rng_storage.choice((1, 2, 3, 8))

    # --- processes

    def host_of(self, slot: int) -> str:
        """Where the next process of ``slot`` is started."""
        return f"host{self._moved.get(slot, slot) // self.parameters.hosts}"

    def ended_by_input(self, process: SimSlot, subtask: SubtaskId, message: Message) -> None:
        """``process`` is about to end at a row of ``message``. Its last words reach the driver a little later."""
        self.counts["ended_by_input"] += 1
        drivers = 1 + self._resumes
        self._ended_in[subtask] += 1
        if self._ended_in[subtask] > MAX_ENDED_BY_INPUT * drivers:
            raise Violation("progress", f"{self.deadly} has ended {self._ended_in[subtask]} processes in {subtask}")
        numbers = [0] * FIELDS
        vertex = [vertex.name for vertex in self.graph.vertices].index(subtask.vertex)
        numbers[SUBTASK], numbers[OPERATOR] = 1 + vertex * process.parallelism + subtask.index, 1 + vertex
        numbers[EDGE], numbers[PRODUCER], numbers[SEQ] = 1 + message.channel.edge, message.channel.producer, message.seq
        text = str(self.deadly) if process.notes_rows else ""
        words = LastWords(f"process {process.process}", tuple(numbers), text, "")
        self.at(self.now_ms + self.rng_spark.randint(1, 30), self.coordinator_turns, words)

    def rehost(self, slot: int, other: int) -> None:
        self._moved[slot] = (slot + other) % self.parameters.parallelism

    def start_process(self, slot: int, run: int) -> None:
        """Spark starts an attempt."""
        if self.coordinator is None or run != self._runs or self.ended is not None:
            return
        number = len(self._connections) + 1
        self.note("slot %s: process %s starts", slot, number)
        self.processes[number] = SimSlot(self, slot, number)

    def _leave(self, process: SimSlot) -> None:
        """What a process that has died had on its disk stays there."""
        if self.parameters.keeps_disks:
            left = self._left.setdefault((process.index, process.host), {})
            for subtask, files in process.standbys.remains().items():
                left[subtask] = {**left.get(subtask, {}), **files}

    def take_left(self, slot: SimSlot) -> dict[str, dict[str, bytes]]:
        """The state files that dead processes of a slot have left on its host; some of them torn or altered."""
        found = self._left.pop((slot.index, slot.host), {})
        for files in found.values():
            for name, data in files.items():
                if self.rng_left.random() < self.parameters.left_damaged:
                    files[name] = damaged(data, self.rng_left)
        return found

    def connect(self, slot: SimSlot) -> int:
        """A process has a stream to the coordinator."""
        connection = len(self._connections) + 1
        self._connections[connection] = slot
        return connection

    def process_at(self, address: str) -> SimSlot | None:
        return self.processes.get(int(address))

    def on_slot(self, slot: int) -> list[SimSlot]:
        """The living processes of a slot: more than one when there is a zombie."""
        return [process for process in self.processes.values() if process.index == slot]

    def process_ended(self, process: SimSlot, restart: bool = True) -> None:
        if restart:
            self.deadlines.struck(DIED)
            self.died.update(names_of(self, process))
            self._leave(process)
        self._forget(process)
        self.at(self.now_ms + 1, self._connection_lost, process.connection, "stream closed")
        for other in list(self.processes.values()):
            if other.data.targets(process) and not self.is_silent(process.index, other.index):
                other.later(self.rng_network.randint(1, 4), other.data.broke, process.index)
        if restart and not self.on_slot(process.index):
            self.at(self.now_ms + self.rng_spark.randint(3, 60), self._restart, process.index, self._runs)

    def _restart(self, slot: int, run: int) -> None:
        if not self.on_slot(slot) and slot not in self._over:
            self.start_process(slot, run)

    def process_stopped(self, process: SimSlot) -> None:
        self.process_ended(process, restart=False)

    def _forget(self, process: SimSlot) -> None:
        del self.processes[process.process]

    # --- commands

    def migrate(self, subtask: SubtaskId, slot: int) -> None:
        """Somebody wants ``subtask`` on ``slot``."""
        if self.coordinator is not None:
            self._request(self.coordinator.moves.migrate(subtask, slot), subtask, slot)
            self.coordinator_turns()

    def drain(self, host: str, force: bool) -> None:
        if self.coordinator is not None:
            self._request(self.coordinator.moves.drain_host(host, force), host, 0)
            self.coordinator_turns()

    def undrain(self, host: str) -> None:
        if self.coordinator is not None:
            self.coordinator.moves.undrain_host(host)
            self.coordinator_turns()

    def scale(self, count: int, force: bool) -> None:
        if self.coordinator is not None:
            self._request(self.coordinator.moves.scale(count, force), count, 0)
            self.coordinator_turns()

    def rescale(self, parallelism: int) -> None:
        if self.coordinator is not None:
            self._request(self.coordinator.moves.rescale(parallelism), Parallelism(parallelism), 0)
            self.coordinator_turns()

    def _request(self, move: PlannedMove, what: Moved, slot: int) -> None:
        self.moves.append((move, what, slot))
        self.endings.requested(move)

    def start_spare(self, slot: int, run: int) -> None:
        """Spark is to run a spare slot; while the cluster is crowded, it has no room for it."""
        if run != self._runs or slot in self._over:
            return
        if self.crowded:
            self.at(self.now_ms + 200, self.start_spare, slot, run)
        else:
            self.start_process(slot, run)

    def end_spare(self, slot: int, graceful_ms: int, then: Callable[[], None], run: int) -> None:
        """Spark is not to run it any more, if that has not ended before. One that is just being started may still
        come."""
        self._over.add(slot)
        if self.rng_spark.random() < 0.2:
            self.at(self.now_ms + self.rng_spark.randint(3, 60), self.start_process, slot, run)
        self.at(self.now_ms + 1, self._spare_ends, slot, self.now_ms + graceful_ms, then, run)

    def _spare_ends(self, slot: int, until_ms: int, then: Callable[[], None], run: int) -> None:
        if run != self._runs or self.ended is not None:
            return
        for process in self.on_slot(slot):
            if self.now_ms < until_ms:
                self.at(self.now_ms + 5, self._spare_ends, slot, until_ms, then, run)
                return
            process.paused = False
            process.end("Spark ends its job")
        then()
        self.coordinator_turns()

    def _look_at_moves(self) -> None:
        """What is said to be done is checked, once."""
        for move in [move for move in self.moves if move[0].status not in (None, "under_way")]:
            self.moves.remove(move)
            planned, what, slot = move
            kind = KINDS[type(what)]
            self.note("%s: %s", planned, planned.reason)
            self.counts[f"{kind}_{planned.status}"] += 1
            if planned.status == "done":
                self.checks.moved(what, slot)

    # --- control streams

    def report(self, slot: SimSlot, message: control.ControlMessage) -> None:
        self.note("%s says %s", slot, message)
        at_ms = max(self._up_ms.get(slot.connection, 0), self.now_ms + self.rng_network.randint(0, 2))
        self._up_ms[slot.connection] = at_ms
        self.at(at_ms, self._heard, slot.connection, message, self.coordinator)

    def _heard(self, connection: int, message: control.ControlMessage, coordinator: Coordinator) -> None:
        if coordinator is not self.coordinator:
            return
        reports = coordinator.parts.reports
        try:
            self.coordinator_turns(ControlArrived(connection, message, self.now_ms / 1000))
        except PeerProtocolError as error:
            raise Violation("progress", f"{message} of {reports}: {error}") from error

    def order(self, connection: int, message: control.ControlMessage) -> None:
        slot = self._connections[connection]
        if isinstance(message, control.Trim):
            self.checks.trims(message.version)
        elif isinstance(message, control.Chains):
            self.checks.plans(message.chains)
        elif isinstance(message, control.Join):
            self.checks.joins(slot)
        elif isinstance(message, control.Deploy):
            self.checks.plans({})  # all begin anew
            self.checks.deployed(message.assignment)
        at_ms = max(self._down_ms.get(connection, 0), self.now_ms + self.rng_network.randint(0, 2))
        if self.breaks_at_join and isinstance(message, control.Connect):
            at_ms += self._break_at_join(slot, message)
        self._down_ms[connection] = at_ms
        if connection not in self._dropped:
            self.at(at_ms, slot.event, slot.obey, message)

    def _break_at_join(self, slot: SimSlot, order: control.Connect) -> int:
        """A slot is about to be told of a newcomer, a little late: one of its streams to others breaks before, with
        something on it. Returns how late, in milliseconds."""
        known = [address for _, address in order.addresses.values()]
        stays = [stream for stream in slot.data.streams.values() if str(stream.target.process) in known]
        if not stays or self.healed:
            return 0
        self.rng_network.choice(stays).fragile_until_ms = self.now_ms + LATE_MS
        return LATE_MS + 1

    def drop(self, connection: int) -> None:
        """The coordinator closes a control stream; a zombie hears of it when it looks."""
        self._dropped.add(connection)
        slot = self._connections[connection]
        at_ms = max(self._down_ms.get(connection, 0), self.now_ms + 1)
        self.at(at_ms, slot.event, slot.control_lost)
        if slot.paused and self.rng_spark.random() < 0.5:
            # Spark gives the executor up as well: another one takes its place while the old one is not dead yet.
            self.counts["zombies"] += 1
            self.at(self.now_ms + self.rng_spark.randint(3, 60), self.start_process, slot.index, self._runs)

    def _connection_lost(self, connection: int, reason: str) -> None:
        self.coordinator_turns(ControlLost(connection, reason, self.now_ms / 1000))

    def lose_control(self, process: SimSlot) -> None:
        """The control stream breaks; each end sees it in its own time."""
        self.at(self.now_ms + self.rng_network.randint(0, 30), self._connection_lost, process.connection, "cut")
        process.later(self.rng_network.randint(0, 30), process.control_lost)

    # --- ZooKeeper's sessions

    def expire_session(self, process: SimSlot) -> None:
        """ZooKeeper takes a slot for dead; both sides hear of it, late or never as watches are."""
        if not self.options.local or process.incarnation == 0:
            return
        late_ms = self.rng_network.choice((0, 2, 20))
        if self.watches_late:
            late_ms = self.rng_network.choice((200, 3_000))
        record = SlotRecord(str(process.process), process.host, process.process, process.incarnation)
        told = RegistryReported(SlotNodeGone(process.index, record))
        self.at(self.now_ms + late_ms, self.coordinator_turns, told)
        process.later(self.rng_network.choice((0, 5, 50)), process.session_expired)

    # --- the network

    def latency_ms(self, start: int, end: int) -> int:
        most = self.parameters.latency_ms
        return self.rng_network.randint(0, most * 20 if self._slow.get((start, end)) else most)

    def is_cut(self, start: int, end: int) -> bool:
        return self._cuts[start, end] > 0

    def cut(self, start: int, end: int, by: int) -> None:
        self._cuts[start, end] += by
        if by > 0:
            for process in self.on_slot(start):
                process.data.broke(end)

    def is_silent(self, start: int, end: int) -> bool:
        """Whether nothing arrives that goes this way."""
        return self._silences[start, end] > 0

    def silence(self, ways: list[tuple[int, int]], by: int) -> None:
        """What goes these ways does not arrive (any more, or again); by and by both ends find out."""
        for way in ways:
            self._silences[way] += by
        if by < 0:
            for process in list(self.processes.values()):
                process.data.hear_again()

    def is_garbled(self, start: int, end: int) -> bool:
        """Whether frames that go this way cannot be read."""
        return self._garbles[start, end] > 0

    def garble(self, start: int, end: int, by: int) -> None:
        self._garbles[start, end] += by

    def forge(self, process: SimSlot, victim: int, message: Message) -> None:
        """``process`` sends what is another's to send."""
        self.note("%s sends slot %s a forged %s on %s", process, victim, message.kind.name, message.channel)
        self.counts["forged"] += 1
        self.forged.add((process.index, victim))
        process.data.send(victim, message)

    def slow(self, start: int, end: int, by: int) -> None:
        self._slow[start, end] += by

    def reach(self, point: str, slot: SimSlot, name: SubtaskId) -> None:
        """A point at which a fault may strike."""
        if slot.doom is not None and slot.doom[0] == point:
            _, delay_ms, count = slot.doom
            slot.doom = None if count == 1 else (point, delay_ms, count - 1)
            if count == 1:
                slot.later(delay_ms, slot.end, f"it is killed at {point} of {name}")
        if self.on_point is not None:
            self.on_point(point, slot, name)

    def record_of(self, subtask: SubtaskId) -> ChainEntry | None:
        return self.registry.records.get(subtask)


def mode_of(parameters: Parameters) -> str:
    """How checkpoints are taken."""
    if parameters.aligned_timeout_ms is not None:
        return "unaligned"
    return "synchronous" if parameters.synchronous else "aligned"


def options_of(parameters: Parameters) -> Options:
    """The job's options, with limits that fit the simulated world's pace."""
    return Options(
        parallelism=parameters.parallelism,
        checkpoint_interval=parameters.interval_ms / 1000,
        checkpoint_min_pause=parameters.min_pause_ms / 1000,
        checkpoint_timeout=2.0,
        max_concurrent_checkpoints=parameters.max_concurrent,
        checkpoint_mode=mode_of(parameters),
        aligned_timeout=None if parameters.aligned_timeout_ms is None else parameters.aligned_timeout_ms / 1000,
        guarantee=parameters.guarantee,
        recovery=parameters.recovery,
        replicas=parameters.replicas,
        placement=parameters.placement,
        sharing_depth=parameters.sharing_depth,
        failback=parameters.failback,
        session_timeout=SESSION_TIMEOUT_MS / 1000,
        max_restarts=parameters.max_restarts,
        max_slot_losses=100_000,
        heartbeat_interval=0.1,
        heartbeat_timeout=HEARTBEAT_TIMEOUT_S,
        window=parameters.window,
    )
