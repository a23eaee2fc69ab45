"""Jobs whose rows are visible in Kafka at once: slots and drivers are killed, the parallelism changes. A reader of
committed records that reads meanwhile finds each row once, in an order that never changes.

The rows show the order in which a keyed subtask got those of several sources: each has the number of its key so far. So
a history that is not repeated exactly gives one number to two rows, or one row two numbers.

All of this needs brokers that end transactions of others: ``make kafka-check``.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus import ConfigurationError, JobHandle, OutputTopicError, StreamEnvironment
from flinkplus.protocol.determinants.recipe import Division, RecipeEntry, StoredOutput
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.kafka import recipe_topic
from flinkplus.sinks.kafka.at_once import KafkaAtOnceKeeper, KafkaAtOnceSink
from flinkplus.sinks.kafka.sink import KafkaOutputOptions, kafka_sink
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.programs import SESSION, kill_again_and_again
from tests.kafka_server import CALLS_S, Cluster, KafkaServer, Reachable, Silent, new_topic, records_of
from tests.unit.sinks.harness import SCHEMA, context, rows

kafka_module = pytest.importorskip(
    "confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'"
)
pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(300)]

ROWS, KEYS, PARTITIONS = 6_000, 7, 3
NUMBERED = "word string, i bigint, one bigint"
INPUT = {(f"w{i % KEYS}", i) for i in range(ROWS)}
SECRET = "pass-word-of-kafka"
SLOW = 30.0
"""Rows per second: the job lives for minutes, also on a machine with other work."""


def numbering(spark: SparkSession, servers: str, topic: str, rate: float, **options: Any) -> StreamEnvironment:
    """Rows with the number of their key so far, visible at once."""
    env = StreamEnvironment(spark, **{"parallelism": 2, "checkpoint_interval": 0.4, **options})
    made = env.generate(lambda i: (f"w{i % KEYS}", i, 1), schema=NUMBERED, count=ROWS, rate=rate, name="rows")
    numbered = made.key_by("word").sum("one", output="n", name="number")
    config = {"sasl.password": SECRET}
    numbered.to_kafka(servers, topic, key="word", visibility="at_once", config=config, name="numbered")
    return env


@pytest.fixture
def topic(new_kafka: Cluster) -> str:
    name = new_topic()
    new_kafka.create(name, PARTITIONS)
    return name


class Reader:
    """Reads committed records as they come, and notes all that is wrong."""

    def __init__(self, cluster: Reachable, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        own = {"bootstrap.servers": cluster.servers, "group.id": topic, "isolation.level": "read_committed"}
        self._consumer = Consumer({**own, **cluster.config}, logger=Silent())
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        self.wrong: list[Any] = []
        self.found: dict[int, tuple[str, int]] = {}
        self._counts: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    self._note(json.loads(message.value() or b""))

    def _note(self, row: dict[str, Any]) -> None:
        """Each row comes once, and the numbers of a word are those from 1 on, in order."""
        word, number = row["word"], row["n"]
        if row["i"] in self.found or number != self._counts.get(word, 0) + 1:
            self.wrong.append((row, self.found.get(row["i"]), self._counts.get(word)))
        self._counts[word] = number
        self.found[row["i"]] = (word, number)

    @property
    def rows(self) -> int:
        return len(self.found)

    def await_rows(self, rows: int) -> None:
        wait_until(lambda: self.rows >= rows, f"{rows} visible rows")

    def assert_exact(self) -> None:
        self.await_rows(ROWS)
        self.assert_consistent()
        assert {(word, i) for i, (word, _) in self.found.items()} == INPUT

    def assert_consistent(self) -> None:
        assert self.wrong == []


def test_all_slots_and_then_one_are_killed(spark: SparkSession, new_kafka: Cluster, topic: str) -> None:
    """A rollback, and a failover."""
    with (
        Reader(new_kafka, topic) as reader,
        numbering(spark, new_kafka.servers, topic, 1_000.0).execute("killed") as job,
    ):
        reader.await_rows(500)
        assert job.kill("number:0") and job.kill("number:1")
        wait_until(lambda: bool(job.metrics()["fallback_reasons"]), "a rollback")
        reader.await_rows(2_500)
        wait_until(lambda: job.missing_standbys() == 0 or job.done, "standbys")
        assert job.kill("number:1")
        job.await_finish(PATIENCE_S)
        assert len(job.metrics()["fallback_reasons"]) == 1
        assert [one["mode"] for one in job.recoveries()][-1] == "standby"
        reader.assert_exact()
    assert not [name for name in topics(new_kafka) if name == recipes_of(job.job_id, topic)], "the recipe is removed"


def topics(cluster: Reachable) -> set[str]:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.servers, **cluster.config})
    return set(admin.list_topics(timeout=CALLS_S).topics)


def recipes_of(job: str, topic: str) -> str:
    return KafkaAtOnceSink("out", topic=topic, job_id=job).recipe_topic


def test_a_job_without_standbys_is_killed_cancelled_and_resumed(
    spark: SparkSession, new_kafka: Cluster, topic: str, tmp_path: Path
) -> None:
    """Rows behind the last complete checkpoint stay, whatever the next run would have chosen. No password is stored."""

    def run(rate: float, **options: Any) -> JobHandle:
        given = {"recovery": "rollback", "checkpoint_dir": tmp_path, **options}
        return numbering(spark, new_kafka.servers, topic, rate, **given).execute("resumed", resume="auto")

    with Reader(new_kafka, topic) as reader:
        with run(1_000.0) as job:
            reader.await_rows(500)
            assert job.kill("number:0")
            wait_until(lambda: bool(job.recoveries()), "a rollback")
            reader.await_rows(2_000)
        with pytest.raises(ConfigurationError, match=r"visible at once.*the same batch_rows="):
            run(1e6, batch_rows=3)
        with run(1e6) as job:
            job.await_finish(PATIENCE_S)
            assert SECRET not in str(job.metrics())
        reader.assert_exact()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_rescaled_stopped_and_resumed(spark: SparkSession, new_kafka: Cluster, topic: str, tmp_path: Path) -> None:
    def run(rate: float, **options: Any) -> JobHandle:
        given = {"checkpoint_dir": tmp_path / "kept", **options}
        return numbering(spark, new_kafka.servers, topic, rate, **given).execute("changed", resume="auto")

    with Reader(new_kafka, topic) as reader:
        with run(SLOW) as job:
            wait_for_checkpoint(job, 1)
            for parallelism in (3, 1):
                move = job.rescale(parallelism)
                job.kill("number:0")
                move.await_done(PATIENCE_S)
                seen = reader.rows
                reader.await_rows(seen + 20)
            stopped = job.stop_with_savepoint(tmp_path / "savepoint")
            stopped.await_done(PATIENCE_S)
            job.await_finish(PATIENCE_S)
        assert 0 < reader.rows < ROWS
        with run(1e6, parallelism=3, batch_rows=300) as job:
            job.await_finish(PATIENCE_S)
        reader.assert_exact()


PROGRAM = (
    SESSION
    + """import json
