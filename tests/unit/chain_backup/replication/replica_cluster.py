"""Agents of several slots on a network in memory, with real state at the heads.

The network keeps one queue for each direction of each pair of slots; a test, or a seed, decides what is delivered when,
and what happens to it on the way. State is numbers and objects of one subtask, with dicts as the model of each version.

Why this is not in ``tests/simulation``: there the same agents run on a disk and a store in memory. Here files, their
checksums and RocksDB are the real ones, which is too slow for thousands of jobs.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chain_backup.disk import OpenDisk, SlotDisk
from chain_backup.replication.agent import ReplicationAgent
from chain_backup.replication.receiver import Beside, at_once
from flinkplus.protocol.snapshot.handle import START, OperatorState, SnapshotHandle
from flinkplus.state import BasePolicy, CheckpointStorage, SubtaskState
from flinkplus.state.backend import Prepared
from flinkplus.state.left import take_over

SUBTASK = "count[0]"
POLICY = BasePolicy(ratio=1.0, min_bytes=1 << 13, max_deltas=4, full_deltas=0)


@dataclass
class Model:
    numbers: dict[bytes, int] = field(default_factory=dict)
    objects: dict[bytes, Any] = field(default_factory=dict)


class Network:
    """Frames under way. ``faults``: chances of a frame to be lost, repeated (at once or later), overtaken, altered."""

    def __init__(self, seed: int = 0) -> None:
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.work: deque[tuple[int, Callable[[], None]]] = deque()
        self.agents: dict[int, ReplicationAgent] = {}
        self.random = random.Random(seed)
        self.faults: dict[str, float] = {}
        self.sent: list[tuple[int, int, bytes]] = []

    def sender(self, slot: int) -> Any:
        def send(peer: int, frame: bytes) -> None:
            if peer in self.agents and slot in self.agents:
                self.queues.setdefault((slot, peer), deque()).append(frame)
                self.sent.append((slot, peer, frame))

        return send

    def later(self, slot: int) -> Callable[[Callable[[], None]], None]:
        return lambda work: self.work.append((slot, work))

    def beside(self, slot: int) -> Beside:
        """Another thread: its work comes at some time, and what follows from that in the agent's at another."""

        def begin(work: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
            self.work.append((slot, lambda: at_once(work, lambda error: self.work.append((slot, lambda: done(error))))))

        return begin

    def step(self) -> bool:
        """Deliver one frame, of any direction, or do what an agent left for later; ``False`` when there is none."""
        waiting = sorted(pair for pair, queue in self.queues.items() if queue)
        if self.work and (not waiting or self.random.random() < 0.1):
            slot, work = self.work.popleft()
            if slot in self.agents:
                work()
            return True
        if not waiting:
            return False
        pair = self.random.choice(waiting)
        queue = self.queues[pair]
        frame = queue.popleft()
        fault = self._draw()
        if fault == "drop":
            return True
        if fault == "reorder" and queue:
            queue.insert(self.random.randrange(len(queue)) + 1, frame)
            return True
        if fault == "twice":
            self.agents[pair[1]].receive(pair[0], frame)
        if fault == "repeat":
            queue.insert(self.random.randrange(len(queue) + 1), frame)
        if fault == "flip":
            place = self.random.randrange(len(frame))
            frame = frame[:place] + bytes([frame[place] ^ (1 << self.random.randrange(8))]) + frame[place + 1 :]
        if fault == "tear":
            frame = frame[: self.random.randrange(len(frame))]
        source, target = pair
        if target in self.agents:
            self.agents[target].receive(source, frame)
        return True

    def _draw(self) -> str | None:
        for fault, chance in self.faults.items():
            if self.random.random() < chance:
                return fault
        return None

    def deliver(self, *pairs: tuple[int, int]) -> None:
        """Frames of these directions (of all, if none is given), and nothing that an agent left for later."""
        queues = self.queues
        while waiting := sorted(pair for pair, queue in queues.items() if queue and (not pairs or pair in pairs)):
            source, target = waiting[0]
            self.agents[target].receive(source, queues[source, target].popleft())

    def settle(self, limit: int = 200_000) -> None:
        """Deliver until nothing is under way."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError("the agents never stop talking")

    def cut(self, one: int, other: int) -> None:
        """The stream between two slots breaks, what is in it is lost, and there is a new one."""
        self.queues.pop((one, other), None)
        self.queues.pop((other, one), None)
        for slot, peer in ((one, other), (other, one)):
            if slot in self.agents and peer in self.agents:
                self.agents[slot].peer_connected(peer)

    def lose(self, slot: int) -> None:
        self.agents.pop(slot)
        self.work = deque(entry for entry in self.work if entry[0] != slot)
        for pair in [pair for pair in self.queues if slot in pair]:
            del self.queues[pair]


class Cluster:
    """Slots, one subtask, and what each version of it must hold."""

    def __init__(self, root: Path, slots: int = 3, seed: int = 0, postpone: bool = False) -> None:
        self.root = root
        self.postpone = postpone
        self.storage = CheckpointStorage(root / "checkpoints")
        self.storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
        self.network = Network(seed)
        self.random = random.Random(seed + 1)
        self.reports: list[tuple[int, int, int]] = []
        self.incarnations: dict[int, int] = {}
        for slot in range(slots):
            self.start(slot)
        self.generation = 1
        self.version = 0
        self.complete = 0
        self.model = Model()
        self.models: dict[int, Model] = {0: Model()}
        self.handles: dict[int, SnapshotHandle] = {0: START}
        self.members: tuple[int, ...] = ()
        self.state: SubtaskState | None = None

    # -- slots ----------------------------------------------------------------------------------------------------

    def work(self, slot: int) -> Path:
        return self.root / f"slot-{slot}-{self.incarnations[slot]}"

    def disks(self, slot: int) -> OpenDisk:
        return lambda subtask: SlotDisk(self.work(slot), subtask, self.storage.state_files)

    def start(self, slot: int) -> None:
        """A slot's process begins, with nothing on its disk."""
        self.incarnations[slot] = self.incarnations.get(slot, 0) + 1

        def staged(subtask: str, generation: int, version: int) -> None:
            assert subtask == SUBTASK
            self.reports.append((slot, generation, version))

        network = self.network
        agent = (
            ReplicationAgent(
                slot, self.disks(slot), network.sender(slot), staged, network.later(slot), network.beside(slot)
            )
            if self.postpone
            else ReplicationAgent(slot, self.disks(slot), network.sender(slot), staged)
        )
        self.network.agents[slot] = agent
        for other in sorted(self.network.agents):
            if other != slot:
                self.network.cut(slot, other)

    def kill(self, slot: int) -> None:
        """Its process is gone, with its disk."""
        agent = self.network.agents[slot]
        self.network.lose(slot)
        if self.members and self.members[0] == slot and self.state is not None:
            self.state.close()
            self.state = None
        agent.close()

    def crash(self, slot: int) -> Path:
        """Its process is gone, and its disk is as it was."""
        left = self.root / f"left-{slot}-{self.incarnations[slot]}"
        shutil.copytree(self.work(slot), left, symlinks=True)
        self.kill(slot)
        return left

    def restart(self, slot: int, left: Path) -> None:
        """The next process of a slot begins, where the one before it has left its files."""
        self.start(slot)
        take_over(left, self.work(slot))

    def form(self, *members: int, generation: int | None = None) -> None:
        self.generation = generation or self.generation
        self.members = members
        for agent in self.network.agents.values():
            agent.form({SUBTASK: (self.generation, members)})

    # -- the head -------------------------------------------------------------------------------------------------

    def open_head(self, prepared: Prepared | None = None) -> SubtaskState:
        self.state = SubtaskState(
            self.work(self.members[0]),
            self.storage.state_files,
            SUBTASK,
            self.generation,
            max_entries=40,
            policy=POLICY,
            prepared=prepared,
        )
        self.state.number_state("n")
        return self.state

    def change(self, keys: int = 30) -> None:
        """Something happens to the state at the head, and to the model."""
        assert self.state is not None
        numbers, objects = self.state.number_state("n"), self.state.object_state("o")
        for _ in range(self.random.randrange(1, 4)):
            chosen = [b"k%d" % number for number in self.random.sample(range(keys), self.random.randrange(1, 8))]
            rows = numbers.indices(chosen)
            numbers.scatter(rows, numbers.gather(rows) + 1)
            for key in chosen:
                self.model.numbers[key] = self.model.numbers.get(key, 0) + 1
            if self.random.random() < 0.4:
                objects.delete_many(chosen)
                for key in chosen:
                    self.model.objects.pop(key, None)
            else:
                value = [self.random.randrange(100), "x" * self.random.randrange(200)]
                objects.put_many(chosen, [value] * len(chosen))
                self.model.objects.update((key, value) for key in chosen)
            self.state.spill_if_needed()

    def snapshot(self, tell: bool = True, rebase: bool = True) -> int:
        """The head makes a version, and a base after it if one is due."""
        assert self.state is not None
        self.version += 1
        pending = self.state.freeze(self.version, OperatorState(steps=self.version))
        self.handles[self.version] = self.state.persist(pending)
        self.models[self.version] = copy.deepcopy(self.model)
        if rebase:
            self.state.rebase()
        if tell:
            self.tell()
        return self.version

    def tell(self) -> None:
        self.network.agents[self.members[0]].persisted(SUBTASK, self.generation, self.handles[self.version])

    def trim(self, version: int | None = None) -> None:
        """A version is complete and stable."""
        self.complete = self.version if version is None else version
        if self.state is not None:
            self.state.checkpoint_complete(self.complete)
        for agent in self.network.agents.values():
            agent.trim(self.complete)

    # -- failover -------------------------------------------------------------------------------------------------

    def promote(self, slot: int, version: int) -> SubtaskState:
        """``slot`` takes over from ``version``; its predecessors are out of the chain."""
        self.generation += 1
        if self.state is not None:
            self.network.agents[self.members[0]].retire(SUBTASK)
            self.state.close()
        agent = self.network.agents[slot]
        prepared = agent.prepare(SUBTASK, version, self.handles[version], self.generation)
        self.form(slot, *[member for member in self.members if member != slot and member in self.network.agents])
        for void in [number for number in self.handles if number > version]:
            del self.handles[void], self.models[void]
        self.version = version
        self.model = copy.deepcopy(self.models[version])
        state = self.open_head(prepared)
        if version:
            state.restore(self.handles[version])
        self.check(state, self.model)
        return state

    def check(self, state: SubtaskState, model: Model, keys: int = 30) -> None:
        """The state holds what the model does, and nothing else."""
        everything = [b"k%d" % number for number in range(keys)]
        assert state.object_state("o").get_many(everything) == [model.objects.get(key) for key in everything]
        assert state.state_keys() == len(model.numbers) + len(model.objects)
        numbers, known = state.number_state("n"), sorted(model.numbers)
        assert numbers.gather(numbers.indices(known)).tolist() == [model.numbers[key] for key in known]

    def staged(self, slot: int) -> set[int]:
        """Versions that the slot has reported in the present generation."""
        return {
            version
            for reporter, generation, version in self.reports
            if (reporter, generation) == (slot, self.generation)
        }

    def close(self) -> None:
        if self.state is not None:
            self.state.close()
        for agent in self.network.agents.values():
            agent.close()
