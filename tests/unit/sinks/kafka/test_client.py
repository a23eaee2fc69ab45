"""The client against librdkafka's imitation of a cluster: real connections, and what each error of a broker means."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.errors import ConfigurationError, InputError, OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka import cluster as kafka_cluster
from flinkplus.sinks.kafka.client import KafkaTransactions
from flinkplus.sinks.kafka.cluster import OWN
from flinkplus.sinks.kafka.records import RecordEncoder, RecordForm, Staged, staged_records
from flinkplus.sources.kafka.columns import HEADERS
from flinkplus.sources.kafka.connecting import KafkaConnection
from tests.kafka_server import CALLS_S, MockCluster, Producing, new_topic, records_of, touch

kafka = pytest.importorskip(
    "confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'"
)
PARTITIONS = 4
"""Of each topic that the imitation makes."""
PRODUCE, INIT_PRODUCER, ADD_PARTITIONS, END_TRANSACTION = 0, 22, 24, 26
PRODUCER_FENCED = 90
PROGRESS = "progress"
SECRET = "pass-word-of-kafka"
ONE: list[Staged] = [(b"k", b"v", None, None)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    made = MockCluster()
    touch(made, PROGRESS)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The imitation answers no questions about settings of topics."""
    monkeypatch.setattr(kafka_cluster, "DESCRIBE_S", 0.01)


@pytest.fixture
def topic(cluster: MockCluster) -> str:
    return touch(cluster, new_topic())


def transactions(
    servers: str, topic: str, config: Mapping[str, Any] | None = None, progress: str = PROGRESS, job: str = "job-1"
) -> KafkaTransactions:
    connection = KafkaConnection.parse("sink 'out'", servers, config or {}, OWN)
    return KafkaTransactions("sink 'out'", connection, f"flinkplus-{job}-{topic}", topic, progress)


def test_rows_and_progress_are_written_and_progress_is_read(cluster: MockCluster, topic: str) -> None:
    made = transactions(cluster.servers, topic)
    made.ready()
    made.open()
    assert made.read("job-1") is None
    rows: list[Staged] = [
        (b"key", b"text", [("h", b"1"), ("h", None)], 2),
        (None, None, None, 1),
        *((b"same", b"%d" % n, None, None) for n in range(50)),
    ]
    made.write(rows, {"job-1": OutputProgress(checkpoint=3)})
    made.write([], {"job-1": OutputProgress(checkpoint=4), "job-2": OutputProgress(checkpoint=9, taken_by="job-1")})
    found = records_of(cluster, topic)
    (full,) = (one for one in found if one.key() == b"key")
    assert (full.value(), full.headers(), full.partition()) == (b"text", [("h", b"1"), ("h", None)], 2)
    (empty,) = (one for one in found if one.key() is None)
    assert (empty.value(), empty.headers(), empty.partition()) == (None, None, 1)
    same = [one for one in found if one.key() == b"same"]
    assert len({one.partition() for one in same}) == 1, "equal keys meet in one partition"
    assert [one.value() for one in same] == [b"%d" % n for n in range(50)], "in order"
    made.close()
    later = transactions(cluster.servers, topic)
    assert later.read("job-1") == OutputProgress(checkpoint=4)
    assert later.read("job-2") == OutputProgress(checkpoint=9, taken_by="job-1")
    assert later.read("job-3") is None
    assert transactions(cluster.servers, new_topic()).read("job-1") is None, "progress is that of one topic"


def test_keys_go_where_java_sends_them(cluster: MockCluster, topic: str) -> None:
    """Numbers of ``murmur2`` in Kafka's own tests: ``21`` and ``foobar``."""
    made = transactions(cluster.servers, topic)
    made.open()
    hashes = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    made.write([(key, b"x", None, None) for key in hashes], {})
    found = {one.key(): one.partition() for one in records_of(cluster, topic)}
    assert found == {key: (number & 0x7FFFFFFF) % PARTITIONS for key, number in hashes.items()}


