"""``StreamEnvironment``: from a SparkSession to a running job.

Rules: the session belongs to the user, and its settings are not changed. An option that is not given comes from
``spark.flinkplus.*`` of the session's configuration, then from the defaults. ``execute`` may be called once.
"""

from __future__ import annotations

import copy
import logging
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, overload

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType
from typing_extensions import Unpack

from flinkplus.api.callers import names_callers_line
from flinkplus.api.data_sources import DataSourceReading, data_source_rows
from flinkplus.api.dry_run import check_upgrade
from flinkplus.api.job import JobHandle
from flinkplus.api.stream import Schema, Stream
from flinkplus.api.upgrades import Upgrade, asked_by_command, hand_over, requests_of
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.job_options import JobOptions, RunOptions
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.schema import parse_schema
from flinkplus.runtime.job.plan import find_job
from flinkplus.runtime.job.savepoints import has_checkpoints, resume_found, start_drawn
from flinkplus.runtime.job.spark_types import arrow_schema
from flinkplus.runtime.job.staging import check_dataframe
from flinkplus.runtime.job.start import start_job
from flinkplus.runtime.job.streams.query import query_arguments
from flinkplus.sources.base import Source
from flinkplus.sources.batches.source import StreamedBatches
from flinkplus.sources.files.reading import FormatName, file_format, file_times
from flinkplus.sources.files.source import DirectoryFiles
from flinkplus.sources.generator import Generator
from flinkplus.sources.kafka.chunks import GoodRows, broken_rows
from flinkplus.sources.kafka.columns import BROKEN_SCHEMA
from flinkplus.sources.kafka.source import KafkaOptions, Start, Stop, kafka_source
from flinkplus.sources.parquet import StagedParquet
from flinkplus.sources.python.lines import SocketLines
from flinkplus.sources.text import TextFiles
from flinkplus.state.durable.ownership import Resume
from flinkplus.state.file_system import absolute

log = logging.getLogger("flinkplus")


