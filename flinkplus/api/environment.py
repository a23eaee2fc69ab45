"""``StreamEnvironment``: from a SparkSession to a running job.

Rules: the session is the user's and is left as it was found. Options are keyword-only; what is not given comes from
``spark.flinkplus.*`` of the session's configuration, then from safe defaults. An environment draws one job:
``execute`` may be called once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from typing_extensions import Unpack

from flinkplus.api.callers import names_callers_line
from flinkplus.api.job import JobHandle
from flinkplus.api.stream import Schema, Stream
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.job_options import JobOptions, RunOptions
from flinkplus.operators.base.schema import parse_schema
from flinkplus.runtime.job.plan import find_job
from flinkplus.runtime.job.staging import arrow_schema_of, check_dataframe
from flinkplus.runtime.job.start import resume_job, start_job
from flinkplus.sources.base import Source
from flinkplus.sources.generator import Generator
from flinkplus.sources.parquet import StagedParquet
from flinkplus.sources.text import TextFiles
from flinkplus.state.durable.ownership import Resume
from flinkplus.state.files import absolute


@names_callers_line
class StreamEnvironment:
    """Draws one job on a SparkSession and runs it. The options are those of ``flinkplus.JobOptions``.

    Raises ``ConfigurationError`` for an option that cannot work.
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

    # --- sources

    def from_spark(self, df: DataFrame, *, name: str | None = None, repeat: int = 1) -> Stream:
        """The rows of a batch DataFrame, staged by Spark as replayable splits when the job is executed.

        Each subtask reads one contiguous range of the rows, in the order of the DataFrame; its partitions stay as they
        are. ``repeat``: how many times the rows are read. Raises ``ConfigurationError`` for a streaming DataFrame, and
        names a column of a type that cannot be staged.
        """
        check_dataframe(df)
        name = self.name_for("spark", name)
        schema = arrow_schema_of(df)
        self._frames[name] = df
        errors = self.options.encoding_errors
        return self._source(StagedParquet(name=name, files=(), schema=schema, repeat=repeat, errors=errors))

    def read_text(
        self, path: str | os.PathLike[str], *, name: str | None = None, repeat: int = 1, errors: str | None = None
    ) -> Stream:
        """The lines of a text file, directory or glob, as ``value string``, read by the slots themselves.

        ``errors``: ``'replace'`` (and count) or ``'strict'`` for bytes that are not UTF-8. Raises ``InputError``
        when there is nothing to read.
        """
        name = self.name_for("text", name)
        errors = errors or self.options.encoding_errors
        source = TextFiles(name=name, path=absolute(os.fspath(path)), repeat=repeat, errors=errors)
        return self._source(source.planned())

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
        """Rows made by ``function(i)`` for i = 0, 1, ...; with ``batches``, ``function(start, n)`` returns a record
        batch.

        ``count``: how many rows (``None``: without end); ``rate``: rows per second over all subtasks. The function
        must be a pure function of its arguments, or replay is not exact.
        """
        name = self.name_for("generator", name)
        generator = Generator(name=name, fn=function, schema=parse_schema(schema), count=count, batches=batches)
        stream = self._source(generator)
        return stream if rate is None else stream.throttle(rate)

    def _source(self, source: Source) -> Stream:
        node = self.graph.add(Node(source.name, "source", source, source.schema), None, None)
        return Stream(self, node, source.schema)

    # --- used by streams

    def name_for(self, kind: str, name: str | None) -> str:
        """The user's name for an operator, or one made up from its kind: ``map``, ``map-2``."""
        if name is not None:
            return name
        taken = {node.name for node in self.graph.nodes}
        number = self._counts.get(kind, 0) + 1
        while (made := kind if number == 1 else f"{kind}-{number}") in taken:
            number += 1
        self._counts[kind] = number
        return made

    def throttle(self, origins: tuple[int, ...], rows_per_s: float) -> None:
        """Note a rate at a stream's only origin; see ``Stream.throttle``."""
        node = origins[0]
        vertex = next(v for v in self.graph.fuse_draft() if node in v.nodes)
        if not vertex.is_source or len(origins) > 1:
            raise ConfigurationError("throttle must stand before the first key_by or union, fused with its source")
        if any(self.graph.nodes[i].rate is not None for i in vertex.nodes):
            raise ConfigurationError(f"{vertex.name!r} is throttled already")
        self.graph.nodes[node].rate = rows_per_s

    # --- running

    def execute(self, name: str, *, resume: Resume = False, trust: bool = False) -> JobHandle:
        """Start the job; returns its handle at once.

        ``resume``: ``False`` begins a new job; ``True`` continues from the last complete checkpoint in
        ``checkpoint_dir``; ``"auto"`` does either: it starts the job if it has not begun, continues it if it has, and
        returns a handle in state ``finished``, without running anything, if it has finished. So the same command can
        be repeated until it succeeds (``docs/operations.md``). ``trust``: also continue a job that was signed
        with another key, on another machine or by another user. This runs its author's code (``docs/security.md``).

        Raises ``ConfigurationError``, ``InsufficientSlots``, ``OutputDirectoryError``, ``CheckpointDirectoryError`` or
        ``InputError`` when it cannot start; ``JobRunsElsewhere`` when another driver runs the job;
        ``UntrustedCheckpoint`` when what is to be continued was signed with another key, or not at all.
        """
        if self._executed:
            raise ConfigurationError("this environment was executed already; draw the next job with a new one")
        if resume not in (True, False, "auto"):
            raise ConfigurationError(f"resume must be True, False or 'auto', not {resume!r}")
        self.graph.fuse()
        self._check_functions()
        running = start_job(
            self.spark, name, self.graph, self.options, self._frames, self.output_id, resume=resume, trust=trust
        )
        self._executed = True
        return JobHandle(running)

    def _check_functions(self) -> None:
        """Raises ``ConfigurationError`` for an operator whose function cannot be sent to the slots."""
        for node in self.graph.nodes:
            try:
                cloudpickle.dumps(node.body)
            except Exception as error:  # pickling fails with many kinds of errors
                raise ConfigurationError(
                    f"operator {node.name!r} cannot be sent to the slots: {error}; let its function make what it needs"
                ) from error

    @staticmethod
    def resume(
        spark: SparkSession,
        checkpoint_dir: str | os.PathLike[str],
        *,
        trust: bool = False,
        name: str | None = None,
        **options: Unpack[RunOptions],
    ) -> JobHandle:
        """Continue the job whose checkpoints are in ``checkpoint_dir``, as it was drawn, from its last complete
        checkpoint.

        ``options``: settings of this run; the parallelism cannot change.
        ``trust``: as in ``execute``.
        ``name``: the name that the job must have; ``None``: any.

        Raises ``CheckpointDirectoryError`` when the directory has nothing to resume, or a job with another name;
        ``UntrustedCheckpoint`` when the job is not signed with the key here (option ``signing_key``).
        """
        found = find_job(os.fspath(checkpoint_dir), options.get("signing_key"), trust, name)
        return JobHandle(resume_job(spark, found, dict(options)))
