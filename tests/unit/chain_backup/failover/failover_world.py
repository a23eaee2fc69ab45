"""A small world around the failover machine: subtasks that compute, channels, standbys, a checkpoint coordinator, and
everything that can go wrong with them, all drawn from one seed.

What it models, and how:

- A subtask's step is a choice (a source: what to emit where, or a trigger; others: which input to take from), and
  everything it does follows from its choices. Messages carry the choices of their sender that their receiver has not
  been sent yet (sharing depth 1; the simulator in ``tests/simulation`` has the others).
- Every incarnation keeps its whole history beside its log. The log itself begins somewhere: asking for an older message
  is an error, as is a version that is nowhere, or two that should be the same and differ.
- Control messages are in order per slot, and late. A lost slot may go on for a while without knowing (a zombie).
- ZooKeeper answers in order, late, sometimes with a refusal, and at times for long not at all.
- Whoever is refused local failover rolls back: every subtask begins from the last complete version.

What is checked: at any time no two ends of a channel disagree about a message, and nothing of what was committed is
undone; at most one incarnation of a subtask is accepted by all; nobody is promoted that ZooKeeper does not know; in the
end, without further faults, no failover is left open and every message has arrived.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import (
    FailoverEffect,
    FallBack,
    FenceSlots,
    FinishFailover,
    FormChains,
    PromoteStandbys,
    RecordFailoverPhase,
    ReplaceInCheckpoints,
    ReportMove,
    TrimLogs,
    WriteRecords,
)
from chain_backup.failover.events import (
    CheckpointAborted,
    CheckpointCompleted,
    FailoverEvent,
    HeadPersisted,
    HostDrainRequested,
    HostUndrainRequested,
    JobStarted,
    MoveRequested,
    RecordsRefused,
    RecordsWritten,
    SlotFenced,
    SlotJoined,
    SlotLost,
    StandbyPromotionFailed,
    StandbysPromoted,
    SubtaskFailed,
    TimeAdvanced,
    VersionStaged,
)
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId

Choice = tuple[Any, ...]
Content = tuple[str, int]
Determinants = tuple[tuple[int, Choice], ...]


def channels_of(topology: Topology) -> tuple[ChannelId, ...]:
    """All channels, sorted."""
    return tuple(sorted(channel for subtask in topology.subtasks for channel in topology.outputs(subtask)))


@dataclass(frozen=True)
class Snapshot:
    """All of a subtask at a version: its choices, what it has taken (in order), what it has put out (whole)."""

    version: int
    steps: tuple[Choice, ...]
    taken: tuple[tuple[ChannelId, Content], ...]
    ins: tuple[tuple[ChannelId, int], ...]
    outs: tuple[tuple[ChannelId, tuple[Content, ...]], ...]
    shared: tuple[tuple[ChannelId, int], ...]
    state: int

    @property
    def cursors(self) -> VersionCursors:
        return VersionCursors(dict(self.ins), {channel: len(contents) for channel, contents in self.outs})


@dataclass
class Worker:
    """One incarnation of a subtask, at work."""

    subtask: SubtaskId
    generation: int
    slot: int
    steps: list[Choice]
    taken: list[tuple[ChannelId, Content]]
    ins: dict[ChannelId, int]
    outs: dict[ChannelId, list[Content]]
    shared: dict[ChannelId, int]
    state: int
    at: int
    log: dict[ChannelId, dict[int, tuple[Content, Determinants]]] = field(default_factory=dict)
    begin: dict[ChannelId, int] = field(default_factory=dict)
    inbox: dict[ChannelId, deque[Content]] = field(default_factory=dict)
    aligned: dict[ChannelId, None] = field(default_factory=dict)
    aligning: int = 0
    learned: dict[SubtaskId, dict[int, Choice]] = field(default_factory=dict)
    script: dict[int, Choice] = field(default_factory=dict)
    wanted: int = 0
    cursors_at: dict[int, dict[ChannelId, int]] = field(default_factory=dict)

    def received(self, channel: ChannelId) -> int:
        return self.ins[channel] + len(self.inbox[channel])

    def put(self, channel: ChannelId, content: Content) -> None:
        since = self.shared[channel]
        known = tuple((k, self.steps[k]) for k in range(since, len(self.steps)))
        self.log[channel][len(self.outs[channel])] = (content, known)
        self.shared[channel] = len(self.steps)
        self.outs[channel].append(content)

    def snapshot(self, version: int) -> Snapshot:
        self.at = version
        self.cursors_at[version] = {channel: len(contents) for channel, contents in self.outs.items()}
        return Snapshot(
            version,
            tuple(self.steps),
            tuple(self.taken),
            tuple(self.ins.items()),
            tuple((channel, tuple(contents)) for channel, contents in self.outs.items()),
            tuple(self.shared.items()),
            self.state,
        )


def work(topology: Topology, subtask: SubtaskId, generation: int, slot: int, snapshot: Snapshot) -> Worker:
    worker = Worker(
        subtask,
        generation,
        slot,
        list(snapshot.steps),
        list(snapshot.taken),
        dict(snapshot.ins),
        {channel: list(contents) for channel, contents in snapshot.outs},
        dict(snapshot.shared),
        snapshot.state,
        snapshot.version,
    )
    for channel in topology.outputs(subtask):
        worker.log[channel] = {}
        worker.begin[channel] = len(worker.outs[channel])
    worker.inbox = {channel: deque() for channel in topology.inputs(subtask)}
    worker.cursors_at[snapshot.version] = dict(worker.begin)
    if snapshot.version > 0:
        for channel in topology.outputs(subtask):  # the snapshot is taken before its barrier is sent
            worker.put(channel, ("barrier", snapshot.version))
    return worker


class World:
    """``run`` does everything: ``faults`` actions with faults, then whatever is needed without."""

    def __init__(self, seed: int, topology: Topology, slots: int, config: FailoverConfig) -> None:
        self.random = random.Random(seed)
        config = replace(config, sharing_depth=1)
        self.topology, self.slots, self.config = topology, slots, config
        self.channels = channels_of(topology)
        self.machine = FailoverProtocol(topology, slots, config)
        self.now_ms = 0
        self.story: list[str] = []
        self.workers: list[Worker] = []
        self.alive = [True] * slots  # as the coordinator knows
        self.running = [True] * slots  # the process
        self.deaf: set[int] = set()  # processes that answer nothing; never iterated
        self.known: list[dict[SubtaskId, int]] = [{} for _ in range(slots)]
        self.staged: list[dict[SubtaskId, dict[int, Snapshot]]] = [{} for _ in range(slots)]
        self.inbound: list[deque[Any]] = [deque() for _ in range(slots)]
        self.outbound: list[deque[Any]] = [deque() for _ in range(slots)]
        self.staging: deque[tuple[SubtaskId, int, Snapshot, int]] = deque()
        self.registry: deque[int] = deque()
        self.registry_away = False
        self.written: set[int] = set()  # never iterated
        self.durable: dict[tuple[SubtaskId, int], Snapshot] = {}
        self.newest: dict[SubtaskId, Snapshot] = {}
        self.formation: dict[SubtaskId, tuple[int, tuple[int, ...]]] = {}
        self.determinants: dict[int, dict[SubtaskId, dict[int, Choice]]] = {}
        self.pending = 0
        self.acked: dict[SubtaskId, None] = {}
        self.complete = 0
        self.checkpoints = 0
        self.committed: dict[SubtaskId, Snapshot] = {}
        self.counts = {"failovers": 0, "handovers": 0, "fallbacks": 0, "called_off": 0, "evicted": 0, "overlapped": 0}
        self.counts |= {"fenced_first": 0, "registry_silent": 0}
        self.counts |= {"refused": 0, "under_way": 0, "done": 0, "cancelled": 0}
        self.last_phase: RecordFailoverPhase | None = None
        self.finishing = False
        self.requests = 0
        self.asked: dict[int, str | SubtaskId] = {}
        self.drained: set[str] = set()
        self.throws = self.random.choice((1, 3, 10))
        """Exceptions for each lost slot."""
        for subtask in topology.subtasks:
            self.durable[subtask, 0] = Snapshot(
                0,
                (),
                (),
                tuple((channel, 0) for channel in topology.inputs(subtask)),
                tuple((channel, ()) for channel in topology.outputs(subtask)),
                tuple((channel, 0) for channel in topology.outputs(subtask)),
                7,
            )
        self.start()

    # ------------------------------------------------------------------------------------------- the coordinator

    def start(self) -> None:
        """Deploy all from the last complete version."""
        generation = self.machine.newest_generation + 1
        self.workers = []
        self.alive, self.running = [True] * self.slots, [True] * self.slots
        self.deaf.clear()
        self.known = [dict.fromkeys(self.topology.subtasks, generation) for _ in range(self.slots)]
        self.staged = [{} for _ in range(self.slots)]
        self.inbound = [deque() for _ in range(self.slots)]
        self.outbound = [deque() for _ in range(self.slots)]
        self.staging.clear()
        self.registry.clear()
        self.formation = {}
        self.pending, self.acked = 0, {}
        self.durable = {key: snapshot for key, snapshot in self.durable.items() if key[1] <= self.complete}
        for subtask in self.topology.subtasks:
            snapshot = self.durable[subtask, self.complete]
            self.newest[subtask] = snapshot
            self.workers.append(work(self.topology, subtask, generation, subtask.index % self.slots, snapshot))
            if self.complete == 0:
                for slot in range(self.slots):
                    self.staged[slot][subtask] = {0: snapshot}
        cursors = tuple((s, self.durable[s, self.complete].cursors) for s in self.topology.subtasks)
        hosts = tuple((slot, self.host(slot)) for slot in range(self.slots))
        self.event(JobStarted(Generation(generation), self.complete, cursors, hosts))

    def event(self, event: FailoverEvent) -> None:
        if not isinstance(event, TimeAdvanced | HeadPersisted | VersionStaged):
            self.story.append(f"{self.now_ms}: {event}"[:200])
        if isinstance(event, RecordsWritten):
            self.written.add(event.attempt)
        before = self.machine.newest_generation
        effects = self.machine.step(self.now_ms, event)
        assert self.machine.newest_generation >= before
        deadline = self.machine.next_deadline_ms()
        assert deadline is None or deadline > self.now_ms, "a driver would spin"
        if isinstance(event, RecordsWritten) and any(isinstance(effect, PromoteStandbys) for effect in effects):
            self.counts["fenced_first"] += 1
        for effect in effects:
            self.obey(effect)

    def obey(self, effect: FailoverEffect) -> None:
        if not isinstance(effect, FormChains):
            self.story.append(f"    {effect}"[:300])
        match effect:
            case WriteRecords(attempt):
                if attempt is not None:
                    self.registry.append(attempt)
            case FormChains(chains):
                self.form(chains)
            case FenceSlots(attempt, _, _, slots):
                self.determinants = {attempt: {}}
                assert all(self.alive[slot] for slot in slots)
                for slot in slots:
                    self.inbound[slot].append(effect)
            case PromoteStandbys(attempt, _, slot, subtasks):
                assert self.alive[slot]
                assert attempt in self.written, "a head that ZooKeeper does not know"
                scripts = {subtask: self.determinants[attempt].get(subtask, {}) for subtask, _ in subtasks}
                self.inbound[slot].append((effect, scripts))
                for subtask, version in subtasks:
                    self.newest[subtask] = self.find(slot, subtask, version)
                    for standbys in self.staged:
                        kept = {v: s for v, s in standbys.get(subtask, {}).items() if v <= version}
                        standbys[subtask] = kept
            case ReplaceInCheckpoints(subtasks):
                self.replace(dict(subtasks))
            case EvictSlot(slot):
                self.counts["evicted"] += 1
                self.end_process(slot)
                self.alive[slot] = False
            case RecordFailoverPhase():
                if self.last_phase is not None and (effect.phase, self.last_phase.phase) == ("detect", "restore"):
                    self.counts["overlapped"] += 1
                self.last_phase = effect
            case FinishFailover():
                last, self.last_phase = self.last_phase, None
                assert last is not None
                moved = last.phase == "replay"
                self.counts[("handovers" if last.kind == "handover" else "failovers") if moved else "called_off"] += 1
            case FallBack():
                self.counts["fallbacks"] += 1
                self.counts["registry_silent"] += "did not take" in effect.reason
                self.last_phase = None
                if self.pending and len(self.acked) == len(self.topology.subtasks):
                    self.finish_checkpoint(tell=False)
                self.start()
            case TrimLogs(version):
                self.trim(version)
            case ReportMove(request, status):
                self.reported(request, status)

    def find(self, slot: int, subtask: SubtaskId, version: int) -> Snapshot:
        staged = self.staged[slot].get(subtask, {}).get(version)
        durable = self.durable.get((subtask, version))
        assert staged or durable, f"version {version} of {subtask} is nowhere"
        if staged and durable:
            assert staged == durable, f"two different versions {version} of {subtask}"
        found = staged or durable
        assert found is not None
        return found

    def form(self, chains: tuple[tuple[SubtaskId, Generation, tuple[int, ...]], ...]) -> None:
        for subtask, generation, members in chains:
            assert all(self.alive[slot] for slot in members)
            before = self.formation.get(subtask, (0, ()))
            for slot in members[1:]:
                if slot not in before[1] or generation != before[0]:
                    self.staging.append((subtask, generation, self.newest[subtask], slot))
            self.formation[subtask] = (generation, members)

    def replace(self, line: dict[SubtaskId, int]) -> None:
        if not self.pending or len(self.acked) == len(self.topology.subtasks):
            return
        for subtask, version in line.items():
            if version < self.pending:
                self.acked.pop(subtask, None)
                self.durable.pop((subtask, self.pending), None)

    def trigger(self) -> None:
        if self.pending or not self.machine.heads:
            return
        self.checkpoints += 1
        self.pending, self.acked = self.checkpoints, {}

    def acknowledged(self, subtask: SubtaskId, generation: int, snapshot: Snapshot) -> None:
        if not self.machine.is_current(subtask, Generation(generation)):
            return
        if snapshot.version == self.pending and subtask not in self.acked:
            self.acked[subtask] = None
            self.durable[subtask, snapshot.version] = snapshot
            self.event(HeadPersisted(subtask, Generation(generation), snapshot.version, snapshot.cursors))

    def finish_checkpoint(self, tell: bool = True) -> None:
        if not self.pending or len(self.acked) < len(self.topology.subtasks):
            return
        version, self.pending = self.pending, 0
        if tell and not self.finishing and self.random.random() < 0.05:
            self.event(CheckpointAborted(CheckpointId(version)))
            return
        self.complete = version
        self.committed = {subtask: self.durable[subtask, version] for subtask in self.topology.subtasks}
        if tell:
            self.event(CheckpointCompleted(CheckpointId(version)))

    def trim(self, version: int) -> None:
        assert version <= self.complete
        for worker in self.workers:
            if self.is_accepted(worker) and version in worker.cursors_at:
                for channel, seq in worker.cursors_at[version].items():
                    for old in range(worker.begin[channel], seq):
                        worker.log[channel].pop(old, None)
                    worker.begin[channel] = max(worker.begin[channel], seq)
        for standbys in self.staged:
            for subtask, versions in standbys.items():
                standbys[subtask] = {v: s for v, s in versions.items() if v >= min(version, max(versions, default=0))}

    # ------------------------------------------------------------------------------------------------- the slots

    def end_process(self, slot: int) -> None:
        self.running[slot] = False
        self.workers = [worker for worker in self.workers if worker.slot != slot]
        self.staged[slot] = {}
        self.inbound[slot].clear()

    def is_accepted(self, worker: Worker) -> bool:
        """Whether every living slot takes it for what it says it is."""
        return all(
            known[worker.subtask] == worker.generation for slot, known in enumerate(self.known) if self.alive[slot]
        )

    def step_worker(self, worker: Worker) -> bool:
        number = len(worker.steps)
        choice = worker.script.get(number)
        if not worker.inbox:
            return self.step_source(worker, choice)
        ready = [c for c, messages in worker.inbox.items() if messages and c not in worker.aligned]
        if choice is not None:
            channel = choice[0]
            if channel not in ready:
                assert channel not in worker.aligned, "a determinant that cannot be followed"
                return False
        elif ready:
            channel = self.random.choice(ready)
        else:
            return False
        worker.steps.append((channel,))
        content = worker.inbox[channel].popleft()
        worker.ins[channel] += 1
        if content[0] == "barrier":
            self.align(worker, channel, content[1])
            return True
        worker.taken.append((channel, content))
        worker.state = (worker.state * 31 + content[1]) % 1_000_003
        if worker.outs:
            channels = list(worker.outs)
            worker.put(channels[worker.state % len(channels)], ("data", worker.state))
        return True

    def align(self, worker: Worker, channel: ChannelId, version: int) -> None:
        """A newer barrier ends the alignment of an older one, which was aborted and never comes on all channels."""
        if version <= worker.at or version < worker.aligning:
            return
        if version > worker.aligning:
            worker.aligned.clear()
            worker.aligning = version
        worker.aligned[channel] = None
        if len(worker.aligned) == len(worker.inbox):
            worker.aligned.clear()
            self.take_snapshot(worker, version)

    def step_source(self, worker: Worker, choice: Choice | None) -> bool:
        if choice is None:
            if self.pending > worker.at and self.random.random() < 0.3:
                choice = ("trigger", self.pending)
            elif not self.finishing:
                choice = ("emit", self.random.choice(list(worker.outs)), self.random.randrange(1_000_000))
            elif self.pending > worker.at:
                choice = ("trigger", self.pending)
            else:
                return False
        worker.steps.append(choice)
        if choice[0] == "trigger":
            self.take_snapshot(worker, choice[1])
        else:
            worker.put(choice[1], ("data", choice[2]))
        return True

    def take_snapshot(self, worker: Worker, version: int) -> None:
        snapshot = worker.snapshot(version)
        for channel in worker.outs:
            worker.put(channel, ("barrier", version))
        self.outbound[worker.slot].append(("ack", worker.subtask, worker.generation, snapshot))
        generation, members = self.formation[worker.subtask]
        if generation == worker.generation:
            self.newest[worker.subtask] = snapshot
            for slot in members[1:]:
                self.staging.append((worker.subtask, worker.generation, snapshot, slot))

    def deliver(self, channel: ChannelId) -> bool:
        producer, consumer = self.topology.producer(channel), self.topology.consumer(channel)
        moved = False
        for sender in self.workers:
            for receiver in self.workers:
                if (sender.subtask, receiver.subtask) != (producer, consumer):
                    continue
                if self.known[receiver.slot][producer] != sender.generation:
                    continue
                if self.known[sender.slot][consumer] != receiver.generation:
                    continue
                seq = receiver.received(channel)
                assert seq >= sender.begin[channel], f"{consumer} needs {channel} {seq}, which is not there any more"
                if seq in sender.log[channel]:
                    content, determinants = sender.log[channel][seq]
                    receiver.inbox[channel].append(content)
                    learned = receiver.learned.setdefault(producer, {})
                    for step, choice in determinants:
                        assert learned.setdefault(step, choice) == choice
                    moved = True
        return moved

    def stage(self) -> bool:
        if not self.staging:
            return False
        subtask, generation, snapshot, slot = self.staging.popleft()
        if self.running[slot] and self.alive[slot] and self.known[slot][subtask] == generation:
            self.staged[slot].setdefault(subtask, {})[snapshot.version] = snapshot
            self.outbound[slot].append(VersionStaged(subtask, slot, Generation(generation), snapshot.version))
        return True

    def take_order(self, slot: int) -> bool:
        if not self.inbound[slot] or not self.running[slot] or slot in self.deaf:
            return False
        match self.inbound[slot].popleft():
            case FenceSlots(attempt, generation, failed):
                self.fence(slot, attempt, generation, [subtask for subtask, _ in failed])
            case (PromoteStandbys() as order, scripts):
                self.promote(slot, order, scripts)
        return True

    def fence(self, slot: int, attempt: int, generation: int, failed: list[SubtaskId]) -> None:
        self.workers = [w for w in self.workers if not (w.slot == slot and w.subtask in failed)]
        for subtask in failed:
            self.known[slot][subtask] = generation
        mine = [worker for worker in self.workers if worker.slot == slot]
        received = tuple(
            (channel, worker.received(channel))
            for worker in mine
            for channel in worker.inbox
            if self.topology.producer(channel) in failed
        )
        learned = [(subtask, dict(w.learned.get(subtask, {}))) for w in mine for subtask in failed]
        self.outbound[slot].append(("fenced", SlotFenced(attempt, slot, received), learned))

    def promote(self, slot: int, order: PromoteStandbys, scripts: dict[SubtaskId, dict[int, Choice]]) -> None:
        if not self.finishing and self.random.random() < 0.03:
            failed = StandbyPromotionFailed(order.attempt, slot, order.subtasks[0][0], "checksum")
            self.outbound[slot].append(failed)
            return
        for subtask, version in order.subtasks:
            if self.known[slot][subtask] != order.generation:
                continue  # fenced again meanwhile
            worker = work(self.topology, subtask, order.generation, slot, self.find(slot, subtask, version))
            worker.script = dict(scripts[subtask])
            self.workers.append(worker)
        self.outbound[slot].append(StandbysPromoted(order.attempt, slot))

    def hear(self, slot: int) -> bool:
        if not self.outbound[slot]:
            return False
        message = self.outbound[slot].popleft()
        if not self.alive[slot]:
            return True
        match message:
            case ("ack", subtask, generation, snapshot):
                self.acknowledged(subtask, generation, snapshot)
            case ("fenced", answer, learned):
                for subtask, choices in learned:
                    if answer.attempt in self.determinants:
                        known = self.determinants[answer.attempt].setdefault(subtask, {})
                        for step, choice in choices.items():
                            assert known.setdefault(step, choice) == choice, "survivors disagree about the past"
                self.event(answer)
            case _:
                self.event(message)
        return True

    # -------------------------------------------------------------------------------------------------- commands

    def host(self, slot: int) -> str:
        return f"host{slot // 2}"

    def command(self) -> None:
        """Somebody wants a subtask elsewhere, a host empty, or to be used again."""
        self.requests += 1
        slot, roll = self.random.randrange(self.slots), self.random.random()
        host = self.host(slot)
        if roll < 0.6:
            subtask = self.random.choice(self.topology.subtasks)
            self.asked[self.requests] = subtask
            self.event(MoveRequested(self.requests, subtask, slot))
        elif roll < 0.8:
            self.asked[self.requests] = host
            self.event(HostDrainRequested(self.requests, host, force=self.random.random() < 0.7))
        elif self.machine.heads:
            self.drained.discard(host)
            self.event(HostUndrainRequested(self.requests, host))

    def reported(self, request: int, status: str) -> None:
        self.counts[status] += 1
        what = self.asked.get(request)
        if status != "refused" and isinstance(what, str) and status != "cancelled":
            self.drained.add(what)
        if status == "under_way" or what is None:
            return
        del self.asked[request]
        if status == "done" and isinstance(what, str):
            assert not self.on(what), f"{what} is said to be empty"

    def on(self, host: str) -> list[SubtaskId]:
        return [s for s, slots in self.machine.chains.items() if any(self.host(slot) == host for slot in slots)]

    def is_whole(self, subtask: SubtaskId) -> bool:
        """Whether the chain is as long as it can be, and on no drained host."""
        usable = {slot for slot in range(self.slots) if self.host(slot) not in self.drained}
        members = self.machine.chains[subtask]
        return len(members) == min(self.config.replicas, len(usable)) and usable.issuperset(members)

    def carry_out(self) -> None:
        """Whatever was asked for is done within a few checkpoints."""
        for _ in range(40):
            self.trigger()
            while self.do_all():
                pass
            if not self.asked and all(self.is_whole(subtask) for subtask in self.topology.subtasks):
                return
        raise AssertionError(f"not done: {self.asked}, {self.machine.chains}")

    # ---------------------------------------------------------------------------------------------------- faults

    def lose(self, slot: int, zombie: bool) -> None:
        """The coordinator hears of it at once; a zombie's process goes on until it is restarted."""
        if not zombie:
            self.end_process(slot)
        if self.alive[slot]:
            self.alive[slot] = False
            self.outbound[slot].clear()
            self.event(SlotLost(slot, 1, "lost"))

    def restart(self, slot: int) -> None:
        if self.alive[slot] or not self.machine.heads:
            return
        self.end_process(slot)
        self.running[slot] = self.alive[slot] = True
        self.deaf.discard(slot)
        self.inbound[slot].clear()
        self.outbound[slot].clear()
        self.known[slot] = {s: int(g) for s, g in self.machine.generations.items()}
        self.event(SlotJoined(slot, self.host(slot)))

    def throw(self, worker: Worker) -> None:
        if self.machine.is_current(worker.subtask, Generation(worker.generation)) and self.alive[worker.slot]:
            self.workers.remove(worker)
            self.event(SubtaskFailed(worker.subtask, Generation(worker.generation), "boom"))

    def answer_registry(self) -> bool:
        if not self.registry or self.registry_away:
            return False
        attempt = self.registry.popleft()
        refused = not self.finishing and self.random.random() < 0.01
        self.event(RecordsRefused(attempt, "stale") if refused else RecordsWritten(attempt))
        return True

    def advance(self, by_ms: int) -> None:
        deadline = self.machine.next_deadline_ms()
        self.now_ms = self.now_ms + by_ms if deadline is None else min(self.now_ms + by_ms, deadline)
        self.event(TimeAdvanced())

    # ------------------------------------------------------------------------------------------------------- run

    def fault(self, rate: float) -> None:
        roll = self.random.random()
        if roll < rate:
            self.lose(self.random.randrange(self.slots), zombie=self.random.random() < 0.4)
            if self.random.random() < 0.3:
                self.lose(self.random.randrange(self.slots), zombie=False)
        elif roll < (1 + self.throws) * rate and self.workers:
            self.throw(self.random.choice(self.workers))
        elif roll < (1.1 + self.throws) * rate:
            self.deaf.add(self.random.randrange(self.slots))
        elif roll < (1.1 + self.throws) * rate + 0.02:
            self.restart(self.random.randrange(self.slots))
        elif roll > (0.99 if self.registry_away else 1 - 2 * rate):
            self.registry_away = not self.registry_away

    def act(self) -> None:
        roll = self.random.random()
        slot = self.random.randrange(self.slots)
        if roll < 0.3 and self.workers:
            self.step_worker(self.random.choice(self.workers))
        elif roll < 0.6:
            self.deliver(self.random.choice(self.channels))
        elif roll < 0.72:
            self.take_order(slot)
        elif roll < 0.84:
            self.hear(slot)
        elif roll < 0.92:
            self.stage()
        elif roll < 0.94:
            self.answer_registry()
        elif roll < 0.96:
            self.finish_checkpoint()
        elif roll < 0.98:
            self.trigger()
        else:
            waiting = self.deaf or self.registry_away
            self.advance(self.random.choice((1, 5, 20, 1_000, 20_000) if waiting else (1, 5, 20)))

    def run(self, faults: int, rate: float = 0.02, commands: float = 0.0) -> None:
        for number in range(faults):
            self.act()
            self.fault(rate)
            if commands and self.random.random() < commands:
                self.command()
            if number % 10 == 0:
                self.check()
        self.finishing, self.registry_away = True, False
        for _ in range(2_000):
            if not self.do_all():
                break
            self.check()
        if commands:
            self.carry_out()
        self.check_end()

    def do_all(self) -> bool:
        """Everything that can happen, once; whether anything did."""
        moved = False
        for slot in range(self.slots):
            if not self.alive[slot]:
                self.restart(slot)
                moved = True
            while self.take_order(slot) or self.hear(slot):
                moved = True
        for worker in list(self.workers):
            while worker in self.workers and self.step_worker(worker):
                moved = True
        for channel in self.channels:
            while self.deliver(channel):
                moved = True
        while self.stage() or self.answer_registry():
            moved = True
        if self.pending and len(self.acked) == len(self.topology.subtasks):
            self.finish_checkpoint()
            moved = True
        if not moved and self.machine.next_deadline_ms() is not None:
            self.advance(1_000_000)
            moved = True
        return moved

    # ---------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        accepted: dict[SubtaskId, Worker] = {}
        for worker in self.workers:
            if self.is_accepted(worker):
                assert worker.subtask not in accepted, f"two heads of {worker.subtask} are accepted"
                accepted[worker.subtask] = worker
        for channel in self.channels:
            sender = accepted.get(self.topology.producer(channel))
            receiver = accepted.get(self.topology.consumer(channel))
            if sender is not None and receiver is not None:
                taken = [content for origin, content in receiver.taken if origin == channel]
                data = [content for content in sender.outs[channel] if content[0] == "data"]
                both = min(len(taken), len(data))
                assert taken[:both] == data[:both], f"the ends of {channel} disagree"
        for subtask, snapshot in self.committed.items():
            worker_or_none = accepted.get(subtask)
            if worker_or_none is not None and self.topology.is_last(subtask):
                taken_now = tuple(worker_or_none.taken[: len(snapshot.taken)])
                assert taken_now == snapshot.taken, f"committed output of {subtask} was undone"

    def check_end(self) -> None:
        assert not self.machine.active, "a failover was left open"
        assert self.machine.next_deadline_ms() is None
        assert sorted(worker.subtask for worker in self.workers) == sorted(self.topology.subtasks)
        by_subtask = {worker.subtask: worker for worker in self.workers}
        for subtask, worker in by_subtask.items():
            assert worker.slot == self.machine.heads[subtask]
            assert worker.generation == self.machine.generations[subtask]
            assert self.is_whole(subtask)
        for channel in self.channels:
            sender = by_subtask[self.topology.producer(channel)]
            receiver = by_subtask[self.topology.consumer(channel)]
            assert receiver.ins[channel] == len(sender.outs[channel]), f"not all of {channel} has arrived"
