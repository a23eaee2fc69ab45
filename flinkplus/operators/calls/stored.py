"""Answers as they are stored, in the checkpoint directory: ``answers/OPERATOR/INDEX/NUMBER.answers``.

A file has a magic number, a digest, and an Arrow stream of one batch: the answers, in the order in which their rows go
on. The metadata of its schema says which rows these answer, and which rows have an error in place of an answer.

Rules: a file appears whole, is created only if there is none of its name, and never changes. Numbers rise; one that a
predecessor has used is left out. So a number means the same answers for every incarnation of a subtask. What a complete
checkpoint covers is removed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flinkplus.errors import AnswersLost
from flinkplus.state.file_system import Files, open_directory

ANSWERS_FORMAT = 1
ANSWERS_FOLDER = "answers"
_MAGIC = b"flinkplus-answers"
_DIGEST_BYTES = 16
_KEY = b"flinkplus.answers"
_FILE = re.compile(r"(\d{12})\.answers")


@dataclass(frozen=True)
class Answers:
    """Answers that a step takes together.

    ``numbers``: of the rows, in the order in which they are sent on.
    ``errors``: place among these -> the error of the row.
    ``rows``: the answers of the others.
    """

    numbers: tuple[int, ...]
    rows: pa.RecordBatch
    errors: Mapping[int, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As a file's content."""
        header = {"format": ANSWERS_FORMAT, "numbers": list(self.numbers), "errors": list(self.errors.items())}
        batch = self.rows.replace_schema_metadata({_KEY: json.dumps(header).encode()})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        return _MAGIC + _digest(body) + body

    @classmethod
    def from_bytes(cls, data: bytes, schema: pa.Schema) -> Answers:
        """Raises ``ValueError`` for anything but the content of a file with rows of ``schema``."""
        start = len(_MAGIC) + _DIGEST_BYTES
        body = data[start:]
        if data[:start] != _MAGIC + _digest(body):
            raise ValueError("it is torn or altered")
        with pa.ipc.open_stream(body) as reader:
            batch = reader.read_next_batch()
        header: dict[str, Any] = json.loads(batch.schema.metadata[_KEY])
        if header.get("format") != ANSWERS_FORMAT:
            raise ValueError(f"it has format {header.get('format')!r}, known is {ANSWERS_FORMAT}")
        rows = batch.replace_schema_metadata(schema.metadata)
        if not rows.schema.equals(schema):
            raise ValueError(f"it has the columns {rows.schema.names}, not {schema.names}, or of other types")
        return cls(tuple(header["numbers"]), rows, {int(at): str(text) for at, text in header["errors"]})


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest()


class AnswerFiles:
    """The answers of subtask ``index`` of ``operator``. ``location``: the checkpoint directory. Used by one thread."""

    def __init__(self, location: str, operator: str, index: int) -> None:
        self._files: Files = open_directory(location)
        self._operator = operator
        self._folder = f"{ANSWERS_FOLDER}/{operator}/{index}"
        self._known: list[int] = []

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:012d}.answers"

    def list(self) -> int:
        """Find the files that predecessors have left; the highest number. What one was writing is removed. Raises
        ``OSError``."""
        self._files.delete_unfinished(self._folder)
        names = [_FILE.fullmatch(name.removeprefix(f"{self._folder}/")) for name in self._files.names(self._folder)]
        self._known = sorted(int(found[1]) for found in names if found is not None)
        return max(self._known, default=0)

    def create(self, number: int, content: bytes) -> bool:
        """Store answers; ``False``: the number is used. Repeated after an error, it may have been done before. Raises
        ``OSError``."""
        try:
            created = self._files.create(self._name(number), content)
        except FileExistsError:
            created = False
        if self._known[-1:] != [number]:  # also one of a predecessor, or of an attempt whose answer was lost
            self._known.append(number)
        return created

    def read(self, number: int, schema: pa.Schema) -> Answers:
        """Answers that a predecessor took. Raises ``OSError``, ``AnswersLost`` for a damaged file."""
        name = self._name(number)
        try:
            return Answers.from_bytes(self._files.read(name), schema)
        except (ValueError, KeyError, StopIteration, pa.ArrowException) as error:
            raise self.lost(number, f"damaged: {error}") from error

    def lost(self, number: int, why: str) -> AnswersLost:
        """The error for answers that cannot be had."""
        where = self._files.describe(self._name(number))
        return AnswersLost(f"operator {self._operator!r}: {where}, with answers that were sent on, is {why}")

    def holds(self, through: int) -> bool:
        """Whether there is something for ``remove``."""
        return bool(self._known) and self._known[0] <= through

    def remove(self, through: int) -> None:
        """Remove what a complete checkpoint covers. Raises ``OSError``; what is left is tried again."""
        while self.holds(through):
            self._files.delete(self._name(self._known[0]))
            self._known.pop(0)

    def remove_beyond(self, parallelism: int) -> None:
        """Remove what subtasks have left that there are no more. Raises ``OSError``."""
        top = f"{ANSWERS_FOLDER}/{self._operator}/"
        for name in self._files.names(top.rstrip("/")):
            index = name.removeprefix(top).partition("/")[0]
            if index.isdigit() and int(index) >= parallelism:
                self._files.delete(name)


def numbers_after(taken: int, choices: Sequence[int]) -> list[int]:
    """The numbers of files that choices name: each is the distance from the one before. ``taken``: the last one."""
    found = []
    for choice in choices:
        taken += choice
        found.append(taken)
    return found