@names_callers_line
class StreamEnvironment:
    """Draws one job on a SparkSession and runs it. The options are those of ``flinkplus.JobOptions``.

    Raises ``ConfigurationError`` for an invalid option.
    """

    def __init__(self, spark: SparkSession, **options: Unpack[JobOptions]) -> None:
        conf = dict(spark.sparkContext.getConf().getAll())
        self.spark = spark
        self.options = options_from(conf, options)
        self.graph = JobGraph()
        self.output_id = f"job-{uuid.uuid4().hex[:12]}"
        self._frames: dict[str, DataFrame] = {}
        self._counts: dict[str, int] = {}
        self._executed = False

    def __repr__(self) -> str:
        names = ", ".join(node.name for node in self.graph.nodes) or "nothing drawn"
        state = "executed" if self._executed else "not executed"
        return f"<StreamEnvironment: {names}; parallelism {self.options.parallelism}; {state}>"

    def from_spark(
        self,
        df: DataFrame,
        *,
        name: str | None = None,
        repeat: int = 1,
        trigger: dict[str, Any] | None = None,
        max_unread_batches: int = 32,
        max_unread_bytes: int = 1 << 30,
    ) -> Stream:
        """The rows of a DataFrame, which Spark stages for the slots to read.

        A batch DataFrame is staged when the job is executed. Each subtask reads one contiguous range of the rows, in
        the order of the DataFrame, with its partitions unchanged. ``repeat``: how many times the rows are read.

        The query of a streaming DataFrame runs beside the job, in the driver, and stages batch after batch
        (``docs/sources.md``). Each subtask reads a part of every batch.
        ``trigger``: as in ``DataStreamWriter.trigger``: ``{"processingTime": "1 second"}``, ``{"availableNow": True}``
        or ``{"once": True}``; default: a batch as soon as the one before is staged.
        ``max_unread_batches``, ``max_unread_bytes``: the query waits while so much is staged and was not read.

        Raises ``ConfigurationError`` for a column type that cannot be staged.
        """
        check_dataframe(df)
        name = self.name_for("spark", name)
        schema, errors = arrow_schema(df.schema), self.options.encoding_errors
        if df.isStreaming:
            return self._from_query(df, name, schema, repeat, trigger, max_unread_batches, max_unread_bytes)
        if trigger is not None:
            raise ConfigurationError(f"source {name!r}: trigger is for a streaming DataFrame (spark.readStream)")
        self._frames[name] = df
        return self._source(StagedParquet(name=name, files=(), schema=schema, repeat=repeat, errors=errors))

    def _from_query(
        self, df: DataFrame, name: str, schema: pa.Schema, repeat: int, trigger: Any, batches: int, size: int
    ) -> Stream:
        if repeat != 1:
            raise ConfigurationError(f"source {name!r}: a streaming DataFrame is read once, not {repeat!r} times")
        try:
            arguments = query_arguments(trigger)
        except ValueError as error:
            raise ConfigurationError(f"source {name!r}: {error}") from None
        source = StreamedBatches(name, schema, self.options.encoding_errors, arguments, batches, size)
        self._frames[name] = df
        return self._source(source)

    def read_text(
        self, path: str | os.PathLike[str], *, name: str | None = None, repeat: int = 1, errors: str | None = None
    ) -> Stream:
        """The lines of a text file, directory or glob, as ``value string``, read by the slots.

        ``repeat``: how many times the lines are read.
        ``errors``: ``'replace'`` (and count) or ``'strict'`` for invalid UTF-8; default: option ``encoding_errors``.

        Raises ``InputError`` when no file matches ``path``.
        """
        name = self.name_for("text", name)
        errors = errors or self.options.encoding_errors
        source = TextFiles(name=name, path=absolute(os.fspath(path)), repeat=repeat, errors=errors)
        return self._source(source.planned())

    def read_files(
        self,
        path: str | os.PathLike[str],
        format: FormatName = "text",
        *,
        schema: Schema | None = None,
        watch: bool = True,
        name: str | None = None,
        recursive: bool = False,
        poll: Duration = "1 second",
        on_error: Literal["fail", "skip"] = "fail",
        errors: str | None = None,
        changed: Literal["fail", "ignore"] = "fail",
        max_file_age: Duration | None = "7 days",
        after: Literal["keep", "delete", "archive"] = "keep",
        archive_dir: str | os.PathLike[str] | None = None,
        file_column: str | None = None,
        header: bool = True,
        delimiter: str = ",",
        quote: str = '"',
        multiline: bool = False,
    ) -> Stream:
        """The rows of the files in a directory, each file once, also of those that appear while the job runs.

        ``path``: a local directory, or a URI that ``pyarrow.fs`` understands, which all slots reach.
        ``format``: ``text`` gives ``value string``; the others need a ``schema``.
        ``watch``: wait for more files; otherwise the stream ends after those that are there at the start.
        ``recursive``: also files in folders below. ``poll``: pause between two listings.
        ``on_error``: ``skip`` passes over broken rows of JSON and CSV, and counts them (``invalid_rows``).
        ``errors``: of text that is not UTF-8 in text and Parquet; as for ``read_text``.
        ``changed``: what a file is that changes after it was found: an error, or not looked at.
        ``max_file_age``: a file that appears and is older than the newest one by more is ignored; ``None``: none is.
        ``after``: what becomes of a file when a complete checkpoint covers it; ``archive_dir``: where it is moved.
        ``file_column``: adds a column with this name, which has the path of the file.
        ``header``, ``delimiter``, ``quote``, ``multiline``: of CSV.

        Files must be complete when they appear: write them elsewhere, or under a hidden name, and move them there.
        ``docs/sources.md`` has the details. Raises ``ConfigurationError``, or ``InputError`` without a directory.
        """
        csv = {"header": header, "delimiter": delimiter, "quote": quote, "multiline": multiline}
        archive = None if archive_dir is None else absolute(os.fspath(archive_dir))
        name, where = self.name_for("files", name), absolute(os.fspath(path))
        form = file_format(name, format, schema, errors or self.options.encoding_errors, on_error, csv)
        times = file_times(poll, max_file_age)
        source = DirectoryFiles(
            *(name, where, form, watch, recursive, *times, changed, after, archive, file_column),
        )
        source.directory.check()
        return self._source(source)

    def generate(
        self,
        function: Callable[..., Any],
        *,
        schema: Schema,
        count: int | None = None,
        rate: float | None = None,
        batches: bool = False,
        name: str | None = None,
    ) -> Stream:
        """Rows made by ``function(i)`` for i = 0, 1, ...

        ``count``: number of rows (``None``: unbounded).
        ``rate``: rows per second over all subtasks (``None``: unlimited).
        ``batches``: ``function(start, n)`` returns a record batch of ``n`` rows instead.

        ``function`` must depend on its arguments only; otherwise replay is not exact.
        """
        name = self.name_for("generator", name)
        generator = Generator(name=name, fn=function, schema=parse_schema(schema), count=count, batches=batches)
        stream = self._source(generator)
        return stream if rate is None else stream.throttle(rate)

    @overload
    def from_kafka(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        value: Literal["json", "bytes", "text"] = ...,
        schema: Schema | None = ...,
        metadata: bool | Sequence[str] = ...,
        start: Start = ...,
        stop: Stop | None = ...,
        group: str | None = ...,
        on_error: Literal["fail", "skip"] = ...,
        discover: Duration = ...,
        config: Mapping[str, Any] | None = ...,
        name: str | None = ...,
    ) -> Stream: ...

    @overload
    def from_kafka(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        on_error: Literal["dead-letter"],
        value: Literal["json", "bytes", "text"] = ...,
        schema: Schema | None = ...,
        metadata: bool | Sequence[str] = ...,
        start: Start = ...,
        stop: Stop | None = ...,
        group: str | None = ...,
        discover: Duration = ...,
        config: Mapping[str, Any] | None = ...,
        name: str | None = ...,
    ) -> tuple[Stream, Stream]: ...

    def from_kafka(
        self,
        servers: str | Sequence[str],
        topics: str | Sequence[str],
        *,
        value: Literal["json", "bytes", "text"] = "json",
        schema: Schema | None = None,
        metadata: bool | Sequence[str] = False,
        start: Start = "earliest",
        stop: Stop | None = None,
        group: str | None = None,
        on_error: Literal["fail", "skip", "dead-letter"] = "fail",
        discover: Duration = "30 seconds",
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> Stream | tuple[Stream, Stream]:
        """The records of Kafka's topics, each exactly once, as they arrive.

        ``servers``: ``'host:port'``, or several of them; any of the cluster's brokers.
        ``value``: ``json``: objects with the fields of ``schema``; ``bytes`` or ``text``: one column, ``value``.
        ``metadata``: ``True`` or a list: further columns ``topic``, ``partition``, ``offset``, ``timestamp``, ``key``
        and ``headers``.
        ``start``: ``earliest``, ``latest``, ``committed`` (by ``group``), a time (``datetime`` or milliseconds), or
        ``{topic: {partition: offset}}``; of a new job. A job that is resumed continues where it was.
        ``stop``: ``latest`` or a time: read up to there and end; default: never.
        ``group``: the consumer group that positions are committed to, for monitoring.
        ``on_error``: what a record that cannot be decoded does: ``fail`` the job; ``skip`` it, counted in the metric
        ``invalid_records``; ``dead-letter``: return a second stream, of such records with the reason.
        ``discover``: how often to look for new partitions.
        ``config``: settings of librdkafka, such as ``security.protocol``. Passwords are not stored with the job.

        Raises ``ConfigurationError``, also without the extra ``flinkplus[kafka]``. See ``docs/kafka.md``.
        """
        options = KafkaOptions(
            value=value,
            schema=schema,
            metadata=metadata,
            start=start,
            stop=stop,
            group=group,
            on_error=on_error,
            discover=discover,
            config=config,
        )
        source = kafka_source(self.name_for("kafka", name), servers, topics, options)
        stream = self._source(source)
        if on_error != "dead-letter":
            return stream
        rows = source.rows_schema
        good = stream.map_batches(GoodRows(rows), schema=rows, name=f"{source.name} rows")
        return good, stream.map_batches(broken_rows, schema=BROKEN_SCHEMA, name=f"{source.name} broken records")

    def from_data_source(
        self,
        source: type[DataSource],
        *,
        options: Mapping[str, str] | None = None,
        schema: Schema | StructType | None = None,
        batch: bool = False,
        poll: Duration = "100 ms",
        trigger: dict[str, Any] | None = None,
        max_unread_batches: int | None = None,
        name: str | None = None,
    ) -> Stream:
        """The rows of a Python data source of Spark (a subclass of ``pyspark.sql.datasource.DataSource``), read by the
        slots themselves, each exactly once, without Spark's batches.

        What its ``streamReader()`` gives, whose batches the driver plans and whose partitions all subtasks read; or
        what its ``simpleStreamReader()`` gives, by one subtask; or with ``batch=True``, what its ``reader()`` gives,
        its partitions by all subtasks, and then the end.
        ``options``: as those of ``DataStreamReader``; passwords, tokens and the like are not stored with the job.
        ``schema``: default: that of the data source.
        ``poll``: pause before a data source that had nothing new is asked again.
        ``trigger``: ``{"availableNow": True}``: a ``streamReader()`` is read up to what there is, and then ends.
        ``max_unread_batches``: limit of the batches of a ``streamReader()`` that are planned and were not read; 32.

        Raises ``ConfigurationError``. ``docs/sources.md`` has what is required of a data source.
        """
        poll_s = duration_ms(poll, "poll", least=1) / 1_000
        name = self.name_for("data-source", name)
        reading = DataSourceReading(batch, poll_s, trigger, max_unread_batches)
        return self._source(data_source_rows(name, source, options or {}, schema, reading))

    def from_socket(self, host: str, port: int, *, name: str | None = None) -> Stream:
        """The lines that a TCP server sends, as ``value string``, for demonstrations; the stream ends when the server
        closes the connection.

        One subtask is the client. Lines cannot be read again: those that came after the last complete checkpoint are
        lost when its slot or the driver fails.
        """
        source = SocketLines(self.name_for("socket", name), host, port)
        log.warning(
            "source %r: a socket cannot be read again: after a failure of the slot that reads it, or of the driver, "
            "lines since the last complete checkpoint are lost",
            source.name,
        )
        return self._source(source)

    def from_source(self, source: Source, *, name: str | None = None) -> Stream:
        """The rows of a source of your own (``flinkplus.connectors``, ``docs/connectors.md``).

        ``name``: of the stream, in place of the name that the source has, if it has one.
        """
        if not isinstance(source, Source):
            raise ConfigurationError(f"from_source takes a Source, not a {type(source).__name__}")
        drawn, own = copy.copy(source), getattr(source, "name", None)
        found = {"name": self.name_for("source", name or own), "schema": parse_schema(source.schema)}
        for attribute, value in found.items():
            try:
                if getattr(source, attribute, None) != value:
                    object.__setattr__(drawn, attribute, value)
            except AttributeError as error:
                raise ConfigurationError(
                    f"source {own!r}: its {attribute} is a property, so it must be {value!r} itself"
                ) from error
        return self._source(drawn)

    def _source(self, source: Source) -> Stream:
        node = self.graph.add(Node(source.name, "source", source, source.schema))
        return Stream(self, node, source.schema)

    def name_for(self, kind: str, name: str | None) -> str:
        """As ``Drawing.name_for``."""
        if name is not None:
            return name
        taken = {node.name for node in self.graph.nodes}
        number = self._counts.get(kind, 0) + 1
        while (made := kind if number == 1 else f"{kind}-{number}") in taken:
            number += 1
        self._counts[kind] = number
        return made

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """As ``Drawing.throttle``. Raises ``ConfigurationError`` unless the only origin is fused with its source."""
        node = origins[0]
        vertex = next(v for v in self.graph.fuse_draft() if node in v.nodes)
        if not vertex.is_source or len(origins) > 1:
            raise ConfigurationError("throttle must stand before the first key_by or union, fused with its source")
        if any(self.graph.nodes[i].rate is not None for i in vertex.nodes):
            raise ConfigurationError(f"{vertex.name!r} is throttled already")
        self.graph.nodes[node].rate = rows_per_s

    @overload
    def execute(
        self,
        name: str,
        *,
        resume: Resume = ...,
        trust: bool = ...,
        start_from: str | os.PathLike[str] | None = ...,
        state_from: Mapping[str, str] | None = ...,
        drop_state: Collection[str] = ...,
        renamed_from: str | None = ...,
        dry_run: Literal[False] = ...,
    ) -> JobHandle: ...

    @overload
    def execute(
        self,
        name: str,
        *,
        resume: Resume = ...,
        trust: bool = ...,
        start_from: str | os.PathLike[str] | None = ...,
        state_from: Mapping[str, str] | None = ...,
        drop_state: Collection[str] = ...,
        renamed_from: str | None = ...,
        dry_run: Literal[True],
    ) -> Upgrade: ...

    def execute(
        self,
        name: str,
        *,
        resume: Resume = False,
        trust: bool = False,
        start_from: str | os.PathLike[str] | None = None,
        state_from: Mapping[str, str] | None = None,
        drop_state: Collection[str] = (),
        renamed_from: str | None = None,
        dry_run: bool = False,
    ) -> JobHandle | Upgrade:
        """Start the job; returns its handle at once.

        ``resume``: ``False`` starts a new job; ``True`` resumes from the last complete checkpoint in
        ``checkpoint_dir``; ``"auto"`` starts a job without a checkpoint and resumes any other. For a finished job it
        returns a handle in state ``finished`` and runs nothing, so the same command can be repeated until it succeeds.
        ``trust``: also resume a job that was signed with another key, which runs its author's code
        (``docs/security.md``).
        ``start_from``: a savepoint (``JobHandle.savepoint``) that the new job begins with. The job has a
        ``checkpoint_dir`` of its own, and the savepoint is only read. With ``resume="auto"``: unless there are
        checkpoints in ``checkpoint_dir``.

        A job may be resumed, or started from a savepoint, with another program (``docs/upgrades.md``):
        ``state_from``: operator -> the name that it had, whose state it takes.
        ``drop_state``: operators and sources that are gone, or have changed too much, whose state may be lost.
        ``renamed_from``: the name that the job had.
        ``dry_run``: compare the program with the checkpoints, or with the savepoint ``start_from``, start and write
        nothing, and return the comparison.

        Raises ``ConfigurationError``, ``InsufficientSlots``, ``OutputDirectoryError``, ``CheckpointDirectoryError`` or
        ``InputError`` when the job cannot start; ``JobRunsElsewhere`` when another driver runs it;
        ``UntrustedCheckpoint`` when the checkpoint to resume from is unsigned or signed with another key.
        """
        if self._executed:
            raise ConfigurationError("this environment was executed already; draw the next job with a new one")
        if resume not in (True, False, "auto"):
            raise ConfigurationError(f"resume must be True, False or 'auto', not {resume!r}")
        if start_from is not None and resume is True:
            raise ConfigurationError("give resume=True or start_from, not both; resume='auto' goes with start_from")
        requests = requests_of(state_from, drop_state, renamed_from, bool(resume or dry_run or start_from is not None))
        going_on = bool(resume) and start_from is not None and has_checkpoints(self.options)
        savepoint = None if start_from is None or going_on else os.fspath(start_from)
        self.graph.fuse()
        if dry_run or asked_by_command():
            return hand_over(check_upgrade(name, self.graph, self.options, requests, trust, savepoint))
        for node in self.graph.nodes:
            try:
                cloudpickle.dumps(node.body)
            except Exception as error:  # pickling fails with many kinds of errors
                raise ConfigurationError(
                    f"operator {node.name!r} cannot be sent to the slots: {error}; let its function make what it needs"
                ) from error
        drawn = self.spark, name, self.graph, self.options, self._frames, self.output_id
        if savepoint is not None:
            running = start_drawn(*drawn, savepoint, trust=trust, requests=requests)
        else:
            running = start_job(*drawn, resume=resume, trust=trust, requests=requests)
        self._executed = True
        return JobHandle(running)

    @staticmethod
    def resume(
        spark: SparkSession,
        checkpoint_dir: str | os.PathLike[str],
        *,
        trust: bool = False,
        name: str | None = None,
        new_checkpoint_dir: str | os.PathLike[str] | None = None,
        **options: Unpack[RunOptions],
    ) -> JobHandle:
        """Resume the job in ``checkpoint_dir``, as it was drawn, from its last complete checkpoint; or, if that is a
        savepoint, start a new job from it.

        ``trust``: as in ``execute``.
        ``new_checkpoint_dir``: of the new job that starts from a savepoint; needed there, and only there.
        ``name``: the name that the job must have; ``None``: any.
        ``options``: settings of this run; with another ``parallelism``, state and input are divided again.

        Raises ``CheckpointDirectoryError`` when the directory has no job to resume, or one with another name;
        ``UntrustedCheckpoint`` when the job is not signed with this user's key (option ``signing_key``).
        """
        found = find_job(os.fspath(checkpoint_dir), options.get("signing_key"), trust, name)
        new = None if new_checkpoint_dir is None else os.fspath(new_checkpoint_dir)
        return JobHandle(resume_found(spark, found, new, dict(options)))
