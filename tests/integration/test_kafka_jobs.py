"""Jobs that read from a real Kafka broker, while slots, drivers and the broker die; compared with what was produced.

Each record says its partition and its number in it. The operator behind the source gives, for each record, the number
before it in the same partition with the same word, and how many records with this word there were so far. The first is
what a batch gives, too; the second shows whether two incarnations of the source read in different orders.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import JobFailed, JobHandle, StreamEnvironment
from tests.documents import all_blocks
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.integration.programs import SESSION, kill_again_and_again
from tests.integration.test_live_sources import wait_for_recoveries
from tests.kafka_server import Cluster, KafkaServer, Producing, new_topic

pytestmark = [pytest.mark.integration, pytest.mark.long]

WORDS = 7
SCHEMA = "word string, n long"
ORDERED = "word string, partition int, n long, before long, so_far long"
SECRET = "pass-word-of-kafka"


class Orders:
    """A topic into which a thread produces ``count`` records for each partition, in bursts with pauses.

    A context manager; its end waits for the last record.
    """

    def __init__(self, kafka: Cluster, partitions: int = 3, count: int = 1_500) -> None:
        self.kafka, self.topic, self.count = kafka, new_topic("orders"), count
        kafka.create(self.topic, partitions)
        self._rng = random.Random(count)
        self.words: list[list[str]] = []
        self._grow(partitions)
        self._sent = [0] * partitions
        self._lock, self._waited = threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._producing = self._connected()
        self._thread = threading.Thread(target=self._produce)

    def _grow(self, partitions: int) -> None:
        self.words += [[f"w{self._rng.randrange(WORDS)}" for _ in range(self.count)] for _ in range(partitions)]

    def add_partitions(self, partitions: int) -> None:
        """``partitions``: how many more."""
        with self._lock:
            self.kafka.add_partitions(self.topic, len(self._sent) + partitions)
            self._grow(partitions)
            self._sent += [0] * partitions
            self._producing = self._connected()  # which knows of them

    def _connected(self) -> Producing:
        producing = Producing(self.kafka.servers, self.kafka.config)
        producing.touch(self.topic)
        return producing

    def _produce(self) -> None:
        try:
            while True:
                time.sleep(self._rng.choice((0.0, 0.02, 0.1)))
                with self._lock:
                    open_ones = [p for p, sent in enumerate(self._sent) if sent < self.count]
                    if not open_ones and self._waited.is_set():
                        return
                    if not open_ones:
                        continue
                    partition = self._rng.choice(open_ones)
                    begin = self._sent[partition]
                    end = min(self.count, begin + self._rng.choice((1, 5, 20, 60)))
                    rows = [{"n": n, "word": self.words[partition][n]} for n in range(begin, end)]
                    self._producing.send(self.topic, partition, [json.dumps(row).encode() for row in rows])
                    self._sent[partition] = end
                    self._producing.flush()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Orders:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def wait(self) -> None:
        """Until all is produced; no partitions come after that."""
        self._waited.set()
        self._thread.join()
        assert self._error is None, self._error

    @property
    def size(self) -> int:
        return sum(map(len, self.words))

    def expected(self) -> Counter[tuple[str, int, int, int]]:
        """Word, partition, number, and the number before it in the partition with this word."""
        found: Counter[tuple[str, int, int, int]] = Counter()
        for partition, words in enumerate(self.words):
            last: dict[str, int] = {}
            for n, word in enumerate(words):
                found[word, partition, n, last.get(word, -1)] += 1
                last[word] = n
        return found


def in_order(word: str, row: Any, ctx: Any) -> Iterator[tuple[str, int, int, int, int]]:
    seen = ctx.state("seen")
    last, so_far = seen.get(({}, 0))
    yield word, row.partition, row.n, last.get(row.partition, -1), so_far + 1
    seen.put(({**last, row.partition: row.n}, so_far + 1))


class Job:
    """orders | key_by(word) | in_order | Parquet."""

    def __init__(self, spark: SparkSession, orders: Orders, directory: Path) -> None:
        self.spark, self.orders, self.directory = spark, orders, directory

    def run(self, resume: Any = False, **options: Any) -> JobHandle:
        given = {"parallelism": 2, "checkpoint_interval": 0.2, "checkpoint_dir": self.directory / "checkpoints"}
        env = StreamEnvironment(self.spark, **{**given, **options})
        kafka = self.orders.kafka
        rows = env.from_kafka(
            kafka.servers,
            self.orders.topic,
            schema=SCHEMA,
            metadata=["partition"],
            group=f"group-of-{self.orders.topic}",
            discover="500 ms",
            config={**kafka.config, "client.rack": "a", "sasl.password": SECRET},
            name="orders",
        )
        rows.key_by("word").process(in_order, schema=ORDERED, name="in_order").to_parquet(self.directory / "out")
        return env.execute("orders", resume=resume)

    def rows(self) -> list[dict[str, Any]]:
        """What is visible."""
        return rows_in(self.directory / "out")

    def wait_for_rows(self, job: JobHandle, count: int) -> None:
        wait_until(lambda: job.done or len(self.rows()) >= count, f"{count} rows; {len(self.rows())} are there")

    def drain(self, job: JobHandle) -> None:
        """Everything is read, and the job ends."""
        self.wait_for_rows(job, self.orders.size)
        wait_until(lambda: job.done or job.metrics()["operators"]["orders"].get("lag_rows") == 0, "no lag")
        job.drain()
        job.await_finish(PATIENCE_S)

    def check(self) -> None:
        check_rows(self.rows(), self.orders)
        files = [path for path in (self.directory / "checkpoints").rglob("*") if path.is_file()]
        assert files and not [path for path in files if SECRET.encode() in path.read_bytes()]


def rows_in(directory: Path) -> list[dict[str, Any]]:
    if not directory.exists() or not any(directory.glob("*.parquet")):
        return []
    found: list[dict[str, Any]] = pq.read_table(directory).to_pylist()
    return found


def check_rows(rows: list[dict[str, Any]], orders: Orders) -> None:
    found = Counter((row["word"], row["partition"], row["n"], row["before"]) for row in rows)
    assert found == orders.expected()
    for word in {row["word"] for row in rows}:
        of_word = sorted((row["so_far"], row["partition"], row["n"]) for row in rows if row["word"] == word)
        assert [so_far for so_far, _, _ in of_word] == list(range(1, len(of_word) + 1))
        for partition in range(len(orders.words)):
            numbers = [n for _, at, n in of_word if at == partition]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("options", "modes"),
    [
        ({}, {"standby"}),
        ({"recovery": "rollback"}, {"rollback"}),
        ({"recovery": "partial"}, {"partial"}),
        ({"checkpoint_mode": "unaligned", "parallelism": 3}, {"standby"}),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_slots_die_while_records_come_and_partitions_are_added(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, options: dict[str, Any], modes: set[str]
) -> None:
    orders = Orders(kafka)
    reading = Job(spark, orders, tmp_path)
    with orders, reading.run(**options) as job:
        for count, victim in enumerate(("orders:0", "in_order:1", "orders:1"), 1):
            wait_for_checkpoint(job, job.metrics()["checkpoints_completed"] + 1)
            if count == 2:
                orders.add_partitions(2)
            assert job.kill(victim)
            wait_for_recoveries(job, count, options.get("parallelism", 2))
        orders.wait()
        reading.drain(job)
        assert {recovery["mode"] for recovery in job.recoveries()} == modes
    reading.check()


@pytest.mark.parametrize("recovery", ["standby", "rollback"])
def test_the_broker_dies_and_restarts_in_mid_read(
    spark: SparkSession, own_kafka: KafkaServer, tmp_path: Path, recovery: str
) -> None:
    orders = Orders(own_kafka)
    reading = Job(spark, orders, tmp_path)
    with orders, reading.run(recovery=recovery) as job:
        wait_for_checkpoint(job, 1)
        reading.wait_for_rows(job, 200)
        own_kafka.kill()
        done = job.metrics()["checkpoints_completed"]
        wait_for_checkpoint(job, done + 2)  # a job whose broker is away takes checkpoints
        assert job.kill("orders:0")  # its successor finds no broker
        time.sleep(0.5)
        own_kafka.start()
        wait_for_recoveries(job, 1)
        orders.wait()
        reading.drain(job)
        assert len(job.recoveries()) == 1
    reading.check()


def test_another_parallelism_while_records_come(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    orders = Orders(kafka, partitions=4)
    reading = Job(spark, orders, tmp_path)
    with orders, reading.run() as job:
        wait_for_checkpoint(job, 1)
        job.rescale(3).await_done(PATIENCE_S)
        wait_until(lambda: job.missing_standbys() == 0, "standbys")
        orders.add_partitions(1)
        assert job.kill("orders:2")
        wait_for_recoveries(job, 1, 3)
        job.rescale(1).await_done(PATIENCE_S)
        job.rescale(2).await_done(PATIENCE_S)
        orders.wait()
        reading.drain(job)
        assert job.metrics()["fallbacks"] == 0
    reading.check()


def test_a_driver_that_is_gone_and_another_parallelism(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is given up in the midst of the stream. The one without the program takes the password from the
    environment."""
    orders = Orders(kafka)
    reading = Job(spark, orders, tmp_path)
    with orders:
        with reading.run() as job:
            wait_for_checkpoint(job, 2)
        orders.add_partitions(1)
        with reading.run(resume=True, parallelism=3) as job:
            assert job.restored_from is not None
            wait_for_checkpoint(job, 2)
        monkeypatch.setenv("KAFKA_SASL_PASSWORD", SECRET)
        with StreamEnvironment.resume(spark, tmp_path / "checkpoints", parallelism=1) as job:
            wait_for_checkpoint(job, 1)
        orders.wait()
        with reading.run(resume=True) as job:
            reading.drain(job)
    reading.check()


