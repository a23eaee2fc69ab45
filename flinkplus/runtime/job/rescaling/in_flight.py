"""Rows that were in flight in the loops of a job, sent on to the subtasks of another parallelism or program.

Rules: a row goes to the subtask that owns its key now; rows of one channel stay in order. Rounds and ends of input are
dropped: sources end again, and loops look for their end again (``protocol.subtask.rescaling``).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph
from flinkplus.operators.base.canonical import canonical
from flinkplus.operators.base.routes import partitioner
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.in_flight import excess_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control.names import parse_channel
from flinkplus.runtime.slot.subtasks.snapshots import pack
from flinkplus.runtime.transport.wire.message_format import decode_frame, decode_records


@dataclass
class InFlight:
    """Messages in flight at the new parallelism, packed, by channel.

    ``edges``: the number of each edge before, and of the same edge in ``graph``; ``None``: they are the same.
    """

    graph: JobGraph
    parallelism: int
    max_parallelism: int
    edges: Mapping[int, int] | None = None
    packed: dict[ChannelId, list[str]] = field(default_factory=dict)

    def add(self, before: Sequence[OperatorState]) -> None:
        """Those of the snapshots of all subtasks of one vertex. Raises ``ConfigurationError`` for rows on an edge that
        is gone or has changed."""
        for state in before:
            for name, messages in sorted(state.in_flight.items()):
                channel = parse_channel(name)
                for message, batch in records_of(messages):
                    self._send(channel, message, batch)

    def _send(self, channel: ChannelId, message: Message, batch: pa.RecordBatch) -> None:
        edge = channel.edge if self.edges is None else self.edges.get(channel.edge)
        if edge is None:
            raise ConfigurationError(
                f"the checkpoint holds rows in flight on an exchange (number {channel.edge}) that the program has "
                "changed: resume the program before, and change it once the loop is empty, or leave the loop and the "
                "columns of its rows as they are"
            )
        exchange = self.graph.exchanges[edge]
        straight_on = channel.consumer % self.parallelism
        split = partitioner(exchange.route, exchange.columns, straight_on, self.parallelism, self.max_parallelism)
        for target, rows in split.split(batch):
            to = ChannelId(edge, channel.producer % self.parallelism, target)
            packed = self.packed.setdefault(to, [])
            records = canonical(rows)
            packed.append(pack(_message(message, to, len(packed), records), None))

    @property
    def counts(self) -> Mapping[ChannelId, int]:
        """How many messages each channel has."""
        return {channel: len(messages) for channel, messages in self.packed.items()}

    def excess(self, slot_bytes: int) -> str:
        """Why they are more than a checkpoint may hold; empty when they are not. ``slot_bytes``: limit of a slot."""
        sizes = {channel: sum(map(len, messages)) for channel, messages in self.packed.items()}
        consumers = {edge: vertex.name for vertex in self.graph.vertices for edge in vertex.inputs}
        return excess_of(sizes, consumers, slot_bytes)

    def of(self, inputs: Sequence[int], index: int) -> dict[str, list[str]]:
        """The messages to one subtask, as a snapshot has them; ``inputs``: the edges of its vertex."""
        return {str(c): packed for c, packed in self.packed.items() if c.consumer == index and c.edge in inputs}


def _message(message: Message, channel: ChannelId, seq: int, records: pa.RecordBatch) -> Message:
    return Message(
        MessageKind.RECORDS,
        channel,
        Generation(message.generation),
        Seq(seq),
        CheckpointId(message.epoch),
        records=records,
        size=records.nbytes,
        rows=records.num_rows,
    )


def records_of(messages: Sequence[str]) -> Iterator[tuple[Message, pa.RecordBatch]]:
    """The records among packed messages."""
    for packed in messages:
        message, payload = next(decode_frame(base64.b64decode(packed)))
        if message.kind is MessageKind.RECORDS:
            yield message, message.records if message.records is not None else decode_records(payload)
