"""Polls a Delta table: version after version, by the JSON of its log and the Parquet files that this adds.

A version's rows become visible together. No version may take a file away or leave a number out, a file may not go or
change, and what the log says of a file must be so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .files import PAUSE_S, read_rows
from .history import RETRACTED, TORN, History, Row

LOG = "_delta_log"
DIGITS = 20
CHECK_S = 0.5


@dataclass
class _Added:
    """A file of the table. ``size``: in bytes, as the log says."""

    version: int
    size: int
    rows: int


class DeltaWatch:
    """Polls the table in ``directory``."""

    def __init__(self, history: History, directory: Path) -> None:
        self._history = history
        self._directory = directory
        self._log = directory / LOG
        self._next = 0
        self._files: dict[str, _Added] = {}
        self._texts: dict[int, str] = {}
        self._checked_s = 0.0
        self.looks = 0

    def look(self) -> None:
        time.sleep(PAUSE_S)
        versions = self._versions()
        if versions:
            self.looks += 1
        for version in (version for version in versions if version >= self._next):
            if version > self._next:
                self._history.note(TORN, f"version {version} is there, and version {self._next} is not")
            self._next = version + 1
            self._take(version)
        if time.monotonic() > self._checked_s + CHECK_S:
            self._checked_s = time.monotonic()
            self._check_files()

    def look_at_all(self) -> bool:
        self.look()
        if not self._next:
            return False
        for version, text in self._texts.items():
            now = self._text(version)
            if now != text:
                self._history.note(RETRACTED, f"version {version} {'has changed' if now else 'is gone'}")
        self._check_files()
        self._history.compare(row for path in sorted(self._files) for row in self._rows(path))
        return True

    def close(self) -> None:
        return None

    def _versions(self) -> list[int]:
        try:
            names = [path.stem for path in self._log.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if len(name) == DIGITS and name.isdecimal())

    def _text(self, version: int) -> str:
        """Empty: it is not there."""
        try:
            return (self._log / f"{version:0{DIGITS}}.json").read_text()
        except FileNotFoundError:
            return ""

    def _take(self, version: int) -> None:
        """Another version: its rows are visible together."""
        self._texts[version] = self._text(version)
        rows: list[Row] = []
        for kind, action in self._actions(version):
            if kind == "remove":
                gone = self._files.pop(unquote(action["path"]), None)
                self._history.note(RETRACTED, f"version {version} removes {action['path']}", gone.rows if gone else 1)
            if kind == "add":
                rows += self._add(version, action)
        if rows:
            self._history.take(rows)

    def _actions(self, version: int) -> Iterator[tuple[str, Any]]:
        """Kind and content."""
        for line in self._texts[version].splitlines():
            try:
                (action,) = json.loads(line).items()
            except ValueError:
                self._history.note(TORN, f"version {version} has a line that is no action: {line[:100]!r}")
                return
            yield action

    def _add(self, version: int, action: Any) -> list[Row]:
        path = unquote(action["path"])
        if path in self._files:
            self._history.note(TORN, f"version {version} adds {path}, as version {self._files[path].version} does")
            return []
        found = self._rows(path)
        said = json.loads(action.get("stats") or "{}").get("numRecords")
        if said is not None and said != len(found):
            self._history.note(TORN, f"version {version} says {said} rows of {path}, which has {len(found)}")
        self._files[path] = _Added(version, action["size"], len(found))
        return found

    def _rows(self, path: str) -> list[Row]:
        return read_rows(self._directory / path, self._history)

    def _check_files(self) -> None:
        """Files of the table that have gone or changed; each is noted once."""
        for path, added in list(self._files.items()):
            try:
                size = (self._directory / path).stat().st_size
            except FileNotFoundError:
                self._history.note(RETRACTED, f"{path} of version {added.version} is gone", max(added.rows, 1))
                del self._files[path]
                continue
            if size != added.size:
                self._history.note(TORN, f"{path} has {size} bytes, and version {added.version} says {added.size}")
                added.size = size
