"""Names of output files. A name holds everything known of its file, so that a listing is enough.

``part-c<checkpoint>-s<subtask>-g<generation>-<n>-<job>.<suffix>``: staged for a checkpoint; the name it keeps when
committed. ``<job>`` is the tag of the job that wrote it, since several jobs may write to one directory, one after the
other.
``open-s<subtask>-g<generation>-<n>.<suffix>``: being written.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

STAGING_DIRECTORY = "_staging"
OWNER_FILE = "_flinkplus.json"

_PART = re.compile(r"part-c(\d{8,})-s(\d+)-g(\d+)-(\d+)-([0-9a-f]{8})\.\w+", re.ASCII)
_OPEN = re.compile(r"open-s(\d+)-g(\d+)-(\d+)\.\w+", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartName:
    """A staged or committed file."""

    checkpoint: int
    subtask: int
    generation: int
    number: int
    job: str
    """The tag of the job."""

    def text(self, suffix: str) -> str:
        return f"part-c{self.checkpoint:08d}-s{self.subtask}-g{self.generation}-{self.number}-{self.job}.{suffix}"

    @staticmethod
    def parse(name: str) -> PartName | None:
        """``None`` when ``name`` is not of that form."""
        match = _PART.fullmatch(name)
        if match is None:
            return None
        checkpoint, subtask, generation, number = map(int, match.groups()[:-1])
        return PartName(checkpoint, subtask, generation, number, match[5])


@dataclass(frozen=True, slots=True)
class OpenName:
    """A file that a writer has not finished."""

    subtask: int
    generation: int
    number: int

    def text(self, suffix: str) -> str:
        return f"open-s{self.subtask}-g{self.generation}-{self.number}.{suffix}"

    @staticmethod
    def parse(name: str) -> OpenName | None:
        """``None`` when ``name`` is not of that form."""
        match = _OPEN.fullmatch(name)
        return OpenName(*map(int, match.groups())) if match else None


def job_tag(job_id: str) -> str:
    """The tag of a job in the names of its files."""
    return hashlib.blake2b(job_id.encode(), digest_size=4).hexdigest()


def staging_directory(job_id: str) -> str:
    """Where a job keeps what is not committed, below its output directory."""
    return f"{STAGING_DIRECTORY}/{job_id}"


def table_staging(job_id: str, place: str) -> str:
    """Where a job keeps rows for a table that are not committed, below its checkpoint directory."""
    digest = hashlib.blake2b(place.encode(), digest_size=8).hexdigest()
    return f"{STAGING_DIRECTORY}/{job_id}-{digest}"
