"""Where the batches of a streaming DataFrame are staged: written by the driver, read by the slots.

``batches/NUMBER-RANDOM/``: the Parquet files of a batch. ``ready/NUMBER.json``: the batch is complete, and this folder
has its rows. ``ready/end.json``: there will be no more. ``query/``: the checkpoints of Spark's streaming query.

Rules: a batch without rows is not there. A file in ``ready`` appears whole, and never changes; batches are completed in
ascending order. A batch that was begun and not completed has a folder that nothing names.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from flinkplus.errors import InputError
from flinkplus.sources.parquet import RowRange, StagedParquet, row_ranges
from flinkplus.state.file_system import filesystem_of, open_directory

BATCH_FORMAT = 1
QUERY = "query"
_READY_FILE = re.compile(r"ready/(\d{20})\.json")
_BATCHES, _READY, _END = "batches", "ready", "ready/end.json"


@dataclass(frozen=True)
class ReadyBatch:
    """A complete batch.

    ``files``: its files, below its folder, with the rows of their row groups.
    ``rows``, ``size`` in bytes: of the batch; ``rows_so_far``: of all batches up to this one.
    """

    number: int
    folder: str
    files: tuple[tuple[str, tuple[int, ...]], ...]
    rows: int
    size: int
    rows_so_far: int

    def to_json(self) -> bytes:
        document = {
            "format": BATCH_FORMAT,
            **vars(self),
            "files": [[name, list(groups)] for name, groups in self.files],
        }
        return json.dumps(document, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> ReadyBatch:
        """Raises ``ValueError`` for what is none."""
        document = json.loads(data)
        if not isinstance(document, dict) or document.pop("format", None) != BATCH_FORMAT:
            raise ValueError("not a staged batch of this version")
        try:
            files = tuple((str(name), tuple(map(int, groups))) for name, groups in document.pop("files"))
            return cls(files=files, **document)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a staged batch: {error}") from error

    def ranges(self, location: str, start: int, end: int) -> list[RowRange]:
        """The rows ``start`` to ``end`` - 1, as ranges of row groups. ``location``: of the area."""
        names = [f"{location}/{_BATCHES}/{self.folder}/{name}" for name, _ in self.files]
        return row_ranges(names, [groups for _, groups in self.files], start, end)


class StagingArea:
    """The area at ``location``, a local path or a URI. Any thread may call anything. Raises ``OSError``."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._files = open_directory(self.location)
        filesystem, self._root = filesystem_of(self.location)
        self._fs = filesystem
        self.is_local = isinstance(filesystem, fs.LocalFileSystem)

    # --- for readers

    def ready(self) -> tuple[list[int], bool]:
        """The numbers of the complete batches, in ascending order, and whether there will be no more."""
        names = self._files.names(_READY)
        found = filter(None, map(_READY_FILE.fullmatch, names))  # others are being written
        return sorted(int(name[1]) for name in found), _END in names

    def read(self, number: int) -> ReadyBatch:
        """A complete batch. Raises ``InputError`` when it is damaged."""
        try:
            return ReadyBatch.from_json(self._files.read(_ready(number)))
        except ValueError as error:
            raise InputError(f"{self.location}/{_ready(number)} is damaged: {error}") from error

    # --- for the driver

    def new_folder(self, number: int) -> tuple[str, str]:
        """The name of a new folder for a batch, and its place."""
        folder = f"{number:020d}-{secrets.token_hex(4)}"
        return folder, f"{self.location}/{_BATCHES}/{folder}"

    def complete(
        self, number: int, folder: str, schema: pa.Schema, before: int, check: Callable[[], None]
    ) -> ReadyBatch | None:
        """Make the batch in a folder visible; ``None``, and it is removed, if it has no rows.

        ``before``: rows of all batches before it. ``check``: called before it becomes visible; may raise.
        """
        place = f"{self.location}/{_BATCHES}/{folder}"
        staged = StagedParquet("batch", (), schema).staged_at(place)
        assert staged.groups is not None
        files = tuple(
            (name.rpartition("/")[2], g) for name, g in zip(staged.files, staged.groups, strict=True) if sum(g)
        )
        rows = sum(sum(groups) for _, groups in files)
        if not rows:
            self._remove(folder)
            return None
        size = sum(self._files.sizes(f"{_BATCHES}/{folder}").values())
        batch = ReadyBatch(number, folder, files, rows, size, before + rows)
        self._files.write(_ready(number), batch.to_json(), check)
        return batch

    def end(self, check: Callable[[], None]) -> None:
        """There will be no more batches."""
        self._files.write(_END, b"{}", check)

    def remove(self, batch: ReadyBatch) -> None:
        """Remove a batch that nothing needs. May be repeated."""
        self._files.delete(_ready(batch.number))
        self._remove(batch.folder)

    def remove_incomplete(self) -> None:
        """Remove the folders of batches that were not completed."""
        numbers, _ = self.ready()
        kept = {self.read(number).folder for number in numbers}
        selector = fs.FileSelector(f"{self._root}/{_BATCHES}", allow_not_found=True)
        for info in self._fs.get_file_info(selector):
            if info.base_name not in kept:
                self._remove(info.base_name)

    def _remove(self, folder: str) -> None:
        path = f"{self._root}/{_BATCHES}/{folder}"
        if self._fs.get_file_info(path).type != fs.FileType.NotFound:
            self._fs.delete_dir(path)


def _ready(number: int) -> str:
    return f"{_READY}/{number:020d}.json"
