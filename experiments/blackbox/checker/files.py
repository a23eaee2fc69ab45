"""Polls a directory of Parquet files as Spark reads it: those files are visible that ``_spark_metadata`` names."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq

from .history import RETRACTED, TORN, History, Row

LOG = "_spark_metadata"
COMPACT = ".compact"
PAUSE_S = 0.02
TRIES = 20


class FilesWatch:
    """Polls the files of ``directory``."""

    def __init__(self, history: History, directory: Path) -> None:
        self._history = history
        self._directory = directory
        self._visible: dict[str, int] = {}
        self.looks = 0

    def look(self) -> None:
        time.sleep(PAUSE_S)
        listed = self._listed()
        if listed is None:
            return
        self.looks += 1
        for path in self._visible.keys() - listed.keys():
            self._history.note(RETRACTED, f"{path} is no longer listed", self._visible.pop(path))
        rows: list[Row] = []
        for path in listed.keys() - self._visible.keys():
            found = read_rows(path, self._history)
            self._visible[path] = len(found)
            rows += found
        if rows:
            self._history.take(rows)

    def look_at_all(self) -> bool:
        listed = self._listed()
        if listed is None:
            return False
        self.look()
        self._history.compare(row for path in sorted(self._visible) for row in read_rows(path, self._history))
        return True

    def close(self) -> None:
        return None

    def _listed(self) -> dict[str, None] | None:
        """The paths of all visible files; ``None``: there is no list yet."""
        for _ in range(TRIES):
            try:
                return dict.fromkeys(self._entries())
            except FileNotFoundError:  # between two looks at the directory a file was replaced by a later one
                time.sleep(PAUSE_S)
        return None

    def _entries(self) -> Iterator[str]:
        names = [path.name for path in (self._directory / LOG).iterdir() if not path.name.startswith(".")]
        numbers = {int(name.removesuffix(COMPACT)): name for name in names if name.removesuffix(COMPACT).isdecimal()}
        if not numbers:
            raise FileNotFoundError(self._directory / LOG)
        compacted = max((number for number, name in numbers.items() if name.endswith(COMPACT)), default=0)
        for number in sorted(number for number in numbers if number >= compacted):
            version, *lines = (self._directory / LOG / numbers[number]).read_text().split("\n")
            if version != "v1":
                self._history.note(TORN, f"batch {number} of the list has no version")
            for line in lines:
                if line:
                    yield unquote(urlparse(json.loads(line)["path"]).path)


def read_rows(path: Path | str, history: History) -> list[Row]:
    """The rows of a Parquet file that is visible. One that cannot be read is noted."""
    try:
        table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowInvalid) as error:
        history.note(TORN, f"{path} is listed, and cannot be read: {error}")
        return []
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    nothing = [0] * table.num_rows
    fields = (columns.get(name, nothing) for name in Row._fields)
    return [Row(*values) for values in zip(*fields, strict=True)]
