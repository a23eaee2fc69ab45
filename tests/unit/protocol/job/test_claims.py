"""Claims, and a search of all interleavings of drivers on one bucket.

The search runs drivers step by step on a model of a store: each request is one step, and a write may have its effect
long after it was sent, also when its driver is dead. With conditional writes each run has one driver, no manifest is
replaced, and what is visible is what the checkpoints say. Without them each of the three is broken somewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from flinkplus.protocol.job.claims import NO_CLAIM, RunClaim, is_current, newest_place, next_claim


def test_a_claim_is_the_next_one_and_its_number_rises() -> None:
    first = next_claim(NO_CLAIM, "a")
    assert first == RunClaim(1, 1, "a")
    assert next_claim(first, "b") == RunClaim(2, 2, "b")
    assert next_claim(first, "b", at_least=7) == RunClaim(2, 7, "b")
    assert next_claim(RunClaim(3, 9, "c"), "d", at_least=7) == RunClaim(4, 10, "d")
    assert newest_place([2, 1, 3]) == 3 and newest_place([]) == 0


@pytest.mark.parametrize("content", [b"", b"1", b"x a", b"1 ", b"0 a", b"-1 a", b"1 a b", b"\xff a"])
def test_what_is_no_claim_is_refused(content: bytes) -> None:
    claim = RunClaim(4, 12, "ab")
    assert RunClaim.stored(4, claim.content()) == claim
    with pytest.raises(ValueError):
        RunClaim.stored(4, content)


def test_a_claim_is_current_until_there_is_a_next_one() -> None:
    mine = RunClaim(2, 5, "a")
    assert is_current(mine, mine.content(), has_next=False)
    assert not is_current(mine, mine.content(), has_next=True)
    assert not is_current(mine, RunClaim(2, 5, "b").content(), has_next=False), "of another driver's mark"
    assert not is_current(mine, None, has_next=False), "the directory was emptied"


# --- the search ---

CLAIM, MANIFEST, CUT, VISIBLE = "claim", "manifest", "cut", "visible"


@dataclass(frozen=True)
class Put:
    """A write that was sent. ``expected``: the content that it replaces, or ``None`` for a new object."""

    name: tuple[str, int, int]
    content: str
    expected: str | None = None


@dataclass(frozen=True)
class OneDriver:
    """``step``: what it does next. ``sent``: the write whose answer it waits for. ``seen``: newest claim at its start.
    ``base``: checkpoint that it continues. ``lost``: its claim was another's."""

    mark: str
    step: str = "look"
    sent: Put | None = None
    accepted: bool = False
    seen: RunClaim = NO_CLAIM
    claim: RunClaim = NO_CLAIM
    base: int = 0
    left: int = 1  # checkpoints to take


@dataclass(frozen=True)
class World:
    """``objects``: the store. ``late``: writes of dead drivers that have had no effect yet. ``deaths``: drivers that
    may still die. ``replaced``: the name of a manifest that had another content before."""

    drivers: tuple[OneDriver, ...]
    objects: frozenset[tuple[tuple[str, int, int], str]] = frozenset()
    late: frozenset[Put] = frozenset()
    deaths: int = 1
    replaced: str = ""


class FoundHole(Exception):
    """A broken invariant."""


def stored(world: World) -> dict[tuple[str, int, int], str]:
    return dict(world.objects)


def claims_of(objects: dict[tuple[str, int, int], str]) -> dict[int, RunClaim]:
    return {n: RunClaim.stored(n, text.encode()) for (kind, n, _), text in objects.items() if kind == CLAIM}


def counting(objects: dict[tuple[str, int, int], str]) -> dict[int, str]:
    """Checkpoint -> content of the manifest that counts: of the newest run, except for what the newest cut voids."""
    run, through = max(((n, int(text)) for (kind, n, _), text in objects.items() if kind == CUT), default=(0, 0))
    found: dict[int, tuple[int, str]] = {}
    for (kind, checkpoint, epoch), text in objects.items():
        if kind == MANIFEST and (epoch >= run or checkpoint <= through):
            found[checkpoint] = max(found.get(checkpoint, (0, "")), (epoch, text))
    return {checkpoint: text for checkpoint, (_, text) in found.items()}


def effect(world: World, put: Put, conditional: bool) -> tuple[World, bool]:
    """The store takes a write, or refuses it."""
    objects = stored(world)
    found = objects.get(put.name)
    if conditional and found != put.expected:
        return world, found == put.content
    objects[put.name] = put.content
    changed = replace(world, objects=frozenset(objects.items()))
    if put.name[0] == MANIFEST and found not in (None, put.content):
        changed = replace(changed, replaced=str(put.name))
    return changed, True


def has_job(driver: OneDriver, objects: dict[tuple[str, int, int], str]) -> bool:
    content = objects.get((CLAIM, driver.claim.place, 0))
    following = (CLAIM, driver.claim.place + 1, 0) in objects
    return is_current(driver.claim, None if content is None else content.encode(), following)


