"""What an operator behind a source gives that shows the order of rows within their file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

Rows = Sequence[tuple[str, int, int]]
"""Word, file and number of each row of a file, in order."""


def with_the_one_before(files: Iterable[Rows]) -> Counter[tuple[str, int, int, int]]:
    """Word, file, number, and the number before it in the file with this word; -1: none."""
    found: Counter[tuple[str, int, int, int]] = Counter()
    for rows in files:
        last: dict[str, int] = {}
        for word, file, number in rows:
            found[word, file, number, last.get(word, -1)] += 1
            last[word] = number
    return found
