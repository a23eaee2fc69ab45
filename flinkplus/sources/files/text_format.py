"""Lines of text files, compressed or not, as ``read_text`` reads them: one string column ``value``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from flinkplus.sources.files.directory import InputDirectory
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import CHUNK_BYTES, FileBlock, FileFormat, records_of
from flinkplus.sources.files.seen import SeenFile
from flinkplus.sources.text import SCHEMA, checked_lines, split_lines


@dataclass(frozen=True)
class TextFormat(FileFormat):
    """``strict``: bytes that are not UTF-8 are an error; otherwise they are replaced, and the lines counted."""

    strict: bool = False
    schema: pa.Schema = SCHEMA
    chunk_bytes: int = CHUNK_BYTES

    @override
    def blocks(self, directory: InputDirectory, at: OpenFile[SeenFile]) -> Iterator[FileBlock]:
        for records in records_of(directory, at, self.chunk_bytes):
            mark = int(records.starts[0])  # a byte order mark
            lines, text, starts, _ = split_lines(records.data[mark:])
            begin = int(records.cursors[-1]) - len(records.data) + mark
            lines, repaired = checked_lines(lines, text, begin + starts, records.path, self.strict)
            yield FileBlock(pa.RecordBatch.from_arrays([lines], schema=SCHEMA), records.cursors, repaired=repaired)
