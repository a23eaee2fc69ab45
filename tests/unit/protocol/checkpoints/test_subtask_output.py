"""What a fence and a writer of one subtask decide, and a search of all their interleavings on one name of Kafka.

The search runs fences and the writers that follow them step by step on a model: opening a name ends the transaction
under way and raises the epoch; a transaction of an older epoch is refused; an answer may be lost, and the end of a
transaction may arrive later. Each of them may stand still anywhere, for ever if it is dead. A writer chooses what a
step makes, unless the recipe says it. In every world each step's row is visible once, the recipe beside the rows makes
them again, and no fence has missed a row of an earlier generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from flinkplus.protocol.checkpoints import subtask_output
from flinkplus.protocol.checkpoints.subtask_output import (
    CLOSED,
    FenceEnd,
    FenceRefusal,
    Opening,
    OpenSubtaskName,
    Order,
    OutputState,
    Raise,
    ReadState,
    SubtaskFence,
    next_order,
)
from flinkplus.protocol.determinants import recorded
from flinkplus.protocol.determinants.recorded import Recorded


def replace(one: Any, **changes: Any) -> Any:
    """``one`` with other values. The search has many worlds, and named tuples are fast."""
    return one._replace(**changes) if hasattr(one, "_replace") else dataclasses.replace(one, **changes)


TWO = OutputState(3, 2, 0, 7, b"d", 5)


def known(state: OutputState | None) -> Opening:
    return subtask_output.read(CLOSED, state)


@pytest.mark.parametrize(
    ("state", "fence", "order"),
    [
        (None, SubtaskFence(3, 2), Raise(OutputState(3, 2))),
        (None, SubtaskFence(3, 2, 9), Raise(OutputState(3, 2, 9, trimmed=9))),
        (None, SubtaskFence(3), FenceEnd(None)),
        (TWO, SubtaskFence(4, 2), Raise(replace(TWO, generation=4))),
        (TWO, SubtaskFence(3, 2), FenceEnd(TWO)),
        (TWO, SubtaskFence(2, 2), FenceRefusal("later", TWO)),
        (TWO, SubtaskFence(2), FenceRefusal("later", TWO)),
        (TWO, SubtaskFence(4), Raise(replace(TWO, generation=4))),
        (TWO, SubtaskFence(4, 3), FenceRefusal("parallelism", TWO)),
        (TWO, SubtaskFence(4, 3, 9), Raise(OutputState(4, 3, 9, trimmed=9))),
        (subtask_output.BEGUN, SubtaskFence(3, 2), Raise(OutputState(3, 2))),
        (TWO, SubtaskFence(2, 3, 9), FenceRefusal("later", TWO)),
        (replace(TWO, division=9), SubtaskFence(4, 2), FenceRefusal("later", replace(TWO, division=9))),
    ],
)
def test_what_a_fence_decides(state: OutputState | None, fence: SubtaskFence, order: Order) -> None:
    assert next_order(CLOSED, fence) == OpenSubtaskName()
    assert next_order(subtask_output.opened(CLOSED), fence) == ReadState()
    assert next_order(known(state), fence) == order


def test_only_the_generation_that_has_read_its_state_may_append() -> None:
    assert subtask_output.may_append(known(TWO), 3, 7)
    for opening, generation, before in (
        (CLOSED, 3, 7),
        (replace(known(TWO), phase="opened"), 3, 7),
        (known(None), 3, 7),
        (known(TWO), 2, 7),
        (known(TWO), 3, 6),
    ):
        assert not subtask_output.may_append(opening, generation, before)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, "changed"),
        (Recorded(3, 4, b""), "not stored"),
        (Recorded(3, 6, b""), "stored"),
        (Recorded(3, 5, b""), "changed"),
        (Recorded(4, 6, b""), "fenced"),
        (Recorded(2, 4, b""), "changed"),
    ],
)
def test_what_became_of_a_transaction(found: Recorded | None, expected: str) -> None:
    assert recorded.outcome(found, 3, 4, 6) == expected


# --- the search -------------------------------------------------------------------------------------------------------

Rows = tuple[tuple[int, int], ...]
"""Step, and the generation that chose what it makes."""


class Transaction(NamedTuple):
    """``entries``: of the recipe: what each step makes."""

    epoch: int
    rows: Rows
    state: OutputState
    entries: Rows


class Actor(NamedTuple):
    """The fence of a generation, which becomes its writer. ``answer``: what the fence has answered. ``step``: what it
    does next. ``order``: a state that is half written. ``left``: steps to make."""

    generation: int
    step: str = "waits"
    epoch: int = 0
    opening: Opening = CLOSED
    seen: Rows = ()
    answer: Rows | None = None
    at: int = 0
    half: Transaction | None = None
    left: int = 1
    attempts: int = 2
    unsure: bool = False


class World(NamedTuple):
    """``log``: transactions in order, and whether each was committed. ``late``: ends of transactions that have not
    arrived. ``losses``: answers that may be lost."""

    actors: tuple[Actor, ...]
    epoch: int = 0
    pending: Transaction | None = None
    log: tuple[tuple[Transaction, bool], ...] = ()
    late: frozenset[Transaction] = frozenset()
    losses: int = 1

    @property
    def visible(self) -> Rows:
        return tuple(row for one, is_committed in self.log if is_committed for row in one.rows)

    @property
    def recipe(self) -> Rows:
        return tuple(entry for one, is_committed in self.log if is_committed for entry in one.entries)


class FoundHole(Exception):
    """A broken invariant."""


class Far:
    """What Kafka does. Faults replace its methods, and those of ``Acting``."""

    @staticmethod
    def open(world: World) -> World:
        log = world.log if world.pending is None else (*world.log, (world.pending, False))
        return replace(world, epoch=world.epoch + 1, pending=None, log=log)

    @staticmethod
    def begin(world: World, one: Transaction) -> World | None:
        """``None``: refused."""
        return replace(world, pending=one) if one.epoch == world.epoch else None

    @staticmethod
    def end(world: World, one: Transaction) -> World | None:
        if world.pending != one or one.epoch != world.epoch:
            return None
        return replace(world, pending=None, log=(*world.log, (one, True)))

    @staticmethod
    def read(world: World) -> tuple[OutputState | None, Rows]:
        committed = [one for one, is_committed in world.log if is_committed]
        return (committed[-1].state if committed else None), tuple(row for one in committed for row in one.entries)


class Acting:
    """What a fence and a writer do."""

    @staticmethod
    def order(opening: Opening, fence: SubtaskFence) -> Order:
        return next_order(opening, fence)

    @staticmethod
    def failed(actor: Actor) -> Actor:
        return replace(actor, opening=CLOSED, half=None, attempts=actor.attempts - 1)

    @staticmethod
    def transaction(actor: Actor, state: OutputState, rows: Rows) -> Transaction:
        return Transaction(actor.epoch, rows, state, rows)

    @staticmethod
    def outcome(actor: Actor, state: OutputState | None) -> str:
        found = None if state is None else Recorded(state.generation, state.step, state.digest)
        return recorded.outcome(found, actor.generation, actor.at, actor.at + actor.unsure)


def moved(world: World, actor: Actor) -> Iterator[tuple[World, Actor]]:
    """All that can come of the next step of an actor."""
    if actor.half is not None:
        yield from ended(world, actor, actor.half)
    elif actor.step == "fences":
        yield from fenced(world, actor)
    elif actor.opening.phase == "closed":
        after = Far.open(world)
        yield after, replace(actor, epoch=after.epoch, opening=Opening("opened"))
    elif actor.opening.phase == "opened":
        yield world, connected(world, actor)
    elif actor.left:
        row = ((actor.at, actor.generation),)
        assert actor.opening.state is not None
        one = Acting.transaction(actor, replace(actor.opening.state, step=actor.at + 1), row)
        begun = Far.begin(world, one)
        yield (world, tried(actor)) if begun is None else (begun, replace(actor, half=one))
    else:
        yield world, replace(actor, step="ended")


def connected(world: World, actor: Actor) -> Actor:
    """A writer has read what is recorded."""
    state, _ = Far.read(world)
    match Acting.outcome(actor, state):
        case "not stored":
            return replace(actor, opening=known(state), unsure=False)
        case "stored":
            made = actor.at + actor.unsure
            left = actor.left - actor.unsure
            return replace(actor, opening=known(state), at=made, left=left, unsure=False)
        case found:
            return replace(actor, step=found)


def fenced(world: World, actor: Actor) -> Iterator[tuple[World, Actor]]:
    match Acting.order(actor.opening, SubtaskFence(actor.generation, 1)):
        case OpenSubtaskName():
            after = Far.open(world)
            yield after, replace(actor, epoch=after.epoch, opening=replace(actor.opening, phase="opened"))
        case ReadState():
            state, rows = Far.read(world)
            yield world, replace(actor, opening=known(state), seen=rows)
        case Raise(state):
            one = Acting.transaction(actor, state, ())
            begun = Far.begin(world, one)
            yield (world, tried(actor)) if begun is None else (begun, replace(actor, half=one))
        case FenceEnd(state):
            at = 0 if state is None else state.step
            yield world, replace(actor, step="writes", answer=actor.seen, at=at, opening=CLOSED, attempts=2)
        case FenceRefusal():
            yield world, replace(actor, step="refused")


def ended(world: World, actor: Actor, one: Transaction) -> Iterator[tuple[World, Actor]]:
    """The end of a transaction: it is answered, or the answer is lost, or the request arrives later or never."""
    after = Far.end(world, one)
    if after is None:
        yield world, tried(replace(actor, unsure=actor.step == "writes"))
        return
    made = bool(one.rows)
    yield after, replace(actor, half=None, opening=known(one.state), at=actor.at + made, left=actor.left - made)
    if world.losses:
        fewer, unsure = world.losses - 1, tried(replace(actor, unsure=made))
        yield replace(after, losses=fewer), unsure
        yield replace(world, losses=fewer, late=world.late | {one}), unsure


def tried(actor: Actor) -> Actor:
    after = Acting.failed(actor)
    return after if after.attempts else replace(after, step="failed")


OVER = ("ended", "refused", "failed", "fenced", "changed")


def moves(world: World) -> Iterator[World]:
    for one in world.late:
        rest = replace(world, late=world.late - {one})
        yield Far.end(rest, one) or rest
    for at, actor in enumerate(world.actors):
        if actor.step in OVER:
            continue
        if actor.step == "waits":
            if not at or world.actors[at - 1].step != "waits":
                yield changed(world, at, replace(actor, step="fences"))
            continue
        for after, moved_on in moved(world, actor):
            yield changed(after, at, moved_on)


def changed(world: World, at: int, actor: Actor) -> World:
    return replace(world, actors=(*world.actors[:at], actor, *world.actors[at + 1 :]))


def each_step_is_visible_once(world: World) -> None:
    steps = [step for step, _ in world.visible]
    if steps != sorted(set(steps)):
        raise FoundHole(f"visible are {world.visible}")


def the_recipe_makes_what_is_visible(world: World) -> None:
    if world.recipe != world.visible:
        raise FoundHole(f"visible are {world.visible}, and the recipe makes {world.recipe}")


def a_fence_knows_all_earlier_rows(world: World) -> None:
    """Those of its answer are visible, too: their writer does not write them again."""
    for actor in world.actors:
        if actor.answer is not None:
            earlier = tuple(row for row in world.visible if row[1] < actor.generation)
            if earlier != actor.answer:
                raise FoundHole(f"generation {actor.generation} has answered {actor.answer}, and visible are {earlier}")


def nothing_is_missing(world: World) -> None:
    for actor in world.actors:
        if actor.step == "ended" and (actor.at - 1, actor.generation) not in world.visible:
            raise FoundHole(f"generation {actor.generation} has made step {actor.at - 1}; visible: {world.visible}")


def no_writer_finds_what_it_has_not_written(world: World) -> None:
    """It would end its subtask with an error."""
    if any(actor.step == "changed" for actor in world.actors):
        raise FoundHole(f"{world.actors}")


INVARIANTS = (
    each_step_is_visible_once,
    the_recipe_makes_what_is_visible,
    a_fence_knows_all_earlier_rows,
    nothing_is_missing,
    no_writer_finds_what_it_has_not_written,
)


def itself(world: World) -> World:
    return world


def reduced(world: World) -> World:
    """One world for all that continue alike: an epoch is the newest, 1, or refused, 0; and aborted rows, which readers
    of committed ones do not see, are left out. For worlds without a fault."""

    def epoch(one: int) -> int:
        return int(one == world.epoch)

    def known_as(one: Transaction) -> Transaction:
        return one._replace(epoch=epoch(one.epoch))

    return World(
        tuple(
            one._replace(epoch=epoch(one.epoch), half=None if one.half is None else known_as(one.half))
            for one in world.actors
        ),
        epoch=1,
        pending=None if world.pending is None else known_as(world.pending),
        log=tuple((one._replace(epoch=0), True) for one, is_committed in world.log if is_committed),
        late=frozenset(map(known_as, world.late)),
        losses=world.losses,
    )


def search(
    generations: int = 2, steps: int = 1, losses: int = 1, alike: Callable[[World], World] = itself
) -> set[World]:
    """All worlds that can be reached. ``alike``: the one that stands for a world. Raises ``FoundHole``."""
    first = World(tuple(Actor(number, left=steps) for number in range(1, generations + 1)), losses=losses)
    first = alike(first)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        for holds in INVARIANTS:
            holds(world)
        for later in map(alike, moves(world)):
            if later not in seen:
                seen.add(later)
                waiting.append(later)
    return seen


def test_in_every_order_each_step_is_visible_once() -> None:
    worlds = search()
    ends = {tuple(actor.step for actor in world.actors) for world in worlds}
    assert {("ended", "ended"), ("fenced", "ended"), ("refused", "ended"), ("ended", "failed")} <= ends
    assert any(world.late for world in worlds) and any(not kept for world in worlds for _, kept in world.log)


@pytest.mark.long
def test_nor_do_three_generations_or_more_losses_break_it() -> None:
    """Some 10 s, since worlds that continue alike are one: otherwise it takes many minutes."""
    assert len(search(steps=2, losses=2, alike=reduced)) > 20_000
    assert len(search(generations=3, losses=0, alike=reduced)) > 40_000


@pytest.mark.long
def test_worlds_that_continue_alike_are_the_same_worlds() -> None:
    everything = search()
    assert search(alike=reduced) == {reduced(world) for world in everything} and len(everything) > 30_000


def broken() -> None:
    with pytest.raises(FoundHole):
        search()


def test_a_recipe_that_is_not_in_the_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acting, "transaction", lambda actor, state, rows: Transaction(actor.epoch, rows, state, ()))
    broken()


def test_a_recipe_that_is_read_before_the_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_first(opening: Opening, fence: SubtaskFence) -> Order:
        match opening.phase:
            case "closed":
                return OpenSubtaskName() if opening.state is not None else ReadState()
            case "opened":
                return next_order(replace(opening, phase="known"), fence)
        return OpenSubtaskName() if opening.state is None else next_order(opening, fence)

    def read(world: World) -> tuple[OutputState | None, Rows]:
        state, rows = Far_read(world)
        return state or OutputState(0, 1), rows

    def known_and_closed(state: OutputState | None) -> Opening:
        return Opening("closed", state)

    Far_read = Far.read
    monkeypatch.setattr(Far, "read", read)
    monkeypatch.setattr(Acting, "order", read_first)
    original = fenced

    def stale(world: World, actor: Actor) -> Iterator[tuple[World, Actor]]:
        for after, later in original(world, actor):
            is_read = actor.opening.phase == "closed" and later.opening.phase == "known"
            yield after, replace(later, opening=known_and_closed(later.opening.state)) if is_read else later

    monkeypatch.setitem(globals(), "fenced", stale)
    broken()


def test_aborted_records_that_are_read_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that does not leave out what was aborted, and reads beyond the last stable offset."""

    def read(world: World) -> tuple[OutputState | None, Rows]:
        found = [one for one, _ in world.log] + ([] if world.pending is None else [world.pending])
        return (found[-1].state if found else None), tuple(row for one in found for row in one.entries)

    monkeypatch.setattr(Far, "read", read)
    broken()


