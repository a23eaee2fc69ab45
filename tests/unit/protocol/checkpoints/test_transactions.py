"""The decisions of a sink with transactions, and a search of all interleavings of drivers on one cluster.

The search runs drivers step by step on a model of Kafka: opening a name ends the transaction under way and raises the
epoch; a transaction of an older epoch is refused; an answer may be lost, and a request may arrive later. A driver may
stand still at any step, for ever if it is dead, and the next one may find a manifest unreadable and fall back behind
it. In every world what is visible is what the manifests say, once, and progress agrees with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from flinkplus.errors import OutputTopicError
from flinkplus.protocol.checkpoints import transactions
from flinkplus.protocol.checkpoints.transactions import (
    Add,
    Begin,
    Check,
    Continue,
    Done,
    HandOver,
    Open,
    Order,
    OutputProgress,
    Read,
    Refuse,
    Session,
    Write,
    failed,
    found,
    next_order,
    opened,
)

JOB, OTHER = "job-1", "job-2"


def known(checkpoint: int | None, taken_by: str = "", least: int = 0) -> Session:
    progress = None if checkpoint is None else OutputProgress(checkpoint=checkpoint, taken_by=taken_by)
    return found(Session(JOB, least=least), progress)


def test_only_a_session_that_was_opened_checked_and_read_writes() -> None:
    session = Session(JOB)
    assert next_order(session, Add(3)) == Open()
    session = opened(session)
    assert next_order(session, Add(3)) == Check()
    session = transactions.checked(session)
    assert next_order(session, Add(3)) == Read()
    session = found(session, OutputProgress(checkpoint=1))
    order = next_order(session, Add(3))
    assert order == Write(1, 3, ((JOB, OutputProgress(checkpoint=3)),))
    assert isinstance(order, Write)
    session = transactions.written(session, order)
    assert next_order(session, Add(3)) == Done(OutputProgress(checkpoint=3)) == next_order(session, Add(2))
    assert next_order(failed(session), Add(4)) == Open()


@pytest.mark.parametrize(
    ("session", "goal", "order"),
    [
        (known(None), Begin(), Write(0, 0, ((JOB, OutputProgress(checkpoint=0)),))),
        (known(None), Begin(5, again=True), Write(5, 5, ((JOB, OutputProgress(checkpoint=5)),))),
        (known(0), Begin(), Done(OutputProgress(checkpoint=0))),
        (known(2), Begin(), Refuse("begun")),
        (known(7), Begin(5, again=True), Done(OutputProgress(checkpoint=7))),
        (known(None), Continue(), Refuse("absent")),
        (known(4), Continue(), Done(OutputProgress(checkpoint=4))),
        (known(None), Add(1), Refuse("absent")),
        (known(None, least=3), Add(4), Refuse("lost")),
        (known(2, least=3), Continue(), Refuse("lost")),
        (known(4, OTHER), Add(5), Refuse("taken", taken_by=OTHER)),
        (known(4, OTHER), Continue(), Refuse("taken", taken_by=OTHER)),
        (known(None), HandOver(OTHER, 4), Done(None)),
        (known(4, OTHER), HandOver(OTHER, 4), Done(OutputProgress(checkpoint=4, taken_by=OTHER))),
        (known(4, "job-3"), HandOver(OTHER, 4), Refuse("taken", taken_by="job-3")),
        (known(5), HandOver(OTHER, 4), Refuse("later", checkpoint=5)),
        (
            known(3),
            HandOver(OTHER, 4),
            Write(4, 4, ((JOB, OutputProgress(checkpoint=3, taken_by=OTHER)), (OTHER, OutputProgress(checkpoint=4)))),
        ),
    ],
)
def test_what_is_decided(session: Session, goal: Any, order: Order) -> None:
    assert next_order(session, goal) == order


@pytest.mark.parametrize("content", [None, {}, {"format": 2, "checkpoint": 1}, {"format": 1, "checkpoint": "1"}, []])
def test_what_is_no_progress_is_refused(content: Any) -> None:
    assert OutputProgress.from_json(OutputProgress(checkpoint=3).to_json()) == OutputProgress(checkpoint=3)
    with pytest.raises(OutputTopicError, match="malformed output progress"):
        OutputProgress.from_json(content)


# --- the search -------------------------------------------------------------------------------------------------------

ATTEMPTS = 2
CLOSED = Session(JOB)


@dataclass(frozen=True)
class Pending:
    """A transaction under way: rows as (checkpoint, mark of the driver whose manifest has them)."""

    epoch: int
    rows: tuple[tuple[int, str], ...]
    progress: int


@dataclass(frozen=True)
class OneDriver:
    """``step``: what it does next. ``claim``: its number. ``epoch``: under which it writes. ``content``: the rows that
    its manifests name, by checkpoint. ``left``: checkpoints to take. ``order``: a transaction that is half done."""

    mark: str
    step: str = "claim"
    claim: int = 0
    epoch: int = 0
    session: Session = CLOSED
    content: tuple[tuple[int, str], ...] = ()
    checkpoint: int = 0
    left: int = 1
    attempts: int = ATTEMPTS
    order: Write | None = None


@dataclass(frozen=True)
class World:
    """``manifests``: checkpoint, mark. ``late``: epochs of ends of transactions that have not arrived. ``losses``:
    answers that may be lost. ``falls``: manifests that may be unreadable."""

    drivers: tuple[OneDriver, ...]
    epoch: int = 0
    pending: Pending | None = None
    visible: tuple[tuple[int, str], ...] = ()
    progress: int | None = None
    claims: int = 0
    manifests: tuple[tuple[int, str], ...] = ()
    late: frozenset[int] = frozenset()
    losses: int = 1
    falls: int = 1


class FoundHole(Exception):
    """A broken invariant."""


class Cluster:
    """What Kafka does. Faults replace its methods, and those of ``Driving``."""

    @staticmethod
    def open(world: World) -> World:
        return replace(world, epoch=world.epoch + 1, pending=None)

    @staticmethod
    def begin(world: World, pending: Pending) -> World | None:
        """``None``: refused."""
        return replace(world, pending=pending) if pending.epoch == world.epoch else None

    @staticmethod
    def end(world: World, epoch: int) -> World | None:
        pending = world.pending
        if pending is None or epoch != world.epoch or pending.epoch != epoch:
            return None
        visible = (*world.visible, *pending.rows)
        return replace(world, pending=None, visible=visible, progress=pending.progress)


def is_current(world: World, driver: OneDriver) -> bool:
    return driver.claim == world.claims


def goal_of(driver: OneDriver) -> Any:
    match driver.step:
        case "begin":
            return Begin()
        case "prepare" | "retract":
            return Continue()
    return Add(driver.checkpoint)


FOLLOWING = {"begin": "store", "prepare": "retract", "retract": "adopt", "adopt": "store", "commit": "store"}


def restores(world: World, driver: OneDriver) -> Iterator[tuple[World, OneDriver]]:
    """It reads the manifests, of which the newest may be unreadable."""
    for lost in (0, 1) if world.falls and world.manifests else (0,):
        manifests = world.manifests[: len(world.manifests) - lost]
        base = max((checkpoint for checkpoint, _ in manifests), default=0)
        after = replace(world, falls=world.falls - lost)
        begun = world.progress is not None or bool(world.manifests)
        yield after, replace(driver, step="prepare" if begun else "begin", content=manifests, checkpoint=base)


def moved(world: World, driver: OneDriver) -> Iterator[tuple[World, OneDriver]]:
    """All that can come of the driver's next step."""
    match driver.step:
        case "claim":
            number = world.claims + 1
            yield replace(world, claims=number), replace(driver, step="restore", claim=number)
        case "restore":
            yield from restores(world, driver)
        case "store":
            if not driver.left:
                yield world, replace(driver, step="ended")
                return
            checkpoint = driver.checkpoint + 1
            manifest = (checkpoint, driver.mark)
            # The manifest of a driver that was replaced is void; its check after that fails.
            stored = (*world.manifests, manifest) if is_current(world, driver) else world.manifests
            after = replace(driver, step="stored", checkpoint=checkpoint, left=driver.left - 1)
            yield replace(world, manifests=stored), replace(after, content=(*driver.content, manifest))
        case "stored":
            yield world, replace(driver, step="commit" if is_current(world, driver) else "gone", attempts=ATTEMPTS)
        case _:
            yield from towards_its_goal(world, driver)


