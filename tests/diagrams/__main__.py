"""``python -m tests.diagrams``: whether docs/state-diagrams.md is what the code says; ``--write`` writes it anew."""

from __future__ import annotations

import argparse
import sys

from tests.diagrams import page


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.diagrams", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page anew; read what changed")
    options = parser.parse_args(arguments)
    before = page.PAGE.read_text()
    after = page.written(before)
    if after == before:
        return 0
    print(f"{page.PAGE}: the code says something else")
    if options.write:
        page.PAGE.write_text(after)
    return 0 if options.write else 1


if __name__ == "__main__":
    sys.exit(main())
