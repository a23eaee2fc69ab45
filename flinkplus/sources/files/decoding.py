"""The thread that decodes files for one reader, ahead of what is read.

Rules:

- The reader says which files are wanted: the open one, and those that it would begin next. The thread decodes them in
  this order, block by block.
- The blocks of all files take ``BUFFER_BYTES`` at most, or one block; or, when a repeated step wants more records, as
  many.
- A store that does not answer is asked again from the same place, ``ATTEMPTS`` times in all; local files only once.
- What a *file* is, only the source knows: the files of a directory, or parts of staged batches.
- An error of a file is kept with it, behind the records before it, and raised when these have been read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from flinkplus.errors import FlinkPlusError, InputError, described
from flinkplus.sources.files.position import OpenFile
from flinkplus.sources.files.records import FileBlock
from flinkplus.sources.files.watch import Woken

BUFFER_BYTES = 8 << 20
ATTEMPTS = 5
RETRY_S = 1.0
Blocks: TypeAlias = Callable[[OpenFile[Any]], Iterator[FileBlock]]


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Rows of records that were read, where reading continues, and how many records were broken and repaired."""

    rows: list[pa.RecordBatch]
    at: OpenFile[Any]
    broken: int
    repaired: int


class Decoding:
    """One file, and the blocks of it that are decoded but not read.

    ``decode``, ``failed`` and ``close`` are of the thread that decodes; all else is called with the lock of the owner.
    """

    def __init__(self, at: OpenFile[Any]) -> None:
        self._stream: Iterator[FileBlock] | None = None
        self._reached = at
        self._failures = 0
        self.at = at
        self.wanted = 0
        """Records that a repeated step needs."""
        self.records = 0
        """Records that are here."""
        self.ended = False
        """Whether no records follow these."""
        self.error: Exception | None = None
        self._blocks: deque[FileBlock] = deque()
        self._taken = 0
        self.held = 0
        """Bytes of the blocks."""

    def decode(self, blocks: Blocks) -> FileBlock | None:
        """The next block; ``None`` at the end of the file. Raises what ``blocks`` raises."""
        if self._stream is None:
            self._stream = blocks(self._reached)
        block = next(self._stream, None)
        self._failures = 0
        if block is not None:
            self._reached = OpenFile(self.at.file, int(block.cursors[-1]), self._reached.record + block.records)
        return block

    def failed(self) -> int:
        """Decoding has failed; returns how often since the last block. The next attempt opens the file again."""
        self.close()
        self._failures += 1
        return self._failures

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()  # type: ignore[attr-defined]  # a generator: it closes its file

    def has_room(self, held: int) -> bool:
        """Whether one more block is wanted; ``held``: bytes of all files."""
        done = self.ended or self.error is not None
        return not done and (held < BUFFER_BYTES or not self.records or self.records < self.wanted)

    def put(self, block: FileBlock) -> None:
        self._blocks.append(block)
        self.records += block.records
        self.held += block.rows.nbytes

    def take(self, records: int) -> ReadRecords:
        """The next ``records``, which must be here."""
        rows: list[pa.RecordBatch] = []
        broken = repaired = 0
        cursor, left = self.at.cursor, records
        while left:
            block = self._blocks[0]
            stop = min(self._taken + left, block.records)
            part, some_broken, some_repaired = block.between(self._taken, stop)
            rows.append(part)
            broken, repaired = broken + some_broken, repaired + some_repaired
            cursor = int(block.cursors[stop - 1])
            left -= stop - self._taken
            self._taken = stop
            if stop == block.records:
                self._blocks.popleft()
                self._taken = 0
                self.held -= block.rows.nbytes
        self.records -= records
        self.at = OpenFile(self.at.file, cursor, self.at.record + records)
        return ReadRecords(rows, self.at, broken, repaired)


