"""The input and output ends of a subtask's channels.

An output channel is an output log pumped as far as the consumer's credit allows; an input channel is a queue with a
cursor.
Credit is the consumer's ``consumed`` cursor: the producer may send up to ``consumed + window``. In rollback mode
what is consumed can never be asked for again, so it is trimmed at once.

Rules: one thread (the slot's loop). Within a slot messages are handed over as they are; between slots they are encoded
once, when appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flinkplus.operators.keys import HashPartitioner
from flinkplus.protocol.channel import InputCursor
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.wire import Kind, Message, encode, encode_records
from upstream_cache.log import OutputLog

MAX_UNSENT_MESSAGES = 4
MAX_UNSENT_BYTES = 16 << 20
MAX_MESSAGE_BYTES = 8 << 20


@dataclass(slots=True)
class OutputChannel:
    """The producer's end of one channel. ``peer`` is the consumer's slot, ``None`` when it is this one."""

    channel: ChannelId
    peer: int | None
    window: int
    log: OutputLog[tuple[Message, Any]]
    limit: int = 0

    def credit(self, consumed: int) -> None:
        """The consumer has consumed every message before ``consumed``; a late, older figure changes nothing."""
        if consumed > self.log.acknowledged:
            self.log.acknowledge(consumed)
            self.log.trim(consumed)
            self.limit = max(self.limit, consumed + self.window)

    def reconnect(self) -> None:
        """The stream to the consumer is new: send again whatever it has not consumed."""
        self.log.rewind(self.log.acknowledged)


class OutputGate:
    """All output channels of a subtask."""

    def __init__(
        self,
        generation: Generation,
        window: int,
        batch_rows: int,
        send: Callable[[int, list[Any]], None],
        hand_over: Callable[[Message], None],
    ) -> None:
        self._generation = generation
        self._window = window
        self._batch_rows = batch_rows
        self._send = send
        self._hand_over = hand_over
        self._partitioners: dict[int, HashPartitioner] = {}
        self._edges: dict[int, list[OutputChannel]] = {}
        self.channels: dict[ChannelId, OutputChannel] = {}
        self.epoch = CheckpointId(0)

    def add_edge(
        self, edge: int, columns: tuple[str, ...], producer: int, peers: list[int | None], first: dict[str, int]
    ) -> None:
        """Add the channels of one exchange: one per consumer index, ``peers`` being the consumers' slots.

        ``first``: channel -> first ``seq``, from a snapshot's cursors (0 where absent).
        """
        self._partitioners[edge] = HashPartitioner(columns, len(peers))
        ends = []
        for consumer, peer in enumerate(peers):
            channel = ChannelId(edge, producer, consumer)
            start = first.get(str(channel), 0)
            log: OutputLog[tuple[Message, Any]] = OutputLog(channel, MAX_UNSENT_MESSAGES, MAX_UNSENT_BYTES, start)
            end = OutputChannel(channel, peer, self._window, log, start + self._window)
            self.channels[channel] = end
            ends.append(end)
        self._edges[edge] = ends

    @property
    def has_room(self) -> bool:
        """Whether one more message can be appended to every channel."""
        return all(end.log.has_room for end in self.channels.values())

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.log.appended for channel, end in self.channels.items()}

    def append(self, edge: int, batch: pa.RecordBatch) -> Iterator[None]:
        """Split a batch by key hash and append a message to each channel concerned; yields between pieces of a
        large one.
        """
        partitioner, ends = self._partitioners[edge], self._edges[edge]
        rows = self._piece_rows(batch)
        for at in range(0, batch.num_rows, rows):
            piece = batch if rows >= batch.num_rows else batch.slice(at, rows)
            for target, part in partitioner.split(piece):
                self._append_records(ends[target], part)
            self.pump()
            yield

    def _piece_rows(self, batch: pa.RecordBatch) -> int:
        rows = max(1, 2 * self._batch_rows)
        if batch.num_rows > 1 and batch.nbytes > MAX_MESSAGE_BYTES:
            rows = min(rows, max(1, batch.num_rows * MAX_MESSAGE_BYTES // batch.nbytes))
        return rows

    def _append_records(self, end: OutputChannel, part: pa.RecordBatch) -> None:
        seq = Seq(end.log.appended)
        if end.peer is None:
            size = part.nbytes
            message = Message(Kind.RECORDS, end.channel, self._generation, seq, self.epoch, part, size)
            end.log.append((message, None), size)
        else:
            payload = encode_records(part)
            message = Message(Kind.RECORDS, end.channel, self._generation, seq, self.epoch, None, payload.size)
            end.log.append((message, payload), payload.size)

    def broadcast(self, kind: Kind, epoch: CheckpointId) -> None:
        """Append a barrier or the end of input to every channel; there must be room."""
        self.epoch = epoch
        for end in self.channels.values():
            message = Message(kind, end.channel, self._generation, Seq(end.log.appended), epoch)
            end.log.append((message, None), 0)
        self.pump()

    def pump(self) -> None:
        """Send what the consumers' credit allows."""
        for end in self.channels.values():
            while (item := end.log.next_to_send(end.limit)) is not None:
                message, payload = item[1]
                if end.peer is None:
                    self._hand_over(message)
                else:
                    self._send(end.peer, encode(message, payload if payload is not None else b""))


@dataclass(slots=True)
class InputChannel:
    """The consumer's end of one channel. ``peer`` is the producer's slot, ``None`` when it is this one."""

    channel: ChannelId
    peer: int | None
    cursor: InputCursor
    queue: deque[tuple[Message, Any]] = field(default_factory=deque)
    blocked: bool = False
    ended: bool = False


class InputGate:
    """All input channels of a subtask; ``next`` picks fairly among those that have a message and are not blocked."""

    def __init__(self, generation: Generation, window: int, grant: Callable[[InputChannel, int], None]) -> None:
        self._generation = generation
        self._window = window
        self._grant = grant
        self.channels: dict[ChannelId, InputChannel] = {}
        self._order: deque[InputChannel] = deque()

    def add(self, channel: ChannelId, peer: int | None, first: int, ended: bool) -> None:
        end = InputChannel(channel, peer, InputCursor(channel, self._generation, self._window, Seq(first)))
        end.ended = ended
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

    def consumed(self, end: InputChannel) -> None:
        """The message taken from ``end`` is done: advance the cursor and grant credit when enough has come together."""
        end.cursor.consume()
        if end.cursor.announce() is not None:
            self._grant(end, end.cursor.consumed)

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.cursor.consumed for channel, end in self.channels.items()}