def test_a_writer_that_does_not_check_the_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchecked(actor: Actor, state: OutputState | None) -> str:
        found = None if state is None else Recorded(actor.generation, state.step, state.digest)
        return recorded.outcome(found, actor.generation, actor.at, actor.at + actor.unsure)

    monkeypatch.setattr(Acting, "outcome", unchecked)
    broken()


def test_a_fence_that_writes_no_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens the name and reads. A writer of before opens it again, and finds nothing that refuses it."""

    def unwritten(opening: Opening, fence: SubtaskFence) -> Order:
        order = next_order(opening, fence)
        return FenceEnd(order.state) if isinstance(order, Raise) and opening.state is not None else order

    monkeypatch.setattr(Acting, "order", unwritten)
    broken()


def test_a_name_that_refuses_no_former_producer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(world: World, one: Transaction) -> World | None:
        return replace(world, pending=None, log=(*world.log, (one, True)))

    monkeypatch.setattr(Far, "begin", lambda world, one: replace(world, pending=one))
    monkeypatch.setattr(Far, "end", end)
    broken()


@pytest.mark.parametrize("taken_as", [0, 1], ids=["failed", "done"])
def test_a_lost_answer_that_is_taken_for_an_outcome_is_found(taken_as: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Acting.outcome

    def believed(actor: Actor, state: OutputState | None) -> str:
        found = original(actor, state)
        return ("not stored", "stored")[taken_as] if actor.unsure and found in ("stored", "not stored") else found

    monkeypatch.setattr(Acting, "outcome", believed)
    broken()


def test_a_fence_that_keeps_what_it_has_read_after_a_failure_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its transaction was refused, since a writer of before had opened the name again: it opens it, and only writes."""

    def kept(actor: Actor) -> Actor:
        after = replace(actor, half=None, attempts=actor.attempts - 1)
        return replace(after, opening=replace(actor.opening if actor.step == "fences" else CLOSED, phase="closed"))

    def order(opening: Opening, fence: SubtaskFence) -> Order:
        if opening.phase == "opened" and opening.state is not None:
            return next_order(replace(opening, phase="known"), fence)
        return next_order(opening, fence)

    monkeypatch.setattr(Acting, "failed", kept)
    monkeypatch.setattr(Acting, "order", order)
    broken()
