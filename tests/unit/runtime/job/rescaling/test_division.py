"""Keyed state at one parallelism after another, on real RocksDB, against a model: random versions, bases, rollbacks and
standbys in between; what storage keeps of it; and deliberate faults."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chain_backup.disk import SlotDisk
from chain_backup.replication.figures import ReplicationFigures
from chain_backup.replication.replica import Replica, encode_handle
from flinkplus.errors import FlinkPlusError
from flinkplus.protocol.snapshot import division
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.protocol.vocabulary.key_groups import groups_of, owner_of
from flinkplus.protocol.vocabulary.ranges import without
from flinkplus.runtime.job.rescaling.keyed import OldStates, StatePlace
from flinkplus.state import backend, store
from flinkplus.state.backend import Prepared, SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.hashing import group_of
from flinkplus.state.memtable import state_prefix
from flinkplus.state.store import EVERYTHING
from flinkplus.state.versions import BasePolicy

GROUPS, KEYS = 16, 60
NUMBERS, OBJECTS = "n", "op/o"
FIRST = OperatorState()
POLICY = BasePolicy(min_bytes=1 << 20, max_deltas=5, full_bytes=1 << 20, full_deltas=100)

Content = dict[str, dict[bytes, Any]]


def key_of(number: int) -> bytes:
    return f"key {number}".encode()


@dataclass
class World:
    """The subtasks of one vertex. ``live``: what they hold by the model; ``saved``: what their last snapshots hold."""

    folder: Path
    rng: random.Random
    parallelism: int
    live: Content = field(default_factory=lambda: {NUMBERS: {}, OBJECTS: {}})
    saved: Content = field(default_factory=lambda: {NUMBERS: {}, OBJECTS: {}})
    generation: int = 1
    checkpoint: int = 0
    states: list[SubtaskState] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    handles: list[SnapshotHandle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.storage = CheckpointStorage(str(self.folder / "storage"))
        self.storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
        self.begin(None)
        self.snapshot()

    # -- the job --------------------------------------------------------------------------------------------------

    def begin(self, handles: list[SnapshotHandle] | None) -> None:
        for index in range(self.parallelism):
            self.states.append(self.state(index, f"work{self.generation}"))
            if handles is not None:
                self.states[index].restore(handles[index])
            self.states[index].number_state(NUMBERS)
            self.states[index].object_state(OBJECTS)
            disk = SlotDisk(self.folder / f"standby{self.generation}", self.name(index), self.storage.state_files)
            self.replicas.append(Replica(disk, ReplicationFigures()))

    def state(self, index: int, work: str, prepared: Prepared | None = None) -> SubtaskState:
        return SubtaskState(
            self.folder / work,
            self.storage.state_files,
            self.name(index),
            self.generation,
            policy=POLICY,
            prepared=prepared,
            max_parallelism=GROUPS,
        )

    def name(self, index: int) -> str:
        return str(SubtaskId("count", index))

    def close(self) -> None:
        for state in self.states:
            state.close()
        for replica in self.replicas:
            replica.close()
        self.states, self.replicas = [], []

    def owner(self, key: bytes) -> int:
        return owner_of(group_of(key, GROUPS), self.parallelism, GROUPS)

    def change(self) -> None:
        for number in self.rng.sample(range(KEYS), self.rng.choice([1, 5, 20])):
            key = key_of(number)
            state = self.states[self.owner(key)]
            if self.rng.random() < 0.3:
                if key in self.live[NUMBERS]:
                    numbers = state.number_state(NUMBERS)
                    numbers.remove(numbers.indices([key]))
                state.object_state(OBJECTS).delete_many([key])
                for kept in self.live.values():
                    kept.pop(key, None)
            else:
                self.add(state, key)

    def add(self, state: SubtaskState, key: bytes) -> None:
        numbers, objects = state.number_state(NUMBERS), state.object_state(OBJECTS)
        rows = numbers.indices([key])
        numbers.scatter(rows, numbers.gather(rows) + 1)
        (found,) = objects.get_many([key])
        objects.put_many([key], [[*(found or []), self.checkpoint]])
        self.live[NUMBERS][key] = self.live[NUMBERS].get(key, 0) + 1
        self.live[OBJECTS][key] = [*self.live[OBJECTS].get(key, []), self.checkpoint]

    def snapshot(self) -> None:
        self.checkpoint += 1
        self.handles = [state.persist(state.freeze(self.checkpoint, FIRST)) for state in self.states]
        self.saved = {name: dict(kept) for name, kept in self.live.items()}
        self.store_manifest()
        for state, replica, handle in zip(self.states, self.replicas, self.handles, strict=True):
            state.checkpoint_complete(self.checkpoint)
            if self.rng.random() < 0.6:
                self.replicate(replica, handle)
        self.check_counts()

    def store_manifest(self) -> None:
        subtasks = {handle.subtask: handle for handle in self.handles}
        self.storage.manifests.write(
            Manifest(checkpoint=self.checkpoint, generation=self.generation, subtasks=subtasks)
        )
        for old in self.storage.manifests.checkpoints()[:-2]:
            self.storage.retention.drop(old)
        self.storage.retention.sweep(self.checkpoint, self.checkpoint)

    def replicate(self, replica: Replica, handle: SnapshotHandle) -> None:
        files = replica.files_of(handle)
        for file in replica.missing(files):
            replica.fetch(file)
        replica.stage(handle.checkpoint, self.generation, encode_handle(handle), files)
        replica.apply(replica.staged[handle.checkpoint].files)
        replica.forget([number for number in replica.staged if number < handle.checkpoint])

    def rebase(self) -> None:
        for state in self.states:
            if self.rng.random() < 0.5:
                state.rebase()

    def roll_back(self) -> None:
        """All subtasks go back to their last snapshots, some in their old folders, some as standbys."""
        self.generation += 1
        replicas, self.replicas = self.replicas, []
        for state in self.states:
            state.close()
        self.states = []
        self.live = {name: dict(kept) for name, kept in self.saved.items()}
        for index, (replica, handle) in enumerate(zip(replicas, self.handles, strict=True)):
            prepared = replica.promote(handle.files, self.generation) if self.rng.random() < 0.5 else None
            state = self.state(index, self.rng.choice([f"work{self.generation}", "work1"]), prepared)
            state.restore(handle)
            self.states.append(state)
            self.replicas.append(replica)
            state.number_state(NUMBERS)
            state.object_state(OBJECTS)
        self.check_content()

    def rescale(self, parallelism: int) -> None:
        self.close()
        self.generation += 1
        self.checkpoint += 1
        place = StatePlace(
            self.folder / "rescaling", self.storage.state_files, self.generation, self.checkpoint, GROUPS
        )
        old = OldStates(self.handles, place, False)
        kinds = old.kinds
        self.parallelism = parallelism
        self.handles = []
        for index in range(parallelism):
            name = self.name(index)
            empty = SnapshotHandle(
                subtask=name, generation=self.generation, checkpoint=self.checkpoint, files=(), operator_state=FIRST
            )
            self.handles.append(old.share(name, groups_of(index, parallelism, GROUPS)).with_own(empty))
        old.close()
        assert not place.folder.exists(), "a state was opened"
        assert set(kinds) == {NUMBERS, OBJECTS}
        self.live = {name: dict(kept) for name, kept in self.saved.items()}
        self.store_manifest()
        self.begin(self.handles)
        self.check_content()

    # -- checks ---------------------------------------------------------------------------------------------------

    def expected(self, index: int) -> Content:
        return {
            name: {key: value for key, value in kept.items() if self.owner(key) == index}
            for name, kept in self.saved.items()
        }

    def check_content(self) -> None:
        """RocksDB holds exactly what the last snapshots do: nothing of other groups, nothing that was deleted."""
        for index, state in enumerate(self.states):
            assert content_of(state) == self.expected(index), self.name(index)

    def check_counts(self) -> None:
        for index, handle in enumerate(self.handles):
            for name, kept in self.expected(index).items():
                if handle.states[name].counted:
                    assert handle.states[name].keys == len(kept), (self.name(index), name)

    def check_storage(self) -> None:
        """Every file that a checkpoint names is there, and no other once no subtask runs."""
        self.close()
        storage = self.storage
        assert storage.manifests.latest_valid() is not None
        storage.retention.sweep_all()
        assert set(storage.state_files.listed()) == storage.manifests.all_named()


def content_of(state: SubtaskState) -> Content:
    found: Content = {NUMBERS: {}, OBJECTS: {}}
    numbers, objects = state_prefix(NUMBERS), state_prefix(OBJECTS)
    for key, value in state._store.items():
        if key.startswith(numbers):
            found[NUMBERS][key[len(numbers) + 2 :]] = int(np.frombuffer(value, "<i8")[0])
        else:
            assert key.startswith(objects)
            found[OBJECTS][key[len(objects) + 2 :]] = pickle.loads(value[1:])
    return found


def live(world: World, seed: int, scales: list[int]) -> None:
    """Some steps at each of ``scales``."""
    rng = world.rng
    steps: list[Callable[[], None]] = [world.change, world.change, world.snapshot, world.rebase, world.roll_back]
    for scale in scales:
        for _ in range(rng.choice([0, 4, 12])):
            rng.choice(steps)()
        world.change()
        world.snapshot()
        world.rescale(scale)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[int], World]]:
    worlds = []

    def made(seed: int) -> World:
        rng = random.Random(seed)
        worlds.append(World(tmp_path / str(seed), rng, rng.choice([1, 2, 5])))
        return worlds[-1]

    yield made
    for each in worlds:
        each.close()


@pytest.mark.parametrize("seed", range(8))
def test_state_is_that_of_the_model(seed: int, world: Callable[[int], World]) -> None:
    one = world(seed)
    scales = [1, 3, 8, 2] if seed % 2 else one.rng.choices(range(1, GROUPS + 1), k=5)
    live(one, seed, scales)
    for _ in range(3):
        one.change()
        one.snapshot()
        one.rebase()
        one.roll_back()
    one.check_storage()


def counts_of_all(*_: object) -> Any:
    return EVERYTHING


def one_too_many(self: Clip, groups: range, states: Any) -> Clip:
    return WITHIN(self, range(groups.start, groups.stop + 1), states)


def one_too_few(self: Clip, groups: range, states: Any) -> Clip:
    return WITHIN(self, range(groups.start, max(groups.start, groups.stop - 1)), states)


def deltas_first(*arguments: Any) -> Any:
    files = DIVIDED(*arguments)
    return tuple(replace(file, name=other.name) for file, other in zip(reversed(files), files, strict=True))


def own_files_too(self: SubtaskState, *arguments: Any) -> Any:
    """The clip of the first file is that of all later ones."""
    pending = PERSIST(self, *arguments)
    clips = [file.clip for file in pending.files if file.clip is not None]
    return replace(pending, files=tuple(replace(f, clip=clips[0]) if clips else f for f in pending.files))


SHARE = division._share
WITHIN, DIVIDED, PERSIST = Clip.within, division.divided_files, SubtaskState.persist
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "clips are ignored by a restore": (backend, "counted_keys", counts_of_all),
    "clips are ignored by standbys": ("chain_backup.disk", "counted_keys", counts_of_all),
    "what older files hold stays where a base stands for them": (
        store,
        "without",
        lambda ranges, others: without(ranges, others) if ranges == EVERYTHING else (),
    ),
    "a range is one too long": (Clip, "within", one_too_many),
    "a range is one too short": (Clip, "within", one_too_few),
    "deltas come before their base": ("flinkplus.runtime.job.rescaling.keyed", "divided_files", deltas_first),
    "a clip counts for files of later": (SubtaskState, "persist", own_files_too),
    "files of several are in the order of subtasks": (division, "generation_of", lambda name: 0),
    "a file counts for the last subtask that shared it": (Clip, "joined", lambda self, other: other),
    "storage goes by the subtask's own names": (
        Manifest,
        "files",
        property(lambda self: [replace(f, stored_as="") for h in self.subtasks.values() for f in h.files]),
    ),
    "estimates are taken for counts": (
        division,
        "_share",
        lambda keys, groups, mine: SHARE(keys, groups, mine) + bool(keys),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_deliberate_fault_is_found(
    fault: str, world: Callable[[int], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, wrong = FAULTS[fault]
    if fault == "estimates are taken for counts":
        monkeypatch.setattr(division.Estate, "within", lambda self, mine: True)
    target = where if not isinstance(where, str) else __import__(where, fromlist=["_"])
    monkeypatch.setattr(target, name, wrong)
    for seed in range(20):
        with contextlib.suppress(FlinkPlusError):
            one = world(seed)
            try:
                live(one, seed, [3, 8, 2, 5, 1])
                one.check_storage()
            except AssertionError:
                return
            continue
        return  # an error of the program: it has been noticed
    pytest.fail("the fault was not noticed")


def test_an_estimate_that_is_too_low_is_put_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also below nothing, and where a base counts a version while more keys go."""
    monkeypatch.setattr(division, "_share", lambda keys, groups, mine: 1)
    world = World(tmp_path, random.Random(1), 1)
    for number in range(KEYS):
        world.add(world.states[0], key_of(number))
    world.snapshot()
    world.rescale(2)

    def remove(first: int, end: int) -> None:
        for key in map(key_of, range(first, end)):
            numbers = world.states[world.owner(key)].number_state(NUMBERS)
            numbers.remove(numbers.indices([key]))
            del world.live[NUMBERS][key]

    remove(0, 20)
    world.snapshot()
    assert all(handle.states[NUMBERS].keys == 0 for handle in world.handles)
    assert all(state.state_keys() >= 0 for state in world.states)
    remove(20, 40)
    frozen = [state.freeze(world.checkpoint + 1, FIRST) for state in world.states]
    assert all(state.rebase() for state in world.states)
    for state, pending in zip(world.states, frozen, strict=True):
        state.persist(pending)
    world.checkpoint += 1
    remove(40, 43)
    world.snapshot()
    assert all(part.counted for handle in world.handles for part in handle.states.values())
    world.check_counts()
    world.close()
