"""Tables and lines of text, on a terminal and elsewhere.

Rules:

- Names, hosts and messages are untrusted: nothing in them is markup, an emoji, or a terminal control sequence.
- Nothing is cut. A table that is too wide continues below, with its keys again; cells still too wide are folded.
- Without a terminal, lines may be ``LEAST_WIDTH`` long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich import table
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flinkplus.printable import escaped

LEAST_WIDTH = 120
LEAST_TEXT = 24
"""The least width of a column of text, which is folded at words."""
BORDERS = 3
"""Of each column, in characters; and one more of the table."""


def console(stderr: bool = False) -> Console:
    """To print to: what is printed is text, and nothing in it is markup."""
    stream = sys.stderr if stderr else sys.stdout
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not stream.isatty():
        made.width = max(made.width, LEAST_WIDTH)
    return made


def text(value: str) -> Text:
    """``value`` as it is, whichever console prints it; what is not printable is escaped."""
    return Text(escaped(value.replace("\t", " "), keep="\n"), overflow="fold")


class Table:
    """A table of strings. ``keys`` are the columns that tell its lines apart, ``left`` and ``right`` those that follow;
    ``note`` is the heading of a last one, of text that may be long, if there is one.
    """

    def __init__(
        self,
        title: str,
        keys: Sequence[str],
        left: Sequence[str] = (),
        right: Sequence[str] = (),
        note: str | None = None,
    ) -> None:
        self._title = title
        self._headings = [*keys, *left, *right, *([] if note is None else [note])]
        self._keys = len(keys)
        self._right = range(len(keys) + len(left), len(keys) + len(left) + len(right))
        self._note = None if note is None else len(self._headings) - 1
        self._rows: list[tuple[Text, ...]] = []

    def add_row(self, *cells: str) -> None:
        """A cell for each column."""
        if len(cells) != len(self._headings):
            raise ValueError(f"{len(cells)} cells for {len(self._headings)} columns")
        self._rows.append(tuple(map(text, cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        title: str | None = self._title
        for columns in self._parts(options.max_width):
            yield self._part(title, columns, options.max_width)
            title = None

    def _parts(self, width: int) -> Iterator[list[int]]:
        """The columns of each part, as many as there is room for; at least one beside the keys."""
        keys = list(range(self._keys))
        part, used = list(keys), self._taken(keys)
        for column in range(self._keys, len(self._headings)):
            needed = self._taken([column])
            if used + needed >= width and len(part) > self._keys:
                yield part
                part, used = list(keys), self._taken(keys)
            part.append(column)
            used += needed
        yield part

    def _taken(self, columns: Sequence[int]) -> int:
        """The width of these columns with their borders."""
        return sum(self._width(column) + BORDERS for column in columns)

    def _width(self, column: int) -> int:
        cells = [cell_len(line) for row in self._rows for line in row[column].plain.split("\n")]
        heading = [cell_len(word) for word in self._headings[column].split()]
        widest = max((*cells, *heading), default=0)
        return min(widest, LEAST_TEXT) if column == self._note else widest

    def _part(self, title: str | None, columns: list[int], width: int) -> table.Table:
        part = table.Table(
            title=None if title is None else text(title), title_justify="left", show_header=any(self._headings)
        )
        too_wide = self._taken(columns) >= width
        for column in columns:
            part.add_column(
                text(self._headings[column]),
                justify="right" if column in self._right else "left",
                width=None if column == self._note or too_wide else self._width(column),
                overflow="fold",
            )
        for row in self._rows:
            part.add_row(*(row[column] for column in columns))
        return part
