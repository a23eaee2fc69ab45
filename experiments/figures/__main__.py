"""``python -m experiments.figures`` (``make figures``) writes docs/figures.md and the tables in the documents again.

A table stands between two lines, which stay: ``<!-- NAME FILE... -->``, with a maker of ``tables`` and files in
docs/results, without ``.json``; and ``<!-- end -->``. A unit test compares the documents with the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.figures.sources import DOCS, PAGE, RESULTS, page
from experiments.figures.tables import MAKERS, markdown

BLOCK = re.compile(r"(<!-- (?P<name>[a-z-]+)(?P<files>(?: [\w.-]+)+) -->\n).*?(<!-- end -->)", re.DOTALL)


def documents() -> Iterator[tuple[Path, str]]:
    """The documents with tables of figures, as they have to be."""
    yield PAGE, page()
    for path in (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        if BLOCK.search(text):
            yield path, BLOCK.sub(_filled, text)


def _filled(block: re.Match[str]) -> str:
    contents = [json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8")) for file in block["files"].split()]
    return f"{block[1]}{markdown(MAKERS[block['name']](*contents))}{block[4]}"


if __name__ == "__main__":
    for path, text in documents():
        path.write_text(text, encoding="utf-8")
