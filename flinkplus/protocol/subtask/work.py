"""The ports of a subtask's steps: the work itself, its snapshots, and the ways to the coordinator.

The runtime gives real ones (``runtime.slot.subtasks``), the simulator its own.

Rules: called by the steps (``flinkplus.protocol.subtask.subtask``), in their thread. A method that returns an iterator
does its part of the work up to the next message that needs room, and continues when there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

from flinkplus.protocol.channels.inputs import Bundle
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId
from flinkplus.protocol.vocabulary.in_flight import AbortCause, Logs
from flinkplus.protocol.vocabulary.messages import Message


class SeenMessages(Protocol):
    """A filter of message IDs (see ``dedup.filter``)."""

    @property
    def counts(self) -> Any: ...

    def begin(self, channel: ChannelId, first: int, /) -> None:
        """All messages before ``first`` are old."""

    def add(self, epoch: int, channel: ChannelId, seq: int, digest: int, /) -> int | None:
        """``None``: the message is new, and is noted. Otherwise it is a duplicate, and this is its digest; below 0: it
        is so old that its digest is forgotten."""

    def spans(self, channel: ChannelId, /) -> Sequence[tuple[int, Any]]: ...

    def drop(self, before: int, /) -> None: ...

    def close(self) -> None: ...


class SubtaskWork(Protocol):
    """What a subtask does with its input."""

    def push(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        """Process messages of records, at least one, in this order, as if they were one."""

    def bundle_at(self, since: float) -> float:
        """When a small bundle may be taken whose first message waits since ``since``, in seconds."""

    def rows_to_read(self) -> int:
        """How many rows a source may read now; the step logs it, so that a replay reads as many."""

    def read_rows(self, rows: int) -> Generator[None, None, bool]:
        """Read and process up to ``rows``; returns ``False`` when nothing is left to read. Calls
        ``StepHistory.has_read``."""

    def ready_at(self, now: float) -> float:
        """When a source may read next, in seconds; ``now`` when it need not wait."""

    def advance(self, watermark_ms: int) -> Iterator[None]:
        """Event time has reached ``watermark_ms`` on all inputs: fire what is due, and send the watermark on."""

    def flush(self) -> Iterator[None]:
        """All input has ended, and event time with it: put out what is held back."""

    def step_done(self, taken: Bundle) -> None:
        """A step has ended, and the messages that it took are consumed."""

    def ended(self) -> None:
        """The end of input is sent, or was before this incarnation began."""


class SnapshotPort(Protocol):
    """How a subtask's state becomes a snapshot, and where its answers go."""

    def take(self, checkpoint: CheckpointId, protocol_part: Callable[[], OperatorState]) -> None:
        """The synchronous part. ``protocol_part``: gives what the protocol keeps in the snapshot."""

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> SnapshotHandle | None:
        """Begin the asynchronous part, with the channel state of the snapshot (see ``checkpoints.add_logs``).

        Returns the handle if that was all. Otherwise ``SubtaskCheckpoints.persisted`` has to be called at its end.
        """

    def discard(self, checkpoint: CheckpointId) -> None:
        """The snapshot is of no use any more."""

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""

    def acknowledge(self, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        """Send the handle to the chain and the coordinator."""

    def decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        """Report to the coordinator that this subtask cannot take the snapshot."""

    def unpack(self, packed: Any) -> tuple[Message, Any]:
        """A message that a snapshot holds (see ``checkpoints.add_logs``), and its payload."""


class SubtaskReports(Protocol):
    """What a subtask reports while it runs."""

    def exhausted(self) -> None:
        """Report to the coordinator that this source, or head of a loop, has ended."""

    def reached(self, point: str) -> None:
        """The subtask has reached a point of fault injection."""