from tests.integration.test_kafka_at_once import numbering

given = json.loads(sys.argv[1])
env = numbering(spark, given["servers"], given["topic"], float(sys.argv[2]) / 10, checkpoint_dir="checkpoints")
with env.execute("program", resume="auto") as job:
    job.await_finish()
"""
)


def test_a_driver_killed_again_and_again(new_kafka: Cluster, topic: str, tmp_path: Path) -> None:
    """With SIGKILL, at any moment of a transaction; its slots end after it."""
    given = {"servers": new_kafka.servers, "topic": topic}
    with Reader(new_kafka, topic) as reader:
        kill_again_and_again(PROGRAM, tmp_path, json.dumps(given), lambda: reader.rows, SECRET)
        reader.assert_exact()


def test_brokers_without_transactions_are_refused(spark: SparkSession, own_kafka: KafkaServer) -> None:
    topic = new_topic()
    own_kafka.create(topic)
    env = StreamEnvironment(spark, parallelism=1, checkpoint_interval=0.4)
    made = env.generate(lambda i: (f"w{i}",), schema="word string", count=10, name="rows")
    made.to_kafka(own_kafka.servers, topic, visibility="at_once", config=dict(own_kafka.config), name="out")
    with pytest.raises(OutputTopicError, match=r"have no transactions: to_kafka needs Kafka 0.11 or newer"):
        env.execute("refused")
    assert not records_of(own_kafka, topic)


# --- writers and fences, without a job --------------------------------------------------------------------------------


class Bench:
    """Subtask 0 of two, generation after generation."""

    def __init__(self, cluster: Reachable, topic: str) -> None:
        options = KafkaOutputOptions(
            value="json",
            key="word",
            headers=None,
            partition=None,
            visibility="at_once",
            config=cluster.config,
            progress_topic=new_topic("progress"),
        )
        sink = kafka_sink("out", cluster.servers, topic, options).bind(SCHEMA, new_topic("job"))
        assert isinstance(sink, KafkaAtOnceSink)
        self.sink, self.cluster, self.topic = sink, cluster, topic
        self.errors: list[Exception | None] = []
        self.writers: list[AtOnceWriter] = []
        self.keepers: list[KafkaAtOnceKeeper] = []
        self.keeper = self.new_driver(resume=False)

    def new_driver(self, resume: bool = True) -> KafkaAtOnceKeeper:
        keeper = self.sink.committer()
        self.keepers.append(keeper)
        keeper.prepare(resume)
        return keeper

    def begin(self, generation: int) -> tuple[AtOnceWriter, StoredOutput]:
        stored = self.keeper.fence(generation, [0, 1], 2, 10.0)[0]
        made = self.sink.writer(context(0), generation)
        assert isinstance(made, AtOnceWriter)
        self.writers.append(made)
        made.restore({"digest": ""})
        made.begin(stored.recorded, self.errors.append)
        return made, stored

    @property
    def words(self) -> list[str]:
        return [json.loads(message.value())["word"] for message in records_of(self.cluster, self.topic)]

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.keeper.finish()
        for keeper in self.keepers:
            keeper.close()


@pytest.fixture
def bench(new_kafka: Cluster) -> Any:
    topic = new_topic()
    new_kafka.create(topic, 1)
    made = Bench(new_kafka, topic)
    yield made
    made.close()


def put(writer: AtOnceWriter, step: int, word: str, checkpoint: int = 0) -> None:
    writer.write(rows((word, step)))
    writer.cut(step, RecipeEntry(CheckpointId(checkpoint), b"recipe %d" % step))


def stored(writer: AtOnceWriter, step: int) -> None:
    wait_until(lambda: writer._step == step, f"step {step}")


def test_a_successor_goes_on_behind_what_is_visible(bench: Bench) -> None:
    first, found = bench.begin(1)
    assert found == StoredOutput()
    for step in (1, 2):
        put(first, step, f"first{step}")
    stored(first, 2)
    second, found = bench.begin(2)
    assert found.recorded == 2 and [entry.spans for entry in found.entries] == [b"recipe 1", b"recipe 2"]
    put(first, 3, "late")
    for step in (1, 2):
        second.write(rows((f"first{step}", step)))
        second.repeated(step)
    put(second, 3, "second")
    stored(second, 3)
    wait_until(lambda: not first.accepts, "the fence")
    assert bench.words == ["first1", "first2", "second"] and not bench.errors


def test_a_transaction_that_a_dead_writer_has_begun_is_not_visible_and_holds_no_fence_back(bench: Bench) -> None:
    first, _ = bench.begin(1)
    put(first, 1, "kept")
    stored(first, 1)
    far = first._far
    partition = far._partition  # type: ignore[attr-defined]
    partition._producer.begin_transaction()
    partition._producer.produce(bench.topic, b"{}", partition=0)
    partition._producer.produce(bench.sink.recipe_topic, b"{}", key=b"1/1", partition=0)
    partition._producer.flush(CALLS_S)
    begun = time.monotonic()
    assert bench.keeper.fence(2, [0], 2, 10.0)[0].recorded == 1
    assert time.monotonic() - begun < 5.0, "not the time-out of the transaction"
    assert bench.words == ["kept"]


def test_a_long_recipe_is_read_from_its_end_and_trimmed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe_topic, "WINDOW", 4)
    monkeypatch.setattr(recipe_topic, "TRIM_EVERY", 10)
    writer, _ = bench.begin(1)
    for step in range(1, 31):
        put(writer, step, f"w{step}", checkpoint=step // 10)
        stored(writer, step)
        if step % 10 == 5:
            writer.checkpoint_complete(step // 10)
    topic = bench.sink.recipes()

    def first() -> int:
        return int(topic._asked(lambda consumer: topic._ends(consumer, topic.name, 0))[0])

    wait_until(lambda: first() > 10, "records are removed")
    topic.close()
    _, found = bench.begin(2)
    assert found.recorded == 30
    assert [entry.spans for entry in found.entries] == [b"recipe %d" % step for step in range(20, 31)]
    with pytest.raises(OutputTopicError, match="cannot continue from checkpoint 1"):
        bench.keeper.retract_after(1)


def test_other_subtasks_take_over(bench: Bench) -> None:
    writer, _ = bench.begin(1)
    put(writer, 1, "before")
    stored(writer, 1)
    bench.keeper.divide(2, Division(CheckpointId(3), CheckpointId(2)), 3, 10.0)
    assert bench.new_driver().fence(2, range(3), 3, 10.0) == dict.fromkeys(range(3), StoredOutput())
    put(writer, 2, "late")
    wait_until(lambda: not writer.accepts, "the fence")
    assert bench.words == ["before"]


def test_a_recipe_topic_that_has_gone_or_forgets_is_an_error(bench: Bench, new_kafka: Cluster) -> None:
    bench.begin(1)
    new_kafka.delete(bench.sink.recipe_topic)
    with pytest.raises(OutputTopicError, match="which keeps what makes rows again, has gone"):
        bench.new_driver().fence(2, [0, 1], 2, 10.0)
    new_kafka.create(bench.sink.recipe_topic, 2)
    with pytest.raises(
        OutputTopicError, match=r"has retention.ms=\d+, so that what makes rows again would be forgotten"
    ):
        bench.keeper._far.make(1)
