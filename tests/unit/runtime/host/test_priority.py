"""A thread that everybody waits for is preferred for a moment, where the system grants it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from flinkplus.runtime.host.priority import PREFERENCE_S, PREFERRED, Preference


def in_a_thread(work: Callable[[], list[int]]) -> list[int]:
    """A thread of its own, so that what it is given ends with it."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join()
    return found


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_a_preference_ends_and_leaves_other_threads_alone() -> None:
    def work() -> list[int]:
        preference, before = Preference(), nice()
        preference.begin(10.0)
        during = nice()
        preference.end(10.0 + PREFERENCE_S / 2)
        still = nice()
        preference.begin(10.1)
        preference.end(10.0 + PREFERENCE_S)
        longer = nice()
        preference.end(10.1 + PREFERENCE_S)
        return [before, during, still, longer, nice()]

    mine = nice()
    before, during, still, longer, after = in_a_thread(work)
    granted = PREFERRED if os.geteuid() == 0 else during
    assert (during, still, longer) == (granted, granted, granted) and during <= before
    assert after == before == mine == nice()


def test_nothing_happens_where_it_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(which: int, who: int, value: int) -> None:
        asked.append(value)
        raise PermissionError(1, "not granted")

    monkeypatch.setattr(os, "setpriority", refuse)
    preference = Preference()
    preference.begin(10.0)
    preference.begin(11.0)
    preference.end(20.0)
    assert asked == [PREFERRED], "asked once, and never again"
