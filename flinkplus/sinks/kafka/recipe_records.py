"""The records of a recipe topic: what is stored of a subtask beside its rows, and how it is found.

Each partition belongs to one subtask. A transaction adds one document to it: the state after it, and the entries of the
recipe that it brings. A large document is cut into several records, in order; the key of each has its number.

Rules:

- the newest document counts; the entries are those of all documents from its ``since`` on. So a reader needs the end of
  a partition only, however long that is;
- a transaction's records are visible together, and only one producer at a time writes to a partition. So the pieces of
  a document are beside each other. A reader that begins in the middle of one leaves it out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flinkplus.documents import Document, parse_document
from flinkplus.errors import OutputTopicError
from flinkplus.protocol.checkpoints.subtask_output import OutputState
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.vocabulary.ids import CheckpointId

RECIPE_FORMAT = 1
PIECE_BYTES = 400_000
"""Of a document in one record, at most."""
ITSELF = -1
"""``since``: the document that has it is the first one that counts."""

Piece = tuple[bytes, bytes]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDocument(Document):
    """What a transaction adds. ``since``: the offset of the first document that counts, or ``ITSELF``. ``digest``: in
    hexadecimal digits. ``entries``: ``[checkpoint, spans as base64]``. Others: see ``OutputState``."""

    FORMAT: ClassVar[int] = RECIPE_FORMAT
    REFUSED: ClassVar[type[Exception]] = OutputTopicError

    generation: int
    parallelism: int
    division: int
    step: int
    digest: str
    trimmed: int
    since: int
    entries: list[list[Any]]


class Stored(NamedTuple):
    """What a partition holds of its subtask. ``places``: offset and newest checkpoint of each document that has
    entries."""

    state: OutputState
    entries: tuple[RecipeEntry, ...]
    places: tuple[tuple[int, int], ...]


class Shown(NamedTuple):
    """What the brokers have shown of a partition. ``stored``: ``None``: nothing. ``end``: the offset behind it."""

    stored: Stored | None
    end: int


def pieces(state: OutputState, entries: Sequence[RecipeEntry], since: int, largest: int = PIECE_BYTES) -> list[Piece]:
    """The records of a document. ``largest``: bytes of a value."""
    document = RecipeDocument(
        generation=state.generation,
        parallelism=state.parallelism,
        division=state.division,
        step=state.step,
        digest=state.digest.hex(),
        trimmed=state.trimmed,
        since=since,
        entries=[[entry.checkpoint, base64.b64encode(entry.spans).decode()] for entry in entries],
    )
    content = json.dumps(document.to_json(), separators=(",", ":")).encode()
    cuts = range(0, len(content), largest)
    return [(b"%d/%d" % (number, len(cuts)), content[at : at + largest]) for number, at in enumerate(cuts, 1)]


class RecipeScan:
    """Takes the records of a partition in order. ``first``: the offset that reading began at. ``what``: for errors."""

    def __init__(self, first: int, what: str) -> None:
        self._first = first
        self._what = what
        self._open: list[bytes] = []
        self._opened_at = 0
        self._found: list[tuple[int, RecipeDocument]] = []

    def add(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Raises ``OutputTopicError`` for what no writer has written."""
        try:
            number, count = map(int, (key or b"").split(b"/"))
        except ValueError:
            raise OutputTopicError(f"{self._what}: the record at offset {offset} is of something else") from None
        if number == 1:
            self._open, self._opened_at = [], offset
        elif not self._open and not self._found:
            return  # the beginning of this document was before
        if number != len(self._open) + 1 or value is None:
            raise OutputTopicError(f"{self._what}: a part of the recipe is missing before offset {offset}")
        self._open.append(value)
        if number == count:
            self._found.append((self._opened_at, self._read(b"".join(self._open), offset)))
            self._open = []

    def _read(self, content: bytes, offset: int) -> RecipeDocument:
        try:
            document = parse_document(content)
        except ValueError as error:
            raise OutputTopicError(f"{self._what}: the recipe at offset {offset} is damaged: {error}") from None
        return RecipeDocument.from_json(document)

    @property
    def reads_from(self) -> int | None:
        """The offset that must be read from; ``None``: no document was found."""
        if not self._found:
            return None
        at, newest = self._found[-1]
        return at if newest.since == ITSELF else newest.since

    def stored(self) -> Stored | None:
        """What the records say, once all from ``reads_from`` on were added."""
        first = self.reads_from
        if first is None:
            return None
        newest = self._found[-1][1]
        entries: list[RecipeEntry] = []
        places: list[tuple[int, int]] = []
        for offset, document in self._found:
            if offset >= first and document.entries:
                found = [_entry(one, self._what) for one in document.entries]
                entries += found
                places.append((offset, max(entry.checkpoint for entry in found)))
        return Stored(_state(newest, self._what), tuple(entries), tuple(places))


def _state(document: RecipeDocument, what: str) -> OutputState:
    try:
        digest = bytes.fromhex(document.digest)
    except ValueError:
        raise OutputTopicError(f"{what}: the digest {document.digest!r:.100} is damaged") from None
    return OutputState(
        document.generation, document.parallelism, document.division, document.step, digest, document.trimmed
    )


def _entry(found: Sequence[Any], what: str) -> RecipeEntry:
    try:
        checkpoint, spans = found
        if type(checkpoint) is not int:
            raise TypeError(checkpoint)
        return RecipeEntry(CheckpointId(checkpoint), base64.b64decode(spans, validate=True))
    except (TypeError, ValueError):
        raise OutputTopicError(f"{what}: an entry of the recipe is damaged: {found!r:.100}") from None
