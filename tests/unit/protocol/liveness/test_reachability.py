"""Which slots are given up when some do not reach each other: as few as will do, never both of two, seldom."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from flinkplus.protocol.liveness.reachability import (
    FIRST_PAUSE_MS,
    FORGOTTEN_AFTER_MS,
    LONGEST_PAUSE_MS,
    SHORT_LIFE_MS,
    LetSlotJoin,
    Reachability,
    ReachabilityConfig,
    ReachabilityEffect,
    SetSlotAside,
    SlotArrived,
    SlotPeersUnreached,
    SlotsSeen,
    Standing,
)
from flinkplus.protocol.vocabulary.effects import EvictSlot
from flinkplus.protocol.vocabulary.events import JobInterrupted, SlotLost

GATHER_MS, PATIENCE_MS = 100, 5_000


class Job:
    """Slots, each on a host of its own unless ``hosts`` says otherwise, with one subtask each."""

    def __init__(self, slots: int, hosts: str = "") -> None:
        self.machine = Reachability(ReachabilityConfig(GATHER_MS, PATIENCE_MS))
        self.now_ms = 0
        self.slots = {slot: hosts[slot] if hosts else f"host{slot}" for slot in range(slots)}
        self.subtasks = dict.fromkeys(range(slots), 1)
        self.new: set[int] = set()
        self.doubtful: set[int] = set()

    def say(self, slot: int, *peers: int) -> None:
        assert self.machine.step(self.now_ms, SlotPeersUnreached(slot, peers)) == []

    def blame(self, slot: int, *peers: int) -> None:
        assert self.machine.step(self.now_ms, SlotPeersUnreached(slot, peers, peers)) == []

    def look(self) -> list[ReachabilityEffect]:
        """At the machine's next deadline."""
        due_ms = self.machine.next_deadline_ms()
        if due_ms is None:
            return []
        self.now_ms = max(self.now_ms, due_ms)
        standings = (
            Standing(slot, host, self.subtasks[slot], slot not in self.new, slot in self.doubtful)
            for slot, host in sorted(self.slots.items())
        )
        return self.machine.step(self.now_ms, SlotsSeen(tuple(standings)))

    def given_up(self) -> list[int]:
        """Who is, and is gone then."""
        slots = [effect.slot for effect in self.look() if isinstance(effect, EvictSlot)]
        for slot in slots:
            self.lose(slot)
        return slots

    def lose(self, slot: int) -> None:
        self.machine.step(self.now_ms, SlotLost(slot, 1, "x"))
        del self.slots[slot]

    def come(self, slot: int, host: str) -> list[ReachabilityEffect]:
        self.slots[slot] = host
        self.new.add(slot)
        return self.machine.step(self.now_ms, SlotArrived(slot, host))


def test_of_two_that_do_not_reach_each_other_one_is_given_up() -> None:
    job = Job(4)
    job.say(1, 2)
    assert job.machine.next_deadline_ms() == GATHER_MS
    job.say(2, 1)
    (effect,) = job.look()
    assert effect == EvictSlot(2, None, "slots 1 and 2 do not reach each other: host2 is evicted")
    job.lose(2)
    assert job.machine.next_deadline_ms() is None


def test_one_direction_is_enough() -> None:
    job = Job(2)
    job.say(0, 1)
    assert job.given_up() == [1]


def test_whoever_most_others_do_not_reach_is_given_up() -> None:
    job = Job(4)
    job.say(3, 0)
    job.say(2, 0)
    assert job.given_up() == [0]


def test_whoever_has_less_to_lose_is_given_up() -> None:
    job = Job(3)
    job.subtasks[1] = 4
    job.say(0, 1)
    assert job.given_up() == [0]


def test_one_that_refuses_connections_is_given_up_and_not_the_slot_that_it_refuses() -> None:
    job = Job(2)
    job.subtasks[0] = 4
    job.blame(1, 0)
    (effect,) = job.look()
    why = "slot 0 refuses connections of slot 1, or sends it frames that cannot be read: host0 is evicted"
    assert effect == EvictSlot(0, None, why)


def test_a_slot_that_blames_all_others_is_given_up_itself() -> None:
    job = Job(4)
    job.blame(1, 0, 2, 3)
    assert job.given_up() == [1]


def test_of_two_that_blame_each_other_the_one_with_less_to_lose_is_given_up() -> None:
    job = Job(3)
    job.subtasks[2] = 4
    job.blame(1, 2)
    job.blame(2, 1)
    assert job.given_up() == [1]


