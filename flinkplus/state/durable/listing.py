"""What is in a checkpoint directory: its checkpoints, readable or not, and their sizes.

Rules:
- nothing is written, locked or unpickled, so a running job does not notice a listing;
- what cannot be read is listed with the reason. Only a directory that cannot be listed, or has no job, is an error;
- a checkpoint that the running job removes during the listing is left out.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from flinkplus.documents import Document, parse_document
from flinkplus.errors import (
    CheckpointDirectoryError,
    CorruptCheckpoint,
    CorruptState,
    FlinkPlusError,
    UntrustedCheckpoint,
    without_secrets,
)
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.state.durable import manifests, state_files
from flinkplus.state.durable.manifests import MANIFEST_MAGIC
from flinkplus.state.durable.ownership import JOB_FILE
from flinkplus.state.durable.savepoint_file import INPUT_FOLDER, SAVEPOINT_FILE, SavepointFile
from flinkplus.state.durable.seals import UNSIGNED, SigningKey, checked
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.file_system import TEMPORARY_SUFFIX

READABLE, DAMAGED, UNTRUSTED, FOREIGN, VOID = "readable", "damaged", "untrusted", "foreign", "void"
LONGEST_REASON = 1_000
_SUBTASK = re.compile(r"(?P<vertex>.*)\[(?P<index>[0-9]{1,9})\]\Z")


@dataclass(frozen=True, kw_only=True)
class StoredOperator(Document):
    """One operator in a checkpoint, over all its subtasks.

    ``vertex``: the operators that run fused with it, and share its files.
    ``keys``: of all its states.
    ``bytes``: of its state files; ``None`` if other operators with state share them.
    ``rows_in``, ``rows_out``: since the start of the job.
    """

    name: str
    vertex: str
    keys: int
    bytes: int | None
    rows_in: int
    rows_out: int


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoint(Document):
    """One checkpoint in a directory. What is not known of an unreadable one is ``None``.

    ``file``: its manifest, relative to the directory.
    ``status``: ``readable`` (complete, and can be resumed from); ``damaged``; ``untrusted``: not signed with the key
    here; ``foreign``: of another job; ``void``: the job had gone back to an earlier one when it appeared.
    ``reason``: why it is not readable; empty for a readable one.
    ``kind``: ``aligned``, ``unaligned`` (barriers overtook messages), ``final`` (the job has finished with it) or
    ``savepoint``.
    ``format``: of the manifest.
    ``created_s``, ``age_s``: when the manifest was written, since the Unix epoch; how long ago.
    ``bytes``, ``bytes_new``: of all its state files; of those that were uploaded for it.
    ``in_flight_bytes``: of the messages that it holds; they are in the manifest.
    ``manifest_bytes``: size of the manifest.
    ``parallelism``, ``subtasks``: subtasks of a vertex; of all vertices.
    """

    number: int
    file: str
    status: str
    reason: str = ""
    kind: str | None = None
    format: int | None = None
    created_s: float | None = None
    age_s: float | None = None
    generation: int | None = None
    bytes: int | None = None
    bytes_new: int | None = None
    in_flight_bytes: int | None = None
    manifest_bytes: int | None = None
    keys: int | None = None
    parallelism: int | None = None
    subtasks: int | None = None
    operators: tuple[StoredOperator, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoredCheckpoints(Document):
    """The checkpoints of one directory; iterating over it gives them, oldest first.

    ``directory``: without secrets.
    ``savepoint``: it is a savepoint, with one checkpoint.
    ``job``, ``job_id``: name and ID of the job; ``None``: unknown, see ``problem``.
    ``format``: of the directory.
    ``problem``: why the job's identity cannot be read; empty if it can.
    ``stored_bytes``: of all state files in the directory.
    ``unnamed_bytes``: of those that no checkpoint here names: of one in progress, or to be removed.
    ``other_files``: files among the manifests that are none.
    """

    directory: str
    job: str | None
    job_id: str | None
    format: int | None
    problem: str
    checkpoints: tuple[StoredCheckpoint, ...]
    stored_bytes: int
    unnamed_bytes: int
    other_files: tuple[str, ...]
    savepoint: bool = False

    def __iter__(self) -> Iterator[StoredCheckpoint]:
        return iter(self.checkpoints)

    def __len__(self) -> int:
        return len(self.checkpoints)

    @property
    def latest(self) -> StoredCheckpoint | None:
        """The newest readable checkpoint, from which the job would resume."""
        return next((one for one in reversed(self.checkpoints) if one.status == READABLE), None)

    @property
    def intact(self) -> bool:
        """Whether the job is known and every checkpoint is readable or void."""
        return not self.problem and all(one.status in (READABLE, VOID) for one in self.checkpoints)


class Listing:
    """Reads the directory of ``storage`` once. ``verify``: also read every state file and compare its checksum."""

    def __init__(self, storage: CheckpointStorage, key: SigningKey | None = None, verify: bool = False) -> None:
        self._storage = storage
        self._key = key
        self._verify = verify
        self._now_s = time.time()
        self._job_id: str | None = None
        self._savepoint: SavepointFile | None = None
        self._void: set[str] = set()  # manifests
        self._sizes: dict[str, int] = {}  # state file -> size
        self._checked: dict[tuple[str, int, str], str] = {}  # file, size, checksum -> why it is damaged; or empty

    def read(self) -> StoredCheckpoints:
        """The listing. Raises ``CheckpointDirectoryError`` if the directory cannot be listed, or has no job."""
        job, problem = self._identity()
        try:
            return self._listed(job, problem)
        except OSError as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self._storage.uri!r} cannot be read: {error}; check the path"
            ) from error

    def _identity(self) -> tuple[str | None, str]:
        """The job's name, and why it is not known."""
        key = self._key
        try:
            job, job_id = self._storage.ownership.job_and_id(None if key is None else lambda: key)
        except UntrustedCheckpoint as error:
            return None, _reason(error)
        except CheckpointDirectoryError as error:
            with suppress(OSError):
                if self._storage.manifests.listed() and not self._storage.ownership.is_half_savepoint():
                    return None, _reason(error)
            raise
        self._job_id = job_id
        self._savepoint = self._storage.ownership.savepoint
        return printable(job.get("name")), ""

    def _listed(self, job: str | None, problem: str) -> StoredCheckpoints:
        storage = self._storage
        read = [self._read(number, name) for number, name in self._manifests()]
        self._sizes = {
            name.removeprefix(f"{state_files.FOLDER}/"): size
            for name, size in storage.files.sizes(state_files.FOLDER).items()
        }
        found = [(self._completed(one, manifest), manifest) for one, manifest in read if one is not None]
        if any(one.status == DAMAGED for one, _ in found):
            left = {name for _, name in self._manifests()}
            found = [(one, manifest) for one, manifest in found if one.file in left]
        named = {
            file.stored
            for one, manifest in found
            if manifest and one.status not in (VOID, FOREIGN)
            for file in manifest.files
        }
        return StoredCheckpoints(
            directory=without_secrets(storage.uri),
            job=job,
            job_id=None if self._job_id == UNSIGNED else self._job_id,
            format=self._format(),
            problem=problem,
            checkpoints=tuple(one for one, _ in found),
            stored_bytes=sum(self._sizes.values()),
            unnamed_bytes=sum(size for name, size in self._sizes.items() if name not in named),
            other_files=tuple(
                printable(name)
                for name in storage.files.names(manifests.FOLDER)
                if manifests.numbers_of(name) is None and not name.endswith(TEMPORARY_SUFFIX)
            ),
            savepoint=self._savepoint is not None,
        )

    def _manifests(self) -> list[tuple[int, str]]:
        """Number and file of every manifest, also of void ones, ascending."""
        counted, void = self._storage.manifests.listed(), self._storage.manifests.listed(void=True)
        self._void = set(void.values())
        return sorted([*counted.items(), *void.items()])

    def _format(self) -> int | None:
        name = JOB_FILE if self._savepoint is None else SAVEPOINT_FILE
        with suppress(OSError, ValueError, AttributeError):
            found = parse_document(self._storage.files.read(name)).get("format")
            return found if type(found) is int else None
        return None

    def _read(self, number: int, name: str) -> tuple[StoredCheckpoint | None, Manifest | None]:
        """A manifest, without its state files. ``None``: it was removed meanwhile."""
        one = StoredCheckpoint(number=number, file=name, status=DAMAGED)
        try:
            data = self._storage.files.read(name)
        except FileNotFoundError:
            return None, None
        except OSError as error:
            return replace(one, reason=f"its manifest cannot be read: {printable(error)}"), None
        one = replace(one, manifest_bytes=len(data))
        where = self._storage.files.describe(name)
        try:
            body, job_id = checked(MANIFEST_MAGIC, data, name, None, where)
            document = parse_document(body)
            found = document.get("format") if isinstance(document, dict) else None
            one = replace(one, format=found if type(found) is int else None)
            manifest = Manifest.from_json(document)
        except (ValueError, CorruptCheckpoint) as error:
            return replace(one, reason=_reason(error)), None
        if manifest.checkpoint != number:
            return replace(one, reason=f"its manifest is that of checkpoint {manifest.checkpoint}"), None
        status, reason = self._judged(name, data, job_id)
        return replace(_described(one, manifest, self._now_s), status=status, reason=reason), manifest

    def _judged(self, name: str, data: bytes, job_id: str) -> tuple[str, str]:
        """Status and reason of a manifest that is whole."""
        if name in self._void:
            return VOID, "it appeared after the job had gone back to an earlier checkpoint"
        if self._job_id not in (None, job_id):
            return FOREIGN, f"its manifest is of job {job_id}, and the directory of job {self._job_id}"
        if self._key is not None:
            try:
                checked(MANIFEST_MAGIC, data, name, self._key, "its manifest")
            except UntrustedCheckpoint as error:
                return UNTRUSTED, _reason(error)
        return READABLE, ""

    def _completed(self, one: StoredCheckpoint, manifest: Manifest | None) -> StoredCheckpoint:
        """The checkpoint, ``damaged`` if one of its state files is."""
        if manifest is None or one.status != READABLE:
            return one
        damaged = [reason for reason in map(self._damage, manifest.files) if reason]
        if self._savepoint is not None:
            one = replace(one, kind="savepoint")
            damaged += self._damaged_input(self._savepoint)
        if not damaged:
            return one
        more = f"; and {len(damaged) - 1} more files" if len(damaged) > 1 else ""
        return replace(one, status=DAMAGED, reason=f"{damaged[0]}{more}")

    def _damaged_input(self, savepoint: SavepointFile) -> list[str]:
        """Why staged input of a savepoint cannot be used."""
        sizes = self._storage.files.sizes(INPUT_FOLDER)
        return [
            f"{name} has {sizes.get(name, 'no')} bytes instead of {size}"
            for name, size in savepoint.input.items()
            if sizes.get(name) != size
        ]

    def _damage(self, file: StateFile) -> str:
        """Why a state file cannot be used; empty if it can."""
        content = file.stored, file.bytes, file.checksum
        if content not in self._checked:
            self._checked[content] = self._looked_at(file)
        return self._checked[content]

    def _looked_at(self, file: StateFile) -> str:
        size = self._sizes.get(file.stored)
        if size is None:
            return f"state file {file.stored} is missing"
        if size != file.bytes:
            return f"state file {file.stored} has {size} bytes instead of {file.bytes}"
        if self._verify:
            try:
                self._storage.state_files.verify(file)
            except (CorruptState, OSError) as error:
                return _reason(error)
        return ""


