"""Disks that fail half-way, storage that is away, torn files: nothing is lost, nothing wrong is believed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.state import BasePolicy, SubtaskState, sst_format, versions
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.sst_format import Chunk
from flinkplus.state.store import SubtaskStore

NEVER = BasePolicy(ratio=1e9, min_bytes=1 << 60, max_deltas=10_000)
KEYS = [b"key%06d" % number for number in range(300)]


def add(state: SubtaskState, *keys: bytes) -> None:
    numbers = state.number_state("count")
    rows = numbers.indices(list(keys))
    numbers.scatter(rows, numbers.gather(rows) + 1)


def read(state: SubtaskState, *keys: bytes) -> list[int]:
    numbers = state.number_state("count")
    return numbers.gather(numbers.indices(list(keys))).tolist()


def snapshot(state: SubtaskState, checkpoint: int) -> SnapshotHandle:
    handle = state.persist(state.freeze(checkpoint, OperatorState(steps=checkpoint)))
    state.rebase()
    return handle


@contextmanager
def failing(owner: object, name: str, error: Exception, after: int = 0) -> Iterator[None]:
    """``owner.name`` raises ``error`` from its call number ``after`` on."""
    original: Callable = getattr(owner, name)
    calls = 0

    def fail(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield


FULL = OSError(28, "No space left on device")
STAGES = {
    "writing": (sst_format, "_write_chunk", FULL),
    "renaming": (os, "replace", FULL),
    "checksum": (versions, "describe", FULL),
    "ingest": (SubtaskStore, "ingest", StateError("cannot ingest")),
    "upload": (StateFiles, "upload", StateError("cannot be stored")),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("with_base", [False, True])
def test_the_next_snapshot_carries_what_a_failed_one_could_not(open_state, stage: str, with_base: bool) -> None:
    state = open_state(policy=BasePolicy(max_deltas=0) if with_base else NEVER)
    add(state, *KEYS)
    snapshot(state, 1)
    add(state, *KEYS[:100])
    state.object_state("o").put_many([b"x"], ["x"])
    with failing(*STAGES[stage]), pytest.raises(StateError):
        snapshot(state, 2)
    add(state, KEYS[0])
    handle = snapshot(state, 3)
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert handle.operator_state.steps == 3
    assert read(second, KEYS[0], KEYS[1], KEYS[299]) == [3, 2, 1]
    assert second.object_state("o").get_many([b"x"]) == ["x"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_snapshot_frozen_before_the_failure_carries_it_too(open_state, stage: str) -> None:
    state = open_state(policy=NEVER)
    add(state, *KEYS)
    one = state.freeze(1, OperatorState())
    add(state, *KEYS[:10])
    two = state.freeze(2, OperatorState())
    with failing(*STAGES[stage]), pytest.raises(StateError):
        state.persist(one)
    add(state, *KEYS[:10])
    second = open_state(generation=2, work="elsewhere")
    second.restore(state.persist(two))
    assert read(second, KEYS[0], KEYS[10]) == [2, 1]
    second.restore(snapshot(state, 3))
    assert read(second, KEYS[0], KEYS[10]) == [3, 1]


@pytest.mark.parametrize("stage", STAGES)
def test_a_long_outage_does_not_pile_up(open_state, stage: str, tmp_path: Path) -> None:
    state = open_state(policy=NEVER)
    with failing(*STAGES[stage]):
        for checkpoint in range(1, 21):
            add(state, *KEYS)
            state.object_state("o").put_many(KEYS, [checkpoint] * len(KEYS))
            with pytest.raises(StateError):
                snapshot(state, checkpoint)
        folder = tmp_path / "work" / "count[0]" / "files"
        assert len(list(folder.iterdir())) <= NEVER.full_deltas + 2
    assert len(state._versions._queue) <= 1
    handle = snapshot(state, 21)
    state.checkpoint_complete(21)
    assert len(list(folder.iterdir())) == len(handle.files)
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, *KEYS) == [20] * len(KEYS)
    assert second.object_state("o").get_many(KEYS) == [20] * len(KEYS)


def test_a_snapshot_that_was_thawed_is_declined(open_state) -> None:
    state = open_state()
    add(state, *KEYS)
    one = state.freeze(1, OperatorState())
    with failing(*STAGES["writing"]), pytest.raises(StateError):
        state.persist(one)
    state.freeze(2, OperatorState())
    with pytest.raises(StateError, match="a newer one has its changes"):
        state.persist(one)


def test_one_failure_does_not_take_others_along(open_state) -> None:
    state = open_state(policy=NEVER)
    add(state, *KEYS)
    one, two = state.freeze(1, OperatorState()), state.freeze(2, OperatorState())
    with failing(*STAGES["writing"]), pytest.raises(StateError):
        state.persist(one)
    three = state.freeze(3, OperatorState())
    for pending in (two, three):
        second = open_state(generation=2, work="elsewhere")
        second.restore(state.persist(pending))
        assert read(second, *KEYS) == [1] * len(KEYS)


def test_failures_do_not_pile_up_behind_a_snapshot_that_nobody_persists(open_state) -> None:
    state = open_state(policy=NEVER)
    add(state, *KEYS)
    early = [state.freeze(checkpoint, OperatorState()) for checkpoint in (1, 2)]
    with failing(*STAGES["writing"]):
        for checkpoint in range(3, 23):
            add(state, *KEYS)
            with pytest.raises(StateError):
                snapshot(state, checkpoint)
            assert len(state._versions._queue) <= 4
    for pending in early:
        with pytest.raises(StateError, match="a newer one has its changes"):
            state.persist(pending)
    second = open_state(generation=2, work="elsewhere")
    second.restore(snapshot(state, 23))
    assert read(second, *KEYS) == [21] * len(KEYS)


def test_a_snapshot_that_nobody_persists_is_carried(open_state) -> None:
    state = open_state(policy=NEVER)
    add(state, *KEYS)
    state.freeze(1, OperatorState())
    add(state, KEYS[0])
    handle = snapshot(state, 2)
    assert len(handle.files) == 2
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, KEYS[0], KEYS[1]) == [2, 1]


def test_a_base_that_fails_is_tried_again(open_state) -> None:
    state = open_state(policy=BasePolicy(max_deltas=1))
    add(state, *KEYS)
    snapshot(state, 1)
    for checkpoint in (2, 3, 4):
        add(state, KEYS[0])
        if checkpoint == 3:
            with failing(sst_format, "_write_chunk", FULL, after=1), pytest.raises(StateError, match="No space"):
                snapshot(state, checkpoint)
        else:
            handle = snapshot(state, checkpoint)
    assert [file.kind for file in handle.files] == ["base", "delta", "delta", "delta"]
    assert [file.kind for file in snapshot(state, 5).files] == ["base"]
    second = open_state(generation=2, work="elsewhere")
    second.restore(handle)
    assert read(second, KEYS[0], KEYS[1]) == [4, 1]


@pytest.mark.parametrize("stage", ["writing", "ingest"])
def test_a_spill_that_fails_loses_nothing(open_state, stage: str) -> None:
    state = open_state(max_entries=100)
    add(state, *KEYS)
    read(state, KEYS[0])
    with failing(*STAGES[stage]), pytest.raises(StateError):
        state.spill_if_needed()
    add(state, *KEYS)
    assert state.spill_if_needed()
    assert read(state, *KEYS) == [2] * len(KEYS)
    assert len(state.number_state("count")._table) >= 300
    second = open_state(generation=2, work="elsewhere")
    second.restore(snapshot(state, 1))
    assert read(second, *KEYS) == [2] * len(KEYS)


# -- restoring --------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_files(open_state) -> SnapshotHandle:
    """The handle of a base and two deltas, whose work directory has local copies of all."""
    state = open_state(policy=NEVER)
    for checkpoint in (1, 2, 3):
        add(state, *KEYS[: 300 // checkpoint**2])
        handle = snapshot(state, checkpoint)
    state.close()
    assert len(handle.files) == 3
    return handle


def copies(tmp_path: Path, handle: SnapshotHandle, where: str) -> list[Path]:
    folder = tmp_path / ("work/count[0]/files" if where == "local" else "checkpoints/state/count[0]")
    return [folder / file.name.rpartition("/")[2] for file in handle.files]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    match how:
        case "flip":
            path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
        case "truncate":
            path.write_bytes(content[:-1])
        case "empty":
            path.write_bytes(b"")
        case _:
            path.unlink()


DAMAGES = ["flip", "truncate", "empty", "missing"]


def check(state: SubtaskState) -> None:
    assert read(state, KEYS[0], KEYS[40], KEYS[299]) == [3, 2, 1]


def test_local_copies_are_enough(open_state, tmp_path: Path, three_files: SnapshotHandle) -> None:
    shutil.rmtree(tmp_path / "checkpoints" / "state")
    state = open_state(generation=2)
    state.restore(three_files)
    check(state)


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_bad_local_copies_are_replaced(
    open_state, tmp_path: Path, three_files: SnapshotHandle, how: str, which: int
) -> None:
    path = copies(tmp_path, three_files, "local")[which]
    whole = path.read_bytes()
    damage(path, how)
    state = open_state(generation=2)
    state.restore(three_files)
    check(state)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_bad_stored_files_are_refused(
    open_state, tmp_path: Path, three_files: SnapshotHandle, how: str, which: int
) -> None:
    stored = copies(tmp_path, three_files, "stored")
    damage(stored[which], how)
    state = open_state(generation=2, work="elsewhere")
    with pytest.raises(CorruptState, match=stored[which].name):
        state.restore(three_files)
    older = replace(three_files, files=three_files.files[:which])  # as an older checkpoint would have it
    state.restore(older)
    assert read(state, KEYS[0]) == [which]


def test_a_restored_state_goes_on(open_state, tmp_path: Path, three_files: SnapshotHandle) -> None:
    state = open_state(generation=2, policy=NEVER)
    state.restore(three_files)
    add(state, KEYS[0], b"new")
    handle = snapshot(state, 4)
    assert [file.name.split("/")[1] for file in handle.files] == [
        "1-1-1.sst",
        "1-2-2.sst",
        "1-3-3.sst",
        "2-4-1.sst",
    ]
    assert handle.bytes_new == handle.files[3].bytes
    third = open_state(generation=3, work="elsewhere")
    third.restore(handle)
    assert read(third, KEYS[0], b"new", KEYS[299]) == [4, 1, 1]
    assert third.state_keys() == 301


def test_restoring_an_older_version_forgets_the_newer(open_state, three_files: SnapshotHandle, tmp_path: Path) -> None:
    state = open_state(generation=2)
    add(state, b"gone")
    state.restore(replace(three_files, checkpoint=1, files=three_files.files[:1]))
    assert read(state, KEYS[0], b"gone") == [1, 0]
    assert [path.name for path in (tmp_path / "work/count[0]/files").iterdir()] == ["1-1-1.sst"]


def test_leftovers_of_a_dead_process_are_no_trouble(open_state, tmp_path: Path, three_files: SnapshotHandle) -> None:
    folder = tmp_path / "work" / "count[0]"
    (folder / "db-2-1").mkdir()
    (folder / "db-2-1" / "CURRENT").write_text("half")
    for name in ("1-9-9.sst", "1-3-9.sst.tmp", "1-3-3.ingest", "1-3-3.fetch"):
        (folder / "files" / name).write_bytes(b"half")
    state = open_state(generation=2)
    state.restore(three_files)
    check(state)
    assert len(list((folder / "files").iterdir())) == 3


def test_torn_chunks_never_become_a_file(open_state, tmp_path: Path) -> None:
    state = open_state()
    add(state, *KEYS)
    part = state.number_state("count").freeze()
    assert part is not None

    def torn() -> Iterator[Chunk]:
        yield from part.sorted_chunks()
        raise FULL

    with pytest.raises(StateError, match="No space"):
        sst_format.write_sst(torn(), tmp_path / "x.sst")
    assert not list(tmp_path.glob("x.sst*"))
