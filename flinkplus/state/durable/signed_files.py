"""Signed files of a checkpoint directory: writing them, and checking who wrote them (``seals``)."""

from __future__ import annotations

from collections.abc import Callable

from flinkplus.errors import InvariantViolation, UntrustedCheckpoint
from flinkplus.state.durable.seals import SigningKey, checked, signed
from flinkplus.state.file_system import Files


class SignedFiles:
    """Signs files for one job and checks their signatures.

    ``key``: signs, and must have signed what is read. ``None``: nothing is signed or checked.
    ``trust``: until ``end_trust``, any key or none is accepted; each file is read only once, so that exactly what was
    used is signed again.
    """

    def __init__(self, files: Files, key: SigningKey | None, trust: bool) -> None:
        self.key = key
        self.trust = trust
        self.job_id: str | None = None
        """The job to sign for, once it is known. From then on files signed for another job are refused."""
        self._files = files
        self._loaded: dict[str, bytes] = {}  # with trust: what was read

    def write(
        self, magic: bytes, name: str, body: bytes, check: Callable[[], None] | None = None, private: bool = False
    ) -> None:
        """Sign ``body`` and write it; ``check`` and ``private`` as in ``Files.write``."""
        self._files.write(name, self.signed(magic, name, body), check, private)

    def create(self, magic: bytes, name: str, body: bytes, check: Callable[[], None] | None = None) -> bool:
        """Sign ``body`` and write it if no file of this name exists; as ``Files.create``."""
        return self._files.create(name, self.signed(magic, name, body), check)

    def read(self, magic: bytes, name: str) -> bytes:
        """The content of a signed file. Raises as ``checked`` and as ``Files.read``."""
        return self.checked(magic, name, self._loaded.get(name) or self._files.read(name))[0]

    def signed(self, magic: bytes, name: str, body: bytes) -> bytes:
        """``body`` with its signature."""
        if self.key is not None and self.job_id is None:
            raise InvariantViolation(f"{name} cannot be signed: the job is not known")
        return signed(magic, body, name, self.key, self.job_id)

    def checked(self, magic: bytes, name: str, data: bytes) -> tuple[bytes, str]:
        """Content of a signed file, and the ID of the job. Raises ``CorruptCheckpoint`` or ``UntrustedCheckpoint``."""
        where, key = self._files.describe(name), None if self.trust else self.key
        body, job_id = checked(magic, data, name, key, where)
        if self.trust:
            self._loaded[name] = data
        if key is not None and self.job_id not in (None, job_id):
            raise UntrustedCheckpoint(f"{where} is signed for the job {job_id!r}, and this is {self.job_id!r}")
        return body, job_id

    def end_trust(self) -> None:
        """From now on only files signed with ``key`` are accepted."""
        self.trust = False
        self._loaded.clear()
