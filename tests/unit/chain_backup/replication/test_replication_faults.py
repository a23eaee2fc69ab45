"""Chains on a network that loses, repeats, reorders, alters and tears frames, while slots die and come back.

One seed draws a whole run. Safety: whatever a slot is promoted from has exactly the content of the version, at any
moment. Liveness: once the network is whole again, the next version reaches every member.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from chain_backup.replication import frames
from tests.unit.chain_backup.replication.replica_cluster import Cluster

SEEDS = (*range(20), 1004, 1136)  # the last two: a standby that had given up asking, and did not begin again
CHUNK_BYTES = (300, 700, 3_000, 256 << 10)
FAULTS = ("drop", "repeat", "reorder", "flip", "tear")


class Run:
    """One seeded run over four slots."""

    def __init__(self, root: Path, seed: int) -> None:
        self.cluster = Cluster(root, slots=4, seed=seed, postpone=seed % 3 > 0)
        self.random = self.cluster.random
        chosen = self.random.sample(FAULTS, self.random.randrange(0, 4))
        self.cluster.network.faults = {fault: self.random.choice((0.01, 0.05, 0.2)) for fault in chosen}
        self.cluster.form(0, 1, 2)
        self.cluster.open_head()

    def go(self, steps: int) -> None:
        actions = [self.version, self.version, self.version, self.deliver, self.deliver, self.trim, self.cut]
        actions += [self.lose_standby, self.lose_head, self.head_fails, self.join, self.rearrange]
        for _ in range(steps):
            self.random.choice(actions)()
        self.heal()

    def version(self) -> None:
        self.cluster.change()
        self.cluster.snapshot(tell=self.random.random() < 0.95)

    def deliver(self) -> None:
        for _ in range(self.random.randrange(60)):
            self.cluster.network.step()

    def trim(self) -> None:
        cluster = self.cluster
        stable = [
            v for v in cluster.handles if v and all(v <= max(cluster.staged(s), default=0) for s in cluster.members[1:])
        ]
        if stable and max(stable) > cluster.complete:
            cluster.trim(max(stable))
            for old in [number for number in cluster.handles if number < cluster.complete]:
                del cluster.handles[old]

    def cut(self) -> None:
        slots = sorted(self.cluster.network.agents)
        if len(slots) > 1:
            one, other = self.random.sample(slots, 2)
            self.cluster.network.cut(one, other)

    def lose_standby(self) -> None:
        members = self.cluster.members
        if len(members) > 1 and self.random.random() < 0.4:
            lost = self.random.choice(members[1:])
            self.cluster.kill(lost)
            self.cluster.form(*[member for member in members if member != lost])

    def lose_head(self) -> None:
        members = self.cluster.members
        if len(members) > 1 and self.random.random() < 0.4:
            self.cluster.kill(members[0])
            self.promote(self.random.choice(members[1:]))

    def head_fails(self) -> None:
        """Its slot lives, and is the tail of the new chain; or the very same slot goes on."""
        if self.random.random() < 0.3:
            self.promote(self.random.choice(self.cluster.members))

    def promote(self, slot: int) -> None:
        version = self.random.choice([number for number in self.cluster.handles if number >= self.cluster.complete])
        self.cluster.promote(slot, version)

    def join(self) -> None:
        """A slot that is not in the chain, of a new process if the old one is dead, becomes the tail."""
        cluster = self.cluster
        absent = [slot for slot in range(4) if slot not in cluster.members]
        if absent and len(cluster.members) < 3:
            slot = self.random.choice(absent)
            if slot not in cluster.network.agents:
                cluster.start(slot)
            cluster.form(*cluster.members, slot)

    def rearrange(self) -> None:
        """Standbys in another order: in this job or another, it must not matter."""
        head, *standbys = self.cluster.members
        if self.random.random() < 0.2:
            self.random.shuffle(standbys)
            self.cluster.form(head, *standbys)

    def heal(self) -> None:
        cluster = self.cluster
        cluster.network.settle()
        cluster.network.faults = {}
        self.version()
        cluster.tell()
        cluster.network.settle()
        self.version()
        cluster.tell()
        cluster.network.settle()
        for slot in cluster.members[1:]:
            assert cluster.version in cluster.staged(slot), (slot, cluster.members, sorted(cluster.staged(slot)))
        cluster.trim()
        cluster.promote(self.random.choice(cluster.members), cluster.version)
        self.version()
        cluster.network.settle()
        cluster.promote(self.random.choice(cluster.members), cluster.version)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_but_whole_versions_whatever_happens(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(frames, "CHUNK_BYTES", CHUNK_BYTES[seed % len(CHUNK_BYTES)])
    run = Run(tmp_path, seed)
    try:
        run.go(60)
    finally:
        run.cluster.close()
