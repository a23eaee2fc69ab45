"""How a subtask's steps began, and what it knows of the steps of its ancestors.

Where recovery is local, or a sink keeps a recipe (``determinants.recipe``), a subtask with outputs or with a recipe
logs how each step began (``determinants``). It also passes on how
those steps of its ancestors began that its own steps depend on. Its receivers keep both until a checkpoint covers
them: a successor repeats every step that any of them knows of.

Where steps are not repeated (at most once), a source logs how many rows it has read (``determinants.progress``).

Rules: one thread, that of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.protocol.determinants.determinants import (
    AncestorLog,
    AncestorSpan,
    Choice,
    KnownSteps,
    Span,
    StepLog,
    decode_ancestors,
    decode_own,
)
from flinkplus.protocol.determinants.progress import AncestorProgress, KnownProgress, ProgressLog
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId, invariant
from flinkplus.protocol.vocabulary.messages import Message, MessageKind

MAX_HEARD = 64
"""Maximum number of different determinants of ancestors that are remembered as decoded."""


@dataclass(slots=True)
class _Ancestors:
    """Spans of ancestors, as they came with messages. Producers that took the same messages send the same.

    ``passed_on``: they are in the log of those that this subtask passes on.
    """

    spans: tuple[AncestorSpan, ...]
    passed_on: bool = False


class StepHistory:
    """The steps of one subtask and of its ancestors.

    ``saved``: the protocol's part of the snapshot that the subtask starts from.
    ``local``: whether other subtasks keep running when one fails.
    ``logged``: ``False`` in an ablation only: no step is logged, although failover depends on it.

    ``steps``: the log of its own steps; ``None``: its steps are not logged.
    ``ancestors``: determinants of ancestors that it passes on; ``None``: it passes on none.
    ``known``: determinants of other subtasks that it keeps; ``None``: it keeps none.
    ``step_number``: of the current step; a repeated step has its original number.
    ``begun``: how many steps this instance has begun.
    """

    def __init__(
        self,
        identity: SubtaskIdentity,
        saved: OperatorState,
        is_source: bool,
        has_outputs: bool,
        local: bool,
        logged: bool = True,
    ) -> None:
        self._id = identity.subtask
        self._lineage = identity.lineage
        self._runs_ahead = identity.runs_ahead
        first = saved.steps
        guarantee = identity.guarantee
        repeats_from_recipes = bool(identity.lineage.recipes)
        shares = (local or repeats_from_recipes) and guarantee is not Guarantee.AT_LEAST_ONCE
        sends = shares and (has_outputs or identity.keeps_recipe)
        self.logs = sends and (guarantee.repeats or is_source)
        """Whether a successor repeats its steps, or skips its rows."""
        self._progress = ProgressLog(first) if self.logs and not guarantee.repeats else None
        self.steps = StepLog(first) if self.logs and guarantee.repeats else self._progress
        self._passes_on = frozenset(identity.lineage.passed_on(self._id.vertex))
        self.ancestors: AncestorLog | None = None
        if sends and self._passes_on:
            self.ancestors = AncestorLog(self._reached_at(saved)) if guarantee.repeats else AncestorProgress()
        self.known: KnownSteps | None = None
        if shares and local:
            received = {} if identity.promotion is None else dict(identity.promotion.ancestors)
            received.pop(self._id, None)  # in a loop a subtask is its own ancestor, and knows its own steps
            self.known = KnownSteps(received, self._runs_ahead) if guarantee.repeats else KnownProgress()
        if not logged:
            self.steps = self.ancestors = None
        self._to_pass_on: dict[tuple[ChannelId, int], tuple[Span, _Ancestors]] = {}
        """Decoded determinants of messages that have arrived and are not taken yet."""
        self._heard: dict[bytes, _Ancestors] = {}
        self._unlogged = 0 if self.steps is not None else first
        self.step_number = self.begun = 0

    def _reached_at(self, saved: OperatorState) -> dict[int, int]:
        """The next step of each ancestor that was unknown at the version that the subtask starts from.

        It matters only where barriers run ahead: there, an ancestor's spans may begin at different steps on different
        channels.
        """
        return {int(number): step for number, step in saved.reached.items()}

    @property
    def next_step(self) -> int:
        """The number of the next step, for a snapshot."""
        return self.steps.next_step if self.steps is not None else self._unlogged

    def saved_of_ancestors(self) -> dict[str, int]:
        """The next unknown step of each ancestor, for a snapshot."""
        if not self._runs_ahead or not isinstance(self.ancestors, AncestorLog):
            return {}
        return {str(number): step for number, step in self.ancestors.reached.items()}

    def begin(self, choice: Choice, *values: int) -> None:
        """Start a step: log one determinant for each of ``values``."""
        self.begun += 1
        if self.steps is not None:
            self.step_number = self.steps.next_step
            for value in values:
                self.steps.begin(choice, value)
        else:
            self.step_number = self._unlogged = self._unlogged + 1

    @property
    def rows_read(self) -> int:
        """Rows that a source has read so far, in a job that does not repeat steps."""
        invariant(self._progress is not None, "this subtask does not count its rows", subtask=self._id)
        assert self._progress is not None
        return self._progress.rows

    def has_read(self, rows: int) -> None:
        """``read_rows`` calls it before any output is made from the ``rows`` that were read."""
        if self._progress is not None:
            self._progress.rows += rows

    def learn(self, producer: SubtaskId, message: Message) -> None:
        """A new message has arrived: keep its determinants."""
        if self.known is None or not message.determinants:
            return
        own, rest = decode_own(message.determinants)
        self.known.learn(producer, *own)
        others = self._heard.get(rest)
        if others is None:
            others = self._hear(rest)
            for (
                number,
                first,
                determinants,
            ) in others.spans:  # its own too, back from a loop: repeats may depend on them
                self.known.learn(self._lineage.subtask(number), first, determinants)
        if message.kind is MessageKind.BARRIER:
            self.known.barrier(message.epoch, producer, own[0] + len(own[1]))
            for number, first, determinants in others.spans:
                self.known.barrier(message.epoch, self._lineage.subtask(number), first + len(determinants))
        if self.ancestors is not None:
            self._to_pass_on[message.channel, message.seq] = own, others

    def _hear(self, data: bytes) -> _Ancestors:
        """Decode determinants of ancestors, and remember them: the other producers usually send the same."""
        if len(self._heard) >= MAX_HEARD:
            self._heard.clear()
        found = self._heard[data] = _Ancestors(decode_ancestors(data))
        return found

    def pass_on(self, producer: SubtaskId, message: Message) -> None:
        """A step takes a message: all later output depends on the steps whose determinants came with it."""
        if self.ancestors is None or not message.determinants:
            return
        found = self._to_pass_on.pop((message.channel, message.seq), None)
        if found is None:
            own, rest = decode_own(message.determinants)
            found = own, _Ancestors(decode_ancestors(rest))
        own, others = found
        if producer != self._id:
            self.ancestors.take(self._lineage.number(producer), *own)
        if others.passed_on:
            return
        others.passed_on = True
        for number, first, determinants in others.spans:
            subtask = self._lineage.subtask(number)
            if subtask.vertex in self._passes_on and subtask != self._id:
                self.ancestors.take(number, first, determinants)
