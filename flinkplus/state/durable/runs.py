"""Runs of a job on its checkpoint directory, and the epochs of its manifests (``history``).

Rules:
- a driver takes the directory over with ``begin``, by a claim that no other driver has (``protocol.job.claims``). So
  epochs, and the names of manifests, are those of one driver. An earlier driver notices with ``check`` before it
  changes anything;
- on object stores a manifest whose upload has begun may still appear afterwards: ``cut`` voids it;
- of the files with cuts only the newest counts. Each holds all cuts that its driver knows, and ``begin`` stores one. So
  a cut that an earlier driver stores late has no effect.
"""

from __future__ import annotations

import json
import logging
import re
import secrets

from flinkplus.documents import parse_document
from flinkplus.errors import CheckpointDirectoryError, CorruptCheckpoint, JobRunsElsewhere, StateError
from flinkplus.protocol.job.claims import NO_CLAIM, RunClaim, is_current, newest_place, next_claim
from flinkplus.state.durable.blobs import BLOB_MAGIC, FOLDER, Blobs
from flinkplus.state.durable.history import EPOCHS_PER_RUN, Cut, Cuts
from flinkplus.state.durable.seals import sealed, unsealed
from flinkplus.state.durable.uploads import Uploads
from flinkplus.state.file_system import Files

CLAIMS = ".runs"
"""The folder of the claims. It is not the job's: it stays when the directory is given to another job."""
_CLAIM_NAME = re.compile(rf"{re.escape(CLAIMS)}/([0-9]{{8,}})\Z")
CUTS_BLOB = "cuts-"
CALLS_FOLDER = "calls"
"""With which batches the driver has called the functions of a job (``sinks.foreach_batch``)."""
_CUTS_NAME = re.compile(rf"{CUTS_BLOB}([0-9]+)-([0-9]+)\Z")

log = logging.getLogger("flinkplus")


class Runs:
    """Which run of the job has the directory ``uri``."""

    def __init__(self, uri: str, files: Files, blobs: Blobs, uploads: Uploads) -> None:
        self.epoch = 0
        self._uri = uri
        self._files = files
        self._blobs = blobs
        self._uploads = uploads
        self._newest: RunClaim | None = None  # None: not looked up yet
        self._mine = NO_CLAIM
        self._cuts: Cuts | None = None  # None: read on each use, since another process may add to them
        self._cut_files = 0

    @property
    def number(self) -> int:
        """Of the run that ``begin`` has begun; 0: none."""
        return self._mine.run

    def look(self) -> None:
        """Find the newest run, before anything else of the directory is read. ``begin`` fails if another driver begins
        one afterwards, so that what was read until then is still true. Raises ``CheckpointDirectoryError``."""
        try:
            names = self._files.names(CLAIMS)
            place = newest_place(int(found[1]) for name in names if (found := _CLAIM_NAME.match(name)))
            self._newest = self._readable(place)
        except OSError as error:
            raise CheckpointDirectoryError(
                f"checkpoint directory {self._uri!r} cannot be read: {error}; check the path"
            ) from error

    def _readable(self, newest: int) -> RunClaim:
        """The claim at the place ``newest``. If it is damaged, one with a lower bound of its run's number."""
        for place in range(newest, 0, -1):
            try:
                claim = RunClaim.stored(place, self._content(place) or b"")
            except (CorruptCheckpoint, ValueError) as error:
                log.warning("cannot read which run has the job: %s", error)
            else:
                return RunClaim(newest, claim.run + newest - place, claim.mark)
        return RunClaim(newest, newest, "")

    def _content(self, place: int) -> bytes | None:
        """Of the claim at a place; ``None``: there is no claim."""
        name = _name(place)
        try:
            return unsealed(BLOB_MAGIC, self._files.read(name), self._files.describe(name))
        except FileNotFoundError:
            return None

    def begin(self, at_least: int = 1) -> int:
        """Take the directory over for the next run of the job, and return its number, which is ``at_least`` this.

        Raises ``JobRunsElsewhere`` if another driver has begun a run since ``look``; ``StateError`` if the claim cannot
        be stored.
        """
        if self._newest is None:
            self.look()
        assert self._newest is not None
        at_least = max([at_least, *(int(found[1]) + 1 for found in self._cut_blobs())])
        claim = next_claim(self._newest, secrets.token_hex(8), at_least)
        try:
            won = self._files.create(_name(claim.place), sealed(BLOB_MAGIC, claim.content()))
        except OSError as error:
            raise StateError(f"the run cannot be noted in {self._uri!r}: {error}") from error
        if not won:
            raise JobRunsElsewhere(
                f"another driver has begun a run of the job in {self._uri!r} at the same time; leave the job to it, or "
                "end it first"
            )
        self._newest = self._mine = claim
        self.epoch, self._cut_files = claim.run * EPOCHS_PER_RUN, 0
        for folder in (CLAIMS, FOLDER, "checkpoints", CALLS_FOLDER):
            self.check()
            self._files.delete_unfinished(folder)
        self._uploads.abort()
        self._store_cuts(self._stored_cuts())
        return claim.run

    def is_of_a_begin(self, name: str) -> bool:
        """Whether ``begin`` writes files of this name. A driver may have died right after it."""
        folder, _, last = name.rpartition("/")
        return folder == CLAIMS or (folder == FOLDER and _CUTS_NAME.match(last) is not None)

    def check(self) -> None:
        """Raises ``JobRunsElsewhere`` when another driver has begun a run since ``begin``."""
        mine = self._mine
        if mine == NO_CLAIM:
            return
        try:
            has_next = self._content(mine.place + 1) is not None
            current = is_current(mine, self._content(mine.place), has_next)
        except CorruptCheckpoint:
            current = False
        if not current:
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
        self._store_cuts(self.cuts.united(Cuts([Cut(epoch, through)])))
        self.epoch = epoch
        self.check()  # who has taken over meanwhile may not know of this cut

    def _store_cuts(self, cuts: Cuts) -> None:
        self._cut_files += 1  # a write that hangs may still happen after the next one
        name = f"{CUTS_BLOB}{self._mine.run}-{self._cut_files}"
        content = sealed(BLOB_MAGIC, json.dumps(cuts.to_json()).encode())
        try:
            self._files.write(f"{FOLDER}/{name}", content, self.check)
        except OSError as error:
            raise StateError(f"the end of an epoch cannot be stored in {self._uri!r}: {error}") from error
        self._cuts = cuts

    def drop_older_cuts(self) -> None:
        """Remove the cuts that the newest file includes."""
        for found in self._cut_blobs()[:-1]:
            self._blobs.drop(found[0])

    def _cut_blobs(self) -> list[re.Match[str]]:
        """The names of the files with cuts, the newest last; in each the run and a number in it."""
        found = [match for name in self._blobs.names() if (match := _CUTS_NAME.match(name))]
        return sorted(found, key=lambda match: (int(match[1]), int(match[2])))

    def _stored_cuts(self) -> Cuts:
        for found in reversed(self._cut_blobs()):
            try:
                return Cuts.from_json(parse_document(self._blobs.get(found[0])))
            except (CorruptCheckpoint, ValueError, TypeError) as error:
                log.warning("cannot read which late manifests are void: %s", error)
        return Cuts()


def _name(place: int) -> str:
    return f"{CLAIMS}/{place:08d}"
