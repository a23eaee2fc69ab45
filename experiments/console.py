"""What experiments print: tables to stdout, a progress bar to stderr; and the options they share."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from flinkplus.cli import tables
from flinkplus.cli.figures import check_json


class Bar(Protocol):
    """A progress bar."""

    def begin(self, what: str) -> None:
        """Say what is going on."""

    def end(self) -> None:
        """One more is done."""

    def say(self, text: str) -> None:
        """A line that stays, above the bar."""


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

        class _Bar:
            def begin(self, what: str) -> None:
                progress.update(task, description=what)

            def end(self) -> None:
                progress.advance(task)

            def say(self, text: str) -> None:
                progress.console.print(text)

        yield _Bar()


def show(*things: object) -> None:
    """Print tables and lines to stdout, wide enough where nobody looks at a terminal."""
    console = tables.console()
    for thing in things:
        console.print(thing)


def choices(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A parser of ``a,b`` that takes each of ``allowed`` at most once."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(part.strip() for part in text.split(","))
        if not set(chosen) <= set(allowed) or len(set(chosen)) < len(chosen):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(allowed)}")
        return chosen

    return parse


def whole_numbers(least: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of ``1,2,4``."""

    def parse(text: str) -> tuple[int, ...]:
        try:
            numbers = tuple(int(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < least or len(set(numbers)) < len(numbers):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from {least} up, such as 2,4")
        return numbers

    return parse


def positive_numbers(text: str) -> tuple[float, ...]:
    """A parser of ``0.25,1,10``."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < 1e9 for number in numbers) or len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers, such as 0.25,1,10")
    return numbers


def add_output(command: argparse.ArgumentParser, name: str, out: str, what: str = "for files") -> None:
    """The options of every experiment: the JSON file (``name``, by default), the directory ``out``, the master."""
    command.add_argument("--json", metavar="FILE", help=f"raw data (default: {name} in the directory of --out)")
    command.add_argument("--out", default=out, metavar="DIR", help=f"{what} (default: {out})")
    command.add_argument("--master", metavar="URL", help="Spark master (default: local)")


def output_files(arguments: argparse.Namespace, name: str, *pictures: str) -> tuple[Path, Path]:
    """The directory and the JSON file that these options say. Raises ``ConfigurationError`` when that file, or one of
    the ``pictures`` in the directory, could not be written."""
    out = Path(arguments.out)
    json_path = Path(arguments.json or out / name)
    for path in (json_path, *(out / picture for picture in pictures)):
        check_json(path)
    return out, json_path
