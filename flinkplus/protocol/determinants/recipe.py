"""The recipe of a sink whose rows are visible at once: the determinants that these rows depend on, stored with them.

Invariant: whatever rows are visible, the recipe beside them makes them again. One transaction of the sink's subtask has
its new rows, the number of the first step whose rows it does not have (*recorded*), and the determinants of all steps
that the rows depend on and that the recipe did not have: of the subtask itself, and of its ancestors. The transaction
succeeds only in the subtask's newest generation.

So steps behind the last complete checkpoint are no longer lost with all who knew them: a deployment reads the recipes
first, each subtask repeats the steps that are known of it, and chooses freely after that. The rows of steps before
``recorded`` are there, and are not written again.

Rules:

- a *cut* comes at the end of each step that may have made rows, and at each barrier. It is the smallest piece of a
  transaction. A repeated step has the same cuts;
- an entry of the recipe has the number of the last barrier before it. Once a later checkpoint is complete, no subtask
  repeats the steps in it, and the next transaction removes it;
- where the job is to be divided or stopped at a checkpoint, cuts behind its barrier are held back: what is made of the
  checkpoint cannot repeat them (``checkpoints.hold``);
- a snapshot is acknowledged after all cuts up to its barrier are stored, with rows or without: a successor that starts
  from it neither makes the rows again, nor is sent the determinants again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from flinkplus.errors import OutputTableError
from flinkplus.protocol.determinants.determinants import (
    AncestorLog,
    Choice,
    Span,
    StepLog,
    decode_spans,
    unite,
    unpack,
)
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId, invariant
from flinkplus.protocol.vocabulary.lineage import Lineage


class RecipeEntry(NamedTuple):
    """What one cut adds to a recipe.

    ``checkpoint``: the last barrier before it.
    ``spans``: the subtask's own determinants and those of its ancestors, as messages carry them.
    """

    checkpoint: CheckpointId
    spans: bytes


class RecipePort(Protocol):
    """Stores the rows of a subtask's sink, each with its recipe."""

    @property
    def accepts(self) -> bool:
        """Whether there is room for the rows of another step."""

    def cut(self, step: int, entry: RecipeEntry) -> None:
        """All rows since the last cut are of steps before ``step``, and depend on ``entry`` and those before it."""

    def repeated(self, step: int) -> None:
        """All rows since the last cut are of steps before ``step``, and are stored already."""

    def hold(self, checkpoint: CheckpointId) -> None:
        """Store no cut that ``is_held`` behind ``checkpoint``, until the next call."""


def is_held(entry: RecipeEntry, behind: CheckpointId) -> bool:
    """Whether a cut is to be held back: it came behind the barrier of ``behind``. 0: none is."""
    return bool(behind) and entry.checkpoint >= behind


class RecipeLog:
    """Cuts the output of one subtask.

    ``steps``, ``ancestors``: its own determinants and those that it passes on; they start at its version.
    ``recorded``: the first step whose rows are not stored; 0: none are.

    Raises ``OutputTableError`` if rows are missing that were stored when the version was acknowledged.
    """

    def __init__(self, steps: StepLog, ancestors: AncestorLog | None, recorded: int, port: RecipePort) -> None:
        if 0 < recorded < steps.next_step:
            raise OutputTableError(
                f"rows of steps before {steps.next_step} were stored, and now only those before {recorded} are: the "
                "database was changed or restored to an earlier time"
            )
        self._steps = steps
        self._ancestors = ancestors
        self._recorded = recorded
        self._port = port
        self._steps_cut = steps.next_step
        self._ancestors_cut = 0 if ancestors is None else ancestors.end

    @property
    def accepts(self) -> bool:
        """Whether another step may begin."""
        return self._port.accepts

    def hold(self, checkpoint: CheckpointId) -> None:
        """Hold back what is made behind ``checkpoint``; 0: nothing."""
        self._port.hold(checkpoint)

    def cut(self, checkpoint: CheckpointId) -> None:
        """A step has ended, or a barrier is about to be sent; ``checkpoint``: the last barrier before that."""
        step = self._steps.next_step
        if step == self._steps_cut:
            return
        own = self._steps.since(self._steps_cut)
        others = b""
        if self._ancestors is not None:
            others, self._ancestors_cut = self._ancestors.since(self._ancestors_cut), self._ancestors.end
        if step <= self._recorded:
            self._port.repeated(step)
        else:
            invariant(self._steps_cut >= self._recorded, "a transaction ended within a cut", step=self._recorded)
            self._port.cut(step, RecipeEntry(checkpoint, own + others))
        self._steps_cut = step


@dataclass(frozen=True)
class StoredOutput:
    """What a sink's table holds of one subtask: ``recorded``, and its part of the recipe."""

    recorded: int = 0
    entries: tuple[RecipeEntry, ...] = ()


class Division(NamedTuple):
    """``checkpoint`` was made of the checkpoint ``of``, for other subtasks: these begin there."""

    checkpoint: CheckpointId
    of: CheckpointId


@dataclass(frozen=True)
class Recipe:
    """What the recipes of several subtasks say together.

    ``spans``: of each subtask whose steps rows depend on.
    ``recorded``: subtask of a sink -> the first step whose rows are not stored.
    """

    spans: Mapping[SubtaskId, tuple[Span, ...]] = field(default_factory=dict)
    recorded: Mapping[SubtaskId, int] = field(default_factory=dict)

    @property
    def checkpoints(self) -> tuple[CheckpointId, ...]:
        """The checkpoints that begin, or are aborted, in its steps, ascending. Their numbers are used, and barriers of
        those that begin are sent again."""
        found = {
            value
            for spans in self.spans.values()
            for _, determinants in spans
            for choice, value in map(unpack, determinants)
            if choice in (Choice.TRIGGER, Choice.ABORT)
        }
        return tuple(CheckpointId(number) for number in sorted(found))

    @property
    def is_empty(self) -> bool:
        """Whether there is no step to repeat, so that no row behind the checkpoint is visible."""
        return not self.spans

    @property
    def repeats(self) -> dict[SubtaskId, list[Any]]:
        """Subtask -> [its number in ``recorded`` or 0, its spans], as JSON."""
        return {
            subtask: [
                self.recorded.get(subtask, 0),
                [[first, list(determinants)] for first, determinants in self.spans.get(subtask, ())],
            ]
            for subtask in sorted({*self.spans, *self.recorded})
        }


NO_RECIPE = Recipe()


def read_recipe(stored: Mapping[SubtaskId, StoredOutput], lineage: Lineage, since: CheckpointId) -> Recipe:
    """What the recipes in ``stored`` say of steps behind the complete checkpoint ``since``.

    Raises ``PeerProtocolError`` for malformed entries.
    """
    known: dict[SubtaskId, list[Span]] = {}
    for subtask in sorted(stored):
        for entry in [entry for entry in stored[subtask].entries if entry.checkpoint >= since]:
            own, others = decode_spans(entry.spans)
            known.setdefault(subtask, []).append(own)
            for number, first, determinants in others:
                known.setdefault(lineage.subtask(number), []).append((first, determinants))
    spans = {subtask: unite(found) for subtask, found in sorted(known.items())}
    return Recipe(spans, {subtask: output.recorded for subtask, output in sorted(stored.items())})
