"""Promotions in a slot that a later fence takes subtasks from: what is left of each ends when nothing is waited for."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.slot.control.active import ActiveSubtasks
from flinkplus.runtime.slot.control.failover import SlotFailover
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.state.backend import Prepared

FROM_THE_START = PromotionOrder(
    version=0, handle=START, determinants=[], ancestors={}, digests={}, received={}, marks={}
)


class Begun:
    """A subtask that was built."""

    plan = SimpleNamespace(vertex=SimpleNamespace(inputs=(), outputs=()))
    outputs = SimpleNamespace(channels={}, recipe=None)

    def __init__(self, name: SubtaskId) -> None:
        self.id = name
        self.inputs = SimpleNamespace(announce=lambda: None, channels={})
        checkpoints = SimpleNamespace(resume_after=lambda checkpoint: None)
        self.steps = SimpleNamespace(history=SimpleNamespace(known=None), checkpoints=checkpoints)

    def begin(self, run: int, run_age_s: float) -> None:
        return None


class Host:
    """A slot of a job S -> A, S -> B -> C. It builds subtasks that do nothing."""

    index = 0
    parallelism = 2
    runs_ahead = False

    def __init__(self) -> None:
        self.graph: Any = SimpleNamespace(
            vertices=[SimpleNamespace(name=name) for name in "SABC"], inputs_of=lambda name, parallelism: []
        )
        self.lineage = Lineage(list("SABC"), [("S", "A"), ("S", "B"), ("B", "C")])
        graph: Any = self.graph
        self.active: ActiveSubtasks[Any] = ActiveSubtasks(graph)
        self.slots: dict[SubtaskId, int] = {}
        self.generations: dict[SubtaskId, Generation] = {}
        self.said: list[control.ControlMessage] = []
        self.built: list[str] = []

    def report(self, message: control.ControlMessage) -> None:
        self.said.append(message)

    def build(self, name: SubtaskId, *arguments: Any) -> Any:
        self.built.append(str(name))
        return Begun(name)

    def guard(self, subtask: Any, action: Any, /, *arguments: Any) -> None:
        action(*arguments)

    def reach(self, point: str, generation: int, name: SubtaskId) -> None:
        return None


def promoting(*subtasks: str) -> tuple[Host, SlotFailover]:
    """A slot that has begun to promote these, in attempt 1 and generation 2."""
    host, standbys = Host(), SimpleNamespace(prepare=lambda *_: None, retire=lambda _: None, abort=lambda _: None)
    failover: SlotFailover[Any] = SlotFailover(host, standbys, time)  # type: ignore[arg-type]
    failover.promote(control.Promote(1, 2, 1, 0.0, False, 0, dict.fromkeys(subtasks, FROM_THE_START)))
    return host, failover


def test_what_is_ready_begins_when_a_fence_takes_the_others_over() -> None:
    host, failover = promoting("A[1]", "B[0]", "S[0]")
    failover.ready(StandbyReady(1, "A[1]", Prepared(), ""))
    assert host.built == []
    failover.fence(control.Fence(2, 3, {"C[0]": 0, "B[0]": 0, "B[1]": 0, "S[0]": 0, "S[1]": 0}))
    assert host.built == ["A[1]"]
    fenced, promoted = host.said
    assert isinstance(fenced, control.Fenced), "the answer does not wait for what begins"
    assert isinstance(promoted, control.Promoted) and promoted.attempt == 1
    failover.ready(StandbyReady(1, "B[0]", Prepared(), ""))
    assert host.built == ["A[1]"], "what was fenced does not begin in the old attempt"


def test_a_promotion_goes_on_as_long_as_one_of_its_subtasks_is_not_ready() -> None:
    host, failover = promoting("A[1]", "B[0]")
    failover.fence(control.Fence(2, 3, {"B[0]": 0}))
    assert host.built == []
    failover.ready(StandbyReady(1, "A[1]", Prepared(), ""))
    assert host.built == ["A[1]"]


def test_a_promotion_that_has_lost_all_its_subtasks_is_forgotten() -> None:
    host, failover = promoting("B[0]")
    failover.fence(control.Fence(2, 3, {"B[0]": 1}))
    assert failover._promotions == {}
    assert [type(message) for message in host.said] == [control.Fenced], "nothing was promoted"
    failover.abort(CheckpointId(1))
