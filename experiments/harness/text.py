"""The text whose words the jobs count: made up, or a file of the user's (``--input``).

The jobs read a copy of a user's file, with exactly so many words, ten to a line like a made-up text. When the file is
too short, the copy continues with its beginning. Words are what the jobs count: ``line.lower().split()``, without
lowering them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path

from flinkplus.errors import ConfigurationError

WORDS_PER_LINE = 10


def check_text(source: Path) -> None:
    """Raises ``ConfigurationError`` for a file that cannot be read or has no words."""
    if next(words_of(source), None) is None:
        raise ConfigurationError(f"--input {source} has no words")


def words_of(source: Path) -> Iterator[str]:
    """The words of a file in their order. Raises ``ConfigurationError`` when it cannot be read."""
    try:
        with source.open(encoding="utf-8", errors="replace", newline="\n") as lines:
            for line in lines:
                yield from line.split()
    except OSError as error:
        raise ConfigurationError(f"cannot read --input {source}: {error.strerror}") from error


def write_text(source: Path, target: Path, words: int) -> None:
    """Write the first ``words`` words of ``source``, which is read over and over, to ``target``."""
    endless = islice(chain.from_iterable(words_of(path) for path in repeat(source)), words)
    with target.open("w", encoding="utf-8", newline="\n") as out:
        while line := list(islice(endless, WORDS_PER_LINE)):
            out.write(" ".join(line) + "\n")
