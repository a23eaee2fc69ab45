"""The recipe topic against librdkafka's imitation of a cluster, and the producers that a driver has ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from flinkplus.errors import OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.subtask_output import OutputState
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.kafka import cluster as kafka_cluster
from flinkplus.sinks.kafka import prepared, recipe_topic
from flinkplus.sinks.kafka.cluster import OWN
from flinkplus.sinks.kafka.prepared import PreparedPartitions
from flinkplus.sinks.kafka.recipe_records import ITSELF
from flinkplus.sinks.kafka.recipe_topic import KafkaPartition, RecipeTopic
from flinkplus.sources.kafka.connecting import KafkaConnection
from tests.kafka_server import MockCluster, new_topic, records_of, touch

kafka = pytest.importorskip(
    "confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'"
)
PARTITIONS = 4
"""Of each topic that the imitation makes."""
PRODUCE, END_TRANSACTION = 0, 26


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    yield made
    made.close()


@pytest.fixture
def topic(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecipeTopic]:
    monkeypatch.setattr(kafka_cluster, "DESCRIBE_S", 0.01)  # it answers no questions about settings of topics
    connection = KafkaConnection.parse("sink 'out'", cluster.servers, {}, OWN)
    made = RecipeTopic("sink 'out'", connection, new_topic("client"), touch(cluster, new_topic()), new_topic("recipe"))
    yield made
    made.close()


def partition(topic: RecipeTopic, largest: int = 1_000_000) -> KafkaPartition:
    return KafkaPartition("sink 'out'", topic._connection, f"{topic.name}/2", topic._topic, topic, 2, largest)


def entry(number: int) -> RecipeEntry:
    return RecipeEntry(CheckpointId(number), b"recipe %d" % number)


def test_rows_and_recipe_are_written_and_the_recipe_is_read_from_its_end(
    cluster: MockCluster, topic: RecipeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_topic, "WINDOW", 3)
    assert topic.partitions() == 0
    with pytest.raises(OutputTopicError, match="which keeps what makes rows again, has gone"):
        topic.grow(1)
    touch(cluster, topic.name)
    topic.make(1)
    topic.grow(PARTITIONS)
    assert topic.partitions() == PARTITIONS and topic.read(2).stored is None
    one = partition(topic, largest=200)
    one.open()
    assert one.read().stored is None
    places: list[tuple[int, int]] = []
    for number in range(1, 5):
        since = places[1][0] if number > 2 else ITSELF
        state = OutputState(1, PARTITIONS, step=number, digest=b"d")
        places.append(one.append([(b"k", b"%d" % number, None, None)], state, [entry(number)], since))
    assert all(last > first for first, last in places), "a document has several pieces"
    stored, _ = one.read()
    assert stored is not None and stored.state.step == 4
    assert stored.entries == tuple(map(entry, (2, 3, 4)))
    assert stored.places == tuple((first, number) for (first, _), number in zip(places[1:], (2, 3, 4), strict=True))
    assert [message.value() for message in records_of(cluster, topic._topic)] == [b"1", b"2", b"3", b"4"]
    with pytest.raises(OutputUnavailable, match=f"had shown topic '{topic.name}' up to 3, and it ends at"):
        one.append([], stored.state, [], ITSELF, behind=3)
    one.trim(0)
    one.trim(recipe_topic.TRIM_EVERY)  # which the imitation does not know
    one.close()


def test_what_an_append_fails_with(cluster: MockCluster, topic: RecipeTopic) -> None:
    touch(cluster, topic.name)
    one = partition(topic)
    one.open()
    for request, code, expected, message in (
        (END_TRANSACTION, kafka.KafkaError.INVALID_PRODUCER_EPOCH, OutputUnavailable, "has ended the transaction"),
        (PRODUCE, kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED, OutputTopicError, "refuse to write rows"),
    ):
        cluster.fail(request, code)
        with pytest.raises(expected, match=message):
            one.append([], OutputState(1, 1), [], ITSELF)
        one.open()
    cluster.fail(PRODUCE, kafka.KafkaError.DUPLICATE_SEQUENCE_NUMBER)
    with pytest.raises(OutputUnavailable, match="do not say where records are"):
        one.append([], OutputState(1, 1), [], ITSELF)
    one.open()
    first, last = one.append([], OutputState(2, 1), [], ITSELF)
    assert first == last
    one.close()


@pytest.mark.long
def test_brokers_that_are_away_when_the_topic_is_changed(topic: RecipeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 0.2)
    connection = KafkaConnection.parse("sink 'out'", "127.0.0.1:9", {}, OWN)
    away = RecipeTopic("sink 'out'", connection, "client", "rows", topic.name)
    monkeypatch.setattr(away, "partitions", lambda: 1)
    for change, what in ((lambda: away.grow(2), "add partitions"), (away.remove, "remove a topic")):
        with pytest.raises(OutputUnavailable, match=f"cannot {what}"):
            change()


# --- producers that are ready -----------------------------------------------------------------------------------------


class Prepared:
    """Stands for a partition. ``fails``: how many of them cannot connect."""

    fails = 0

    def __init__(self, index: int) -> None:
        self.index, self.is_ready, self.is_closed = index, False, False

    def prepare(self) -> Prepared:
        if type(self).fails:
            type(self).fails -= 1
            raise OutputUnavailable("no answer")
        self.is_ready = True
        return self

    def close(self) -> None:
        self.is_closed = True


def test_a_fence_takes_what_is_ready_and_the_next_one_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REST_S", "AGAIN_S"):
        monkeypatch.setattr(prepared, name, 0.01)
    monkeypatch.setattr(prepared, "MOST", 2)
    monkeypatch.setattr(Prepared, "fails", 1)
    ready = PreparedPartitions(Prepared)  # type: ignore[arg-type]
    taken: list[Any] = [ready.take(index) for index in (5, 6, 7)]
    assert [(one.index, one.is_ready) for one in taken] == [(5, False), (6, False), (7, False)]
    until_s = time.monotonic() + 10.0
    while len(ready._ready) < 2:
        assert time.monotonic() < until_s
        time.sleep(0.002)
    kept: Any = ready._ready[6]
    again: Any = ready.take(5)
    assert (again.index, again.is_ready, again.is_closed) == (5, True, False)
    assert not ready.take(7).is_ready  # type: ignore[attr-defined]
    thread = ready._thread
    ready.close()
    assert kept.is_closed and not again.is_closed
    assert thread is not None and not thread.is_alive()
