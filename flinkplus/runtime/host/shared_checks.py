"""Which state files were checked on this host: what one slot has read and compared, the others need not read again.

The files of a divided checkpoint belong to several subtasks, and to their standbys. Where the checkpoint directory is
on the disk of the slots, all of them have links to one file.

Rules:
- a note says which file it was: device, number, size and time of the last change. One that was changed, or that has
  come in its place, has no note. Nor has any after the host was started again: what was read may not have been on disk;
- notes are in the directory of the slot that made them, which no other user can write to, and go with it;
- one slot at a time checks a file, and holds a lock on it. Others wait for about as long as that takes, and check it by
  themselves then: the one with the lock may have stopped.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.durable.state_files import check_alone

NOTES_FOLDER = "checked"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SLOW_BYTES_PER_S = 100e6
PATIENCE_S = 1.0
LOOK_S = 0.005
LEAST_BYTES = 1 << 20
"""Smaller files are checked in less time than a note takes."""


class SharedChecks:
    """``Check`` for the slot with the directory ``own``. ``slots``: returns those of all slots of the job on this host.

    Any thread.
    """

    def __init__(self, own: Path, slots: Callable[[], Iterable[Path]]) -> None:
        self._slots = slots
        try:
            self._folder = f"{NOTES_FOLDER}-{BOOT_ID.read_text().strip()}"
            self._notes: Path | None = own / self._folder
        except OSError:  # not Linux
            self._folder, self._notes = "", None

    def __call__(self, file: StateFile, path: Path) -> None:
        """Check the file at ``path``, unless a slot of this host has."""
        if self._notes is None or file.bytes < LEAST_BYTES:
            check_alone(file, path)
            return
        with path.open("rb") as source:
            self._await_turn(source.fileno(), file.bytes)
            note = _note(file, os.fstat(source.fileno()))
            if not self._is_noted(note):
                check_alone(file, path)
                self._write(self._notes, note)

    def _await_turn(self, handle: int, size: int) -> None:
        """Lock the file, if that is possible in time."""
        deadline = time.monotonic() + PATIENCE_S + size / SLOW_BYTES_PER_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:  # the file system has no locks
                return
            else:
                return

    def _is_noted(self, note: str) -> bool:
        return any((slot / self._folder / note).exists() for slot in self._slots())

    def _write(self, notes: Path, note: str) -> None:
        try:
            notes.mkdir(exist_ok=True)
            (notes / note).touch()
        except OSError:  # others check it again
            pass


def _note(file: StateFile, found: os.stat_result) -> str:
    return f"{file.checksum}-{found.st_dev}-{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"
