"""Which slots to evict when slots that the driver reaches do not reach each other.

A slot reports such peers (``SlotPeersUnreached``). Shortly after, when the other slots have had time to report, the
machine decides by the state of all slots (``SlotsSeen``).

Rules:

- The network fails between hosts, so whole hosts are evicted: as few as leave no two that do not reach each other. The
  first is the host that most others (the driver counts as one) cannot reach, then the one that more slots blame, then
  the one with the fewest running subtasks. Of two that do not reach each other, one always stays. For two slots on one
  host, the rules apply to single slots.
- When more than half of the hosts would be evicted, none is for ``patience_ms``: evictions do not help against a
  general network failure, which is likely to end.
- A slot that has not joined is not evicted, since it has no state, but set aside: no slot connects to it.
- An evicted or set-aside host has to wait before its slots join again, twice as long each time: an unstable network
  costs the job a failover now and then, not all its time. After a long time without evictions, the wait is reset.
- A slot whose processes repeatedly die soon after they have joined waits, too: each costs a failover and one of Spark's
  attempts.

Invariants: of two slots that have joined, at most one is evicted for not reaching the other; reports by or about a slot
that is gone have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import assert_never

from flinkplus.protocol.vocabulary.config import earliest_ms
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import JobInterrupted, SlotLost
from flinkplus.protocol.vocabulary.frozen import Frozen

FIRST_PAUSE_MS = 1_000
LONGEST_PAUSE_MS = 60_000
FORGOTTEN_AFTER_MS = 300_000
SHORT_LIFE_MS = 10_000
"""A process that ends sooner after it joined has a short life."""
SHORT_LIVES = 3
"""Number of consecutive short lives after which the next process waits."""


class ReachabilityConfig(Frozen):
    """``gather_ms``: from the first report of a peer to the decision. ``patience_ms``: see above."""

    gather_ms: int = 100
    patience_ms: int = 10_000


# --- events


class SlotPeersUnreached(Frozen):
    """``slot`` gets no answer from ``peers``, which replaces its earlier report.

    ``blamed``: those of them that refuse its connections, or keep sending unreadable frames.
    """

    slot: int
    peers: tuple[int, ...]
    blamed: tuple[int, ...] = ()


class SlotArrived(Frozen):
    """A new process of ``slot``, on ``host``, asks to join the running job."""

    slot: int
    host: str


class Standing(Frozen):
    """The state of a slot. ``subtasks``: number that run on it. ``doubtful``: the driver is missing its pulses."""

    slot: int
    host: str
    subtasks: int
    joined: bool
    doubtful: bool = False


class SlotsSeen(Frozen):
    """The state of all slots, at the deadline; empty while the job does not run."""

    standings: tuple[Standing, ...]


ReachabilityEvent: TypeAlias = SlotPeersUnreached | SlotLost | SlotArrived | SlotsSeen | JobInterrupted

# --- effects


class SetSlotAside(Frozen):
    """No slot may connect to ``slot``, which has not joined, until ``LetSlotJoin``."""

    slot: int
    reason: str


class LetSlotJoin(Frozen):
    slot: int


ReachabilityEffect: TypeAlias = EvictSlot | SetSlotAside | LetSlotJoin

Place: TypeAlias = tuple[str, int]
"""A host and -1, or a host and one of its slots."""


@dataclass(slots=True)
class _Strikes:
    """How often a place was evicted or set aside, and when it may join again."""

    count: int
    last_ms: int
    until_ms: int


class Reachability:
    """The machine of one job."""

    def __init__(self, config: ReachabilityConfig | None = None) -> None:
        self._config = config or ReachabilityConfig()
        self._silent: dict[int, tuple[int, ...]] = {}
        self._blamed: dict[int, tuple[int, ...]] = {}  # a part of ``_silent``
        self._strikes: dict[Place, _Strikes] = {}
        self._waiting: dict[int, int] = {}  # slot -> when it may join
        self._joined_ms: dict[int, int] = {}
        self._short_lives: dict[int, int] = {}  # in a row
        self._look_ms: int | None = None
        self._hopeless_since_ms: int | None = None

    def next_deadline_ms(self) -> int | None:
        """When to step with ``SlotsSeen``."""
        return earliest_ms(self._look_ms, *self._waiting.values())

    def step(self, now_ms: int, event: ReachabilityEvent) -> list[ReachabilityEffect]:
        """The effects of ``event``."""
        match event:
            case SlotPeersUnreached(slot, peers, blamed):
                self._silent.pop(slot, None)
                if peers:
                    self._silent[slot] = peers
                self._blamed[slot] = blamed
                self._look_soon(now_ms)
                return []
            case SlotLost(slot):
                self._forget(slot)
                self._count_life(now_ms, slot)
                return []
            case SlotArrived(slot, host):
                self._forget(slot)
                return self._on_came(now_ms, slot, host)
            case SlotsSeen(standings):
                return [*self._judge_when_due(now_ms, standings), *self._let_join(now_ms)]
            case JobInterrupted():
                self._waiting.clear()
                return []
            case _:
                assert_never(event)

    def _look_soon(self, now_ms: int) -> None:
        if not self._silent:
            self._look_ms = self._hopeless_since_ms = None
        elif self._look_ms is None:
            self._look_ms = now_ms + self._config.gather_ms

    def _forget(self, slot: int) -> None:
        self._waiting.pop(slot, None)
        self._silent = _without(self._silent, slot)
        self._blamed = _without(self._blamed, slot)
        if not self._silent:
            self._look_ms = self._hopeless_since_ms = None

    def _let_join(self, now_ms: int) -> list[ReachabilityEffect]:
        due = [slot for slot, until_ms in self._waiting.items() if now_ms >= until_ms]
        for slot in due:
            del self._waiting[slot]
            self._joined_ms[slot] = now_ms
        return [LetSlotJoin(slot) for slot in due]

    # --- slots that join, and their short lives

    def _on_came(self, now_ms: int, slot: int, host: str) -> list[ReachabilityEffect]:
        reason, until_ms = "", now_ms
        for place in ((host, -1), (host, slot)):
            if place in self._strikes and self._strikes[place].until_ms > until_ms:
                reason, until_ms = f"its host {host} did not reach others a while ago", self._strikes[place].until_ms
        short = self._short_lives.get(slot, 0)
        rested_ms = now_ms + (pause_ms(short - SHORT_LIVES + 1) if short >= SHORT_LIVES else 0)
        if rested_ms > until_ms:
            reason, until_ms = f"its last {short} processes ended soon after they joined", rested_ms
        if not reason:
            self._joined_ms[slot] = now_ms
            return [LetSlotJoin(slot)]
        self._waiting[slot] = until_ms
        return [SetSlotAside(slot, f"{reason}; for {until_ms - now_ms} ms")]

    def _count_life(self, now_ms: int, slot: int) -> None:
        joined_ms = self._joined_ms.pop(slot, None)
        if joined_ms is not None:
            is_short = now_ms - joined_ms < SHORT_LIFE_MS
            self._short_lives[slot] = self._short_lives.get(slot, 0) + 1 if is_short else 0

    # --- the decision

    def _judge_when_due(self, now_ms: int, standings: tuple[Standing, ...]) -> list[ReachabilityEffect]:
        if self._look_ms is None or now_ms < self._look_ms:
            return []
        self._look_ms = now_ms + self._config.gather_ms  # until all slots reach each other
        known = {standing.slot: standing for standing in standings if standing.slot not in self._waiting}
        pairs = self._pairs(known)
        if not pairs:
            self._hopeless_since_ms = None
            return []
        aside = self._set_aside(now_ms, pairs, known)
        both_joined = [(a, b) for a, b in pairs if known[a].joined and known[b].joined]
        return aside + self._judge(now_ms, both_joined, known)

    def _pairs(self, known: dict[int, Standing]) -> list[tuple[int, int]]:
        """Slots that do not reach each other, the lower number first."""
        said = {(min(slot, peer), max(slot, peer)) for slot, peers in self._silent.items() for peer in peers}
        return sorted(pair for pair in said if pair[0] != pair[1] and pair[0] in known and pair[1] in known)

    def _set_aside(
        self, now_ms: int, pairs: list[tuple[int, int]], known: dict[int, Standing]
    ) -> list[ReachabilityEffect]:
        """Set slots aside that have not joined; first those that joined slots do not reach."""
        effects: list[ReachabilityEffect] = []
        until_ms: dict[Place, int] = {}
        for a, b in sorted(pairs, key=lambda pair: not (known[pair[0]].joined or known[pair[1]].joined)):
            slot, other = (a, b) if not known[a].joined else (b, a)
            if known[slot].joined or slot in self._waiting or other in self._waiting:
                continue
            place = _place(known[slot], known[other])
            if place not in until_ms:
                until_ms[place] = self._strike(now_ms, place)
            self._waiting[slot] = until_ms[place]
            effects.append(SetSlotAside(slot, f"it and slot {other} do not reach each other"))
        return effects

    def _judge(self, now_ms: int, pairs: list[tuple[int, int]], known: dict[int, Standing]) -> list[ReachabilityEffect]:
        among = [(_place(known[a], known[b]), _place(known[b], known[a]), (a, b)) for a, b in pairs]
        going: list[tuple[Place, tuple[int, int]]] = []
        while among:
            worst = max(
                {place: None for a, b, _ in among for place in (a, b)},
                key=lambda place: self._rank(place, among, known),
            )
            going.append((worst, next(pair for a, b, pair in among if worst in (a, b))))
            among = [edge for edge in among if not any(_is_within(place, worst) for place in edge[:2])]
        going = _needed(going, pairs, known)
        places = {standing.host for standing in known.values()}
        total = len(places) if len(places) > 1 else len(known)
        if 2 * len(going) > total:
            if self._hopeless_since_ms is None:
                self._hopeless_since_ms = now_ms
            if now_ms - self._hopeless_since_ms < self._config.patience_ms:
                return []
        self._hopeless_since_ms = None
        effects: list[ReachabilityEffect] = []
        for place, (a, b) in going:
            self._strike(now_ms, place)
            reason = f"{self._why(a, b)}: {place[0]} is evicted"
            slots = [slot for slot, seen in sorted(known.items()) if _is_within((seen.host, slot), place)]
            effects += [EvictSlot(slot, None, reason) for slot in slots if known[slot].joined]
        return effects

    def _why(self, a: int, b: int) -> str:
        for slot, peer in ((a, b), (b, a)):
            if peer in self._blamed.get(slot, ()):
                return f"slot {peer} refuses connections of slot {slot}, or sends it frames that cannot be read"
        return f"slots {a} and {b} do not reach each other"

    def _rank(
        self, place: Place, among: list[tuple[Place, Place, tuple[int, int]]], known: dict[int, Standing]
    ) -> tuple[bool, int, int, int, Place]:
        """The place with the highest rank is evicted; hosts before single slots, which may then be unnecessary."""
        others = {b if a == place else a for a, b, _ in among if place in (a, b)}
        mine = [seen for seen in known.values() if _is_within((seen.host, seen.slot), place)]
        unheard = any(seen.doubtful for seen in mine)
        blamed = sum(seen.slot in peers for seen in mine for peers in self._blamed.values())
        return place[1] == -1, len(others) + unheard, blamed, -sum(seen.subtasks for seen in mine), place

    def _strike(self, now_ms: int, place: Place) -> int:
        """Count a strike. Returns when the slots of ``place`` may join again."""
        known = self._strikes.get(place)
        count = 1 if known is None or now_ms - known.last_ms > FORGOTTEN_AFTER_MS else known.count + 1
        self._strikes[place] = _Strikes(count, now_ms, now_ms + pause_ms(count))
        return now_ms + pause_ms(count)


def _without(reports: Mapping[int, tuple[int, ...]], slot: int) -> dict[int, tuple[int, ...]]:
    """``reports`` (slot -> peers) without those by ``slot`` and about it."""
    left = {by: tuple(peer for peer in peers if peer != slot) for by, peers in reports.items() if by != slot}
    return {by: peers for by, peers in left.items() if peers}


def pause_ms(count: int) -> int:
    """The wait after ``count`` strikes or short lives: it doubles each time."""
    return min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(count - 1, 20))


def _place(slot: Standing, peer: Standing) -> Place:
    """The place of ``slot`` to evict when it and ``peer`` do not reach each other."""
    return (slot.host, -1) if slot.host != peer.host else (slot.host, slot.slot)


def _needed(
    going: list[tuple[Place, tuple[int, int]]], pairs: list[tuple[int, int]], known: dict[int, Standing]
) -> list[tuple[Place, tuple[int, int]]]:
    """``going`` without places that the others, perhaps chosen later, make unnecessary for every pair."""
    needed = list(going)
    for one in going:
        rest = [place for place, _ in needed if place != one[0]]
        if all(any(_is_within((known[slot].host, slot), place) for slot in pair for place in rest) for pair in pairs):
            needed.remove(one)
    return needed


def _is_within(place: Place, other: Place) -> bool:
    return place == other or (place[0], -1) == other
