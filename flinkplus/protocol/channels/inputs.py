"""The input ends of a subtask's channels: a queue and a cursor each.

Credit is the consumer's ``consumed`` cursor: the producer may send up to ``consumed + window``. It is cumulative, so
that a late, repeated or lost grant does no harm.

Rules: what is taken off a queue counts as consumed only when its step is done; nothing is taken off a blocked channel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from flinkplus.protocol.channels.channel import InputCursor, Window
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MAX_BUNDLE_BYTES = 8 << 20

Bundle = list[tuple["InputChannel", int]]
"""Input channels, and how many messages a step takes from each, in this order."""


@dataclass(slots=True)
class InputChannel:
    """The consumer's end of one channel.

    ``peer``: the producer's slot, ``None`` when it is this one.
    ``put_back``: messages at the head of the queue that were received by a predecessor, and are no part of the cursors.
    ``taken_bytes``: of what the step under way has taken.
    ``waiting_bytes``: of what is in the queue.
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
        """Whether half of a window waits here: soon the producer may send no more."""
        return 2 * len(self.queue) >= window.messages or 2 * self.waiting_bytes >= window.size_bytes

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

    ``_awaited``: number of channels that are empty and have not ended.

    ``bundle_rows``: maximum number of rows that a step takes; one message may have more.
    ``overdrawn``: producers may send beyond their credit.
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
        self._limits = (bundle_rows, MAX_BUNDLE_BYTES)
        self._others_turn = True
        self._waiting_rows = self._waiting_others = self._awaited = 0
        self._filled = False
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

    def end(self, end: InputChannel) -> None:
        """The producer of ``end`` sends nothing more."""
        if not end.queue and not end.ended:
            self._awaited -= 1
        end.ended = True

    @property
    def may_wait(self) -> bool:
        """Whether the next bundle may wait for further messages.

        It may while a channel that has not ended is empty, the waiting rows are far below the limits, no barrier, round
        or end of input waits, and every producer has room to send more.
        """
        if not self._awaited or self._waiting_others or self._filled:
            return False
        return 2 * self._waiting_rows < self._limits[0]

    def next(self) -> Bundle:
        """What the next step takes: records of all channels together, watermarks of all channels together, or one
        message of another kind. Nothing of a blocked channel. Empty: nothing waits.

        Where both wait, records and other messages take turns, so that neither waits for the other to run dry.
        """
        ready = [end for end in self._order if end.queue and not end.blocked]
        others = [end for end in ready if end.queue[0][0].kind is not MessageKind.RECORDS]
        if others and (self._others_turn or len(others) == len(ready)):
            self._others_turn = False
            return self._next_others(others)
        self._others_turn = True
        self._order.rotate(-1)
        return self._records(ready)

    def _next_others(self, ready: list[InputChannel]) -> Bundle:
        """Messages at the heads of ``ready``, none of which is of records; those taken go to the end of the order."""
        taken: Bundle = [(ready[0], 1)]
        if ready[0].queue[0][0].kind is MessageKind.WATERMARK:
            taken = [(end, count) for end in ready if (count := self._watermarks_ahead(end))]
        for end, _ in taken:
            self._order.remove(end)
            self._order.append(end)
        return taken

    def _watermarks_ahead(self, end: InputChannel) -> int:
        marks = takewhile(lambda item: item[0].kind is MessageKind.WATERMARK, islice(end.queue, self._window.messages))
        return sum(1 for _ in marks)

    def _records(self, ready: list[InputChannel]) -> Bundle:
        """Messages of records, up to the limits, but one at least, and a window of one channel at most: a producer that
        sends them again may always send so many."""
        taken: Bundle = []
        rows, size_bytes = self._limits
        for end in ready:
            count = 0
            for message, _ in islice(end.queue, self._window.messages):
                if message.kind is not MessageKind.RECORDS:
                    break
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
        """``count`` messages taken from ``end`` are done: advance the cursor, and grant credit when enough has come
        together.
        """
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
        """Tell every producer where this subtask is: it is new, or a stream is."""
        for end in self.channels.values():
            self.grant_anew(end)

    def grant_anew(self, end: InputChannel) -> None:
        """The producer of ``end`` is another one now: tell it how far this subtask is."""
        self._grant(end, end.cursor.consumed)

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.cursor.consumed for channel, end in self.channels.items()}
