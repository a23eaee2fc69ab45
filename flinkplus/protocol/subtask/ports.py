"""The ports of a subtask's steps: the work itself, its snapshots, and its reports to the coordinator.

The runtime implements them in ``runtime.slot.subtasks``, the simulator in ``tests.simulation``.

Rules: the steps (``flinkplus.protocol.subtask.subtask``) call them in their thread. An iterator that a method returns
stops before each message that needs room in an output log, and continues when there is room.
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
        """Add a message. Returns ``None`` if it is new; otherwise its digest, below 0 if that is forgotten."""

    def spans(self, channel: ChannelId, /) -> Sequence[tuple[int, Any]]: ...

    def drop(self, before: int, /) -> None: ...

    def close(self) -> None: ...


class SubtaskWork(Protocol):
    """The work of a subtask: what it does with its input."""

    def push(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        """Process messages of records, at least one, in this order, as if they were one."""

    @property
    def joins_steps(self) -> bool:
        """Whether steps may be repeated together: their output does not depend on which rows a step takes at once, nor
        on the clock or random numbers."""

    def push_together(self, steps: list[list[tuple[Message, Any]]]) -> Sequence[Iterator[None]]:
        """Process the bundles of several steps at once. Returns for each step what sends its output, as ``push`` alone
        would have."""

    def read_together(self, steps: list[int], max_bytes: int) -> tuple[Sequence[Iterator[None]], bool]:
        """The same for a source: ``steps`` has what each step reads. It does at least one, and stops when it has
        ``max_bytes``, or cannot read what a step reads. Returns also whether the step after these found the end of the
        source."""

    def bundle_at(self, since: float) -> float:
        """When a small bundle may be taken whose first message has waited since ``since``; both in seconds."""

    @property
    def nothing_to_read(self) -> bool:
        """Whether a source has nothing to read just now, not even its end. When that has changed, or what ``can_read``
        answers, the work has the slot's loop look again."""

    @property
    def idle_at(self) -> float | None:
        """When event time will no longer wait for a source, in seconds, if there was nothing to read when
        ``nothing_to_read`` was asked. ``None``: never, or it does not wait any more."""

    def become_idle(self) -> Iterator[None]:
        """Event time does not wait for this source any more, until it has read rows: send that on."""

    @property
    def has_clock(self) -> bool:
        """Whether the work may wait for the time of day. Asked once; without it, the next three are never called."""

    @property
    def clock_at(self) -> float | None:
        """When the time of day will come that the work waits for, in seconds; ``None``: it waits for none. Not asked
        of a source."""

    @property
    def clock_due(self) -> bool:
        """Whether the time of ``clock_at`` has come."""

    def tick(self) -> Iterator[None]:
        """The time of day has come that the work waited for. The step reads the clock."""

    def next_read(self) -> int | None:
        """What a source reads now; the step logs the number, so that a replay reads the same. ``None``: nothing."""

    def can_read(self, choice: int) -> bool:
        """Whether all is there that ``read_rows(choice)`` reads."""

    def rows_of(self, choice: int) -> int:
        """The highest number of rows that ``read_rows(choice)`` reads; it depends on the choice alone."""

    def read_rows(self, choice: int) -> Generator[None, None, bool]:
        """Read and process the rows of a choice, and call ``StepHistory.has_read``. Returns false at the end."""

    def ready_at(self, now: float) -> float:
        """When a source may read next, in seconds; ``now`` if it need not wait."""

    def advance(self, watermark_ms: int) -> Iterator[None]:
        """Event time has reached ``watermark_ms`` on all inputs: fire what is due, and forward the watermark."""

    @property
    def holds_to_barrier(self) -> bool:
        """Whether rows are held back until the subtask sends a barrier."""

    def before_barrier(self) -> Iterator[None]:
        """The subtask takes its snapshot and sends a barrier next: emit what is held back until then."""

    def flush(self) -> Iterator[None]:
        """All input and event time have ended: emit what is still held back."""

    def step_done(self, taken: Bundle) -> None:
        """A step has ended, and the messages that it took are consumed."""

    def ended(self) -> None:
        """The end of input has been sent, by this incarnation or before it began."""


class AnswersPort(Protocol):
    """The rows of a subtask that wait for answers from outside of the job, and the answers that have come."""

    @property
    def waiting(self) -> int:
        """How many rows wait: those that steps have taken from the input, and whose answers no step has taken."""

    @property
    def full(self) -> bool:
        """Whether no further rows may wait."""

    def ask(self) -> None:
        """Ask for the waiting rows that are not asked for yet. When an answer can be taken, the port has the slot's
        loop look again."""

    def choose(self) -> int | None:
        """The answers to take next, as a number above 0; ``None``: none has come. Changes nothing. Where steps may be
        repeated, a successor can take what this names."""

    def repeats(self, choices: Sequence[int]) -> None:
        """The steps to repeat take these, in this order. Called once, before all other methods."""

    def can_take(self, choice: int) -> bool:
        """Whether the answers of ``choice``, which a predecessor took, are here."""

    def take(self, choice: int) -> Iterator[None]:
        """Process the answers of ``choice``: its rows wait no more."""


class SnapshotPort(Protocol):
    """Takes snapshots of a subtask's state, and sends acknowledgements and declines."""

    def take(self, checkpoint: CheckpointId, protocol_part: Callable[[], OperatorState]) -> None:
        """The synchronous part. ``protocol_part``: returns the protocol's part of the snapshot."""

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> SnapshotHandle | None:
        """Start the asynchronous part, with the snapshot's channel state (see ``checkpoints.add_logs``). Returns the
        handle if that finished at once; otherwise the port calls ``SubtaskCheckpoints.persisted`` at the end."""

    def discard(self, checkpoint: CheckpointId) -> None:
        """The snapshot is not needed any more."""

    def complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""

    def acknowledge(self, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        """Send the handle to the chain and the coordinator."""

    def decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        """Report to the coordinator that this subtask cannot take the snapshot."""

    def unpack(self, packed: Any) -> tuple[Message, Any]:
        """Decode a message of channel state (see ``checkpoints.add_logs``), with its payload."""


class SubtaskReports(Protocol):
    """Reports of a running subtask."""

    def exhausted(self) -> None:
        """Report to the coordinator that this source, or head of a loop, has ended."""

    def reached(self, point: str) -> None:
        """The subtask has reached a point of fault injection."""
