"""What all file sinks share, and their writer: one file per checkpoint, opened at its first row.

A file is written under an ``open-`` name in the job's staging directory. When it is staged it takes no more rows; what
is left to be encoded is encoded beside the stream, and then it gets its final name. A checkpoint without rows stages no
file.

Small batches are gathered and encoded together: to encode one costs the same whether it has ten rows or a thousand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa

from flinkplus.operators.base.columns import SMALL_ROWS, merge, plain
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import Sink, SinkCommitter, SinkWriter
from flinkplus.sinks.file_committer import FileCommitter
from flinkplus.sinks.file_names import OpenName, PartName, staging_directory
from flinkplus.sinks.files import OutputFiles

GATHERED_BATCHES = 128
GATHERED_BYTES = 1 << 20


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
    """Writes files to the directory ``path`` (local, or a ``pyarrow.fs`` URI)."""

    suffix: ClassVar[str]
    path: str

    @property
    def staging(self) -> str:
        """The folder below ``path`` for what is not committed."""
        return staging_directory(self.job_id)

    @abstractmethod
    def encoder(self, stream: Any) -> Encoder:
        """Begins a file on ``stream``."""

    def settings(self) -> Mapping[str, JsonValue]:
        return {LOCATION: self.path}

    def writer(self, context: OperatorContext, generation: int) -> FileSinkWriter:
        return FileSinkWriter(self, context, generation)

    def committer(self) -> SinkCommitter:
        empty = pa.BufferOutputStream()
        self.encoder(empty).finish()
        content = empty.getvalue().to_pybytes()
        return FileCommitter(OutputFiles(self.path), self.job_id, self.name, self.suffix, content)


@dataclass(slots=True, eq=False)
class _File:
    """A file that is not finished. ``name``: as it is staged, once it takes no more rows."""

    path: str
    stream: Any
    encoder: Encoder = field(init=False)
    name: str = ""
    rows: int = 0
    gathered: list[pa.RecordBatch] = field(default_factory=list)
    gathered_bytes: int = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        size = batch.get_total_buffer_size()
        if batch.num_rows > SMALL_ROWS or size > GATHERED_BYTES:
            self.encode_gathered()
            self.encoder.write(batch)
            return
        self.gathered.append(batch)
        self.gathered_bytes += size
        if len(self.gathered) >= GATHERED_BATCHES or self.gathered_bytes >= GATHERED_BYTES:
            self.encode_gathered()

    def encode_gathered(self) -> None:
        if self.gathered:
            self.encoder.write(merge(self.gathered))
        self.gathered, self.gathered_bytes = [], 0


class FileSinkWriter(SinkWriter):
    """Writes the files of one subtask in one generation."""

    def __init__(self, sink: FileSink, context: OperatorContext, generation: int) -> None:
        self._sink = sink
        self._files = OutputFiles(sink.path)
        self._staging = sink.staging
        self._subtask = context.index
        self._generation = generation
        self._staged: dict[str, StagedFile] = {}
        self._set_aside: deque[_File] = deque()
        self._failure: Exception | None = None
        self._number = 0
        self._open: _File | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._check()
        if batch.num_rows == 0:
            return
        if self._open is None:
            name = OpenName(self._subtask, self._generation, self._number).text(self._sink.suffix)
            path = f"{self._staging}/{name}"
            self._open = _File(path, self._files.open_output(path))
            self._open.encoder = self._sink.encoder(self._open.stream)
        self._open.write(plain(batch, self._sink.bound_schema))

    def _check(self) -> None:
        """Raises what ``settle`` has failed with."""
        if self._failure is not None:
            raise self._failure

    def stage(self, checkpoint: int) -> list[StagedFile]:
        self._check()
        if (file := self._open) is not None:
            file.name = PartName(checkpoint, self._subtask, self._generation, self._number).text(self._sink.suffix)
            self._staged[file.name] = StagedFile(name=file.name, rows=file.rows, checkpoint=checkpoint)
            self._set_aside.append(file)
            self._open = None
            self._number += 1
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
        file.encode_gathered()
        file.encoder.finish()
        size = file.stream.tell()
        file.stream.close()
        self._files.move(file.path, f"{self._staging}/{file.name}")
        if (described := self._staged.get(file.name)) is not None:
            self._staged[file.name] = replace(described, bytes=size)

    def adopt(self, staged: Sequence[StagedFile]) -> None:
        self._staged = {file.name: file for file in staged}

    def checkpoint_complete(self, checkpoint: int) -> None:
        for name in [file.name for file in list(self._staged.values()) if file.checkpoint <= checkpoint]:
            del self._staged[name]  # in place, since another thread may be settling others

    def close(self) -> None:
        if (file := self._open) is not None:
            self._open = None
            del file.encoder  # it may write its end when it goes, so it goes before its stream is closed
            file.stream.close()
            self._files.delete(file.path)
