"""Loops in real slots, of which one dies: what goes round is what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.examples.graphs import RandomGraph, rows_of
from flinkplus.examples.running import EXAMPLES
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.control import messages as control
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import Cluster

GRAPH = RandomGraph(vertices=150, degree=3, seed=2)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    made: list[Cluster] = []

    def start(name: str, seed: int, **options: Any) -> Cluster:
        env = environment()
        EXAMPLES[name].draw(rows_of(env, GRAPH)).collect(name="out")
        made.append(Cluster(tmp_path, env.graph.fuse(), 3, seed, batch_rows=8, **options))
        made[-1].deploy()
        return made[-1]

    yield start
    for each in made:
        each.close()


def check(name: str, cluster: Cluster) -> None:
    columns = [column.to_pylist() for column in cluster.finish().columns]
    assert EXAMPLES[name].result(zip(*columns, strict=True)) == EXAMPLES[name].sequential(GRAPH.adjacency())


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_dies(start: Callable[..., Cluster], name: str, seed: int) -> None:
    cluster = start(name, seed)
    cluster.lose(seed)
    check(name, cluster)


def test_two_slots_die_one_after_the_other(start: Callable[..., Cluster]) -> None:
    cluster = start("pagerank", 7)
    cluster.lose(0)
    cluster.join(0)
    cluster.lose(1)
    check("pagerank", cluster)


def test_an_acknowledgement_that_nobody_would_take_is_not_sent(
    start: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator would break the connection, and take the slot for lost. It is told of the checkpoint instead."""
    cluster = start("pagerank", 1)
    cluster.turns(5)
    monkeypatch.setattr(control, "MAX_BYTES", 1_000)
    first = cluster.trigger()

    def refused() -> dict[str, control.Declined]:
        found = [message for _, message in cluster.answers if isinstance(message, control.Declined)]
        return {refusal.subtask: refusal for refusal in found}

    def taken() -> dict[str, Any]:
        return cluster.acks.get(first, {})

    cluster.until(lambda: len(refused()) + len(taken()) == len(cluster.subtasks))
    heads = {name: refusal for name, refusal in refused().items() if name.startswith("pushing")}
    assert len(heads) == 3 and {refusal.abort_cause for refusal in heads.values()} == {AbortCause.OVER_BUDGET}
    assert all("Acknowledged would take" in refusal.reason for refusal in heads.values())
    assert not any(name in heads for name, _ in cluster.staged), "no standby is sent it either"
    monkeypatch.undo()
    check("pagerank", cluster)
