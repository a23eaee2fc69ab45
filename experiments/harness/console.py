"""What experiments print: tables and lines to stdout, a progress bar to stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from flinkplus.cli import tables


@dataclass(frozen=True)
class Bar:
    """A progress bar. ``begin`` shows what is going on, ``end`` counts one more, ``say`` prints a line above."""

    begin: Callable[[str], None]
    end: Callable[[], None]
    say: Callable[[str], None]


@contextlib.contextmanager
def bar(total: int, what: str) -> Iterator[Bar]:
    """A progress bar on stderr while the block runs."""
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=tables.console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield Bar(
            lambda what: progress.update(task, description=what), lambda: progress.advance(task), progress.console.print
        )


def show(*things: object) -> None:
    """Print tables and lines to stdout, which is wide enough where it is no terminal."""
    console = tables.console()
    for thing in things:
        console.print(thing)


def show_line(line: str) -> None:
    """Print a line to stdout that stays one, however long it is."""
    tables.console().print(line, soft_wrap=True)


def number(value: float | None, digits: int = 1) -> str:
    """For people; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def plain_table(
    title: str, left: Sequence[str], right: Sequence[str], rows: Sequence[Sequence[str]] | Iterator[Sequence[str]]
) -> Table:
    """``left``, ``right``: headings of the columns that are aligned so. ``rows``: a cell for each column."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def numbers(row: dict[str, Any], columns: dict[str, tuple[str, int]]) -> list[str]:
    """The cells of a row. ``columns``: heading -> name of a figure and its digits."""
    return [number(row[name], digits) for name, digits in columns.values()]


def interval(row: dict[str, Any], name: str, unit: str, digits: int = 2) -> str:
    """The cell of a figure of ``statistics.with_interval``: ``1.50 (1.40 - 1.60)``."""
    middle, low, high = (row[f"{name}{part}_{unit}"] for part in ("", "_low", "_high"))
    if middle is None:
        return number(None)
    return f"{number(middle, digits)} ({number(low, digits)} - {number(high, digits)})"
