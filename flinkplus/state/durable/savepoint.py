"""Savepoints: a complete checkpoint copied to a directory of the user's, and a new job's directory begun from one.

A savepoint has the layout of a checkpoint directory, with ``SAVEPOINT.json`` instead of ``JOB.json``, one manifest, and
nothing of a running job. It is complete in itself: plan and program, all state files and the staged input are copied,
or linked where both directories are on one local file system (a state file never changes, and an unlinked one stays
whole).

Rules:
- files are copied by what the manifest lists, each once by its name in storage, however many subtasks share it;
- the manifest is written after all files that it names, ``SAVEPOINT.json`` after everything;
- nothing is written to a savepoint once it exists, nor to a directory that holds anything else;
- a writer that was cancelled publishes nothing. What it has written is removed, as far as its storage allows.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath
from urllib.parse import unquote, urlsplit

from flinkplus.documents import Document, parse_document
from flinkplus.errors import (
    CheckpointDirectoryError,
    CorruptCheckpoint,
    CorruptState,
    SavepointError,
    SavepointRefused,
    StateError,
    without_secrets,
)
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.manifest import Manifest, settled
from flinkplus.state.durable import state_files
from flinkplus.state.durable.blobs import FOLDER as BLOBS
from flinkplus.state.durable.blobs import ORIGIN_BLOB, PLAN_BLOB, PROGRAM_BLOB
from flinkplus.state.durable.savepoint_file import (
    BEGUN_FILE,
    INPUT_FOLDER,
    PLANNED_SUFFIX,
    SAVEPOINT_FILE,
    SavepointFile,
)
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import TEMPORARY_SUFFIX, Files, filesystem_of, is_uri, linked


@dataclass(frozen=True, kw_only=True)
class SavepointOrigin(Document):
    """The savepoint that the job of a checkpoint directory was started from.

    ``savepoint``: where it was, without secrets.
    ``job_id``: of the job that it was taken of.
    ``checkpoint``: its number, which is also that of the first checkpoint here.
    """

    savepoint: str
    job_id: str
    checkpoint: int


@dataclass
class Copied:
    """How far a copy is: ``files`` and ``bytes`` of those that there are ``in_all``."""

    files: int = 0
    bytes: int = 0
    files_in_all: int = 0
    bytes_in_all: int = 0


def check_apart(target: str, checkpoint_dir: str) -> None:
    """Raises ``SavepointRefused`` if a savepoint at ``target`` would be in the job's checkpoint directory."""
    try:
        (store, place), (job_store, kept) = _place_of(target), _place_of(checkpoint_dir)
    except (OSError, ValueError) as error:
        raise SavepointRefused(f"the savepoint {without_secrets(target)!r} cannot be written: {error}") from error
    if store == job_store and kept in (place, *place.parents):
        raise SavepointRefused(
            f"{without_secrets(target)!r} is in the job's checkpoint directory {without_secrets(checkpoint_dir)!r}, "
            "where files are removed; give another place"
        )


def _place_of(location: str) -> tuple[str, PurePath]:
    """The storage that a path or URI is of, without options and secrets, and the path in it."""
    if not is_uri(location) or location.startswith("file:"):
        return "", Path(filesystem_of(location)[1]).expanduser().resolve()
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.hostname}", PurePosixPath(posixpath.normpath(f"/{unquote(parts.path)}"))


