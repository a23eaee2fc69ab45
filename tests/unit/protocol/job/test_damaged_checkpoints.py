"""The machines of a job and of its checkpoints together, on a storage that fails and damages what it holds.

Everything is drawn from a seed: slots and drivers die, subtasks throw, a store or a commit is refused, or happens and
is reported as refused, a complete checkpoint turns out to be damaged when it is restored. Then the job goes back
further, and output that was visible is taken back.

Why this is not in ``tests/simulation``: no checkpoint is damaged there, so no output is ever taken back. Here subtasks
only read, without channels between them; barriers, credit and consistent cuts are checked there.

Checked at every step: no row is committed twice, and deadlines lie ahead. At the end: once faults cease the job
finishes, and its output is that of a run without failures.
"""

from __future__ import annotations

import copy
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.vocabulary import effects as order
from flinkplus.protocol.vocabulary import events as event
from flinkplus.protocol.vocabulary.config import CheckpointConfig, RecoveryConfig
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from tests.examples import examples

Record = tuple[int, int]  # (subtask, number)


@dataclass
class Work:
    """So many subtasks, each of which writes so many records."""

    subtasks: tuple[SubtaskId, ...]
    records: int

    def expected(self) -> Counter[Record]:
        return Counter((subtask.index, n) for subtask in self.subtasks for n in range(self.records))


def random_work(rng: random.Random) -> Work:
    return Work(tuple(SubtaskId("lines", index) for index in range(rng.randint(1, 4))), rng.choice([0, 5, 40]))


@dataclass
class State:
    """What a snapshot holds."""

    position: int = 0
    staged: dict[str, list[Record]] = field(default_factory=dict)  # file -> records, not known to be complete
    open_file: list[Record] = field(default_factory=list)


@dataclass
class Storage:
    """What outlives a driver."""

    manifests: dict[CheckpointId, dict[SubtaskId, State]] = field(default_factory=dict)
    corrupt: set[CheckpointId] = field(default_factory=set)
    batches: dict[CheckpointId, dict[str, list[Record]]] = field(default_factory=dict)
    newest_id: int = 0
    newest_generation: int = 0

    def commit(self, checkpoint: CheckpointId) -> None:
        known = {name for batch in self.batches.values() for name in batch}
        handles = self.manifests[checkpoint]
        new = {name: rows for state in handles.values() for name, rows in state.staged.items() if name not in known}
        self.batches.setdefault(checkpoint, {}).update(new)

    def retract_after(self, checkpoint: CheckpointId | None) -> None:
        self.batches = {known: batch for known, batch in self.batches.items() if known <= (checkpoint or 0)}

    def resume(self) -> CheckpointId | None:
        """Go on from the newest sound checkpoint: what is complete up to it is committed, what came later is void."""
        restore = max((known for known in self.manifests if known not in self.corrupt), default=None)
        kept = sorted(known for known in self.manifests if known <= (restore or 0))
        for checkpoint in kept:
            self.commit(checkpoint)
        self.manifests = {known: self.manifests[known] for known in kept if known not in self.corrupt}
        self.retract_after(restore)
        return restore

    def output(self) -> Counter[Record]:
        return Counter(row for batch in self.batches.values() for rows in batch.values() for row in rows)


