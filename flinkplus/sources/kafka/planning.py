"""Where to begin and where to end, resolved to offsets once, in the driver. Pure, apart from what it asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.kafka.client import EARLIEST, LATEST
from flinkplus.sources.kafka.partitions import MAX_LOCAL, Offsets, Partition, offsets_from_json, offsets_to_json

PLAN_FORMAT = 1
Moment = str | int
"""``earliest``, ``latest``, ``committed``, or milliseconds since 1970."""


class Brokers(Protocol):
    """What planning asks; see ``KafkaClient``."""

    def partitions(self, topic: str) -> list[Partition] | None: ...

    def offsets_at(self, times: Iterable[tuple[Partition, int]]) -> dict[Partition, int | None]: ...

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]: ...


@dataclass(frozen=True)
class SplitPlan:
    """``start``: of every partition that was there. ``stop``: the same, for a source that ends."""

    start: Offsets
    stop: Offsets | None = None

    def to_json(self) -> JsonValue:
        stop = None if self.stop is None else offsets_to_json(self.stop)
        return {"format": PLAN_FORMAT, "start": offsets_to_json(self.start), "stop": stop}


def plan_from(document: Any) -> SplitPlan:
    """The reverse of ``SplitPlan.to_json``. Raises ``ValueError``, ``KeyError`` or ``TypeError``."""
    if document["format"] != PLAN_FORMAT:
        raise ValueError(f"the format is {document['format']!r}; this version reads {PLAN_FORMAT}")
    stop = document["stop"]
    return SplitPlan(offsets_from_json(document["start"]), None if stop is None else offsets_from_json(stop))


def moment_of(source: str, what: str, given: object, words: Sequence[str]) -> Moment:
    """A word, or a time in milliseconds. Raises ``ConfigurationError``."""
    if isinstance(given, datetime):
        return int(given.timestamp() * 1_000)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    if isinstance(given, str) and given in words:
        return given
    known = ", ".join(map(repr, words))
    raise ConfigurationError(
        f"source {source!r}: {what} must be {known}, a datetime, or milliseconds since 1970; not {given!r}"
    )


def explicit_offsets(source: str, given: Mapping[str, Mapping[int, int]], topics: Sequence[str]) -> Offsets:
    """Offsets as users give them: topic -> partition -> offset. Raises ``ConfigurationError``."""
    try:
        offsets = offsets_from_json(given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"source {source!r}: start as offsets is {{topic: {{partition: offset}}}}") from error
    other = sorted({partition.topic for partition in offsets} - set(topics))
    if other:
        raise ConfigurationError(f"source {source!r}: start has offsets of {other[0]!r}, which is not among its topics")
    return offsets


def planned(
    source: str, brokers: Brokers, topics: Sequence[str], start: Moment | Offsets, stop: Moment | None
) -> SplitPlan:
    """The offsets to begin with and to stop before. Raises ``InputError``, and what ``brokers`` raises."""
    partitions: list[Partition] = []
    for topic in topics:
        found = brokers.partitions(topic)
        if found is None:
            raise InputError(f"source {source!r}: there is no topic {topic!r}")
        partitions += found
    highest = max(p.number * len(topics) + topics.index(p.topic) for p in partitions)
    if highest > MAX_LOCAL:
        raise ConfigurationError(
            f"source {source!r}: {highest + 1} partitions over all topics, at most {MAX_LOCAL + 1} can be read by one "
            "source: divide the topics among several sources"
        )
    ends = brokers.offsets_at((partition, LATEST) for partition in partitions)
    begins = brokers.offsets_at((partition, EARLIEST) for partition in partitions)
    first = {partition: begins[partition] or 0 for partition in partitions}
    last = {partition: ends[partition] or 0 for partition in partitions}
    begin = _resolved(brokers, partitions, start, first, last)
    _check_there(source, begin, first, last)
    if stop is None:
        return SplitPlan(begin)
    end = _resolved(brokers, partitions, stop, first, last)
    return SplitPlan(begin, {partition: max(end[partition], begin[partition]) for partition in partitions})


def _resolved(
    brokers: Brokers, partitions: Sequence[Partition], moment: Moment | Offsets, first: Offsets, last: Offsets
) -> dict[Partition, int]:
    """The offset of ``moment`` in each partition."""
    if moment == "earliest":
        return dict(first)
    if moment == "latest":
        return dict(last)
    if isinstance(moment, Mapping):
        return {partition: moment.get(partition, first[partition]) for partition in partitions}
    if moment == "committed":
        known = brokers.committed(partitions)
        return {p: first[p] if (offset := known[p]) is None else offset for p in partitions}
    assert isinstance(moment, int)
    known = brokers.offsets_at((partition, moment) for partition in partitions)
    return {p: last[p] if (offset := known[p]) is None else offset for p in partitions}


def _check_there(source: str, begin: Offsets, first: Offsets, last: Offsets) -> None:
    for partition, offset in begin.items():
        if not first[partition] <= offset <= last[partition]:
            raise InputError(
                f"source {source!r}: cannot begin at offset {offset} of topic {partition.topic!r}, partition "
                f"{partition.number}, which has the offsets {first[partition]} to {last[partition]}"
            )
