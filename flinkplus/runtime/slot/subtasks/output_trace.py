"""The output of each subtask with a sink over time: a record of time and rows per step, to measure recoveries.

Rules:

- a record is (seconds since the Unix epoch, total rows that the subtask has put out). The rows belong to the state, so
  a subtask that went back counts up again from less; only rows above the highest total so far are *new*;
- a record is in the file when its step is over: one small write, no buffer, so that nothing is lost when the process
  is killed. Some 2 us per step, and nothing at all when no directory is given (option ``trace_output``);
- bounded: a file takes ``MAX_RECORDS`` records, then no more; a warning names ``truncated`` files;
- one file for each subtask and incarnation. The slots and the driver must see the same directory; times are those of
  each slot's own clock, so compare them within one host only.
"""

from __future__ import annotations

import logging
import os
import struct
import time
from pathlib import Path
from urllib.parse import quote, unquote

RECORD = struct.Struct("<dQ")
MAX_RECORDS = 4_000_000
SUFFIX = ".trace"

log = logging.getLogger("flinkplus.trace")


class OutputRecorder:
    """Notes the output of one subtask in one generation. Raises ``OSError`` when its file cannot be made."""

    def __init__(self, directory: str | Path, subtask: str, generation: int, max_records: int = MAX_RECORDS) -> None:
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{quote(subtask, safe='+[]')}@{generation}-{os.getpid()}{SUFFIX}"
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._left = max_records
        self._rows = -1
        self._name = name

    def note(self, rows_out: int) -> None:
        """A step is over and ``rows_out`` rows have been put out in all. Without effect when that is no news."""
        if rows_out == self._rows or self._left <= 0:
            return
        self._rows = rows_out
        self._left -= 1
        os.write(self._file, RECORD.pack(time.time(), rows_out))
        if self._left == 0:
            log.warning("output trace %s is full: later rows are not recorded", self._name)

    def close(self) -> None:
        """The file stays. May be repeated."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._left = 0


def read_traces(directory: str | Path) -> dict[str, list[tuple[float, int]]]:
    """The records of all incarnations of each subtask, by time: ``{"count+out[1]": [(time_s, rows), ...]}``.

    A record that is only half written yet is left out. Empty when nothing was recorded.
    """
    found: dict[str, list[tuple[float, int]]] = {}
    for path in sorted(Path(directory).glob(f"*{SUFFIX}")):
        data = path.read_bytes()
        whole = len(data) - len(data) % RECORD.size
        records = [(float(time_s), int(rows)) for time_s, rows in RECORD.iter_unpack(data[:whole])]
        found.setdefault(unquote(path.name.rpartition("@")[0]), []).extend(records)
    return {subtask: sorted(records, key=lambda record: record[0]) for subtask, records in sorted(found.items())}
