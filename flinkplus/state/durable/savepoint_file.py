"""``SAVEPOINT.json``: what makes a directory a savepoint, and whose. It takes the place of ``JOB.json``.

Rules:
- it is the last file that is written, atomically: a savepoint exists if it does. ``BEGUN_FILE`` is written first and
  removed in the end: a directory that has only that one holds a savepoint that was not completed;
- it is signed, for the job that the savepoint was taken of.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

from flinkplus.documents import Document
from flinkplus.errors import UnsafeName

SAVEPOINT_FORMAT = 1
SAVEPOINT_MAGIC = b"flinkplus-savepoint"
SAVEPOINT_FILE = "SAVEPOINT.json"
BEGUN_FILE = "SAVEPOINT.begun"
INPUT_FOLDER = "staged"
PLANNED_SUFFIX = ".planned"
"""Of staged input that comes and goes while the job runs: it is there until no checkpoint needs it."""


@dataclass(frozen=True, kw_only=True)
class SavepointFile(Document):
    """What a savepoint says of itself.

    ``job``: as in ``JOB.json``.
    ``checkpoint``: the number of the checkpoint that it is a copy of.
    ``stopped``: the job was stopped with it.
    ``time_s``: when it was completed, in seconds since the Unix epoch.
    ``origin``: the job's checkpoint directory, without secrets.
    ``input``: the staged input that belongs to it, file -> bytes.
    ``seal``: format, checksum and signature of all the others (``seals``).
    """

    FORMAT: ClassVar[int] = SAVEPOINT_FORMAT
    MAGIC: ClassVar[bytes] = SAVEPOINT_MAGIC
    NAME: ClassVar[str] = SAVEPOINT_FILE

    job: dict[str, Any]
    checkpoint: int
    stopped: bool
    time_s: float
    origin: str
    input: dict[str, int]
    seal: str

    def check_names(self) -> None:
        for name in self.input:
            parts = PurePosixPath(name).parts
            if parts[:1] != (INPUT_FOLDER,) or ".." in parts or len(parts) < 2:
                raise UnsafeName(f"{name!r:.100} is no file of staged input")

    def body(self) -> bytes:
        """The signed content."""
        content = {name: value for name, value in self.to_json().items() if name != "seal"}
        return json.dumps(content, sort_keys=True).encode()
