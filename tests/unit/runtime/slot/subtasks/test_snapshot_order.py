"""In which order the snapshots of a subtask without keyed state are acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flinkplus.config import Options
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.subtasks.pacing import SlotLoad
from flinkplus.runtime.slot.subtasks.plan import SubtaskPlan, SubtaskPorts
from flinkplus.runtime.slot.subtasks.snapshots import PACKED_AT_ONCE_BYTES
from flinkplus.runtime.slot.subtasks.subtask import Subtask
from tests.unit.api.drawing import environment
from tests.unit.runtime.slot.slots_in_process import SCHEMA

ONE, TWO = CheckpointId(1), CheckpointId(2)
Work = Callable[[], SnapshotHandle]


def never(*_: Any) -> Any:
    raise AssertionError("this subtask needs none")


def plainly(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_a_small_snapshot_does_not_pass_a_large_one_that_is_still_being_packed() -> None:
    env = environment()
    first, second = (env.generate(lambda i: ("", i), schema=SCHEMA, count=1, name=name) for name in "ab")
    first.union(second).map_batches(plainly, schema=SCHEMA).key_by("k").count().discard()
    graph = env.graph.fuse()
    (vertex,) = [vertex for vertex in graph.vertices if vertex.outputs and not vertex.is_source]
    name = SubtaskId(vertex.name, 0)
    inputs = list(graph.inputs_of(name, 1))
    everybody = [SubtaskId(other.name, 0) for other in graph.vertices]
    in_pool: list[tuple[CheckpointId, Work]] = []
    told: list[control.ControlMessage] = []
    plan = SubtaskPlan(
        parallelism=1,
        graph=graph,
        vertex=vertex,
        subtask=name,
        generation=Generation(1),
        options=Options(parallelism=1, recovery="rollback", checkpoint_mode="unaligned"),
        slot=0,
        slots=dict.fromkeys(everybody, 0),
        generations=dict.fromkeys(everybody, Generation(1)),
        lineage=Lineage([other.name for other in graph.vertices], [(p.vertex, name.vertex) for _, p in inputs], None),
        handle=START,
        checkpoint=CheckpointId(0),
        mark=None,
        salt="",
        unaligned=True,
    )
    ports = SubtaskPorts(
        report=told.append,
        send=never,
        hand_over=lambda message, payload: None,
        grant=lambda generation, end, consumed: None,
        reach=lambda point, subtask: None,
        persist=lambda subtask, checkpoint, work: in_pool.append((checkpoint, work)),
        tend=never,
        beside=never,
        state=never,
        retention=None,
        snapshotted=lambda subtask, generation, handle: None,
        seen=lambda: None,
        load=SlotLoad(lambda: 0.0),
        location="",
    )
    subtask = Subtask(plan, ports)
    subtask.begin(1, 0.0)
    (here, _), (there, _) = inputs

    def barrier(channel: ChannelId, seq: int, checkpoint: CheckpointId) -> None:
        subtask.steps.receive(Message(MessageKind.BARRIER, channel, Generation(1), Seq(seq), checkpoint), None)

    def acknowledged() -> list[int]:
        return [message.checkpoint for message in told if isinstance(message, control.Acknowledged)]

    subtask.steps.checkpoints.overtake(ONE)
    barrier(here, 0, ONE)
    subtask.run()
    rows = pa.record_batch([["x" * PACKED_AT_ONCE_BYTES], [1]], schema=SCHEMA)
    size = PACKED_AT_ONCE_BYTES + 1
    subtask.steps.receive(Message(MessageKind.RECORDS, there, Generation(1), Seq(0), CheckpointId(0), rows, size), None)
    barrier(there, 1, ONE)
    barrier(here, 1, TWO)
    barrier(there, 2, TWO)
    while subtask.steps.runnable(0.0):
        subtask.run()
    assert acknowledged() == []
    for checkpoint, work in in_pool:
        subtask.persisted(checkpoint, work(), "")
    assert acknowledged() == [1, 2]
    in_pool.clear()
    barrier(here, 2, CheckpointId(3))
    barrier(there, 3, CheckpointId(3))
    while subtask.steps.runnable(0.0):
        subtask.run()
    assert (acknowledged(), in_pool) == ([1, 2, 3], []), "nothing is in the pool: at once"
    subtask.close()
