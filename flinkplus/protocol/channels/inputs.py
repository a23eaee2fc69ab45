"""The input ends of a subtask's channels: a queue and a cursor each.

Credit is the consumer's ``consumed`` cursor: the producer may send up to ``consumed + window``. It is cumulative, so
that a late, repeated or lost grant does no harm.

Rules: what is taken off a queue counts as consumed only when its step is done; nothing is taken off a blocked channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.protocol.channels.channel import InputCursor
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MERGED_MESSAGE_BYTES = 16 << 10


@dataclass(slots=True)
class InputChannel:
    """The consumer's end of one channel. ``peer`` is the producer's slot, ``None`` when it is this one. ``put_back``:
    messages at the head of the queue that were received by a predecessor, and are no part of the cursors."""

    channel: ChannelId
    producer: SubtaskId
    peer: int | None
    cursor: InputCursor
    queue: deque[tuple[Message, Any]] = field(default_factory=deque)
    blocked: bool = False
    ended: bool = False
    put_back: int = 0

    def waiting_before(self, checkpoint: CheckpointId, most: int) -> tuple[int, int]:
        """What is here and not taken, up to the barrier of ``checkpoint``: its size in bytes, and about what it takes
        in a snapshot, barrier included. If that has not come in, all, and twice in a snapshot: there is more to come.
        Where it takes more than ``most``, it may be a part of it only."""
        size_bytes = in_snapshot = 0
        for message, _ in self.queue:
            in_snapshot += cost_of(message)
            if message.kind is MessageKind.BARRIER and message.epoch == checkpoint:
                return size_bytes, in_snapshot
            size_bytes += message.size
            if in_snapshot > most:
                break
        return size_bytes, 2 * in_snapshot

    def is_from(self, peer: int, generation: Generation) -> bool:
        """Whether slot ``peer`` may send a message of this generation here. Where older ones came from is not known any
        more, and they have no effect."""
        return peer == self.peer or generation < self.cursor.generation

    def fence(self, generation: Generation, peer: int | None) -> int:
        """The producer has failed, and its successor will have ``generation``, at ``peer``: nothing older is taken any
        more. Returns the next ``seq`` expected."""
        self.cursor.replace_producer(generation)
        self.peer = peer
        return self.cursor.expected


class InputGate:
    """All input channels of a subtask; ``next`` picks fairly among those that have a message and are not blocked.

    ``overdrawn``: producers may send beyond their credit.
    """

    def __init__(
        self,
        window: int,
        grant: Callable[[InputChannel, int], None],
        make_cursor: Callable[..., InputCursor] = InputCursor,
        overdrawn: bool = False,
    ) -> None:
        self._window = window
        self._overdrawn = overdrawn
        self._grant = grant
        self._make_cursor = make_cursor
        self.channels: dict[ChannelId, InputChannel] = {}
        self.stale = 0
        """Messages of fenced generations that came, and had no effect."""
        self._order: deque[InputChannel] = deque()

    def add(
        self,
        channel: ChannelId,
        producer: SubtaskId,
        peer: int | None,
        generation: Generation,
        first: int,
        ended: bool,
        replayed: bool = False,
        in_flight: Sequence[tuple[Message, Any]] = (),
    ) -> None:
        """Add a channel whose ``producer`` has ``generation``; ``first`` is the next ``seq`` on it. ``replayed``: it is
        the channel of a promoted subtask. ``in_flight``: messages before ``first`` that a snapshot holds: they are
        taken before all others.
        """
        cursor = self._make_cursor(
            channel, generation, self._window, Seq(first), replayed=replayed, overdrawn=self._overdrawn
        )
        end = InputChannel(channel, producer, peer, cursor)
        end.ended = ended
        end.queue.extend(in_flight)
        end.put_back = len(in_flight)
        self.channels[channel] = end
        self._order.append(end)

    def next(self) -> InputChannel | None:
        """A channel with a message to take, or ``None``; the one chosen goes to the end of the queue."""
        for _ in range(len(self._order)):
            end = self._order[0]
            self._order.rotate(-1)
            if end.queue and not end.blocked:
                return end
        return None

    def records_ahead(self, end: InputChannel) -> int:
        """How many small messages of records are next on ``end``; a window of them at most, so that a producer that
        sends them again may always send them all."""
        count = 0
        for message, _ in end.queue:
            if count == self._window or message.kind is not MessageKind.RECORDS or message.size > MERGED_MESSAGE_BYTES:
                break
            count += 1
        return count

    def take_records(self, most: int) -> list[tuple[InputChannel, Message, Any]]:
        """Up to ``most`` small messages of records that may be taken now, of all channels in turn, in channel order.

        None when it is the turn of a channel with a watermark: what comes behind it must not wait until all others are
        empty.
        """
        taken: list[tuple[InputChannel, Message, Any]] = []
        for end in self._order:
            if end.blocked:
                continue
            while end.queue and len(taken) < most:
                message, payload = end.queue[0]
                if message.kind is not MessageKind.RECORDS or message.size > MERGED_MESSAGE_BYTES:
                    if not taken and message.kind is MessageKind.WATERMARK:
                        return []
                    break
                end.queue.popleft()
                taken.append((end, message, payload))
        self._order.rotate(-1)
        return taken

    def consumed(self, end: InputChannel, count: int = 1) -> None:
        """``count`` messages taken from ``end`` are done: advance the cursor, and grant credit when enough has come
        together.
        """
        if end.put_back:
            again = min(count, end.put_back)
            end.put_back -= again
            count -= again
            if not count:
                return
        end.cursor.consume(count)
        if end.cursor.announce() is not None:
            self._grant(end, end.cursor.consumed)

    def announce(self) -> None:
        """Tell every producer where this subtask is: it is new, or a stream is."""
        for end in self.channels.values():
            self.grant_anew(end)

    def grant_anew(self, end: InputChannel) -> None:
        """The producer of ``end`` is another one now: tell it how far this subtask is."""
        self._grant(end, end.cursor.consumed)

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.cursor.consumed for channel, end in self.channels.items()}
