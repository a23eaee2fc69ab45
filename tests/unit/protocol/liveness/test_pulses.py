"""Whom the driver gives up for silence: histories, and a small world of hosts, network and driver drawn from seeds."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from flinkplus.protocol.liveness.pulses import PulsedSlot, PulseRule

TIMEOUT_MS = 400
PULSE_MS = 100
LOOK_MS = 20
IN_TIME_MS = 500
"""By then a hung host is given up."""
DRIVER = "driver"


class History:
    """Slots ``a``, ``b``, ... each on a host of its own but where said otherwise; every chain has all of them."""

    def __init__(self, names: str, hosts: dict[str, str] | None = None) -> None:
        self.rule = PulseRule(TIMEOUT_MS, DRIVER)
        self.hosts = {name: name for name in names} | (hosts or {})
        self.now_ms = 0
        self.chains: list[str] | None = [names]
        self.heard_ms: dict[str, int] = {}
        self.numbers = dict.fromkeys(names, 0)

    def goes_on(self, span_ms: int, well: str, deaf: str = "", stopped: str = "", lost: str = "") -> list[str]:
        """Let time pass; the first answer that somebody is to be given up."""
        for _ in range(span_ms // PULSE_MS):
            self.now_ms += PULSE_MS
            for name in lost:
                self.numbers[name] += 1
            for name in [*well, *deaf, *stopped]:
                self.numbers[name] += 1
                self.heard_ms[name] = self.now_ms
                self.rule.heard(self.now_ms, name, self.numbers[name], deaf=name in deaf, stopped=name in stopped)
            found = self.look()
            if found:
                return found
        return []

    def look(self) -> list[str]:
        slots = [PulsedSlot(name, host, self.heard_ms.get(name)) for name, host in self.hosts.items()]
        return self.rule.to_evict(self.now_ms, slots, self.chains)


def test_two_of_three_hosts_hang_at_once() -> None:
    history = History("abc")
    assert history.goes_on(2_000, "abc") == []
    assert history.goes_on(2_000, "c") == ["a", "b"]
    assert history.now_ms == 2_000 + IN_TIME_MS


def test_two_of_four_hosts_hang_at_once_and_so_do_three() -> None:
    for left in ("cd", "d"):
        history = History("abcd")
        history.goes_on(2_000, "abcd")
        assert sorted([*history.goes_on(2_000, left), *left]) == ["a", "b", "c", "d"]
        assert history.now_ms == 2_000 + IN_TIME_MS


def test_nobody_is_heard_so_it_is_the_driver() -> None:
    history = History("abc")
    history.goes_on(2_000, "abc")
    assert history.goes_on(20_000, "") == []


def test_nobody_is_given_up_whom_the_job_cannot_do_without() -> None:
    history = History("abc")
    history.chains = ["abc", "ab"]
    history.goes_on(2_000, "abc")
    assert history.goes_on(5_000, "c") == [], "the second chain has nobody left"
    history.chains = None
    assert history.goes_on(5_000, "c") == [], "without standbys every slot is waited for"


def test_when_the_driver_hears_again_those_who_are_not_back_yet_are_waited_for() -> None:
    history = History("ab")
    history.goes_on(2_000, "ab")
    assert history.goes_on(3_000, "") == []
    assert history.goes_on(PULSE_MS, "a") == []
    assert history.goes_on(2_000, "ab") == []
    assert history.goes_on(2_000, "a") == ["b"]


@pytest.mark.parametrize("host", [DRIVER, "a"])
def test_who_is_beside_the_driver_or_the_silent_is_no_witness(host: str) -> None:
    """What is heard from there says nothing about the network between hosts."""
    history = History("abc", {"c": host})
    history.goes_on(2_000, "abc")
    assert history.goes_on(5_000, "c") == []


def test_whoever_has_lost_pulses_is_no_witness() -> None:
    """The network loses, or this machine is too busy to hear."""
    history = History("abc")
    history.goes_on(1_700, "abc")
    history.goes_on(PULSE_MS, "ab", lost="c")
    history.goes_on(2 * PULSE_MS, "abc")
    assert history.goes_on(500, "c") == []
    assert history.goes_on(500, "c") == ["a", "b"], "it has missed none for long enough now"


def test_whoever_comes_over_the_control_stream_is_there() -> None:
    """Datagrams are lost, streams are not."""
    history = History("abc")
    history.goes_on(2_000, "abc")
    for _ in range(50):
        history.heard_ms["a"] = history.heard_ms["b"] = history.now_ms
        assert history.goes_on(PULSE_MS, "c") == []


def test_after_a_pause_of_the_driver_everybody_has_to_show_it_first() -> None:
    history = History("abc")
    history.goes_on(2_000, "abc")
    history.now_ms += 60_000
    history.rule.missed(history.now_ms)
    assert history.goes_on(700, "c") == [], "no record, no witness"
    assert history.goes_on(500, "c") == ["a", "b"]


def test_when_most_do_not_hear_the_driver_nobody_is_given_up() -> None:
    history = History("abc")
    history.goes_on(2_000, "abc")
    assert history.goes_on(5_000, "c", deaf="ab") == []


def test_after_a_cut_of_the_driver_slots_have_time_to_hear_it_again() -> None:
    """Their systems send again after twice as long each time: one is answered at once, another after seconds."""
    history = History("abcd")
    history.goes_on(2_000, "abcd")
    assert history.goes_on(3_000, "") == []
    assert history.goes_on(2_500, "ab", deaf="cd") == []
    assert history.goes_on(3_000, "abcd") == []
    assert history.goes_on(1_000, "abc", deaf="d") == ["d"], "that was long ago"


def test_after_a_pause_of_the_driver_slots_have_time_to_hear_it_again() -> None:
    history = History("abcd")
    history.goes_on(2_000, "abcd")
    history.now_ms += 3_000
    history.rule.missed(history.now_ms, 3_000)
    assert history.goes_on(3_000, "ab", deaf="cd") == []
    assert history.goes_on(1_000, "abc", deaf="d") == ["d"]


def test_after_a_short_pause_of_the_driver_a_slot_that_does_not_hear_it_goes_at_once() -> None:
    """The driver's system has answered meanwhile."""
    history = History("abcd")
    history.goes_on(2_000, "abcd")
    history.rule.missed(history.now_ms, 250)
    assert history.goes_on(500, "abc", deaf="d") == ["d"]


