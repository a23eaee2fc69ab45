"""Where the rows of a stream go: the methods of ``Stream`` that end it.

Rules: a stream may have any number of sinks, each with its own visibility. Each of them takes all rows, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkplus.api.callers import names_callers_line
from flinkplus.api.drawing import Drawing, node_of
from flinkplus.errors import ConfigurationError
from flinkplus.graph import Node
from flinkplus.operators.base.operator import Operator
from flinkplus.operators.base.routes import Route
from flinkplus.sinks.base import Sink
from flinkplus.sinks.collect import CollectSink
from flinkplus.sinks.delta.sink import delta_sink
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sinks.foreach_batch import foreach_batch_sink
from flinkplus.sinks.kafka.cluster import PROGRESS_TOPIC
from flinkplus.sinks.kafka.sink import KafkaOutputOptions, kafka_sink
from flinkplus.sinks.parquet import parquet_sink
from flinkplus.sinks.postgres.sink import postgres_sink
from flinkplus.sinks.text import TextSink
from flinkplus.state.file_system import absolute

if TYPE_CHECKING:
    from flinkplus.api.streams.stream import Stream


@names_callers_line
class StreamOutputs:
    """The outputs of a stream with the columns ``schema``."""

    schema: pa.Schema
    _env: Drawing

    _origins: tuple[int, ...]
    _union: int | None

    @property
    def name(self) -> str:
        """The name of the operator that produces this stream."""
        raise NotImplementedError

    def _then(self, operator: Operator, route: Route | None = None, keys: tuple[str, ...] = ()) -> Stream:
        """The output of ``operator``, which gets the rows by ``route``; ``None``: fused with the operator before."""
        raise NotImplementedError

    def _sink(self, sink: Sink) -> str:
        bound = sink.bind(self.schema, self._env.output_id)
        self._env.graph.add(Node(sink.name, "sink", bound, self.schema), node_of(self))
        return sink.name

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_by: str | Sequence[str] = (),
        max_file_bytes: int | None = None,
        append: bool = False,
        name: str | None = None,
    ) -> str:
        """Exactly-once Parquet files in directory ``path``, which must not hold data; returns the sink's name.

        When a checkpoint completes, all rows that it covers become visible at once to ``spark.read.parquet(path)`` and
        ``spark.readStream``.

        ``partition_by``: columns by whose values the files are in folders (``day=2026-11-27``), as Spark writes them.
        ``max_file_bytes``: a file of about that size is followed by another one. A checkpoint always ends all files.
        ``append``: add to what the directory holds, of a batch job or of another job of FlinkPlus that has ended, which
        stays visible; see ``docs/sinks.md``. Raises ``ConfigurationError``.
        """
        name = self._env.name_for("parquet", name)
        return self._sink(parquet_sink(name, absolute(os.fspath(path)), partition_by, max_file_bytes, append))

    def to_text(self, path: str | os.PathLike[str], *, separator: str = "\t", name: str | None = None) -> str:
        """As ``to_parquet``, as lines of text with columns joined by ``separator``."""
        return self._sink(TextSink(self._env.name_for("text", name), absolute(os.fspath(path)), separator))

    def to_postgres(
        self,
        dsn: str,
        table: str,
        *,
        mode: str = "append",
        key: str | Sequence[str] | None = None,
        visibility: str = "checkpoint",
        name: str | None = None,
    ) -> str:
        """Exactly-once rows in ``table`` (or ``schema.table``) of a PostgreSQL database; returns the sink's name.

        ``dsn``: ``postgresql://user:password@host:port/database``, or ``host=... dbname=...``. The password is not
        stored with the job.
        ``mode``: ``append``, or ``upsert``: a row replaces the one with the same ``key``. The rows of a key must come
        from one subtask: put a ``key_by`` with these columns before.
        ``visibility``: ``checkpoint``: all rows that a checkpoint covers become visible together when it completes;
        ``at_once``: each row some milliseconds after it was made, and none is taken back by a recovery. Not with every
        option: see ``docs/postgres.md``.

        A missing table is created. Raises ``ConfigurationError``, also without the extra ``flinkplus[postgres]``.
        """
        return self._sink(postgres_sink(self._env.name_for("postgres", name), dsn, table, mode, key, visibility))

    def to_kafka(
        self,
        servers: str | Sequence[str],
        topic: str,
        *,
        value: str = "json",
        key: str | Sequence[str] | None = None,
        headers: str | None = None,
        partition: str | None = None,
        visibility: str = "checkpoint",
        config: Mapping[str, Any] | None = None,
        progress_topic: str = PROGRESS_TOPIC,
        name: str | None = None,
    ) -> str:
        """Exactly-once records in ``topic`` of a Kafka cluster, by transactions; returns the sink's name.

        Consumers that read committed records see each row once.

        ``value``: ``json``: an object of the row's columns; ``bytes``, ``text``: the column ``value``.
        ``key``: a column of text or bytes, as it is; others, and several, as JSON. Equal keys meet in one partition.
        ``headers``: a column with the record's headers. ``partition``: a column with the partition's number; a null
        leaves it to the key. Both are left out of a JSON value.
        ``visibility``: ``checkpoint``: all rows that a checkpoint covers become visible together when it completes;
        ``at_once``: each row some ten milliseconds after it was made, and none is taken back by a recovery. Not with
        every option: see ``docs/kafka.md``.
        ``config``: settings of librdkafka; passwords among them are not stored with the job.
        ``progress_topic``: where the job notes what is committed; created, with one partition, if it is not there.

        See ``docs/kafka.md``. Raises ``ConfigurationError``, also without the extra ``flinkplus[kafka]``.
        """
        options = KafkaOutputOptions(
            value=value,
            key=key,
            headers=headers,
            partition=partition,
            visibility=visibility,
            config=config,
            progress_topic=progress_topic,
        )
        return self._sink(kafka_sink(self._env.name_for("kafka_sink", name), servers, topic, options))

    def to_delta(
        self,
        path: str | os.PathLike[str],
        *,
        mode: str = "append",
        partition_by: str | Sequence[str] = (),
        schema_mode: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """Exactly-once rows in the Delta Lake table at ``path``; returns the sink's name.

        Each checkpoint with rows is one commit. A missing table is created; rows are added to one that exists.

        ``path``: local, or a ``pyarrow.fs`` URI that all slots reach.
        ``partition_by``: columns that the table is partitioned by, as in ``to_parquet``.
        ``schema_mode``: ``"merge"`` adds columns that the table lacks; otherwise they are an error.
        ``storage_options``: further ones for ``deltalake``; those that look secret stay in the driver.

        Raises ``ConfigurationError``, also without the extra ``flinkplus[delta]``.
        """
        name = self._env.name_for("delta", name)
        return self._sink(delta_sink(name, os.fspath(path), mode, partition_by, schema_mode, storage_options))

    def foreach_batch(self, function: Callable[[pa.Table, int], object], *, name: str | None = None) -> str:
        """Call ``function(table, batch_id)`` in the driver for each complete checkpoint; returns the sink's name.

        ``table``: all rows of the checkpoint, those of each subtask in the order in which they were made. ``batch_id``:
        the number of the checkpoint, which ascends. A checkpoint without rows makes no call. After a crash of the
        driver the last call may be repeated, with the same ID and the same rows: make it idempotent by the ID. An
        exception is retried, as failed commits are, and then ends the job. See ``docs/sinks.md``.
        """
        return self._sink(foreach_batch_sink(self._env.name_for("foreach_batch", name), function))

    def to_sink(self, sink: Sink, *, name: str | None = None) -> str:
        """Write the rows by a sink of your own (``flinkplus.connectors``, ``docs/connectors.md``); returns its name.

        ``name``: in place of the name that the sink has.
        """
        if not isinstance(sink, Sink):
            raise ConfigurationError(f"to_sink takes a Sink, not a {type(sink).__name__}")
        return self._sink(sink if name is None else replace(sink, name=name))

    def collect(self, *, name: str | None = None) -> str:
        """Keep the committed rows in the driver (``job.collected(name)``); for tests and small results."""
        return self._sink(CollectSink(self._env.name_for("collect", name)))

    def discard(self, *, name: str | None = None) -> str:
        """Count the rows without storing them; for benchmarks."""
        return self._sink(DiscardSink(self._env.name_for("discard", name)))
