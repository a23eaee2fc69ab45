"""A process of the job that sends what is another's to send: it has no effect, and is counted; nothing fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkplus.errors import ForeignMessage
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.runtime.slot.control.peers import MALFORMED_FRAMES
from flinkplus.runtime.transport.wire.message_format import Message, MessageKind, encode, encode_records
from flinkplus.runtime.transport.wire.ports import FrameArrived
from tests.unit.runtime.slot.control.test_slot_failover import ROWS, check
from tests.unit.runtime.slot.slots_in_process import Cluster, graph_of, numbers

VICTIM, LIAR, OTHER = 0, 1, 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, graph_of(ROWS, 1), 3, 5, batch_rows=50)
    made.deploy()
    yield made
    made.close()


def inputs(cluster: Cluster, producer: int) -> tuple[ChannelId, int, int]:
    """A channel from subtask ``producer`` to the victim; the generation, and the next number on it."""
    (consumer,) = [subtask for subtask in cluster.slots[VICTIM].active if subtask.inputs.channels]
    (end,) = [end for end in consumer.inputs.channels.values() if end.channel.producer == producer]
    return end.channel, end.cursor.generation, end.cursor.expected


def outputs(cluster: Cluster, consumer: int) -> tuple[ChannelId, int, int]:
    """A channel from the victim to subtask ``consumer``; its generation, and what was sent."""
    (producer,) = [subtask for subtask in cluster.slots[VICTIM].active if subtask.outputs.channels]
    (end,) = [end for end in producer.outputs.channels.values() if end.channel.consumer == consumer]
    return end.channel, end.consumer_generation, end.log.sent


def of(kind: MessageKind, channel: ChannelId, generation: int, seq: int, more: Any = b"") -> bytes:
    message = Message(kind, channel, Generation(generation), Seq(seq), CheckpointId(1))
    return b"".join(bytes(part) for part in encode(message, more))


FORGED: dict[str, Callable[[Cluster], bytes]] = {
    "rows of another slot": lambda at: of(MessageKind.RECORDS, *inputs(at, OTHER), encode_records(numbers(0, 9))),
    "the end of another slot's input": lambda at: of(MessageKind.END_OF_INPUT, *inputs(at, OTHER)),
    "the end of the victim's own input": lambda at: of(MessageKind.END_OF_INPUT, *inputs(at, VICTIM)),
    "a barrier of another slot": lambda at: of(MessageKind.BARRIER, *inputs(at, OTHER)),
    "a generation that is yet to come": lambda at: of(MessageKind.END_OF_INPUT, inputs(at, OTHER)[0], 9, 0),
    "a channel that does not exist": lambda at: of(
        MessageKind.END_OF_INPUT, inputs(at, OTHER)[0]._replace(producer=7), 1, 0
    ),
    "credit of another slot": lambda at: of(MessageKind.CREDIT, *outputs(at, OTHER)),
    "the victim's own credit": lambda at: of(MessageKind.CREDIT, *outputs(at, VICTIM)),
    "credit of a later generation": lambda at: of(MessageKind.CREDIT, outputs(at, OTHER)[0], 9, 10_000),
    "credit of no subtask": lambda at: of(MessageKind.CREDIT, outputs(at, OTHER)[0]._replace(consumer=7), 1, 10_000),
    "credit on no edge": lambda at: of(MessageKind.CREDIT, outputs(at, OTHER)[0]._replace(edge=7), 1, 10_000),
    "credit to no subtask": lambda at: of(MessageKind.CREDIT, outputs(at, LIAR)[0]._replace(producer=7), 1, 10_000),
}


@pytest.mark.parametrize("what", FORGED)
def test_what_is_forged_has_no_effect_and_is_counted(cluster: Cluster, what: str) -> None:
    cluster.turns(5)
    slot = cluster.slots[VICTIM]
    slot._handle(FrameArrived(LIAR, FORGED[what](cluster)))
    assert slot.malformed_frames == 1
    cluster.turns(5)
    cluster.finish_checkpoint(cluster.trigger())
    check(cluster.finish())
    assert not cluster.failures


def test_what_comes_behind_a_forged_message_in_its_frame_is_left(cluster: Cluster) -> None:
    cluster.turns(5)
    slot = cluster.slots[VICTIM]
    channel, generation, expected = inputs(cluster, LIAR)
    own = of(MessageKind.BARRIER, channel, generation, expected)
    slot._handle(FrameArrived(LIAR, FORGED["rows of another slot"](cluster) + own))
    assert inputs(cluster, LIAR)[2] == expected and slot.malformed_frames == 1


def test_what_comes_late_of_an_older_generation_is_ignored_and_held_against_nobody(cluster: Cluster) -> None:
    """Wherever it comes from: its producer may have been there."""
    cluster.turns(5)
    slot = cluster.slots[VICTIM]
    for channel, told in (
        (inputs(cluster, OTHER)[0], MessageKind.END_OF_INPUT),
        (outputs(cluster, OTHER)[0], MessageKind.CREDIT),
    ):
        slot._handle(FrameArrived(LIAR, of(told, channel, 0, 0)))
    assert slot.malformed_frames == 0 and slot.active.stale == 2
    check(cluster.finish())


@pytest.mark.parametrize("kind", [MessageKind.END_OF_INPUT, MessageKind.CREDIT])
def test_what_comes_late_on_a_channel_of_another_parallelism_is_held_against_nobody(
    cluster: Cluster, kind: MessageKind
) -> None:
    slot, gone = cluster.slots[VICTIM], 7
    kept: ChannelId = inputs(cluster, OTHER)[0]
    consumer = gone if kind is MessageKind.CREDIT else kept.consumer
    channels = [ChannelId(kept.edge, gone, kept.consumer), ChannelId(kept.edge, kept.producer, consumer)]
    for channel in channels[: 2 if kind is MessageKind.CREDIT else 1]:
        slot._handle(FrameArrived(LIAR, of(kind, channel, 0, 0)))
        assert slot.malformed_frames == 0 and channel not in slot.active._early
    slot._handle(FrameArrived(LIAR, of(kind, channels[0], int(slot.deployed), 0)))
    assert slot.malformed_frames == 1


def test_a_slot_that_keeps_lying_is_to_blame(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    slot, now_s = cluster.slots[VICTIM], 0.0

    class Clock:
        def monotonic(self) -> float:
            return now_s

    monkeypatch.setattr(slot._peers, "_clock", Clock())
    slot._peers._targets = {LIAR: (1, "slot-1")}
    for _ in range(MALFORMED_FRAMES):
        now_s += 0.2
        slot.routing.take_all(
            LIAR, [(Message(MessageKind.CREDIT, ChannelId(9, 0, 0), Generation(1), Seq(0), CheckpointId(0)), b"")]
        )
    assert slot._peers.to_blame == {LIAR: 1}


def test_a_forged_message_is_an_error_of_its_own(cluster: Cluster) -> None:
    channel, generation, expected = inputs(cluster, OTHER)
    message = Message(MessageKind.BARRIER, channel, Generation(generation), Seq(expected), CheckpointId(1))
    with pytest.raises(ForeignMessage, match=f"slot {LIAR} sends BARRIER .* whose end is on slot {OTHER}"):
        cluster.slots[VICTIM].routing.take(LIAR, message, b"")