def test_slots_whose_own_pulses_say_that_they_are_stopped_need_no_witness() -> None:
    """As where all are on the driver's host."""
    history = History("abc", dict.fromkeys("abc", DRIVER))
    history.goes_on(2_000, "abc")
    assert history.goes_on(2_000, "c", stopped="ab") == ["a", "b"]
    assert history.now_ms == 2_000 + IN_TIME_MS


def test_of_most_only_those_are_given_up_of_whom_it_is_certain() -> None:
    history = History("abcd", dict.fromkeys("abcd", DRIVER))
    history.goes_on(2_000, "abcd")
    assert history.goes_on(2_000, "d", stopped="a") == ["a"]


def test_a_process_that_stands_still_for_a_moment_is_not_given_up() -> None:
    history = History("abc")
    for _ in range(20):
        assert history.goes_on(300, "c", stopped="ab") == []
        assert history.goes_on(300, "abc") == []


# --- a small world


@dataclass
class World:
    """Hosts with a slot each, which send pulses to a driver that looks every now and then. ``drops``: whether the
    network loses what a host sends just then. ``driver_runs``: whether it looks and listens just then.
    """

    seed: int
    hosts: int
    drops: Callable[[int, int], bool] = lambda _host, _now_ms: False
    driver_runs: Callable[[int], bool] = lambda _now_ms: True
    late_ms: Callable[[int, int], int] = lambda _host, _now_ms: 0
    hung: dict[int, int] = field(default_factory=dict)
    given_up: dict[int, int] = field(default_factory=dict)

    def run(self, until_ms: int) -> None:
        draw = random.Random(self.seed)
        rule, heard_ms, looked_ms = PulseRule(TIMEOUT_MS, DRIVER), dict.fromkeys(range(self.hosts), 0), 0
        events: list[tuple[int, int, int, int]] = [(LOOK_MS, -1, 0, 0)]
        for host in range(self.hosts):
            events.append((draw.randrange(PULSE_MS), host, 1, 0))
        waiting: list[tuple[int, int]] = []  # in the driver's socket
        heapq.heapify(events)
        while events and events[0][0] < until_ms:
            now_ms, host, number, arrives = heapq.heappop(events)
            if host >= 0 and arrives:
                waiting.append((host, number))
            elif host >= 0:
                if now_ms < self.hung.get(host, until_ms):
                    heapq.heappush(events, (now_ms + PULSE_MS + draw.randrange(5), host, number + 1, 0))
                    if not self.drops(host, now_ms):
                        heapq.heappush(events, (now_ms + 1 + self.late_ms(host, now_ms), host, number, 1))
            else:
                heapq.heappush(events, (now_ms + LOOK_MS, -1, 0, 0))
                if self.driver_runs(now_ms):
                    self._look(rule, now_ms, now_ms - looked_ms, waiting, heard_ms)
                    looked_ms = now_ms

    def _look(
        self, rule: PulseRule, now_ms: int, gap_ms: int, waiting: list[tuple[int, int]], heard_ms: dict[int, int]
    ) -> None:
        for host, number in waiting:
            rule.heard(now_ms, str(host), number)
            heard_ms[host] = now_ms
        waiting.clear()
        if gap_ms > TIMEOUT_MS / 2:
            rule.missed(now_ms)
            return
        here = [host for host in range(self.hosts) if host not in self.given_up]
        slots = [PulsedSlot(str(host), str(host), heard_ms[host]) for host in here]
        for name in rule.to_evict(now_ms, slots, [[str(host) for host in here]]):
            self.given_up[int(name)] = now_ms
            rule.forget(name)


