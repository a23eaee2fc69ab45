"""What a reader makes of answers that no broker gives on demand. The client is imitated, message by message."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from flinkplus.errors import InputError
from flinkplus.operators.base.schema import parse_schema
from flinkplus.sources.kafka import fetching
from flinkplus.sources.kafka.buffers import Buffers
from flinkplus.sources.kafka.chunks import ChunkMaker
from flinkplus.sources.kafka.client import BrokersAway
from flinkplus.sources.kafka.decoding import decoder
from flinkplus.sources.kafka.fetching import Fetcher, Reading, Shared
from flinkplus.sources.kafka.partitions import Assignment, Offsets, Partition
from tests.unit.sources.kafka.records import FakeRecord

A = Partition("t", 0)
VALUES = parse_schema("n long")
PATIENCE_S = 30.0


class Received(FakeRecord):
    """A record, as a message."""

    def error(self) -> None:
        return None


@dataclass
class Failed:
    """A message that is an error. ``kind``: what it says."""

    kind: str
    at: int = 0
    topic_name: str | None = "t"

    def error(self) -> Failed:
        return self

    def topic(self) -> str | None:
        return self.topic_name

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.at


def records(*offsets: int) -> list[Any]:
    return [Received(b'{"n": %d}' % offset, offset) for offset in offsets]


@dataclass
class Imitation:
    """Gives ``script``, one part at a time, and then nothing. ``known``: the partitions of the topic, or an error, one
    for each question; the last one stays. ``calls``: what was asked of it."""

    script: list[list[Any]]
    known: list[list[Partition] | Exception | None] = field(default_factory=lambda: [[A]])
    low: int = 0
    top: int = 100
    failure: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    idle: threading.Event = field(default_factory=threading.Event)

    def fetch(self, most: int, timeout_s: float) -> list[Any]:
        if self.script:
            return self.script.pop(0)
        self.idle.set()
        threading.Event().wait(0.002)
        return []

    def trouble(self, error: Failed) -> str:
        return error.kind

    def text(self, error: Failed) -> str:
        return "its text"

    def partitions(self, topic: str, timeout_s: float) -> list[Partition] | None:
        answer = self.known.pop(0) if len(self.known) > 1 else self.known[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def bounds(self, partition: Partition, timeout_s: float) -> tuple[int, int]:
        return self.low, self.top

    def assign(self, offsets: Offsets) -> None:
        self.calls.append(("assign", dict(offsets)))

    def unassign(self, partitions: Collection[Partition]) -> None:
        self.calls.append(("unassign", list(partitions)))

    def pause(self, partitions: Collection[Partition]) -> None: ...

    def resume(self, partitions: Collection[Partition]) -> None: ...

    def answered(self) -> None:
        self.failure = ""

    def high(self, partition: Partition) -> int | None:
        return self.top

    def commit(self, offsets: Offsets) -> None:
        self.calls.append(("commit", dict(offsets)))

    def close(self) -> None:
        self.calls.append(("close", None))


class Fetching:
    """A fetcher of partition 0 of a topic, from offset 5 on."""

    def __init__(self, client: Imitation, stop: Offsets | None = None, discover_s: float = 1_000.0) -> None:
        self.client, self.shared, self.errors = client, Shared(Buffers(1 << 20)), list[Exception]()
        self.shared.to_finish = set(stop or ())
        reading = Reading("s", Assignment(("t",), 0, 1), lambda partition: 5, [A], stop, discover_s)
        maker = ChunkMaker("s", VALUES, (), "fail", decoder("json", VALUES))
        self.failed = threading.Event()
        self._fetcher = Fetcher(reading, self.shared, maker, lambda: client, self._woken)  # type: ignore[arg-type, return-value]

    def _woken(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
            self.failed.set()

    def __enter__(self) -> Fetching:
        self._fetcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._fetcher.close()
        self._fetcher.join(PATIENCE_S)
        assert self.client.calls[-1] == ("close", None)

    def numbers(self) -> list[int]:
        """The rows that came, when nothing more comes."""
        assert self.client.idle.wait(PATIENCE_S)
        found: list[int] = []
        with self.shared.lock:
            while (choice := self.shared.buffers.next(100, 1e9)) is not None:
                for batch in self.shared.buffers.take(*choice, 0.0).batches:
                    found += batch.column("n").to_pylist()
        return found

    def error(self) -> str:
        assert self.failed.wait(PATIENCE_S)
        assert isinstance(self.errors[0], InputError)
        return str(self.errors[0])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fetching, "AGAIN_S", 0.01)
    monkeypatch.setattr(fetching, "UNKNOWN_S", 0.2)
    yield


def test_records_that_come_again_are_left_out() -> None:
    script: list[list[Any]] = [records(3, 4, 5, 6), records(5, 6, 7), records(9), records(1, 2)]
    with Fetching(Imitation(script)) as one:
        assert one.numbers() == [5, 6, 7, 9]


def test_the_end_is_known_with_the_last_record() -> None:
    """Otherwise the records of other partitions would wait for the broker to say that there are no more."""
    for top, at_end in ((8, set()), (7, {A})):
        with Fetching(Imitation([records(5, 6)], top=top)) as one:
            assert one.numbers() == [5, 6]
            with one.shared.lock:
                assert one.shared.buffers.read_to_end() == at_end
                assert (one.shared.buffers.due_s() is None) is bool(at_end)


def test_an_end_behind_the_last_record_ends_a_source_that_stops() -> None:
    """What is between them are the marks of transactions, which are no records."""
    with Fetching(Imitation([records(5, 6), [Failed("end", 9)]]), stop={A: 9}) as one:
        assert one.numbers() == [5, 6]
        assert one.shared.to_finish == set()
    with Fetching(Imitation([records(5, 6), [Failed("end", 8)]]), stop={A: 9}) as two:
        assert two.numbers() == [5, 6]
        assert two.shared.to_finish == {A}


def test_records_from_the_stop_on_are_left_out() -> None:
    with Fetching(Imitation([records(5, 6, 8, 9)]), stop={A: 8}) as one:
        assert one.numbers() == [5, 6]
        assert one.shared.to_finish == set()
        assert ("unassign", [A]) in one.client.calls


def test_what_is_gone_is_an_error_only_if_it_stays_so() -> None:
    with Fetching(Imitation([records(5), [Failed("gone")], records(6, 7)], top=6)) as one:
        assert one.numbers() == [5, 6, 7]
        assert one.client.calls[1:3] == [("unassign", [A]), ("assign", {A: 6})]
    with Fetching(Imitation([records(5), [Failed("gone")]], low=9)) as two:
        assert "partition 0: the records at offsets 6 to 8 have been removed" in two.error()


def test_an_old_end_that_a_broker_reports_long_after_another_error_is_no_error_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "AHEAD_S", 0.2)

    class Restarting(Imitation):
        def fetch(self, most: int, timeout_s: float) -> list[Any]:
            found = super().fetch(most, timeout_s)
            if found and isinstance(found[0], Failed):
                self.top = found[0].at
                threading.Event().wait(0.3)
            return found

    script: list[list[Any]] = [records(5), [Failed("gone", 100)], [Failed("gone", 5)], records(6)]
    with Fetching(Restarting(script)) as one:
        assert one.numbers() == [5, 6] and one.errors == []
    with Fetching(Restarting([records(5), *[[Failed("gone", 5)]] * 3])) as two:
        assert "partition 0: ends at offset 5, and the job has read up to 6" in two.error()


def test_a_topic_that_a_restarted_broker_does_not_know_yet() -> None:
    client = Imitation([records(5), [Failed("unknown")]], known=[[A], None, [], BrokersAway("no"), [A]])
    with Fetching(client) as one:
        assert one.numbers() == [5]
        for _ in range(10_000):
            if ("assign", {A: 6}) in client.calls:  # from its position, for librdkafka may have given it up
                break
            threading.Event().wait(0.002)
        assert one.errors == [] and ("assign", {A: 6}) in client.calls


def test_a_partition_that_a_replay_needs_is_looked_for_at_once() -> None:
    other = Partition("t", 1)
    client = Imitation([], known=[[A], [A], [A, other]])
    with Fetching(client) as one:
        assert one.numbers() == []
        with one.shared.lock:
            one.shared.asked.add(other)
        for _ in range(10_000):
            if ("assign", {other: 5}) in client.calls:
                break
            threading.Event().wait(0.002)
        assert ("assign", {other: 5}) in client.calls and one.shared.asked == set()


def test_a_partition_that_stays_unknown_is_an_error() -> None:
    with Fetching(Imitation([[Failed("unknown")]], known=[[A], [Partition("t", 1)]])) as one:
        assert "topic 't': some of its partitions are gone" in one.error()


def test_a_right_that_is_taken_away_is_an_error() -> None:
    with Fetching(Imitation([[Failed("refused")]])) as one:
        assert one.error() == "source 's': topic 't': its text"


def test_the_reader_waits_and_warns_while_brokers_are_away(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "flinkplus.slot")
    away: Sequence[Any] = [BrokersAway("refused") for _ in range(20)]
    monkeypatch.setattr(fetching, "WARN_EVERY_S", 0.05)
    client = Imitation([records(5), [Failed("away", topic_name=None)]], known=[*away, [A]], failure="all are down")
    with Fetching(client) as one:
        for _ in range(10_000):
            if "Kafka answers" in caplog.text:
                break
            threading.Event().wait(0.002)
        assert one.errors == [] and one.numbers() == [5]
    texts = [record.getMessage() for record in caplog.records]
    assert texts[0].startswith("source 's': waits for Kafka: ") and texts[-1].startswith(
        "source 's': Kafka answers after"
    )
    assert len([text for text in texts if "waits for Kafka, for " in text]) >= 1
    assert len(texts) < 20
