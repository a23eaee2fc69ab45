"""Readers of Kafka against a real broker, which is killed, and whose topics change; without Spark."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from flinkplus.errors import InputError
from flinkplus.sources.kafka import fetching
from tests.kafka_readers import PATIENCE_S, Running, numbered, produced, source
from tests.kafka_server import Cluster, KafkaServer, Producing, new_topic

pytestmark = [pytest.mark.integration, pytest.mark.long]


def made(kafka: Cluster, partitions: int = 1, **config: str) -> str:
    topic = new_topic()
    kafka.create(topic, partitions, **config)
    return topic


def test_what_was_chosen_is_read_again(kafka: Cluster) -> None:
    topic = made(kafka, 3)
    produced(kafka, topic, {p: numbered(1_000 * p, 1_000 * p + 500) for p in range(3)})
    given = source(kafka, topic)
    with Running(given) as first:
        before, _ = first.rows(400)
        position = first.reader.position()
        rows, choices = first.rows(1_500 - len(before), max_rows=50)
        first.until(lambda: first.reader.gauges()["lag_rows"] == 0)
    assert Counter(row["n"] for row in before + rows) == Counter(1_000 * p + n for p in range(3) for n in range(500))
    produced(kafka, topic, {p: numbered(5_000, 5_100) for p in range(3)})
    with Running(given, position=position) as again:
        assert again.repeat(choices) == rows


def test_the_end_of_a_source_and_the_offsets_of_a_group(kafka: Cluster) -> None:
    topic, group = made(kafka, 2), new_topic("group")
    produced(kafka, topic, {0: numbered(0, 100), 1: numbered(0, 10)})
    given = replace(source(kafka, topic, stop="latest"), group=group)
    produced(kafka, topic, {0: numbered(100, 120)})
    with Running(given) as one:
        assert len(one.to_the_end()) == 110
        one.reader.committed(one.reader.position())
        deadline = time.monotonic() + PATIENCE_S
        while True:
            plan = source(kafka, topic, start="committed", group=group).plan
            assert plan is not None
            if sorted(plan.start.values()) == [10, 100]:
                break
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_new_partitions_are_found_and_begin_at_their_beginning(kafka: Cluster) -> None:
    topic = made(kafka, 1)
    produced(kafka, topic, {0: numbered(0, 5)})
    given = replace(source(kafka, topic, start="latest"), discover_s=0.2)
    with Running(given, 0, 2) as even, Running(given, 1, 2) as odd:
        assert odd.reader.choose(10) is None
        kafka.add_partitions(topic, 4)
        produced(kafka, topic, {p: numbered(10 * p, 10 * p + 10) for p in range(1, 4)})
        rows, choices = odd.rows(20)
        assert sorted(row["n"] for row in rows) == [*range(10, 20), *range(30, 40)]
        assert sorted(row["n"] for row in even.rows(10)[0]) == [*range(20, 30)]
    with Running(replace(given, discover_s=1_000.0), 1, 2) as again:  # the plan does not know these partitions
        assert again.repeat(choices) == rows


def test_a_broker_killed_and_restarted_in_mid_read(own_kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flinkplus.slot")
    topic = made(own_kafka, 2)
    values = numbered(0, 20_000)
    produced(own_kafka, topic, {0: values, 1: values})
    given = replace(source(own_kafka, topic), buffer_bytes=1)
    rows: list[dict[str, Any]] = []
    with Running(given) as one:
        rows += one.rows(500, max_rows=100)[0]
        own_kafka.kill()
        restart = threading.Timer(1.5, own_kafka.start)
        restart.start()
        try:
            rows += one.rows(39_500, max_rows=100)[0]
        finally:
            restart.join()
        produced(own_kafka, topic, {0: numbered(20_000, 20_010)})
        rows += one.rows(10)[0]
        position = one.reader.position()
        text = caplog.text
    for partition, count in ((0, 20_010), (1, 20_000)):
        assert [row["n"] for row in rows if row["partition"] == partition] == list(range(count))
    assert text.count("waits for Kafka") == 1
    with Running(given, position=position) as again:
        assert again.reader.choose(1) is None


def test_a_broker_that_is_away_when_a_reader_begins(own_kafka: KafkaServer) -> None:
    topic = made(own_kafka)
    produced(own_kafka, topic, {0: numbered(0, 10)})
    given = source(own_kafka, topic)
    own_kafka.kill()
    try:
        one = Running(given)
        one.__enter__()
        time.sleep(1.0)
        assert one.error is None and one.reader.choose(1) is None
    finally:
        own_kafka.start()
    assert len(one.rows(10)[0]) == 10
    one.__exit__()


def test_records_that_retention_has_removed(own_kafka: KafkaServer) -> None:
    topic = made(own_kafka, segment_bytes="20000")
    for begin in range(0, 2_000, 200):  # a segment must hold a whole batch
        produced(own_kafka, topic, {0: numbered(begin, begin + 200)})
    given = source(own_kafka, topic)
    with Running(given) as one:
        one.rows(10, max_rows=10)
        position = one.reader.position()
    own_kafka.drop_first_segment(topic, 0)
    error = rf"topic '{topic}', partition 0: the records at offsets 10 to \d+ have been removed"
    with Running(given, position=position) as again, pytest.raises(InputError, match=error):
        again.rows(1)


def test_a_topic_that_is_deleted(kafka: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "UNKNOWN_S", 3.0)
    topic = made(kafka)
    produced(kafka, topic, {0: numbered(0, 10)})
    given = replace(source(kafka, topic), discover_s=0.5)
    with Running(given) as one:
        assert len(one.rows(10)[0]) == 10
        kafka.delete(topic)
        with pytest.raises(InputError, match=f"topic '{topic}': is gone since the job began to read it"):
            one.rows(1)


def test_what_is_produced_meanwhile(kafka: Cluster) -> None:
    topic = made(kafka, 4)
    count = 5_000

    def produce() -> None:
        producing = Producing(kafka.servers, kafka.config)
        for begin in range(0, count, 100):
            for partition in range(4):
                producing.send(topic, partition, numbered(begin, begin + 100))
            producing.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    with Running(source(kafka, topic)) as one:
        rows, _ = one.rows(4 * count, max_rows=1_000)
    thread.join()
    for partition in range(4):
        assert [row["n"] for row in rows if row["partition"] == partition] == list(range(count))


def test_transactions(new_kafka: Cluster) -> None:
    """Those that are aborted are not read; their records, and the marks at their ends, are gaps between offsets."""
    from confluent_kafka import Producer

    topic = made(new_kafka)
    settings = {"bootstrap.servers": new_kafka.servers, "transactional.id": topic, "batch.num.messages": 100}
    producer = Producer({**settings, **new_kafka.config})
    producer.init_transactions(PATIENCE_S)
    for begin in range(0, 2_000, 200):
        producer.begin_transaction()
        for value in numbered(begin, begin + 200):
            producer.produce(topic, value, partition=0)
        if begin % 400:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    committed = [n for begin in range(0, 2_000, 400) for n in range(begin, begin + 200)]
    given = source(new_kafka, topic, stop="latest")
    with Running(given) as first:
        before, _ = first.rows(70, max_rows=30)
        position = first.reader.position()
        rows, choices = first.rows(len(committed) - len(before), max_rows=70)
        assert [row["n"] for row in before + rows] == committed
        assert first.to_the_end() == [] and first.reader.gauges()["lag_rows"] == 0
    with Running(given, position=position) as again:
        assert again.repeat(choices) == rows
    with Running(source(new_kafka, topic, stop="latest", config={"isolation.level": "read_uncommitted"})) as every:
        assert [row["n"] for row in every.to_the_end()] == list(range(2_000))


def test_times(new_kafka: Cluster) -> None:
    topic = made(new_kafka)
    producing = Producing(new_kafka.servers, new_kafka.config)
    base = int(time.time() * 1_000) - 100_000
    for n in range(100):
        producing.send(topic, 0, numbered(n, n + 1), timestamp=base + n * 1_000)
        producing.flush()
    with Running(source(new_kafka, topic, start=base + 30_500, stop=base + 60_000)) as one:
        assert [row["n"] for row in one.to_the_end()] == list(range(31, 60))
    with Running(source(new_kafka, topic, start=base + 200_000, stop="latest")) as none:
        assert none.to_the_end() == []
