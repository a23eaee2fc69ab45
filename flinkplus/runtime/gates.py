"""The input and output ends of a subtask's channels.

An output channel is an output log pumped as far as the consumer's credit allows; an input channel is a queue with a
cursor.
Credit is the consumer's ``consumed`` cursor: the producer may send up to ``consumed + window``. In rollback mode
what is consumed can never be asked for again, so it is trimmed at once; with standbys it is kept until a version of the
consumer that is stable in its chain, and complete, is behind it.

Rules: one thread (the slot's loop). Within a slot messages are handed over as they are; between slots they are encoded
once, when appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flinkplus.operators.keys import HashPartitioner
from flinkplus.protocol.channel import REPLAY_WINDOWS, InputCursor
from flinkplus.protocol.determinants import StepLog
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.runtime.wire import Kind, Message, encode, encode_records
from upstream_cache.log import OutputLog
from upstream_cache.retention import Retention

MAX_UNSENT_MESSAGES = 4
MAX_UNSENT_BYTES = 16 << 20
MAX_UNSENT_TO_NOBODY = 256
"""Messages for a consumer that has failed: its producer goes on for the others meanwhile."""
MAX_MESSAGE_BYTES = 8 << 20
MERGED_MESSAGE_BYTES = 16 << 10


@dataclass(slots=True)
class OutputChannel:
    """The producer's end of one channel. ``peer`` is the consumer's slot, ``None`` when it is this one.

    ``resuming`` is the flag of a standby channel: the consumer has failed, and the channel is closed until its
    successor, which has ``consumer_generation``, says where to go on. ``retain``: what is consumed is kept until
    ``trim``.
    ``told``: the first step of the producer whose determinant this channel has not been sent.
    """

    channel: ChannelId
    peer: int | None
    window: int
    log: OutputLog[tuple[Message, Any]]
    limit: int
    consumer_generation: Generation
    retain: bool = False
    resuming: bool = False
    told: int = 0
    trim_to: int = 0

    def credit(self, generation: int, consumed: int, peer: int | None) -> None:
        """The consumer has consumed all before ``consumed``; late, older and fenced figures change nothing."""
        if generation != self.consumer_generation:
            return
        if self.resuming:
            self.resuming = False
            self.log.max_unsent_messages = MAX_UNSENT_MESSAGES
            self.peer = peer
            self.log.rewind(consumed)
            self.limit = consumed + REPLAY_WINDOWS * self.window
            return
        self.limit = max(self.limit, consumed + self.window)
        if consumed > self.log.acknowledged:
            self.log.acknowledge(min(consumed, self.log.sent))
            self._trim()

    def fence(self, generation: Generation) -> None:
        """The consumer has failed; the channel stays closed until one of ``generation`` opens it."""
        self.consumer_generation = generation
        self.resuming = True
        self.log.max_unsent_messages = MAX_UNSENT_TO_NOBODY
        self.limit = 0

    def trim(self, seq: int) -> None:
        """No consumer will ever ask for what is before ``seq``.

        So it has been consumed, though credit, which is granted for several messages at once, may not have said so yet.
        """
        self.trim_to = max(self.trim_to, seq)
        self.log.acknowledge(min(seq, self.log.sent))
        self._trim()

    def _trim(self) -> None:
        seq = self.log.acknowledged if not self.retain else min(self.trim_to, self.log.acknowledged)
        if seq > self.log.trimmed:
            self.log.trim(seq)

    def reconnect(self) -> None:
        """The stream to the consumer is new: send again whatever it has not consumed."""
        if not self.resuming:
            self.log.rewind(self.log.acknowledged)


@dataclass(frozen=True, slots=True)
class Peer:
    """A consumer as its producer sees it. ``slot`` is ``None`` when it is the producer's own.

    ``received``: of a living consumer, the next ``seq`` it expects of a promoted producer (``None``: nothing was sent
    to it yet). ``resuming``: it is being promoted itself, and will say where to go on.
    """

    slot: int | None
    generation: Generation
    received: int | None = None
    resuming: bool = False


class OutputGate:
    """All output channels of a subtask."""

    def __init__(
        self,
        generation: Generation,
        window: int,
        batch_rows: int,
        send: Callable[[int, list[Any]], None],
        hand_over: Callable[[Message, Any], None],
        retention: Retention[tuple[Message, Any]] | None = None,
        steps: StepLog | None = None,
    ) -> None:
        self._retention = retention
        self._steps = steps
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
        self, edge: int, columns: tuple[str, ...], producer: int, peers: list[Peer], first: dict[str, int]
    ) -> None:
        """Add the channels of one exchange, one per consumer index.

        ``first``: channel -> first ``seq``, from a snapshot's cursors (0 where absent).
        """
        self._partitioners[edge] = HashPartitioner(columns, len(peers))
        ends = []
        for consumer, peer in enumerate(peers):
            channel = ChannelId(edge, producer, consumer)
            start = first.get(str(channel), 0)
            received = start if peer.received is None else max(start, peer.received)
            log: OutputLog[tuple[Message, Any]] = OutputLog(
                channel, MAX_UNSENT_MESSAGES, MAX_UNSENT_BYTES, start, retention=self._retention, received=received
            )
            # A living consumer of a promoted producer grants credit anew; for what it has received it has had credit.
            limit = start + self._window if peer.received is None else received
            end = OutputChannel(channel, peer.slot, self._window, log, limit, peer.generation)
            end.retain = self._retention is not None
            end.told = self._steps.next_step if self._steps is not None else 0
            end.trim_to = start
            if peer.resuming:
                end.fence(peer.generation)
            self.channels[channel] = end
            ends.append(end)
        self._edges[edge] = ends

    @property
    def accepts(self) -> bool:
        """Whether one more message can be appended to every channel."""
        return all(end.log.accepts for end in self.channels.values())

    @property
    def blocked(self) -> bool:
        """Whether no new records should be made: memory is used up and the disk takes no more.

        It is for the sources to stop; what is on its way goes on, and so do barriers, which let logs be trimmed.
        """
        retention = self._retention
        return retention is not None and retention.blocked is not None and not retention.relieve()

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
        known = self._news(end)
        if end.peer is None:
            size = part.nbytes
            message = Message(Kind.RECORDS, end.channel, self._generation, seq, self.epoch, part, size, known)
            end.log.append((message, None), size)
        else:
            payload = encode_records(part)
            message = Message(Kind.RECORDS, end.channel, self._generation, seq, self.epoch, None, payload.size, known)
            end.log.append((message, payload), payload.size)

    def _news(self, end: OutputChannel) -> bytes:
        """The determinants that the channel's receiver has not been sent."""
        if self._steps is None:
            return b""
        told, end.told = end.told, self._steps.next_step
        return self._steps.since(told)

    def broadcast(self, kind: Kind, epoch: CheckpointId) -> None:
        """Append a barrier or the end of input to every channel; there must be room."""
        self.epoch = epoch
        for end in self.channels.values():
            seq = Seq(end.log.appended)
            message = Message(kind, end.channel, self._generation, seq, epoch, determinants=self._news(end))
            end.log.append((message, None), 0)
        if self._steps is not None:
            self._steps.clear()
        self.pump()

    def pump(self) -> None:
        """Send what the consumers' credit allows."""
        for end in self.channels.values():
            while (item := end.log.next_to_send(end.limit)) is not None:
                message, payload = item[1]
                if end.peer is None:
                    self._hand_over(message, payload)
                    continue
                if payload is None and message.records is not None:  # it was made for a consumer in this slot
                    payload = encode_records(message.records)
                self._send(end.peer, encode(message, payload if payload is not None else b""))

    def trim(self, cursors: Mapping[str, int]) -> None:
        """No consumer will ever ask for what is before these cursors."""
        for channel, end in self.channels.items():
            end.trim(cursors.get(str(channel), 0))

    def release(self) -> None:
        """The logs are not used again."""
        for end in self.channels.values():
            end.log.close()


