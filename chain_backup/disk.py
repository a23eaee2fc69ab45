"""What a standby's copy needs of the slot's disk, of RocksDB and of durable storage. Tests provide their own.

Rules: files go by their names within their subtask's folders; every call may raise ``OSError``, those that read state
also ``CorruptState`` and ``StateError``.

Layout of a folder: ``replica/<generation>-<checkpoint>-<n>.sst[.part|.downloaded]``, ``standby-<n>/`` (RocksDB); beside
them the files of the active state, and what a dead process of the slot has left (``state.left``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeAlias

from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.backend import folder_name
from flinkplus.state.durable.state_files import SMALL_BYTES, StateTransfers
from flinkplus.state.file_system import SteadyFile, file_chunks, link_or_copy, sync_path
from flinkplus.state.left import FILE_NAME, FILES_FOLDER, LEFT_FOLDER, REPLICA_FOLDER, newest_checkpoint, paced
from flinkplus.state.memtable import counted_keys
from flinkplus.state.removal import remove_file, remove_folder
from flinkplus.state.store import SubtaskStore


def base_name(name: str) -> str:
    """What a state file is called within its subtask's folders."""
    return name.rpartition("/")[2]


class Origin(Enum):
    """Where a file came from that is not held yet."""

    ARRIVED = ".part"
    """From the predecessor: ``create`` made it."""
    DOWNLOADED = ".downloaded"
    LEFT = ""
    """From a dead process of this slot."""


class HeldFile(Protocol):
    """A held file, to be read."""

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; nothing at the end of the file."""

    def close(self) -> None: ...


class ArrivingFile(Protocol):
    """A file that is arriving."""

    def write(self, data: memoryview) -> None:
        """All of ``data``, at the end."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One subtask's folder on a slot, without any held file at first, and its files in durable storage.

    ``folder``: its name, which the names of its files in durable storage begin with.
    ``newest_left``: the newest checkpoint that a file was left of when this object was made; 0: no file was left.
    """

    folder: str
    newest_left: int

    def create(self, name: str) -> ArrivingFile:
        """A new file, which is not held until it is adopted."""

    def adopt(self, name: str, origin: Origin) -> None:
        """A file that is whole, and checked unless it has arrived, is held from now on."""

    def discard(self, name: str, origin: Origin) -> None:
        """Remove a file that is not held, if it is there."""

    def open(self, name: str) -> HeldFile:
        """Read a held file."""

    def remove(self, name: str) -> None:
        """A file is held no more. A RocksDB has names, or copies, of its own."""

    def take_own(self, name: str) -> None:
        """Hold a file that the active state on this slot has."""

    def download(self, file: StateFile) -> None:
        """Have a file of durable storage here, checked; it is not held until it is adopted. Slow; in any thread."""

    def has_left(self, file: StateFile) -> bool:
        """Whether a dead process of this slot has left a file of that name and size, with any content."""

    def check_left(self, file: StateFile, swift: bool) -> None:
        """Raise ``CorruptState`` or ``OSError`` unless what was left is ``file``, byte for byte. Slow; in any thread.
        ``swift``: a failover waits for it, so it may occupy a processor."""

    def discard_all_left(self) -> None:
        """Remove everything that was left."""

    def new_store(self) -> SubtaskStore:
        """A new, empty RocksDB."""

    def ingest(self, store: SubtaskStore, files: Sequence[StateFile], swift: bool) -> None:
        """Ingest held files into a RocksDB, each on top of the previous; ``swift``: a promotion waits for it."""

    def give_own(self, names: Mapping[str, bool], generation: int) -> None:
        """The active state of ``generation`` uses ``names`` and no older ones; it shall have those that are true, which
        are held here."""

    def close(self) -> None:
        """No file is held any more."""


OpenDisk: TypeAlias = Callable[[str], Disk]
"""``subtask -> its folder``, empty."""


class DiskFile:
    """Stands for ``HeldFile``, with a file of the operating system."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)

    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self._file.fileno(), size, offset)

    def close(self) -> None:
        self._file.close()


class SlotDisk:
    """The folder of ``subtask`` in a slot's work directory."""

    def __init__(self, work_dir: Path, subtask: str, storage: StateTransfers) -> None:
        self.folder = folder_name(subtask)
        self._folder = work_dir / self.folder
        self._storage = storage
        self._files = self._folder / REPLICA_FOLDER
        self._left = self._folder / LEFT_FOLDER
        left: list[str] | None = None
        with contextlib.suppress(OSError):  # the folder is not there, or cannot be read
            left = os.listdir(self._left)
        self._is_left = left is not None
        self.newest_left = newest_checkpoint(left or ())
        self._opened = 0
        remove_folder(self._files)  # of a discarded copy: nothing records what was verified
        self._files.mkdir(parents=True)

    def _place(self, name: str, origin: Origin) -> Path:
        return (self._left if origin is Origin.LEFT else self._files) / (name + origin.value)

    def create(self, name: str) -> ArrivingFile:
        return SteadyFile(self._place(name, Origin.ARRIVED))

    def adopt(self, name: str, origin: Origin) -> None:
        self._place(name, origin).replace(self._files / name)

    def discard(self, name: str, origin: Origin) -> None:
        remove_file(self._place(name, origin))

    def open(self, name: str) -> HeldFile:
        return DiskFile(self._files / name)

    def remove(self, name: str) -> None:
        remove_file(self._files / name)

    def take_own(self, name: str) -> None:
        link_or_copy(self._folder / FILES_FOLDER / name, self._files / name)

    def download(self, file: StateFile) -> None:
        self._storage.fetch(file, self._place(base_name(file.name), Origin.DOWNLOADED))

    def has_left(self, file: StateFile) -> bool:
        if not self._is_left:
            return False
        try:
            return (self._left / base_name(file.name)).stat().st_size == file.bytes
        except OSError:  # removed meanwhile, or the disk fails: its content is fetched
            return False

    def check_left(self, file: StateFile, swift: bool) -> None:
        path = self._left / base_name(file.name)
        chunks = file_chunks(path)
        file.check(chunks if swift else paced(chunks), str(path))
        if file.bytes > SMALL_BYTES:
            sync_path(path)

    def discard_all_left(self) -> None:
        if self._is_left:
            remove_folder(self._left)
            self._is_left = False

    def new_store(self) -> SubtaskStore:
        while True:
            self._opened += 1
            directory = self._folder / f"standby-{self._opened}"
            if not directory.exists():  # a dead process may have left one
                return SubtaskStore(directory, quiet=True)
            remove_folder(directory)

    def ingest(self, store: SubtaskStore, files: Sequence[StateFile], swift: bool) -> None:
        paths = [self._files / base_name(file.name) for file in files]
        store.ingest_copies(paths, swift, [counted_keys(file.clip) for file in files])

    def give_own(self, names: Mapping[str, bool], generation: int) -> None:
        folder = self._folder / FILES_FOLDER
        folder.mkdir(exist_ok=True)
        for path in list(folder.iterdir()):
            match = FILE_NAME.match(path.name)
            if match and path.name not in names and int(match["generation"]) < generation:
                remove_file(path)
        for name, held in names.items():
            target = folder / name
            if held and not target.exists():
                with contextlib.suppress(OSError):
                    os.link(self._files / name, target)

    def close(self) -> None:
        remove_folder(self._files)
        self.discard_all_left()
