"""``docs/nexmark.md``: its part that shows each query; ``python -m experiments.nexmark.page`` writes it.

Rule: the part between the markers is made of the code alone, and a test compares the two.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.nexmark.catalogue import QUERIES, Query
from experiments.nexmark.expected import DUCKDB

PAGE = Path(__file__).resolve().parents[2] / "docs" / "nexmark.md"
BEGIN, END = "<!-- queries: begin -->", "<!-- queries: end -->"


def written(page: str) -> str:
    """``page`` with the queries between its markers. Raises ``ValueError`` when they are missing."""
    above, begin, rest = page.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN!r} with {END!r} behind it")
    return "\n".join([above + begin, *queries(), "", end + below])


def queries() -> Iterator[str]:
    """Lines: a table of all queries, then the code of each, with helpers before the first that needs them."""
    yield from (
        "",
        "| query | what it is | what would make it shorter, or faster |",
        "| --- | --- | --- |",
    )
    for query in QUERIES.values():
        yield f"| {query.name} | {query.title} | {query.awkward or '-'} |"
    shown: set[Callable[..., Any]] = set()
    for query in QUERIES.values():
        yield from ("", f"### {query.name}", "", f"{query.title}.{_counted(query)}")
        for function in (*query.helpers, query.draw):
            if function not in shown:
                shown.add(function)
                yield from ("", "```python", inspect.getsource(function).rstrip("\n"), "```")
        if query.found:
            yield from ("", "Of its output, the table `made`, these rows:", "", "```sql", sql(query.found), "```")
            yield from ("", "are compared with these:", "", "```sql", sql(DUCKDB[query.name]), "```")


def sql(text: str) -> str:
    """Without the indentation that it has in Python."""
    return textwrap.dedent(text).strip("\n")


def _counted(query: Query) -> str:
    if not query.last_of:
        return ""
    return f" The last row for each {' and '.join(f'`{name}`' for name in query.last_of)} counts."


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
