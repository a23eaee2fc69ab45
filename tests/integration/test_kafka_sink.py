"""Jobs that write to Kafka, exactly once, while slots and drivers die.

librdkafka's imitation of a cluster has no transactions that can be aborted, so what becomes of those needs brokers:
``make kafka-check``.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import JobFailed, JobHandle, OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka import cluster as kafka_cluster
from flinkplus.sinks.kafka.client import KafkaTransactions
from flinkplus.sinks.kafka.cluster import OWN
from flinkplus.sources.kafka.connecting import KafkaConnection
from tests.documents import all_blocks
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.outputs import EXPECTED, ROWS, counting
from tests.integration.programs import SESSION, kill_again_and_again
from tests.kafka_server import Cluster, KafkaServer, MockCluster, Reachable, new_topic, records_of, touch

kafka_module = pytest.importorskip(
    "confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'"
)
pytestmark = [pytest.mark.integration, pytest.mark.long]
PROGRESS = "flinkplus-progress"
SECRET = "pass-word-of-kafka"


@pytest.fixture
def imitated(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    monkeypatch.setattr(kafka_cluster, "DESCRIBE_S", 0.01)  # it answers no questions about settings of topics
    # It aborts nothing: an attempt that is given up on a busy machine would leave its rows, and the next adds them.
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", PATIENCE_S)
    cluster = MockCluster()
    touch(cluster, PROGRESS)
    yield cluster
    cluster.close()


def written(cluster: Reachable, topic: str) -> Counter[tuple[str, int]]:
    """What readers of committed records see. Checks that the rows of each word are in one partition, in order."""
    found: Counter[tuple[str, int]] = Counter()
    last: dict[str, tuple[int, int]] = {}
    for message in records_of(cluster, topic):
        row = json.loads(message.value())
        assert message.key() == row["word"].encode()
        partition, before = last.get(row["word"], (message.partition(), 0))
        assert (message.partition(), row["count"]) == (partition, before + 1)
        last[row["word"]] = (partition, row["count"])
        found[row["word"], row["count"]] += 1
    return found


class Writing:
    """words | count | Kafka."""

    def __init__(self, spark: SparkSession, cluster: Reachable, topic: str) -> None:
        self.spark, self.cluster, self.topic = spark, cluster, topic

    def run(self, rate: float, home: Path, parallelism: int = 2, **begin: Any) -> JobHandle:
        env, counts = counting(self.spark, rate, parallelism=parallelism, checkpoint_dir=home)
        config = {**self.cluster.config, "client.rack": "a", "sasl.password": SECRET}
        counts.to_kafka(self.cluster.servers, self.topic, key="word", config=config, name="out")
        return env.execute("writing", resume="auto", **begin)

    def so_far(self) -> int:
        return sum(written(self.cluster, self.topic).values())


def has_no_secret(home: Path) -> bool:
    files = [path for path in home.rglob("*") if path.is_file()]
    return bool(files) and not [path for path in files if SECRET.encode() in path.read_bytes()]


SLOW = 20.0
"""Rows per second: the input lasts for minutes, longer than everything that is done beside it on a busy machine."""


def rescaled_and_resumed(writing: Writing, home: Path) -> None:
    """A slot is killed, the parallelism changes, a savepoint is taken, and a job continues from it."""
    savepoint = home / "savepoint"
    with writing.run(SLOW, home / "first") as job:
        wait_for_checkpoint(job, 2)
        assert job.kill("count:1", at="commit")
        wait_until(lambda: bool(job.recoveries()), "a failover")
        job.rescale(3).await_done(PATIENCE_S)
        wait_for_checkpoint(job, 4)
        job.stop_with_savepoint(savepoint).await_done(PATIENCE_S)
    assert 0 < writing.so_far() < ROWS
    with writing.run(SLOW, home / "second", 1, start_from=savepoint) as job:
        wait_for_checkpoint(job, 2)
    with writing.run(1e6, home / "second", start_from=savepoint) as job:
        assert job.restored_from is not None
        job.await_finish(PATIENCE_S)
    assert written(writing.cluster, writing.topic) == EXPECTED
    assert has_no_secret(home)


def test_a_job_is_rescaled_resumed_and_started_from_a_savepoint(
    spark: SparkSession, imitated: MockCluster, tmp_path: Path
) -> None:
    rescaled_and_resumed(Writing(spark, imitated, touch(imitated, new_topic())), tmp_path)


def test_the_program_of_the_page(imitated: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in all_blocks() if block.page == "docs/kafka.md" and "to_kafka(" in block.text)
    topic = touch(imitated, new_topic())
    text = block.text.replace("kafka.example:9092", imitated.servers).replace('"counts", key', f'"{topic}", key')
    assert imitated.servers in text and topic in text
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("a b a\nb a c\n")
    exec(compile(text, str(block), "exec"), {"__name__": "__main__"})
    assert written(imitated, topic) == {("a", 1): 1, ("a", 2): 1, ("a", 3): 1, ("b", 1): 1, ("b", 2): 1, ("c", 1): 1}


def test_brokers_that_are_away_for_a_while(spark: SparkSession, imitated: MockCluster, tmp_path: Path) -> None:
    """The job runs on; when they are back, all that waits is committed."""
    writing = Writing(spark, imitated, touch(imitated, new_topic()))
    with writing.run(2_000.0, tmp_path / "home") as job:
        wait_for_checkpoint(job, 2)
        imitated.is_up(False)
        time.sleep(2.0)
        imitated.is_up(True)
        job.await_finish(PATIENCE_S)
    assert written(imitated, writing.topic) == EXPECTED


def test_a_topic_that_is_not_there_ends_the_start(spark: SparkSession, imitated: MockCluster, tmp_path: Path) -> None:
    writing = Writing(spark, imitated, new_topic())
    with pytest.raises(OutputTopicError, match="is not there, or is being deleted: create it first"):
        writing.run(1e6, tmp_path / "home")
    touch(imitated, writing.topic)
    with writing.run(1e6, tmp_path / "home") as job:
        job.await_finish(PATIENCE_S)
    assert written(imitated, writing.topic) == EXPECTED


def test_a_row_that_no_record_holds_ends_the_job(spark: SparkSession, imitated: MockCluster, tmp_path: Path) -> None:
    env, counts = counting(spark, 1e6, max_restarts=1)
    counts.map(lambda row: (row["count"] / 0.0 if row["count"] == 0 else float("nan"),), schema="x double").to_kafka(
        imitated.servers, touch(imitated, new_topic()), name="out"
    )
    message = "sink 'out': column 'x', row 0 of the batch cannot be written as JSON: Out of range float values"
    with env.execute("broken") as job, pytest.raises(JobFailed, match=message):
        job.await_finish(PATIENCE_S)


# --- with brokers -----------------------------------------------------------------------------------------------------


def test_brokers_without_transactions_are_refused(spark: SparkSession, own_kafka: KafkaServer, tmp_path: Path) -> None:
    topic = new_topic()
    own_kafka.create(topic)
    with pytest.raises(OutputTopicError, match=r"have no transactions: to_kafka needs Kafka 0.11 or newer"):
        Writing(spark, own_kafka, topic).run(1e6, tmp_path / "home")
    assert not records_of(own_kafka, topic)


def transactions(
    cluster: Reachable, topic: str, job: str, progress: str = PROGRESS, **config: Any
) -> KafkaTransactions:
    connection = KafkaConnection.parse("sink 'out'", cluster.servers, {**cluster.config, **config}, OWN)
    return KafkaTransactions("sink 'out'", connection, f"flinkplus-{job}-{topic}", topic, progress)


def test_opening_a_name_ends_the_transaction_before(new_kafka: Cluster) -> None:
    topic, job = new_topic(), new_topic("job")
    new_kafka.create(topic, 2)
    first, second = transactions(new_kafka, topic, job), transactions(new_kafka, topic, job)
    for one in (first, second):
        one.ready()
    first.open()
    first.write([(b"k", b"first", None, None)], {job: OutputProgress(checkpoint=1)})
    assert first.read(job) == OutputProgress(checkpoint=1)

    def interrupted() -> Iterator[Any]:
        for n in range(1_000):
            yield (b"k", b"late %d" % n, None, None)
        first._flush()
        second.open()
        assert second.read(job) == OutputProgress(checkpoint=1)

    with pytest.raises(OutputUnavailable, match="the cluster has ended the transaction"):
        first.write(interrupted(), {job: OutputProgress(checkpoint=2)})
    second.write([(b"k", b"second", None, None)], {job: OutputProgress(checkpoint=2)})
    with pytest.raises(OutputUnavailable):
        first.write([(b"k", b"late", None, None)], {job: OutputProgress(checkpoint=3)})
    assert [message.value() for message in records_of(new_kafka, topic)] == [b"first", b"second"]
    assert second.read(job) == OutputProgress(checkpoint=2)


def test_a_driver_that_dies_in_a_transaction_leaves_nothing_visible(new_kafka: Cluster) -> None:
    """Its transaction is aborted by the next one, long before it would time out."""
    topic, job = new_topic(), new_topic("job")
    new_kafka.create(topic, 2)
    dead = transactions(new_kafka, topic, job)
    dead.ready()
    dead.open()
    dead._producer.begin_transaction()
    dead._produce_all([(None, b"lost", None, None)], {job: OutputProgress(checkpoint=1)})
    dead._flush()
    dead._producer = None
    later = transactions(new_kafka, topic, job)
    later.open()
    assert later.read(job) is None
    later.write([(None, b"kept", None, None)], {job: OutputProgress(checkpoint=1)})
    assert [message.value() for message in records_of(new_kafka, topic)] == [b"kept"]
    assert later.read(job) == OutputProgress(checkpoint=1)


def test_progress_behind_a_transaction_of_another_job_is_waited_for(
    new_kafka: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is committed behind an open transaction of another job must not be overlooked."""
    topic, mine, others = new_topic(), new_topic("job"), new_topic("job")
    new_kafka.create(topic)
    other, one = transactions(new_kafka, topic, others), transactions(new_kafka, topic, mine)
    one.ready()
    for each in (other, one):
        each.open()
    other._producer.begin_transaction()
    other._produce_all([], {others: OutputProgress(checkpoint=1)})
    other._flush()
    one.write([], {mine: OutputProgress(checkpoint=7)})
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 1.0)
    with pytest.raises(OutputUnavailable, match="a transaction is under way there"):
        one.read(mine)
    monkeypatch.setattr(kafka_cluster, "PATIENCE_S", 8.0)
    other._producer.commit_transaction(kafka_cluster.PATIENCE_S)
    assert one.read(mine) == OutputProgress(checkpoint=7)
    assert one.read(others) == OutputProgress(checkpoint=1)