@dataclass(eq=False)
class SavepointWriter:
    """Writes one savepoint: ``begin``, ``copy``, ``publish``, one after the other, in any thread; ``remove`` undoes it.

    ``source``: of the job that runs.
    ``target``: opened with the key to sign with.
    ``progressed``: called after each file, and each piece of a large one.
    """

    source: CheckpointStorage
    target: CheckpointStorage
    progressed: Callable[[], None] = lambda: None
    copied: Copied = field(default_factory=Copied)
    published: bool = False

    def __post_init__(self) -> None:
        self._token = secrets.token_hex(8).encode()
        self._cancelled = threading.Event()
        self._written: list[str] = []
        self._checkpoint = 0
        self._stopped = False
        self._input: dict[str, int] = {}

    def cancel(self) -> None:
        """From now on nothing is published."""
        self._cancelled.set()

    def begin(self) -> None:
        """Take the target. Raises ``SavepointRefused`` if it is not empty or cannot be written."""
        files, uri = self.target.files, self.target.uri
        try:
            there = files.first_name()
            if there is not None:
                holds = f"is not empty (it holds {printable(there)})"
                if self.target.ownership.is_half_savepoint():
                    holds = "holds a savepoint that was not completed, which may be deleted"
                elif self.target.ownership.is_savepoint():
                    holds = "holds a savepoint"
                raise SavepointRefused(f"{uri!r} {holds}; give a place that does not exist or is empty")
            files.make_root()
            self._written.append(BEGUN_FILE)
            files.write(BEGUN_FILE, self._token)
        except OSError as error:
            raise SavepointRefused(f"the savepoint {uri!r} cannot be written: {error}") from error

    def copy(self, checkpoint: int, stopped: bool) -> None:
        """Copy the checkpoint. ``stopped``: the job stops with it.

        Raises ``SavepointError`` if it was cancelled, ``StateError`` and others of storage, ``CorruptState``.
        """
        source, target = self.source, self.target
        self._checkpoint, self._stopped = checkpoint, stopped
        target.signed.job_id = source.signed.job_id
        try:
            manifest = settled(source.manifests.read(checkpoint))
            self._input = staged_input(source.files)
            sizes = [*(file.bytes for file in manifest.files), *self._input.values()]
            self.copied.files_in_all, self.copied.bytes_in_all = len(sizes), sum(sizes)
            for file in manifest.files:
                self._take(f"{state_files.FOLDER}/{file.stored}", file)
            for name in list(self._input):
                try:
                    self._take(name)
                except FileNotFoundError:
                    if not _is_planned(name):
                        raise
                    del self._input[name]  # this checkpoint does not need it, nor does any other
            for blob in (PROGRAM_BLOB, PLAN_BLOB):
                self._written.append(f"{BLOBS}/{blob}")
                target.blobs.put_signed(blob, source.blobs.get_signed(blob))
            self._check()
            target.manifests.write(manifest)
        except OSError as error:
            raise StateError(f"the savepoint {target.uri!r} cannot be written: {error}") from error

    def _take(self, name: str, file: StateFile | None = None) -> None:
        self._check()
        self._written.append(name)
        self.copied.bytes += copied_file(self.source.files, self.target.files, name, file, self._moved)
        self.copied.files += 1
        self.progressed()

    def _moved(self) -> None:
        self._check()
        self.progressed()

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise SavepointError(f"the savepoint {self.target.uri!r} was given up")

    def publish(self) -> None:
        """Make the savepoint exist. Raises as ``copy``."""
        files = self.target.files
        document = SavepointFile(
            job=self.source.ownership.job(),
            checkpoint=self._checkpoint,
            stopped=self._stopped,
            time_s=time.time(),
            origin=without_secrets(self.source.uri),
            input=self._input,
            seal="",
        )
        try:
            if files.read(BEGUN_FILE) != self._token:
                raise SavepointError(f"another process writes to {self.target.uri!r}")
            self._written.insert(0, SAVEPOINT_FILE)
            self.target.ownership.write_signed(document, self._check)
            self.published = True
            with contextlib.suppress(OSError):  # a savepoint that exists is not affected by it
                files.delete(BEGUN_FILE)
        except OSError as error:
            raise StateError(f"the savepoint {self.target.uri!r} cannot be written: {error}") from error

    def remove(self) -> None:
        """Remove what was written, the last file first; may be repeated.

        Raises ``OSError``: then something stays, which is half a savepoint, since the mark stays too.
        """
        files = self.target.files
        with contextlib.suppress(FileNotFoundError):
            if BEGUN_FILE in self._written and not self.published and files.read(BEGUN_FILE) != self._token:
                return  # another process has taken the place
        self.published = False
        manifests = list(self.target.manifests.listed().values())
        others = [name for name in self._written if name not in (SAVEPOINT_FILE, BEGUN_FILE)]
        if SAVEPOINT_FILE in self._written:
            files.delete(SAVEPOINT_FILE)
        failed: OSError | None = None
        for name in (*manifests, *others):
            try:
                files.delete(name)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed
        files.delete(BEGUN_FILE)
        files.delete_empty_folders()


def staged_input(files: Files) -> dict[str, int]:
    """The staged input in a checkpoint directory, with its sizes in bytes. Of what is planned while the job runs, all
    that came before the last file that is shown."""
    found = files.sizes(INPUT_FOLDER)
    shown: dict[str, str] = {}
    for name in filter(_is_planned, found):
        folder = name.rpartition("/")[0]
        shown[folder] = max(name, shown.get(folder, ""))
    if shown:  # a listing may show a file and miss one that came before it meanwhile; the next one shows both
        found = files.sizes(INPUT_FOLDER)
    return {
        name: size
        for name, size in found.items()
        if not name.rpartition("/")[2].startswith(".")
        and not name.endswith(TEMPORARY_SUFFIX)
        and (not _is_planned(name) or name <= shown.get(name.rpartition("/")[0], ""))
    }


