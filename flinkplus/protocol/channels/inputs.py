"""The input ends of a subtask's channels, each with a queue and a cursor.

A grant of credit carries the consumer's ``consumed`` cursor: the producer may send up to ``consumed + window``. The
cursor is cumulative, so that a late, repeated or lost grant does no harm.

Rules: messages taken off a queue count as consumed only when their step has ended; steps take none off a blocked
channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from flinkplus.protocol.channels.channel import InputCursor, Window
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MAX_BUNDLE_BYTES = 8 << 20

Bundle = list[tuple["InputChannel", int]]
"""Input channels, each with the number of messages that a step takes from it, in this order."""


@dataclass(slots=True)
class InputChannel:
    """The consumer's end of one channel.

    ``peer``: the producer's slot, ``None`` when it is this one.
    ``put_back``: messages at the start of the queue that a predecessor received; the cursors do not count them.
    ``taken_bytes``: bytes that the current step has taken.
    ``waiting_bytes``: bytes in the queue.
    """

    channel: ChannelId
    producer: SubtaskId
    peer: int | None
    cursor: InputCursor
    queue: deque[tuple[Message, Any]] = field(default_factory=deque)
    blocked: bool = False
    ended: bool = False
    put_back: int = 0
    taken_bytes: int = 0
    waiting_bytes: int = 0

    def fills(self, window: Window) -> bool:
        """Whether half of a window waits here, so that the producer will soon run out of credit."""
        return 2 * len(self.queue) >= window.messages or 2 * self.waiting_bytes >= window.size_bytes

    def waiting_before(self, checkpoint: CheckpointId, most: int) -> tuple[int, int]:
        """Size in bytes of what waits before the barrier of ``checkpoint``, and about its size in a snapshot, barrier
        included.

        Without the barrier, all that waits counts, twice in a snapshot, because more will arrive.
        ``most``: where the snapshot's part exceeds it, the counting may stop early.
        """
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
        """Whether slot ``peer`` may send a message of this generation here. For older generations any slot may: their
        slots are not known any more, and their messages have no effect."""
        return peer == self.peer or generation < self.cursor.generation

    def fence(self, generation: Generation, peer: int | None) -> int:
        """The producer has failed; its successor has ``generation``, on slot ``peer``: accept nothing older.

        Returns the next ``seq`` expected.
        """
        self.cursor.replace_producer(generation)
        self.peer = peer
        return self.cursor.expected


class InputGate:
    """All input channels of a subtask; ``next`` picks fairly among those that have a message and are not blocked.

    ``bundle_rows``: maximum number of rows that a step takes; one message may have more.
    ``overdrawn``: producers may send beyond their credit.

    ``limits``: maximum rows and bytes of a bundle.
    ``_of_channel``: maximum messages and bytes of a bundle from one channel (``Window.always_open``).
    ``_others_turn``: whether messages other than records are taken next, if any wait.
    ``_awaited``: number of channels that are empty and have not ended.
    """

    def __init__(
        self,
        window: Window,
        grant: Callable[[InputChannel, int], None],
        make_cursor: Callable[..., InputCursor] = InputCursor,
        overdrawn: bool = False,
        bundle_rows: int = 1,
    ) -> None:
        self._window = window
        self.limits = (bundle_rows, MAX_BUNDLE_BYTES)
        self._of_channel = window.always_open
        self._others_turn = True
        self._waiting_rows = self._waiting_others = self._awaited = 0
        self._filled = False
        self._overdrawn = overdrawn
        self._grant = grant
        self._make_cursor = make_cursor
        self.channels: dict[ChannelId, InputChannel] = {}
        self.stale = 0
        """Messages of fenced generations that arrived, and had no effect."""
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
        """Add a channel.

        ``peer``: the slot of ``producer``, ``None`` when it is this one.
        ``generation``: of ``producer``.
        ``first``: the next ``seq``.
        ``ended``: whether the producer has sent its end of input.
        ``replayed``: the subtask is a promoted one.
        ``in_flight``: messages before ``first`` that a snapshot holds; steps take them before all others.
        """
        cursor = self._make_cursor(
            channel, generation, self._window, Seq(first), replayed=replayed, overdrawn=self._overdrawn
        )
        end = InputChannel(channel, producer, peer, cursor)
        end.ended = ended
        self._awaited += not ended
        for message, payload in in_flight:
            self.put(end, message, payload)
        end.put_back = len(in_flight)
        self.channels[channel] = end
        self._order.append(end)

    def put(self, end: InputChannel, message: Message, payload: Any) -> None:
        """Queue a message that was received on ``end``."""
        if not end.queue and not end.ended:
            self._awaited -= 1
        end.queue.append((message, payload))
        end.waiting_bytes += message.size
        self._waiting_rows += message.rows
        if message.kind not in (MessageKind.RECORDS, MessageKind.WATERMARK):
            self._waiting_others += 1
        self._filled = self._filled or end.fills(self._window)

    def take(self, bundle: Bundle) -> list[tuple[InputChannel, Message, Any]]:
        """Take these messages off their channels, in this order."""
        taken: list[tuple[InputChannel, Message, Any]] = []
        for end, count in bundle:
            if count == len(end.queue) and not end.ended:
                self._awaited += 1
            for _ in range(count):
                message, payload = end.queue.popleft()
                end.waiting_bytes -= message.size
                end.taken_bytes += message.size
                self._waiting_rows -= message.rows
                if message.kind not in (MessageKind.RECORDS, MessageKind.WATERMARK):
                    self._waiting_others -= 1
                taken.append((end, message, payload))
        if self._filled:
            self._filled = any(end.fills(self._window) for end in self._order)
        return taken

    def mark_ended(self, end: InputChannel) -> None:
        """The producer of ``end`` sends nothing more."""
        if not end.queue and not end.ended:
            self._awaited -= 1
        end.ended = True

    def fence(
        self, failed: Mapping[SubtaskId, int], generation: Generation, own_slot: int
    ) -> Iterator[tuple[ChannelId, SubtaskId, int]]:
        """Accept only ``generation`` from the producers in ``failed``, and grant their successors credit.

        ``failed``: failed subtask -> slot of the new head.
        Yields each of their channels, its producer, and the next ``seq`` expected, where the credit starts.
        """
        for channel, end in self.channels.items():
            if end.producer not in failed:
                continue
            slot = failed[end.producer]
            yield channel, end.producer, end.fence(generation, None if slot == own_slot else slot)
            self.grant_anew(end)

    @property
    def may_wait(self) -> bool:
        """Whether the next bundle may wait for further messages.

        It may while a channel that has not ended is empty, the waiting rows are far below the limits, no barrier, round
        or end of input waits, and every producer has room to send more.
        """
        if not self._awaited or self._waiting_others or self._filled:
            return False
        return 2 * self._waiting_rows < self.limits[0]

    def has_next(self, records: bool) -> bool:
        """Whether ``next`` finds anything."""
        ready = [end.queue[0][0].kind for end in self._order if end.queue and not end.blocked]
        return any(records or kind is not MessageKind.RECORDS for kind in ready)

    def next(self, records: bool = True) -> Bundle:
        """The bundle of the next step: records of all channels, watermarks of all channels, or one message of another
        kind; none from a blocked channel. Empty: no message may be taken now.

        ``records``: whether records may be taken.

        Records and other messages take turns, so that a steady supply of one never delays the other for long.
        """
        ready = [end for end in self._order if end.queue and not end.blocked]
        others = [end for end in ready if end.queue[0][0].kind is not MessageKind.RECORDS]
        if others and (self._others_turn or len(others) == len(ready) or not records):
            self._others_turn = False
            return self._next_others(others)
        if not records:
            return []
        self._others_turn = True
        self._order.rotate(-1)
        return self._records(ready)

    def _next_others(self, ready: list[InputChannel]) -> Bundle:
        """A bundle from ``ready``, where no channel's next message is of records; used channels move to the end of the
        order."""
        taken: Bundle = [(ready[0], 1)]
        if ready[0].queue[0][0].kind is MessageKind.WATERMARK:
            taken = [(end, count) for end in ready if (count := self._watermarks_ahead(end))]
        for end, _ in taken:
            self._order.remove(end)
            self._order.append(end)
        return taken

    def _watermarks_ahead(self, end: InputChannel) -> int:
        most, _ = self._of_channel
        marks = takewhile(lambda item: item[0].kind is MessageKind.WATERMARK, islice(end.queue, most))
        return sum(1 for _ in marks)

    def _records(self, ready: list[InputChannel]) -> Bundle:
        """Records messages up to the limits, but at least one.

        From each channel it takes at most as many as the producer can send before the consumer reports: a step that is
        repeated begins when all its messages have arrived, and nothing is reported until then.
        """
        taken: Bundle = []
        rows, size_bytes = self.limits
        most, most_bytes = self._of_channel
        for end in ready:
            count = channel_bytes = 0
            for message, _ in islice(end.queue, most):
                if message.kind is not MessageKind.RECORDS or channel_bytes > most_bytes:
                    break
                channel_bytes += message.size
                rows -= message.rows
                size_bytes -= message.size
                if (rows < 0 or size_bytes < 0) and (count or taken):
                    break
                count += 1
            if count:
                taken.append((end, count))
            if rows <= 0 or size_bytes <= 0:
                break
        return taken

    def consumed(self, end: InputChannel, count: int = 1) -> None:
        """The step that took ``count`` messages from ``end`` has ended: advance the cursor, and grant credit when it is
        worth a report."""
        size_bytes, end.taken_bytes = end.taken_bytes, 0
        if end.put_back:
            again = min(count, end.put_back)
            end.put_back -= again
            count -= again
            if not count:
                return
        end.cursor.consume(count, size_bytes)
        if end.cursor.announce() is not None:
            self._grant(end, end.cursor.consumed)

    def announce(self) -> None:
        """Report the cursors to all producers, because this subtask or a stream is new."""
        for end in self.channels.values():
            self.grant_anew(end)

    def grant_anew(self, end: InputChannel) -> None:
        """Report the cursor to the producer of ``end``."""
        self._grant(end, end.cursor.consumed)

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.cursor.consumed for channel, end in self.channels.items()}