def test_one_that_takes_connections_again_is_kept() -> None:
    job = Job(3)
    job.blame(1, 0)
    job.say(1)
    assert job.given_up() == []


def test_blame_ends_with_the_process_that_it_was_put_on() -> None:
    job = Job(3)
    job.blame(0, 2)
    job.lose(2)
    job.come(2, "host2")
    job.new.clear()
    job.subtasks[2] = 2
    job.say(0, 2)
    assert job.given_up() == [0]


def test_whom_the_driver_does_not_hear_well_is_given_up() -> None:
    """It is cut off from all, and says nothing: the driver is about to notice."""
    job = Job(2)
    job.doubtful.add(0)
    job.say(1, 0)
    assert job.given_up() == [0]


def test_all_slots_of_a_host_are_given_up_together() -> None:
    job = Job(6, hosts="aabbcc")
    job.say(0, 3)
    assert job.given_up() == [2, 3]


def test_on_one_host_a_slot_stands_for_itself() -> None:
    job = Job(3, hosts="aaa")
    job.say(0, 1)
    assert job.given_up() == [1]


def test_who_would_go_for_what_another_one_is_a_reason_for_stays() -> None:
    job = Job(4, hosts="aabb")
    job.subtasks = {0: 0, 1: 0, 2: 1, 3: 0}
    job.say(0, 3)
    job.say(2, 3)
    job.look()
    job.now_ms += PATIENCE_MS
    assert job.given_up() == [3], "not host a as well, which only slot 3 does not reach"


def test_what_is_taken_back_in_time_has_no_effect() -> None:
    job = Job(2)
    job.say(0, 1)
    job.say(0)
    assert job.machine.next_deadline_ms() is None and job.look() == []


def test_what_was_said_of_one_who_is_gone_has_no_effect() -> None:
    job = Job(2)
    job.say(0, 1)
    job.lose(1)
    assert job.machine.next_deadline_ms() is None
    assert job.come(1, "host1") == [LetSlotJoin(1)]
    assert job.look() == []


def test_when_most_would_have_to_go_the_network_is_waited_for() -> None:
    job = Job(4)
    for slot in range(4):
        job.say(slot, *(other for other in range(4) if other != slot))
    began_ms = job.now_ms
    while not (gone := job.given_up()):
        assert job.now_ms - began_ms <= PATIENCE_MS + 2 * GATHER_MS
    assert job.now_ms - began_ms >= PATIENCE_MS and len(gone) == 3, "nothing is waited for for ever"


def test_nobody_is_given_up_while_the_job_does_not_run() -> None:
    job = Job(2)
    job.say(0, 1)
    slots, job.slots = job.slots, {}
    assert job.look() == [] and job.look() == []
    job.slots = slots
    assert job.given_up() == [1], "it is looked at again when it does"


def test_one_that_has_not_joined_is_set_aside_and_tried_again() -> None:
    job = Job(3)
    job.lose(2)
    assert job.come(2, "host2") == [LetSlotJoin(2)]
    job.say(0, 2)
    (aside,) = job.look()
    assert isinstance(aside, SetSlotAside) and aside.slot == 2
    job.say(0)
    assert job.machine.next_deadline_ms() == job.now_ms + FIRST_PAUSE_MS
    assert job.look() == [LetSlotJoin(2)]
    job.say(0, 2)
    job.look()
    job.say(0)
    assert job.machine.next_deadline_ms() == job.now_ms + 2 * FIRST_PAUSE_MS


def test_of_two_that_have_not_joined_the_one_that_others_reach_goes_on() -> None:
    job = Job(3)
    job.new.update((0, 2))
    job.say(0, 1, 2)
    assert [effect.slot for effect in job.look() if isinstance(effect, SetSlotAside)] == [0]


def test_a_network_that_comes_and_goes_costs_less_and_less() -> None:
    job = Job(2)
    waits = []
    for _ in range(12):
        job.new.clear()
        job.say(0, 1)
        assert job.given_up() == [1]
        begun_ms = job.now_ms
        (aside,) = job.come(1, "host1")
        assert isinstance(aside, SetSlotAside)
        assert job.look() == [LetSlotJoin(1)]
        waits.append(job.now_ms - begun_ms)
    assert waits[:3] == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS] and waits[-1] == LONGEST_PAUSE_MS
    job.new.clear()
    job.now_ms += FORGOTTEN_AFTER_MS + 1
    job.say(0, 1)
    assert job.given_up() == [1]
    begun_ms = job.now_ms
    job.come(1, "host1")
    job.look()
    assert job.now_ms - begun_ms == FIRST_PAUSE_MS


