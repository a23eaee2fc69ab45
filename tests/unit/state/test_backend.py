"""A subtask's state from freeze to restore, in the words of what a runtime does with it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flinkplus.errors import ConfigurationError, StateError
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart, OperatorState, SnapshotHandle
from flinkplus.state import BasePolicy, CheckpointStorage, PendingSnapshot, SubtaskState, versions
from flinkplus.state.backend import folder_name
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.sst_format import WRITE_CHUNK_ENTRIES, Chunk, write_sst
from flinkplus.state.store import SubtaskStore
from flinkplus.state.versions import FIRST_CHUNK_ENTRIES, FIRST_LEAD
from tests.handles import manifest_of, part_of

NEVER = BasePolicy(ratio=1e9, min_bytes=1 << 60, max_deltas=10_000)


def add(state: SubtaskState, *keys: bytes, amount: int = 1) -> None:
    numbers = state.number_state("count")
    rows = numbers.indices(list(keys))
    numbers.scatter(rows, numbers.gather(rows) + amount)


def read(state: SubtaskState, *keys: bytes) -> list[int]:
    numbers = state.number_state("count")
    return numbers.gather(numbers.indices(list(keys))).tolist()


def snapshot(state: SubtaskState, checkpoint: int, **saved) -> SnapshotHandle:
    handle = state.persist(state.freeze(checkpoint, OperatorState(**saved)))
    state.rebase()
    return SnapshotHandle.from_json(json.loads(json.dumps(handle.to_json())))


def many(count: int) -> list[bytes]:
    return [b"key%06d" % number for number in range(count)]


def test_reads_of_rocksdb_are_counted(open_state) -> None:
    first = open_state()
    add(first, *many(50))
    assert first.state_reads() == 0, "memory knows that it has every key"
    second = open_state(generation=2, work="elsewhere")
    second.restore(snapshot(first, 1))
    before = second.state_reads()  # restoring looks for the format
    read(second, *many(20))
    read(second, *many(30))
    assert second.state_reads() - before == 30, "keys that are in memory by now are not looked up again"


def test_restored_in_a_fresh_process_from_storage_alone(open_state) -> None:
    first = open_state()
    add(first, b"a", b"b", b"a")
    first.object_state("seen").put_many([b"x", b"y"], [{"n": 1}, (1, "2")])
    handle = snapshot(first, 1, steps=7)
    add(first, b"a", amount=100)
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert handle.operator_state.steps == 7
    assert second.state_keys() == 4
    assert read(second, b"a", b"b", b"c") == [1, 1, 0]
    assert second.object_state("seen").get_many([b"x", b"y", b"z"]) == [{"n": 1}, (1, "2"), None]
    assert second.state_keys() == 5
    assert second.state_bytes() == handle.bytes_total > 0


def test_a_restore_takes_the_store_that_is_open_unless_it_was_used(open_state, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_state()
    add(first, b"a")
    handle = snapshot(first, 1)
    opened: list[Path] = []
    actual = SubtaskStore._opened

    def counted(store: SubtaskStore) -> object:
        opened.append(store.directory)
        return actual(store)

    monkeypatch.setattr(SubtaskStore, "_opened", counted)
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, b"a") == [1]
    assert len(opened) == 1
    add(second, b"b")
    snapshot(second, 2)
    second.restore(handle)
    assert read(second, b"a", b"b") == [1, 0], "what was written before the restore is gone"
    assert len(set(opened)) == 2
    assert not opened[0].exists()


def test_a_restored_state_compacts_nothing_before_its_first_version(open_state) -> None:
    first = open_state()
    add(first, b"a")
    second = open_state(generation=2, work="elsewhere")
    second.restore(snapshot(first, 1))
    assert second._store._quiet
    snapshot(second, 2)
    assert not second._store._quiet, "also one that is only read"


def test_a_handle_says_what_it_holds(open_state) -> None:
    state = open_state(policy=NEVER)
    add(state, *many(100))
    first = snapshot(state, 1)
    add(state, b"key000000")
    second = snapshot(state, 2, steps=8)
    third = snapshot(state, 3)
    assert (first.subtask, first.generation, first.checkpoint, first.keys) == ("count[0]", 1, 1, 100)
    assert [(file.name, file.kind, file.entries) for file in second.files] == [
        ("count[0]/1-1-1.sst", "base", 100),
        ("count[0]/1-2-2.sst", "delta", 1),
    ]
    assert second.bytes_total == sum(file.bytes for file in second.files)
    assert second.bytes_new == second.files[1].bytes
    assert second.operator_state == OperatorState(steps=8)
    assert (third.files, third.bytes_new) == (second.files, 0)
    assert second.states == {"count": KeyedPart(kind="number", dtype="int64", keys=100)}
    assert 0 <= second.sync_ms < 1_000 and 0 < second.async_ms < 60_000


def test_an_empty_state_has_a_snapshot_too(open_state) -> None:
    handle = snapshot(open_state(), 1, steps=3)
    assert handle.files == ()
    second = open_state(generation=2)
    second.restore(handle)
    assert read(second, b"a") == [0]


def test_a_snapshot_is_of_the_moment_it_was_frozen(open_state) -> None:
    state = open_state()
    add(state, b"a", b"b")
    one = state.freeze(1, OperatorState())
    add(state, b"a", b"c")
    two = state.freeze(2, OperatorState())
    add(state, b"a")
    second_handle, first_handle = state.persist(two), state.persist(one)
    fresh = open_state(generation=2)
    fresh.restore(second_handle)
    assert read(fresh, b"a", b"b", b"c") == [2, 1, 1]
    fresh.restore(first_handle)
    assert read(fresh, b"a", b"b", b"c") == [1, 1, 0]


def test_operator_state_must_be_json_and_is_copied(open_state) -> None:
    state = open_state()
    offsets = [1]
    pending = state.freeze(1, OperatorState(operators={"read": part_of(position=offsets)}))
    offsets.append(2)
    assert state.persist(pending).operator_state.operators == {"read": part_of(position=[1])}
    with pytest.raises(TypeError, match="JSON"):
        state.freeze(2, OperatorState(operators={"bad": part_of(state=object())}))


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_state_keeps_its_kind(open_state) -> None:
    state = open_state()
    assert state.number_state("n") is state.number_state("n", "int64")
    with pytest.raises(ConfigurationError, match=r"count\[0\] .*float64.* number state of int64"):
        state.number_state("n", "float64")
    with pytest.raises(ConfigurationError, match="different names"):
        state.object_state("n")
    handle = snapshot(state, 1)
    second = open_state(generation=2)
    second.restore(handle)
    with pytest.raises(ConfigurationError, match="new name"):
        second.object_state("n")


def test_states_asked_for_before_restoring_are_filled(open_state) -> None:
    state = open_state()
    add(state, b"a")
    handle = snapshot(state, 1)
    second = open_state(generation=2)
    numbers = second.number_state("count")
    add(second, b"a", b"zz", amount=50)
    second.restore(handle)
    assert second.number_state("count") is numbers
    assert read(second, b"a", b"zz") == [1, 0]


def test_states_that_nobody_asks_for_survive(open_state) -> None:
    state = open_state()
    add(state, b"a")
    state.object_state("other").put_many([b"k"], [[1]])
    handle = snapshot(state, 1)
    second = open_state(generation=2)
    second.restore(handle)
    second.number_state("third").indices([b"1", b"2", b"3"])
    third = open_state(generation=3, work="elsewhere")
    third.restore(snapshot(second, 2))
    assert third.object_state("other").get_many([b"k"]) == [[1]]
    assert read(third, b"a") == [1]
    assert third.state_keys() == 5


def test_folder_names_are_distinct_and_fit() -> None:
    names = ["count+out[1]", "a/b", "a%2Fb", "a_b", "..", ".", "x" * 300, "x" * 301, "ü"]
    folders = [folder_name(name) for name in names]
    assert len(set(folders)) == len(names)
    assert folders[0] == "count+out[1]"
    assert all("/" not in name and 0 < len(name) <= 120 and name not in (".", "..") for name in folders)


# -- bases ------------------------------------------------------------------------------------------------------------


def test_a_base_straight_from_memory_when_most_keys_changed(open_state) -> None:
    state = open_state(policy=BasePolicy(full_deltas=2))
    keys = many(1_000)
    add(state, *keys)
    snapshot(state, 1)
    add(state, *keys[:400])
    assert [file.kind for file in snapshot(state, 2).files] == ["base", "delta"]
    add(state, *keys[:500])
    assert [file.kind for file in snapshot(state, 3).files] == ["base", "delta", "delta"], "too early for a base"
    add(state, *keys[:500])
    handle = snapshot(state, 4)
    assert [(file.kind, file.entries) for file in handle.files] == [("base", 1_000)]
    second = open_state(generation=2)
    second.restore(handle)
    assert read(second, keys[0], keys[450], keys[999]) == [4, 3, 1]


def test_a_version_of_most_keys_is_a_base_when_the_deltas_are_as_large(open_state) -> None:
    state = open_state(policy=BasePolicy(full_bytes=1))
    keys = many(1_000)
    kinds = []
    for checkpoint in range(1, 5):
        add(state, *keys)
        kinds.append([file.kind for file in snapshot(state, checkpoint).files])
    assert kinds == [["base"], ["base", "delta"], ["base"], ["base", "delta"]]


def test_a_base_from_rocksdb_when_deltas_pile_up(open_state, tmp_path: Path) -> None:
    state = open_state(policy=BasePolicy(max_deltas=3), max_entries=50)
    keys = many(200)
    for start in range(0, 200, 20):
        add(state, *keys[start : start + 20])
        state.spill_if_needed()
    objects = state.object_state("o")
    objects.put_many(keys[:10], list(range(10)))
    snapshot(state, 1)
    objects.delete_many(keys[:5])
    kinds = []
    for checkpoint in range(2, 9):
        add(state, *keys[:3])
        handle = snapshot(state, checkpoint)
        state.checkpoint_complete(checkpoint)
        kinds.append([file.kind for file in handle.files])
    assert all(1 <= len(files) <= 5 and files[0] == "base" for files in kinds)
    assert ["base", "delta"] in kinds
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, *keys) == [8] * 3 + [1] * 197
    assert second.object_state("o").get_many(keys[3:7]) == [None, None, 5, 6]
    assert len(list((tmp_path / "work" / "count[0]" / "files").iterdir())) == len(handle.files)


def test_a_base_says_what_it_replaces_and_no_version_waits_for_it(open_state) -> None:
    state = open_state(policy=BasePolicy(max_deltas=1))
    add(state, *many(100))
    snapshot(state, 1)
    for checkpoint in (2, 3):
        add(state, *many(checkpoint))
        before = snapshot(state, checkpoint)
    assert len(before.files) == 3
    add(state, b"x")
    base, *deltas = snapshot(state, 4).files
    assert base.replaces == before.files
    assert StateFile.from_json(base.to_json()).replaces == before.files
    assert len(deltas) == 1
    assert "replaces" not in deltas[0].to_json()


def test_a_base_that_comes_too_late_is_given_up(open_state, storage: CheckpointStorage, tmp_path: Path) -> None:
    """Garbage collection may have taken it: no version names it, and it belongs to a checkpoint that has passed."""
    state = open_state(policy=BasePolicy(max_deltas=0))
    add(state, *many(100))
    state.persist(state.freeze(1, OperatorState()))
    add(state, *many(1))
    state.persist(state.freeze(2, OperatorState()))
    upload = StateFiles.upload
    handles: list[SnapshotHandle] = []

    def overtaken(self: StateFiles, local: Path, name: str) -> None:
        upload(self, local, name)
        patch.undo()
        for checkpoint in range(3, 3 + FIRST_LEAD):
            add(state, *many(1))
            handles.append(state.persist(state.freeze(checkpoint, OperatorState())))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateFiles, "upload", overtaken)
        assert not state.rebase()
    last = handles[-1]
    storage.manifests.write(manifest_of(last.checkpoint, subtasks={"s": last}))
    storage.retention.collect_garbage(1, last.checkpoint)
    assert len(last.files) == 2 + FIRST_LEAD
    assert len(list((tmp_path / "work" / "count[0]" / "files").iterdir())) == 2 + FIRST_LEAD
    assert state.rebase()
    handle = snapshot(state, 100)
    assert len(handle.files) == 1
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, *many(2)) == [2 + FIRST_LEAD, 1]


def test_policy() -> None:
    def files(base: int, *deltas: int) -> list[StateFile]:
        return [StateFile("b", "base", 1, base, ""), *(StateFile("d", "delta", 1, size, "") for size in deltas)]

    policy = BasePolicy(ratio=2, min_bytes=100, max_deltas=3)
    assert not policy.due([])
    assert not policy.due(files(10, 50, 50))
    assert policy.due(files(10, 50, 51))
    assert not policy.due(files(60, 60, 60))
    assert policy.due(files(60, 60, 61))
    assert policy.due(files(1_000, 1, 1, 1, 1))


# -- memory -----------------------------------------------------------------------------------------------------------


def test_more_keys_than_fit_are_spilled(open_state) -> None:
    state = open_state(max_entries=100)
    keys = many(2_000)
    for start in range(0, 2_000, 40):
        add(state, *keys[start : start + 40], keys[0])
        state.object_state("o").put_many(keys[start : start + 40], [start] * 40)
        state.spill_if_needed()
        assert len(state.number_state("count")._table) <= 141
    assert state.state_keys() == 4_000
    handle = snapshot(state, 1)
    assert len(handle.files) > 5
    assert read(state, keys[0], keys[1_999]) == [50, 1]
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, keys[0], *keys[1:]) == [50] + [1] * 1_999
    assert second.object_state("o").get_many([keys[0], keys[1_999]]) == [0, 1_960]


def test_a_spill_between_freeze_and_persist_is_not_in_the_handle(open_state) -> None:
    state = open_state(max_entries=10, policy=BasePolicy(max_deltas=0))
    add(state, *many(11))
    pending = state.freeze(1, OperatorState())
    add(state, *many(11))
    read(state, b"key000000")
    assert state.spill_if_needed()
    handle = state.persist(pending)
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, *many(11)) == [1] * 11
    second.restore(snapshot(state, 2))
    assert read(second, *many(11)) == [2] * 11


def test_files_of_a_later_version_carry_a_later_checkpoint(open_state, storage: CheckpointStorage) -> None:
    """Or garbage collection after checkpoint 1 would take what only the handle of checkpoint 2 is going to name."""
    state = open_state(max_entries=10, policy=BasePolicy(max_deltas=0))
    add(state, *many(11))
    snapshot(state, 1)
    add(state, *many(5))
    pending = state.freeze(2, OperatorState())
    add(state, *many(11))
    read(state, b"key000000")
    assert state.spill_if_needed()
    manifests = {2: state.persist(pending)}
    assert state.rebase()
    manifests[3] = snapshot(state, 3)
    storage.manifests.write(manifest_of(2, subtasks={"s": manifests[2]}))
    storage.retention.collect_garbage(1, 2)
    storage.manifests.write(manifest_of(3, subtasks={"s": manifests[3]}))
    storage.retention.collect_garbage(1, 3)
    for checkpoint, expected in ((2, 2), (3, 3)):
        second = open_state(generation=checkpoint, work=f"elsewhere{checkpoint}")
        second.restore(storage.manifests.read(checkpoint).subtasks["s"])
        assert read(second, b"key000000") == [expected]
    carried = [int(file.name.split("-")[1]) for file in manifests[3].files]
    assert min(carried) >= 3


@pytest.mark.parametrize(("size", "most"), [(8, WRITE_CHUNK_ENTRIES), (1_000, 256), (60_000, 4)])
def test_a_base_is_read_in_pieces_of_limited_size(
    open_state, monkeypatch: pytest.MonkeyPatch, size: int, most: int
) -> None:
    """The interpreter lock is kept for each of them."""
    found: list[int] = []

    def noted(chunks: Iterable[Chunk], path: Path) -> int:
        def passed() -> Iterator[Chunk]:
            for keys, values in chunks:
                found.append(len(keys))
                yield keys, values

        return write_sst(passed(), path)

    state = open_state(policy=BasePolicy(max_deltas=0))
    count = FIRST_CHUNK_ENTRIES + 3 * most
    values = [os.urandom(size) for _ in range(count)]
    state.object_state("seen").put_many(many(count), values)
    state.persist(state.freeze(1, OperatorState()))
    state.object_state("seen").put_many(many(1), values[-1:])
    state.persist(state.freeze(2, OperatorState()))
    monkeypatch.setattr(versions, "write_sst", noted)
    assert state.rebase()
    assert sum(found) == count
    assert found[0] == FIRST_CHUNK_ENTRIES
    assert max(found[1:]) == pytest.approx(most, rel=0.1)


# -- threads ----------------------------------------------------------------------------------------------------------


def test_snapshots_beside_the_stream(open_state) -> None:
    """Every handle holds the sums of its moment, while one thread adds and another persists."""
    state = open_state(max_entries=3_000, policy=BasePolicy(ratio=0.5, min_bytes=1, max_deltas=2))
    keys = many(5_000)
    model = np.zeros(len(keys), np.int64)
    rng = np.random.default_rng(5)
    results: list[tuple[dict, np.ndarray]] = []
    errors: list[BaseException] = []
    wake, done = threading.Semaphore(0), threading.Event()
    queue: list[tuple[PendingSnapshot, np.ndarray]] = []

    def persist_all() -> None:
        while True:
            wake.acquire()
            if not queue:
                if done.is_set():
                    return
                continue
            pending, expected = queue.pop(0)
            try:
                results.append((state.persist(pending), expected))
                wanted.release()
            except BaseException as error:
                errors.append(error)
                return

    def rebase_all() -> None:
        try:
            for _ in range(10):  # one for each snapshot, however late
                wanted.acquire()
                bases.append(state.rebase())
        except BaseException as error:
            errors.append(error)

    bases: list[bool] = []
    wanted = threading.Semaphore(0)
    threads = [threading.Thread(target=persist_all), threading.Thread(target=rebase_all)]
    for thread in threads:
        thread.start()
    for batch in range(200):
        chosen = rng.choice(len(keys), 200, replace=False)
        add(state, *[keys[row] for row in chosen])
        model[chosen] += 1
        state.spill_if_needed()
        if batch % 20 == 19:
            queue.append((state.freeze(batch, OperatorState()), model.copy()))
            wake.release()
    done.set()
    wake.release()
    for thread in threads:
        thread.join(60)
    assert not errors and len(results) == len(bases) == 10
    assert any(bases)
    second = open_state(generation=2, work="elsewhere", max_entries=10_000)
    for handle, expected in results[-3:]:
        second.restore(handle)
        assert read(second, *keys) == expected.tolist()


def test_close_abandons_a_persist_under_way(open_state, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = open_state()
    add(state, *many(100))
    reached, go_on = threading.Event(), threading.Event()

    def slow_upload(self, local: Path, name: str) -> None:
        reached.set()
        go_on.wait(60)

    monkeypatch.setattr(StateFiles, "upload", slow_upload)
    errors: list[BaseException] = []

    def persist() -> None:
        try:
            state.persist(pending)
        except BaseException as error:
            errors.append(error)

    pending = state.freeze(1, OperatorState())
    thread = threading.Thread(target=persist)
    thread.start()
    assert reached.wait(60)
    state.close()  # does not wait for the upload
    go_on.set()
    thread.join(60)
    assert [type(error) for error in errors] == [StateError]
    assert "closed" in str(errors[0])
    assert not list((tmp_path / "work" / "count[0]").glob("db-*"))
    with pytest.raises(StateError, match="closed"):
        state.persist(state.freeze(2, OperatorState()))
