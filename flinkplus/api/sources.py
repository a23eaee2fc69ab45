"""Where the rows of a job come from: the methods of ``StreamEnvironment`` that begin a stream.

Rules: before ``execute`` a source reads only what it must know to be drawn: its files, its schema.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from flinkplus.api.callers import names_callers_line
from flinkplus.api.data_sources import DataSourceReading, data_source_rows
from flinkplus.api.streams.stream import Schema, Stream
from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.schema import parse_schema
from flinkplus.runtime.job.spark_types import arrow_schema
from flinkplus.runtime.job.staging import check_dataframe
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
from flinkplus.state.file_system import absolute

log = logging.getLogger("flinkplus")


@names_callers_line
class EnvironmentSources:
    """The sources of a job."""

    options: Options
    graph: JobGraph
    output_id: str
    _frames: dict[str, DataFrame]

    def name_for(self, kind: str, name: str | None) -> str:
        """As ``Drawing.name_for``."""
        raise NotImplementedError

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """As ``Drawing.throttle``."""
        raise NotImplementedError

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
        reading = DataSourceReading(batch, poll_s, trigger, max_unread_batches)
        name = self.name_for("data-source", name)
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