def towards_its_goal(world: World, driver: OneDriver) -> Iterator[tuple[World, OneDriver]]:
    if driver.order is not None:
        yield from ended(world, driver, driver.order)
        return
    order = next_order(driver.session, goal_of(driver))
    match order:
        case Done():
            yield done(world, driver, order)
        case Refuse():
            yield world, replace(driver, step="refused")
        case Open():
            after = Cluster.open(world)
            yield after, replace(driver, session=opened(driver.session), epoch=after.epoch)
            if world.losses:
                yield replace(after, losses=world.losses - 1), tried(driver)
        case Check():
            if is_current(world, driver):
                yield world, replace(driver, session=transactions.checked(driver.session))
            else:
                yield world, replace(driver, step="gone")
        case Read():
            progress = None if world.progress is None else OutputProgress(checkpoint=world.progress)
            yield world, replace(driver, session=found(driver.session, progress))
        case Write():
            begun = Cluster.begin(
                world, Pending(driver.epoch, rows_of(driver, order), dict(order.progress)[JOB].checkpoint)
            )
            yield (world, tried(driver)) if begun is None else (begun, replace(driver, order=order))


def done(world: World, driver: OneDriver, order: Done) -> tuple[World, OneDriver]:
    after = replace(driver, step=FOLLOWING[driver.step], attempts=ATTEMPTS)
    if driver.step == "retract":
        if order.progress is not None and order.progress.checkpoint > driver.checkpoint:
            return world, replace(driver, step="refused")
        if is_current(world, driver):  # manifests behind the one that it continues from are withdrawn
            return replace(world, manifests=driver.content), after
    return world, after