def test_the_topic_of_progress_is_made_and_must_be_compacted(new_kafka: Cluster) -> None:
    topic, wrong = new_topic(), new_topic("progress")
    new_kafka.create(topic)
    transactions(new_kafka, topic, "job", new_topic("progress")).ready()
    new_kafka.create(wrong)
    with pytest.raises(OutputTopicError, match=r"has cleanup.policy=delete, so that what is committed would be forgot"):
        transactions(new_kafka, topic, "job", wrong).ready()
    with pytest.raises(OutputTopicError, match=r"create it first"):
        transactions(new_kafka, new_topic(), "job").ready()


def test_a_job_with_transactions_is_rescaled_resumed_and_started_from_a_savepoint(
    spark: SparkSession, new_kafka: Cluster, tmp_path: Path
) -> None:
    topic = new_topic()
    new_kafka.create(topic, 4)
    rescaled_and_resumed(Writing(spark, new_kafka, topic), tmp_path)


PROGRAM = (
    SESSION
    + """import json
from tests.integration.outputs import counting

given = json.loads(sys.argv[1])
env, counts = counting(spark, float(sys.argv[2]) / 10, checkpoint_dir="checkpoints")
counts.to_kafka(given["servers"], given["topic"], key="word", config={"sasl.password": given["secret"]}, name="out")
with env.execute("program", resume="auto") as job:
    job.await_finish()
"""
)


def test_a_driver_killed_again_and_again(new_kafka: Cluster, tmp_path: Path) -> None:
    """With SIGKILL, at any moment of a transaction."""
    topic = new_topic()
    new_kafka.create(topic, 4)
    given = {"servers": new_kafka.servers, "topic": topic, "secret": SECRET}

    def visible() -> int:
        return sum(written(new_kafka, topic).values())

    kill_again_and_again(PROGRAM, tmp_path, json.dumps(given), visible, SECRET)
    assert written(new_kafka, topic) == EXPECTED
    assert has_no_secret(tmp_path / "checkpoints")
