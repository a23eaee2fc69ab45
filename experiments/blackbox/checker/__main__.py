"""``python -m checker``: watches an output until stdin ends, and then checks that everything is there.

Stdin: one line of JSON with ``input`` (the fields of ``history.Input``), ``status`` (a file), and either ``dsn`` and
``table``; or ``directory``, of Parquet files as Spark reads them; or ``delta``, the directory of a table. ``status`` is
replaced a few times a second; it has ``rows``, ``looks``, ``found`` (kind -> how often), ``examples``, and ``done``. A
line ``unfinished`` on stdin before its end: the job has not come to its end, so rows may be missing.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

from .delta import DeltaWatch
from .files import FilesWatch
from .history import History, Input
from .table import TableWatch, Watch

STATUS_S = 0.1
POLL_S = 0.005
UNFINISHED = "unfinished"
LAST_LOOK_S = 30.0


def main() -> None:
    given = json.loads(sys.stdin.readline())
    history = History(Input(**given["input"]))
    watch = _watch(given, history)
    status = Path(given["status"])
    written_s, finished, more = 0.0, True, True
    while more:
        watch.look()
        if time.monotonic() > written_s + STATUS_S:
            written_s = time.monotonic()
            _write(status, history, watch, done=False)
        if select.select([sys.stdin], [], [], POLL_S)[0]:
            line = sys.stdin.readline()
            finished = finished and line.strip() != UNFINISHED
            more = bool(line)
    until_s = time.monotonic() + LAST_LOOK_S
    while not watch.look_at_all():
        if time.monotonic() > until_s:
            raise TimeoutError("the output cannot be read at the end")
    if finished:
        history.end()
    watch.close()
    _write(status, history, watch, done=True)


def _watch(given: dict[str, Any], history: History) -> Watch:
    if "dsn" in given:
        return TableWatch(history, given["dsn"], given["table"])
    if "delta" in given:
        return DeltaWatch(history, Path(given["delta"]))
    return FilesWatch(history, Path(given["directory"]))


def _write(path: Path, history: History, watch: Watch, *, done: bool) -> None:
    known: dict[str, Any] = {
        "rows": len(history.known),
        "looks": watch.looks,
        "found": history.found,
        "examples": history.examples,
        "done": done,
    }
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(known))
    os.replace(beside, path)


if __name__ == "__main__":
    main()
