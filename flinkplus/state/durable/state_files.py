"""State files in a checkpoint directory: ``state/<subtask>/<generation>-<checkpoint>-<n>.sst``, each written once."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from flinkplus.errors import CorruptState, StateError
from flinkplus.local_files import NoRegularFile
from flinkplus.path_names import STATE_FILE_PARTS, checked_name
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.state.file_system import Files, file_chunks, sync_path

FOLDER = "state"
SMALL_BYTES = 1 << 20
"""RocksDB takes files up to this in from memory, most likely, and larger ones once they are on the disk."""
_NAME = re.compile(r"(?P<generation>[0-9]+)-(?P<checkpoint>[0-9]+)-[0-9]+\.sst((\.[0-9a-f]+)?\.tmp)?\Z")


Check = Callable[[StateFile, Path], None]
"""Raises ``CorruptState`` unless a local file has the content that it should have; ``OSError``."""


def check_alone(file: StateFile, path: Path) -> None:
    """Read the whole file."""
    file.check(file_chunks(path), file.stored)


class StateTransfers(Protocol):
    """What a state needs of durable storage."""

    def upload(self, local: Path, name: str) -> None:
        """See ``StateFiles``."""

    def fetch(self, file: StateFile, local: Path) -> None:
        """See ``StateFiles``."""


class StateFiles:
    """The state files in the directory ``uri``. ``check``: compares a file that is not copied with its checksum."""

    def __init__(self, uri: str, files: Files, check: Check = check_alone) -> None:
        self._uri = uri
        self._files = files
        self._check = check

    def checked_by(self, check: Check) -> StateFiles:
        """The same files."""
        return StateFiles(self._uri, self._files, check)

    def upload(self, local: Path, name: str) -> None:
        """Copy a local state file into the store under ``name`` (``<subtask>/<generation>-<checkpoint>-<n>.sst``)."""
        try:
            self._files.put(local, _path(name))
        except OSError as error:
            raise StateError(f"state file {name} cannot be stored in {self._uri!r}: {error}") from error

    def download(self, file: StateFile, local: Path) -> bool:
        """Copy a state file to ``local``. Raises ``CorruptState`` when the store does not have it.

        One with a clip is linked, where the store can do that: each of several subtasks needs the whole file. Returns
        whether that was done.
        """
        full = _path(file.stored)
        try:
            linked = file.clip is not None and self._files.link(full, local)
            if not linked:
                self._files.fetch(full, local)
            return linked
        except FileNotFoundError as error:
            raise CorruptState(
                f"state file {self._files.describe(full)} is missing; use an older checkpoint"
            ) from error
        except OSError as error:
            raise StateError(f"state file {file.stored} cannot be read from {self._uri!r}: {error}") from error

    def fetch(self, file: StateFile, local: Path) -> None:
        """As ``download``; ``local`` appears when it is whole and has the checksum of ``file``. Raises ``CorruptState``
        if it has another one. A large file is on the disk then: RocksDB need not wait for that."""
        part = local.with_name(f"{local.name}.{threading.get_ident()}.part")
        try:
            check = self._check if self.download(file, part) else check_alone
            check(file, part)
            if file.bytes > SMALL_BYTES:
                sync_path(part)
            part.replace(local)
        finally:
            part.unlink(missing_ok=True)

    def verify(self, file: StateFile) -> None:
        """Read the whole file. Raises ``CorruptState`` unless it has the size and the checksum of ``file``."""
        full = _path(file.stored)
        where = self._files.describe(full)
        try:
            size = self._files.size(full)
            if size != file.bytes:
                raise CorruptState(f"state file {where} has {size} bytes instead of {file.bytes}")
            file.check(self._files.chunks(full), where)
        except FileNotFoundError as error:
            raise CorruptState(f"state file {where} is missing") from error
        except NoRegularFile as error:
            raise CorruptState(f"state file {where} cannot be read: {error}") from error

    def listed(self) -> dict[str, tuple[int, int]]:
        """State files, also unfinished ones -> generation and checkpoint in the name."""
        names = (full.removeprefix(f"{FOLDER}/") for full in self._files.names(FOLDER))
        matches = ((name, _NAME.match(name.rpartition("/")[2])) for name in names)
        return {name: (int(match["generation"]), int(match["checkpoint"])) for name, match in matches if match}

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that ``listed`` returned."""
        for name in names:
            self._files.delete(f"{FOLDER}/{name}")

    def remove_named(self, names: Iterable[str]) -> None:
        """Remove files that a manifest names."""
        for name in names:
            self._files.delete(_path(name))


def _path(name: str) -> str:
    """Raises ``UnsafeName`` for a name that would lead out of the folder."""
    return f"{FOLDER}/{checked_name(name, STATE_FILE_PARTS)}"