E = kafka.KafkaError
LASTING = [
    (PRODUCE, E.MSG_SIZE_TOO_LARGE, "raise max.message.bytes of the topic"),
    (PRODUCE, E.INVALID_RECORD, "a compacted topic needs keys"),
    (PRODUCE, E.TOPIC_AUTHORIZATION_FAILED, "refuse to write rows: .*Topic authorization failed"),
    (ADD_PARTITIONS, E.TOPIC_AUTHORIZATION_FAILED, "refuse to write rows: .*Topic authorization failed"),
    (PRODUCE, E.UNSUPPORTED_FOR_MESSAGE_FORMAT, "have no transactions: to_kafka needs Kafka 0.11 or newer"),
]


@pytest.mark.parametrize(("request_", "code", "message"), LASTING)
def test_what_will_not_pass_is_an_error_of_the_topic(
    cluster: MockCluster, topic: str, request_: int, code: int, message: str
) -> None:
    made = transactions(cluster.servers, topic)
    made.open()
    cluster.fail(request_, code)
    with pytest.raises(OutputTopicError, match=message):
        made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})
    made.open()
    made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (END_TRANSACTION, E.INVALID_PRODUCER_EPOCH),
        (END_TRANSACTION, PRODUCER_FENCED),
        (PRODUCE, E.INVALID_PRODUCER_EPOCH),
        (ADD_PARTITIONS, PRODUCER_FENCED),
        (ADD_PARTITIONS, E.INVALID_PRODUCER_ID_MAPPING),
        (END_TRANSACTION, E.INVALID_TXN_STATE),
    ],
)
def test_a_producer_that_was_replaced_learns_of_it(cluster: MockCluster, topic: str, request_: int, code: int) -> None:
    made = transactions(cluster.servers, topic)
    made.open()
    cluster.fail(request_, code)
    with pytest.raises(OutputUnavailable, match="the cluster has ended the transaction: another driver has opened one"):
        made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})
    made.open()
    made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "refuse to open transactions: .*Transactional Id authorization failed",
        ),
        (E.CLUSTER_AUTHORIZATION_FAILED, "refuse to open transactions"),
        (E.INVALID_TRANSACTION_TIMEOUT, "give a smaller transaction.timeout.ms in config"),
    ],
)
def test_a_name_that_may_not_be_opened(cluster: MockCluster, topic: str, code: int, message: str) -> None:
    cluster.fail(INIT_PRODUCER, code)
    with pytest.raises(OutputTopicError, match=message):
        transactions(cluster.servers, topic).open()


@pytest.mark.long
def test_what_passes_is_tried_again_by_the_client_itself(cluster: MockCluster, topic: str) -> None:
    made = transactions(cluster.servers, topic)
    cluster.fail(INIT_PRODUCER, E.COORDINATOR_LOAD_IN_PROGRESS)
    made.open()
    cluster.fail(END_TRANSACTION, E.NOT_COORDINATOR)
    cluster.fail(PRODUCE, E.NOT_LEADER_FOR_PARTITION)
    made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})
    assert [one.value() for one in records_of(cluster, topic)] == [b"v"]


def test_a_partition_that_is_not_there(cluster: MockCluster, topic: str) -> None:
    made = transactions(cluster.servers, topic)
    made.open()
    with pytest.raises(OutputTopicError, match="a row names a partition that the topic does not have"):
        made.write([(None, b"v", None, PARTITIONS)], {})


def test_a_record_that_is_too_large_for_the_client(cluster: MockCluster, topic: str) -> None:
    made = transactions(cluster.servers, topic)
    made.open()
    with pytest.raises(OutputTopicError, match="make rows smaller"):
        made.write([(None, b"v" * 2_000_000, None, None)], {})


LARGEST = 20_000


