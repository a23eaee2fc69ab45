"""Where the messages of channels go in a slot: to a consumer here, and credit to a producer here or on another slot.

Rules: one thread. A message or credit for a subtask that is not here goes nowhere, but credit is kept for one that may
come. Another slot is believed about its own subtasks only: what it sends on a channel whose end is elsewhere has no
effect, and counts as a malformed frame. A message of an earlier deployment, which may have had other channels, has no
effect, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic

from flinkplus.errors import ForeignMessage
from flinkplus.protocol.channels.inputs import InputChannel
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.slot.control.active import Credit
from flinkplus.runtime.slot.control.host import SlotHost
from flinkplus.runtime.slot.control.ports import S

NO_EPOCH = CheckpointId(0)


class Routing(Generic[S]):
    """The routing of one slot. ``consumers``: edge of the graph -> name of the vertex that it leads to."""

    def __init__(self, host: SlotHost[S], consumers: dict[int, str]) -> None:
        self._host = host
        self._consumer_vertices = consumers

    def take_all(self, peer: int, messages: Iterable[tuple[Message, Any]]) -> None:
        """The messages of a frame of slot ``peer``, up to the first that is not its to send."""
        try:
            for message, payload in messages:
                self.take(peer, message, payload)
        except ForeignMessage as error:
            self._host.frame_malformed(peer, error)

    def take(self, peer: int, message: Message, payload: Any) -> None:
        """A message of slot ``peer``. Raises ``ForeignMessage``, and has no effect, when it is not that slot's."""
        channel = message.channel
        if message.kind is MessageKind.REPLICA:
            self._host.take_replica(peer, bytes(payload))
        elif message.kind is MessageKind.CREDIT:
            if self._may_take(peer, message):
                self._take_credit(channel, (message.generation, message.seq, peer))
        else:
            consumer = self._host.active.consumer(channel)
            if consumer is not None:
                end = consumer.inputs.channels.get(channel)
                if end is None and message.generation < self._host.deployed:
                    return
                if end is None or not end.is_from(peer, message.generation):
                    raise _foreign(peer, message, None if end is None else end.peer)
                self._host.guard(consumer, consumer.steps.receive, message, payload)

    def _may_take(self, peer: int, credit: Message) -> bool:
        """Whether the channel exists. Raises ``ForeignMessage`` when its consumer is not on slot ``peer``. Credit of
        older generations, which may have been anywhere, has no effect."""
        channel = credit.channel
        vertex = self._consumer_vertices.get(channel.edge)
        consumer = SubtaskId(vertex or "", channel.consumer)
        slot = self._host.slots.get(consumer)
        if slot is None or channel.producer >= self._host.parallelism:
            if credit.generation < self._host.deployed:
                return False
            raise _foreign(peer, credit, None)
        if slot != peer and credit.generation >= self._host.generations.get(consumer, Generation(0)):
            raise _foreign(peer, credit, slot)
        return True

    def _take_credit(self, channel: ChannelId, credit: Credit) -> None:
        producer = self._host.active.producer(channel)
        if producer is None:
            self._host.active.credit(channel, credit)
        else:
            self._host.guard(producer, self._credit, producer, channel, credit)

    def _credit(self, producer: S, channel: ChannelId, credit: Credit) -> None:
        self._host.active.credit(channel, credit)
        producer.outputs.pump(producer.outputs.channels[channel])

    def hand_over(self, message: Message, payload: Any) -> None:
        """A message of a producer in this slot. An error in its consumer does not fail the producer."""
        consumer = self._host.active.consumer(message.channel)
        if consumer is not None:
            self._host.guard(consumer, consumer.steps.receive, message, payload)

    def grant(self, generation: Generation, end: InputChannel, consumed: int) -> None:
        """Credit of a consumer in this slot, of ``generation``: all before ``consumed`` is consumed."""
        channel = end.channel
        if end.peer is None:
            self._take_credit(channel, (generation, consumed, None))
            return
        self._host.send_credit(end.peer, Message(MessageKind.CREDIT, channel, generation, Seq(consumed), NO_EPOCH))


def _foreign(peer: int, message: Message, slot: int | None) -> ForeignMessage:
    """``slot``: where the end of the channel is that ``peer`` speaks for, if that is another slot."""
    where = "here or on no slot" if slot is None else f"on slot {slot}"
    return ForeignMessage(
        f"slot {peer} sends {message.kind.name} of generation {message.generation} on channel {message.channel}, "
        f"whose end is {where}"
    )
