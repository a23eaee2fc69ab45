"""The digest of a message tells its rows: the same handed over, sent, sent again and read back from disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from flinkplus.operators.base.routes import ToOne
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.vocabulary.ids import Generation
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.slot.subtasks import output_gate as gates
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.slot.subtasks.output_gate import OutputGate, Peer
from flinkplus.runtime.transport.wire.message_format import decode_frame, decode_records, digest_of
from tests.examples import examples
from tests.unit.operators.arrays import built, columns_of, dtypes, text

HERE, ELSEWHERE = None, 1
BATCH_ROWS = 6


class Gate(OutputGate):
    """One channel; what goes out of it is kept."""

    def __init__(self, slot: int | None) -> None:
        self.handed: list[tuple[Message, Any]] = []
        self.sent: list[tuple[Message, Any]] = []
        super().__init__(
            Generation(1),
            Window(1000),
            BATCH_ROWS,
            self._keep,
            lambda message, payload: self.handed.append((message, payload)),
        )
        self.add_edge(0, ToOne(0), 0, [Peer(slot, Generation(1))], {})

    def _keep(self, slot: int, buffers: Sequence[Any]) -> None:
        self.sent += decode_frame(b"".join(bytes(buffer) for buffer in buffers))

    def take(self, batch: pa.RecordBatch) -> None:
        for _ in self.append(0, batch):
            pass

    def send_again(self, slot: int | None) -> None:
        """The consumer has failed; its successor is at ``slot`` and begins at the beginning."""
        (end,) = self.channels.values()
        end.fence(Generation(2))
        end.credit(2, 0, slot)
        self.pump()


def digests(messages: Sequence[tuple[Message, Any]]) -> list[int]:
    return [digest_of(message, payload) for message, payload in messages]


def spilled(messages: Sequence[tuple[Message, Any]]) -> list[tuple[Message, Any]]:
    codec = MessageCodec()
    return [codec.decode(memoryview(b"".join(map(bytes, codec.encode(entry))))) for entry in messages]


def test_a_slice_without_nulls_of_a_column_with_nulls_has_the_digest_of_a_column_without() -> None:
    plain, cut = pa.array([0.5]), pa.array([0.5, None]).slice(0, 1)
    here, elsewhere = Gate(HERE), Gate(ELSEWHERE)
    for gate, column in ((here, plain), (elsewhere, cut)):
        gate.take(pa.record_batch([column], names=["v"]))
    assert digests(here.handed) == digests(elsewhere.sent)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_however_a_message_comes_its_digest_is_the_same(data: st.DataObject) -> None:
    dtype = data.draw(dtypes())
    values = data.draw(columns_of(dtype, 30))
    batches = [pa.record_batch([data.draw(built(values, dtype))], names=["v"]) for _ in range(3)]
    here, elsewhere, moved = gates = Gate(HERE), Gate(ELSEWHERE), Gate(HERE)
    for gate, batch in zip(gates, batches, strict=True):
        gate.take(batch)
    expected = digests(here.handed)
    assert len(expected) == -(-len(values) // (2 * BATCH_ROWS)) if values else not expected
    assert digests(elsewhere.sent) == digests(moved.handed) == expected
    moved.send_again(ELSEWHERE)  # what was handed over is sent now
    elsewhere.send_again(HERE)  # and what was sent, handed over
    assert digests(moved.sent) == digests(elsewhere.handed) == expected
    for messages in (here.handed, elsewhere.sent):
        assert digests(spilled(messages)) == expected
    again = Gate(HERE)  # somebody takes them and passes them on
    for _, payload in elsewhere.sent:
        again.take(decode_records(payload))
    assert digests(again.handed) == expected
    rows = [text(message.records.column(0)) for message, _ in here.handed]
    assert len(set(expected)) == len(set(rows))  # equal rows, equal digests, and not otherwise


@pytest.mark.parametrize("nulls_before", [0, 3])
def test_where_a_message_ends_does_not_depend_on_how_its_rows_came_to_be(
    monkeypatch: pytest.MonkeyPatch, nulls_before: int
) -> None:
    """They are cut by size, and a size that counted what else an array has with it would differ after a failover."""
    monkeypatch.setattr(gates, "MAX_MESSAGE_BYTES", 800)
    gate = Gate(HERE)
    gate._batch_rows = 1000
    values = list(range(100))
    gate.take(pa.record_batch([pa.array([None] * nulls_before + values, pa.int64()).slice(nulls_before)], names=["v"]))
    assert [message.records.num_rows for message, _ in gate.handed] == [100]
