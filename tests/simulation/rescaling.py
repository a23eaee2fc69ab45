"""What a simulated checkpoint becomes at another parallelism: the product's part of each snapshot, and the work's.

Stands for ``flinkplus.runtime.job.rescaling`` and for the part of ``flinkplus.runtime.job.restoring`` that uses it.
Streams of records are dealt by ``flinkplus.sources.dealing``, keys by ``flinkplus.protocol.vocabulary.key_groups``, and
the protocol's part is ``flinkplus.protocol.subtask.rescaling``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flinkplus.graph import Vertex
from flinkplus.protocol.channels.watermarks import IDLE_MS
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.subtask import rescaling
from flinkplus.protocol.vocabulary import key_groups
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId, parallelism_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control.names import parse_channel
from flinkplus.sources import dealing
from tests.simulation.asking import inherited
from tests.simulation.driver import SimCommits, Unavailable
from tests.simulation.graph import Row, SimGraph
from tests.simulation.subtask import RECORD_BYTES, WORK, fold, pack, packed_bytes, unpacked, work_of

if TYPE_CHECKING:
    from flinkplus.sources.dealing import BlockRun
    from tests.simulation.world import World

Handles = Mapping[SubtaskId, SnapshotHandle]


class NotAligned(Exception):
    """A checkpoint with messages that barriers have overtaken cannot be divided."""


def states_of(handles: Handles, vertex: Vertex) -> list[OperatorState]:
    """Of all subtasks of a vertex, in their order."""
    return [handles[SubtaskId(vertex.name, index)].operator_state for index in range(parallelism_of(handles))]


def inherited_rows(rows: Sequence[Row], owns: Callable[[Row], bool]) -> tuple[Row, ...]:
    """Of the rows that all subtasks of a vertex held back, those of one of the new ones."""
    return tuple(sorted(row for row in rows if owns(row)))


@dataclass
class InFlight:
    """Rows that were in flight in the loops of a job, in messages to the subtasks of another parallelism."""

    graph: SimGraph
    parallelism: int
    packed: dict[ChannelId, list[Any]] = field(default_factory=dict)

    def add(self, states: Sequence[OperatorState]) -> None:
        """Those of all subtasks of one vertex."""
        for state in states:
            for name, messages in sorted(state.in_flight.items()):
                for message in map(unpacked, messages):
                    if message.kind is MessageKind.RECORDS:
                        self._send(parse_channel(name), message)

    def _send(self, channel: ChannelId, message: Message) -> None:
        consumer = self.graph.exchanges[channel.edge].consumer
        parts: dict[int, list[Row]] = {}
        for row in message.records:
            parts.setdefault(self.graph.owner(self.graph.key(row[0], consumer), self.parallelism), []).append(row)
        for index, rows in sorted(parts.items()):
            to = ChannelId(channel.edge, channel.producer % self.parallelism, index)
            packed = self.packed.setdefault(to, [])
            size, seq = RECORD_BYTES * len(rows), Seq(len(packed))
            sent = MessageKind.RECORDS, to, message.generation, seq, message.epoch, tuple(rows), size
            packed.append(pack(Message(*sent, rows=len(rows)), None))

    @property
    def counts(self) -> dict[ChannelId, int]:
        return {channel: len(messages) for channel, messages in self.packed.items()}

    def of(self, vertex: Vertex, index: int) -> dict[str, list[Any]]:
        """The messages to one subtask."""
        found = self.packed.items()
        return {str(c): messages for c, messages in found if c.consumer == index and c.edge in vertex.inputs}


def promised_by(before: Sequence[OperatorState], edge: int) -> int | None:
    """The event time that all producers of an edge have promised that have not ended."""
    open_channels: list[int | None] = []
    of_all: list[int] = []
    for consumer, state in enumerate(before):
        for producer in range(len(before)):
            channel = str(ChannelId(edge, producer, consumer))
            known = state.watermarks.get(channel)
            known = None if known == IDLE_MS else known
            if channel not in state.ended_channels:
                open_channels.append(known)
            if known is not None:
                of_all.append(known)
    return rescaling.least(open_channels) if open_channels else max(of_all, default=None)


@dataclass(frozen=True)
class Division:
    """A checkpoint at the parallelism ``before``, made into ``checkpoint`` at the parallelism ``after``."""

    world: World
    handles: Handles
    checkpoint: CheckpointId
    generation: Generation
    after: int

    def divided(self) -> dict[SubtaskId, SnapshotHandle]:
        """The new snapshots, with their files in storage. Raises ``NotAligned`` or ``Unavailable``."""
        graph = self.world.graph
        if any(handle.overtaken for handle in self.handles.values()):
            raise NotAligned
        in_flight = InFlight(graph, self.after)
        for vertex in graph.vertices:
            in_flight.add(states_of(self.handles, vertex))
        found: dict[SubtaskId, SnapshotHandle] = {}
        for at, vertex in enumerate(graph.vertices):
            for index in range(self.after):
                found[SubtaskId(vertex.name, index)] = self._divided(at, vertex, index, in_flight)
        return found

    def _divided(self, at: int, vertex: Vertex, index: int, in_flight: InFlight) -> SnapshotHandle:
        before, name = states_of(self.handles, vertex), SubtaskId(vertex.name, index)
        promised = {edge: promised_by(before, edge) for edge in vertex.inputs}
        protocol_part = rescaling.rescaled(before, index, self.after, promised, vertex.outputs, in_flight.counts)
        messages = in_flight.of(vertex, index)
        saved = replace(
            protocol_part,
            operators={WORK: self._work(at, vertex, index, before)},
            in_flight=messages,
            in_flight_bytes=sum(packed_bytes(one) for several in messages.values() for one in several),
        )
        files = () if vertex.is_source else self._files(vertex, name)
        return SnapshotHandle(
            subtask=str(name),
            generation=self.generation,
            checkpoint=self.checkpoint,
            files=tuple(map(self.world.state_files.card, files)),
            operator_state=saved,
        )

    def _work(self, at: int, vertex: Vertex, index: int, before: Sequence[OperatorState]) -> OperatorPart:
        graph, works = self.world.graph, [work_of(state) for state in before]
        known = [None if work["advanced_ms"] < 0 else work["advanced_ms"] for work in works]
        parts = [OperatorPart(rows_in=0, rows_out=0, watermark_ms=advanced_ms) for advanced_ms in known]
        part = rescaling.rescaled_part(parts, [state.ended for state in before], index, self.after)
        held = [row for work in works for row in work["held"]]
        asked = [row for work in works for _, row in work["asked"].get("rows", ())]

        def owns(row: Row) -> bool:
            return graph.owner(graph.key(row[0], at), self.after) == index

        state: dict[str, Any] = {
            "left": self._dealt(works)[index] if vertex.is_source else works[0]["left"],
            "staged": tuple(file for work in works[index :: self.after] for file in work["staged"]),
            "depends": {},  # what all began from is complete
            "held": inherited_rows(held, owns),
            "asked": inherited([work["asked"] for work in works], inherited_rows(asked, owns)),
            "advanced_ms": -1 if part.watermark_ms is None else part.watermark_ms,
            "said_idle": False,
            "tick_at_ms": min((work["tick_at_ms"] for work in works if work["tick_at_ms"] is not None), default=None),
            "next": {},
        }
        return replace(part, state=state)

    def _dealt(self, works: Sequence[dict[str, Any]]) -> list[tuple[BlockRun, ...]]:
        return [tuple(runs) for runs in dealing.deal_blocks([work["left"] for work in works], self.after)]

    def _files(self, vertex: Vertex, name: SubtaskId) -> tuple[str, ...]:
        """One file with all counts of the key groups that a subtask owns."""
        world, graph = self.world, self.world.graph
        groups = key_groups.groups_of(name.index, self.after, graph.groups)
        counts: dict[int, int] = {}
        for index in range(parallelism_of(self.handles)):
            files = [file.name for file in self.handles[SubtaskId(vertex.name, index)].files]
            found = fold(world.files, files).items()
            counts.update({key: count for key, count in found if graph.group(key) in groups})
        if world.uploads_fail and world.rng_divided.random() < 0.5:
            raise Unavailable("upload refused")
        file = f"{name}/{self.generation}-{self.checkpoint}-0.sst"
        world.files[file] = tuple(counts.items())
        world.durable.put(file)
        return (file,)


@dataclass(frozen=True)
class SimDivider:
    """Stands for ``CheckpointDivider``."""

    world: World
    commits: SimCommits

    def check(self, checkpoint: CheckpointId, parallelism: int) -> None:
        """What the simulated job holds can always be divided, if it can be read."""
        if checkpoint not in self.commits.manifests:
            raise Unavailable(f"checkpoint {checkpoint} was dropped")

    def files(self, checkpoint: CheckpointId, parallelism: int) -> dict[SubtaskId, tuple[StateFile, ...]]:
        """All files of the checkpoint, for all subtasks: which ones does not matter here."""
        self.check(checkpoint, parallelism)
        handles: Handles = self.commits.manifests[checkpoint]["handles"]
        files = tuple(file for handle in handles.values() for file in handle.files)
        names = (SubtaskId(v.name, index) for v in self.world.graph.vertices for index in range(parallelism))
        return dict.fromkeys(names, files)

    def divide(self, checkpoint: CheckpointId, new: CheckpointId, generation: Generation, parallelism: int) -> None:
        divide(self.world, self.commits, checkpoint, new, generation, parallelism)


def divide(
    world: World,
    commits: SimCommits,
    checkpoint: CheckpointId,
    new: CheckpointId,
    generation: Generation,
    parallelism: int,
) -> None:
    """Store the checkpoint ``new``: ``checkpoint`` for another parallelism. Then the plan is replaced."""
    before: Handles = commits.manifests[checkpoint]["handles"]
    world.note("checkpoint %s is divided among %s subtasks of each vertex, as %s", checkpoint, parallelism, new)
    try:
        handles = Division(world, before, new, generation, parallelism).divided()
    except Unavailable:
        raise
    except Exception as error:
        if not isinstance(error, NotAligned) or world.coordinator is not None:  # a running job waits for an aligned one
            world.checks.not_divided(checkpoint, error)
        raise
    commits.store(new, generation, list(handles.items()), False, divided=dict(before), of=checkpoint)
    if world.storage_fails and world.rng_divided.random() < 0.3:
        raise Unavailable("plan refused")
    world.durable.parallelism = parallelism
    world.checks.divided(new, before, handles)
