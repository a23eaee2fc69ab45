"""Which job a checkpoint directory belongs to: ``JOB.json``.

Rules: a directory is claimed for a job before anything in it is changed. A directory of another job, or with other
data, is refused. A savepoint has ``SAVEPOINT.json`` instead: it can be read, and is never claimed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from flinkplus.documents import Document, parse_document
from flinkplus.errors import CheckpointDirectoryError, CorruptCheckpoint, JobRunsElsewhere, without_secrets
from flinkplus.printable import printable
from flinkplus.state.durable.blobs import PLAN_BLOB, Blobs
from flinkplus.state.durable.manifests import Manifests
from flinkplus.state.durable.runs import Runs
from flinkplus.state.durable.savepoint_file import BEGUN_FILE, SAVEPOINT_FILE, SavepointFile
from flinkplus.state.durable.seals import SigningKey
from flinkplus.state.durable.signed_files import SignedFiles
from flinkplus.state.file_system import Files

JOB_FORMAT = 7
"""2: a running sum of 0 is marked beside the number; manifests have epochs. 3: sizes and checksums of the files that a
base replaces are known. 4: the plan and the manifests are signed. 5: so is ``JOB.json``. 6: the state of keys is
sorted by key group, and a job is the same at another parallelism. 7: a run is begun by a claim, and the newest of the
files with cuts counts."""
JOB_MAGIC = b"flinkplus-job"
JOB_FILE = "JOB.json"
PROBE_FILE = "WRITABLE.probe"
MAX_DIFFERENCES = 3

log = logging.getLogger("flinkplus")

Resume: TypeAlias = bool | Literal["auto"]
"""Whether a job continues what is in its checkpoint directory; ``auto``: if it has begun there."""


@dataclass(frozen=True, kw_only=True)
class JobFile(Document):
    """``JOB.json``. ``job``: ``name``, ``fingerprint`` and ``shape`` of the job. ``place``: the directory as it was
    written to last. ``seal``: format, checksum and signature of the other two (``seals``)."""

    FORMAT: ClassVar[int] = JOB_FORMAT
    MAGIC: ClassVar[bytes] = JOB_MAGIC
    NAME: ClassVar[str] = JOB_FILE

    job: dict[str, Any]
    place: str
    seal: str

    def body(self) -> bytes:
        """The signed content."""
        return json.dumps({"job": self.job, "place": self.place}, sort_keys=True).encode()


D = TypeVar("D", JobFile, SavepointFile)


class Ownership:
    """The job that the directory ``uri`` belongs to."""

    def __init__(
        self, uri: str, files: Files, signed: SignedFiles, blobs: Blobs, manifests: Manifests, runs: Runs
    ) -> None:
        self._uri = uri
        self._files = files
        self._signed = signed
        self._blobs = blobs
        self._manifests = manifests
        self._runs = runs
        self._prepared: dict[str, Any] | None = None
        self.savepoint: SavepointFile | None = None
        """What the savepoint here says of itself, once ``job`` has read and checked it."""

    def prepare(
        self,
        job: dict[str, Any],
        resume: Resume,
        claim: Callable[[], None] = lambda: None,
        job_id: str | None = None,
        upgraded: bool = False,
    ) -> bool:
        """Claim the directory for a job. Returns whether an existing history is continued.

        ``job``: for JSON, with ``name``, ``fingerprint`` and perhaps ``shape``: what the fingerprint covers, by name.
        ``resume``: whether to continue the existing history of checkpoints; ``auto``: if it ``has_begun``.
        ``claim``: called once the directory is known to be the job's, before anything in it changes; raises when
        another process has claimed it.
        ``job_id``: the ID of a new job; that of a continued job is in the directory.
        ``upgraded``: the job has another program or name now, which the caller has compared with the checkpoints.

        Raises ``CheckpointDirectoryError`` when the directory cannot be written, belongs to another job, holds other
        data, or holds (or lacks) checkpoints contrary to ``resume``; ``UntrustedCheckpoint`` when another key has
        signed what is to be continued.
        """
        try:
            self._refuse_savepoint()
            self._files.make_root()
            self._files.write(PROBE_FILE, b"")
            self._files.delete(PROBE_FILE)
            present = self._job_file()
            self._check_owner(job, present, resume, upgraded)
            claim()
            continued = self.has_begun() if resume == "auto" else resume
            if continued and present is not None:
                self._check_signature(present)
                self._warn_if_moved(present)
            else:
                self._signed.job_id = self._signed.job_id or job_id
                self._clear("state")
            self._prepared = job
            if not (continued and self._signed.trust):  # with trust the plan names the job: ``sign_again``
                self._write(job)
            return continued
        except OSError as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self._uri!r} cannot be written: {error}; choose one that this user may write"
            ) from error

    def has_begun(self) -> bool:
        """Whether a job here must be continued: its plan is stored before its output changes or a slot starts."""
        return PLAN_BLOB in self._blobs.names() or bool(self._manifests.checkpoints())

    def release(self) -> None:
        """Give up a claim made with ``resume=False`` by a job that never started: the directory is free again.

        If another driver has taken the directory over, nothing is removed.
        """
        with suppress(JobRunsElsewhere):
            for folder in ("blobs", "staged", "state", "streams"):
                self._clear(folder)
            self._runs.check()
            self._files.delete(JOB_FILE)

    def job(self, key: Callable[[], SigningKey] | None = None) -> dict[str, Any]:
        """The job this directory belongs to, as passed to ``prepare``.

        ``key``: called when the directory has a job; returns the key to use from then on. Raises
        ``UntrustedCheckpoint`` when another key has signed the job.
        """
        return self.job_and_id(key)[0]

    def job_and_id(self, key: Callable[[], SigningKey] | None = None) -> tuple[dict[str, Any], str]:
        """As ``job``, with the ID that the job's files are signed for."""
        document = self._job_file() or self._savepoint_file()
        if document is None:
            raise CheckpointDirectoryError(f"checkpoint directory {self._uri!r} holds no job; check the path")
        if key is not None:
            self._signed.key = key()
        job_id = self._check_signature(document)
        self.savepoint = document if isinstance(document, SavepointFile) else None
        return document.job, job_id

    def _savepoint_file(self) -> SavepointFile | None:
        found = self._read(SavepointFile)
        if found is None and self.is_half_savepoint():
            raise CheckpointDirectoryError(
                f"{self._uri!r} holds a savepoint that was not completed: its job, or its storage, failed meanwhile; "
                "delete it, and use another savepoint"
            )
        return found

    def is_half_savepoint(self) -> bool:
        """Whether a savepoint was begun here, and not completed."""
        return self._read_file(BEGUN_FILE) is not None and not self.is_savepoint()

    def is_savepoint(self) -> bool:
        """Whether a savepoint is here, damaged or not."""
        return self._read_file(SAVEPOINT_FILE) is not None

    def _refuse_savepoint(self) -> None:
        for name in (SAVEPOINT_FILE, BEGUN_FILE):
            with suppress(FileNotFoundError):
                self._files.read(name)
                raise CheckpointDirectoryError(
                    f"{self._uri!r} is a savepoint, which is never written to: give the job a checkpoint directory of "
                    "its own, and start it from the savepoint (start_from=, or flinkplus resume SAVEPOINT "
                    "--checkpoint-dir DIR)"
                )

    def sign_again(self) -> None:
        """Sign ``JOB.json`` with our own key."""
        if self._prepared is not None:
            self._write(self._prepared)

    def _clear(self, folder: str) -> None:
        for name in self._files.names(folder):
            self._runs.check()
            self._files.delete(name)

    def _write(self, job: dict[str, Any]) -> None:
        self.write_signed(JobFile(job=job, place=self._place, seal=""))

    def write_signed(self, document: JobFile | SavepointFile, check: Callable[[], None] | None = None) -> None:
        """Write the document with its seal; ``check`` as in ``Files.write``."""
        seal = self._signed.signed(document.MAGIC, document.NAME, document.body()).partition(b"\n")[0].decode()
        content = {**document.to_json(), "seal": seal}
        self._files.write(document.NAME, json.dumps(content, sort_keys=True).encode(), check)

    def _check_signature(self, document: JobFile | SavepointFile) -> str:
        """Returns the ID of the job. From then on, without ``trust``, files signed for another job are refused."""
        try:
            data = document.seal.encode(errors="replace") + b"\n" + document.body()
            _, job_id = self._signed.checked(document.MAGIC, document.NAME, data)
        except (CorruptCheckpoint, RecursionError) as error:
            raise self._damaged(document.NAME, error) from error
        if self._signed.key is not None and not self._signed.trust:
            self._signed.job_id = job_id
        return job_id

    def _damaged(self, name: str, error: Exception) -> CheckpointDirectoryError:
        where = self._files.describe(name)
        return CheckpointDirectoryError(f"{where} is damaged ({error}); choose another checkpoint directory")

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

    def _job_file(self) -> JobFile | None:
        return self._read(JobFile)

    def _read_file(self, name: str) -> bytes | None:
        try:
            return self._files.read(name)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self._uri!r} cannot be read: {error}; check the path"
            ) from error

    def _read(self, kind: type[D]) -> D | None:
        data = self._read_file(kind.NAME)
        if data is None:
            return None
        try:
            document = parse_document(data)
        except ValueError as error:
            raise self._damaged(kind.NAME, error) from error
        try:
            return kind.from_json(document)
        except ValueError as error:
            raise CheckpointDirectoryError(
                f"{self._files.describe(kind.NAME)} has a format this version does not know ({error}; expected "
                f"{kind.FORMAT}); use the version that wrote it, or choose another checkpoint directory"
            ) from error

    def _check_owner(self, job: dict[str, Any], document: JobFile | None, resume: Resume, upgraded: bool) -> None:
        where = f"checkpoint directory {self._uri!r}"
        if document is None:
            names = self._files.names("")
            others = [name for name in names if not name.startswith(".") and not self._runs.is_of_a_begin(name)]
            if others:
                raise CheckpointDirectoryError(
                    f"{where} holds other data ({others[0]!r}) and is not a checkpoint directory; choose an empty one"
                )
            if resume is True:
                raise CheckpointDirectoryError(f"{where} holds no job to resume; start the job without resume")
            return
        if not upgraded:
            check_same_job(document.job, job, self._uri)
        if not resume and self._manifests.checkpoints():
            raise CheckpointDirectoryError(
                f"{where} already has checkpoints of this job; resume it, or choose or clear another directory"
            )


def check_same_job(found: dict[str, Any], asked: dict[str, Any], where: str) -> None:
    """Raises ``CheckpointDirectoryError`` unless the job ``found`` in a directory is the job ``asked`` for."""
    for key in ("name", "fingerprint"):
        if found.get(key) != asked.get(key):
            raise CheckpointDirectoryError(
                f"checkpoint directory {where!r} belongs to another job ({key} {found.get(key)!r:.200}, this job has "
                f"{asked.get(key)!r:.200}{_differences(found.get('shape'), asked.get('shape'))}); "
                "choose another checkpoint directory, or delete this one if its job is not needed any more"
            )


def _differences(there: Any, here: Any) -> str:
    """What differs between the shapes of two jobs, as far as both are known."""
    if not isinstance(there, dict) or not isinstance(here, dict):
        return ""
    names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    shown = [
        f"; {printable(name)}: {printable(there.get(name, 'none'))} there, {printable(here.get(name, 'none'))} here"
        for name in names[:MAX_DIFFERENCES]
    ]
    more = f"; and {len(names) - MAX_DIFFERENCES} more" if len(names) > MAX_DIFFERENCES else ""
    return "".join(shown) + more
