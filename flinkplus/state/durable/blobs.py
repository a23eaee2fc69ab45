"""Named blobs of a checkpoint directory: each with a checksum, some of them signed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from flinkplus.errors import CheckpointDirectoryError, CorruptCheckpoint
from flinkplus.local_files import NoRegularFile
from flinkplus.state.durable.seals import sealed, unsealed
from flinkplus.state.durable.signed_files import SignedFiles
from flinkplus.state.file_system import Files

BLOB_MAGIC = b"flinkplus-blob"
PLAN_BLOB = "plan"
PROGRAM_BLOB = "program"
ZOOKEEPER_BLOB = "zookeeper"
ORIGIN_BLOB = "origin"
FOLDER = "blobs"


class Blobs:
    """The blobs of one checkpoint directory."""

    def __init__(self, files: Files, signed: SignedFiles) -> None:
        self._files = files
        self._signed = signed

    def put(self, name: str, data: bytes) -> None:
        """Store ``data`` with its checksum under ``name``; an existing blob is replaced."""
        self._files.write(f"{FOLDER}/{name}", sealed(BLOB_MAGIC, data))

    def get(self, name: str) -> bytes:
        """The blob ``name``. Raises ``CorruptCheckpoint`` when it is damaged or missing."""
        full = f"{FOLDER}/{name}"
        with self._explained(full):
            return unsealed(BLOB_MAGIC, self._files.read(full), self._files.describe(full))

    def put_signed(self, name: str, data: bytes, private: bool = False) -> None:
        """As ``put``, signed. ``private``: readable by this user only, where the file system has users."""
        self._signed.write(BLOB_MAGIC, f"{FOLDER}/{name}", data, private=private)

    def get_signed(self, name: str) -> bytes:
        """As ``get``, for a blob stored by ``put_signed``. Also raises ``UntrustedCheckpoint``."""
        full = f"{FOLDER}/{name}"
        with self._explained(full):
            return self._signed.read(BLOB_MAGIC, full)

    def drop(self, name: str) -> None:
        """Remove the blob ``name``, if it exists."""
        self._files.delete(f"{FOLDER}/{name}")

    def names(self) -> list[str]:
        """The names of all blobs."""
        return [name.removeprefix(f"{FOLDER}/") for name in self._files.names(FOLDER)]

    def sign_again(self) -> None:
        """Sign the trusted blobs with our own key."""
        for name in (PLAN_BLOB, PROGRAM_BLOB, ZOOKEEPER_BLOB, ORIGIN_BLOB):
            with suppress(CorruptCheckpoint):
                self.put_signed(name, self.get_signed(name), private=name == ZOOKEEPER_BLOB)

    @contextmanager
    def _explained(self, full: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise CorruptCheckpoint(f"{self._files.describe(full)} is missing; the job cannot be resumed") from error
        except NoRegularFile as error:
            raise CheckpointDirectoryError(f"{self._files.describe(full)} cannot be read: {error}") from error
