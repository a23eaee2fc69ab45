"""The output ends of a subtask's channels, each a log that is sent as far as the consumer's credit allows.

Without standbys, no consumer can ask again for consumed messages, so they are trimmed at once. With standbys they are
kept until a version of the consumer covers them that is stable in its chain and complete.

Rules:

- the log is a port (``ChannelLog``); this module writes and sends only through it, ``_transmit`` and ``_hand_over``;
- a channel whose consumer has failed is closed until credit of the consumer's new generation says where to resume;
  credit of any other generation changes nothing;
- a message carries the determinants that its channel has not been sent yet, its sender's and its sender's ancestors';
- a promoted subtask regenerates messages that its consumers have received. It does not send them again, and they must
  be the same;
- a barrier that overtakes is sent at once, with all that waits before it. Two things go with credit first, as before an
  aligned barrier: messages sent again to a consumer's successor, and more than ``MAX_OVERTAKEN_BYTES``. Messages sent
  beyond the consumer's credit count as unsent: new ones are produced only after credit has caught up with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import NondeterministicOperator
from flinkplus.protocol.channels.channel import REPLAY_WINDOWS, Window
from flinkplus.protocol.channels.output_logs import ChannelLog, Entry, MakeLog, SpillVolume
from flinkplus.protocol.channels.peer import Peer
from flinkplus.protocol.determinants.determinants import AncestorLog, StepLog, encode_span
from flinkplus.protocol.determinants.recipe import RecipeLog
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, invariant
from flinkplus.protocol.vocabulary.in_flight import MAX_OVERTAKEN_BYTES
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MAX_UNSENT_MESSAGES = 4
MAX_UNSENT_BYTES = 16 << 20
ENDLESS = 1 << 62
"""Room of each channel while a barrier overtakes, in messages and bytes."""
MAX_UNSENT_TO_FAILED = 256
"""Maximum number of unsent messages for a failed consumer, so that its producer keeps running for the others."""


@dataclass(slots=True)
class OutputChannel:
    """The producer's end of one channel.

    ``peer``: the consumer's slot, ``None`` when it is this one.
    ``window``: when its bytes are in flight, no new message is sent, despite credit; one message always may be.
    ``limit``: the first ``seq`` that may not be sent.
    ``consumer_generation``: the only generation whose credit counts.
    ``retain``: consumed messages are kept until ``trim``.
    ``is_back``: the channel belongs to a back edge, and never refuses a message, so that a loop never waits for itself.
    ``resuming``: the consumer has failed; the channel is closed until its successor says where to resume.
    ``steps_sent``: the first step of the producer whose determinant this channel has not been sent.
    ``ancestors_sent``: the same as a position in the producer's ``AncestorLog``.
    ``trim_to``: no consumer will ask for anything before it.
    ``had``: digests of messages that the consumer has from a predecessor and that are still to be regenerated
    (``None``: they are not compared).
    ``had_to``: the ``seq`` after the last message that the consumer has from a predecessor.
    ``granted``: the first ``seq`` that credit does not cover; ``limit`` may be beyond it (``OutputChannels.overdraw``).
    ``overdraft``: messages before it are sent without credit, as soon as that is allowed.
    """

    channel: ChannelId
    peer: int | None
    window: Window
    log: ChannelLog
    limit: int
    consumer_generation: Generation
    retain: bool = False
    is_back: bool = False
    resuming: bool = False
    steps_sent: int = 0
    ancestors_sent: int = 0
    trim_to: int = 0
    had: dict[int, int] | None = None
    had_to: int = 0
    granted: int = 0
    overdraft: int = 0

    @property
    def may_be_overdrawn(self) -> bool:
        """Whether all that waits here may be sent without credit: it is little, and none of it was ever sent."""
        log = self.log
        return not self.resuming and log.sent == log.sent_once and log.unsent_bytes <= MAX_OVERTAKEN_BYTES

    @property
    def is_overdrawn(self) -> bool:
        """Whether something was sent that the consumer has not granted credit for."""
        return self.log.sent > self.granted and not self.resuming

    def next_to_send(self, lifted: bool = False) -> Entry | None:
        """Take the next message that may be sent now, and count it as sent; ``None`` if no message may be sent.
        ``lifted``: no credit is needed.

        Messages sent again to a promoted consumer, or sent because a barrier overtakes them, are exempt from the
        window's bytes.
        """
        log = self.log
        if lifted and not self.resuming:
            item = log.next_to_send(ENDLESS)
            return None if item is None else item[1]
        if log.in_flight_bytes >= self.window.size_bytes and log.sent >= max(log.sent_once, self.overdraft):
            return None
        item = log.next_to_send(self.limit)
        return None if item is None else item[1]

    def credit(self, generation: int, consumed: int, peer: int | None) -> None:
        """The consumer has consumed all before ``consumed``; late, older and fenced reports change nothing."""
        if generation != self.consumer_generation:
            return
        if self.resuming:
            self.resuming = False
            self._limit_unsent(MAX_UNSENT_MESSAGES, self.window.size_bytes)
            self.peer = peer
            self.log.rewind(consumed)
            self.log.acknowledge(min(consumed, self.log.sent))
            self.limit = self.granted = consumed + REPLAY_WINDOWS * self.window.messages
            return
        self.grant(consumed + self.window.messages)
        if consumed > self.log.acknowledged:
            self.log.acknowledge(min(consumed, self.log.sent))
            self._trim()

    def grant(self, end: int) -> None:
        """Extend the credit to all before ``end``; never reduces it, and has no effect while ``resuming``."""
        if end > self.granted and not self.resuming:
            self.granted = end
            self.limit = max(self.limit, end)

    def fence(self, generation: Generation) -> None:
        """The consumer has failed; the channel stays closed until a consumer of ``generation`` opens it."""
        self.consumer_generation = generation
        self.resuming = True
        self._limit_unsent(MAX_UNSENT_TO_FAILED, MAX_UNSENT_BYTES)

    def _limit_unsent(self, messages: int, size_bytes: int) -> None:
        if not self.is_back and self.log.max_unsent_messages != ENDLESS:
            self.log.max_unsent_messages, self.log.max_unsent_bytes = messages, size_bytes
        self.limit = self.granted = 0

    def trim(self, seq: int) -> None:
        """No consumer will ever ask for what is before ``seq``.

        So it has been consumed, although credit, which covers several messages at once, may not have arrived yet.
        """
        self.trim_to = max(self.trim_to, seq)
        self.log.acknowledge(min(seq, self.log.sent))
        self._trim()

    def _trim(self) -> None:
        seq = self.log.acknowledged if not self.retain else min(self.trim_to, self.log.acknowledged)
        if seq > self.log.trimmed:
            self.log.trim(seq)

    def let_go(self) -> None:
        """A message was regenerated that the consumer has: without retention, its only use was the comparison."""
        if not self.retain:
            self._trim()

    def expect(self, first: int, end: int, digests: Mapping[int, int]) -> None:
        """The consumer has received messages ``[first, end)``, with these ``digests``: they are to be regenerated.

        Raises ``InvariantViolation`` when a digest is missing, because that message could not be compared.
        """
        self.had = {seq: digests[seq] for seq in range(first, end) if seq in digests}
        self.had_to = end
        invariant(
            len(self.had) == end - first,
            "a digest is missing for a message that is to be regenerated",
            channel=self.channel,
            first=first,
            end=end,
            known=len(self.had),
        )

    def reconnect(self) -> None:
        """The stream to the consumer is new: send again what was sent and not consumed. What the consumer has from a
        predecessor, and is not regenerated yet, it still has."""
        if not self.resuming and self.log.acknowledged < self.log.sent:
            self.log.rewind(self.log.acknowledged)


class OutputChannels(ABC):
    """All output channels of a subtask.

    ``hand_over``: passes a message to a consumer on the same slot.
    ``volume``: memory and disk shared by the logs that may spill.
    ``retains``: consumed messages are kept until ``trim``.
    ``steps``: the subtask's own determinants; ``None``: they are not sent.
    ``ancestors``: determinants of ancestors that it passes on; ``None``: it passes on none.
    ``digest``: of a message and its payload.

    ``payload_bytes``, ``determinant_bytes``: bytes in all messages made so far.
    ``recipe``: cuts the rows of the subtask's sink; ``None``: it keeps no recipe.
    """

    def __init__(
        self,
        generation: Generation,
        window: Window,
        hand_over: Callable[[Message, Any], None],
        make_log: MakeLog,
        volume: SpillVolume | None = None,
        retains: bool = False,
        steps: StepLog | None = None,
        ancestors: AncestorLog | None = None,
        digest: Callable[[Message, Any], int] | None = None,
    ) -> None:
        self._digest = digest
        self._generation = generation
        self._window = window
        self._hand_over = hand_over
        self._make_log = make_log
        self._volume = volume
        self._retains = retains
        self._steps = steps
        self._ancestors = ancestors
        self._news_key: tuple[int, int, int, int, bool] | None = None
        self._newest = b""
        self.payload_bytes = self.determinant_bytes = 0
        self.silent = False
        self._edges: dict[int, list[OutputChannel]] = {}
        self._overdrawn: list[OutputChannel] = []
        self._to_overdraw: list[OutputChannel] = []
        self.channels: dict[ChannelId, OutputChannel] = {}
        self.epoch = CheckpointId(0)
        self.recipe: RecipeLog | None = None
        self._lifted = False

    @abstractmethod
    def _transmit(self, slot: int, message: Message, payload: Any) -> None:
        """Send to another slot."""

    def add_channels(
        self, edge: int, producer: int, peers: Sequence[Peer], first: Mapping[str, int], is_back: bool = False
    ) -> None:
        """Add the channels of one exchange, one per consumer index.

        ``first``: channel -> first ``seq``, from a snapshot's cursors (0 where absent).
        ``is_back``: the exchange is a back edge.
        """
        ends = []
        for consumer, peer in enumerate(peers):
            channel = ChannelId(edge, producer, consumer)
            start = first.get(str(channel), 0)
            if peer.renumbered and peer.received is not None:
                start = peer.received
            received = start if peer.received is None else max(start, peer.received)
            log = self._make_log(channel, start, received, self._retains or is_back)
            # A living consumer of a promoted producer grants credit again; what it has received had credit before.
            window = self._window
            limit = start + window.messages if peer.received is None else received
            end = OutputChannel(channel, peer.slot, window, log, limit, peer.generation)
            end.granted = limit
            end.retain = self._retains
            if is_back:
                end.is_back = True
                log.lift_limits()
            end.steps_sent = self._steps.next_step if self._steps is not None else 0
            end.trim_to = start
            end.had_to = received
            if peer.had is not None:
                end.expect(start, received, peer.had)
            if peer.resuming:
                end.fence(peer.generation)
            self.channels[channel] = end
            ends.append(end)
        self._edges[edge] = ends

    @property
    def accepts(self) -> bool:
        """Whether one more message can be appended to every channel, and the sink has room for further rows."""
        if self.recipe is not None and not self.recipe.accepts:
            return False
        if self._overdrawn and self._is_overdrawn():
            return False
        for end in self.channels.values():  # noqa: SIM110  # asked before each step: a loop is quicker than ``all``
            if not end.log.accepts:
                return False
        return True

    @property
    def blocked(self) -> bool:
        """Whether sources must stop reading, because memory is used up and the disk is full.

        Messages in flight and barriers still pass: barriers allow the logs to be trimmed.
        """
        volume = self._volume
        return volume is not None and volume.blocked is not None and not volume.relieve()

    def _is_overdrawn(self) -> bool:
        self._overdrawn = [end for end in self.channels.values() if end.is_overdrawn]
        return bool(self._overdrawn)

    @contextmanager
    def endless(self, size_bytes: int = ENDLESS) -> Iterator[None]:
        """Meanwhile each channel has room for ``size_bytes`` unsent, so that a step can end and a barrier overtake."""
        ends = tuple(self.channels.values())
        before = [((end.log.max_unsent_messages, end.log.max_unsent_bytes), end.resuming) for end in ends]
        self._overdrawn = []
        for end in ends:
            end.log.max_unsent_messages, end.log.max_unsent_bytes = ENDLESS, size_bytes
        try:
            yield
        finally:
            for end, (limits, resuming) in zip(ends, before, strict=True):
                as_ever = MAX_UNSENT_MESSAGES, end.window.size_bytes
                end.log.max_unsent_messages, end.log.max_unsent_bytes = limits if end.resuming == resuming else as_ever
            self._is_overdrawn()

    def accepts_within(self, size_bytes: int) -> bool:
        """``accepts``, if each channel had room for ``size_bytes`` unsent."""
        with self.endless(size_bytes):
            return self.accepts

    def lift_limits(self) -> None:
        """Steps are repeated that recipes bind: append and send without limits and credit until ``restore_limits``.

        The other ends repeat theirs in a fixed order too, so each may wait for any other. What they had in flight in
        the history that they repeat may have been more than credit allows, since it may have had a replay as well.
        """
        self._lifted = True
        for end in self.channels.values():
            end.log.lift_limits()

    def restore_limits(self) -> None:
        """New steps begin: what was sent beyond the credit waits for it."""
        lifted, self._lifted = self._lifted, False
        for end in self.channels.values() if lifted else ():
            log = end.log
            log.max_unsent_messages, log.max_unsent_bytes = MAX_UNSENT_MESSAGES, end.window.size_bytes
            if end.resuming:
                log.max_unsent_messages, log.max_unsent_bytes = MAX_UNSENT_TO_FAILED, MAX_UNSENT_BYTES

    def overdraw(self) -> None:
        """Send all that was appended so far, without credit; ``accepts`` is false until credit covers it.

        Where that would be too much (``OutputChannel.may_be_overdrawn``), the excess goes with credit first.
        """
        for end in self.channels.values():
            end.overdraft = end.log.appended
        self._to_overdraw = list(self.channels.values())
        self.pump()

    def _overdraw(self) -> None:
        """Send without credit on the channels that allow it by now."""
        waiting = [end for end in self._to_overdraw if end.log.sent < end.overdraft]
        self._to_overdraw = [end for end in waiting if not end.may_be_overdrawn]
        for end in [end for end in waiting if end.may_be_overdrawn]:
            end.limit = max(end.limit, end.overdraft)
            self.pump(end)
        self._is_overdrawn()

    def cursors(self) -> dict[str, int]:
        return {str(channel): end.log.appended for channel, end in self.channels.items()}

    def append_records(self, end: OutputChannel, records: Any, payload: Any, rows: int, size_bytes: int) -> None:
        """Append a message of records: ``records`` as they are, or a ``payload`` made of them."""
        if self.silent:
            return
        seq = Seq(end.log.appended)
        news = self._news(end)
        self.payload_bytes += size_bytes
        self.determinant_bytes += len(news)
        message = Message(
            MessageKind.RECORDS, end.channel, self._generation, seq, self.epoch, records, size_bytes, news, 0, rows
        )
        if end.had:
            self._compare(end, message, payload)
        end.log.append((message, payload), size_bytes)
        if seq < end.had_to:
            end.let_go()

    def _compare(self, end: OutputChannel, message: Message, payload: Any) -> None:
        had = None if end.had is None else end.had.pop(message.seq, None)
        if had is not None and self._digest is not None and self._digest(message, payload) != had:
            raise NondeterministicOperator(
                f"message {message.seq} of channel {message.channel} differs when it is regenerated"
            )

    def check_remade(self) -> None:
        """All known steps are repeated, so all messages that consumers have received must have been regenerated.

        Raises ``NondeterministicOperator`` when one is missing.
        """
        for end in self.channels.values():
            if end.had is not None and end.log.appended < end.had_to:
                raise NondeterministicOperator(
                    f"channel {end.channel}: {end.log.appended} messages were regenerated, but its "
                    f"consumer had received {end.had_to}"
                )

    def _news(self, end: OutputChannel, *, at_barrier: bool = False) -> bytes:
        """The determinants that the channel's consumer has not been sent, now counted as sent.

        At a barrier also the next step of every ancestor, including those without new determinants.
        """
        steps, ancestors = self._steps, self._ancestors
        if steps is None and ancestors is None:
            return b""
        steps_sent, ancestors_sent = end.steps_sent, end.ancestors_sent
        end.steps_sent = steps_sent if steps is None else steps.next_step
        end.ancestors_sent = ancestors_sent if ancestors is None else ancestors.end
        key = steps_sent, end.steps_sent, ancestors_sent, end.ancestors_sent, at_barrier
        if key != self._news_key:  # usually a step sends the same to all channels
            self._news_key, self._newest = key, self._encode_news(steps_sent, ancestors_sent, at_barrier)
        return self._newest

    def _encode_news(self, steps_sent: int, ancestors_sent: int, at_barrier: bool) -> bytes:
        own = b"" if self._steps is None else self._steps.since(steps_sent)
        if at_barrier and not own:
            own = encode_span(steps_sent, ())
        if self._ancestors is None:
            return own
        others = self._ancestors.since(ancestors_sent, name_all=at_barrier)
        return (own or encode_span(steps_sent, ())) + others if others else own

    def _append(self, end: OutputChannel, kind: MessageKind, watermark_ms: int = 0) -> None:
        """Append a message without records."""
        known = self._news(end, at_barrier=kind is MessageKind.BARRIER)
        self.determinant_bytes += len(known)
        message = Message(
            kind,
            end.channel,
            self._generation,
            Seq(end.log.appended),
            self.epoch,
            determinants=known,
            watermark_ms=watermark_ms,
        )
        if end.had:
            self._compare(end, message, None)
        end.log.append((message, None), 0)
        if message.seq < end.had_to:
            end.let_go()

    def broadcast(self, kind: MessageKind, epoch: CheckpointId, overtakes: bool = False) -> None:
        """Append a barrier or the end of input to every channel, which must have room; ``overtakes``: at once."""
        self.cut_recipe()
        self.epoch = epoch
        for end in self.channels.values():
            self._append(end, kind)
        self._news_key = None
        if self._steps is not None:
            self._steps.clear()
        if self._ancestors is not None:
            self._ancestors.clear()
        if overtakes:
            self.overdraw()
        else:
            self.pump()

    def cut_recipe(self) -> None:
        """A step has ended, or a barrier is sent: the sink's rows so far, and what they depend on, belong together."""
        if self.recipe is not None:
            self.recipe.cut(self.epoch)

    def append_end(self, end: OutputChannel) -> None:
        """Append a further end of input to one channel."""
        self._append(end, MessageKind.END_OF_INPUT)

    def append_watermark(self, edge: int, watermark_ms: int) -> None:
        """Append a watermark to every channel of an exchange, which must have room."""
        if self.silent:
            return
        for end in self._edges[edge]:
            self._append(end, MessageKind.WATERMARK, watermark_ms)
        self.pump()

    def append_round(self, edge: int, value: int) -> None:
        """Append a round of a loop to every channel of an exchange, which must have room."""
        for end in self._edges[edge]:
            self._append(end, MessageKind.ROUND, value)
        self.pump()

    def pump(self, only: OutputChannel | None = None) -> None:
        """Send what the consumers' credit allows, on every channel or on ``only`` one."""
        for end in self.channels.values() if only is None else (only,):
            while (entry := end.next_to_send(self._lifted)) is not None:
                message, payload = entry
                if end.peer is None:
                    self._hand_over(message, payload)
                else:
                    self._transmit(end.peer, message, payload)
        if self._to_overdraw:
            self._overdraw()

    def trim(self, cursors: Mapping[str, int]) -> None:
        """No consumer will ever ask for what is before these cursors."""
        for channel, end in self.channels.items():
            end.trim(cursors.get(str(channel), 0))

    def release(self) -> None:
        """Close the logs."""
        for end in self.channels.values():
            end.log.close()
