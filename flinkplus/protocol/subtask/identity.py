"""The identity of a subtask in one generation, and what a promoted standby receives from its predecessor's survivors.

Rules: pure data. A promotion combines the survivors' answers; it does not change afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.protocol.channels.peer import Peer
from flinkplus.protocol.determinants.determinants import Span
from flinkplus.protocol.loops.cycles import NO_CYCLES, Cycles
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import InFlightBudget
from flinkplus.protocol.vocabulary.lineage import Lineage


@dataclass
class Promotion:
    """What a standby receives when it becomes active.

    ``received``: channel -> next ``seq`` that its consumer expected in its answer, even if it has died since.
    ``determinants``: of the steps to repeat.
    ``ancestors``: what the survivors know of the subtasks that these steps may depend on.
    ``marks``: channel -> first ``seq`` that its living producer had not sent before the failure: new messages.
    ``resuming``: subtasks that are promoted as well.
    ``state``: what the standby holds, opaque.
    ``had``: channel -> digests, by ``seq``, of what its consumer had received; ``None``: nothing is compared.
    ``inputs``: channel -> next ``seq`` to take, where it differs from the version's.
    ``pass_over``: rows that a source must read without sending them.
    """

    received: dict[str, int]
    determinants: tuple[int, ...]
    ancestors: Mapping[SubtaskId, Span]
    marks: dict[str, int]
    resuming: frozenset[SubtaskId]
    state: Any
    had: Mapping[str, Mapping[int, int]] | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    pass_over: int = 0


@dataclass(kw_only=True)
class SubtaskIdentity:
    """A subtask in one generation on one slot, and its neighbours.

    ``slots``, ``generations``: of all subtasks of the job.
    ``lineage``, ``guarantee``, ``cycles``: of the job.
    ``checkpoint``: the version that it starts from.
    ``synchronous``: it runs no step from each snapshot to the end of the checkpoint.
    ``unaligned``: barriers may overtake.
    ``in_flight``: the slot's budget for channel state.
    ``repeats``: without a promotion, the determinants of the steps to repeat: those in the recipes of sinks.
    ``recorded``: of a subtask that keeps a recipe, the first step whose rows are not stored.
    """

    subtask: SubtaskId
    generation: Generation
    slot: int
    slots: Mapping[SubtaskId, int]
    generations: Mapping[SubtaskId, Generation]
    lineage: Lineage
    checkpoint: CheckpointId
    promotion: Promotion | None = None
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    synchronous: bool = False
    unaligned: bool = False
    cycles: Cycles = NO_CYCLES
    in_flight: InFlightBudget = field(default_factory=InFlightBudget)
    repeats: tuple[int, ...] = ()
    recorded: int = 0

    @property
    def determinants(self) -> tuple[int, ...]:
        """Those of the steps to repeat."""
        return self.repeats if self.promotion is None else self.promotion.determinants

    @property
    def keeps_recipe(self) -> bool:
        """Whether its rows are visible at once, so that they are stored with their recipe."""
        return self.subtask.vertex in self.lineage.recipes

    @property
    def runs_ahead(self) -> bool:
        """Whether a subtask may send its barrier before it has taken all that precedes the barriers it received."""
        return self.unaligned or bool(self.cycles)

    @property
    def overdrawn(self) -> bool:
        """Whether producers may send beyond their credit: barriers that overtake, or steps that recipes bind."""
        return self.unaligned or bool(self.lineage.recipes)

    def slot_of(self, subtask: SubtaskId) -> int | None:
        """The slot of another subtask, ``None`` when it is this one's."""
        slot = self.slots[subtask]
        return None if slot == self.slot else slot

    def back_edges(self, channels: Sequence[ChannelId]) -> tuple[ChannelId, ...]:
        """Those of its input ``channels`` that are back edges."""
        return tuple(channel for channel in channels if channel.edge in self.cycles.back_edges)

    def peers(self, edge: int, consumers: Sequence[SubtaskId]) -> list[Peer]:
        """The consumers of one exchange, for ``OutputChannels.add_channels``."""
        return [self.peer(consumer, ChannelId(edge, self.subtask.index, consumer.index)) for consumer in consumers]

    def peer(self, consumer: SubtaskId, channel: ChannelId) -> Peer:
        """A consumer of this subtask."""
        slot, generation = self.slot_of(consumer), self.generations[consumer]
        if self.promotion is None:
            return Peer(slot, generation)
        received = self.promotion.received.get(str(channel))
        resuming = consumer in self.promotion.resuming
        if resuming and (received is None or not self.guarantee.repeats):
            return Peer(slot, generation, resuming=True)
        known = self.promotion.had if self.guarantee.repeats else None
        had = None if known is None else known.get(str(channel), {})
        return Peer(slot, generation, received or 0, resuming, had, renumbered=not self.guarantee.repeats)
