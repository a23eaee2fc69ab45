"""A database whose table shows rows at once, and the sink of one subtask that writes to it.

A transaction takes a while. It happens even if the process that began it has died by then, and the answer may be
lost. While the database is away, nothing happens there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flinkplus.protocol.determinants.recipe import Division, RecipeEntry, StoredOutput, is_held
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from tests.simulation.graph import Row

if TYPE_CHECKING:
    from tests.simulation.subtask import SimSubtask
    from tests.simulation.world import World

MOST_CUTS = 3
"""That one transaction has."""
MOST_PENDING = 6
LOST = 0.1
"""Share of the transactions whose answer is lost."""
RETRY_MS = 7


class Cut(NamedTuple):
    """Rows of the steps before ``step``. ``depends``: the steps that they depend on, in truth."""

    step: int
    rows: tuple[Row, ...]
    entry: RecipeEntry
    depends: Mapping[SubtaskId, int]


class SimTable:
    """What it holds, by subtask. ``is_away``: how many faults keep it from answering."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.generations: dict[SubtaskId, int] = {}
        self.recorded: dict[SubtaskId, int] = {}
        self.entries: dict[SubtaskId, list[RecipeEntry]] = {}
        self.rows: dict[tuple[SubtaskId, int], tuple[Row, ...]] = {}
        self.divided: dict[str, int] = {}
        """Vertex -> the checkpoint from which its subtasks are others than before."""

    @property
    def is_away(self) -> bool:
        return bool(self._world.table_away)

    def store(self, subtask: SubtaskId, generation: int, cuts: Sequence[Cut], complete: int) -> bool:
        """One transaction; false when its generation is fenced."""
        if not self._admits(subtask, generation):
            return False
        self._store_rows(subtask, cuts)
        self._store_recipe(subtask, cuts, complete)
        self._store_progress(subtask, cuts)
        self._world.checks.visible(subtask, cuts)
        return True

    def _admits(self, subtask: SubtaskId, generation: int) -> bool:
        return self.generations.get(subtask, 0) == generation

    def _store_rows(self, subtask: SubtaskId, cuts: Sequence[Cut]) -> None:
        for cut in cuts:
            self.rows[subtask, cut.step] = cut.rows

    def _store_recipe(self, subtask: SubtaskId, cuts: Sequence[Cut], complete: int) -> None:
        kept = [entry for entry in self.entries.get(subtask, ()) if entry.checkpoint >= complete]
        self.entries[subtask] = [*kept, *(cut.entry for cut in cuts if cut.entry.checkpoint >= complete)]

    def _store_progress(self, subtask: SubtaskId, cuts: Sequence[Cut]) -> None:
        self.recorded[subtask] = cuts[-1].step

    def reaches_behind(self, checkpoint: int) -> bool:
        """Whether rows are visible that were made behind ``checkpoint``."""
        return any(entry.checkpoint >= checkpoint for entries in self.entries.values() for entry in entries)

    def close(self, generation: Generation, behind: int) -> bool:
        """Refuse older generations of all subtasks; whether nothing behind the checkpoint ``behind`` is visible."""
        self.generations = {subtask: max(generation, known) for subtask, known in self.generations.items()}
        return not self.reaches_behind(behind)

    def divide(self, generation: Generation, division: Division, subtasks: Sequence[SubtaskId]) -> None:
        """The subtasks of the sink's vertex give way to ``subtasks``, unless they have."""
        vertex = subtasks[0].vertex
        if self.divided.get(vertex, 0) >= division.checkpoint:
            return
        before = [subtask for subtask in self.generations if subtask.vertex == vertex]
        for subtask in before:
            self.generations[subtask] = max(generation, self.generations[subtask])
        self._world.checks.output_divided(before, division)
        self._replace(before, subtasks)
        for subtask in subtasks:
            self.generations[subtask] = generation
        self.divided[vertex] = division.checkpoint

    def _replace(self, before: Sequence[SubtaskId], after: Sequence[SubtaskId]) -> None:
        """What is known of the subtasks before goes, but for their rows."""
        for subtask in before:
            for known in (self.generations, self.recorded, self.entries):
                known.pop(subtask, None)
            for key in [key for key in self.rows if key[0] == subtask]:
                del self.rows[key]

    def fence(self, generation: Generation, subtasks: Sequence[SubtaskId]) -> dict[int, StoredOutput]:
        """Refuse older generations, and say what there is of the subtasks."""
        self._world.checks.output_known([known for known in self.generations if known.vertex == subtasks[0].vertex])
        found = {}
        for subtask in subtasks:
            self.generations[subtask] = max(generation, self.generations.get(subtask, 0))
            found[subtask.index] = StoredOutput(self.recorded.get(subtask, 0), tuple(self.entries.get(subtask, ())))
        return found


