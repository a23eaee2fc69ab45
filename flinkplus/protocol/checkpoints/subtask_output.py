"""When the output of one subtask is opened, read and fenced, where only one producer can have a name open.

For rows that are visible at once (``determinants.recipe``) in Kafka. Each subtask of a sink has a name for its
transactions, and a part of the far end that only transactions under this name write: the newest ``OutputState``, and
the recipe. Opening a name ends what is under way under it, waits until its fate is settled, and refuses every producer
that had opened it before.

Rules and invariants:

- Who opens the name reads what is stored, and only then writes. So whatever was committed before is known, and nothing
  else can be committed until another producer opens the name.
- A transaction has the state that follows from the one that was read. Its generation is the writer's own: a writer that
  reads another generation has been fenced.
- A fence writes the new generation in a transaction of its own, under the same name. Until it is there, a writer of
  before may open the name again and write; then the fence's transaction is refused, and the fence reads again. What a
  fence answers was read in the session in which the new generation was written, or after it.
- A failure of any kind closes the session. The next attempt opens the name again, and finds out.
- Generations of a later run of the job are higher than all of earlier runs, so the check of the generation fences the
  driver and the writers of an earlier run alike.
- Where a checkpoint was made for other subtasks, the state of those before does not count: its ``division`` is lower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from typing_extensions import assert_never


@dataclass(frozen=True, slots=True)
class OutputState:
    """What is recorded of a subtask.

    ``generation``: the one that may write. ``parallelism``: how many subtasks the sink has; 0: none has begun, and the
    record says only that the far end is the job's. ``division``: the
    checkpoint that was made for these; 0: none was. ``step``: the first one whose rows are not stored. ``digest``: of
    all rows so far. ``trimmed``: the recipe begins at this checkpoint.
    """

    generation: int
    parallelism: int
    division: int = 0
    step: int = 0
    digest: bytes = b""
    trimmed: int = 0


BEGUN = OutputState(0, 0)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a producer knows. ``state``: as it was read, or written, last; ``None``: there is none."""

    phase: Literal["closed", "opened", "known"] = "closed"
    state: OutputState | None = None


CLOSED = Opening()


@dataclass(frozen=True, slots=True)
class OpenSubtaskName:
    """Open the name."""


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read what is stored, to the end."""


@dataclass(frozen=True, slots=True)
class Raise:
    """Write this state, without rows."""

    state: OutputState


@dataclass(frozen=True, slots=True)
class FenceEnd:
    """It is done. ``state``: what is recorded; ``None``: nothing is, and no writer was ever allowed."""

    state: OutputState | None


@dataclass(frozen=True, slots=True)
class FenceRefusal:
    """``later``: a later generation, or subtasks of a later division, write already. ``parallelism``: rows are stored
    of another number of subtasks."""

    why: Literal["later", "parallelism"]
    state: OutputState


Order = OpenSubtaskName | ReadState | Raise | FenceEnd | FenceRefusal


@dataclass(frozen=True, slots=True)
class SubtaskFence:
    """Refuse all generations before ``generation``. ``parallelism``, ``division``: of the subtasks that follow;
    ``parallelism`` 0: none do, and whatever is there stays."""

    generation: int
    parallelism: int = 0
    division: int = 0


def next_order(opening: Opening, fence: SubtaskFence) -> Order:
    """What the driver does next. After it, one of the functions below gives the opening."""
    match opening.phase:
        case "closed":
            return OpenSubtaskName()
        case "opened":
            return ReadState()
        case "known":
            return _decided(opening.state, fence)
    assert_never(opening.phase)


def _decided(state: OutputState | None, fence: SubtaskFence) -> Order:
    if state is not None and state.generation > fence.generation:
        return FenceRefusal("later", state)
    if fence.parallelism:
        if state is None or not state.parallelism or state.division < fence.division:
            fresh = OutputState(fence.generation, fence.parallelism, fence.division, trimmed=fence.division)
            return Raise(fresh)
        if state.division > fence.division:
            return FenceRefusal("later", state)
        if state.parallelism != fence.parallelism:
            return FenceRefusal("parallelism", state)
    if state is None or state.generation == fence.generation:
        return FenceEnd(state)
    return Raise(replace(state, generation=fence.generation))


def opened(opening: Opening) -> Opening:
    return Opening("opened")


def read(opening: Opening, state: OutputState | None) -> Opening:
    """``state`` was read, or has been written."""
    return Opening("known", state)


def may_append(opening: Opening, generation: int, before: int) -> bool:
    """Whether a writer of ``generation`` may write a transaction from step ``before`` on."""
    state = opening.state
    return opening.phase == "known" and state is not None and state.generation == generation and state.step == before