class FileDecoder:
    """Decodes wanted files until it is closed.

    ``blocks``: those of a file from a place in it on, a generator. ``attempts``: see above.
    ``shown``: the name of a file, for errors.
    """

    def __init__(self, blocks: Blocks, attempts: int, shown: Callable[[Any], str]) -> None:
        self._blocks = blocks
        self._attempts = attempts
        self._shown = shown
        self._changed = threading.Condition()
        self._wanted: list[Decoding] = []
        self._closed = False

    def begin(self, woken: Woken) -> None:
        """Start the thread. ``woken``: called when records came, or an error."""
        threading.Thread(target=self._run, args=(woken,), name="flinkplus-decoding", daemon=True).start()

    def want(self, files: Sequence[OpenFile[Any]]) -> list[Decoding]:
        """These files are wanted, in this order; others are given up. Returns what there is of them."""
        with self._changed:
            known = {decoding.at.file: decoding for decoding in self._wanted}
            wanted = [known.get(at.file) or Decoding(at) for at in files]
            if wanted != self._wanted:
                self._wanted = wanted
                self._changed.notify()
            return wanted

    def has(self, decoding: Decoding, records: int, ended: bool) -> bool:
        """Whether so many records of a wanted file are here, and, if ``ended`` is to be known, whether more follow.

        Raises the error of the file when its records will not come.
        """
        with self._changed:
            if decoding.records >= records and (not ended or decoding.ended or decoding.records > records):
                return True
            if decoding.error is not None:
                raise decoding.error
            if decoding.ended:
                raise self.changed(decoding)
            if decoding.wanted < records + 1:
                decoding.wanted = records + 1
                self._changed.notify()
            return False

    def known(self, decoding: Decoding) -> tuple[int, bool, Exception | None]:
        """How many records of a file are here, whether it ends after them, and the error that follows them."""
        with self._changed:
            return decoding.records, decoding.ended, decoding.error

    def take(self, decoding: Decoding, records: int) -> ReadRecords:
        with self._changed:
            found = decoding.take(records)
            decoding.wanted = 0
            self._changed.notify()
            return found

    def close(self) -> None:
        """Ask the thread to end; does not wait."""
        with self._changed:
            self._closed = True
            self._wanted = []
            self._changed.notify()

    # --- the thread

    def _run(self, woken: Woken) -> None:
        opened: list[Decoding] = []
        try:
            while (decoding := self._next(opened)) is not None:
                if decoding not in opened:
                    opened.append(decoding)
                if self._advance(decoding):
                    woken(None)
                else:
                    self._pause()
        except Exception as error:  # of whatever kind: without this thread the reader would wait for ever
            woken(error)
        finally:
            for decoding in opened:
                decoding.close()

    def _next(self, opened: list[Decoding]) -> Decoding | None:
        """The file to continue with, when there is one; closes others. ``None``: the end."""
        with self._changed:
            while not self._closed:
                for decoding in [decoding for decoding in opened if decoding not in self._wanted]:
                    decoding.close()
                    opened.remove(decoding)
                found = self._first_with_room()
                if found is not None:
                    return found
                self._changed.wait()
        return None

    def _first_with_room(self) -> Decoding | None:
        held = sum(decoding.held for decoding in self._wanted)
        for at, decoding in enumerate(self._wanted):
            if decoding.has_room(held) and (at == 0 or held < BUFFER_BYTES or decoding.wanted):
                return decoding
        return None

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed, RETRY_S)

    def _advance(self, decoding: Decoding) -> bool:
        """Decode one more block. Returns ``False`` when that is to be tried again."""
        try:
            block = decoding.decode(self._blocks)
        except Exception as error:  # Arrow raises many kinds; each is kept, and raised when the rows before it are read
            again = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
            if decoding.failed() < self._attempts and again:
                return False
            with self._changed:
                decoding.error = self._described(error, decoding)
            return True
        with self._changed:
            if block is None:
                decoding.ended = True
            else:
                decoding.put(block)
        return True

    def _described(self, error: Exception, decoding: Decoding) -> Exception:
        if isinstance(error, FileNotFoundError | FlinkPlusError):
            return error
        return InputError(f"cannot read {self._shown(decoding.at.file)!r}: {described(error)}")

    def changed(self, decoding: Decoding) -> InputError:
        """The error for a file that has other records than a repeated step has read."""
        shown = self._shown(decoding.at.file)
        return InputError(f"{shown!r} has other records than when they were read before: input must not change")
