"""What a subtask is built from: its part of the job, and what it may ask of its slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dedup.filter import MessageFilter
from flinkplus.config import Options
from flinkplus.graph import JobGraph, Vertex
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.step_note import StepNote
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.subtasks.pacing import SlotLoad
from flinkplus.runtime.transport.wire.message_format import Message
from flinkplus.state.backend import SubtaskState
from flinkplus.state.store import Aside
from upstream_cache.retention import Retention


@dataclass(kw_only=True)
class SubtaskPlan(SubtaskIdentity):
    """What a deployment, or a promotion, gives a subtask.

    ``parallelism``: the present one; ``options`` has that of the start.
    ``handle``: the snapshot that it begins from.
    ``mark``: rows that its predecessor had put out, after a rollback.
    ``salt``: makes the random numbers those of this job.
    ``notes_rows``: a process was lost, so rows are noted before users' functions get them.
    ``alone``: the job has one slot.
    """

    graph: JobGraph
    vertex: Vertex
    options: Options
    parallelism: int
    handle: SnapshotHandle
    mark: int | None
    salt: str
    notes_rows: bool = False
    alone: bool = False

    @property
    def is_local(self) -> bool:
        """Whether other subtasks keep running when this one fails, and so whether it keeps what that needs."""
        return self.options.local_unless(self.alone)

    @property
    def has_sink(self) -> bool:
        """Whether the vertex writes output."""
        return self.graph.has_sink(self.vertex)


@dataclass
class SubtaskPorts:
    """What a subtask may ask of its slot.

    ``woken``: its sink has room again, its live source has something to read, answers from outside have come, or one of
    them has failed; in any thread.
    ``location``: the checkpoint directory.
    """

    report: Callable[[control.ControlMessage], None]
    send: Callable[[int, list[Any]], None]
    hand_over: Callable[[Message, Any], None]
    grant: Callable[[Generation, InputChannel, int], None]
    reach: Callable[[str, str], None]
    persist: Callable[[SubtaskId, CheckpointId, Callable[[], SnapshotHandle]], None]
    tend: Callable[[SubtaskState], object]
    beside: Aside
    state: Callable[[SubtaskPlan], SubtaskState]
    retention: Retention[tuple[Message, Any]] | None
    snapshotted: Callable[[SubtaskId, Generation, SnapshotHandle], None]
    seen: Callable[[], MessageFilter | None]
    load: SlotLoad
    location: str
    note: StepNote | None = None
    woken: Callable[[SubtaskId, Generation, Exception | None], None] = lambda subtask, generation, error: None
