"""Readers against librdkafka's imitation of a cluster: real connections, and records in the present format."""

from __future__ import annotations

import datetime
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.sources.kafka import client, fetching
from flinkplus.sources.kafka.source import KafkaOptions, KafkaSource, kafka_source
from tests.kafka_readers import PATIENCE_S, Running, numbered, produced, source
from tests.kafka_server import MockCluster, Producing, new_topic

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'")
PARTITIONS = 4
"""Of each topic that the imitation makes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


@pytest.fixture
def topic(cluster: MockCluster) -> str:
    """A new topic. The imitation makes it when a producer asks for it."""
    name = new_topic()
    produced(cluster, name, {0: []})
    return name


def test_what_was_chosen_is_read_again(cluster: MockCluster, topic: str) -> None:
    produced(cluster, topic, {p: numbered(100 * p, 100 * p + 40) for p in range(PARTITIONS)})
    given = source(cluster, topic)
    with Running(given) as first:
        before, _ = first.rows(50)
        position = json.loads(json.dumps(first.reader.position()))
        rows, choices = first.rows(PARTITIONS * 40 - len(before))
        end = first.reader.position()
        assert first.reader.choose(10) is None
        first.until(lambda: first.reader.gauges()["lag_rows"] == 0)
    assert Counter(row["n"] for row in before + rows) == Counter(
        n for p in range(PARTITIONS) for n in range(100 * p, 100 * p + 40)
    )
    produced(cluster, topic, {p: numbered(500, 510) for p in range(PARTITIONS)})  # more is there than the first time
    with Running(given, position=position) as again:
        assert again.repeat(choices) == rows
        assert again.reader.position() == end
        later, _ = again.rows(PARTITIONS * 10)
        assert len(later) == PARTITIONS * 10
        assert again.reader.metrics["rows"] == PARTITIONS * 50


def test_readers_share_the_partitions(cluster: MockCluster, topic: str) -> None:
    other = new_topic()
    for name in (topic, other):
        produced(cluster, name, {p: numbered(0, 5) for p in range(PARTITIONS)})
    given = source(cluster, [topic, other], metadata=["topic", "partition", "offset"], stop="latest")
    found: list[tuple[Any, ...]] = []
    positions = []
    for index in range(3):
        with Running(given, index, 3) as one:
            found += [tuple(row.values()) for row in one.to_the_end()]
            positions.append(one.reader.position())
    assert Counter(found) == Counter(
        (n, name, p, n) for name in (topic, other) for p in range(PARTITIONS) for n in range(5)
    )
    for index, position in enumerate(given.redealt(positions, 5)):
        with Running(given, index, 5, position) as one:
            assert one.to_the_end() == []


def test_rows_that_come_later_wake_the_reader(cluster: MockCluster, topic: str) -> None:
    with Running(source(cluster, topic)) as one:
        assert one.reader.choose(10) is None
        produced(cluster, topic, {1: numbered(0, 3)})
        assert one.rows(3)[0] == [{"n": n, "partition": 1, "offset": n} for n in range(3)]
        produced(cluster, topic, {1: numbered(3, 4)})
        assert one.rows(1)[0] == [{"n": 3, "partition": 1, "offset": 3}]


def test_latest_and_committed(cluster: MockCluster, topic: str) -> None:
    produced(cluster, topic, {p: numbered(0, 4) for p in range(PARTITIONS)})
    latest = source(cluster, topic, start="latest")
    produced(cluster, topic, {p: numbered(4, 6) for p in range(PARTITIONS)})
    group = new_topic("group")
    with Running(replace(latest, group=group)) as one:
        rows, _ = one.rows(PARTITIONS * 2)
        assert {row["n"] for row in rows} == {4, 5}
        one.reader.committed(one.reader.position())
        deadline = time.monotonic() + PATIENCE_S
        while True:  # what is committed is known to the group, some time
            plan = source(cluster, topic, start="committed", group=group).plan
            assert plan is not None
            if set(plan.start.values()) == {6}:
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_a_source_that_stops(cluster: MockCluster, topic: str) -> None:
    produced(cluster, topic, {0: numbered(0, 4), 2: numbered(0, 2)})
    given = source(cluster, topic, stop="latest", start={topic: {0: 1}})
    produced(cluster, topic, {0: numbered(4, 6), 1: numbered(0, 9)})
    with Running(given) as one:
        assert sorted((row["partition"], row["n"]) for row in one.to_the_end()) == [
            (0, 1),
            (0, 2),
            (0, 3),
            (2, 0),
            (2, 1),
        ]
        position = one.reader.position()
        assert one.reader.gauges() == {"lag_rows": 0}
    with Running(given, position=position) as again:
        assert again.to_the_end() == []


def test_partitions_stay_close_in_time(cluster: MockCluster, topic: str) -> None:
    """Each partition has a record for each second; they are read second by second."""
    producing = Producing(cluster.servers, cluster.config)
    base = 1_700_000_000_000
    for partition in range(PARTITIONS):
        for n in range(50):
            producing.send(topic, partition, numbered(n, n + 1), timestamp=base + n * 1_000)
    producing.flush()
    with Running(source(cluster, topic, metadata=["timestamp"])) as one:
        rows, _ = one.rows(PARTITIONS * 50, max_rows=1)
    seconds = [row["n"] for row in rows]
    assert seconds == sorted(seconds)
    assert rows[-1]["timestamp"] == datetime.datetime.fromtimestamp(base / 1_000 + 49, datetime.timezone.utc)


def test_columns_of_records(cluster: MockCluster, topic: str) -> None:
    produced(cluster, topic, {3: [b"x", None]}, key=b"k", headers=[("h", b"\x00")], timestamp=5)
    with Running(source(cluster, topic, value="bytes", schema=None, metadata=True)) as one:
        rows, _ = one.rows(2)
    moment = datetime.datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=datetime.timezone.utc)
    common = {"topic": topic, "partition": 3, "timestamp": moment, "key": b"k"}
    headers = [{"key": "h", "value": b"\x00"}]
    assert rows == [
        {"value": b"x", **common, "offset": 0, "headers": headers},
        {"value": None, **common, "offset": 1, "headers": headers},
    ]


def test_broken_records(cluster: MockCluster, topic: str) -> None:
    produced(cluster, topic, {0: [*numbered(0, 2), b"{", *numbered(3, 4)]})
    with Running(source(cluster, topic)) as failing:
        assert [row["n"] for row in failing.rows(2)[0]] == [0, 1]
        choice = failing.until(lambda: failing.reader.choose(10))
        with pytest.raises(InputError, match=f"topic '{topic}', partition 0, at offset 2 cannot be decoded"):
            failing.reader.read(choice)
    with Running(source(cluster, topic, on_error="skip")) as skipping:
        assert [row["offset"] for row in skipping.rows(3)[0]] == [0, 1, 3]
        assert skipping.reader.metrics == {"rows": 3, "invalid_records": 1}
        position = skipping.reader.position()
    again = source(cluster, topic, on_error="skip").reader(0, 1)
    again.open(position)
    assert again.metrics == {"rows": 3, "invalid_records": 1}


def test_little_memory(cluster: MockCluster, topic: str) -> None:
    """Partitions are paused and resumed again and again, and no record is missing or there twice."""
    values: list[bytes | None] = [b'{"n": %d, "more": "%s"}' % (n, b"x" * 1_200) for n in range(2_500)]
    produced(cluster, topic, {0: values, 1: values})
    given = replace(source(cluster, topic, schema="n long, more string", stop="latest"), buffer_bytes=1)
    paused = 0
    with Running(given) as one:
        rows: list[tuple[int, int]] = []
        while True:
            choice = one.until(lambda: one.reader.choose(100))
            batch = one.reader.read(choice)
            if batch is None:
                break
            rows += zip(batch.column("partition").to_pylist(), batch.column("n").to_pylist(), strict=True)
            paused += len(one.reader._fetcher._paused)  # type: ignore[attr-defined]
            time.sleep(0.002)
    assert paused > 0
    for partition in (0, 1):
        assert [n for p, n in rows if p == partition] == list(range(2_500))


def test_records_that_are_gone_are_an_error(cluster: MockCluster, topic: str) -> None:
    """The imitation keeps some megabytes of each partition."""
    produced(cluster, topic, {0: numbered(0, 10)})
    given = source(cluster, topic)
    with Running(given) as one:
        one.rows(4, max_rows=4)
        position = one.reader.position()
    for _ in range(8):
        produced(cluster, topic, {0: [b'{"more": "%s"}' % (b"x" * 900_000)] * 2})
    error = f"topic '{topic}', partition 0: the records at offsets 4 to \\d+ have been removed"
    with Running(given, position=position) as again, pytest.raises(InputError, match=error):
        again.rows(1)


def test_a_position_beyond_the_end_is_an_error(
    cluster: MockCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "AHEAD_S", 0.3)
    produced(cluster, topic, {0: numbered(0, 10)})
    position = {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {topic: {"0": 30}}}
    with (
        Running(source(cluster, topic), position=position) as one,
        pytest.raises(InputError, match=f"'{topic}', partition 0: ends at offset 10, and the job has read up to 30"),
    ):
        one.rows(1)


def test_what_is_wrong_at_the_start(cluster: MockCluster) -> None:
    with pytest.raises(InputError, match="source 'orders': there is no topic 'no-such-topic'"):
        source(cluster, "no-such-topic")
    sasl = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    with pytest.raises(ConfigurationError, match=r"refuse: .*Failed to initialize SASL") as raised:
        source(cluster, "t", config={**sasl, "sasl.password": "pass-word"})
    assert "pass-word" not in str(raised.value)


def test_brokers_that_do_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 1.0)
    with pytest.raises(InputError, match=r"source 'orders': no broker at 127.0.0.1:1 answers: .*onnect"):
        source_of("127.0.0.1:1").planned()


def source_of(servers: str) -> KafkaSource:
    options: dict[str, Any] = {"value": "text", "schema": None, "metadata": False, "start": "earliest", "stop": None}
    return kafka_source(
        "orders", servers, "t", KafkaOptions(**options, group=None, on_error="fail", discover=30, config=None)
    )


def test_without_the_client_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", None)
    with pytest.raises(
        ConfigurationError, match=r"from_kafka needs confluent-kafka .*pip install 'flinkplus\[kafka\]'"
    ):
        source_of("127.0.0.1:1")
