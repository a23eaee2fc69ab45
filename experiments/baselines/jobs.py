"""The jobs that every engine runs, and how FlinkPlus draws them.

Rows are numbered 0, 1, 2, ... and row *i* is a function of *i* alone, the same one in every engine
(the programs below ``java`` have these numbers as well):

- ``three-sums``: bigint columns ``user``, ``page``, ``country`` and ``value``; the running sum of ``value`` by user,
  behind it by page, behind it by country. Every row goes through all three, and comes out with three sums.
- ``wordcount``: lines of ten words of a made-up text, read over and over; every word comes out with its running count.
- ``window``: the rows of ``three-sums`` with a time; the sum of ``value`` by page in windows of a second of that time.

Rules: a row's ``value`` (of a word: its line's) is the number of the row, so what comes out says when it was due. At a
steady rate subtask *s* of *p* has its *k*-th row at ``origin + k * p / rate``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from experiments.baselines.notes import NOTED, Note
from experiments.harness.text import WORDS_PER_LINE
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.sources.generator import BATCH_BLOCK_ROWS

WORDCOUNT, THREE_SUMS, WINDOW = JOBS = ("wordcount", "three-sums", "window")
USERS, PAGES, COUNTRIES = KEYS = (50_021, 10_007, 251)
FACTORS = (48_271, 16_807, 69_621)
"""A row's user is ``number * 48,271 % 50,021``, and so on."""
SUMS = {"user": "by_user", "page": "by_page", "country": "by_country"}
"""The stage of each key."""
ROWS = "rows"
WINDOW_MS = 1_000
WINDOW_ROWS_PER_MS = 100
"""Of the time that rows of ``window`` have, at unlimited rate; at a steady one it is when they are due."""
WATERMARK_MS = 10
SUMS_SCHEMA = "user long, page long, country long, value long"
TIMED_SCHEMA = f"{SUMS_SCHEMA}, at long"
WORDS_SCHEMA = "word string, value long"
SINK = "out"
KEYED = {WORDCOUNT: ("count",), THREE_SUMS: ("by_user", "by_page", "by_country"), WINDOW: ("windows",)}
"""The operators with keyed state, by job."""
INPUT = "input"
"""Where rows of ``window`` are counted: what it puts out is fewer."""


@dataclass(frozen=True)
class Layout:
    """When rows of a source at a steady rate are due. ``width``: rows of the job that one row of the source becomes;
    ``rate``: of rows of the job, over all subtasks, ``None``: unlimited."""

    parallelism: int
    width: int
    rate: float | None
    block_rows: int = BATCH_BLOCK_ROWS

    def due_ms(self, numbers: np.ndarray) -> np.ndarray:
        """When the rows of the source with these numbers are due, in milliseconds since the origin of the run."""
        if self.rate is None:
            return np.zeros(len(numbers), np.float64)
        block, at = np.divmod(numbers, self.block_rows)
        own = block // self.parallelism * self.block_rows + at
        return own * (1e3 * self.parallelism * self.width / self.rate)


def keys_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """The user, page and country of the rows with these numbers."""
    return {name: numbers * factor % keys for name, factor, keys in zip(SUMS, FACTORS, KEYS, strict=True)}


@dataclass(frozen=True)
class KeyedRows:
    """Makes the rows of ``three-sums``; with ``layout``, those of ``window``."""

    layout: Layout | None = None

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        numbers = np.arange(start, start + count, dtype=np.int64)
        columns = {**keys_of(numbers), "value": numbers}
        if self.layout is not None:
            paced = self.layout.rate is not None
            columns["at"] = self.layout.due_ms(numbers).astype(np.int64) if paced else numbers // WINDOW_ROWS_PER_MS
        return pa.record_batch(columns)


class Lines:
    """Makes lines with their numbers from a text, which each process reads once."""

    def __init__(self, text: Path) -> None:
        self._text = text
        self._lines: pa.StringArray | None = None

    def __call__(self, start: int, count: int) -> pa.RecordBatch:
        if self._lines is None:
            self._lines = pa.array(self._text.read_text().splitlines())
        numbers = np.arange(start, start + count, dtype=np.int64)
        lines = self._lines.take(pa.array(numbers % len(self._lines)))
        return pa.record_batch({"line": lines, "value": numbers})

    def __getstate__(self) -> Path:
        return self._text

    def __setstate__(self, text: Path) -> None:
        self.__init__(text)  # type: ignore[misc]


def words_of(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each word of ``line``, with the number of its line."""
    words = pc.ascii_split_whitespace(batch.column("line"))
    numbers = batch.column("value").take(pc.list_parent_indices(words))
    return pa.record_batch({"word": words.flatten(), "value": numbers})


def draw(env: StreamEnvironment, job: str, rate: float | None, noted: Path, text: Path) -> None:
    """Draw a job whose output is noted in the directory ``noted``, and dropped. ``text``: of ``wordcount``."""
    width = WORDS_PER_LINE if job == WORDCOUNT else 1
    layout = Layout(env.options.parallelism, width, rate)
    if job == WORDCOUNT:
        lines = env.generate(Lines(text), schema="line string, value long", batches=True, name="lines")
        rows = _paced(lines.map_batches(words_of, schema=WORDS_SCHEMA, name="words"), rate)
        stream = rows.key_by("word").count(name="count")
    elif job == THREE_SUMS:
        stream = draw_sums(env, rate)
    else:
        rows = _paced(env.generate(KeyedRows(layout), schema=TIMED_SCHEMA, batches=True, name=ROWS), rate)
        rows = rows.with_watermark("at", 0, every=f"{WATERMARK_MS} ms")
        rows = rows._then(Note(INPUT, str(noted), None, None))
        stream = rows.key_by("page").tumbling_window("at", f"{WINDOW_MS} ms").sum("value", name="windows")
    if rate is None:
        note = Note(NOTED, str(noted), None, None)
    elif job == WINDOW:
        note = Note(NOTED, str(noted), "window_end", None)
    else:
        note = Note(NOTED, str(noted), "value", layout)
    stream._then(note).discard(name=SINK)


def draw_sums(
    env: StreamEnvironment,
    rate: float | None,
    count: int | None = None,
    behind: Callable[[Stream], Stream] = lambda stream: stream,
) -> Stream:
    """Draw ``three-sums`` but its output. ``count``: rows (``None``: unbounded); ``behind``: what comes behind the
    source, and behind each sum."""
    source = env.generate(KeyedRows(), schema=SUMS_SCHEMA, count=count, batches=True, name=ROWS)
    stream = behind(_paced(source, rate))
    for key, stage in SUMS.items():
        stream = behind(stream.key_by(key).sum("value", output=f"{key}_sum", name=stage))
    return stream


def _paced(stream: Stream, rate: float | None) -> Stream:
    return stream if rate is None else stream.throttle(rate)
