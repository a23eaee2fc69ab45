"""What a slot offers to the parts of its control. The slot's process and the simulator provide it (``SlotOrders``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.control.active import ActiveSubtasks
from flinkplus.runtime.slot.control.ports import GraphPort, S


class SlotHost(ABC, Generic[S]):
    """Slot ``index``. The job has ``parallelism`` subtasks of each vertex now.

    ``runs_ahead``: barriers may overtake, or the graph has loops.
    ``notes_rows``: a process was lost since the last complete checkpoint, as the last deployment or promotion said.
    ``alone``: the job had no other slot when it was deployed.
    ``slots``, ``generations``: of all subtasks of the job.
    ``deployed``: the generation of the deployment that the slot takes part in.
    """

    index: int
    parallelism: int
    graph: GraphPort
    lineage: Lineage
    runs_ahead: bool
    notes_rows: bool
    alone: bool
    active: ActiveSubtasks[S]
    slots: dict[SubtaskId, int]
    generations: dict[SubtaskId, Generation]
    deployed: Generation

    @abstractmethod
    def report(self, message: control.ControlMessage) -> None:
        """Send to the coordinator."""

    @abstractmethod
    def build(
        self,
        name: SubtaskId,
        handle: SnapshotHandle,
        checkpoint: CheckpointId,
        mark: int | None,
        promotion: Promotion | None = None,
        repeats: tuple[int, ...] = (),
        recorded: int = 0,
    ) -> S:
        """A subtask restored from ``handle``, not yet active. Raises the errors of restoring. ``repeats``,
        ``recorded``: see ``SubtaskIdentity``."""

    @abstractmethod
    def guard(self, subtask: S, action: Callable[..., None], /, *arguments: Any) -> None:
        """Run ``action``; an exception is the subtask's failure, reported once, and the subtask stops."""

    @abstractmethod
    def reach(self, point: str, generation: int, name: SubtaskId) -> None:
        """A point of fault injection; see ``faults.points``."""

    @abstractmethod
    def send_credit(self, slot: int, credit: Message) -> None:
        """Send credit back to another slot."""

    @abstractmethod
    def take_replica(self, peer: int, frame: bytes) -> None:
        """Slot ``peer`` has sent a part of a standby copy, or an answer to one."""

    @abstractmethod
    def frame_malformed(self, peer: int, error: Exception) -> None:
        """A frame of ``peer`` could not be read: new streams are opened, and all that may be lost is sent again."""
