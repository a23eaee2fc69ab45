"""The jobs that are watched: what they read, which stages depend on the order of rows, and where their rows go.

A pipeline says what its driver draws (``draw``), what the checker is given of its input and of its far end, and which
faults it may meet. Another one is another entry of ``PIPELINES``.

The stages are those that ``checker/history.py`` describes in words. The two know nothing of each other but that text.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from experiments.blackbox import faults
from experiments.blackbox.broken import FAULTS, HALVES, LATE, broken, halving
from experiments.blackbox.feeding import Feeder, FileFeeder, TopicFeeder
from experiments.harness.kafka_server import CONFIG, KafkaServer
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream

ROWS, NUMBER, BUCKET, OUT = "rows", "number", "bucket", "out"
KEYS, BUCKETS = 29, 13
DIGITS = 9
PARTITIONS = 5
"""Of a topic: no multiple of the number of slots."""
ROWS_OF_A_FILE = 50
AT_ONCE = "at_once"
FACTOR, MIX = 7919, 31
HASH_BYTES = 8
NUMBERED = "i long, a long"
BUCKETED = "i long, a long, n long, b long"
RANKED = "i long, a long, n long, b long, m long, chain string"
LINKED = "i long, a long, n long, chain string"
TABLE_COLUMNS = "i bigint, a bigint, n bigint, b bigint, m bigint, chain text"


@dataclass(frozen=True)
class Place:
    """Where a job reads and writes. ``dsn``: of the server, as the job reaches it; ``table``: its output there.
    ``directory``: for input and output files. ``brokers``: of Kafka, with the topic ``topic``."""

    directory: str
    dsn: str = ""
    table: str = ""
    brokers: str = ""
    topic: str = ""


@dataclass(frozen=True)
class Job:
    """A job as its driver is given it.

    ``rows``: of the input (``Pipeline.rows``); they come at ``rate``.
    ``broken``: a deliberate fault of its sink (``broken.FAULTS``).
    ``rescales``: whether its parallelism may change.
    """

    pipeline: str
    rows: int
    rate: float
    seed: int
    place: Place
    options: Mapping[str, Any] = field(default_factory=dict)
    broken: str | None = None
    rescales: bool = False

    @property
    def readers(self) -> int:
        """Subtasks that read, of which the checker knows the rows: row *i* belongs to the reader ``i % readers``. With
        rescales each row is given a reader of its own, since rows that are left are dealt again."""
        return self.rows if self.rescales else int(self.options["parallelism"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Job:
        return Job(**{**document, "place": Place(**document["place"])})


@dataclass(frozen=True)
class NumberedRow:
    """Row ``i`` of the input."""

    seed: int

    def __call__(self, i: int) -> tuple[int, int]:
        return i, (i * FACTOR + self.seed) % KEYS


@dataclass(frozen=True)
class NumberedRecord:
    """Row ``i`` of the input, as a record of Kafka."""

    seed: int

    def __call__(self, i: int) -> bytes:
        return json.dumps(dict(zip("ia", NumberedRow(self.seed)(i), strict=True))).encode()


def with_bucket(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
    columns["b"] = (MIX * columns["n"] + columns["a"]) % BUCKETS
    return pa.record_batch(columns)


def link(before: str, row: Any, n: int) -> str:
    """The next hash of a chain."""
    return hashlib.blake2b(f"{before}/{row.i}/{row.a}/{n}".encode(), digest_size=HASH_BYTES).hexdigest()


def ranked(bucket: int, row: Any, ctx: Any) -> list[tuple[int, int, int, int, int, str]]:
    """The number of the row in its bucket, and the next hash of the chain."""
    standing = ctx.state("standing")
    m, chain = standing.get((0, ""))
    chain = link(chain, row, row.n)
    standing.put((m + 1, chain))
    return [(row.i, row.a, row.n, bucket, m + 1, chain)]


def numbered(key: int, row: Any, ctx: Any) -> list[tuple[int, int, int, str]]:
    """The number of the row of its key, and the next hash of the chain."""
    standing = ctx.state("standing")
    n, chain = standing.get((0, ""))
    chain = link(chain, row, n + 1)
    standing.put((n + 1, chain))
    return [(row.i, row.a, n + 1, chain)]


@dataclass(frozen=True)
class Pipeline(ABC):
    """``kinds``: of faults that it may meet."""

    name: str
    kinds: tuple[str, ...] = faults.EVERYWHERE

    rescaled: ClassVar[float] = faults.RESCALED_ROUNDS
    """The share of rounds with rescales, where they may come."""
    endless: ClassVar[bool] = False
    """The job waits for more input: it is ended when all rows are visible."""

    def needs(self, *kinds: str) -> bool:
        """Whether one of these may come; so what they disturb must be there."""
        return bool(set(self.kinds) & set(kinds))

    def rows(self, wanted: int, parallelism: int) -> int:
        """How many rows the input has: about as many as are wanted."""
        return -(-wanted // parallelism) * parallelism

    def prepare(self, job: Job) -> None:
        """Make the input ready."""
        return None

    def feeder(self, job: Job, visible: Callable[[], int], kafka: KafkaServer | None) -> Feeder | None:
        """What gives the input while the job runs; ``visible``: how many rows are visible."""
        return None

    @abstractmethod
    def draw(self, env: StreamEnvironment, job: Job) -> None:
        """Draw the job."""

    @abstractmethod
    def input(self, job: Job) -> dict[str, Any]:
        """What the checker is given of the input: ``checker.history.Input``."""

    @abstractmethod
    def far_end(self, job: Job, dsn: str) -> dict[str, Any]:
        """Where the checker looks. ``dsn``: of the server, reached directly."""


def _given(job: Job, readers: int, buckets: int, cuts: bool) -> dict[str, Any]:
    """``checker.history.Input``."""
    return {"rows": job.rows, "readers": readers, "keys": KEYS, "buckets": buckets, "seed": job.seed, "cuts": cuts}


def _two_stages(rows: Stream) -> Stream:
    """The stages with buckets."""
    counted = rows.key_by("a").count(output="n", name=NUMBER)
    return (
        counted.map_batches(with_bucket, schema=BUCKETED, name=BUCKET)
        .key_by("b")
        .process(ranked, schema=RANKED, name="ranked")
    )


@dataclass(frozen=True)
class ToPostgres(Pipeline):
    """Generator, two keyed stages behind shuffles, a table."""

    visibility: str = AT_ONCE
    kinds: tuple[str, ...] = (*faults.EVERYWHERE, *faults.OF_SERVERS)

    def draw(self, env: StreamEnvironment, job: Job) -> None:
        stream = _two_stages(self._read(env, job))
        if job.broken is not None:
            broken(stream, job.place.dsn, job.place.table, job.broken, OUT)
            return
        stream.to_postgres(job.place.dsn, job.place.table, visibility=self.visibility, name=OUT)

    def _read(self, env: StreamEnvironment, job: Job) -> Stream:
        return env.generate(NumberedRow(job.seed), schema=NUMBERED, count=job.rows, rate=job.rate, name=ROWS)

    def input(self, job: Job) -> dict[str, Any]:
        return _given(job, job.readers, BUCKETS, cuts=self.visibility != AT_ONCE and not job.rescales)

    def far_end(self, job: Job, dsn: str) -> dict[str, Any]:
        return {"dsn": dsn, "table": job.place.table}


@dataclass(frozen=True)
class KafkaToPostgres(ToPostgres):
    """A topic whose records come while the job runs, two keyed stages behind shuffles, a table.

    Row *i* is in partition ``i % PARTITIONS``, and its order there holds at every parallelism.
    """

    rescaled: ClassVar[float] = 1.0
    endless: ClassVar[bool] = True

    def feeder(self, job: Job, visible: Callable[[], int], kafka: KafkaServer | None) -> Feeder | None:
        assert kafka is not None
        kafka.create(job.place.topic, PARTITIONS)
        given = job.rows, job.rate, job.seed, visible
        return TopicFeeder(*given, kafka, job.place.topic, PARTITIONS, NumberedRecord(job.seed))

    def _read(self, env: StreamEnvironment, job: Job) -> Stream:
        return env.from_kafka(job.place.brokers, job.place.topic, schema=NUMBERED, config=CONFIG, name=ROWS)

    def input(self, job: Job) -> dict[str, Any]:
        return _given(job, PARTITIONS, BUCKETS, cuts=self.visibility != AT_ONCE)


def _numbers(batch: pa.RecordBatch, seed: int) -> pa.RecordBatch:
    i = batch.column("value").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return pa.record_batch({"i": i, "a": (i * FACTOR + seed) % KEYS})


@dataclass(frozen=True)
class Numbers:
    """Lines to rows."""

    seed: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return _numbers(batch, self.seed)


@dataclass(frozen=True)
class FilesToParquet(Pipeline):
    """Text files, a keyed stage, Parquet.

    There are as many files as readers, and all have the same size: so each reader has one file (``sources.text`` gives
    readers equal shares). File *f* of *p* has the rows ``f``, ``f + p``, ..., a number on each line.
    """

    def prepare(self, job: Job) -> None:
        readers = job.options["parallelism"]
        for file in range(readers):
            numbers = np.arange(file, job.rows, readers)
            text = "".join(f"{number:0{DIGITS}}\n" for number in numbers)
            (self._input(job) / f"{file:04}.txt").write_text(text)

    @staticmethod
    def _input(job: Job) -> Path:
        path = Path(job.place.directory) / "input"
        path.mkdir(exist_ok=True)
        return path

    @staticmethod
    def _output(job: Job) -> str:
        return str(Path(job.place.directory) / "output")

    def draw(self, env: StreamEnvironment, job: Job) -> None:
        lines = env.read_text(str(self._input(job)), name=ROWS).throttle(job.rate)
        rows = lines.map_batches(Numbers(job.seed), schema=NUMBERED, name="numbers")
        rows.key_by("a").process(numbered, schema=LINKED, name=NUMBER).to_parquet(self._output(job), name=OUT)

    def input(self, job: Job) -> dict[str, Any]:
        return _given(job, job.readers, 0, cuts=not job.rescales)

    def far_end(self, job: Job, dsn: str) -> dict[str, Any]:
        return {"directory": self._output(job)}


@dataclass(frozen=True)
class FilesToDelta(Pipeline):
    """Text files that appear while the job runs, two keyed stages behind shuffles, a Delta table.

    Each file has the same number of rows: file *f* of *F* has the rows ``f``, ``f + F``, ... So the checker takes a
    file for a reader: its rows stay in order at every parallelism. In half of the rounds a file is removed when it was
    read.
    """

    rescaled: ClassVar[float] = 1.0
    endless: ClassVar[bool] = True

    def rows(self, wanted: int, parallelism: int) -> int:
        return -(-wanted // ROWS_OF_A_FILE) * ROWS_OF_A_FILE

    @staticmethod
    def _place(job: Job, name: str) -> Path:
        path = Path(job.place.directory) / name
        path.mkdir(exist_ok=True)
        return path

    def feeder(self, job: Job, visible: Callable[[], int], kafka: KafkaServer | None) -> Feeder | None:
        files = job.rows // ROWS_OF_A_FILE

        def content(file: int) -> str:
            return "".join(f"{number:0{DIGITS}}\n" for number in range(file, job.rows, files))

        given = job.rows, job.rate, job.seed, visible
        return FileFeeder(*given, ROWS_OF_A_FILE, self._place(job, "input"), content)

    def draw(self, env: StreamEnvironment, job: Job) -> None:
        after: Literal["keep", "delete"] = "delete" if job.seed % 2 else "keep"
        lines = env.read_files(str(self._place(job, "input")), poll="100 ms", after=after, name=ROWS)
        rows = lines.map_batches(Numbers(job.seed), schema=NUMBERED, name="numbers")
        output = str(self._place(job, "output"))
        if job.broken == HALVES:
            halving(_two_stages(rows), output, OUT)
            return
        _two_stages(rows).to_delta(output, name=OUT)

    def input(self, job: Job) -> dict[str, Any]:
        return _given(job, job.rows // ROWS_OF_A_FILE, BUCKETS, cuts=True)

    def far_end(self, job: Job, dsn: str) -> dict[str, Any]:
        return {"delta": str(self._place(job, "output"))}


POSTGRES_AT_ONCE, FILES_DELTA = "postgres-at-once", "files-delta"
BROKEN_PIPELINES = {**dict.fromkeys((*FAULTS, LATE), POSTGRES_AT_ONCE), HALVES: FILES_DELTA}
"""Deliberate fault of a sink -> the pipeline that it is for."""
_BY_CHECKPOINT = (*faults.EVERYWHERE, *faults.OF_SERVERS, faults.RESCALE)
_FILES = (*faults.EVERYWHERE, faults.RESCALE)
PIPELINES: dict[str, Pipeline] = {
    pipeline.name: pipeline
    for pipeline in (
        ToPostgres(POSTGRES_AT_ONCE),
        ToPostgres("postgres-checkpoint", _BY_CHECKPOINT, visibility="checkpoint"),
        FilesToParquet("files-parquet", _FILES),
        FilesToDelta(FILES_DELTA, _FILES),
        KafkaToPostgres("kafka-postgres-at-once", (*faults.EVERYWHERE, *faults.OF_SERVERS, faults.BROKER)),
        KafkaToPostgres("kafka-postgres-checkpoint", (*_BY_CHECKPOINT, faults.BROKER), visibility="checkpoint"),
    )
}