PROGRAM = (
    SESSION
    + """import json
from tests.integration.test_kafka_jobs import ORDERED, SCHEMA, in_order

given = json.loads(sys.argv[1])
env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.1, checkpoint_dir="checkpoints")
rows = env.from_kafka(given["servers"], given["topic"], schema=SCHEMA, metadata=["partition"], stop="latest",
                      config={**given["config"], "sasl.password": given["secret"]}, name="orders")
rows.throttle(float(sys.argv[2])).key_by("word").process(in_order, schema=ORDERED, name="in_order").to_parquet("out")
with env.execute("orders", resume="auto") as job:
    job.await_finish()
"""
)


def test_a_driver_killed_again_and_again(kafka: Cluster, tmp_path: Path) -> None:
    """With SIGKILL; the last run reads to the end that was fixed by the first."""
    orders = Orders(kafka)
    with orders:
        pass
    given = {"servers": kafka.servers, "topic": orders.topic, "config": dict(kafka.config), "secret": SECRET}
    visible: Callable[[], int] = lambda: len(rows_in(tmp_path / "out"))  # noqa: E731
    kill_again_and_again(PROGRAM, tmp_path, json.dumps(given), visible, SECRET)
    check_rows(rows_in(tmp_path / "out"), orders)


def test_dead_letters_and_broken_records(spark: SparkSession, kafka: Cluster, tmp_path: Path) -> None:
    topic = new_topic()
    kafka.create(topic, 2)
    producing = Producing(kafka.servers, kafka.config)
    for partition in range(2):
        producing.send(topic, partition, [b'{"n": %d}' % n if n % 10 else b"broken %d" % n for n in range(100)])
    producing.flush()

    def drawn(on_error: str, directory: str) -> tuple[StreamEnvironment, Any]:
        env = StreamEnvironment(spark, parallelism=2, checkpoint_dir=tmp_path / directory, max_restarts=1)
        return env, env.from_kafka(  # type: ignore[call-overload]
            kafka.servers, topic, schema="n long", stop="latest", on_error=on_error, config=kafka.config, name="numbers"
        )

    env, (numbers, broken) = drawn("dead-letter", "letters")
    numbers.to_parquet(tmp_path / "numbers")
    broken.to_parquet(tmp_path / "broken")
    env.execute("letters").await_finish(PATIENCE_S)
    good = sorted(n for n in range(100) if n % 10) * 2
    assert sorted(row["n"] for row in rows_in(tmp_path / "numbers")) == sorted(good)
    letters = rows_in(tmp_path / "broken")
    assert sorted((row["partition"], row["offset"], row["value"]) for row in letters) == [
        (partition, n, b"broken %d" % n) for partition in range(2) for n in range(0, 100, 10)
    ]
    assert {(row["topic"], row["reason"]) for row in letters} == {(topic, "not a JSON object")}
    env, numbers = drawn("skip", "skip")
    numbers.collect(name="out")
    with env.execute("skip") as job:
        job.await_finish(PATIENCE_S)
        assert sorted(job.collected("out").column("n").to_pylist()) == sorted(good)
        assert job.metrics()["operators"]["numbers"]["invalid_records"] == 20
    env, numbers = drawn("fail", "fail")
    numbers.to_parquet(tmp_path / "resumed")
    error = f"topic '{topic}', partition ., at offset 0 cannot"
    with env.execute("fail") as job, pytest.raises(JobFailed, match=error):
        job.await_finish(PATIENCE_S)
    env, numbers = drawn("skip", "fail")
    numbers.to_parquet(tmp_path / "resumed")
    env.execute("fail", resume=True).await_finish(PATIENCE_S)
    assert sorted(row["n"] for row in rows_in(tmp_path / "resumed")) == sorted(good)