@dataclass(slots=True)
class InputChannel:
    """The consumer's end of one channel. ``peer`` is the producer's slot, ``None`` when it is this one."""

    channel: ChannelId
    producer: SubtaskId
    peer: int | None
    cursor: InputCursor
    queue: deque[tuple[Message, Any]] = field(default_factory=deque)
    blocked: bool = False
    ended: bool = False


class InputGate:
    """All input channels of a subtask; ``next`` picks fairly among those that have a message and are not blocked."""

    def __init__(self, window: int, grant: Callable[[InputChannel, int], None]) -> None:
        self._window = window
        self._grant = grant
        self.channels: dict[ChannelId, InputChannel] = {}
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
    ) -> None:
        """Add a channel whose ``producer`` has ``generation``; ``first`` is the next ``seq`` on it. ``replayed``: it is
        the channel of a promoted subtask.
        """
        cursor = InputCursor(channel, generation, self._window, Seq(first), replayed=replayed)
        end = InputChannel(channel, producer, peer, cursor)
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

    def take_records(self, most: int) -> list[tuple[InputChannel, Message, Any]]:
        """Up to ``most`` small messages of records that may be taken now, of all channels in turn, in channel order."""
        taken: list[tuple[InputChannel, Message, Any]] = []
        for end in self._order:
            if end.blocked:
                continue
            while end.queue and len(taken) < most:
                message, payload = end.queue[0]
                if message.kind is not Kind.RECORDS or message.size > MERGED_MESSAGE_BYTES:
                    break
                end.queue.popleft()
                taken.append((end, message, payload))
        self._order.rotate(-1)
        return taken

    def consumed(self, end: InputChannel, count: int = 1) -> None:
        """``count`` messages taken from ``end`` are done: advance the cursor, and grant credit when enough has come
        together.
        """
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
