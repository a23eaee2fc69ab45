"""The slot's part in a local failover: fence, promote, hold standbys, join again.

The coordinator decides (``chain_backup.failover.machine``), and the slot obeys:

- *fence*: the slot retires subtasks of the failed set that are active here. Their neighbours here note the new
  generation and slot, close the channel, and report their positions. Subtasks that know determinants of the failed, or
  of their ancestors, report these. From then on, messages of older generations have no effect here;
- *promote*: the standby's state is made ready, and the subtask is built on it. It reports to its producers where it
  resumes, and runs. The streams that it needs have existed since the job started;
- *join*: a new incarnation of a slot hosts no subtask. It holds standbys, and work returns to it by promotion.

Partial recovery has no standbys: state that this slot does not have comes from the durable store. The fence also
retires living subtasks that go back with the failed, and they are promoted here.

Rules: only the slot's loop thread. A promotion continues when others fail meanwhile. It ends when its last standby is
ready, or when fences have taken over all that were not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias

from flinkplus.errors import described
from flinkplus.protocol.determinants.determinants import KnownSteps, Span, merge, unite
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.clock import Clock
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.control.spans import digests_from_json, digests_to_json, spans_from_json, spans_to_json
from flinkplus.runtime.slot.control.host import SlotHost
from flinkplus.runtime.slot.control.ports import PreparedPort, S, StandbyReady, StandbysPort

Spans: TypeAlias = Sequence[tuple[int, Any]]
"""Spans of consecutive values, each with the number of its first."""
PART_VALUES = 100_000
"""Maximum number of determinants and digests in one message: about a megabyte, which takes some 50 ms to write."""
log = logging.getLogger("flinkplus.slot")


@dataclass
class _Promotion:
    """A promotion that waits for standbys.

    ``aborted``, ``overtaking``: checkpoints that were aborted, or may overtake, since the order.
    ``complete``: the newest one that became complete since.
    """

    order: control.Promote
    begun: float
    subtasks: dict[SubtaskId, PromotionOrder]
    ready: dict[SubtaskId, PreparedPort] = field(default_factory=dict)
    aborted: list[CheckpointId] = field(default_factory=list)
    overtaking: list[CheckpointId] = field(default_factory=list)
    complete: int = 0

    def drop(self, name: SubtaskId) -> None:
        """Another attempt has taken over this subtask."""
        self.subtasks.pop(name, None)
        prepared = self.ready.pop(name, None)
        if prepared is not None:
            prepared.close()


class SlotFailover(Generic[S]):
    """One slot's end of the failover protocol. ``part_values``: maximum of determinants and digests in one message."""

    def __init__(self, host: SlotHost[S], standbys: StandbysPort, clock: Clock, part_values: int = PART_VALUES) -> None:
        self._host = host
        self._part_values = part_values
        self._clock = clock
        self._promotions: dict[int, _Promotion] = {}
        self.standbys = standbys

    def reset(self) -> None:
        """The whole job is deployed again."""
        for attempt in list(self._promotions):
            self._drop(attempt)

    # --- fence

    def fence(self, order: control.Fence) -> None:
        """Accept no more from older generations of the failed set, and report the positions of its neighbours."""
        host = self._host
        failed = {parse_subtask(name): slot for name, slot in order.failed.items()}
        for name, slot in failed.items():
            host.generations[name] = Generation(order.generation)
            host.slots[name] = slot
            for promotion in self._promotions.values():
                promotion.drop(name)
            subtask = host.active.get(name)
            if subtask is not None and slot == host.index:
                host.active.retire_for_successor(subtask)
            elif subtask is not None:
                host.active.retire(subtask)
            self.standbys.retire(str(name))
        answer = control.Fenced(order.attempt, {}, {}, {})
        digests: dict[str, Spans] = {}
        for promotion in self._promotions.values():
            self._fence_promotion(promotion, failed, answer)
        for subtask in host.active:
            digests.update(self._fence_inputs(subtask, failed, order.generation, answer))
            for channel, end in subtask.outputs.channels.items():
                if subtask.consumer_of(channel) in failed:
                    answer.sent[str(channel)] = subtask.steps.fence_output(channel, Generation(order.generation))
                    answer.kept[str(channel)] = end.log.trimmed
        for message in in_parts(answer, self._known_steps(failed), digests.items(), self._part_values):
            host.report(message)
        for attempt in list(self._promotions):
            self._end_when_ready(attempt)

    def _known_steps(self, failed: Mapping[SubtaskId, int]) -> Iterator[tuple[str, tuple[Span, ...]]]:
        """The determinants known here of each failed subtask, and of ancestors that its repeated steps may depend on;
        one subtask at a time, since uniting many spans takes long."""
        ancestors = self._host.lineage.asked_of(failed)
        known = [one.steps.history.known for one in self._host.active if one.steps.history.known is not None]
        for promotion in self._promotions.values():
            known += [KnownSteps(_ancestors_of(found, self._host.runs_ahead)) for found in promotion.subtasks.values()]
        spans: dict[SubtaskId, list[Span]] = {}
        for one in known:
            for subtask in [s for s in one.subtasks() if s in failed or s.vertex in ancestors]:
                span = one.of(subtask)
                if span is not None:
                    spans.setdefault(subtask, []).append(span)
        for subtask in sorted(spans):
            yield str(subtask), unite(spans[subtask])

    def _fence_promotion(self, promotion: _Promotion, failed: dict[SubtaskId, int], answer: control.Fenced) -> None:
        """Subtasks that wait for promotion start at the position of their version."""
        for name, found in promotion.subtasks.items():
            inputs = {**found.handle.operator_state.inputs, **found.inputs}
            for channel, producer in self._host.graph.inputs_of(name, self._host.parallelism):
                if producer in failed:
                    answer.received[str(channel)] = inputs.get(str(channel), 0)

    def _fence_inputs(
        self, subtask: S, failed: dict[SubtaskId, int], generation: int, answer: control.Fenced
    ) -> dict[str, Spans]:
        """Returns the digests known of each channel from the failed set."""
        digests: dict[str, Spans] = {}
        for channel, _, expected in subtask.steps.fence_inputs(failed, Generation(generation)):
            answer.received[str(channel)] = expected
            digests[str(channel)] = subtask.steps.admission.digests(channel)
        return digests

    # --- promote

    def promote(self, order: control.Promote) -> None:
        """Start a promotion: have the standbys made ready."""
        subtasks = {parse_subtask(name): found for name, found in order.subtasks.items()}
        self._promotions[order.attempt] = _Promotion(order, self._clock.monotonic(), subtasks)
        for name, found in subtasks.items():
            self._host.reach("promotion", order.generation - 1, name)
            self.standbys.prepare(order.attempt, str(name), found.version, found.handle, order.generation)

    def ready(self, event: StandbyReady) -> None:
        """A standby is ready; when all standbys of its promotion are, they become active together."""
        promotion = self._promotions.get(event.attempt)
        name = parse_subtask(event.subtask)
        if promotion is None or name not in promotion.subtasks:
            if event.prepared is not None:
                event.prepared.close()
            return
        if event.prepared is None:
            self._refuse(promotion, name, event.reason)
            return
        promotion.ready[name] = event.prepared
        self._end_when_ready(event.attempt)

    def _end_when_ready(self, attempt: int) -> None:
        """Unless the promotion still waits for a standby: activate its subtasks, and end it."""
        promotion = self._promotions[attempt]
        if len(promotion.ready) < len(promotion.subtasks):
            return
        del self._promotions[attempt]
        if promotion.subtasks:
            self._activate(promotion)

    def _refuse(self, promotion: _Promotion, name: SubtaskId, reason: str) -> None:
        self._host.report(control.PromotionFailed(promotion.order.attempt, str(name), reason))
        self._drop(promotion.order.attempt)

    def _activate(self, promotion: _Promotion) -> None:
        host, order = self._host, promotion.order
        host.notes_rows = order.notes_rows
        # Subtasks of this generation are promoted now, those of a newer one later. All report where they resume.
        resuming = frozenset(n for n, generation in host.generations.items() if generation >= order.generation)
        built: list[S] = []
        for name, found in promotion.subtasks.items():
            prepared = promotion.ready.pop(name)
            try:
                plan = _promotion_of(found, resuming, prepared, host.runs_ahead)
                version = CheckpointId(found.version)
                subtask = host.build(name, found.handle, version, found.mark, plan, (), found.recorded)
            except Exception as error:
                log.info("promoting %s failed", name, exc_info=True)
                prepared.close()
                for done in built:
                    host.active.retire(done)
                self._refuse(promotion, name, described(error))
                for left in promotion.ready.values():
                    left.close()
                return
            host.active.add(subtask)
            built.append(subtask)
        for subtask in built:
            subtask.steps.checkpoints.resume_after(CheckpointId(max(order.complete, promotion.complete)))
            aborted = [*promotion.subtasks[subtask.id].given_up, *promotion.aborted]
            overtaking = [*promotion.subtasks[subtask.id].overtaking, *promotion.overtaking]
            fields = about(subtask=str(subtask.id), generation=order.generation, phase="replay")
            log.info("promoted subtask starts from version %d", promotion.subtasks[subtask.id].version, extra=fields)
            host.guard(subtask, self._begin, subtask, order, aborted, overtaking)
            host.reach("promoted", order.generation - 1, subtask.id)
        milliseconds = (self._clock.monotonic() - promotion.begun) * 1e3
        host.report(control.Promoted(order.attempt, round(milliseconds, 3), self._clock.time()))

    def _begin(self, subtask: S, order: control.Promote, aborted: list[int], overtaking: list[int]) -> None:
        subtask.inputs.announce()
        subtask.begin(order.run, order.run_age_s)
        for checkpoint in aborted:  # their barriers arrive again, perhaps not on all inputs
            subtask.steps.abort(CheckpointId(checkpoint))
        for checkpoint in overtaking:
            subtask.steps.checkpoints.overtake(CheckpointId(checkpoint))
        if order.draining:
            subtask.steps.drain()

    def _drop(self, attempt: int) -> None:
        promotion = self._promotions.pop(attempt, None)
        if promotion is not None:
            for name in list(promotion.subtasks):
                promotion.drop(name)

    def abort(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` is aborted; for standbys, and for subtasks that wait for promotion."""
        self.standbys.abort(checkpoint)
        for promotion in self._promotions.values():
            promotion.aborted.append(checkpoint)

    def overtake(self, checkpoint: CheckpointId) -> None:
        """Barriers of ``checkpoint`` may overtake; for subtasks that wait for promotion."""
        for promotion in self._promotions.values():
            promotion.overtaking.append(checkpoint)

    def complete(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` is complete; for subtasks that wait for promotion."""
        for promotion in self._promotions.values():
            promotion.complete = checkpoint

    # --- versions

    def chains(self, order: control.Chains) -> None:
        self.standbys.form({name: (int(found[0]), tuple(found[1])) for name, found in order.chains.items()})

    def trim(self, version: CheckpointId) -> None:
        """No subtask goes back before ``version``."""
        for subtask in self._host.active:
            self._host.guard(subtask, subtask.steps.checkpoints.trim, version)
        self.standbys.trim(version)

    def close(self, keeps: bool = False) -> None:
        """Close the standbys. ``keeps``: their files stay, for the slot's next process."""
        self.reset()
        self.standbys.close(keeps)


def in_parts(
    answer: control.Fenced, known: Iterable[tuple[str, Spans]], digests: Iterable[tuple[str, Spans]], most: int
) -> Iterator[control.FencedPart | control.Fenced]:
    """The messages of an answer to a fence, ``answer`` last. ``known``: determinants by subtask; ``digests``: by
    channel; ``most``: maximum of both together in one message."""
    part, left = control.FencedPart(answer.attempt, {}, {}), most
    kinds = ("determinants", known, spans_to_json), ("digests", digests, digests_to_json)
    for field_name, found, to_json in kinds:
        for name, spans in found:
            getattr(part, field_name)[name] = []
            for first, values in _pieces(spans, most):
                if len(values) > left:
                    yield part
                    part, left = control.FencedPart(answer.attempt, {}, {}), most
                getattr(part, field_name).setdefault(name, []).extend(to_json([(first, values)]))
                left -= len(values)
    answer.determinants.update(part.determinants)
    answer.digests.update(part.digests)
    yield answer


def _pieces(spans: Spans, most: int) -> Iterator[tuple[int, Any]]:
    """The same spans, none longer than ``most``."""
    for first, values in spans:
        for at in range(0, len(values), most) or (0,):
            yield first + at, values[at : at + most]


def _promotion_of(
    order: PromotionOrder, resuming: frozenset[SubtaskId], state: PreparedPort | None, runs_ahead: bool
) -> Promotion:
    determinants = merge(order.handle.operator_state.steps, spans_from_json(order.determinants))
    had = {channel: digests_from_json(spans) for channel, spans in order.digests.items()}
    return Promotion(
        order.received,
        determinants,
        _ancestors_of(order, runs_ahead),
        order.marks,
        resuming,
        state,
        had,
        order.inputs,
        order.pass_over,
    )


def _ancestors_of(order: PromotionOrder, runs_ahead: bool) -> dict[SubtaskId, Span]:
    """The determinants of ancestors in a promotion order. Where barriers run ahead, survivors may know no step of an
    ancestor since a checkpoint while others have dropped the earlier ones: spans before such a gap are useless."""
    found: dict[SubtaskId, Span] = {}
    for name, order_spans in order.ancestors.items():
        spans = spans_from_json(order_spans)
        first = unite(spans)[-1][0] if runs_ahead else min(start for start, _ in spans)
        found[parse_subtask(name)] = first, merge(first, spans)
    return found
