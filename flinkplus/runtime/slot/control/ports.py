"""What a slot's control needs of the rest of the slot: the job's graph, active subtasks, standbys.

The slot's process gives real ones (``slot.subtasks``, ``slot.process``), the simulator its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from chain_backup.replication.figures import ReplicationFigures
from flinkplus.protocol.channels.inputs import InputGate
from flinkplus.protocol.channels.outputs import OutputChannels
from flinkplus.protocol.loops.cycles import Cycles
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import NamedVertex


class VertexPort(NamedVertex, Protocol):
    """A vertex of the job graph. ``inputs``, ``outputs``: its edges."""

    @property
    def inputs(self) -> Sequence[int]: ...

    @property
    def outputs(self) -> Sequence[int]: ...


class GraphPort(Protocol):
    """The job graph, as far as a slot's control looks at it. ``recipes``: vertices whose sink keeps a recipe."""

    @property
    def vertices(self) -> Sequence[VertexPort]: ...

    def cycles(self) -> Cycles: ...

    def recipes(self) -> Collection[str]: ...

    def inputs_of(self, subtask: SubtaskId, parallelism: int) -> Iterable[tuple[ChannelId, SubtaskId]]: ...


class PrefetchPort(Protocol):
    """Fetches state files before they are needed, beside the stream; ``Prefetched`` reports how far that is."""

    def begin(self, order: control.Prefetch) -> None: ...

    def drop(self) -> None: ...


class PlanPort(Protocol):
    """What an active subtask was built from."""

    @property
    def vertex(self) -> VertexPort: ...


class ActiveSubtask(Protocol):
    """A subtask that runs in this slot: its steps, and what the slot's process adds to them."""

    @property
    def id(self) -> SubtaskId: ...

    @property
    def plan(self) -> PlanPort: ...

    @property
    def steps(self) -> SubtaskSteps: ...

    @property
    def inputs(self) -> InputGate: ...

    @property
    def outputs(self) -> OutputChannels: ...

    def begin(self, run: int, run_age_s: float) -> None: ...

    def close(self) -> None: ...

    def consumer_of(self, channel: ChannelId) -> SubtaskId: ...


S = TypeVar("S", bound=ActiveSubtask)
"""The kind of active subtask that a slot has."""


class PreparedPort(Protocol):
    """The state that a promoted standby starts with."""

    def close(self) -> None:
        """Release it, unused."""


@dataclass(frozen=True, slots=True)
class StandbyReady:
    """``prepare`` ended: with what the standby holds, or with a reason why it cannot take over."""

    attempt: int
    subtask: str
    prepared: PreparedPort | None
    reason: str


class StandbysPort(Protocol):
    """The standby copies on this slot."""

    figures: ReplicationFigures

    def prepare(self, attempt: int, subtask: str, version: int, handle: SnapshotHandle, generation: int) -> None: ...

    def retire(self, subtask: str) -> None: ...

    def abort(self, checkpoint: CheckpointId) -> None: ...

    def form(self, chains: dict[str, tuple[int, tuple[int, ...]]]) -> None: ...

    def trim(self, version: CheckpointId) -> None: ...

    def receive(self, peer: int, frame: bytes) -> None: ...

    def peer_connected(self, peer: int) -> None: ...

    def persisted(self, subtask: str, generation: int, handle: SnapshotHandle) -> None: ...

    def close(self, keeps: bool = False) -> None: ...
