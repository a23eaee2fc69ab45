"""What all file sinks share, and their writer: one file per checkpoint and partition, opened at its first row.

A file is written under an ``open-`` name in the job's staging directory. When it is staged it takes no more rows; what
is left to be encoded is encoded beside the stream, and then it gets its final name. A checkpoint without rows stages no
file.

A file is *closed* before its checkpoint, while the stream waits, when it has ``max_file_bytes``, or when too many
files are open: of ``MAX_OPEN_FILES`` partitions the one that has had no rows for longest. It is staged with the others.

No file spans checkpoints. Its rows become visible with their checkpoint, and a subtask that goes back to a checkpoint
could not go back within a Parquet file, whose end says where everything is.

Small batches are gathered and encoded together, and with partitions divided together: that costs the same whether a
batch has ten rows or a thousand. With more partitions than open files more is gathered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import Self, override

from flinkplus.errors import InvariantViolation
from flinkplus.operators.base.columns import SMALL_ROWS, merge, plain
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter
from flinkplus.sinks.earlier import OutputForm
from flinkplus.sinks.file_committer import FileCommitter
from flinkplus.sinks.file_names import OpenName, PartName, job_tag, staging_directory, table_staging
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.partitions import divided, without_partitions

GATHERED_BATCHES = 128
GATHERED_BYTES = 1 << 20
MAX_OPEN_FILES = 32
"""Of one subtask: each holds rows that are not encoded, and a handle."""
GATHERED_FOR_MANY = 16
"""Times as much is gathered before rows are divided, once the partitions are more than the open files: each division
then begins a file for almost every one of them."""
SMALLEST_FILE_BYTES = 1 << 20


class Encoder(ABC):
    """Turns record batches into the bytes of one file. The stream belongs to the caller."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of exactly the file's schema."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left."""


@dataclass(frozen=True)
class FileSink(Sink):
    """Writes files to the directory ``path`` (local, or a ``pyarrow.fs`` URI).

    ``partition_by``: columns by whose values the files are in folders. ``max_file_bytes``: a file that has them takes
    no more rows. ``append``: the directory may hold other data.
    """

    suffix: ClassVar[str]
    path: str
    partition_by: tuple[str, ...] = field(default=(), kw_only=True)
    max_file_bytes: int | None = field(default=None, kw_only=True)
    append: bool = field(default=False, kw_only=True)

    @property
    def file_schema(self) -> pa.Schema:
        """Of the files: without the columns that are in the names of folders."""
        return without_partitions(self.bound_schema, self.partition_by)

    @property
    def staging(self) -> str:
        """The folder below ``path`` for what is not committed."""
        return staging_directory(self.job_id)

    @abstractmethod
    def encoder(self, stream: Any, schema: pa.Schema) -> Encoder:
        """Begins a file of rows of ``schema`` on ``stream``."""

    def settings(self) -> Mapping[str, JsonValue]:
        partitions: dict[str, JsonValue] = {"partition_by": ", ".join(self.partition_by)} if self.partition_by else {}
        return {LOCATION: self.path, **partitions}

    def writer(self, context: OperatorContext, generation: int) -> FileSinkWriter:
        return FileSinkWriter(self, context, generation)

    def committer(self) -> SinkCommitter:
        empty = pa.BufferOutputStream()
        self.encoder(empty, self.bound_schema).finish()
        form = OutputForm(self.suffix, self.partition_by, empty.getvalue().to_pybytes(), self.append, self.why_other)
        return FileCommitter(OutputFiles(self.path), self.job_id, self.name, form)

    def why_other(self, content: Any) -> str:
        """Why a file of another program cannot be in one directory with this output; empty: it can. ``content``: the
        file, as a ``pyarrow.NativeFile``."""
        return ""


@dataclass(slots=True, eq=False)
class _File:
    """A file of ``folder`` that is not finished. ``name``: as it is staged, once it takes no more rows. ``bytes``: its
    size, once it is closed."""

    path: str
    folder: str
    number: int
    stream: Any
    encoder: Encoder | None = None
    name: str = ""
    rows: int = 0
    bytes: int | None = None
    gathered: list[pa.RecordBatch] = field(default_factory=list)
    gathered_bytes: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        assert self.encoder is not None
        self.rows += batch.num_rows
        size = batch.get_total_buffer_size()
        if batch.num_rows > SMALL_ROWS or size > GATHERED_BYTES:
            self._encode_gathered()
            self.encoder.write(batch)
            return
        self.gathered.append(batch)
        self.gathered_bytes += size
        if len(self.gathered) >= GATHERED_BATCHES or self.gathered_bytes >= GATHERED_BYTES:
            self._encode_gathered()

    def _encode_gathered(self) -> None:
        assert self.encoder is not None
        if self.gathered:
            self.encoder.write(merge(self.gathered))
        self.gathered, self.gathered_bytes = [], 0

    def finish(self) -> int:
        """Encode what is left, and close it; returns its size in bytes."""
        if self.bytes is None:
            assert self.encoder is not None
            self._encode_gathered()
            self.encoder.finish()
            size = self.stream.tell()
            self.stream.close()
            self.bytes, self.encoder = size, None
        return self.bytes

    def give_up(self) -> None:
        """Close it as it is. An encoder may write its end when it goes, so it goes before its stream is closed."""
        self.encoder = None
        self.stream.close()


@dataclass(frozen=True)
class StagedSink(FileSink):
    """Its rows go to a far end that is no directory. Until they do, their files are staged in ``path``: the checkpoint
    directory."""

    path: str = ""

    @property
    @abstractmethod
    def place(self) -> str:
        """The far end, for users."""

    @property
    @override
    def staging(self) -> str:
        if not self.path:
            raise InvariantViolation(f"sink {self.name!r} is used before it knows the checkpoint directory")
        return table_staging(self.job_id, self.place)

    @override
    def staged_in(self, checkpoint_dir: str) -> Self:
        return replace(self, path=checkpoint_dir)


class FileSinkWriter(SinkWriter):
    """Writes the files of one subtask in one generation."""

    def __init__(self, sink: FileSink, context: OperatorContext, generation: int) -> None:
        self._sink = sink
        self._files = OutputFiles(sink.path)
        self._staging = sink.staging
        self._job = job_tag(sink.job_id)
        self._rows_schema, self._schema = sink.bound_schema, sink.file_schema
        self._partition_by, self._max_bytes = sink.partition_by, sink.max_file_bytes
        self._subtask = context.index
        self._generation = generation
        self._staged: dict[str, StagedFile] = {}
        self._set_aside: deque[_File] = deque()
        self._failure: Exception | None = None
        self._number = 0
        self._open: dict[str, _File] = {}  # by folder; the one that has had rows last is the last one
        self._closed: list[_File] = []  # since the last checkpoint
        self._undivided: list[pa.RecordBatch] = []  # with partitions: rows that are in no file yet
        self._undivided_bytes = 0
        self._times_gathered = 1

    def write(self, batch: pa.RecordBatch) -> None:
        self._check()
        if batch.num_rows == 0:
            return
        rows = plain(batch, self._rows_schema)
        if not self._partition_by:
            self._write("", rows)
            return
        self._undivided.append(rows)
        self._undivided_bytes += rows.get_total_buffer_size()
        times = self._times_gathered
        if len(self._undivided) >= GATHERED_BATCHES * times or self._undivided_bytes >= GATHERED_BYTES * times:
            self._divide()

    def _divide(self) -> None:
        """Write the rows that were gathered to the files of their partitions."""
        if self._undivided:
            for folder, rows in divided(merge(self._undivided), self._partition_by):
                self._write(folder, rows)
        self._undivided, self._undivided_bytes = [], 0

    def _write(self, folder: str, rows: pa.RecordBatch) -> None:
        file = self._open.get(folder)
        if file is None:
            file = self._begin(folder)
        elif len(self._open) > 1:
            self._open[folder] = self._open.pop(folder)
        file.write(rows)
        if self._max_bytes is not None and file.stream.tell() >= self._max_bytes:
            self._close_early(folder)

    def _begin(self, folder: str) -> _File:
        if len(self._open) >= MAX_OPEN_FILES:
            self._times_gathered = GATHERED_FOR_MANY
            self._close_early(next(iter(self._open)))
        path = f"{self._staging}/{OpenName(self._subtask, self._generation, self._number).text(self._sink.suffix)}"
        file = self._open[folder] = _File(path, folder, self._number, self._files.open_output(path))
        self._number += 1
        file.encoder = self._sink.encoder(file.stream, self._schema)
        return file

    def _close_early(self, folder: str) -> None:
        file = self._open.pop(folder)
        self._closed.append(file)
        file.finish()

    def _check(self) -> None:
        """Raises what ``settle`` has failed with."""
        if self._failure is not None:
            raise self._failure

    def stage(self, checkpoint: int) -> list[StagedFile]:
        self._check()
        self._divide()
        for file in (*self._closed, *self._open.values()):
            part = PartName(checkpoint, self._subtask, self._generation, file.number, self._job)
            file.name = part.text(self._sink.suffix)
            self._staged[file.name] = StagedFile(
                name=file.name, rows=file.rows, checkpoint=checkpoint, folder=file.folder
            )
            self._set_aside.append(file)
        self._closed, self._open = [], {}
        return list(self._staged.values())

    def settle(self, staged: Sequence[StagedFile]) -> list[StagedFile]:
        self._check()  # what is half written must not be written on
        try:
            while self._set_aside:  # also of later checkpoints, and of aborted ones
                self._finish(self._set_aside[0])
                self._set_aside.popleft()
        except Exception as error:
            self._failure = error
            raise
        return [known for file in staged if (known := self._staged.get(file.name)) is not None]

    def _finish(self, file: _File) -> None:
        size = file.finish()
        self._files.move(file.path, f"{self._staging}/{file.name}")
        if (described := self._staged.get(file.name)) is not None:
            self._staged[file.name] = replace(described, bytes=size)

    def adopt(self, staged: Sequence[StagedFile]) -> None:
        self._staged = {file.name: file for file in staged}

    def checkpoint_complete(self, checkpoint: int) -> None:
        for name in [file.name for file in list(self._staged.values()) if file.checkpoint <= checkpoint]:
            del self._staged[name]  # in place, since another thread may be settling others

    def close(self) -> None:
        left = [*self._closed, *self._open.values()]
        self._closed, self._open = [], {}
        for file in left:
            file.give_up()
            self._files.delete(file.path)