class Subtask:
    """One subtask of one generation."""

    def __init__(self, process: Process, subtask: SubtaskId, generation: Generation, state: State) -> None:
        self.process, self.id, self.generation, self.state = process, subtask, generation, state
        self.running = self.exhausted = False
        self.triggers: deque[CheckpointId] = deque()

    def step(self, rng: random.Random) -> None:
        if not self.running:
            return
        if self.triggers and rng.random() < 0.5:
            self.take_snapshot(self.triggers.popleft())
        elif self.state.position < self.process.cluster.work.records:
            self.state.open_file.append((self.id.index, self.state.position))
            self.state.position += 1
        elif not self.exhausted:
            self.exhausted = True
            self.process.tell(event.SourceExhausted(self.id, self.generation))

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        if self.state.open_file:
            self.state.staged[f"{self.id}-{self.generation}-{checkpoint}"] = self.state.open_file
            self.state.open_file = []
        self.process.cluster.later(partial(self.persist, checkpoint, copy.deepcopy(self.state)))

    def persist(self, checkpoint: CheckpointId, frozen: State) -> None:
        if self.process.cluster.unlucky(0.1):
            self.process.tell(event.CheckpointDeclined(checkpoint, self.id, self.generation, "disk"))
        else:
            self.process.tell(event.CheckpointAcknowledged(checkpoint, self.id, self.generation, frozen))

    def abort(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self.triggers:
            self.triggers.remove(checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        kept = {name: rows for name, rows in self.state.staged.items() if int(name.split("-")[2]) > checkpoint}
        self.state.staged = kept


class Process:
    """One incarnation of a slot. A zombie (``connected`` false) goes on working, but the driver no longer hears it."""

    def __init__(self, cluster: Cluster, slot: int, incarnation: int) -> None:
        self.cluster, self.slot, self.incarnation = cluster, slot, incarnation
        self.connected = True
        self.inbox: deque[Callable[[], None]] = deque()
        self.outbox: deque[event.JobEvent | event.CheckpointingEvent] = deque()
        self.subtasks: dict[SubtaskId, Subtask] = {}
        self.tell(event.SlotRegistered(slot, incarnation))

    def tell(self, happened: event.JobEvent | event.CheckpointingEvent) -> None:
        self.outbox.append(happened)

    def deploy(self, what: order.DeploySubtasks, handles: dict[SubtaskId, State] | None) -> None:
        self.subtasks.clear()
        if what.restore is not None and handles is None:
            self.tell(event.CheckpointRestoreFailed(what.generation, what.restore, "corrupt"))
            return
        for subtask, slot in what.assignment:
            if slot == self.slot:
                state = copy.deepcopy(handles[subtask]) if handles is not None else State()
                state.staged.clear()  # committed, as the checkpoint is complete
                self.subtasks[subtask] = Subtask(self, subtask, what.generation, state)
        self.tell(event.SlotDeployed(what.generation, self.slot))

    def each(self, generation: Generation, action: Callable[[Subtask], None]) -> None:
        for subtask in self.subtasks.values():
            if subtask.generation == generation:
                action(subtask)

    def stop(self) -> None:
        self.subtasks.clear()
        self.tell(event.SlotStopped(self.slot))


class Cluster:
    """The driver, with everything it drives."""

    def __init__(self, rng: random.Random, work: Work, storage: Storage, recovery: RecoveryConfig, slots: int) -> None:
        self.rng, self.work, self.storage, self.now_ms, self.faults = rng, work, storage, 0, True
        self.danger = rng.choice([0.005, 0.02, 0.1])
        self.background_speed = rng.choice([0.02, 0.15])
        restore = storage.resume()
        available = tuple(sorted(storage.manifests))
        config = CheckpointConfig(
            interval_ms=rng.choice([None, 20, 60]),
            timeout_ms=rng.choice([80, 300]),
            min_pause_ms=rng.choice([0, 20]),
            final_retry_ms=rng.choice([0, 20]),
            max_concurrent=rng.randint(1, 3),
            retained=rng.randint(1, 3),
            commit_attempts=50,
            final_attempts=50,
            storage_timeout_ms=1_000_000,
        )
        self.coordinator = CheckpointCoordinator(config, CheckpointId(storage.newest_id + 1), available)
        self.job = JobProtocol(
            work.subtasks,
            slots,
            recovery,
            started_ms=0,
            restore_from=restore,
            available=available,
            first_generation=Generation(storage.newest_generation + 1),
        )
        self.inbox: deque[event.JobEvent | event.CheckpointingEvent] = deque()
        self.background: list[Callable[[], None]] = []
        self.incarnations = [0] * slots
        self.processes: list[Process] = []
        self.ended: order.EndJob | None = None
        for slot in range(slots):
            self.later(partial(self.spark_starts, slot))

    # -- helpers of the parts ------------------------------------------------------------------------------

    def later(self, action: Callable[[], None]) -> None:
        self.background.append(action)

    def unlucky(self, probability: float) -> bool:
        return self.faults and self.rng.random() < probability

    def spark_starts(self, slot: int) -> None:
        self.incarnations[slot] += 1
        self.processes.append(Process(self, slot, self.incarnations[slot]))

    def kill(self, process: Process, zombie: bool) -> None:
        process.connected = False
        if not zombie:
            self.processes.remove(process)
        lost = event.SlotLost(process.slot, process.incarnation, "killed")
        self.later(lambda: self.inbox.append(lost))
        self.later(lambda: self.spark_starts(process.slot))

    # -- driving ---------------------------------------------------------------------------------------------

    def drain_inbox(self) -> None:
        """One inbox, in order: this is what keeps "complete" before "drained" and "running" before "exhausted"."""
        while self.inbox:
            happened = self.inbox.popleft()
            if isinstance(happened, event.JobEvent):
                for job_effect in self.job.step(self.now_ms, happened):
                    self.obey_job(job_effect)
            if isinstance(happened, event.CheckpointingEvent):
                for effect in self.coordinator.step(self.now_ms, happened):
                    self.obey_coordinator(effect)
        for machine in (self.job, self.coordinator):
            deadline = machine.next_deadline_ms()
            assert deadline is None or deadline > self.now_ms

    def obey_job(self, effect: order.JobEffect) -> None:
        match effect:
            case order.InterruptCheckpoints():
                self.inbox.append(event.JobInterrupted())
            case event.QuiesceRequested():
                self.inbox.append(effect)
            case order.RetractOutputAfter(checkpoint):
                self.inbox.append(event.CheckpointsAbandoned(checkpoint))
                self.later(lambda: self.retract(checkpoint))
            case order.DeploySubtasks(generation, restore):
                self.storage.newest_generation = generation
                good = restore is not None and restore not in self.storage.corrupt
                handles = self.storage.manifests[restore] if restore is not None and good else None
                self.send_all(lambda process: process.deploy(effect, handles))
            case order.StartSubtasks(generation):
                self.inbox.append(event.SubtasksStarted(self.work.subtasks, self.work.subtasks, generation))
                self.send_all(lambda process: process.each(generation, start))
            case order.HaltSubtasks(generation):
                self.send_all(lambda process: process.each(generation, halt))
            case order.EvictSlot(slot):
                for process in self.connected():
                    if process.slot == slot:
                        self.kill(process, zombie=False)
            case order.StopSlots():
                self.send_all(lambda process: process.stop())
            case order.EndJob():
                assert self.ended is None
                self.ended = effect
            case order.RecordRollbackPhase():
                pass

    def obey_coordinator(self, effect: order.CheckpointingEffect) -> None:
        match effect:
            case order.TriggerCheckpoint(checkpoint, _, _, generation):
                self.storage.newest_id = checkpoint
                self.send_all(lambda process: process.each(generation, lambda s: s.triggers.append(checkpoint)))
            case order.AbortCheckpoint(checkpoint, _, generation):
                self.send_all(lambda process: process.each(generation, lambda s: s.abort(checkpoint)))
            case order.StoreManifest(checkpoint, handles):
                self.later(lambda: self.store(checkpoint, handles))
            case order.CompleteCheckpoint(checkpoint, generation):
                self.inbox.append(event.CheckpointCompleted(checkpoint))
                self.send_all(lambda process: process.each(generation, lambda s: s.completed(checkpoint)))
            case order.CommitOutput(checkpoint):
                self.later(lambda: self.commit(checkpoint))
            case order.DropCheckpoint(checkpoint):
                self.storage.manifests.pop(checkpoint, None)
                self.inbox.append(event.CheckpointDropped(checkpoint))
            case event.FinalCommitted() | event.FinalAbandoned() | event.CommitAbandoned() | event.CommitsQuiesced():
                self.inbox.append(effect)
            case order.RecordCheckpoint():
                pass

    def connected(self) -> list[Process]:
        return [process for process in self.processes if process.connected]

    def send_all(self, action: Callable[[Process], None]) -> None:
        for process in self.connected():
            process.inbox.append(partial(action, process))

    # -- storage -----------------------------------------------------------------------------------------------

    def store(self, checkpoint: CheckpointId, handles: tuple[tuple[SubtaskId, object], ...]) -> None:
        failed = self.unlucky(0.15)
        if not failed or self.rng.random() < 0.5:  # a store may be reported as failed and have happened
            states = {subtask: state for subtask, state in handles if isinstance(state, State)}
            assert tuple(sorted(states)) == tuple(sorted(self.work.subtasks))
            self.storage.manifests[checkpoint] = states
            if self.unlucky(0.3):
                self.storage.corrupt.add(checkpoint)
        self.inbox.append(event.ManifestFailed(checkpoint, "403") if failed else event.ManifestStored(checkpoint))

    def commit(self, checkpoint: CheckpointId) -> None:
        failed = self.unlucky(0.15)
        if not failed or self.rng.random() < 0.5:
            self.storage.commit(checkpoint)
        self.inbox.append(event.CommitFailed(checkpoint, "403") if failed else event.OutputCommitted(checkpoint))
        assert self.storage.output() <= self.work.expected(), "committed twice"

    def retract(self, checkpoint: CheckpointId | None) -> None:
        self.storage.retract_after(checkpoint)
        self.inbox.append(event.OutputRetracted(checkpoint))

    # -- scheduling ----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """One random thing happens."""
        rng = self.rng
        choice = rng.random()
        if choice < (self.background_speed if self.faults else 0.15) and self.background:
            self.background.pop(rng.randrange(len(self.background)))()
        elif choice < 0.75 and self.processes:
            process = rng.choice(self.processes)
            if process.inbox and rng.random() < 0.5:
                process.inbox.popleft()()
            elif process.outbox and rng.random() < 0.5:
                happened = process.outbox.popleft()
                if process.connected:
                    self.inbox.append(happened)
            elif process.subtasks:
                rng.choice(list(process.subtasks.values())).step(rng)
        elif choice < 0.90:
            self.now_ms += rng.randint(0, 3 if self.faults else 1)  # healed: fast enough for any timeout
            self.inbox += [event.TimeAdvanced()]
        elif self.faults:
            self.fault()
        self.drain_inbox()

    def fault(self) -> None:
        rng = self.rng
        victims = self.connected()
        choice = rng.random()
        if choice < self.danger and victims:
            self.kill(rng.choice(victims), zombie=rng.random() < 0.3)
        elif choice < 2 * self.danger and victims:
            process = rng.choice(victims)
            if process.subtasks:
                subtask = rng.choice(list(process.subtasks.values()))
                process.tell(event.SubtaskFailed(subtask.id, subtask.generation, "boom"))
                subtask.running = False
        elif choice < 0.3:
            self.inbox.append(event.CheckpointRequested())
        elif choice < 0.35:
            self.now_ms += 400
            self.inbox.append(event.TimeAdvanced())


def start(subtask: Subtask) -> None:
    subtask.running = True


def halt(subtask: Subtask) -> None:
    subtask.running = False


GENEROUS = RecoveryConfig(
    max_restarts=10_000,
    max_slot_losses=10_000,
    slot_timeout_ms=100_000,
    restart_slot_timeout_ms=100_000,
    deploy_timeout_ms=2_000,
    backoff_first_ms=5,
    backoff_max_ms=20,
    quiesce_timeout_ms=1_000_000,
    stop_timeout_ms=1_000,
)


def run(seed: int, recovery: RecoveryConfig = GENEROUS, fault_turns: int = 3_000, crashes: bool = False) -> Cluster:
    rng = random.Random(seed)
    work, storage, slots = random_work(rng), Storage(), rng.randint(1, 3)
    cluster = Cluster(rng, work, storage, recovery, slots)
    for _ in range(rng.randrange(fault_turns)):
        cluster.turn()
        if crashes and cluster.ended is None and rng.random() < 0.002:
            cluster = Cluster(rng, work, storage, recovery, slots)
    cluster.faults = False
    for _ in range(60_000):
        if cluster.ended is not None:
            break
        cluster.turn()
    assert cluster.ended is not None, f"seed {seed}: hangs in {cluster.job.state}"
    return cluster


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_output_is_exactly_that_of_a_run_without_failures(seed: int) -> None:
    cluster = run(seed)
    assert cluster.ended is not None
    assert cluster.ended.state is JobState.FINISHED, cluster.ended
    assert cluster.storage.output() == cluster.work.expected()


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_a_driver_that_dies_at_any_time_can_be_resumed(seed: int) -> None:
    cluster = run(seed, crashes=True)
    assert cluster.ended is not None
    assert cluster.ended.state is JobState.FINISHED, cluster.ended
    assert cluster.storage.output() == cluster.work.expected()


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32))
def test_with_a_small_budget_the_job_ends_one_way_or_the_other(seed: int) -> None:
    cluster = run(seed, RecoveryConfig(max_restarts=1, max_slot_losses=1, stop_timeout_ms=100, backoff_first_ms=5))
    assert cluster.ended is not None
    assert cluster.ended.state in (JobState.FINISHED, JobState.FAILED)
    if cluster.ended.state is JobState.FINISHED:
        assert cluster.storage.output() == cluster.work.expected()
    else:
        assert cluster.ended.reason


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 400))
def test_cancelled_at_any_time_it_ends_and_what_is_complete_is_committed(seed: int, turns: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(rng, random_work(rng), Storage(), GENEROUS, 2)
    cluster.faults = False
    for _ in range(turns):
        cluster.turn()
    cluster.inbox.append(event.CancelRequested())
    for _ in range(20_000):
        if cluster.ended is not None:
            break
        cluster.turn()
    assert cluster.ended is not None
    assert cluster.ended.state in (JobState.CANCELLED, JobState.FINISHED)
    if cluster.storage.manifests:
        before = cluster.storage.output()
        cluster.storage.resume()
        assert cluster.storage.output() == before


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_tells_the_same_story(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert (first.now_ms, first.job.generation, first.storage.newest_id) == (
        second.now_ms,
        second.job.generation,
        second.storage.newest_id,
    )
