"""Decides which arriving messages a subtask accepts: the channel's cursor first, then the filter of message IDs.

Rules:

- the cursor drops a message of an older generation of its producer, and one ahead of the expected number (a gap): its
  producer sends again from there. The filter does not see these;
- any other message is new if it is the expected one, and old if it is before that, since a channel is ordered. The
  filter keeps its own record of the IDs, and must agree. If it does not, one of the two has lost or confused what this
  subtask received. Which messages the state holds is then unknown, so the error ends the subtask and rolls the job
  back;
- a duplicate must have the same digest as the first message with its ID.

Without a filter (the job does not recover locally, or does not promise exactly-once) the cursor alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.errors import MessageIdConflict, NondeterministicOperator
from flinkplus.protocol.channels.channel import Accept, Decision, Duplicate
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.subtask.ports import SeenMessages
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

DIGEST_MASK = (1 << 64) - 1


def digests(of_records: Callable[[Message, Any], int]) -> Callable[[Message, Any], int]:
    """Returns the digest function, 64 bits, of a message and its payload; ``of_records``: that of records messages."""

    def digest(message: Message, payload: Any) -> int:
        if message.kind is MessageKind.RECORDS:
            return of_records(message, payload)
        value = message.watermark_ms if message.kind in (MessageKind.WATERMARK, MessageKind.ROUND) else message.epoch
        return (value << 8 | message.kind) & DIGEST_MASK

    return digest


class Admission:
    """Accepts or drops the messages that arrive for one subtask.

    ``seen``: its filter of message IDs, if it has one.
    ``digest``: of a message and its payload, 64 bits.
    """

    def __init__(self, subtask: SubtaskId, seen: SeenMessages | None, digest: Callable[[Message, Any], int]) -> None:
        self._subtask = subtask
        self._seen = seen
        self._digest = digest

    def begin(self, channel: ChannelId, first: int) -> None:
        """Start a channel at ``first``: all messages before it are old."""
        if self._seen is not None:
            self._seen.begin(channel, first)

    def forget(self, checkpoint: CheckpointId) -> None:
        """A checkpoint is complete: forget the messages that it covers, which no producer sends again."""
        if self._seen is not None:
            self._seen.drop(checkpoint)

    def digests(self, channel: ChannelId) -> Sequence[tuple[int, Any]]:
        """Digests of the messages that have arrived on ``channel``: spans, each with the number of its first."""
        return () if self._seen is None else self._seen.spans(channel)

    @property
    def counts(self) -> Any:
        """The filter's counters; ``None`` without a filter."""
        return None if self._seen is None else self._seen.counts

    def close(self) -> None:
        """Close the filter."""
        if self._seen is not None:
            self._seen.close()

    def admit(self, end: InputChannel, message: Message, payload: Any) -> Decision:
        """Decide about a message that arrived on ``end``; the filter and the cursor record a new one.

        Raises ``PeerProtocolError`` as the cursor does, ``MessageIdConflict`` when filter and cursor disagree, and
        ``NondeterministicOperator`` when a duplicate differs in content.
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
