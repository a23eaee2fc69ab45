"""How checkpoints are taken: which options go together, and what they mean to the machines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flinkplus.config import MAX_IN_FLIGHT_MB, Options, options_from
from flinkplus.errors import ConfigurationError
from flinkplus.operators.keyed.keyed import Count
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.runtime.control.messages import MAX_BYTES
from flinkplus.runtime.coordinator.setup.configs import configs
from flinkplus.runtime.job.checks import check_barriers, check_loops, check_mode


@pytest.mark.parametrize(
    ("options", "timeout_ms"),
    [
        ({}, None),
        ({"checkpoint_mode": "synchronous"}, None),
        ({"checkpoint_mode": "unaligned"}, 0),
        ({"checkpoint_mode": "unaligned", "aligned_timeout": 0.25}, 250),
    ],
)
def test_when_barriers_overtake(options: dict[str, Any], timeout_ms: int | None) -> None:
    assert configs(options_from({}, options))[0].aligned_timeout_ms == timeout_ms


def test_how_much_may_be_in_flight() -> None:
    config, _ = configs(options_from({"spark.flinkplus.inFlightMb": "10"}, {}))
    assert (config.in_flight_slot_bytes, config.in_flight_job_bytes) == (10 << 20, 40 << 20)
    assert MAX_IN_FLIGHT_MB << 20 <= MAX_BYTES // 2, "a deployment tells of other things, too"
    with pytest.raises(ConfigurationError, match="in_flight_mb must be a whole number from 1 to 128, not 129"):
        options_from({}, {"in_flight_mb": 129})


def test_options_may_come_from_the_session() -> None:
    conf = {"spark.flinkplus.checkpointMode": "unaligned", "spark.flinkplus.alignedTimeout": "0.5"}
    assert options_from(conf, {}).until_unaligned == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aligned_timeout": 1.0}, "it goes with checkpoint_mode 'unaligned', not 'aligned'"),
        ({"aligned_timeout": 1.0, "checkpoint_mode": "synchronous"}, "not 'synchronous'"),
        ({"aligned_timeout": -1.0, "checkpoint_mode": "unaligned"}, "aligned_timeout must be a number of seconds"),
        ({"aligned_timeout": "soon", "checkpoint_mode": "unaligned"}, "aligned_timeout must be a number of seconds"),
        ({"guarantee": "at-least-once", "checkpoint_mode": "unaligned"}, "are for exactly-once: with at-least-once"),
        ({"guarantee": "at-most-once", "checkpoint_mode": "unaligned"}, "are for exactly-once: with at-most-once"),
        ({"checkpoint_mode": "none"}, "checkpoint_mode must be one of aligned, unaligned, synchronous, not 'none'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        options_from({}, options)


class Drawn:
    """A graph, as far as it is looked at."""

    def __init__(self, heads: list[int]) -> None:
        self._heads = heads
        self.nodes: list[Any] = [SimpleNamespace(name="head", body=None)]

    def loop_heads(self) -> list[int]:
        return self._heads


def test_a_job_with_loops_takes_no_unaligned_checkpoints() -> None:
    loop: Any = Drawn([0])
    straight: Any = Drawn([])
    unaligned = Options(checkpoint_mode="unaligned")
    check_loops(straight, unaligned)
    check_loops(loop, Options())
    with pytest.raises(ConfigurationError, match="'unaligned' cannot be used with a loop"):
        check_loops(loop, unaligned)


def test_rows_that_wait_for_the_barrier_need_aligned_barriers_and_no_loops() -> None:
    loop: Any = Drawn([0])
    straight: Any = Drawn([])
    unaligned = Options(checkpoint_mode="unaligned")
    for graph in (loop, straight):
        graph.nodes.append(SimpleNamespace(name="every", body=Count("every", ("k",))))
    check_barriers(loop, Options())
    check_barriers(straight, unaligned)
    for graph in (loop, straight):
        graph.nodes.append(SimpleNamespace(name="last", body=Count("last", ("k",), emit="latest")))
    check_barriers(straight, Options())
    with pytest.raises(
        ConfigurationError, match=r"emit='latest' \('last'\) cannot be used with checkpoint_mode='unaligned'"
    ):
        check_barriers(straight, unaligned)
    with pytest.raises(ConfigurationError, match=r"\('last'\) cannot be used with a loop"):
        check_barriers(loop, Options())


def test_a_job_is_not_resumed_without_what_was_in_flight() -> None:
    def manifest(overtaken: bool) -> Manifest:
        handle = SnapshotHandle(
            subtask="a[0]", generation=1, checkpoint=4, files=(), operator_state=OperatorState(), overtaken=overtaken
        )
        return Manifest(checkpoint=4, generation=1, subtasks={"a[0]": handle})

    aligned, unaligned = Options(), Options(checkpoint_mode="unaligned")
    for found, now in ((False, aligned), (False, unaligned), (True, unaligned)):
        check_mode(manifest(found), now)
    with pytest.raises(ConfigurationError, match="give an aligned_timeout instead"):
        check_mode(manifest(True), aligned)