def test_records_that_are_gone_when_a_job_is_resumed(
    spark: SparkSession, own_kafka: KafkaServer, tmp_path: Path
) -> None:
    """The job does not pass over them by itself; its user may."""
    topic = new_topic()
    own_kafka.create(topic, 1, segment_bytes="20000")
    producing = Producing(own_kafka.servers, own_kafka.config)

    def run(name: str = "numbers", start: Any = "earliest", rate: float = 1e6, **begin: Any) -> JobHandle:
        env = StreamEnvironment(
            spark, parallelism=1, checkpoint_dir=tmp_path / "state", checkpoint_interval=0.1, max_restarts=1
        )
        rows = env.from_kafka(
            own_kafka.servers, topic, schema="n long", start=start, config=own_kafka.config, name=name
        )
        rows.throttle(rate).to_parquet(tmp_path / "out")
        return env.execute("gone", **begin)

    for begin in range(0, 2_000, 200):
        producing.send(topic, 0, [b'{"n": %d}' % n for n in range(begin, begin + 200)])
        producing.flush()
    with run(rate=100.0) as job:
        wait_until(lambda: len(rows_in(tmp_path / "out")) >= 20, "some rows")
    own_kafka.drop_first_segment(topic, 0)
    with run(resume=True) as job, pytest.raises(JobFailed, match="partition 0: the records at offsets") as raised:
        job.await_finish(PATIENCE_S)
    found = re.search(r"offsets (\d+) to (\d+) have been removed", str(raised.value))
    assert found is not None
    read, there = int(found[1]), int(found[2]) + 1
    with run("rest", {topic: {0: there}}, resume=True, drop_state=["numbers"]) as job:
        wait_until(lambda: job.done or len(rows_in(tmp_path / "out")) >= read + 2_000 - there, "the rest")
        job.drain()
        job.await_finish(PATIENCE_S)
    numbers = sorted(row["n"] for row in rows_in(tmp_path / "out"))
    assert numbers == [*range(read), *range(there, 2_000)]


