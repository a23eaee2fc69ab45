"""Where the published figures come from: docs/figures.md, with one row for each file of raw data in docs/results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.harness.conditions import load_range

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS, PAGE = DOCS / "results", DOCS / "figures.md"
UNKNOWN = "-"
HEAD = """# Where the figures come from

`make figures` writes this page from the files in `docs/results`, which are what the commands wrote.
The options `--json` and `--out` are left out. `-`: the file does not say, since it is older than that field.

- *priority*: whether the failover path could raise its priority, which takes root or `RLIMIT_NICE`;
- *load*: the system's load average of a minute before each run, smallest and largest; the run before is in it;
- *runs*: objects in `runs`, of all variants together; the tables say the number for each figure.

| raw data | command | commit | date | cores | uid, nice | priority | load | runs |
| --- | --- | --- | --- | ---: | --- | --- | --- | ---: |
"""


def page() -> str:
    """The page, as it has to be for the files that there are."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in _rows())


def _rows() -> Iterator[list[str]]:
    for path in sorted(RESULTS.glob("*.json")):
        yield row(path.name, json.loads(path.read_text(encoding="utf-8")))


def row(name: str, content: dict[str, Any]) -> list[str]:
    """The cells of one file."""
    runs = content.get("runs")
    uid, nice, raised = (content.get(field) for field in ("uid", "nice", "may_raise_priority"))
    return [
        f"[{name}](results/{name})",
        f"`{content['command']}`" if "command" in content else UNKNOWN,
        str(content.get("commit") or UNKNOWN)[:9],
        str(content.get("started", UNKNOWN))[:10],
        str(content.get("machine", {}).get("cores", UNKNOWN)),
        UNKNOWN if uid is None else f"{uid}, {nice}",
        UNKNOWN if raised is None else "raised" if raised else "not raised",
        (load_range(runs) if isinstance(runs, list) else None) or UNKNOWN,
        str(len(runs)) if isinstance(runs, list) else UNKNOWN,
    ]