SEEDS = range(25)


@pytest.mark.parametrize("pause_ms", [150, 300, 5_000])
def test_a_driver_that_was_stopped_gives_nobody_up(pause_ms: int) -> None:
    for seed in SEEDS:
        hosts = 2 + seed % 5
        world = World(seed, hosts, driver_runs=lambda now_ms: not 3_000 <= now_ms < 3_000 + pause_ms)
        world.run(10_000)
        assert not world.given_up, seed


def test_a_driver_that_is_cut_off_gives_nobody_up() -> None:
    for seed in SEEDS:
        world = World(seed, 2 + seed % 5, drops=lambda _host, now_ms: 3_000 <= now_ms < 9_000)
        world.run(15_000)
        assert not world.given_up, seed


def test_a_network_that_loses_most_never_costs_most_slots_at_once() -> None:
    """One that is lost four times in a row goes, as ever; the rest stays."""
    for seed in SEEDS:
        draw, hosts = random.Random(-seed), 3 + seed % 4
        share = 0.6 + 0.4 * draw.random()

        def drops(_host: int, now_ms: int, draw: random.Random = draw, share: float = share) -> bool:
            return 3_000 <= now_ms < 6_000 and draw.random() < share

        world = World(seed, hosts, drops=drops)
        world.run(3_900)
        at_once = most_at_once(world.given_up.values())
        assert 2 * at_once <= hosts, (seed, world.given_up)


def most_at_once(times_ms: Iterable[int]) -> int:
    times = list(times_ms)
    return max((times.count(time_ms) for time_ms in times), default=0)


def test_a_machine_that_is_too_busy_for_everybody_gives_nobody_up() -> None:
    """All pulses are late, by as much as a second, each by its own time."""
    for seed in SEEDS:
        draw = random.Random(-seed)

        def late_ms(_host: int, now_ms: int, draw: random.Random = draw) -> int:
            return 800 + draw.randrange(200) if 3_000 <= now_ms < 3_700 else 0

        world = World(seed, 2 + seed % 5, late_ms=late_ms)
        world.run(10_000)
        assert not world.given_up, seed


def test_hosts_that_hang_at_once_are_given_up_in_time_and_nobody_else() -> None:
    for seed in SEEDS:
        draw, hosts = random.Random(-seed), 2 + seed % 6
        hanging = draw.sample(range(hosts), draw.randrange(1, hosts))
        at_ms = 3_000 + draw.randrange(PULSE_MS)
        world = World(seed, hosts, hung={host: at_ms + draw.choice((0, draw.randrange(300))) for host in hanging})
        world.run(10_000)
        assert sorted(world.given_up) == sorted(hanging), seed
        for host, given_up_ms in world.given_up.items():
            assert given_up_ms - world.hung[host] <= IN_TIME_MS, (seed, host)


def test_hosts_that_hang_while_the_driver_is_stopped_are_given_up_afterwards() -> None:
    for seed in SEEDS:
        world = World(seed, 3, driver_runs=lambda now_ms: not 3_000 <= now_ms < 5_000, hung={0: 3_500, 2: 4_000})
        world.run(10_000)
        assert sorted(world.given_up) == [0, 2], seed
        assert max(world.given_up.values()) <= 5_000 + 3 * TIMEOUT_MS, seed
