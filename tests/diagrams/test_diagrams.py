"""The page says what the code does, whatever the order of sets; and a change of the code changes it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import pytest

from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.vocabulary.effects import BarrierEffect
from tests.diagrams import explore, page
from tests.diagrams.barriers import CHECKPOINTS, REGULAR, SUBTASK, OneCheckpoint
from tests.diagrams.explore import Diagram, Move, Subject, Transition, WorldTooLargeError, content


@pytest.mark.long  # a third of a minute of one core
def test_the_page_is_what_the_code_says_under_another_order_of_sets() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-m", "tests.diagrams"]
    root = Path(__file__).parents[2]
    found = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, "", ""), "make diagrams writes it anew"


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated: begin"):
        page.written("# State diagrams\n")


class _Deaf(BarrierAlignment):
    """Leaves inputs blocked when its checkpoint is aborted."""

    def _unblock(self) -> list[BarrierEffect]:
        return super()._unblock()[:0]


def test_another_machine_has_another_diagram() -> None:
    def transitions(machine: type[BarrierAlignment]) -> list[Transition]:
        return explore.explore(lambda: OneCheckpoint(machine(SUBTASK, REGULAR), CHECKPOINTS[0], REGULAR))

    proper, deaf = transitions(BarrierAlignment), transitions(_Deaf)
    aborted = ("aligning", "checkpoint aborted")
    assert [found[2:] for found in proper if found[:2] == aborted] == [(("unblock channel",), "given up")]
    assert [found[2:] for found in deaf if found[:2] == aborted] == [((), "given up")]


class _Counter(Subject):
    """Goes on for ever."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def state(self) -> str:
        return "odd" if self.count % 2 else "even"

    def moves(self) -> Iterable[Move]:
        yield Move("one more", 1)

    def do(self, event: Any) -> list[str]:
        self.count += event
        return []

    def key(self) -> Hashable:
        return self.count


def test_a_world_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MOST_MACHINES", 100)
    with pytest.raises(WorldTooLargeError, match="100 different machines"):
        explore.explore(_Counter)


def test_a_state_that_nothing_explains_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Counter, "key", lambda self: self.count % 2)
    assert Diagram("", "", "", "", {"even": "", "odd": ""}, (_Counter,)).transitions() == [
        Transition("even", "one more", (), "odd"),
        Transition("odd", "one more", (), "even"),
    ]
    with pytest.raises(ValueError, match="odd"):
        Diagram("", "", "", "", {"even": ""}, (_Counter,)).transitions()


def test_content_does_not_depend_on_the_order_of_sets_and_sees_times_from_now() -> None:
    for order in itertools.permutations(["a", "b", "c"]):
        assert content(set(order)) == ("a", "b", "c")
    first, later = _Counter(), _Counter()
    first.until_ms, later.until_ms = 5, 105  # type: ignore[attr-defined]
    assert content(first, 0) == content(later, 100) != content(later, 0)