def rows_of(driver: OneDriver, order: Write) -> tuple[tuple[int, str], ...]:
    return tuple(row for row in driver.content if order.after < row[0] <= order.through)


def ended(world: World, driver: OneDriver, order: Write) -> Iterator[tuple[World, OneDriver]]:
    """The end of a transaction: it is answered, or the answer is lost, or the request arrives later or never."""
    half = replace(driver, order=None)
    after = Cluster.end(world, driver.epoch)
    if after is None:
        yield world, tried(half)
        return
    yield after, replace(half, session=transactions.written(driver.session, order))
    if world.losses:
        fewer = world.losses - 1
        yield replace(after, losses=fewer), tried(half)
        yield replace(world, losses=fewer, late=world.late | {driver.epoch}), tried(half)


def tried(driver: OneDriver) -> OneDriver:
    session, attempts = transactions.failed(driver.session), driver.attempts - 1
    return replace(driver, session=session, attempts=attempts, step=driver.step if attempts else "failed")


OVER = ("ended", "refused", "failed", "gone")


def moves(world: World) -> Iterator[World]:
    for epoch in world.late:
        rest = replace(world, late=world.late - {epoch})
        yield Cluster.end(rest, epoch) or rest
    for at, driver in enumerate(world.drivers):
        if driver.step in OVER or (driver.step == "claim" and not may_claim(world)):
            continue
        for after, changed in moved(world, driver):
            yield replace(after, drivers=(*after.drivers[:at], changed, *after.drivers[at + 1 :]))


def may_claim(world: World) -> bool:
    """The first driver begins before another one is started."""
    return world.claims == 0 or world.progress is not None


def each_row_is_visible_once(world: World) -> None:
    if len(set(world.visible)) < len(world.visible):
        raise FoundHole(f"twice: {world.visible}")


def visible_is_what_the_manifests_say(world: World) -> None:
    """Once a driver has taken up its work, what is visible of a checkpoint is what its manifest names."""
    if any(
        driver.step in ("store", "stored", "commit", "ended") and is_current(world, driver) for driver in world.drivers
    ):
        wrong = [row for row in world.visible if row not in world.manifests]
        if wrong:
            raise FoundHole(f"{wrong} is visible, and the manifests are {world.manifests}")


