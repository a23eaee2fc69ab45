"""What one slot of a host has checked, the others do not read; a file that may be another one they do."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.files import StateFile, digest_of
from flinkplus.runtime.host import shared_checks
from flinkplus.runtime.host.shared_checks import LEAST_BYTES, SharedChecks
from flinkplus.state.durable.state_files import check_alone

WAIT_S = 30.0


class Host:
    """Slots whose directories are beside each other, and one file in storage. ``reads``: paths that were read whole."""

    def __init__(self, root: Path, size: int = LEAST_BYTES) -> None:
        self.root = root
        self.reads: list[Path] = []
        self.stored = root / "stored.sst"
        self.stored.write_bytes(os.urandom(size))
        size, checksum = digest_of([self.stored.read_bytes()])
        self.file = StateFile("a[0]/1-1-1.sst", "base", 1, size, checksum)

    def slots(self) -> list[Path]:
        return sorted(self.root.glob("slot-*"))

    def slot(self, number: int) -> Callable[[], None]:
        """Returns what a slot does that needs the file."""
        own = self.root / f"slot-{number}"
        own.mkdir()
        checks = SharedChecks(own, self.slots)
        path = own / "linked.sst"

        def check() -> None:
            path.unlink(missing_ok=True)
            os.link(self.stored, path)
            checks(self.file, path)

        return check


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host(tmp_path)

    def noted(file: StateFile, path: Path) -> None:
        host.reads.append(path)
        check_alone(file, path)

    monkeypatch.setattr(shared_checks, "check_alone", noted)
    return host


def test_one_slot_checks_for_all(host: Host) -> None:
    first, second = host.slot(1), host.slot(2)
    for check in (first, second, second, host.slot(3)):
        check()
    assert [path.parent.name for path in host.reads] == ["slot-1"]


def test_slots_that_begin_together_read_it_once(host: Host) -> None:
    slots = [threading.Thread(target=host.slot(number)) for number in range(8)]
    for slot in slots:
        slot.start()
    for slot in slots:
        slot.join(WAIT_S)
    assert len(host.reads) == 1 and not any(slot.is_alive() for slot in slots)


def test_a_file_that_was_changed_is_read_again(host: Host) -> None:
    check = host.slot(1)
    check()
    data = bytearray(host.stored.read_bytes())
    data[1000] ^= 1
    time.sleep(0.02)  # times of files have steps of a few milliseconds
    host.stored.write_bytes(data)
    with pytest.raises(CorruptState, match="checksum"):
        check()
    with pytest.raises(CorruptState, match="checksum"):
        host.slot(2)()


def test_a_file_in_its_place_is_read_again(host: Host) -> None:
    check = host.slot(1)
    check()
    found, data = host.stored.stat(), host.stored.read_bytes()
    other = host.root / "other.sst"
    other.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(host.stored)
    with pytest.raises(CorruptState, match="checksum"):
        check()


def test_a_damaged_file_has_no_note(host: Host) -> None:
    os.truncate(host.stored, LEAST_BYTES - 1)
    for number in (1, 2):
        with pytest.raises(CorruptState, match="bytes instead of"):
            host.slot(number)()
    assert len(host.reads) == 2


def test_a_slot_that_stopped_with_the_lock_is_not_waited_for(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_checks, "PATIENCE_S", 0.05)
    with host.stored.open("rb") as held:
        fcntl.flock(held.fileno(), fcntl.LOCK_EX)
        host.slot(1)()
        host.slot(2)()
    assert len(host.reads) == 1, "the note counts without the lock, too"


def test_notes_of_an_ended_slot_or_an_earlier_boot_do_not_count(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host.slot(1)()
    (host.root / "slot-1").rename(tmp_path / "ended")
    host.slot(2)()
    assert len(host.reads) == 2
    booted = tmp_path / "boot_id"
    booted.write_text("another\n")
    monkeypatch.setattr(shared_checks, "BOOT_ID", booted)
    host.slot(3)()
    assert len(host.reads) == 3
    monkeypatch.setattr(shared_checks, "BOOT_ID", tmp_path / "none")
    host.slot(4)()
    host.slot(5)()
    assert len(host.reads) == 5, "where boots cannot be told apart, each slot checks"


def test_small_files_have_no_notes(tmp_path: Path) -> None:
    host = Host(tmp_path, LEAST_BYTES - 1)
    host.slot(1)()
    assert [path.name for path in (tmp_path / "slot-1").iterdir()] == ["linked.sst"]


def test_a_note_that_cannot_be_written_costs_only_time(host: Host) -> None:
    check = host.slot(1)
    (host.root / "slot-1" / SharedChecks(host.root, host.slots)._folder).write_text("in the way")
    check()
    check()
    assert len(host.reads) == 2
