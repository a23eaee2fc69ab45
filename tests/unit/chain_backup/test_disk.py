"""What a copy may expect of its disk: the same of the real one and of the simulator's."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chain_backup.disk import Disk, Origin, SlotDisk
from flinkplus.errors import CorruptState, StateError
from flinkplus.protocol.snapshot.files import StateFile, digest_of
from flinkplus.state import CheckpointStorage
from tests.simulation.disk import SimVolume
from tests.simulation.parameters import Parameters, child
from tests.simulation.standbys import SimDisk, StateFiles, encode

SUBTASK = "v1[0]"
NAME = "1-2-0.sst"
CONTENT = encode(((1, 2), (3, 4)))


def real(root: Path, left: bytes | None = None) -> Disk:
    storage = CheckpointStorage(root / "checkpoints")
    storage.ownership.prepare({"name": "job", "fingerprint": "f"}, resume=False)
    local = root / "file"
    local.write_bytes(CONTENT)
    storage.state_files.upload(local, f"{SUBTASK}/{NAME}")
    if left is not None:
        path = root / "work" / SUBTASK / "left" / NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(left)
    return SlotDisk(root / "work", SUBTASK, storage.state_files)


def simulated(root: Path, left: bytes | None = None) -> Disk:
    files = StateFiles({f"{SUBTASK}/{NAME}": ((1, 2), (3, 4))}, {})
    world: Any = SimpleNamespace(
        parameters=Parameters(read_bytes=5),
        reads_wrong=0,
        rng_copies=child(0, "copies"),
        state_files=files,
        durable=SimpleNamespace(state={f"{SUBTASK}/{NAME}"}),
        note=lambda *_: None,
        counts=Counter(),
    )
    slot: Any = SimpleNamespace(world=world, volume=SimVolume())
    return SimDisk(slot, SUBTASK, None if left is None else {NAME: left})


@pytest.fixture(params=[real, simulated], ids=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Callable[[Path], Disk] = request.param
    return made(tmp_path)


def read_all(disk: Disk, name: str) -> bytes:
    """Reads may be short."""
    source, data = disk.open(name), b""
    while part := source.read(1000, len(data)):
        data += part
    source.close()
    return data


def arrive(disk: Disk, data: bytes) -> None:
    sink = disk.create(NAME)
    for at in range(0, len(data), 4):
        sink.write(memoryview(data)[at : at + 4])
    sink.close()


def test_a_file_is_held_when_it_is_adopted(disk: Disk) -> None:
    arrive(disk, b"0123456789")
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)
    disk.adopt(NAME, Origin.ARRIVED)
    assert read_all(disk, NAME) == b"0123456789"
    disk.remove(NAME)
    disk.remove(NAME)
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)


def test_what_is_discarded_begins_anew(disk: Disk) -> None:
    arrive(disk, b"rubbish")
    disk.discard(NAME, Origin.ARRIVED)
    disk.discard(NAME, Origin.ARRIVED)
    arrive(disk, b"01")
    disk.adopt(NAME, Origin.ARRIVED)
    assert read_all(disk, NAME) == b"01"


def test_a_file_comes_from_durable_storage(disk: Disk) -> None:
    size, checksum = digest_of([CONTENT])
    file = StateFile(f"{disk.folder}/{NAME}", "delta", 2, size, checksum)
    disk.download(file)
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)
    disk.adopt(NAME, Origin.DOWNLOADED)
    assert read_all(disk, NAME) == CONTENT
    disk.download(file)
    disk.discard(NAME, Origin.DOWNLOADED)
    disk.discard(NAME, Origin.DOWNLOADED)
    with pytest.raises(OSError if isinstance(disk, SlotDisk) else KeyError):
        disk.adopt(NAME, Origin.DOWNLOADED)


MAKERS = pytest.mark.parametrize("make", [real, simulated])
SIZE, CHECKSUM = digest_of([CONTENT])
FILE = StateFile(f"{SUBTASK}/{NAME}", "delta", 2, SIZE, CHECKSUM)


@MAKERS
def test_what_a_dead_process_left_is_held_when_it_is_adopted(tmp_path: Path, make: Callable[..., Disk]) -> None:
    disk = make(tmp_path, CONTENT)
    assert disk.has_left(FILE)
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)
    for swift in (False, True):
        disk.check_left(FILE, swift)
    disk.adopt(NAME, Origin.LEFT)
    assert read_all(disk, NAME) == CONTENT and not disk.has_left(FILE)
    disk.discard_all_left()
    assert read_all(disk, NAME) == CONTENT


@MAKERS
def test_what_a_dead_process_left_may_be_anything(tmp_path: Path, make: Callable[..., Disk]) -> None:
    disk = make(tmp_path, CONTENT[::-1])
    assert disk.has_left(FILE), "its size is right"
    for swift in (False, True):
        with pytest.raises(CorruptState):
            disk.check_left(FILE, swift)
    disk.discard(NAME, Origin.LEFT)
    disk.discard(NAME, Origin.LEFT)
    assert not disk.has_left(FILE)
    with pytest.raises(FileNotFoundError):
        disk.check_left(FILE, False)


@MAKERS
@pytest.mark.parametrize("left", [None, b"", CONTENT[:-1], CONTENT + b"x"])
def test_a_file_of_another_size_is_another_file(tmp_path: Path, make: Callable[..., Disk], left: bytes | None) -> None:
    disk = make(tmp_path, left)
    assert not disk.has_left(FILE)
    disk.discard_all_left()
    disk.discard_all_left()


def test_what_was_left_may_be_removed_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that tidies the slot's directory."""
    disk, folder = real(tmp_path, CONTENT), tmp_path / "work" / SUBTASK / "left"
    shutil.rmtree(folder)
    folder.write_bytes(b"no folder: the system says something else than that there is no such file")
    assert not disk.has_left(FILE)
    folder.unlink()
    folder.mkdir()
    listdir = os.listdir

    def names(path: Path) -> list[str]:
        folder.rmdir()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", names)
    again = SlotDisk(tmp_path / "work", SUBTASK, CheckpointStorage(tmp_path / "checkpoints").state_files)
    assert (again.newest_left, again.has_left(FILE)) == (0, False)


@MAKERS
def test_what_is_not_needed_goes(tmp_path: Path, make: Callable[..., Disk]) -> None:
    disk = make(tmp_path, CONTENT)
    disk.discard_all_left()
    assert not disk.has_left(FILE)
    assert not list(tmp_path.glob("work/*/left"))


def test_a_file_of_durable_storage_that_is_another_one_is_refused(disk: Disk) -> None:
    with pytest.raises((CorruptState, StateError)):
        disk.download(StateFile(f"{disk.folder}/{NAME}", "delta", 2, len(CONTENT), "0" * 40))
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)
