"""The failover machine in a small world with random faults: ``failover_world.py`` says what is modelled and checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_backup.failover import attempts, chains
from chain_backup.failover.attempts import Attempts
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.handover import Handover
from chain_backup.failover.recovery_line import recovery_line
from chain_backup.failover.topology import Topology
from flinkplus.errors import InvariantViolation
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from tests.examples import examples
from tests.unit.chain_backup.failover.failover_world import World, channels_of

TWO = Topology(("lines", "count"), 2, ((0, "lines", "count"),))
WIDE = Topology(("lines", "count"), 3, ((0, "lines", "count"),))
THREE = Topology(("lines", "words", "count"), 2, ((0, "lines", "words"), (1, "words", "count")))
FORK = Topology(("a", "b", "c", "d"), 2, ((0, "a", "b"), (1, "a", "c"), (2, "b", "d"), (3, "c", "d")))


@settings(max_examples=examples(200))
@given(
    seed=st.integers(0, 2**32),
    topology=st.sampled_from([TWO, WIDE, THREE, FORK]),
    slots=st.integers(2, 5),
    replicas=st.integers(1, 3),
    pending_versions=st.booleans(),
    failback=st.booleans(),
    rate=st.sampled_from([0.0, 0.0005, 0.002, 0.01]),
    commands=st.sampled_from([0.0, 0.0, 0.003, 0.02]),
)
def test_any_schedule_of_faults(
    seed: int,
    topology: Topology,
    slots: int,
    replicas: int,
    pending_versions: bool,
    failback: bool,
    rate: float,
    commands: float,
) -> None:
    config = FailoverConfig(replicas=replicas, pending_versions=pending_versions, failback=failback)
    World(seed, topology, slots, config).run(1_000, rate, commands)


def test_without_faults_nothing_fails_over_and_checkpoints_are_trimmed() -> None:
    world = World(1, WIDE, 3, FailoverConfig())
    world.run(3_000, rate=0.0)
    assert world.counts["failovers"] == world.counts["fallbacks"] == world.counts["handovers"] == 0
    assert world.complete > 2
    assert world.machine._table.trimmed == world.complete


def test_the_seeds_see_everything() -> None:
    """Else the world could be quiet and prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(1_000):
        world = World(seed, (TWO, THREE)[seed % 2], 4, FailoverConfig(pending_versions=seed % 4 > 1))
        world.run(1_000, 0.001, (0.0, 0.005)[seed % 3 == 0])
        seen.update(world.counts)
        if all(seen[what] for what in world.counts):
            return
    raise AssertionError(f"the seeds do not see everything: {seen}")


# --------------------------------------------------------------------------------- does the world notice mistakes?


def ignoring_what_was_received(
    failed: Sequence[SubtaskId], versions: Any, received: Mapping[ChannelId, int], *rest: Any
) -> Any:
    everything = {channel: 1_000_000 for channel in channels_of(TWO)}
    return recovery_line(failed, versions, everything, *rest)


def ignoring_whose_snapshot_it_is(self: Any, chain: Any, version: int, pending: bool) -> bool:
    return version == self.complete


def ignoring_slots_that_have_not_fenced(self: Any, now_ms: int, number: int, slot: int, received: Any) -> list[Any]:
    attempt = self._attempt
    if attempt is None or attempt.number != number:
        return []
    attempt.received.update(received)
    attempt.awaited = []
    effects: list[Any] = self._promote_when_ready(now_ms)
    return effects


promote_when_ready = Attempts._promote_when_ready


def not_waiting_for_zookeeper(self: Any, now_ms: int) -> list[Any]:
    if self._attempt is not None:
        self._attempt.written = True
    effects: list[Any] = promote_when_ready(self, now_ms)
    return effects


@pytest.mark.parametrize(
    ("where", "name", "mistake", "topology"),
    [
        (chains, "recovery_line", ignoring_what_was_received, TWO),
        (chains.ChainTable, "_can_begin", ignoring_whose_snapshot_it_is, TWO),
        (Attempts, "fenced", ignoring_slots_that_have_not_fenced, TWO),
        (Attempts, "_promote_when_ready", not_waiting_for_zookeeper, TWO),
        (attempts, "provable", lambda *_: None, THREE),
    ],
)
def test_a_machine_with_a_mistake_is_found_out(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, mistake: Callable[..., Any], topology: Topology
) -> None:
    monkeypatch.setattr(where, name, mistake)
    with pytest.raises((AssertionError, InvariantViolation)):
        for seed in range(300):
            World(seed, topology, 4, FailoverConfig(pending_versions=True)).run(1_500, 0.002)


def carry_out_moves(seeds: range) -> None:
    for seed in seeds:
        world = World(seed, (TWO, WIDE)[seed % 2], 5, FailoverConfig(replicas=2, failback=False))
        world.run(1_500, 0.002, 0.02)


def test_moves_are_carried_out_among_failures() -> None:
    carry_out_moves(range(30))


@pytest.mark.parametrize(
    ("where", "name", "mistake"),
    [
        (Handover, "_goal", lambda self, chain: chain.planned[-1]),
        (chains.ChainTable, "thin_out", lambda self, hasty: None),
    ],
)
def test_a_mistake_in_moving_is_found_out(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, mistake: Any) -> None:
    monkeypatch.setattr(where, name, mistake)
    with pytest.raises((AssertionError, InvariantViolation)):
        carry_out_moves(range(60))


def test_a_slot_joins_while_a_handover_can_be_called_off_and_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not take those for fenced who go on after all."""

    def run() -> None:
        config = FailoverConfig(replicas=2, pending_versions=True, failback=False)
        World(433, WIDE, 5, config).run(1_500, 0.0005, 0.02)

    run()
    monkeypatch.setattr(Handover, "before", {})
    with pytest.raises(AssertionError, match="not done"):
        run()
