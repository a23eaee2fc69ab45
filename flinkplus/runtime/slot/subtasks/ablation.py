"""A job that lacks parts of the protocol (``without:PART``, see ``faults.points``): it shows what each part protects
against.

Rules: for experiments and their tests only. A job that lacks nothing never comes here. Each part is left out alone:
what else would find the damage stays, unless it is left out as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from flinkplus.protocol.channels.channel import (
    ACCEPT,
    DUPLICATE,
    STALE,
    Accept,
    Decision,
    Duplicate,
    InputCursor,
    Window,
)
from flinkplus.protocol.channels.inputs import InputChannel, InputGate
from flinkplus.protocol.determinants.determinants import InputPart
from flinkplus.protocol.subtask.admission import Admission
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.subtask.ports import SeenMessages
from flinkplus.protocol.subtask.replay import Replay
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.faults.points import CURSOR, DIGESTS, FILTER, SUPPRESSION


class UncheckedCursor(InputCursor):
    """Checks generations but not sequence numbers: it accepts any message. Accepted duplicates do not advance its own
    numbers, so that credit and snapshots still name messages of the channel."""

    __slots__ = ("_counts",)

    def __init__(
        self,
        channel: ChannelId,
        generation: Generation,
        window: Window,
        start: Seq,
        *,
        replayed: bool = False,
        overdrawn: bool = False,
    ) -> None:
        super().__init__(channel, generation, window, start, replayed=replayed, overdrawn=overdrawn)
        self._counts: deque[int] = deque()  # of what was taken and is not consumed: how far it takes the cursor

    @override
    def accept(self, generation: Generation, seq: Seq) -> Decision:
        return STALE if generation < self._generation else ACCEPT

    def took(self, seq: Seq) -> None:
        """The message was taken."""
        received = Seq(max(self._received, seq + 1))
        self._counts.append(received - self._received)
        self._received = received

    @override
    def consume(self, count: int = 1, size_bytes: int = 0) -> None:
        further = sum(self._counts.popleft() for _ in range(count))
        if further:
            super().consume(further, size_bytes)
        else:
            self._unreported_bytes += size_bytes


class PartialAdmission(Admission):
    """Judges messages without the parts that are ``omitted``."""

    def __init__(
        self,
        subtask: SubtaskId,
        seen: SeenMessages | None,
        digest: Callable[[Message, Any], int],
        omitted: Collection[str],
    ) -> None:
        super().__init__(subtask, seen, digest)
        self._omitted = omitted

    @override
    def admit(self, end: InputChannel, message: Message, payload: Any) -> Decision:
        decision = end.cursor.accept(message.generation, message.seq)
        if not isinstance(decision, Accept | Duplicate):
            return decision
        if self._seen is not None:
            digest = 0 if DIGESTS in self._omitted else self._digest(message, payload)
            had = self._seen.add(message.epoch, message.channel, message.seq, digest)
            decision = self._decide(message, decision, had is None)
            if had is not None and DIGESTS not in self._omitted:
                self._compare(end, message, digest, had)
        if isinstance(decision, Accept) and isinstance(end.cursor, UncheckedCursor):
            end.cursor.took(message.seq)
        return decision

    def _decide(self, message: Message, decision: Decision, is_new: bool) -> Decision:
        if FILTER in self._omitted:
            return decision
        if CURSOR in self._omitted:
            return ACCEPT if is_new else DUPLICATE
        if is_new is not isinstance(decision, Accept):
            raise self._conflict(message, is_new)
        return decision


class UnboundReplay(Replay):
    """Repeats as many steps as are known, with a choice of messages of its own. All else that is logged is repeated as
    it was.

    ``inputs``: the subtask's, which choose as for a new step.
    """

    def __init__(self, promotion: Promotion | None, logs: bool, inputs: InputGate) -> None:
        super().__init__(promotion, logs)
        self._inputs = inputs
        self._chosen: list[InputPart] = []

    @override
    def bundles_ahead(self, channels: int) -> Iterator[Sequence[InputPart]]:
        """None, so that each step chooses."""
        return iter(())

    @override
    def next_bundle(self, channels: int) -> Sequence[InputPart]:
        """Until messages wait, what the predecessor took."""
        logged = super().next_bundle(channels)
        if logged and not self._chosen:
            position = {channel: at for at, channel in enumerate(sorted(self._inputs.channels))}
            self._chosen = [InputPart(position[end.channel], count, more=False) for end, count in self._inputs.next()]
        return self._chosen or logged

    @override
    def take_bundle(self) -> Sequence[InputPart]:
        logged = super().take_bundle()
        chosen, self._chosen = self._chosen, []
        return chosen or logged


def without(omitted: Collection[str], promotion: Promotion | None) -> Promotion | None:
    """A promotion that compares nothing (without digests), or does not say what living consumers have received (without
    suppression): then nothing that is made again can be compared before it is sent."""
    if promotion is None:
        return None
    received = {} if SUPPRESSION in omitted else promotion.received
    return replace(promotion, had=None if DIGESTS in omitted else promotion.had, received=received)