class SimRecipeSink:
    """Writes the rows of one subtask; see ``RecipePort``."""

    def __init__(self, owner: SimSubtask) -> None:
        self._owner = owner
        self._world = owner.slot.world
        self._pending: deque[Cut] = deque()
        self._busy = False
        self._fenced = False
        self._complete = 0
        self._held = CheckpointId(0)
        self._stored = 0
        self._barriers: dict[CheckpointId, int] = {}
        self.snapshot: CheckpointId | None = None
        self._before = 0

    @property
    def accepts(self) -> bool:
        return len(self._pending) < MOST_PENDING

    def cut(self, step: int, entry: RecipeEntry) -> None:
        self._note_barrier(step)
        self._pending.append(Cut(step, self._owner.take_rows(), entry, dict(self._owner.depends)))
        self._begin()

    def repeated(self, step: int) -> None:
        self._note_barrier(step)
        self._stored = step
        self._world.checks.counts["not_written_again"] += 1
        self._world.checks.made_again(self._owner, step, self._owner.take_rows())

    def hold(self, checkpoint: CheckpointId) -> None:
        self._held = checkpoint
        self._begin()

    def _storable(self) -> int:
        """How many of the cuts that wait may be stored: those before the first that is held."""
        return next((at for at, cut in enumerate(self._pending) if is_held(cut.entry, self._held)), len(self._pending))

    def _note_barrier(self, step: int) -> None:
        """The first cut after a snapshot is that of its barrier."""
        if self.snapshot is not None:
            self._barriers[self.snapshot], self.snapshot = step, None

    def has_stored(self, checkpoint: CheckpointId) -> bool:
        """Whether all cuts up to the barrier of ``checkpoint`` are stored."""
        return self._stored >= self._barriers[checkpoint]

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""
        self._complete = checkpoint

    # --- transactions

    def _begin(self) -> None:
        most = self._storable()
        if self._busy or not most or self._fenced or self._owner.closed:
            return
        self._busy = True
        world, rng = self._world, self._world.rng_table
        count = rng.randint(1, min(MOST_CUTS, most))
        cuts = [self._pending[at] for at in range(count)]
        at_ms = world.now_ms + rng.randint(0, 6)
        lost = rng.random() < LOST
        happens = not lost or rng.random() < 0.5
        world.at(at_ms, self._transaction, cuts, self._complete, lost, happens)

    def _transaction(self, cuts: list[Cut], complete: int, lost: bool, happens: bool) -> None:
        owner, world = self._owner, self._world
        if world.ended is not None:
            return
        table = world.table
        if table.is_away or not happens:
            owner.slot.later(RETRY_MS, self._ended, cuts, None)
            return
        done = table.store(owner.id, owner.generation, cuts, complete)
        world.checks.counts["transactions" if done else "refused_transactions"] += 1
        owner.slot.later(0 if not lost else RETRY_MS, self._ended, cuts, None if lost else done)

    def _ended(self, cuts: list[Cut], done: bool | None) -> None:
        """A transaction has ended; ``None``: it is not known how, and the table is asked."""
        owner, table = self._owner, self._world.table
        if owner.closed:
            return
        if done is None:
            if table.is_away:
                owner.slot.later(RETRY_MS, self._ended, cuts, None)
                return
            self._world.checks.counts["asked"] += 1
            if table.generations.get(owner.id, 0) == owner.generation:
                done = table.recorded.get(owner.id, 0) >= cuts[-1].step
                if not done:
                    self._busy = False
                    self._begin()
                    return
        self._busy = False
        if not done:
            self._fenced = True  # the subtask is replaced, and ends when its slot knows
            return
        for _ in cuts:
            self._pending.popleft()
        self._stored = cuts[-1].step
        self._begin()
        owner.slot.wake()


def stored_through(sink: SimRecipeSink | None, checkpoint: CheckpointId) -> bool:
    """Whether the output before a barrier is stored."""
    return sink is None or sink.has_stored(checkpoint)
