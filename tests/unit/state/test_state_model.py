"""Keyed state against plain dicts, whatever happens in whatever order.

One machine plays a runtime: it changes state, freezes, persists (in any order, or never), completes checkpoints,
drops old ones, collects garbage, lets disks and storage fail, damages local files, and restores any retained
checkpoint as the next generation. Limits are tiny, so that eviction, spills and new bases happen all the time.
"""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from flinkplus.errors import StateError
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import BasePolicy, CheckpointStorage, PendingSnapshot, SubtaskState, sst_format
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.store import SubtaskStore
from tests.examples import examples
from tests.handles import manifest_of

KEYS = [b"", b"\x00", b"\xff", *(b"k%d" % number for number in range(20))]
SOME_KEYS = st.lists(st.sampled_from(KEYS), min_size=1, max_size=8, unique=True)
VALUES = st.one_of(st.integers(), st.lists(st.integers(), max_size=2), st.none())
FAULTS = {"write": (sst_format, "_write_chunk"), "ingest": (SubtaskStore, "ingest"), "upload": (StateFiles, "upload")}
RETAINED = 2


@dataclass
class Model:
    numbers: dict[bytes, int] = field(default_factory=dict)
    floats: dict[bytes, float] = field(default_factory=dict)
    objects: dict[bytes, Any] = field(default_factory=dict)


class StateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="flinkplus-state-")
        self.root = Path(self.folder.name)
        self.storage = CheckpointStorage(self.root / "checkpoints")
        self.storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
        self.model = Model()
        self.generation = 0
        self.checkpoint = 0
        self.complete = 0
        self.pending: list[tuple[PendingSnapshot, Model]] = []
        self.handles: dict[int, SnapshotHandle] = {}
        self.versions: dict[int, Model] = {}
        self.open_next()

    def open_next(self) -> None:
        self.generation += 1
        policy = BasePolicy(ratio=1.0, min_bytes=1 << 12, max_deltas=3)
        self.state = SubtaskState(
            self.root / "work", self.storage.state_files, "op+count[0]", self.generation, max_entries=6, policy=policy
        )

    def teardown(self) -> None:
        self.state.close()
        self.folder.cleanup()

    def rows_of(self, keys: list[bytes], by_number: bool) -> npt.NDArray[np.int64]:
        """The rows of ``n``, found by the keys or by whole numbers that stand for them."""
        state = self.state.number_state("n")
        if not by_number:
            return state.indices(keys)
        numbers = np.array([KEYS.index(key) for key in keys * 2])
        rows = state.indices_of(numbers, lambda fresh: [KEYS[number] for number in fresh])
        assert rows[: len(keys)].tolist() == rows[len(keys) :].tolist()
        return rows[: len(keys)]

    @rule(keys=SOME_KEYS, amount=st.integers(-3, 3), by_number=st.booleans())
    def add_numbers(self, keys: list[bytes], amount: int, by_number: bool) -> None:
        state = self.state.number_state("n")
        rows = self.rows_of(keys, by_number)
        before = state.gather(rows)
        assert before.tolist() == [self.model.numbers.get(key, 0) for key in keys]
        state.scatter(rows, before + amount)
        self.model.numbers.update((key, self.model.numbers.get(key, 0) + amount) for key in keys)

    @rule(keys=SOME_KEYS, at_once=st.booleans(), by_number=st.booleans())
    def remove_numbers(self, keys: list[bytes], at_once: bool, by_number: bool) -> None:
        """Some that are there, or, by their look-up, some that were not."""
        state = self.state.number_state("n")
        rows = self.rows_of(keys if at_once else KEYS, by_number)
        state.remove(rows if at_once else rows[[KEYS.index(key) for key in keys]])
        if not at_once:
            self.model.numbers.update((key, 0) for key in KEYS if key not in self.model.numbers)
        for key in keys:
            self.model.numbers.pop(key, None)

    @rule(keys=SOME_KEYS, value=st.floats(allow_nan=False))
    def set_floats(self, keys: list[bytes], value: float) -> None:
        state = self.state.number_state("f", "float64")
        state.scatter(state.indices(keys), value)
        self.model.floats.update((key, value) for key in keys)

    @rule(entries=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=8))
    def put_objects(self, entries: dict[bytes, Any]) -> None:
        self.state.object_state("o").put_many(list(entries), list(entries.values()))
        for key, value in entries.items():
            if value is None:
                self.model.objects.pop(key, None)
            else:
                self.model.objects[key] = value

    @rule(keys=SOME_KEYS)
    def delete_objects(self, keys: list[bytes]) -> None:
        self.state.object_state("o").delete_many(keys)
        for key in keys:
            self.model.objects.pop(key, None)

    @rule(fault=st.none() | st.sampled_from(["write", "ingest"]))
    def spill(self, fault: str | None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            self.break_(patch, fault, 0)
            try:
                self.state.spill_if_needed()
            except StateError:
                assert fault

    @precondition(lambda self: len(self.pending) < 3)
    @rule()
    def freeze(self) -> None:
        self.checkpoint += 1
        pending = self.state.freeze(self.checkpoint, OperatorState(steps=self.checkpoint))
        self.pending.append((pending, copy.deepcopy(self.model)))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), fault=st.none() | st.sampled_from(sorted(FAULTS)), after=st.integers(0, 2))
    def persist(self, data: st.DataObject, fault: str | None, after: int) -> None:
        pending, model = self.pending.pop(data.draw(st.integers(0, len(self.pending) - 1)))
        with pytest.MonkeyPatch.context() as patch:
            self.break_(patch, fault, after)
            try:
                handle = self.state.persist(pending)
            except StateError:
                return  # declined
        assert handle.keys == len(model.numbers) + len(model.floats) + len(model.objects)
        if pending.checkpoint > self.complete:
            self.handles[pending.checkpoint], self.versions[pending.checkpoint] = handle, model

    @rule(fault=st.none() | st.sampled_from(sorted(FAULTS)), after=st.integers(0, 2))
    def rebase(self, fault: str | None, after: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            self.break_(patch, fault, after)
            try:
                self.state.rebase()
            except StateError:
                assert fault

    def break_(self, patch: pytest.MonkeyPatch, fault: str | None, after: int) -> None:
        if fault is None:
            return
        owner, name = FAULTS[fault]
        original = getattr(owner, name)
        left = after

        def fail(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise StateError("broken on purpose")
            return original(*args)

        patch.setattr(owner, name, fail)

    @precondition(lambda self: any(number > self.complete for number in self.handles))
    @rule(data=st.data())
    def complete_checkpoint(self, data: st.DataObject) -> None:
        waiting = sorted(number for number in self.handles if number > self.complete)
        number = data.draw(st.sampled_from(waiting))
        handle = self.handles[number]
        self.storage.manifests.write(manifest_of(number, generation=self.generation, subtasks={"s": handle}))
        self.complete = number
        self.state.checkpoint_complete(number)
        for other in list(self.handles):
            if other < number and other not in self.storage.manifests.checkpoints():
                del self.handles[other], self.versions[other]
        self.pending = [entry for entry in self.pending if entry[0].checkpoint > number]
        for old in self.storage.manifests.checkpoints()[:-RETAINED]:
            self.storage.retention.drop(old)
            del self.handles[old], self.versions[old]

    @rule()
    def collect_garbage(self) -> None:
        self.storage.retention.collect_garbage(self.generation, self.complete)

    @rule()
    def sweep(self) -> None:
        self.storage.retention.sweep(self.complete, self.checkpoint)

    @rule(data=st.data(), local=st.sampled_from(["keep", "lose one", "damage one", "lose all"]))
    def restore(self, data: st.DataObject, local: str) -> None:
        """Everything back to a retained checkpoint (or to none), in the next generation."""
        retained = self.storage.manifests.checkpoints()
        number = data.draw(st.sampled_from(retained)) if retained else None
        self.state.close()
        paths = sorted((self.root / "work").glob("*/files/*"))
        if paths and local != "keep":
            for path in paths if local == "lose all" else [data.draw(st.sampled_from(paths))]:
                if local == "damage one":
                    path.write_bytes(path.read_bytes()[::-1])
                else:
                    path.unlink()
        self.open_next()
        self.pending.clear()
        self.handles = {other: handle for other, handle in self.handles.items() if other in retained}
        if number is None:
            self.model = Model()
            return
        for newer in [other for other in retained if other > number]:
            self.storage.retention.drop(newer)
            del self.handles[newer], self.versions[newer]
        handle = self.storage.manifests.read(number).subtasks["s"]
        self.state.restore(handle)
        assert handle.operator_state.steps == number
        self.complete = number
        self.model = copy.deepcopy(self.versions[number])

    @invariant()
    def nothing_waits_without_bound(self) -> None:
        assert len(self.state._versions._queue) <= len(self.pending) + 4

    @rule()
    def read_everything(self) -> None:
        numbers, floats, objects = (
            self.state.number_state("n"),
            self.state.number_state("f", "float64"),
            self.state.object_state("o"),
        )
        known = list(self.model.numbers)
        assert numbers.gather(numbers.indices(known)).tolist() == list(self.model.numbers.values())
        known = list(self.model.floats)
        assert floats.gather(floats.indices(known)).tolist() == list(self.model.floats.values())
        assert objects.get_many(KEYS) == [self.model.objects.get(key) for key in KEYS]
        assert self.state.state_keys() == sum(
            len(entries) for entries in (self.model.numbers, self.model.floats, self.model.objects)
        )
        assert self.storage.manifests.latest_valid() is None or self.complete in self.storage.manifests.checkpoints()


TestStateMachine = StateMachine.TestCase
TestStateMachine.settings = settings(max_examples=examples(40), stateful_step_count=40)
