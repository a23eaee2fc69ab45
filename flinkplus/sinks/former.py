"""The sinks of the program that a checkpoint is of, by their descriptions: only to commit what it has staged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import OperatorContext
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks import foreach_batch
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter, not_yet_committed
from flinkplus.sinks.delta import sink as delta
from flinkplus.sinks.delta.committer import application
from flinkplus.sinks.delta.location import StorageOptions, TableLocation
from flinkplus.sinks.delta.table import DeltaOutput, version_of
from flinkplus.sinks.earlier import OutputForm
from flinkplus.sinks.file_committer import FileCommitter
from flinkplus.sinks.file_names import staging_directory, table_staging
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.kafka import cluster as kafka
from flinkplus.sinks.postgres import connecting as postgres
from flinkplus.sinks.staging import StagingFolder


@dataclass(frozen=True)
class FormerSink(Sink):
    """A sink of before. ``path``: the directory where its output is staged."""

    path: str

    @override
    def writer(self, context: OperatorContext, generation: int) -> SinkWriter:
        raise ConfigurationError(f"sink {self.name!r} belongs to the program before, and takes no rows")


class FormerFileSink(FormerSink):
    """A file sink of before; ``path`` is its directory."""

    @override
    def committer(self) -> SinkCommitter:
        """Commits and retracts; ``finish`` is for the sinks of the program that runs."""
        return FileCommitter(OutputFiles(self.path), self.job_id, self.name, OutputForm())


@dataclass(frozen=True)
class FormerStagedSink(FormerSink):
    """A sink of before whose output needs what is not known here, such as a password or a function. ``path`` is the
    directory where its rows are staged. ``staging``: the folder below it with those that wait."""

    staging: str

    @override
    def committer(self) -> SinkCommitter:
        return _FormerStagedCommitter(self)


class _FormerStagedCommitter(SinkCommitter):
    """Finds out whether all is committed: staged files are removed after that."""

    def __init__(self, sink: FormerStagedSink) -> None:
        self._sink = sink
        self._files = OutputFiles(sink.path)
        self._staging = StagingFolder(self._files, sink.staging)

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._files.check = check

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        if self._waits(files):
            raise ConfigurationError(
                f"sink {self._sink.name!r} is gone, and output of checkpoint {checkpoint} waits to be committed by it: "
                "resume the program before, and stop it, which commits; then resume the new one"
            )

    def _waits(self, files: Sequence[StagedFile]) -> bool:
        """Whether some of ``files`` are not committed."""
        return any(self._files.info(self._staging.path(file.name)) is not None for file in files)

    @override
    def retract_after(self, checkpoint: int | None) -> None:
        """What is staged later goes with ``discard``; the table stays as it is."""

    @override
    def discard(self) -> None:
        self._staging.discard()


class FormerDeltaSink(FormerStagedSink):
    """A sink of before that wrote to the Delta table at ``path``."""

    @override
    def committer(self) -> SinkCommitter:
        return _FormerDeltaCommitter(self)


class _FormerDeltaCommitter(_FormerStagedCommitter):
    """As for other tables, but the table says what is committed: its files leave the staging folder before that."""

    @override
    def _waits(self, files: Sequence[StagedFile]) -> bool:
        if not files:
            return False
        location = TableLocation.of(self._sink.path, StorageOptions())
        table = DeltaOutput(location, pa.schema([]), (), merge=False).load()
        known = None if table is None else version_of(table, application(self._sink.job_id))
        return bool(not_yet_committed(files, known or 0))


def former_sink(
    name: str, settings: dict[str, Any], job_id: str, checkpoint_dir: str, follower: Sink | None = None
) -> Sink | None:
    """The sink of these settings; ``None`` for one without a location, whose output is not known.

    ``follower``: the sink of the new program that continues the output; only it can connect to a database.
    """
    where = str(settings.get(LOCATION, ""))
    if not where:
        return None
    if not where.startswith((postgres.SCHEME, delta.SCHEME, foreach_batch.SCHEME, kafka.SCHEME)):
        return FormerFileSink(name, where, job_id=job_id)
    if follower is not None:
        return follower
    if where.startswith(delta.SCHEME):
        return FormerDeltaSink(name, where.removeprefix(delta.SCHEME), staging_directory(job_id), job_id=job_id)
    place = where.removeprefix(postgres.SCHEME)
    return FormerStagedSink(name, checkpoint_dir, table_staging(job_id, place), job_id=job_id)