def progress_is_what_is_visible(world: World) -> None:
    shown = [checkpoint for checkpoint, _ in world.visible]
    if shown != list(range(1, (world.progress or 0) + 1)):
        raise FoundHole(f"visible are {world.visible}, and progress is {world.progress}")


def nothing_is_missing(world: World) -> None:
    for driver in world.drivers:
        if driver.step == "ended" and is_current(world, driver) and (world.progress or 0) < driver.checkpoint:
            raise FoundHole(f"checkpoint {driver.checkpoint} is committed, and visible is {world.visible}")


INVARIANTS = (
    each_row_is_visible_once,
    visible_is_what_the_manifests_say,
    progress_is_what_is_visible,
    nothing_is_missing,
)


def search(drivers: int = 2, checkpoints: int = 1, losses: int = 1) -> Sequence[World]:
    """All worlds that can be reached. Raises ``FoundHole``."""
    ones = tuple(OneDriver("abc"[n], left=checkpoints) for n in range(drivers))
    first = World(ones, losses=losses)
    seen, waiting = {first}, [first]
    while waiting:
        world = waiting.pop()
        for holds in INVARIANTS:
            holds(world)
        for later in moves(world):
            if later not in seen:
                seen.add(later)
                waiting.append(later)
    return list(seen)


def test_in_every_order_each_row_is_visible_once() -> None:
    worlds = search()
    ends = {tuple(driver.step for driver in world.drivers) for world in worlds}
    assert {("ended", "claim"), ("gone", "ended"), ("ended", "ended"), ("commit", "ended")} <= ends
    assert any(world.late for world in worlds) and any(world.falls == 0 for world in worlds)


@pytest.mark.long
def test_nor_do_three_drivers_or_more_losses_break_it() -> None:
    assert len(search(checkpoints=2, losses=2)) > 10_000
    assert len(search(drivers=3, losses=0)) > 100_000


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FoundHole):
        search()


def test_rows_apart_from_progress_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows in one transaction, progress in the next."""

    def end(world: World, epoch: int) -> World | None:
        pending = world.pending
        if pending is None or epoch != world.epoch or pending.epoch != epoch:
            return None
        if pending.rows:
            visible = (*world.visible, *pending.rows)
            return replace(world, visible=visible, pending=replace(pending, rows=()))
        return replace(world, pending=None, progress=pending.progress)

    monkeypatch.setattr(Cluster, "end", end)
    broken(monkeypatch)


def test_a_name_that_refuses_no_former_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(world: World, epoch: int) -> World | None:
        return Cluster_end(replace(world, epoch=epoch), epoch)

    Cluster_end = Cluster.end
    monkeypatch.setattr(Cluster, "open", lambda world: replace(world, epoch=world.epoch + 1))
    monkeypatch.setattr(Cluster, "end", unfenced)
    broken(monkeypatch)


def test_a_transaction_taken_as_failed_when_its_answer_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "failed", lambda session: session)
    broken(monkeypatch)


def test_a_transaction_taken_as_done_when_its_answer_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def believed(session: Session) -> Session:
        progress = session.progress
        if progress is None:
            return failed(session)
        return replace(session, progress=OutputProgress(checkpoint=progress.checkpoint + 1))

    monkeypatch.setattr(transactions, "failed", believed)
    broken(monkeypatch)


def test_progress_that_is_read_before_the_name_is_opened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that keeps what it has read before, and opens only."""

    def kept(session: Session) -> Session:
        known = session.progress is not None
        return replace(session, phase="known" if known else "opened")

    monkeypatch.setattr(transactions, "failed", lambda session: replace(session, phase="closed"))
    monkeypatch.setitem(globals(), "opened", kept)
    broken(monkeypatch)


def test_a_driver_that_does_not_check_after_it_has_opened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "opened", lambda session: transactions.checked(transactions.opened(session)))
    broken(monkeypatch)


def test_rows_that_progress_covers_and_that_are_written_again_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "rows_of", lambda driver, order: driver.content)
    with pytest.raises(FoundHole):
        search(checkpoints=2)
