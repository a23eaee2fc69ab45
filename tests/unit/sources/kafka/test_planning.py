"""Where to begin and where to end. The brokers are imitated: their answers and their failures are given."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.kafka.client import EARLIEST, LATEST
from flinkplus.sources.kafka.partitions import Partition
from flinkplus.sources.kafka.planning import SplitPlan, explicit_offsets, moment_of, plan_from, planned

A, B = Partition("t", 0), Partition("t", 1)


class Imitation:
    """Two partitions with the offsets 5 to 20 and 0 to 8; the first record from 1,000 ms on is at 12 in the first."""

    def __init__(self, partitions: int = 2) -> None:
        self._partitions = partitions

    def partitions(self, topic: str) -> list[Partition] | None:
        return [Partition(topic, number) for number in range(self._partitions)] if topic == "t" else None

    def offsets_at(self, times: Iterable[tuple[Partition, int]]) -> dict[Partition, int | None]:
        known: dict[int, tuple[int, int | None]] = {EARLIEST: (5, 0), LATEST: (20, 8), 1_000: (12, None)}
        return {p: known[time][min(p.number, 1)] for p, time in times}

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int | None]:
        return {p: 7 if p == A else None for p in partitions}


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {A: 5, B: 0}),
        ("latest", {A: 20, B: 8}),
        ("committed", {A: 7, B: 0}),
        (1_000, {A: 12, B: 8}),
        ({B: 3}, {A: 5, B: 3}),
    ],
)
def test_start(start: Any, expected: dict[Partition, int]) -> None:
    assert planned("s", Imitation(), ["t"], start, None) == SplitPlan(expected)


@pytest.mark.parametrize(("stop", "expected"), [("latest", {A: 20, B: 8}), (1_000, {A: 12, B: 8})])
def test_stop(stop: Any, expected: dict[Partition, int]) -> None:
    assert planned("s", Imitation(), ["t"], "earliest", stop).stop == expected


def test_a_stop_before_the_start_reads_nothing() -> None:
    plan = planned("s", Imitation(), ["t"], "latest", 1_000)
    assert plan.stop == plan.start == {A: 20, B: 8}


def test_a_plan_is_json() -> None:
    for plan in (SplitPlan({A: 5, B: 0}), SplitPlan({A: 5}, {A: 9})):
        assert plan_from(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(ValueError, match="the format is 7"):
        plan_from({"format": 7})


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(InputError, match="source 's': there is no topic 'other'"):
        planned("s", Imitation(), ["other"], "earliest", None)
    with pytest.raises(InputError, match=r"cannot begin at offset 4 of topic 't', partition 0, which has .* 5 to 20"):
        planned("s", Imitation(), ["t"], {A: 4}, None)
    with pytest.raises(InputError, match="cannot begin at offset 9 of topic 't', partition 1"):
        planned("s", Imitation(), ["t"], {B: 9}, None)


def test_more_partitions_than_a_choice_can_name_are_refused() -> None:
    planned("s", Imitation(8_192), ["t"], "earliest", None)
    with pytest.raises(ConfigurationError, match="8193 partitions over all topics, at most 8192"):
        planned("s", Imitation(8_193), ["t"], "earliest", None)


def test_moments() -> None:
    words = ("earliest", "latest")
    assert moment_of("s", "start", "latest", words) == "latest"
    assert moment_of("s", "start", 5, words) == 5
    utc = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    assert moment_of("s", "start", utc, words) == 1_000
    for wrong in ("soon", -1, True, 1.5, None):
        with pytest.raises(ConfigurationError, match="start must be 'earliest', 'latest', a datetime, or milliseconds"):
            moment_of("s", "start", wrong, words)


def test_explicit_offsets() -> None:
    assert explicit_offsets("s", {"t": {1: 7}}, ["t"]) == {B: 7}
    with pytest.raises(ConfigurationError, match="start has offsets of 'u'"):
        explicit_offsets("s", {"u": {1: 7}}, ["t"])
    with pytest.raises(ConfigurationError, match="start as offsets is"):
        explicit_offsets("s", {"t": {1: -7}}, ["t"])