def _reason(error: Exception) -> str:
    """The error in one line, without the advice for a resume."""
    text = error.args[0] if isinstance(error, FlinkPlusError) and error.args else error
    return printable(without_secrets(str(text)), LONGEST_REASON)


def _described(one: StoredCheckpoint, manifest: Manifest, now_s: float) -> StoredCheckpoint:
    """What a manifest says."""
    handles = manifest.subtasks
    kind = "unaligned" if any(handle.overtaken for handle in handles.values()) else "aligned"
    indexes = [int(match["index"]) for match in map(_SUBTASK.match, handles) if match]
    return replace(
        one,
        kind="final" if manifest.final else kind,
        created_s=manifest.time_s,
        age_s=round(max(0.0, now_s - manifest.time_s), 3),
        generation=manifest.generation,
        bytes=sum(file.bytes for file in manifest.files),
        bytes_new=sum(handle.bytes_new for handle in handles.values()),
        in_flight_bytes=sum(handle.operator_state.in_flight_bytes for handle in handles.values()),
        keys=sum(handle.keys for handle in handles.values()),
        parallelism=max(indexes) + 1 if indexes else None,
        subtasks=len(handles),
        operators=_operators(handles),
    )


def _operators(handles: dict[str, SnapshotHandle]) -> tuple[StoredOperator, ...]:
    """The operators of all subtasks, in the order of their subtasks."""
    keys: dict[tuple[str, str], int] = defaultdict(int)
    rows_in: dict[tuple[str, str], int] = defaultdict(int)
    rows_out: dict[tuple[str, str], int] = defaultdict(int)
    files: dict[str, dict[str, int]] = defaultdict(dict)
    for subtask, handle in handles.items():
        match = _SUBTASK.match(subtask)
        vertex = match["vertex"] if match else subtask
        files[vertex].update({file.stored: file.bytes for file in handle.files})
        parts = handle.operator_state.operators
        for name, part in parts.items():
            rows_in[vertex, name] += part.rows_in
            rows_out[vertex, name] += part.rows_out
        for state, keyed in handle.states.items():
            keys[vertex, _operator_of(state, parts)] += keyed.keys
    with_state: dict[str, list[str]] = defaultdict(list)
    for vertex, name in keys:
        with_state[vertex].append(name)
    return tuple(
        StoredOperator(
            name=name,
            vertex=vertex,
            keys=keys.get((vertex, name), 0),
            bytes=_bytes_of(name, with_state[vertex], sum(files[vertex].values())),
            rows_in=rows_in.get((vertex, name), 0),
            rows_out=rows_out.get((vertex, name), 0),
        )
        for vertex, name in dict.fromkeys((*rows_in, *keys))
    )


def _bytes_of(name: str, with_state: list[str], size: int) -> int | None:
    if name not in with_state:
        return 0
    return size if len(with_state) == 1 else None


def _operator_of(state: str, operators: dict[str, Any]) -> str:
    """The operator whose state is called ``count``, ``count/last`` or ``count#timers``."""
    owners = [name for name in operators if state == name or state.startswith((f"{name}/", f"{name}#"))]
    return max(owners, key=len, default=state)
