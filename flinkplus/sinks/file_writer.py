"""The subtask's side of the file sinks: one file per checkpoint, opened at its first row.

A file is written under an ``open-`` name in the job's staging directory and gets its final name when it is staged. A
checkpoint without rows stages no file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkplus.operators.columns import plain
from flinkplus.sinks.base import SinkContext, SinkWriter, StagedFile
from flinkplus.sinks.file_names import OpenName, PartName, staging_directory
from flinkplus.sinks.files import OutputFiles


class Encoder(ABC):
    """Turns record batches into the bytes of one file. The stream belongs to the caller."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of exactly the file's schema."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left."""


class FileSinkWriter(SinkWriter):
    """Writes the files of one subtask in one generation; ``new_encoder`` begins a file on a stream."""

    def __init__(
        self,
        files: OutputFiles,
        job_id: str,
        context: SinkContext,
        generation: int,
        schema: pa.Schema,
        suffix: str,
        new_encoder: Callable[[Any], Encoder],
    ) -> None:
        self._files = files
        self._staging = staging_directory(job_id)
        self._subtask = context.index
        self._generation = generation
        self._schema = schema
        self._suffix = suffix
        self._new_encoder = new_encoder
        self._staged: list[StagedFile] = []
        self._number = 0
        self._rows = 0
        self._stream: Any = None
        self._encoder: Encoder | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        if self._encoder is None:
            self._stream = self._files.open_output(self._open_path())
            self._encoder = self._new_encoder(self._stream)
        self._encoder.write(plain(batch, self._schema))
        self._rows += batch.num_rows

    def stage(self, checkpoint: int) -> list[StagedFile]:
        if self._encoder is not None:
            self._encoder.finish()
            size = self._stream.tell()
            self._stream.close()
            name = PartName(checkpoint, self._subtask, self._generation, self._number).text(self._suffix)
            self._files.move(self._open_path(), f"{self._staging}/{name}")
            self._staged.append({"name": name, "rows": self._rows, "bytes": size, "checkpoint": checkpoint})
            self._encoder = self._stream = None
            self._number += 1
            self._rows = 0
        return [dict(file) for file in self._staged]

    def checkpoint_complete(self, checkpoint: int) -> None:
        self._staged = [file for file in self._staged if file["checkpoint"] > checkpoint]

    def close(self) -> None:
        if self._stream is not None:
            self._encoder = None
            self._stream.close()
            self._files.delete(self._open_path())
            self._stream = None

    def _open_path(self) -> str:
        name = OpenName(self._subtask, self._generation, self._number).text(self._suffix)
        return f"{self._staging}/{name}"
