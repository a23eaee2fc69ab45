"""Durable checkpoints of one job: a directory of state files and manifests.

Layout::

    JOB.json                                   whose directory this is, and where it was; signed
    blobs/plan                                 what a fresh job needs to resume, pickled; signed
    blobs/zookeeper                            what the job's password in an ensemble is derived from; signed
    blobs/runs                                 which run of the job this is, and a mark of its driver
    state/<subtask>/<generation>-<checkpoint>-<n>.sst   written once, named by manifests
    blobs/cuts-<run>                           which manifests of earlier epochs count (history.py)
    checkpoints/<checkpoint, 8 digits>-<epoch>.json  a line with format, checksum and signature (``seals``), then JSON;
                                               written last

Rules:
- a checkpoint exists when its manifest does, and no cut voids that; the manifest is written after every file it names;
- what no manifest names is garbage, as soon as no snapshot still under way can name it (``sweep``). Nothing is garbage
  while a manifest cannot be read (``CorruptCheckpoint``), or one that this run wrote or read is not listed
  (``StateError``): then nothing is removed;
- a manifest that is short, altered or of another format is ``CorruptCheckpoint``, never half-believed. One that was
  not signed with the key given is ``UntrustedCheckpoint``: an older one is never taken in its place silently. It has
  the checksum of each state file, which the restoring process compares before RocksDB sees the file. So what a
  signature covers in the end is all that a resumed job believes, except for staged input;
- a driver takes the directory over with ``begin_run``; of one that had it before, wherever it stood still and whenever
  it goes on, no manifest appears any more, and it finds out with ``check_run`` before it does anything else. On object
  stores, where nothing is renamed, a manifest whose writing has begun may still appear: it is void (``cut``);

Any thread may call anything here.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from pyarrow import fs

from flinkplus.documents import Document, parse_document
from flinkplus.errors import (
    CheckpointDirectoryError,
    CorruptCheckpoint,
    CorruptState,
    InvariantViolation,
    JobRunsElsewhere,
    StateError,
    UntrustedCheckpoint,
    without_secrets,
)
from flinkplus.local_files import NoRegularFile
from flinkplus.path_names import STATE_FILE_PARTS, checked_name
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.state.files import open_directory
from flinkplus.state.history import EPOCHS_PER_RUN, Cut, Cuts, UnusedFiles, left_behind
from flinkplus.state.seals import SigningKey, checked, sealed, signed, unsealed
from flinkplus.state.uploads import uploads_of

JOB_FORMAT = 5
"""2: a running sum that is 0 is noted beside the number; manifests have epochs. 3: of the files that a base replaces
their sizes and checksums are known. 4: the plan and the manifests are signed. 5: so is ``JOB.json``."""
MANIFEST_MAGIC = b"flinkplus-manifest"
BLOB_MAGIC = b"flinkplus-blob"
JOB_MAGIC = b"flinkplus-job"
JOB_FILE = "JOB.json"
PROBE_FILE = "WRITABLE.probe"
PLAN_BLOB = "plan"
ZOOKEEPER_BLOB = "zookeeper"
RUNS_BLOB = "runs"
CUTS_BLOB = "cuts-"
MOST_REMOVED = 256
"""Files that are removed at a time at most: manifests wait for it. The next sweep takes the others."""
TOLD_DIFFERENCES = 3
_STATE_NAME = re.compile(r"(?P<generation>[0-9]+)-(?P<checkpoint>[0-9]+)-[0-9]+\.sst((\.[0-9a-f]+)?\.tmp)?\Z")
_MANIFEST_NAME = re.compile(r"checkpoints/([0-9]{8,})(?:-([0-9]+))?\.json\Z")
_CUTS_NAME = re.compile(rf"{CUTS_BLOB}[0-9]+\Z")

log = logging.getLogger("flinkplus")

Resume: TypeAlias = bool | Literal["auto"]
"""Whether a job continues what is in its checkpoint directory; ``auto``: if there is something to continue."""


@dataclass(frozen=True, kw_only=True)
class JobFile(Document):
    """``JOB.json``. ``job``: ``name``, ``fingerprint`` and ``shape`` of the job. ``place``: the directory as it was
    written to last. ``seal``: format, checksum and signature of the other two (``seals``)."""

    FORMAT: ClassVar[int] = JOB_FORMAT

    job: dict[str, Any]
    place: str
    seal: str


class CheckpointStorage:
    """The checkpoint directory of one job.

    ``uri_or_path``: a local path, or a URI that pyarrow.fs understands. ``filesystem``: a pyarrow file system to use
    instead of what the URI says. ``key``: what plan and manifests are signed with, and must have been; ``None``: they
    are neither signed nor checked, for those who only move state files. ``trust``: what there is may be signed with any
    key, or not at all, until ``sign_anew``. Each such file is read once until then: what was used is what is signed.
    """

    def __init__(
        self,
        uri_or_path: str | Path,
        filesystem: fs.FileSystem | None = None,
        key: SigningKey | None = None,
        trust: bool = False,
    ) -> None:
        self.uri = str(uri_or_path)
        self.job_id: str | None = None
        """The job that is signed for, from when it is known on: what is signed for another one is not believed."""
        self._key = key
        self._trust = trust
        self._loaded: dict[str, bytes] = {}  # with trust: what was read of signed files, until it is signed anew
        try:
            self._files = open_directory(uri_or_path, filesystem)
        except (OSError, ValueError) as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self.uri!r} cannot be opened: {error}; give a local path or a URI such as s3://bucket/path"
            ) from error
        self._uploads = uploads_of(self.uri) if filesystem is None else None
        self._lock = threading.Lock()
        self._named: dict[int, frozenset[str]] = {}  # of the checkpoints that this run knows to exist
        self._prepared: dict[str, Any] | None = None
        self._run: bytes | None = None
        self._number = 0  # of the run
        self._epoch = 0
        self._cuts: Cuts | None = None  # None: read whenever they are needed, since another process may add to them
        self._unused = UnusedFiles()

    # -- the directory --------------------------------------------------------------------------------------------

    def prepare(
        self,
        job: dict[str, Any],
        resume: Resume,
        claim: Callable[[], None] = lambda: None,
        job_id: str | None = None,
    ) -> bool:
        """Claim the directory for ``job`` (a JSON-able dict with ``name`` and ``fingerprint``, and in ``shape``, if it
        has that, what the fingerprint is of: descriptions by name). ``claim`` is called when it is known to be the
        job's, before anything there is changed, and raises when another process has it. ``job_id``: of a job that is
        not continued; that of one that is continued is in the directory.

        ``resume=False`` makes a new checkpoint history, ``resume=True`` continues the one that is there, and ``auto``
        does either (``has_begun``). Returns whether one is continued. Raises ``CheckpointDirectoryError`` when the
        directory cannot be written, belongs to another job, holds something else, or holds (or lacks) checkpoints
        against what ``resume`` says; ``UntrustedCheckpoint`` when another key has signed what is to be continued.
        """
        try:
            self._files.make_root()
            self._files.write(PROBE_FILE, b"")
            self._files.delete(PROBE_FILE)
            present = self._job_document()
            self._check_owner(job, present, resume)
            claim()
            continued = self.has_begun() if resume == "auto" else resume
            if continued and present is not None:
                self._believe_job(present)
                self._warn_if_moved(present)
            else:
                self.job_id = self.job_id or job_id
                for name in self._files.names("state"):
                    self._files.delete(name)
            self._prepared = job
            if not (continued and self._trust):  # with trust the plan says which job this is: ``sign_anew``
                self._write_job(job)
            return continued
        except OSError as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self.uri!r} cannot be written: {error}; choose one that this user may write"
            ) from error

    def has_begun(self) -> bool:
        """Whether a job got so far here that it must be continued: it may have output and slots.

        The plan is stored before a job's output is touched, and before its slots are started. What died earlier than
        that has left nothing to continue.
        """
        return f"blobs/{PLAN_BLOB}" in self._files.names("blobs") or bool(self.checkpoints())

    def release(self) -> None:
        """Give up a claim made with ``resume=False`` by a job that never started: the directory is free again."""
        for folder in ("blobs", "staged", "state"):
            for name in self._files.names(folder):
                self._files.delete(name)
        self._files.delete(JOB_FILE)

    def _write_job(self, job: dict[str, Any]) -> None:
        body = _job_body(job, self._place)
        seal = self._signed(JOB_MAGIC, JOB_FILE, body).partition(b"\n")[0].decode()
        document = JobFile(job=job, place=self._place, seal=seal).to_json()
        self._files.write(JOB_FILE, json.dumps(document, sort_keys=True).encode())

    def _believe_job(self, document: JobFile) -> None:
        """Check the signature. From then on, without ``trust``, what is signed for another job is not believed."""
        try:
            data = document.seal.encode(errors="replace") + b"\n" + _job_body(document.job, document.place)
            _, job_id = self._believed(JOB_MAGIC, JOB_FILE, data)
        except (CorruptCheckpoint, RecursionError) as error:
            raise CheckpointDirectoryError(
                f"{self._files.describe(JOB_FILE)} is damaged ({error}); choose another checkpoint directory"
            ) from error
        if self._key is not None and not self._trust:
            self.job_id = job_id

    def _warn_if_moved(self, document: JobFile) -> None:
        if document.place != self._place:
            log.warning(
                "the checkpoints of job %r were in %s when it ran last, and are in %s now: unless you have moved or "
                "copied them there, stop the job, since another process has put this directory there",
                document.job.get("name"),
                document.place,
                self._place,
            )

    @property
    def _place(self) -> str:
        return without_secrets(self._files.describe(""))

    def _job_document(self) -> JobFile | None:
        try:
            document = parse_document(self._files.read(JOB_FILE))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointDirectoryError(
                f"{self._files.describe(JOB_FILE)} is damaged ({error}); choose another checkpoint directory"
            ) from error
        except OSError as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self.uri!r} cannot be read: {error}; check the path"
            ) from error
        try:
            return JobFile.from_json(document)
        except ValueError as error:
            raise CheckpointDirectoryError(
                f"{self._files.describe(JOB_FILE)} has a format this version does not know ({error}; expected "
                f"{JOB_FORMAT}); use the version that wrote it, or choose another checkpoint directory"
            ) from error

    def _check_owner(self, job: dict[str, Any], document: JobFile | None, resume: Resume) -> None:
        where = f"checkpoint directory {self.uri!r}"
        if document is None:
            others = [name for name in self._files.names("") if not name.startswith(".")]
            if others:
                raise CheckpointDirectoryError(
                    f"{where} holds other data ({others[0]!r}) and is not a checkpoint directory; choose an empty one"
                )
            if resume is True:
                raise CheckpointDirectoryError(f"{where} holds no job to resume; start the job without resume")
            return
        check_same_job(document.job, job, self.uri)
        if not resume and self.checkpoints():
            raise CheckpointDirectoryError(
                f"{where} already has checkpoints of this job; resume it, or choose or clear another directory"
            )

    def job(self, key: Callable[[], SigningKey] | None = None) -> dict[str, Any]:
        """The job this directory belongs to, as given to ``prepare``. ``key``: called when there is a job; what it
        returns is used from then on. Raises ``UntrustedCheckpoint`` when another key has signed the job.
        """
        document = self._job_document()
        if document is None:
            raise CheckpointDirectoryError(f"checkpoint directory {self.uri!r} holds no job; check the path")
        if key is not None:
            self._key = key()
        self._believe_job(document)
        return document.job

    # -- runs -----------------------------------------------------------------------------------------------------

    def earlier_runs(self) -> int:
        """How many runs of the job have begun. Raises ``CorruptCheckpoint`` when that is not known."""
        text = self.get_blob(RUNS_BLOB)
        try:
            return int(text.split()[0])
        except (ValueError, IndexError):
            raise CorruptCheckpoint(f"blob {RUNS_BLOB} says {text[:50]!r}, which is not a number of runs") from None

    def begin_run(self, number: int) -> None:
        """Take the directory over for run ``number`` of the job, whoever had it before."""
        run = b"%d %s" % (number, secrets.token_hex(8).encode())
        self.put_blob(RUNS_BLOB, run)
        for folder in ("blobs", "checkpoints"):
            self._files.delete_unfinished(folder)
        if self._uploads is not None:
            self._uploads.abort()
        self._run, self._number, self._epoch = run, number, number * EPOCHS_PER_RUN
        self._cuts = self._stored_cuts()

    def check_run(self) -> None:
        """Raises ``JobRunsElsewhere`` when another driver has begun a run since this one has."""
        if self._run is not None and self.get_blob(RUNS_BLOB) != self._run:
            raise JobRunsElsewhere(f"another driver has taken over the job in {self.uri!r}")

    def cut(self, through: int) -> None:
        """End the epoch: of the manifests that were written before now, those up to checkpoint ``through`` count.

        Also of one that appears later. To be called before anything is removed that such a manifest may need.
        """
        epoch = self._epoch + 1
        cuts = (self._cuts or self._stored_cuts()).with_cut(Cut(epoch, through))
        name = f"{CUTS_BLOB}{self._number}"
        content = sealed(BLOB_MAGIC, json.dumps(cuts.to_json()).encode())
        try:
            self._files.write(f"blobs/{name}", content, self.check_run)
        except OSError as error:
            raise StateError(f"the end of an epoch cannot be stored in {self.uri!r}: {error}") from error
        self._epoch, self._cuts = epoch, cuts
        with self._lock:
            self._named = {number: names for number, names in self._named.items() if number <= through}
        for older in self._cut_blobs():
            if older != name:
                self.drop_blob(older)

    def _cut_blobs(self) -> list[str]:
        names = (name.removeprefix("blobs/") for name in self._files.names("blobs"))
        return [name for name in names if _CUTS_NAME.match(name)]

    def _stored_cuts(self) -> Cuts:
        cuts = Cuts()
        for name in self._cut_blobs():
            try:
                cuts = cuts.united(Cuts.from_json(parse_document(self.get_blob(name))))
            except (CorruptCheckpoint, ValueError, TypeError) as error:
                log.warning("cannot read which late manifests are void: %s", error)
        return cuts

    # -- blobs and state files ------------------------------------------------------------------------------------

    def put_blob(self, name: str, data: bytes) -> None:
        """Store ``data`` under ``name`` with its checksum, replacing what was there."""
        self._files.write(f"blobs/{name}", sealed(BLOB_MAGIC, data))

    def get_blob(self, name: str) -> bytes:
        """What was stored under ``name``; ``CorruptCheckpoint`` when it is damaged or not there."""
        full = f"blobs/{name}"
        return unsealed(BLOB_MAGIC, self._read_blob(full), self._files.describe(full))

    def put_signed(self, name: str, data: bytes, private: bool = False) -> None:
        """As ``put_blob``, signed; ``private``: for this user only, where the file system knows users."""
        full = f"blobs/{name}"
        self._files.write(full, self._signed(BLOB_MAGIC, full, data), private=private)

    def get_signed(self, name: str) -> bytes:
        """As ``get_blob``, of what ``put_signed`` has stored. Raises ``UntrustedCheckpoint`` as well."""
        full = f"blobs/{name}"
        return self._believed(BLOB_MAGIC, full, self._loaded.get(full) or self._read_blob(full))[0]

    def _read_blob(self, full: str) -> bytes:
        try:
            return self._files.read(full)
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"{self._files.describe(full)} is missing; the job cannot be resumed") from error
        except NoRegularFile as error:
            raise CheckpointDirectoryError(f"{self._files.describe(full)} cannot be read: {error}") from error

    def _signed(self, magic: bytes, name: str, body: bytes) -> bytes:
        if self._key is not None and self.job_id is None:
            raise InvariantViolation(f"{name} is to be signed for no job")
        return signed(magic, body, name, self._key, self.job_id)

    def _believed(self, magic: bytes, name: str, data: bytes) -> tuple[bytes, str]:
        """Content of a signed file, and the id of the job. Raises ``CorruptCheckpoint`` or ``UntrustedCheckpoint``."""
        where, key = self._files.describe(name), None if self._trust else self._key
        body, job_id = checked(magic, data, name, key, where)
        if self._trust:
            self._loaded[name] = data
        if key is not None and self.job_id not in (None, job_id):
            raise UntrustedCheckpoint(f"{where} is signed for the job {job_id!r}, and this is {self.job_id!r}")
        return body, job_id

    def sign_anew(self) -> None:
        """Sign with our own key what is trusted; from then on nothing else is. To be called in a run. What was loaded
        before is signed as it was then, whatever the directory holds now.

        A manifest is stored under the name of this run's epoch before the old one goes, so that there is one at any
        time. Raises ``StateError``.
        """
        if not self._trust:
            return
        try:
            for number, name in self._manifests(lambda _number, _epoch: True).items():
                renewed = _manifest_name(number, self._epoch)
                with suppress(CorruptCheckpoint):  # it is found to be so whenever it is read
                    body, _ = self._believed(MANIFEST_MAGIC, name, self._read_manifest(name))
                    self._files.write(renewed, self._signed(MANIFEST_MAGIC, renewed, body), self.check_run)
                    if name != renewed:
                        self._files.delete(name)
            for name in (PLAN_BLOB, ZOOKEEPER_BLOB):
                with suppress(CorruptCheckpoint):
                    self.put_signed(name, self.get_signed(name), private=name == ZOOKEEPER_BLOB)
            if self._prepared is not None:
                self._write_job(self._prepared)
        except OSError as error:
            raise StateError(f"what is in {self.uri!r} cannot be signed: {error}") from error
        self._trust = False
        self._loaded.clear()

    def drop_blob(self, name: str) -> None:
        """Remove what was stored under ``name``, if there is something."""
        self._files.delete(f"blobs/{name}")

    def upload(self, local: Path, name: str) -> None:
        """Copy a local state file into the store under ``name`` (``<subtask>/<generation>-<checkpoint>-<n>.sst``)."""
        try:
            self._files.put(local, _stored(name))
        except OSError as error:
            raise StateError(f"state file {name} cannot be stored in {self.uri!r}: {error}") from error

    def download(self, name: str, local: Path) -> None:
        """Copy a state file to ``local``; ``CorruptState`` when the store does not have it."""
        full = _stored(name)
        try:
            self._files.fetch(full, local)
        except FileNotFoundError as error:
            raise CorruptState(
                f"state file {self._files.describe(full)} is missing; use an older checkpoint"
            ) from error
        except OSError as error:
            raise StateError(f"state file {name} cannot be read from {self.uri!r}: {error}") from error

    # -- manifests ------------------------------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> None:
        """Make a checkpoint exist. Every state file it names must have been uploaded before."""
        names = frozenset(file.name for file in manifest.files)
        body = json.dumps(manifest.to_json(), sort_keys=True).encode()
        checkpoint = manifest.checkpoint
        try:
            name = _manifest_name(checkpoint, self._epoch)
            self._files.write(name, self._signed(MANIFEST_MAGIC, name, body), self.check_run)
        except OSError as error:
            raise StateError(f"manifest {checkpoint} cannot be stored in {self.uri!r}: {error}") from error
        with self._lock:
            self._named[checkpoint] = names

    def read_manifest(self, checkpoint: int) -> Manifest:
        """The manifest as it was written; ``CorruptCheckpoint`` when it is not there, short, altered or of another
        format, ``UntrustedCheckpoint`` when it is not signed as it should be."""
        name = self._manifests(lambda number, _: number == checkpoint).get(checkpoint, _manifest_name(checkpoint, 0))
        where = self._files.describe(name)
        try:
            body, _ = self._believed(MANIFEST_MAGIC, name, self._read_manifest(name))
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"manifest {where} is missing") from error
        try:
            manifest = Manifest.from_json(parse_document(body))
        except (ValueError, CorruptCheckpoint) as error:
            raise CorruptCheckpoint(f"manifest {where} holds none: {error}") from error
        if manifest.checkpoint != checkpoint:
            raise CorruptCheckpoint(f"manifest {where} names checkpoint {manifest.checkpoint}")
        with self._lock:
            self._named[checkpoint] = frozenset(file.name for file in manifest.files)
        return manifest

    def _read_manifest(self, name: str) -> bytes:
        try:
            return self._loaded.get(name) or self._files.read(name)
        except NoRegularFile as error:
            raise CorruptCheckpoint(f"manifest {self._files.describe(name)} cannot be read: {error}") from error

    def checkpoints(self) -> list[int]:
        """The checkpoints that exist, ascending."""
        return sorted(self._manifests(lambda _number, _epoch: True))

    def _manifests(self, wanted: Callable[[int, int], bool], void: bool = False) -> dict[int, str]:
        """Checkpoint -> name, of the manifests that count (or that are ``void``)."""
        cuts = self._stored_cuts() if self._cuts is None else self._cuts
        found = {}
        for name in self._files.names("checkpoints"):
            match = _MANIFEST_NAME.match(name)
            if match:
                number, epoch = int(match.group(1)), int(match.group(2) or 0)
                if wanted(number, epoch) and cuts.voids(epoch, number) == void:
                    found[number] = name
        return found

    def latest_valid(self) -> tuple[int, Manifest, list[str]] | None:
        """The newest checkpoint that can be restored: (checkpoint, manifest, why newer ones were skipped).

        Every state file is read and checked. None when there is no checkpoint at all; ``CorruptCheckpoint`` when there
        are some and none is whole; ``UntrustedCheckpoint`` when the newest that is not damaged is not signed as it
        should be.
        """
        skipped: list[str] = []
        for checkpoint in reversed(self.checkpoints()):
            try:
                manifest = self.read_manifest(checkpoint)
                for file in manifest.files:
                    self._verify(file)
            except (CorruptCheckpoint, CorruptState) as error:
                skipped.append(f"checkpoint {checkpoint}: {error}")
            else:
                return checkpoint, manifest, skipped
        if skipped:
            raise CorruptCheckpoint(f"no checkpoint in {self.uri!r} can be restored: " + "; ".join(skipped))
        return None

    def _verify(self, file: StateFile) -> None:
        full = _stored(file.name)
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

    # -- removal --------------------------------------------------------------------------------------------------

    def drop(self, checkpoint: int) -> list[str]:
        """Remove a checkpoint and the state files that only it names; returns the names of those files.

        The checkpoint must be older than the newest complete one: a running snapshot builds only on what that one
        names.
        """
        try:
            mine = self._names_of(checkpoint)
        except (CorruptCheckpoint, CorruptState, UntrustedCheckpoint):
            mine = frozenset()  # ``sweep`` finds them
        with self._lock:
            self._named.pop(checkpoint, None)
        for name in self._manifests(lambda number, _: number == checkpoint).values():
            self._files.delete(name)
        alone = sorted(mine - self._all_named()) if mine else []
        for name in alone:
            self._files.delete(_stored(name))
        return alone

    def withdraw_after(self, checkpoint: int) -> None:
        """No checkpoint after this one is to be: ``cut``, and remove their manifests. Their state files stay: they may
        be part of snapshots to come, and are removed by ``sweep`` otherwise.
        """
        self.cut(checkpoint)
        self._remove_void()

    def _remove_void(self) -> None:
        for number, name in self._manifests(lambda _number, _epoch: True, void=True).items():
            log.info("removing void manifest %s of checkpoint %d", name, number)
            self._files.delete(name)

    def sweep(self, complete: int, triggered: int) -> list[str]:
        """Remove state files that no checkpoint can name any more, and void manifests that appeared late.

        ``complete``: the newest complete checkpoint, ``triggered``: the newest that was triggered. Returns the names of
        the removed files, ``MOST_REMOVED`` at most; the next call takes the others.
        """
        self._remove_void()
        stored = {name: checkpoint for name, (_, checkpoint) in self._state_files().items()}
        unused = self._unused.find(stored, self._all_named(), complete, triggered)[:MOST_REMOVED]
        self._remove_unused(unused)
        if self._uploads is not None:
            self._uploads.abort_old()
        return unused

    def sweep_all(self) -> list[str]:
        """Remove every state file that no manifest names: no subtask is left that could build upon it."""
        if self._uploads is not None:
            self.check_run()
            self._uploads.abort()
        unused = self.unnamed()
        self._remove_unused(unused)
        return unused

    def _remove_unused(self, unused: list[str]) -> None:
        """Remove what was listed, and no manifest named, before this call.

        One look at the run is enough, however long the removal takes. A run that begins after it has written none of
        these files, and never names one: its manifests name files of the checkpoint it restores, which were named
        when this was listed, and its own, whose names have generations of its own. What the run before may still
        store late was cut before the listing.
        """
        if unused:
            self.check_run()
        for name in unused:
            self._files.delete(f"state/{name}")

    def unnamed(self) -> list[str]:
        """The state files that no manifest names. Raises as ``_all_named`` does."""
        stored, named = self._state_files(), self._all_named()
        return [name for name in stored if name not in named]

    def _state_files(self) -> dict[str, tuple[int, int]]:
        """State files, and unfinished ones -> the generation and the checkpoint in the name."""
        names = (full.removeprefix("state/") for full in self._files.names("state"))
        matches = ((name, _STATE_NAME.match(name.rpartition("/")[2])) for name in names)
        return {name: (int(match["generation"]), int(match["checkpoint"])) for name, match in matches if match}

    def _all_named(self) -> frozenset[str]:
        """What the manifests name. When that is not known, raises ``CorruptCheckpoint``, ``UntrustedCheckpoint``,
        ``CorruptState`` or ``StateError``, so that nothing is removed."""
        with self._lock:
            known = set(self._named)
        listed = self.checkpoints()
        missing = sorted(known.difference(listed))
        if missing:
            raise StateError(
                f"the listing of {self.uri!r} lacks the manifest of checkpoint {missing[0]}, which exists: "
                "no state file is removed; check the file system"
            )
        return frozenset().union(*(self._names_of(checkpoint) for checkpoint in listed))

    def collect_garbage(self, keep_generation_from: int, complete: int = 0) -> list[str]:
        """Remove state files that no manifest names, ``MOST_REMOVED`` at most; returns their names.

        Kept besides those named: files of generations after ``keep_generation_from`` (the running one); files of the
        running generation that belong to checkpoints after ``complete`` (its newest complete checkpoint).
        """
        removed = left_behind(self._state_files(), self._all_named(), keep_generation_from, complete)[:MOST_REMOVED]
        for name in removed:
            self._files.delete(f"state/{name}")
        return removed

    def _names_of(self, checkpoint: int) -> frozenset[str]:
        with self._lock:
            known = self._named.get(checkpoint)
        if known is not None:
            return known
        return frozenset(file.name for file in self.read_manifest(checkpoint).files)


def check_same_job(found: dict[str, Any], asked: dict[str, Any], where: str) -> None:
    """Raises ``CheckpointDirectoryError`` unless the job ``found`` in a directory is the one that was ``asked`` for."""
    for key in ("name", "fingerprint"):
        if found.get(key) != asked.get(key):
            raise CheckpointDirectoryError(
                f"checkpoint directory {where!r} belongs to another job ({key} {found.get(key)!r:.200}, this job has "
                f"{asked.get(key)!r:.200}{_differences(found.get('shape'), asked.get('shape'))}); "
                "choose another checkpoint directory, or delete this one if its job is not needed any more"
            )


def _job_body(job: dict[str, Any], place: str) -> bytes:
    """What is signed of ``JOB.json``."""
    return json.dumps({"job": job, "place": place}, sort_keys=True).encode()


def _differences(there: Any, here: Any) -> str:
    """What differs between the shapes of two jobs, as far as both are known."""
    if not isinstance(there, dict) or not isinstance(here, dict):
        return ""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    told = [
        f"{printable(name)}: {printable(there.get(name, 'none'))} there, {printable(here.get(name, 'none'))} here"
        for name in names[:TOLD_DIFFERENCES]
    ]
    more = f"; and {len(names) - TOLD_DIFFERENCES} more" if len(names) > TOLD_DIFFERENCES else ""
    return "".join(f"; {one}" for one in told) + more


def _manifest_name(checkpoint: int, epoch: int) -> str:
    return f"checkpoints/{checkpoint:08d}-{epoch}.json" if epoch else f"checkpoints/{checkpoint:08d}.json"


def _stored(name: str) -> str:
    """Where a state file is. Raises ``UnsafeName`` for a name that would lead elsewhere."""
    return f"state/{checked_name(name, STATE_FILE_PARTS)}"
