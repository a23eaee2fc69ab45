"""docs/options.md: whether it is what ``flinkplus.config`` says; ``python -m tests.options_page --write`` writes it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flinkplus.config import Options
from flinkplus.option_rules import texts

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def written(page: str) -> str:
    """``page`` with the options between its markers. Raises ``ValueError`` when they are missing."""
    above, begin, rest = page.partition(BEGIN)
    _, end, below = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no line {BEGIN!r} with {END!r} behind it")
    return "\n".join([above + begin, *tables(), "", end + below])


def tables() -> Iterator[str]:
    own: Any
    for group in Options.__bases__:
        own = group
        title, _, about = (group.__doc__ or "").removesuffix(".").partition(": ")
        yield from ("", f"## {title}", "", f"{about[:1].upper()}{about[1:]}.", "")
        yield from ("| option | default | values | what it is |", "| --- | --- | --- | --- |")
        for field in dataclasses.fields(own):
            values = field.metadata["rule"].range
            yield f"| `{field.name}` | {shown(field.default)} | {values} | {texts(own)[field.name]} |"


def shown(default: object) -> str:
    match default:
        case None | ():
            return "none"
        case bool():
            return str(default).lower()
        case str():
            return f"`{default}`"
        case _:
            return f"{default:g}" if isinstance(default, float) else f"{default:,}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.options_page", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page again; read what changed")
    options = parser.parse_args(arguments)
    before = PAGE.read_text("utf-8")
    after = written(before)
    if options.write:
        PAGE.write_text(after, "utf-8")
    elif after != before:
        print(f"{PAGE} differs from flinkplus/config.py; make options writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
