"""Where planned batches are kept: written by the driver, read by the slots.

``<number, 20 digits>.planned``: a batch. ``end.planned``: there will be no more.

Rules: a file appears whole, is created only if there is none of its name, and never changes. Batches appear in
ascending order. Their partitions are pickled, so they are signed, with a key that is derived from the user's for this
area alone: slots have it to check, and can sign nothing else with it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable

from pyarrow import fs

from flinkplus.errors import CorruptCheckpoint, InputError
from flinkplus.sources.planned.planning import PlannedBatch
from flinkplus.state.durable.savepoint_file import PLANNED_SUFFIX
from flinkplus.state.durable.seals import SigningKey, checked, signed
from flinkplus.state.file_system import filesystem_of, open_directory

PLANNED_FORMAT = 1
PLANNED_MAGIC = b"flinkplus-planned"
SIGNED_FOR = "planned"
_END = f"end{PLANNED_SUFFIX}"
_BATCH_FILE = re.compile(rf"(\d{{20}}){re.escape(PLANNED_SUFFIX)}")


class PlanArea:
    """The area at ``location``, a local path or a URI. Any thread may call anything. Raises ``OSError``."""

    def __init__(self, location: str, key: SigningKey) -> None:
        self.location = location.rstrip("/")
        self._key = key
        self._files = open_directory(self.location)
        self.is_local = isinstance(filesystem_of(self.location)[0], fs.LocalFileSystem)

    # --- for readers

    def ready(self) -> tuple[list[int], bool]:
        """The numbers of the planned batches, in ascending order, and whether there will be no more."""
        names = self._files.names("")
        found = filter(None, map(_BATCH_FILE.fullmatch, names))  # others are being written
        return sorted(int(name[1]) for name in found), _END in names

    def read(self, number: int) -> PlannedBatch:
        """A planned batch. Raises ``InputError`` when it is damaged, ``UntrustedCheckpoint``."""
        return self._read(number, self._key)

    def _read(self, number: int, key: SigningKey | None) -> PlannedBatch:
        name = _name(number)
        where = self._files.describe(name)
        try:
            body, _ = checked(PLANNED_MAGIC, self._files.read(name), name, key, where)
            return _batch_of(body, number)
        except (CorruptCheckpoint, ValueError) as error:
            raise InputError(f"{where} is damaged: {error}") from error

    # --- for the driver

    def put(self, batch: PlannedBatch, check: Callable[[], None]) -> PlannedBatch:
        """Store a batch; returns the one that is stored, which a driver before may have planned. May be repeated.

        ``check``: called before it is visible; may raise.
        """
        name = _name(batch.number)
        return batch if self._files.create(name, self._signed(batch), check) else self.read(batch.number)

    def _signed(self, batch: PlannedBatch) -> bytes:
        return signed(PLANNED_MAGIC, _body_of(batch), _name(batch.number), self._key, SIGNED_FOR)

    def end(self, check: Callable[[], None]) -> None:
        """There will be no more batches."""
        self._files.write(_END, b"{}", check)

    def remove(self, number: int) -> None:
        """Remove a batch that nothing needs. May be repeated."""
        self._files.delete(_name(number))

    def sign_again(self) -> None:
        """Sign what is there with this job's key, also what another key has signed: the user trusts it."""
        for number in self.ready()[0]:
            self._files.write(_name(number), self._signed(self._read(number, None)))


def _name(number: int) -> str:
    return f"{number:020d}{PLANNED_SUFFIX}"


def _body_of(batch: PlannedBatch) -> bytes:
    partitions = [base64.b64encode(partition).decode() for partition in batch.partitions]
    return json.dumps({"format": PLANNED_FORMAT, **vars(batch), "partitions": partitions}, sort_keys=True).encode()


def _batch_of(body: bytes, number: int) -> PlannedBatch:
    """Raises ``ValueError`` for what is no batch."""
    document = json.loads(body)
    if not isinstance(document, dict) or document.pop("format", None) != PLANNED_FORMAT:
        raise ValueError("not a planned batch of this version")
    try:
        partitions = tuple(base64.b64decode(each, validate=True) for each in document.pop("partitions"))
        batch = PlannedBatch(partitions=partitions, **document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a planned batch: {error}") from error
    if batch.number != number:
        raise ValueError(f"it says that it is batch {batch.number}")
    return batch
