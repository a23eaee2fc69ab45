"""What all slots are told at once they do in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control.names import parse_subtask
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import Cluster

PARALLELISM = 4


@pytest.fixture
def keep() -> Iterator[Callable[[Cluster], Cluster]]:
    made: list[Cluster] = []

    def keep(cluster: Cluster) -> Cluster:
        made.append(cluster)
        cluster.deploy()
        return cluster

    yield keep
    for each in made:
        each.close()


def paced(directory: Path, **options: Any) -> Cluster:
    env = environment()
    rows = env.generate(lambda i: (i % 7, i), schema="k long, v long", name="numbers").throttle(1_000.0)
    rows.key_by("k").count(name="count").collect(name="out")
    return Cluster(directory, env.graph.fuse(), PARALLELISM, 1, flush_interval=40.0, **options)


def test_all_slots_are_told_at_once_and_write_in_turn(keep: Callable[[Cluster], Cluster], tmp_path: Path) -> None:
    """Also the sources, which have nothing to write: what follows in the chains is work as well."""
    cluster = keep(paced(tmp_path, checkpoint_interval=2.0))
    assert [cluster.slots[slot]._workers.turn_s for slot in range(PARALLELISM)] == pytest.approx([0.0, 0.05, 0.1, 0.15])
    begun = time.monotonic()
    checkpoint = cluster.trigger()
    acked: dict[SubtaskId, float] = {}

    def all_acked() -> bool:
        for name in cluster.acks.get(checkpoint, {}):
            acked.setdefault(parse_subtask(name), time.monotonic() - begun)
        return len(acked) == len(cluster.subtasks)

    cluster.until(all_acked)
    assert {
        subtask for subtask, after_s in acked.items() if after_s < cluster.slots[subtask.index]._workers.turn_s
    } == set()


def test_standbys_apply_in_turn(keep: Callable[[Cluster], Cluster], tmp_path: Path) -> None:
    cluster = keep(paced(tmp_path, checkpoint_interval=2.0))
    cluster.finish_checkpoint(cluster.trigger())
    begun = time.monotonic()
    failovers = {index: slot._failover for index, slot in cluster.slots.items()}
    applied: dict[int, float] = {}

    def all_applied() -> bool:
        for index, failover in failovers.items():
            assert failover is not None
            if failover.standbys._agent.figures.versions_applied:  # type: ignore[attr-defined]
                applied.setdefault(index, time.monotonic() - begun)
        return len(applied) == PARALLELISM

    cluster.until(all_applied)
    assert {
        index for index, after_s in applied.items() if after_s < cluster.slots[index]._workers.turn_s - 0.01
    } == set()
