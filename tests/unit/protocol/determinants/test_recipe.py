"""Recipes: where the output of a sink is cut, what is stored with it, and what is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, OutputTableError, PeerProtocolError
from flinkplus.protocol.determinants.determinants import AncestorLog, Choice, StepLog, merge, pack
from flinkplus.protocol.determinants.recipe import Recipe, RecipeEntry, RecipeLog, StoredOutput, is_held, read_recipe
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage

LINEAGE = Lineage(["lines", "out"], [("lines", "out")], recipes=["out"])
LINES, OUT = SubtaskId("lines", 1), SubtaskId("out", 0)
NONE, ONE, TWO = (CheckpointId(number) for number in range(3))


class Port:
    """What a sink is given."""

    def __init__(self) -> None:
        self.cuts: list[tuple[int, RecipeEntry]] = []
        self.again: list[int] = []
        self.accepts = True
        self.held = NONE

    def hold(self, checkpoint: CheckpointId) -> None:
        self.held = checkpoint

    def cut(self, step: int, entry: RecipeEntry) -> None:
        self.cuts.append((step, entry))

    def repeated(self, step: int) -> None:
        self.again.append(step)

    def read(self, since: CheckpointId = NONE, recorded: int = 0) -> Recipe:
        stored = StoredOutput(recorded, tuple(entry for _, entry in self.cuts))
        return read_recipe({OUT: stored}, LINEAGE, since)


def logs(first: int = 0, recorded: int = 0) -> tuple[StepLog, AncestorLog, Port, RecipeLog]:
    steps, ancestors, port = StepLog(first), AncestorLog(), Port()
    return steps, ancestors, port, RecipeLog(steps, ancestors, recorded, port)


def test_a_cut_has_all_steps_since_the_last_one_and_those_of_ancestors_that_were_taken() -> None:
    steps, ancestors, port, log = logs(first=5)
    log.cut(NONE)
    assert port.cuts == [], "nothing has happened"
    ancestors.take(LINEAGE.number(LINES), 3, (8, 8))
    steps.begin(Choice.INPUT, 2)
    steps.begin(Choice.CLOCK, 7)
    log.cut(NONE)
    steps.begin(Choice.INPUT, 4)
    log.cut(NONE)
    assert [step for step, _ in port.cuts] == [7, 8]
    recipe = port.read(recorded=8)
    assert recipe.spans[OUT] == ((5, (pack(Choice.INPUT, 2), pack(Choice.CLOCK, 7), pack(Choice.INPUT, 4))),)
    assert recipe.spans[LINES] == ((3, (8, 8)),) and recipe.recorded == {OUT: 8}
    assert recipe.repeats == {LINES: [0, [[3, [8, 8]]]], OUT: [8, [[5, list(recipe.spans[OUT][0][1])]]]}


def test_steps_that_are_recorded_are_cut_in_the_same_places_and_stored_no_more() -> None:
    steps, _, port, log = logs(recorded=2)
    for _ in range(3):
        steps.begin(Choice.READ, 1)
        log.cut(NONE)
    assert port.again == [1, 2]
    assert [step for step, _ in port.cuts] == [3]
    assert port.read().spans[OUT] == ((2, (pack(Choice.READ, 1),)),)


def test_a_cut_across_the_last_recorded_step_is_not_the_cut_of_before() -> None:
    steps, _, _, log = logs(recorded=1)
    steps.begin(Choice.READ, 1)
    steps.begin(Choice.READ, 1)
    with pytest.raises(InvariantViolation, match="within a cut"):
        log.cut(NONE)


def test_rows_that_are_gone_from_the_table_are_noticed() -> None:
    with pytest.raises(OutputTableError, match="steps before 5 were stored, and now only those before 3"):
        logs(first=5, recorded=3)
    logs(first=5, recorded=0)  # a table that begins with a savepoint


def test_what_lies_before_a_complete_checkpoint_is_left_out() -> None:
    steps, ancestors, port, log = logs()
    for checkpoint in (NONE, ONE, TWO):
        steps.begin(Choice.INPUT, checkpoint)
        log.cut(checkpoint)  # at the barrier, before logs are cleared
        steps.clear()
        ancestors.clear()
    assert port.read(ONE).spans[OUT] == ((1, (pack(Choice.INPUT, 1), pack(Choice.INPUT, 2))),)
    assert merge(1, port.read(NONE).spans[OUT]) == merge(1, port.read(ONE).spans[OUT])


def test_numbers_of_checkpoints_that_begin_or_are_aborted_are_known() -> None:
    spans = {
        LINES: ((0, (pack(Choice.TRIGGER, 7), pack(Choice.READ, 9))),),
        OUT: ((3, (pack(Choice.ABORT, 8), pack(Choice.INPUT, 11))),),
    }
    assert Recipe(spans).checkpoints == (7, 8)
    assert Recipe().checkpoints == ()


def test_a_damaged_recipe_is_refused() -> None:
    with pytest.raises(PeerProtocolError, match="malformed"):
        read_recipe({OUT: StoredOutput(1, (RecipeEntry(NONE, b"\x0f"),))}, LINEAGE, NONE)


@given(st.lists(st.sampled_from(["step", "cut", "barrier"]), max_size=30), st.integers(0, 30))
def test_repeating_a_recipe_up_to_any_cut_gives_the_same_recipe(happens: list[str], at: int) -> None:
    """What the first subtask has stored up to a cut, and its successor after that, is what one alone stores."""

    def run(recorded: int) -> Port:
        steps, _, port, log = logs(recorded=recorded)
        checkpoint = 0
        for number, what in enumerate(happens):
            if what == "step":
                steps.begin(Choice.READ, number)
            log.cut(CheckpointId(checkpoint))
            if what == "barrier":
                steps.clear()
                checkpoint += 1
        return port

    whole = run(0)
    kept = [cut for cut in whole.cuts if cut[0] <= at]
    recorded = kept[-1][0] if kept else 0
    assert [*kept, *run(recorded).cuts] == whole.cuts


def test_what_is_made_behind_a_checkpoint_is_held() -> None:
    """The cut of the barrier itself came before it."""
    at_barrier, behind = RecipeEntry(CheckpointId(4), b""), RecipeEntry(CheckpointId(5), b"")
    assert [is_held(entry, CheckpointId(5)) for entry in (at_barrier, behind)] == [False, True]
    assert not is_held(behind, CheckpointId(6)), "a later order releases it"
    assert not is_held(behind, CheckpointId(0))