def test_the_program_of_the_page(
    spark: SparkSession, kafka: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (block for block in all_blocks() if block.page == "docs/kafka.md" and "from_kafka(" in block.text)
    topic = new_topic()
    kafka.create(topic, 2)
    producing = Producing(kafka.servers, kafka.config)
    rows = [{"user": f"u{n % 3}", "amount": n} for n in range(300)]
    producing.send(topic, 0, [json.dumps(row).encode() for row in rows])
    producing.send(topic, 1, [b"broken"])
    producing.flush()
    monkeypatch.chdir(tmp_path)
    text = block.text.replace("kafka.example:9092", kafka.servers).replace('"orders"', repr(topic))
    config = ", ".join(f"{name!r}: {value!r}" for name, value in kafka.config.items())
    text = text.replace("on_error=", f"stop='latest', config={{{config}}}, on_error=")
    assert kafka.servers in text and topic in text and "stop=" in text
    exec(compile(text, str(block), "exec"), {"__name__": "__main__"})
    totals = rows_in(Path("out/totals"))
    last = {user: max(row["total"] for row in totals if row["user"] == user) for user in ("u0", "u1", "u2")}
    assert last == {f"u{k}": sum(range(k, 300, 3)) for k in range(3)}
    assert [row["value"] for row in rows_in(Path("out/broken"))] == [b"broken"]
    assert os.listdir("state")
