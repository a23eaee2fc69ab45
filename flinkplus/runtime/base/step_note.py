"""A note of the step that a slot is in, which outlives the slot's process.

The slot keeps it in a file that is mapped into memory, so writing it costs a few stores per batch and no system call.
When the process has ended, the process that sends its pulses (``pulse_process``) reads the note and sends it to the
driver as the slot's *last words*. The library ``faulthandler`` adds the signal that ended a process by itself.

Rules: only the slot's loop thread writes. A signal that ends a child process of the slot is not noted. The note names
an operator only while that is working.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from flinkplus.printable import printable

NOTE_FILE, SIGNAL_FILE = "step-note", "fatal-signal"
SIZE_BYTES = 4096
SUBTASK, OPERATOR, EDGE, PRODUCER, SEQ, FIRST_ROW, ROWS, TEXT_BYTES = range(8)
FIELDS = 8
"""Numbers of 8 bytes each. ``SUBTASK``: which one is in a step (0: none), ``OPERATOR``: which one is working (0: none),
both counted from 1. ``EDGE`` (counted from 1; 0: the subtask is a source), ``PRODUCER``, ``SEQ``: the message.
``FIRST_ROW``, ``ROWS``: of the operator's input. ``TEXT_BYTES``: length of the text after the numbers."""
NUMBERS = struct.Struct(f"={FIELDS}Q")
TEXT_AT = 128
MAX_TEXT_BYTES = 300

Numbers: TypeAlias = "list[int] | memoryview[int]"
"""Operators write their place into these."""


def no_note() -> Numbers:
    """Numbers that no process reads."""
    return [0] * FIELDS


@dataclass(frozen=True, slots=True)
class LastWords:
    """The note of an ended process. ``name``: of its pulse. ``numbers``: ``FIELDS``. ``signal``: empty if unknown."""

    name: str
    numbers: tuple[int, ...]
    text: str
    signal: str


class StepNote:
    """The slot's end, in its scratch directory. Raises ``OSError``."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NOTE_FILE
        self.signal_path = directory / SIGNAL_FILE
        directory.mkdir(parents=True, exist_ok=True)  # the driver may just have removed the job's directory
        self.path.write_bytes(bytes(SIZE_BYTES))
        self._signal_file: IO[bytes] = self.signal_path.open("wb")
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SIZE_BYTES)
        self.numbers: memoryview[int] = memoryview(self._map)[: NUMBERS.size].cast("Q")
        self.handles_signals = not faulthandler.is_enabled()
        if self.handles_signals:
            faulthandler.enable(self._signal_file, all_threads=False)
        _current.append(self)

    def row(self, text: str) -> None:
        """Note the row that the operator is about to work on."""
        encoded = text.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
        self._map[TEXT_AT : TEXT_AT + len(encoded)] = encoded
        self.numbers[TEXT_BYTES] = len(encoded)

    def close(self) -> None:
        """Stop writing. The note stays: a process that ends in the middle of a step has last words."""
        if self in _current:
            _current.remove(self)
        if self.handles_signals:
            faulthandler.disable()
        self._signal_file.close()
        self.numbers.release()
        self._map.close()


_current: list[StepNote] = []


def disown() -> None:
    """This process is about to end on purpose, and not because of its input."""
    for note in _current:
        note.numbers[SUBTASK] = 0


def _leave_to_the_parent() -> None:
    """In a child that user code has forked: the file for signals is the slot's."""
    if any(note.handles_signals for note in _current):
        faulthandler.disable()


os.register_at_fork(after_in_child=_leave_to_the_parent)


def parse(name: str, said: bytes) -> LastWords:
    """The last words of the slot whose pulse has this name. Raises ``ValueError`` if they are malformed."""
    found = json.loads(said)
    numbers = NUMBERS.unpack(bytes.fromhex(found["numbers"]))
    return LastWords(name, numbers, printable(found["text"], MAX_TEXT_BYTES), printable(found["signal"]))
