"""Runs of a job on its checkpoint directory, and the epochs of its manifests (``history``).

Rule: a driver takes the directory over with ``begin``. An earlier driver notices with ``check`` before it changes
anything. On object stores, which have no rename, a manifest whose upload has begun may still appear: ``cut`` voids it.
"""

from __future__ import annotations

import json
import logging
import re
import secrets

from flinkplus.documents import parse_document
from flinkplus.errors import CorruptCheckpoint, JobRunsElsewhere, StateError
from flinkplus.state.durable.blobs import BLOB_MAGIC, FOLDER, Blobs
from flinkplus.state.durable.history import EPOCHS_PER_RUN, Cut, Cuts
from flinkplus.state.durable.seals import sealed
from flinkplus.state.durable.uploads import Uploads
from flinkplus.state.file_system import Files

RUNS_BLOB = "runs"
CUTS_BLOB = "cuts-"
CALLS_FOLDER = "calls"
"""With which batches the driver has called the functions of a job (``sinks.foreach_batch``)."""
_CUTS_NAME = re.compile(rf"{CUTS_BLOB}[0-9]+\Z")

log = logging.getLogger("flinkplus")


class Runs:
    """Which run of the job has the directory ``uri``."""

    def __init__(self, uri: str, files: Files, blobs: Blobs, uploads: Uploads) -> None:
        self.epoch = 0
        self._uri = uri
        self._files = files
        self._blobs = blobs
        self._uploads = uploads
        self._run: bytes | None = None
        self._number = 0
        self._cuts: Cuts | None = None  # None: read on each use, since another process may add to them

    def earlier(self) -> int:
        """How many runs of the job have begun. Raises ``CorruptCheckpoint`` when that is not known."""
        text = self._blobs.get(RUNS_BLOB)
        try:
            return int(text.split()[0])
        except (ValueError, IndexError):
            raise CorruptCheckpoint(f"blob {RUNS_BLOB} holds {text[:50]!r}, which is not a number of runs") from None

    def begin(self, number: int) -> None:
        """Take the directory over for run ``number`` of the job."""
        run = b"%d %s" % (number, secrets.token_hex(8).encode())
        self._blobs.put(RUNS_BLOB, run)
        for folder in (FOLDER, "checkpoints", CALLS_FOLDER):
            self._files.delete_unfinished(folder)
        self._uploads.abort()
        self._run, self._number, self.epoch = run, number, number * EPOCHS_PER_RUN
        self._cuts = self._stored_cuts()

    def check(self) -> None:
        """Raises ``JobRunsElsewhere`` when another driver has begun a run since ``begin``."""
        if self._run is not None and self._blobs.get(RUNS_BLOB) != self._run:
            raise JobRunsElsewhere(f"another driver has taken over the job in {self._uri!r}")

    @property
    def cuts(self) -> Cuts:
        """Which manifests of earlier epochs count."""
        return self._stored_cuts() if self._cuts is None else self._cuts

    def cut(self, through: int) -> None:
        """End the epoch: its manifests, also those that appear later, count only up to checkpoint ``through``.

        Call it before removing anything that such a manifest may need.
        """
        epoch = self.epoch + 1
        cuts = self.cuts.united(Cuts([Cut(epoch, through)]))
        content = sealed(BLOB_MAGIC, json.dumps(cuts.to_json()).encode())
        try:
            self._files.write(f"{FOLDER}/{CUTS_BLOB}{self._number}", content, self.check)
        except OSError as error:
            raise StateError(f"the end of an epoch cannot be stored in {self._uri!r}: {error}") from error
        self.epoch, self._cuts = epoch, cuts

    def drop_older_cuts(self) -> None:
        """Remove the cuts of earlier runs, which the newest ``cut`` includes."""
        for name in self._cut_blobs():
            if name != f"{CUTS_BLOB}{self._number}":
                self._blobs.drop(name)

    def _cut_blobs(self) -> list[str]:
        return [name for name in self._blobs.names() if _CUTS_NAME.match(name)]

    def _stored_cuts(self) -> Cuts:
        cuts = Cuts()
        for name in self._cut_blobs():
            try:
                cuts = cuts.united(Cuts.from_json(parse_document(self._blobs.get(name))))
            except (CorruptCheckpoint, ValueError, TypeError) as error:
                log.warning("cannot read which late manifests are void: %s", error)
        return cuts
