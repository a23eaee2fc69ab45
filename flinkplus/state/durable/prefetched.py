"""State files that a slot has fetched from durable storage before it needs them, for a rescale.

Rules:
- a file is held when it is whole and was checked; from then on it is trusted, as everything that this process has
  checked. What a dead process has left in the folder is removed unread;
- a state that needs a file gets a link to it, or a copy where the file system has no links. So files may be dropped at
  any time: then they come from storage;
- a thread of low priority fetches, one file after the other. The job runs beside it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from flinkplus.errors import CorruptState, StateError, described
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.durable.state_files import StateTransfers
from flinkplus.state.file_system import link_or_copy
from flinkplus.state.removal import remove_file, remove_folder

PREFETCH_FOLDER = "prefetched"
NICENESS = 10
"""Of the thread that fetches: a process with the usual priority gets about ten times as much of a processor."""

Content = tuple[str, int, str]
"""What identifies a file in storage: name, bytes, checksum."""
Report = Callable[[int, str], None]
"""Takes the bytes that are left to fetch, and why the first file that was left out was, or nothing."""


def _content(file: StateFile) -> Content:
    return file.stored, file.bytes, file.checksum


class PrefetchedFiles:
    """``storage``, as the states of a slot use it. ``folder``: for the files that were fetched; this object's own.

    Any thread.
    """

    def __init__(self, storage: StateTransfers, folder: Path) -> None:
        self._storage = storage
        self._folder = folder
        self._lock = threading.Lock()
        self._held: dict[Content, Path] = {}
        self._request = 0
        self._made = 0
        remove_folder(folder)

    def upload(self, local: Path, name: str) -> None:
        self._storage.upload(local, name)

    def fetch(self, file: StateFile, local: Path) -> None:
        """As ``StateFiles.fetch``, which is called unless the file is held."""
        held = self._held.get(_content(file))
        if held is not None:
            with contextlib.suppress(OSError):  # it was dropped at this moment, or the disk fails
                link_or_copy(held, local)
                return
        self._storage.fetch(file, local)

    # --- before they are needed

    def begin(self, files: Sequence[StateFile]) -> int:
        """From now on ``files`` are to be held, and no others. Returns a number for ``prefetch``."""
        needed = set(map(_content, files))
        with self._lock:
            self._request += 1
            dropped = [self._held.pop(content) for content in [*self._held] if content not in needed]
            number = self._request
        for path in dropped:
            remove_file(path)
        return number

    def prefetch(self, number: int, files: Sequence[StateFile], report: Report) -> None:
        """Fetch those of ``files`` that are not held, and report after each, until all are, or ``begin`` was called
        again. A file that cannot be had is left out: what needs it will find the reason."""
        with contextlib.suppress(OSError, AttributeError):  # not every system has priorities of threads
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
        missing = {_content(file): file for file in files if _content(file) not in self._held}
        left, why = sum(size for _, size, _ in missing), ""
        if not missing:
            report(0, why)
        for content, file in missing.items():
            if number != self._request:
                return
            try:
                self._fetch(number, content, file)
            except (CorruptState, StateError, OSError) as error:
                why = why or described(error)
            left -= file.bytes
            report(left, why)

    def _fetch(self, number: int, content: Content, file: StateFile) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._made += 1
            path = self._folder / f"{self._made}.sst"
        self._storage.fetch(file, path)
        with self._lock:
            current = number == self._request
            if current:
                self._held[content] = path
        if not current:
            remove_file(path)

    def drop(self) -> None:
        """No file is held any more."""
        self.begin(())
