"""A reader of a directory, driven as a subtask drives it: chooses, reads, and repeats what was chosen."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from flinkplus.sources.files.reader import FilesReader
from flinkplus.sources.files.reading import file_format
from flinkplus.sources.files.source import DirectoryFiles

PATIENCE_S = 5.0
CSV = {"header": True, "delimiter": ",", "quote": '"', "multiline": False}


@dataclass(frozen=True)
class Step:
    """``before``: the position at its begin."""

    before: Any
    choice: int
    rows: list[dict[str, Any]] | None


@dataclass
class Driven:
    """``steps``: what was done."""

    source: DirectoryFiles
    index: int = 0
    parallelism: int = 1
    position: Any = None
    steps: list[Step] = field(default_factory=list)
    opened: ClassVar[list[Driven]] = []
    """Those that were not closed."""

    def __post_init__(self) -> None:
        self.opened.append(self)
        self._event = threading.Event()
        self.errors: list[Exception] = []
        self.reader: FilesReader = self.source.reader(self.index, self.parallelism)
        self.reader.open(self.position)
        before = set(threading.enumerate())
        self.reader.begin(self._woken)
        self._threads = set(threading.enumerate()) - before

    def _woken(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(error)
        self._event.set()

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """What ``condition`` gives when it is not ``None`` or false; asked again whenever the reader wakes."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            self._event.clear()
            found = condition()
            if self.errors:
                raise self.errors[0]
            if found is not None and found is not False:
                return found
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s: {what}"
            self._event.wait(1.0)

    def step(self, max_rows: int = 7) -> list[dict[str, Any]] | None:
        """Choose and read; ``None`` at the end of the source."""
        return self.read(self.until(lambda: self.reader.choose(max_rows), "a choice"), max_rows)

    def read(self, choice: int, max_rows: int | None = None) -> list[dict[str, Any]] | None:
        before = json.loads(json.dumps(self.reader.position()))
        self.until(lambda: self.reader.can_read(choice), f"choice {choice}")
        batch = self.reader.read(choice)
        rows = None
        if batch is not None:
            batch.validate(full=True)
            assert batch.schema == self.source.schema
            assert batch.num_rows <= self.reader.rows_of(choice) <= (max_rows or self.reader.rows_of(choice))
            rows = batch.to_pylist()
        self.steps.append(Step(before, choice, rows))
        return rows

    def rows(self, count: int, max_rows: int = 7) -> list[dict[str, Any]]:
        """At least so many rows."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            more = self.step(max_rows)
            assert more is not None, "the source has ended"
            found += more
        return found

    def all_rows(self, max_rows: int = 7) -> list[dict[str, Any]]:
        """Those up to the end of a source that has one."""
        found: list[dict[str, Any]] = []
        while (more := self.step(max_rows)) is not None:
            found += more
        return found

    def idle(self, listings: int = 2) -> None:
        """So many listings later there is nothing to read."""
        backlog = self.reader._backlog
        until = backlog.listings + listings

        def waited() -> bool:
            while (choice := self.reader.choose(7)) is not None:
                assert not self.read(choice)  # the end of a file may be a step of its own
            return backlog.listings >= until

        self.until(waited, "listings")

    def close(self) -> None:
        self.opened.remove(self)
        self.reader.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), f"{thread.name} of a closed reader"


def source_of(path: Path | str, form: str = "text", schema: str | None = None, **options: Any) -> DirectoryFiles:
    """A source as ``read_files`` makes it, which lists quickly."""
    csv = {name: options.pop(name, value) for name, value in CSV.items()}
    errors, on_error = options.pop("errors", "replace"), options.pop("on_error", "fail")
    chunk = options.pop("chunk_bytes", None)
    made = file_format("files", form, schema, errors, on_error, csv)
    if chunk is not None:
        object.__setattr__(made, "chunk_bytes", chunk)
    return DirectoryFiles(name="files", path=str(path), form=made, **{"poll_s": 0.02, **options})


def put(path: Path, content: str | bytes, mtime_s: float | None = None) -> Path:
    """A file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.part")
    hidden.write_bytes(content if isinstance(content, bytes) else content.encode())
    if mtime_s is not None:
        os.utime(hidden, (mtime_s, mtime_s))
    hidden.rename(path)
    return path


def repeated(steps: list[Step], source: DirectoryFiles, index: int = 0, parallelism: int = 1) -> None:
    """From the position before each step, a new reader repeats all steps from there on, to the same rows."""
    for at in range(len(steps)):
        again = Driven(source, index, parallelism, steps[at].before)
        try:
            for step in steps[at:]:
                assert again.read(step.choice) == step.rows
                assert metrics_of(again.steps[-1].before) == metrics_of(step.before)
        finally:
            again.close()


def metrics_of(position: Any) -> dict[str, int]:
    return {name: position[name] for name in ("rows", "invalid_rows", "invalid_lines")}
