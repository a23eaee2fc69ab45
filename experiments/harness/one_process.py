"""All subtasks of a job in one process and one thread: for measuring what steps and messages cost by themselves.

The subtasks, their operators, state, channels and the wire format are those of a job. Sockets, Spark, coordinator and
the slot's loop are left out: who uses this says which subtask runs, and when what was sent arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dedup.filter import MessageFilter
from dedup.store import RocksStore
from flinkplus.config import Options
from flinkplus.graph import JobGraph
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.slot.subtasks.pacing import SlotLoad
from flinkplus.runtime.slot.subtasks.plan import SubtaskPlan, SubtaskPorts
from flinkplus.runtime.slot.subtasks.subtask import Subtask
from flinkplus.runtime.transport.wire.message_format import Message
from flinkplus.state.backend import SubtaskState
from flinkplus.state.durable.storage import CheckpointStorage
from upstream_cache.retention import Retention

GENERATION = Generation(1)


class OneProcess:
    """A job at one parallelism; index *i* of each vertex is on slot *i*.

    ``directory``: for state and checkpoints.
    ``standbys``: whether subtasks keep what they send and filter message IDs, as in a job with standbys.

    ``arriving``: frames that were sent to other slots. ``snapshots``: handles of all snapshots so far.
    """

    def __init__(self, graph: JobGraph, options: Options, directory: Path, standbys: bool) -> None:
        self.graph, self.options, self.directory = graph, options, directory
        self.arriving: deque[bytes] = deque()
        self.snapshots: list[SnapshotHandle] = []
        self._closing = ExitStack()
        self._storage = CheckpointStorage(str(directory / "checkpoints"))
        self._storage.ownership.prepare({"name": "costs", "fingerprint": ""}, False)
        self._ids = RocksStore(directory / "ids") if standbys else None
        if self._ids is not None:
            self._closing.callback(self._ids.close)
        edges = [(vertex, edge) for vertex in graph.vertices for edge in vertex.outputs]
        self._consumers = {edge: graph.consumer_vertex(edge).name for _, edge in edges}
        self._producers = {edge: vertex.name for vertex, edge in edges}
        self._names = [SubtaskId(v.name, index) for v in graph.vertices for index in range(options.parallelism)]
        self._lineage = Lineage(
            [vertex.name for vertex in graph.vertices],
            [(vertex.name, self._consumers[edge]) for vertex, edge in edges],
            options.sharing_depth,
        )
        self.subtasks = {name: self.make(name, number) for number, name in enumerate(self._names)}
        for subtask in self.subtasks.values():
            self._closing.callback(subtask.close)
            subtask.begin(1, 0.0)

    def make(self, name: SubtaskId, number: int, promotion: Promotion | None = None) -> Subtask:
        """A subtask from the start of the job. ``number``: no other one has it."""
        names, ids, options = self._names, self._ids, self.options
        plan = SubtaskPlan(
            parallelism=options.parallelism,
            graph=self.graph,
            vertex=self.graph.vertex_of(name.vertex),
            subtask=name,
            generation=GENERATION,
            options=options,
            slots={other: other.index for other in names},
            generations=dict.fromkeys(names, GENERATION),
            lineage=self._lineage,
            promotion=promotion,
            slot=name.index,
            handle=START,
            checkpoint=CheckpointId(0),
            mark=None,
            salt="costs",
            guarantee=options.promises,
        )
        scratch, files = self.directory / "scratch", self._storage.state_files
        log = self.directory / f"log-{number}"
        ports = SubtaskPorts(
            report=lambda message: None,
            send=lambda slot, buffers: self.arriving.append(b"".join(buffers)),
            hand_over=self.receive,
            grant=self._grant,
            reach=lambda point, subtask: None,
            persist=self._persist,
            tend=lambda state: None,
            beside=lambda work: None,
            state=lambda plan: SubtaskState(scratch, files, str(name), 1, max_entries=options.memtable_entries),
            retention=None if ids is None else Retention(log, MessageCodec(), options.cache_memory_mb << 20),
            snapshotted=lambda subtask, generation, handle: self.snapshots.append(handle),
            seen=lambda: None if ids is None else MessageFilter(ids, number, options.dedup_error_rate),
            load=SlotLoad(lambda: 0.0),
            location=str(self.directory),
        )
        return Subtask(plan, ports)

    def _persist(self, name: SubtaskId, checkpoint: CheckpointId, work: Callable[[], SnapshotHandle]) -> None:
        self.subtasks[name].persisted(checkpoint, work(), "")

    def consumer(self, channel: ChannelId) -> SubtaskId:
        """The subtask at the far end."""
        return SubtaskId(self._consumers[channel.edge], channel.consumer)

    def receive(self, message: Message, payload: Any) -> None:
        """A message arrives at its consumer."""
        self.subtasks[self.consumer(message.channel)].steps.receive(message, payload)

    def _grant(self, generation: Generation, end: InputChannel, consumed: int) -> None:
        outputs = self.subtasks[SubtaskId(self._producers[end.channel.edge], end.channel.producer)].outputs
        channel = outputs.channels[end.channel]
        channel.credit(generation, consumed, end.peer)
        outputs.pump(channel)

    def close(self) -> None:
        """Close all subtasks."""
        self._closing.close()