def test_a_rollback_takes_all_that_are_there() -> None:
    job = Job(2)
    job.say(0, 1)
    assert job.given_up() == [1]
    job.come(1, "host1")
    job.machine.step(job.now_ms, JobInterrupted())
    assert job.machine.next_deadline_ms() is None


@given(
    st.lists(st.sampled_from("abcd"), min_size=2, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
def test_nobody_is_left_without_reach_and_nobody_goes_for_nothing(
    hosts: list[str], unreached: list[tuple[int, int]], subtasks: list[int]
) -> None:
    job = Job(len(hosts), hosts="".join(hosts))
    job.subtasks = dict(enumerate(subtasks))
    said: dict[int, set[int]] = {}
    for slot, peer in unreached:
        if slot < len(hosts) and peer < len(hosts) and slot != peer:
            said.setdefault(slot, set()).add(peer)
    for slot, peers in said.items():
        job.say(slot, *sorted(peers))
    job.look()
    job.now_ms += PATIENCE_MS
    gone = set(job.given_up())
    left = set(job.slots)
    pairs = {frozenset((slot, peer)) for slot, peers in said.items() for peer in peers}
    if gone:
        assert left, "somebody stays"
        assert not any(frozenset(pair) in pairs for pair in combinations(left, 2))
    for pair in pairs:  # unless another one is a reason
        a, b = pair
        if pair <= gone and hosts[a] != hosts[b]:
            others = [other for other in pairs if other != pair and (hosts[a] in map(hosts.__getitem__, other))]
            assert others


def test_a_slot_does_not_wait_for_what_another_one_of_its_host_did() -> None:
    job = Job(3, hosts="aaa")
    job.say(0, 1)
    assert job.given_up() == [1]
    job.lose(2)
    assert job.come(2, "a") == [LetSlotJoin(2)]
    (aside,) = job.come(1, "a")
    assert isinstance(aside, SetSlotAside)


def test_a_slot_that_keeps_dying_has_to_wait_longer_and_longer() -> None:
    job = Job(2)
    waits = []
    for _ in range(10):
        job.lose(1)
        begun_ms = job.now_ms
        effects = job.come(1, "host1")
        if isinstance(effects[0], SetSlotAside):
            effects = job.look()
        assert effects == [LetSlotJoin(1)]
        waits.append(job.now_ms - begun_ms)
        job.now_ms += 500
    assert waits[:5] == [0, 0, 0, FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS] and waits[-1] == LONGEST_PAUSE_MS
    job.now_ms += SHORT_LIFE_MS
    job.lose(1)
    assert job.come(1, "host1") == [LetSlotJoin(1)], "it has lived for a while"


def test_slots_that_die_now_and_then_join_at_once() -> None:
    job = Job(2)
    for _ in range(50):
        job.now_ms += SHORT_LIFE_MS
        job.lose(1)
        assert job.come(1, "host1") == [LetSlotJoin(1)]


def test_one_that_dies_while_it_waits_has_to_wait_no_longer() -> None:
    job = Job(2)
    for _ in range(4):
        job.lose(1)
        effects = job.come(1, "host1")
    assert isinstance(effects[0], SetSlotAside)
    due_ms = job.machine.next_deadline_ms()
    job.lose(1)
    assert job.machine.next_deadline_ms() is None
    job.come(1, "host1")
    assert job.machine.next_deadline_ms() == due_ms


def test_slots_of_a_host_that_are_set_aside_together_wait_as_long_as_one() -> None:
    job = Job(4, hosts="aabb")
    job.new.update((2, 3))
    job.say(0, 2, 3)
    assert [effect.slot for effect in job.look() if isinstance(effect, SetSlotAside)] == [2, 3]
    job.say(0)
    begun_ms = job.now_ms
    assert job.look() == [LetSlotJoin(2), LetSlotJoin(3)]
    assert job.now_ms - begun_ms == FIRST_PAUSE_MS


def test_of_a_host_that_is_given_up_only_those_that_have_joined_are_ended() -> None:
    job = Job(4, hosts="aabb")
    job.new.add(3)
    job.say(0, 2)
    job.subtasks[0] = 9
    assert job.given_up() == [2]
