"""Which reader has which partition, what a choice means, and what a position holds. Pure.

Rules:

- Partition ``p`` of the topic that is number ``t`` of ``T`` has the number ``p * T + t``. Reader ``i`` of ``n`` has the
  numbers that are ``i`` modulo ``n``: computed, so that a partition that appears later has an owner at once.
- Within a reader a partition is known by ``number // n``. It means the same partition whichever others are known, so
  that a choice can be repeated before they are found.
- A position has the next offset of each partition that was read. Any other partition begins where it was planned to,
  and one that was not there then begins at offset 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flinkplus.errors import InputError
from flinkplus.operators.base.operator import JsonValue

RECORD_BITS, LOCAL_BITS = 16, 13
MAX_RECORDS = (1 << RECORD_BITS) - 1
"""Of one choice."""
MAX_LOCAL = (1 << LOCAL_BITS) - 1
END = 0
"""The choice that says that a bounded source is read to its end."""
POSITION_FORMAT = 1


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.number}]"


Offsets = Mapping[Partition, int]


@dataclass(frozen=True)
class Assignment:
    """The partitions of reader ``index`` of ``parallelism``. ``topics``: in order."""

    topics: tuple[str, ...]
    index: int
    parallelism: int

    def has(self, partition: Partition) -> bool:
        return self._number(partition) % self.parallelism == self.index

    def local(self, partition: Partition) -> int:
        """The partition's number within this reader."""
        return self._number(partition) // self.parallelism

    def partition(self, local: int) -> Partition:
        """The reverse of ``local``."""
        number = local * self.parallelism + self.index
        return Partition(self.topics[number % len(self.topics)], number // len(self.topics))

    def _number(self, partition: Partition) -> int:
        return partition.number * len(self.topics) + self.topics.index(partition.topic)


def choice_of(local: int, records: int) -> int:
    """The number that stands for ``records`` (1 to ``MAX_RECORDS``) of a partition."""
    return local << RECORD_BITS | records


def parts_of(choice: int) -> tuple[int, int]:
    """The partition's number within its reader, and how many records."""
    return choice >> RECORD_BITS, choice & MAX_RECORDS


def offsets_to_json(offsets: Offsets) -> dict[str, JsonValue]:
    """Topic -> partition, as text -> offset."""
    found: dict[str, dict[str, JsonValue]] = {}
    for partition in sorted(offsets):
        found.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return dict(found)


def offsets_from_json(document: Any) -> dict[Partition, int]:
    """The reverse of ``offsets_to_json``. Raises ``ValueError`` or ``TypeError``."""
    if not isinstance(document, Mapping) or not all(isinstance(known, Mapping) for known in document.values()):
        raise TypeError(f"not offsets of partitions: {document!r:.200}")
    found = {Partition(topic, int(p)): offset for topic, known in document.items() for p, offset in known.items()}
    if not all(type(offset) is int and offset >= 0 and at.number >= 0 for at, offset in found.items()):
        raise ValueError(f"not offsets of partitions: {document!r:.200}")
    return found


@dataclass(frozen=True)
class Position:
    """Where a reader reads on. ``rows``, ``invalid_records``: how many it has given, and skipped."""

    offsets: Offsets = field(default_factory=dict)
    rows: int = 0
    invalid_records: int = 0

    def to_json(self) -> JsonValue:
        return {
            "format": POSITION_FORMAT,
            "rows": self.rows,
            "invalid_records": self.invalid_records,
            "offsets": offsets_to_json(self.offsets),
        }


def position_from(source: str, document: JsonValue) -> Position:
    """The position of a reader of ``source``; ``None`` is the start. Raises ``InputError`` for what is none."""
    if document is None:
        return Position()
    try:
        assert isinstance(document, Mapping) and document["format"] == POSITION_FORMAT
        rows, invalid = document["rows"], document["invalid_records"]
        assert type(rows) is int and type(invalid) is int and rows >= 0 and invalid >= 0
        return Position(offsets_from_json(document["offsets"]), rows, invalid)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"source {source!r}: not a position of this version: {document!r:.200}") from error


def redealt(positions: Sequence[Position], topics: tuple[str, ...], parallelism: int) -> list[Position]:
    """The offsets of all ``positions``, each with the reader of ``parallelism`` that has its partition then."""
    readers = [Assignment(topics, index, parallelism) for index in range(parallelism)]
    offsets = {partition: offset for position in positions for partition, offset in position.offsets.items()}
    rows, invalid = [0] * parallelism, [0] * parallelism
    for index, position in enumerate(positions):
        rows[index % parallelism] += position.rows
        invalid[index % parallelism] += position.invalid_records
    return [
        Position({p: offset for p, offset in offsets.items() if reader.has(p)}, rows[index], invalid[index])
        for index, reader in enumerate(readers)
    ]
