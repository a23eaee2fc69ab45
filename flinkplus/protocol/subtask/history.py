"""How a subtask's steps began, and what it knows of the steps of its ancestors.

Where recovery is local, a subtask with outputs logs how each step began (``determinants``), and sends on how the steps
of its ancestors began that its own depend on. Its receivers keep both until a checkpoint covers them: a successor
repeats what any of them knows of.

Where nothing is repeated (at most once), a source logs how many rows it has read instead (``determinants.progress``).

Rules: one thread, that of the steps.
"""

from __future__ import annotations

from flinkplus.protocol.determinants.determinants import (
    AncestorLog,
    AncestorSpan,
    Choice,
    KnownSteps,
    Span,
    StepLog,
    decode_spans,
)
from flinkplus.protocol.determinants.progress import AncestorProgress, KnownProgress, ProgressLog
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.subtask.incarnation import Incarnation
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId, invariant
from flinkplus.protocol.vocabulary.messages import Message, MessageKind


class StepHistory:
    """The steps of one subtask and of its ancestors.

    ``saved``: the protocol's part of the snapshot that it begins from.
    ``local``: whether other subtasks keep running when one fails.
    ``logged``: ``False`` in an ablation only: no step is logged, although failover counts on it.

    ``steps``: the log of its own; ``None``: its steps are not logged.
    ``ancestors``: what it sends on of others; ``None``: nothing.
    ``known``: what it keeps of others; ``None``: nothing.
    ``step_number``: of the step under way; a repeated step has the number that it had.
    ``begun``: how many steps have begun in this incarnation.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        saved: OperatorState,
        is_source: bool,
        has_outputs: bool,
        local: bool,
        logged: bool = True,
    ) -> None:
        self._id = incarnation.subtask
        self._lineage = incarnation.lineage
        self._runs_ahead = incarnation.runs_ahead
        first = saved.steps
        guarantee = incarnation.guarantee
        shares = local and guarantee is not Guarantee.AT_LEAST_ONCE
        sends = shares and has_outputs
        self.logs = sends and (guarantee.repeats or is_source)
        """Whether a successor repeats its steps, or passes over its rows."""
        self._progress = ProgressLog(first) if self.logs and not guarantee.repeats else None
        self.steps = StepLog(first) if self.logs and guarantee.repeats else self._progress
        self._passes_on = frozenset(incarnation.lineage.passed_on(self._id.vertex))
        self.ancestors: AncestorLog | None = None
        if sends and self._passes_on:
            self.ancestors = AncestorLog(self._reached_at(saved)) if guarantee.repeats else AncestorProgress()
        self.known: KnownSteps | None = None
        if shares:
            received = {} if incarnation.promotion is None else dict(incarnation.promotion.ancestors)
            received.pop(self._id, None)  # in a loop a subtask is its own ancestor, and knows its own steps
            self.known = KnownSteps(received, self._runs_ahead) if guarantee.repeats else KnownProgress()
        if not logged:
            self.steps = self.ancestors = None
        self._to_pass_on: dict[tuple[ChannelId, int], tuple[Span, tuple[AncestorSpan, ...]]] = {}
        """Of messages that have arrived and are not taken: what they carry, decoded."""
        self._unlogged = 0 if self.steps is not None else first
        self.step_number = self.begun = 0

    def _reached_at(self, saved: OperatorState) -> dict[int, int]:
        """How far the ancestors' steps were known at the version that the subtask begins from. It matters only where
        barriers run ahead: there, the spans of an ancestor need not begin at the same step on all channels."""
        return {int(number): step for number, step in saved.reached.items()}

    @property
    def next_step(self) -> int:
        """The number of the next step, for a snapshot."""
        return self.steps.next_step if self.steps is not None else self._unlogged

    def saved_of_ancestors(self) -> dict[str, int]:
        """How far ancestors are known, for a snapshot."""
        if not self._runs_ahead or not isinstance(self.ancestors, AncestorLog):
            return {}
        return {str(number): step for number, step in self.ancestors.reached.items()}

    def begin(self, choice: Choice, *values: int) -> None:
        """A step begins in this way: one determinant for each of ``values``."""
        self.begun += 1
        if self.steps is not None:
            self.step_number = self.steps.next_step
            for value in values:
                self.steps.begin(choice, value)
        else:
            self.step_number = self._unlogged = self._unlogged + 1

    @property
    def rows_read(self) -> int:
        """Rows that a source has read by now, in a job that repeats nothing."""
        invariant(self._progress is not None, "this subtask does not count its rows", subtask=self._id)
        assert self._progress is not None
        return self._progress.rows

    def has_read(self, rows: int) -> None:
        """To be called in ``read_rows``, before anything is made of the ``rows`` that were read."""
        if self._progress is not None:
            self._progress.rows += rows

    def learn(self, producer: SubtaskId, message: Message) -> None:
        """A new message has arrived: keep what it says of steps."""
        if self.known is None or not message.determinants:
            return
        spoken = decode_spans(message.determinants)
        if self.ancestors is not None:
            self._to_pass_on[message.channel, message.seq] = spoken
        (first, determinants), others = spoken
        spans = [(producer, first, determinants)]
        spans += [(self._lineage.subtask(number), at, theirs) for number, at, theirs in others]
        for subtask, at, theirs in spans:  # its own as well: what others are to repeat may depend on what came round
            self.known.learn(subtask, at, theirs)
            if message.kind is MessageKind.BARRIER:
                self.known.barrier(message.epoch, subtask, at + len(theirs))

    def pass_on(self, producer: SubtaskId, message: Message) -> None:
        """A step takes a message: all that depends on it from now on depends on the steps that came with it."""
        if self.ancestors is None or not message.determinants:
            return
        known = (message.channel, message.seq)
        own, others = self._to_pass_on.pop(known) if known in self._to_pass_on else decode_spans(message.determinants)
        if producer != self._id:
            self.ancestors.take(self._lineage.number(producer), *own)
        for number, first, determinants in others:
            subtask = self._lineage.subtask(number)
            if subtask.vertex in self._passes_on and subtask != self._id:
                self.ancestors.take(number, first, determinants)