@pytest.mark.parametrize(
    ("columns", "form"),
    [
        ({}, RecordForm("bytes", max_bytes=LARGEST)),
        ({"k": pa.array([b"k" * 300])}, RecordForm("bytes", ("k",), max_bytes=LARGEST)),
        (
            {"h": pa.array([[{"key": "ü" * 70, "value": b"x" * 90}]], HEADERS)},
            RecordForm("bytes", (), "h", max_bytes=LARGEST),
        ),
    ],
    ids=["value", "key", "headers"],
)
def test_the_largest_record_of_a_slot_is_written(
    cluster: MockCluster, topic: str, columns: dict[str, pa.Array], form: RecordForm
) -> None:
    """A row that a slot lets through and the client refuses could never be committed."""

    def records(size: int) -> list[Staged]:
        stream = pa.BufferOutputStream()
        encoder = RecordEncoder(stream, form, "out")
        encoder.write(pa.RecordBatch.from_pydict({"value": pa.array([b"v" * size]), **columns}))
        encoder.finish()
        return list(staged_records(stream.getvalue().to_pybytes()))

    with pytest.raises(InputError, match=r"a record of \d+ bytes is larger") as raised:
        records(LARGEST)
    size = 2 * LARGEST - int(re.findall(r"\d+", str(raised.value))[0])
    with pytest.raises(InputError, match=f"a record of {LARGEST + 1} bytes"):
        records(size + 1)
    made = transactions(cluster.servers, topic, {"message.max.bytes": LARGEST})
    made.open()
    made.write(records(size), {})
    if not columns:
        with pytest.raises(OutputTopicError, match="or make rows smaller"):
            made.write([(None, b"v" * (size + 1), None, None)], {})


def test_a_topic_that_is_not_there(cluster: MockCluster) -> None:
    name = new_topic()
    with pytest.raises(OutputTopicError, match=f"topic '{name}' is not there, or is being deleted: create it first"):
        transactions(cluster.servers, name).ready()


def test_brokers_that_do_not_say_whether_a_topic_is_compacted(
    cluster: MockCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flinkplus.kafka"):
        made = transactions(cluster.servers, topic)
        made.ready()
        made.ready()
    assert caplog.text.count("do not say whether topic 'progress' is compacted") == 1


@pytest.mark.long
def test_an_answer_that_is_late_leaves_the_outcome_open(
    cluster: MockCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up in time; the next one finds out what became of the transaction."""
    made = transactions(cluster.servers, topic)
    made.open()
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 0.3)

    def slow() -> Iterator[Staged]:
        yield from ONE
        cluster.delay(1_000)

    try:
        with pytest.raises(OutputUnavailable, match=r"cannot write rows|brokers take no records"):
            made.write(slow(), {"job-1": OutputProgress(checkpoint=1)})
        made.close()
    finally:
        cluster.delay(0)


@pytest.mark.long
def test_brokers_that_are_away(cluster: MockCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = transactions(cluster.servers, topic)
    made.open()
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 0.5)
    cluster.is_up(False)
    try:
        begun = time.monotonic()
        with pytest.raises(OutputUnavailable, match="brokers take no records"):
            made.write(ONE, {})
        with pytest.raises(OutputUnavailable, match="cannot connect"):
            transactions(cluster.servers, topic).open()
        assert time.monotonic() - begun < CALLS_S
    finally:
        cluster.is_up(True)
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 8.0)
    made.open()
    made.write(ONE, {"job-1": OutputProgress(checkpoint=1)})


@pytest.mark.long
def test_progress_that_is_damaged(cluster: MockCluster, topic: str) -> None:
    made = transactions(cluster.servers, topic)
    for content in (b"{", b'{"format": 9, "checkpoint": 1}'):
        producing = Producing(cluster.servers, {})
        producing.send(PROGRESS, 0, [content], key=f"job-1/{topic}")
        producing.flush()
        with pytest.raises(OutputTopicError, match=r"damaged|its format is 9"):
            made.read("job-1")


def test_no_secret_is_in_an_error(cluster: MockCluster, topic: str) -> None:
    with pytest.raises(ConfigurationError, match="sink 'out': config: No such configuration property") as raised:
        transactions(cluster.servers, topic, {"sasl.password": SECRET, "no.such.setting": 1}).open()
    assert SECRET not in str(raised.value)
    with pytest.raises(ConfigurationError, match="sink 'out': config: No such configuration property"):
        transactions(cluster.servers, topic, {"no.such.setting": 1}).read("job-1")


@pytest.mark.long
def test_credentials_that_are_refused(cluster: MockCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 1.0)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    with pytest.raises((OutputTopicError, OutputUnavailable), match=r"connect: .*SASL") as raised:
        transactions(cluster.servers, topic, {**login, "sasl.password": SECRET}).open()
    assert SECRET not in str(raised.value)
