"""What a standby's copy needs of the slot's disk, of RocksDB and of durable storage: the real ones, or those of a test.

Rules: files go by the names that they have within their subtask's folders; every call may raise ``OSError``, those that
read state also ``CorruptState`` and ``StateError``.

Layout of a folder: ``replica/<generation>-<checkpoint>-<n>.sst[.part|.downloaded]``, ``standby-<n>/`` (RocksDB); beside
them what the active state of this slot has there, and what a dead process of the slot has left (``state.left``).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.backend import folder_name
from flinkplus.state.durable.state_files import StateFiles
from flinkplus.state.file_system import SteadyFile, file_chunks, link_or_copy, sync_path
from flinkplus.state.left import FILE_NAME, FILES_FOLDER, LEFT_FOLDER, REPLICA_FOLDER, newest_checkpoint, paced
from flinkplus.state.removal import remove_file, remove_folder
from flinkplus.state.store import SubtaskStore

SMALL_BYTES = 1 << 20
"""Files up to this are most likely taken in from memory."""


def base_name(name: str) -> str:
    """What a state file is called within its subtask's folders."""
    return name.rpartition("/")[2]


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
    """One subtask's folder on a slot, without any held file at first, and its files in durable storage."""

    folder: str
    """Name of the folder, which the names of its files in durable storage begin with."""

    def create(self, name: str) -> ArrivingFile:
        """A new file, which is not held until it is ``adopted``."""

    def discard(self, name: str) -> None:
        """Remove what ``create`` made."""

    def adopt(self, name: str) -> None:
        """What ``create`` made is whole, and held from now on."""

    def open(self, name: str) -> HeldFile:
        """Read a held file."""

    def remove(self, name: str) -> None:
        """A file is held no more. A RocksDB has names, or copies, of its own."""

    def take_own(self, name: str) -> None:
        """Hold a file that the active state on this slot has."""

    def download(self, file: StateFile) -> None:
        """Have a file of durable storage here, checked; it is not held until it is adopted. Slow; in any thread."""

    def adopt_downloaded(self, name: str) -> None:
        """What was downloaded is held from now on."""

    def discard_downloaded(self, name: str) -> None:
        """Remove what was downloaded."""

    def has_left(self, file: StateFile) -> bool:
        """Whether a dead process of this slot has left a file of that name and size. Its content may be any."""

    def check_left(self, file: StateFile, swift: bool) -> None:
        """Raise ``CorruptState`` or ``OSError`` unless what was left is ``file``, byte for byte. Slow; in any thread.

        ``swift``: a failover waits for it, so that it may take a processor for itself.
        """

    def adopt_left(self, name: str) -> None:
        """What was left, and checked, is held from now on."""

    def discard_left(self, name: str) -> None:
        """Remove what was left under this name."""

    @property
    def newest_left(self) -> int:
        """The newest checkpoint that a file was left of when this object was made; 0: no file was left."""

    def discard_all_left(self) -> None:
        """Nothing more of what was left is needed: remove it."""

    def new_store(self) -> SubtaskStore:
        """A new, empty RocksDB."""

    def ingest(self, store: SubtaskStore, files: Sequence[StateFile], swift: bool) -> None:
        """Ingest held files into a RocksDB, each on top of the previous; ``swift``: a promotion waits for it."""

    def give_own(self, names: Mapping[str, bool], generation: int) -> None:
        """The active state of ``generation`` uses ``names`` and no older ones; those that are true are held here, and
        it shall have them as well."""

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


def _names_in(folder: Path) -> list[str] | None:
    """``None``: the folder is not there, or cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return None


class SlotDisk:
    """The folder of ``subtask`` in a slot's work directory."""

    def __init__(self, work_dir: Path, subtask: str, storage: StateFiles) -> None:
        self.folder = folder_name(subtask)
        self._folder = work_dir / self.folder
        self._storage = storage
        self._files = self._folder / REPLICA_FOLDER
        self._left = self._folder / LEFT_FOLDER
        left = _names_in(self._left)
        self._is_left = left is not None
        self._newest_left = newest_checkpoint(left or ())
        self._opened = 0
        remove_folder(self._files)  # of a discarded copy: nothing records what was verified
        self._files.mkdir(parents=True)

    def _part(self, name: str) -> Path:
        return self._files / (name + ".part")

    def create(self, name: str) -> ArrivingFile:
        return SteadyFile(self._part(name))

    def discard(self, name: str) -> None:
        remove_file(self._part(name))

    def adopt(self, name: str) -> None:
        self._part(name).replace(self._files / name)

    def open(self, name: str) -> HeldFile:
        return DiskFile(self._files / name)

    def remove(self, name: str) -> None:
        remove_file(self._files / name)

    def take_own(self, name: str) -> None:
        link_or_copy(self._folder / FILES_FOLDER / name, self._files / name)

    def _downloaded(self, name: str) -> Path:
        return self._files / (name + ".downloaded")

    def download(self, file: StateFile) -> None:
        path = self._files / f"{base_name(file.name)}.{threading.get_ident()}.downloading"
        try:
            self._storage.download(file.name, path)
            file.check(file_chunks(path), file.name)
            if file.bytes > SMALL_BYTES:  # or taking it in would wait for the disk, and a promotion for that
                sync_path(path)
            path.replace(self._downloaded(base_name(file.name)))
        except BaseException:
            remove_file(path)
            raise

    def adopt_downloaded(self, name: str) -> None:
        self._downloaded(name).replace(self._files / name)

    def discard_downloaded(self, name: str) -> None:
        remove_file(self._downloaded(name))

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

    def adopt_left(self, name: str) -> None:
        (self._left / name).replace(self._files / name)

    def discard_left(self, name: str) -> None:
        remove_file(self._left / name)

    @property
    def newest_left(self) -> int:
        return self._newest_left

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
        links = [path.with_suffix(".ingest") for path in paths]
        try:
            for path, link in zip(paths, links, strict=True):
                link_or_copy(path, link)
            store.ingest(links, swift)
        finally:
            for link in links:
                link.unlink(missing_ok=True)

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
