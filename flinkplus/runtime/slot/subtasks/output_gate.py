"""The output ends of a subtask's channels, as batches go into them and frames come out.

The protocol is ``flinkplus.protocol.channels.outputs`` (and ``inputs``); here rows are split among consumers,
encoded, logged.

Rules: one thread (the slot's loop). Within a slot messages are handed over without being encoded, but as they would
come over the wire; between slots they are encoded once, when appended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from flinkplus.operators.base.canonical import canonical
from flinkplus.operators.base.routes import Partitioner
from flinkplus.operators.base.steps import StepBatches, joined, separate
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.channels.inputs import InputChannel, InputGate
from flinkplus.protocol.channels.output_logs import Entry
from flinkplus.protocol.channels.outputs import MAX_UNSENT_MESSAGES, OutputChannel, OutputChannels
from flinkplus.protocol.channels.peer import Peer
from flinkplus.protocol.determinants.determinants import AncestorLog, StepLog
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation
from flinkplus.runtime.transport.wire.message_format import Message, encode, encode_canonical, encode_records
from upstream_cache.log import OutputLog
from upstream_cache.retention import Retention

MAX_MESSAGE_BYTES = 8 << 20

__all__ = ["InputChannel", "InputGate", "OutputChannel", "OutputGate", "Peer"]


class OutputGate(OutputChannels):
    """All output channels of a subtask. ``send``: buffers to another slot."""

    def __init__(
        self,
        generation: Generation,
        window: Window,
        batch_rows: int,
        send: Callable[[int, list[Any]], None],
        hand_over: Callable[[Message, Any], None],
        retention: Retention[Entry] | None = None,
        retains: bool = False,
        steps: StepLog | None = None,
        ancestors: AncestorLog | None = None,
        digest: Callable[[Message, Any], int] | None = None,
    ) -> None:
        def make_log(channel: ChannelId, first: int, received: int, may_spill: bool) -> OutputLog[Entry]:
            spills_to = retention if may_spill else None
            return OutputLog(
                channel, MAX_UNSENT_MESSAGES, window.size_bytes, first, retention=spills_to, received=received
            )

        super().__init__(generation, window, hand_over, make_log, retention, retains, steps, ancestors, digest)
        self._batch_rows = batch_rows
        self._send = send
        self._partitioners: dict[int, Partitioner] = {}

    def add_edge(
        self,
        edge: int,
        partitioner: Partitioner,
        producer: int,
        peers: Sequence[Peer],
        first: Mapping[str, int],
        is_back: bool = False,
    ) -> None:
        """Add the channels of one exchange, whose rows go as ``partitioner`` says; see ``add_channels``."""
        self._partitioners[edge] = partitioner
        self.add_channels(edge, producer, peers, first, is_back)

    def append(self, edge: int, batch: pa.RecordBatch) -> Iterator[None]:
        """Split a batch among consumers and append a message to each channel concerned; yields between pieces of a
        large one.
        """
        partitioner, ends = self._partitioners[edge], self._edges[edge]
        rows = self._piece_rows(batch)
        for at in range(0, batch.num_rows, rows):
            piece = batch if rows >= batch.num_rows else batch.slice(at, rows)
            self._append_parts(ends, partitioner.split(piece))
            yield

    def _append_parts(self, ends: list[OutputChannel], parts: list[tuple[int, pa.RecordBatch]]) -> None:
        """Append a message of each part to the channel of its target."""
        for target, part in parts:
            end = ends[target]
            if end.peer is None:
                records = canonical(part)
                self.append_records(end, records, None, part.num_rows, records.nbytes)
            else:
                payload = encode_records(part)
                self.append_records(end, None, payload, part.num_rows, payload.size)
        self.pump()

    def append_together(self, edge: int, steps: StepBatches) -> Sequence[Iterator[None]]:
        """For each of ``steps``, an iterator that appends its batches as ``append`` would; small ones are split at
        once."""
        rows = joined(steps)
        if rows is None or rows.widest > 2 * self._batch_rows or self._is_heavy(rows.batch):
            return [chain.from_iterable(self.append(edge, batch) for batch in step) for step in separate(steps)]
        return [self._appended(edge, parts) for parts in self._partitioners[edge].split_steps(rows.batch, rows.ends)]

    def _appended(self, edge: int, parts: list[tuple[int, pa.RecordBatch]]) -> Iterator[None]:
        self._append_parts(self._edges[edge], parts)
        yield

    def watermark(self, edge: int, watermark_ms: int) -> Iterator[None]:
        """Append a watermark to each channel of an exchange, and yield."""
        self.append_watermark(edge, watermark_ms)
        yield

    def _piece_rows(self, batch: pa.RecordBatch) -> int:
        rows = max(1, 2 * self._batch_rows)
        if batch.num_rows > 1 and self._is_heavy(batch):
            size = canonical(batch).nbytes  # how the arrays came to be must not show in where a message ends
            if size > MAX_MESSAGE_BYTES:
                rows = min(rows, max(1, batch.num_rows * MAX_MESSAGE_BYTES // size))
        return rows

    @staticmethod
    def _is_heavy(batch: pa.RecordBatch) -> bool:
        return bool(batch.get_total_buffer_size() > MAX_MESSAGE_BYTES // 2)

    def _transmit(self, slot: int, message: Message, payload: Any) -> None:
        if payload is None and message.records is not None:  # it was made for a consumer in this slot
            payload = encode_canonical(message.records)
        self._send(slot, encode(message, payload if payload is not None else b""))
