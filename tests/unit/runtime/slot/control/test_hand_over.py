"""Producer and consumer in one slot: what goes wrong in one of them is not the other's failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.protocol.vocabulary.ids import ChannelId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.process.slot import Slot
from tests.unit.runtime.slot.slots_in_process import Cluster, graph_of

ROWS, PARALLELISM = 20_000, 2
WITHIN = ChannelId(0, 0, 0)


@pytest.fixture(params=["standby", "partial"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, graph_of(ROWS, 1), PARALLELISM, 1, recovery=request.param, batch_rows=100, window=4)
    found.deploy()
    yield found
    found.close()


def failures(cluster: Cluster, slot: Slot) -> list[str]:
    """Who fails while the slot does some work, with which error."""
    for _ in range(20):
        slot._turns.take(time.monotonic())
    return [f"{m.subtask} {m.reason}" for _, m in cluster.heard if isinstance(m, control.Failed)]


def broken(*_: Any) -> None:
    raise ValueError("it breaks")


def test_a_consumer_that_cannot_take_a_message_fails_and_its_producer_goes_on(cluster: Cluster) -> None:
    slot = cluster.slots[0]
    producer, consumer = slot.active.producer(WITHIN), slot.active.consumer(WITHIN)
    assert consumer is not None and producer is not None
    consumer.steps.receive = broken  # type: ignore[assignment, method-assign]
    assert failures(cluster, slot) == [f"{consumer.id} ValueError: it breaks"]
    assert list(slot.active) == [producer]
    assert all(end.log.appended > 0 for end in producer.outputs.channels.values())


def test_a_producer_that_cannot_send_more_fails_and_its_consumer_goes_on(cluster: Cluster) -> None:
    slot = cluster.slots[0]
    producer, consumer = slot.active.producer(WITHIN), slot.active.consumer(WITHIN)
    assert consumer is not None and producer is not None
    slot.guard(producer, producer.run)
    producer.outputs.pump = broken  # type: ignore[assignment, method-assign]
    slot.guard(consumer, consumer.inputs.announce)
    assert failures(cluster, slot) == [f"{producer.id} ValueError: it breaks"]
    assert list(slot.active) == [consumer]
