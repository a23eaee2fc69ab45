"""Which of the messages that arrive a subtask takes: fencing, then the filter of message IDs, then the cursor.

Rules:

- a message of an older generation of its producer is dropped before anything else is asked;
- the filter decides whether a message is new: an ID that it knows is a duplicate, any other ID is new;
- a channel is ordered, so its cursor knows the same: all before the next expected number is old. The two keep their
  knowledge apart, and must agree. Where they do not, one of them has lost or mixed up what this subtask had received;
  which messages the state holds is not known then, so the error ends the subtask and takes the job back;
- a message ahead of the expected one (a gap) is dropped: its producer sends again from there;
- a duplicate must have the digest that its ID had.

Without a filter (the job does not recover locally, or does not promise exactly-once) the cursor alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.errors import MessageIdConflict, NondeterministicOperator
from flinkplus.protocol.channels.channel import Accept, Decision, Duplicate
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.subtask.work import SeenMessages
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

DIGEST_MASK = (1 << 64) - 1


def digests(of_records: Callable[[Message, Any], int]) -> Callable[[Message, Any], int]:
    """The digest of a message and its payload, 64 bits; ``of_records`` gives that of a message of records."""

    def digest(message: Message, payload: Any) -> int:
        if message.kind is MessageKind.RECORDS:
            return of_records(message, payload)
        value = message.watermark_ms if message.kind in (MessageKind.WATERMARK, MessageKind.ROUND) else message.epoch
        return (value << 8 | message.kind) & DIGEST_MASK

    return digest


class Admission:
    """Judges the messages that arrive for one subtask.

    ``seen``: its filter; ``None``: it has none.
    ``digest``: of a message and its payload, 64 bits.
    """

    def __init__(self, subtask: SubtaskId, seen: SeenMessages | None, digest: Callable[[Message, Any], int]) -> None:
        self._subtask = subtask
        self._seen = seen
        self._digest = digest

    def begin(self, channel: ChannelId, first: int) -> None:
        """A channel begins at ``first``: all messages before it are old."""
        if self._seen is not None:
            self._seen.begin(channel, first)

    def forget(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete: what it covers is not sent again."""
        if self._seen is not None:
            self._seen.drop(checkpoint)

    def digests(self, channel: ChannelId) -> Sequence[tuple[int, Any]]:
        """Of the messages that have arrived on ``channel``: runs, each with the number of its first."""
        return () if self._seen is None else self._seen.spans(channel)

    @property
    def counts(self) -> Any:
        """The filter's counters; ``None``: it has none."""
        return None if self._seen is None else self._seen.counts

    def close(self) -> None:
        """Give the filter back."""
        if self._seen is not None:
            self._seen.close()

    def admit(self, end: InputChannel, message: Message, payload: Any) -> Decision:
        """Judge a message that arrived on ``end``; a new one is noted in the filter and counted by the cursor.

        Raises ``PeerProtocolError`` as the cursor does, ``MessageIdConflict`` when filter and cursor disagree, and
        ``NondeterministicOperator`` when a duplicate has another content.
        """
        decision = end.cursor.accept(message.generation, message.seq)
        if self._seen is None or not isinstance(decision, Accept | Duplicate):
            return decision
        digest = self._digest(message, payload)
        had = self._seen.add(message.epoch, message.channel, message.seq, digest)
        if (had is None) is not isinstance(decision, Accept):
            raise self._conflict(message, had is None)
        if had is not None:
            self._compare(end, message, digest, had)
        return decision

    def _conflict(self, message: Message, is_new: bool) -> MessageIdConflict:
        says = "new to the filter of message IDs, and the cursor" if is_new else "known to the filter, and the cursor"
        return MessageIdConflict(
            f"{self._subtask}: message {message.seq} of channel {message.channel}, epoch {message.epoch}, is {says} of "
            f"the channel {'has passed it' if is_new else 'expects it'}"
        )

    def _compare(self, end: InputChannel, message: Message, digest: int, had: int) -> None:
        if had >= 0 and had != digest:
            raise NondeterministicOperator(
                f"{end.producer} resent message {message.seq} of channel {message.channel} with another content"
            )
