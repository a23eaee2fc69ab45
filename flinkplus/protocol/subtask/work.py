"""What a driver adds to the steps of a subtask: the work itself, state, and the ways to the coordinator.

Rules: called by the steps (``flinkplus.protocol.subtask.subtask``), in their thread. What is an iterator does its
part of the work up to the next message that needs room, and goes on when there is some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Protocol

from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.protocol.vocabulary.messages import Message

Taken = list[tuple[InputChannel, int]]
"""Input channels, and how many messages a step took off each."""


class SeenMessages(Protocol):
    """What is needed of a filter of message IDs (see ``dedup.filter``)."""

    @property
    def counts(self) -> Any: ...

    def begin(self, channel: ChannelId, first: int, /) -> None:
        """All messages before ``first`` are old."""

    def add(self, epoch: int, channel: ChannelId, seq: int, digest: int, /) -> int | None:
        """``None``: the message is new, and is noted. Else it is a duplicate, and had this digest; below 0: it is so
        old that its digest is forgotten."""

    def spans(self, channel: ChannelId, /) -> Sequence[tuple[int, Any]]: ...

    def drop(self, before: int, /) -> None: ...

    def close(self) -> None: ...


class SubtaskWork(ABC):
    """The driver's side of one subtask."""

    @abstractmethod
    def _digest(self, message: Message, payload: Any) -> int:
        """64 bits that tell the content of a message of records, the same wherever and however it was made."""

    @abstractmethod
    def _push(self, message: Message, payload: Any) -> Iterator[None]:
        """Work on a message of records."""

    @abstractmethod
    def _push_many(self, messages: list[tuple[Message, Any]]) -> Iterator[None]:
        """Work on several, in this order, as if they were one."""

    @abstractmethod
    def _rows_to_read(self) -> int:
        """How many rows a source may read now; it is noted, so that a repetition reads as many."""

    @abstractmethod
    def _read_rows(self, rows: int) -> Generator[None, None, bool]:
        """Read and work on up to ``rows``; returns ``False`` when there is nothing left to read. Calls ``has_read``."""

    @abstractmethod
    def _advance(self, watermark_ms: int) -> Iterator[None]:
        """Event time has come so far on all inputs: fire what is due by then, and pass the watermark on."""

    @abstractmethod
    def _wall_ms(self) -> int:
        """The time of day, in milliseconds since the Unix epoch."""

    @abstractmethod
    def _flush(self) -> Iterator[None]:
        """All input has ended, and with it event time: put out what is held back."""

    @abstractmethod
    def _take_snapshot(self, checkpoint: CheckpointId) -> None:
        """The synchronous part of a snapshot."""

    @abstractmethod
    def _persist(self, checkpoint: CheckpointId) -> None:
        """Begin the asynchronous part, with ``logs_of`` and ``add_logs``; it ends with a call of ``persisted``."""

    @abstractmethod
    def _pack(self, message: Message, payload: Any) -> Any:
        """A message as a part of a snapshot, JSON."""

    @abstractmethod
    def _unpack(self, packed: Any) -> tuple[Message, Any]:
        """The message again."""

    def _size_of(self, packed: Any) -> int:
        """What it takes in a snapshot, in bytes: it is text."""
        return len(packed)

    @abstractmethod
    def _discard(self, checkpoint: CheckpointId) -> None:
        """A snapshot is of no use any more."""

    @abstractmethod
    def _acknowledge(self, checkpoint: CheckpointId, handle: dict[str, Any]) -> None:
        """Tell the chain and the coordinator."""

    @abstractmethod
    def _decline(self, checkpoint: CheckpointId, reason: str, cause: AbortCause) -> None:
        """Tell the coordinator."""

    @abstractmethod
    def _report_exhausted(self) -> None:
        """Tell the coordinator that this source, or head of a loop, has ended."""

    @abstractmethod
    def _on_complete(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete."""

    @abstractmethod
    def _on_step_done(self, taken: Taken) -> None:
        """A step is done, and what it took counts as consumed."""

    @abstractmethod
    def _on_end(self) -> None:
        """The end of input is sent, or was before this incarnation began."""

    @abstractmethod
    def _on_point(self, point: str) -> None:
        """A point of fault injection."""

    def _ready_at(self, now: float) -> float:
        """When a source may read next, in seconds."""
        return now