def advance(driver: OneDriver, objects: dict[tuple[str, int, int], str]) -> OneDriver:
    """The driver's next step, which reads the store or sends a write."""
    run, mark = driver.claim.run, driver.mark
    match driver.step:
        case "look":
            known = claims_of(objects)
            newest = known.get(newest_place(known), NO_CLAIM)
            claim = next_claim(newest, mark)
            put = Put((CLAIM, claim.place, 0), claim.content().decode())
            return replace(driver, step="claimed", claim=claim, sent=put)
        case "claimed":
            return replace(driver, step="restore" if driver.accepted else "end")
        case "restore":  # what there is, and how far: stored before anything is changed
            known_manifests = counting(objects)
            base = max(known_manifests, default=0)
            put = Put((CUT, run, 0), str(base))
            return replace(driver, step="adopt", base=base, sent=put)
        case "adopt":  # the output of the checkpoint that it restores may not be visible yet
            return _shown(driver, objects, "check") if driver.base else replace(driver, step="check")
        case "check":
            if not driver.left or not has_job(driver, objects):
                return replace(driver, step="end")
            return replace(driver, step="send")
        case "send":  # it may have stood still since it has checked
            put = Put((MANIFEST, driver.base + 1, run), f"{mark}{driver.base + 1}")
            return replace(driver, step="stored", base=driver.base + 1, left=driver.left - 1, sent=put)
        case "stored":
            ok = driver.accepted and has_job(driver, objects)
            return _shown(driver, objects, "check") if ok else replace(driver, step="end")
    raise AssertionError(driver.step)


def _shown(driver: OneDriver, objects: dict[tuple[str, int, int], str], then: str) -> OneDriver:
    """Make the output of ``base`` visible, by the manifest that it has read or written."""
    if not has_job(driver, objects):
        return replace(driver, step="end")
    content = objects.get((MANIFEST, driver.base, driver.claim.run)) or counting(objects).get(driver.base, "")
    mine = f"{driver.mark}{driver.base}" if driver.step == "stored" else content
    name = (VISIBLE, driver.base, 0)
    return replace(driver, step=then, sent=Put(name, mine, objects.get(name)))


def moves(world: World, conditional: bool) -> Iterator[World]:
    """All worlds one step later."""
    for put in world.late:
        yield effect(replace(world, late=world.late - {put}), put, conditional)[0]
    for number, driver in enumerate(world.drivers):
        if driver.step == "end":
            continue

        def after(new: OneDriver, of: World = world, at: int = number) -> World:
            return replace(of, drivers=(*of.drivers[:at], new, *of.drivers[at + 1 :]))

        if driver.sent is not None:
            if world.deaths:
                dead = after(replace(driver, step="end", sent=None))
                yield replace(dead, deaths=world.deaths - 1, late=world.late | {driver.sent})
            changed, accepted = effect(world, driver.sent, conditional)
            yield after(replace(driver, sent=None, accepted=accepted), changed)
        else:
            yield after(advance(driver, stored(world)))


def each_run_has_one_driver(world: World) -> None:
    running = [d for d in world.drivers if d.step not in ("look", "claimed", "end")]
    numbers = [d.claim.run for d in running]
    if len(set(numbers)) < len(numbers):
        raise FoundHole(f"two drivers have run {numbers}")


def no_manifest_is_replaced(world: World) -> None:
    if world.replaced:
        raise FoundHole(f"{world.replaced} was replaced")


def visible_is_what_counts(world: World) -> None:
    objects = stored(world)
    says = counting(objects)
    for (kind, checkpoint, _), content in objects.items():
        if kind == VISIBLE and says.get(checkpoint) != content:
            raise FoundHole(f"{content} is visible for checkpoint {checkpoint}, whose manifest is {says}")


Invariant = Callable[[World], None]
INVARIANTS: tuple[Invariant, ...] = (each_run_has_one_driver, no_manifest_is_replaced, visible_is_what_counts)


def search(
    drivers: int, conditional: bool, checkpoints: int, deaths: int, invariants: Sequence[Invariant] = INVARIANTS
) -> int:
    """Number of worlds that can be reached. Raises ``FoundHole``."""
    first = World(tuple(OneDriver("abc"[n], left=checkpoints) for n in range(drivers)), deaths=deaths)
    found, open_worlds = {first}, [first]
    while open_worlds:
        world = open_worlds.pop()
        for holds in invariants:
            holds(world)
        for later in moves(world, conditional):
            if later not in found:
                found.add(later)
                open_worlds.append(later)
    return len(found)


def test_with_conditional_writes_no_two_drivers_both_commit() -> None:
    assert search(drivers=2, conditional=True, checkpoints=2, deaths=1) > 1_000


@pytest.mark.long
def test_nor_do_three() -> None:
    assert search(drivers=3, conditional=True, checkpoints=1, deaths=1) > 10_000


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_without_them_the_search_finds_the_hole(invariant: Invariant) -> None:
    with pytest.raises(FoundHole):
        search(drivers=2, conditional=False, checkpoints=1, deaths=0, invariants=[invariant])


def test_a_driver_that_does_not_check_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search sees faults of the drivers, too."""
    monkeypatch.setitem(globals(), "has_job", lambda driver, objects: True)
    with pytest.raises(FoundHole):
        search(drivers=2, conditional=True, checkpoints=1, deaths=0)


def test_a_manifest_that_counts_although_it_is_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_count(objects: dict[tuple[str, int, int], str]) -> dict[int, str]:
        return {n: text for (kind, n, _), text in sorted(objects.items(), reverse=True) if kind == MANIFEST}

    monkeypatch.setitem(globals(), "counting", all_count)
    with pytest.raises(FoundHole):
        search(drivers=2, conditional=True, checkpoints=1, deaths=0)