def _is_planned(name: str) -> bool:
    return name.endswith(PLANNED_SUFFIX)


def copied_file(source: Files, target: Files, name: str, file: StateFile | None, progressed: Callable[[], None]) -> int:
    """Link or copy a file; returns its size in bytes. ``file``: what is copied is compared with it.

    Raises ``CorruptState``, ``OSError``, and what ``progressed`` raises, which is called after each piece.
    """
    if linked(source, target, name):
        linked_bytes = source.size(name)
        if file is not None and linked_bytes != file.bytes:
            raise CorruptState(f"{source.describe(name)} has {linked_bytes} bytes instead of {file.bytes}")
        return linked_bytes
    size = 0

    def pieces() -> Iterator[bytes]:
        nonlocal size
        for chunk in source.chunks(name):
            size += len(chunk)
            yield chunk
            progressed()

    target.store(pieces() if file is None else file.checked(pieces(), source.describe(name)), name)
    return size


@dataclass(frozen=True)
class FoundSavepoint:
    """A savepoint whose signature was checked. ``found``: what it says of itself."""

    storage: CheckpointStorage
    found: SavepointFile
    job_id: str

    @property
    def origin(self) -> SavepointOrigin:
        """What the directory of a job that starts from it says of it."""
        place = without_secrets(self.storage.uri)
        return SavepointOrigin(savepoint=place, job_id=self.job_id, checkpoint=self.found.checkpoint)

    def manifest(self) -> Manifest:
        """Its checkpoint, of which every state file was read and compared, and all staged input is there.

        Raises ``CorruptCheckpoint``, ``UntrustedCheckpoint`` or ``CorruptState``.
        """
        storage = self.storage
        manifest = storage.manifests.read(self.found.checkpoint)
        try:
            for file in manifest.files:
                storage.state_files.verify(file)
            for name, size in self.found.input.items():
                if storage.files.size(name) != size:
                    raise CorruptCheckpoint(f"{storage.files.describe(name)} has not the {size} bytes that were copied")
        except OSError as error:
            raise CorruptCheckpoint(f"the savepoint {storage.uri!r} cannot be read: {error}") from error
        return manifest

    def begin(self, storage: CheckpointStorage, manifest: Manifest, plan: bytes, run: int) -> None:
        """Make the checkpoint the first one of the new job that ``storage`` was prepared for.

        ``plan``: of the new job. ``run``: the number of a run before the first one of the new job.
        Until the manifest, which comes last, the job has not begun. Raises ``StateError``.
        """
        files = self.storage.files
        try:
            storage.runs.begin(run)
            storage.blobs.put_signed(ORIGIN_BLOB, json.dumps(self.origin.to_json(), sort_keys=True).encode())
            for file in manifest.files:
                copied_file(files, storage.files, f"{state_files.FOLDER}/{file.stored}", file, lambda: None)
            for name in self.found.input:
                copied_file(files, storage.files, name, None, lambda: None)
            storage.blobs.put_signed(PLAN_BLOB, plan)
            storage.manifests.write(manifest)
        except OSError as error:
            raise StateError(f"the savepoint cannot be copied to {storage.uri!r}: {error}") from error


def origin_of(storage: CheckpointStorage) -> SavepointOrigin | None:
    """The savepoint that the job of this directory was started from; ``None``: it began at the start.

    Raises ``CheckpointDirectoryError`` if it has not begun: its driver died while it copied the savepoint.
    """
    if ORIGIN_BLOB not in storage.blobs.names():
        return None
    try:
        origin = SavepointOrigin.from_json(parse_document(storage.blobs.get_signed(ORIGIN_BLOB)))
    except ValueError as error:
        raise CorruptCheckpoint(f"blob {ORIGIN_BLOB} of {storage.uri!r} cannot be read: {error}") from error
    if not storage.manifests.checkpoints():
        raise CheckpointDirectoryError(
            f"the job in {storage.uri!r} was being started from the savepoint {origin.savepoint!r}, which was not "
            "copied to its end: start it from there again (start_from=, or flinkplus resume SAVEPOINT --checkpoint-dir)"
        )
    return origin
