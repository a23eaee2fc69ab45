"""Repeating a record of a real run's machines: the same events must give the same effects."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from flinkplus.runtime.coordinator.record.recorder import plain, read


class Differs(AssertionError):
    """A machine does something else than it did in the run that was recorded."""


def replay(path: Path) -> Counter[str]:
    """Feed every event of a record to new machines; returns how many each took. Raises ``Differs``."""
    machines: dict[str, Any] = {}
    taken: Counter[str] = Counter()
    for number, entry in enumerate(read(path), 1):
        match entry:
            case ("made", name, make, arguments, settings):
                machines[name] = make(*arguments, **settings)
            case (how, name, now_ms, event, expected):
                taken[name] += 1
                try:
                    found: Any = [plain(effect) for effect in machines[name].step(now_ms, event)]
                except Exception as error:
                    found = type(error).__name__
                    how_now = "raised"
                else:
                    how_now = "stepped"
                if (how_now, found) != (how, expected):
                    raise Differs(f"entry {number}, {name}: {event} gave {expected}, and now gives {found}")
    return taken
