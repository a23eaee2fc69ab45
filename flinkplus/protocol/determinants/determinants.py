"""Determinants: the logged choices that began the steps of a subtask, and what other subtasks know of them.

Every message carries the sender's determinants that its receiver has not been sent before, and those of the sender's
ancestors that it depends on (``lineage`` says how far up). So a subtask that has seen an effect of a step knows how
that step began, and all earlier steps, and all steps of other subtasks that led to it. A promoted standby collects the
determinants from all survivors, repeats exactly those steps, and then chooses freely: no subtask has seen later ones.

A determinant is one number: a kind (``Choice``) in the lowest three bits, and its value above. Steps of a subtask are
numbered from 0, over all its generations of one deployment; a snapshot holds the number of the next one. Reading the
clock in a step is a separate determinant, numbered after that of the step.

Rules and invariants:

- what is known of a subtask is one span without gaps. It starts at or before the step of every usable version, and ends
  at the newest known step. Two receivers never know different determinants of the same step (``learn`` and ``merge``
  check it);
- a sender passes on determinants of ancestors when it *takes* the messages that carry them, not on arrival. So what a
  message carries depends only on its sender's steps, and a regenerated message carries the same;
- at barrier *n*, an alignment has taken, on every path, exactly what was sent before barrier *n*. So a barrier carries
  everything up to the step at which its sender, and each ancestor, sent theirs, and names these steps. At each snapshot
  all channels have been sent the same, logs start again, and a successor from that version has all it needs.
  Where barriers run ahead (in loops, and when they overtake), a barrier carries what its sender knows so far. The
  missing steps precede the snapshot, and come with messages that are part of it;
- a promoted subtask also gets what the survivors know of its ancestors. Its repeated steps depend on them, and if the
  ancestors fail before they have sent it again, no other copy may be left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId, invariant

# A span: one byte of format, its first step, its determinants. In the byte: the number of determinants (four bits;
# MANY: the number follows the first step), the width of the first step, and of a determinant (two bits each).
_MANY = 15
_FIRST, _WIDTH = "HIQ", "BHI"
_ANCESTOR = struct.Struct("<BH")


def _formats(many: bool) -> list[struct.Struct | None]:
    formats: list[struct.Struct | None] = []
    for flags in range(256):
        count, first, width = flags & 15, flags >> 4 & 3, flags >> 6
        fits = first < len(_FIRST) and width < len(_WIDTH) and many == (count == _MANY)
        rest = "I" if many else f"{count}{_WIDTH[width]}" if fits else ""
        formats.append(struct.Struct(f"<B{_FIRST[first]}{rest}") if fits else None)
    return formats


_FEW_FORMATS, _MANY_FORMATS = _formats(False), _formats(True)
_BITS = 3
CHOICE_MASK = (1 << _BITS) - 1
"""The bits of a determinant's ``Choice``."""
MAX_VALUE = (1 << 32 - _BITS) - 1

Span = tuple[int, tuple[int, ...]]
"""The first step of a span, and the determinants from that step on."""

AncestorSpan = tuple[int, int, tuple[int, ...]]
"""The number of a subtask (``Lineage.number``), and a span of its determinants."""


class Choice(IntEnum):
    """What began a step, or a clock reading within it; in brackets: its value."""

    READ = 0
    """A source read (what it chose: the number of rows requested; of a live source, see ``LiveReader.choose``), or
    another subtask took answers from outside (``AnswersPort.choose``; 0: it ended)."""
    TRIGGER = 1
    """A source began a triggered checkpoint (its number)."""
    END = 2
    """A source was ordered to stop reading (``STOPPED``), or has had nothing to read for long (``IDLED``). Or the time
    of day has come for which a subtask that reads no source waited (``TICKED``)."""
    INPUT = 3
    """Messages were taken from an input channel (``InputPart``). A bundle from several channels has one such
    determinant for each, in order."""
    ABORT = 4
    """A checkpoint was aborted that the subtask might have been aligning (its number)."""
    ERA = 5
    """The clock was read within a step, and had advanced far (the upper bits of its milliseconds)."""
    CLOCK = 6
    """The clock was read within a step (milliseconds since the last reading, or since the era began)."""
    OVERTAKE = 7
    """A barrier overtook what waits on the inputs (the number of its checkpoint)."""


STOPPED, IDLED, TICKED = 0, 1, 2
"""The values of ``Choice.END``."""
CLOCK_CHOICES = (Choice.ERA, Choice.CLOCK)
"""Choices that begin no step: a step reads the clock at most once; an ``ERA`` immediately precedes its ``CLOCK``."""


class InputPart(NamedTuple):
    """What a step took from one input channel.

    ``position``: of the channel among the subtask's sorted channels.
    ``messages``: how many, at least 1.
    ``more``: whether the next determinant names a further channel of the same step.
    """

    position: int
    messages: int
    more: bool

    def value(self, channels: int) -> int:
        """The value of the determinant; ``channels``: number of the subtask's input channels."""
        return ((self.messages - 1) * channels + self.position) << 1 | self.more

    @classmethod
    def of(cls, value: int, channels: int) -> InputPart:
        """The inverse of ``value``."""
        further, position = divmod(value >> 1, channels)
        return cls(position, further + 1, bool(value & 1))


def pack(choice: Choice, value: int) -> int:
    """One determinant as a number below 2**32."""
    invariant(0 <= value <= MAX_VALUE, "a determinant's value is out of range", choice=choice.name, value=value)
    return value << _BITS | choice


def unpack(determinant: int) -> tuple[Choice, int]:
    """The inverse of ``pack``."""
    return Choice(determinant & CHOICE_MASK), determinant >> _BITS


def encode_span(first: int, determinants: Sequence[int]) -> bytes:
    """A span of the sender as bytes of a message, usually five to seven."""
    count = len(determinants)
    highest = max(determinants) if count else 0
    flags = count if count < _MANY else _MANY
    if first >= 1 << 16:
        flags |= 16 if first < 1 << 32 else 32
    if highest >= 1 << 8:
        flags |= 64 if highest < 1 << 16 else 128
    few = _FEW_FORMATS[flags]
    if few is not None:
        return few.pack(flags, first, *determinants)
    many = _MANY_FORMATS[flags]
    assert many is not None
    return many.pack(flags, first, count) + struct.pack(f"<{count}{_WIDTH[flags >> 6]}", *determinants)


def encode_ancestor(number: int, first: int, determinants: Sequence[int]) -> bytes:
    """A span of an ancestor as bytes; any number of them may follow the sender's own (``encode_span``)."""
    return _ANCESTOR.pack(number >> 16, number & 0xFFFF) + encode_span(first, determinants)


def decode_spans(data: bytes) -> tuple[Span, tuple[AncestorSpan, ...]]:
    """The sender's own span of a message, and those of ancestors. Raises ``PeerProtocolError`` if malformed."""
    own, others = decode_own(data)
    return own, decode_ancestors(others)


def decode_own(data: bytes) -> tuple[Span, bytes]:
    """The sender's own span of a message, and the bytes after it, for ``decode_ancestors``. Raises
    ``PeerProtocolError`` if malformed."""
    try:
        first, determinants, end = _decode_span(data, 0)
    except (struct.error, IndexError) as error:
        raise PeerProtocolError(f"malformed determinants: {error}") from error
    return (first, determinants), data[end:]


def decode_ancestors(data: bytes) -> tuple[AncestorSpan, ...]:
    """The spans of ancestors. Raises ``PeerProtocolError`` if malformed."""
    others: list[AncestorSpan] = []
    end = 0
    try:
        while end < len(data):
            vertex, index = _ANCESTOR.unpack_from(data, end)
            at, theirs, end = _decode_span(data, end + _ANCESTOR.size)
            others.append((vertex << 16 | index, at, theirs))
    except (struct.error, IndexError) as error:
        raise PeerProtocolError(f"malformed determinants: {error}") from error
    return tuple(others)


def _decode_span(data: bytes, at: int) -> tuple[int, tuple[int, ...], int]:
    """The span at byte ``at``: its first step, its determinants, and the position after it."""
    flags = data[at]
    few = _FEW_FORMATS[flags]
    if few is not None:
        values = few.unpack_from(data, at)
        return values[1], values[2:], at + few.size
    many = _MANY_FORMATS[flags]
    if many is None:
        raise PeerProtocolError(f"determinants have an unknown format: {flags:#x}")
    _, first, count = many.unpack_from(data, at)
    at += many.size
    if count << (flags >> 6) > len(data) - at:
        raise PeerProtocolError(f"malformed determinants: {count} of them in {len(data) - at} bytes")
    rest = struct.Struct(f"<{count}{_WIDTH[flags >> 6]}")
    return first, rest.unpack_from(data, at), at + rest.size


class StepClock:
    """A subtask's time of day: a clock that moves only when a step reads it, and never goes back."""

    __slots__ = ("ms",)

    def __init__(self, ms: int = 0) -> None:
        self.ms = ms

    def read(self, wall_ms: int) -> list[tuple[Choice, int]]:
        """The determinants that move the clock to ``wall_ms``, or leave it unchanged if it is later."""
        past_ms = max(wall_ms, self.ms) - self.ms
        if past_ms <= MAX_VALUE:
            return [(Choice.CLOCK, past_ms)]
        era, past_ms = divmod(wall_ms, MAX_VALUE + 1)
        return [(Choice.ERA, era), (Choice.CLOCK, past_ms)]

    def move(self, choice: Choice, value: int) -> None:
        """Apply a determinant of ``read``."""
        self.ms = self.ms + value if choice is Choice.CLOCK else value * (MAX_VALUE + 1)


class StepLog:
    """A subtask's own determinants since its last barrier. ``first``: number of its next step."""

    __slots__ = ("_determinants", "_first")

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._determinants: list[int] = []

    @property
    def next_step(self) -> int:
        return self._first + len(self._determinants)

    def begin(self, choice: Choice, value: int) -> None:
        self._determinants.append(pack(choice, value))

    def since(self, step: int) -> bytes:
        """The span from ``step`` on, encoded; empty without new steps."""
        invariant(step >= self._first, "determinants are requested that were dropped", step=step, first=self._first)
        if step == self.next_step:
            return b""
        return encode_span(step, self._determinants[step - self._first :])

    def clear(self) -> None:
        """All channels have been sent all determinants: drop them."""
        self._first = self.next_step
        self._determinants.clear()


class AncestorLog:
    """Determinants of ancestors that came with the messages that a subtask has taken since its last barrier, and passes
    on. A position in the log is the progress of one channel."""

    __slots__ = ("_entries", "_first", "_reached")

    def __init__(self, reached: Mapping[int, int] | None = None) -> None:
        """``reached``: the property ``reached`` of a snapshot's log; used only where barriers run ahead."""
        self._first = 0
        self._entries: list[AncestorSpan] = []
        self._reached: dict[int, int] = dict(reached or {})

    @property
    def reached(self) -> Mapping[int, int]:
        """Number of an ancestor -> its first unknown step."""
        return self._reached

    @property
    def end(self) -> int:
        """The position after all entries."""
        return self._first + len(self._entries)

    def take(self, number: int, first: int, determinants: tuple[int, ...]) -> None:
        """A message with this span was taken. Several paths may lead from one ancestor: known steps are skipped.

        Raises ``PeerProtocolError`` when steps are missing in between.
        """
        end = first + len(determinants)
        reached = self._reached.setdefault(number, first)
        if first > reached:
            raise PeerProtocolError(f"determinants of ancestor {number:#x} begin at {first}, after the known {reached}")
        if end > reached:
            self._entries.append((number, reached, determinants[reached - first :]))
            self._reached[number] = end

    def since(self, position: int, *, name_all: bool = False) -> bytes:
        """Entries after ``position``, encoded, by number, so that subtasks that took the same say it in the same bytes.

        ``name_all``: name each ancestor, even without new determinants.
        """
        news: dict[int, tuple[int, list[int]]] = {}
        for number, first, determinants in self._entries[position - self._first :]:
            span = news.get(number)
            if span is None:
                news[number] = (first, list(determinants))
            else:
                span[1].extend(determinants)
        if name_all:
            news = {number: news.get(number, (reached, [])) for number, reached in self._reached.items()}
        return b"".join([encode_ancestor(number, *span) for number, span in sorted(news.items())])

    def clear(self) -> None:
        """All channels have been sent all entries: drop them."""
        self._first = self.end
        self._entries.clear()


class KnownSteps:
    """The determinants of producers and ancestors that one subtask knows, from the messages that it has received.

    ``given``: what it got at its promotion, until the ancestors have sent it again.
    ``cyclic``: the job has loops, or takes unaligned checkpoints. Two things differ then. First, a subtask that sends
    its barrier has not taken all that others sent before theirs: the steps in a barrier are lower bounds, and the
    highest counts. Second, after a start from a snapshot, spans of one ancestor may arrive on two paths, starting at
    different steps; the lower ones may come second or never. All missing steps precede the snapshot.
    """

    def __init__(self, given: Mapping[SubtaskId, Span] | None = None, cyclic: bool = False) -> None:
        self._cyclic = cyclic
        self._spans: dict[SubtaskId, tuple[int, list[int]]] = {}
        self._given = dict(given or {})
        self._at_barrier: dict[CheckpointId, dict[SubtaskId, int]] = {}

    def learn(self, subtask: SubtaskId, first: int, determinants: Sequence[int]) -> None:
        """A message came with a span of ``subtask``.

        Raises ``PeerProtocolError`` when steps are missing in between, or differ from known ones.
        """
        span = self._spans.get(subtask)
        if span is None:
            span = self._spans[subtask] = self._begin(subtask, first)
        known = span[0] + len(span[1])
        if first == known:  # nearly always
            span[1].extend(determinants)
            return
        if first > known and self._cyclic:
            self._spans[subtask] = first, list(determinants)
            return
        if first > known:
            raise PeerProtocolError(f"{subtask}: determinants begin at step {first}, after the known steps to {known}")
        behind = max(first, span[0])
        if behind < known and determinants:
            again = determinants[behind - first : known - first]
            if list(again) != span[1][behind - span[0] : behind - span[0] + len(again)]:
                raise PeerProtocolError(f"{subtask}: determinants from step {behind} on differ from the known ones")
        span[1].extend(determinants[known - first :])

    def _begin(self, subtask: SubtaskId, first: int) -> tuple[int, list[int]]:
        """No subtask goes back before ``first``. What came at the promotion may extend further than what is sent."""
        given = self._given.pop(subtask, None)
        if given is None or first > given[0] + len(given[1]):
            return first, []
        if first < given[0]:
            return (given[0], list(given[1])) if self._cyclic else (first, [])
        return first, list(given[1][first - given[0] :])

    def barrier(self, checkpoint: CheckpointId, subtask: SubtaskId, step: int) -> None:
        """The barrier of ``checkpoint`` arrived, which ``subtask`` sent, or forwarded, before its ``step``."""
        steps = self._at_barrier.setdefault(checkpoint, {})
        at = steps.setdefault(subtask, step)
        if self._cyclic:
            steps[subtask] = max(at, step)
        elif at != step:
            raise PeerProtocolError(f"{subtask}: barrier {checkpoint} came before step {at} and before step {step}")

    def complete(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` is complete: no subtask goes back before it."""
        if checkpoint in self._at_barrier and not self._cyclic:
            self._given.clear()  # all ancestors have sent theirs again
        for subtask, step in self._at_barrier.get(checkpoint, {}).items():
            first, determinants = self._spans[subtask]
            given = self._given.get(subtask)
            if given is not None and given[0] + len(given[1]) <= step:
                del self._given[subtask]
            if step > first:
                self._spans[subtask] = (step, determinants[step - first :])
        self._at_barrier = {number: steps for number, steps in self._at_barrier.items() if number > checkpoint}

    def of(self, subtask: SubtaskId) -> Span | None:
        """The known span of ``subtask``, or None."""
        span = self._spans.get(subtask)
        if span is None:
            return self._given.get(subtask)
        return None if not span[1] else (span[0], tuple(span[1]))

    def subtasks(self) -> tuple[SubtaskId, ...]:
        """Subtasks that may have a known span."""
        return (*self._given, *self._spans)


def merge(first: int, spans: Iterable[Span]) -> tuple[int, ...]:
    """The determinants from step ``first`` on that several receivers know together.

    Raises ``InvariantViolation`` when two of them disagree, or steps are missing in between.
    """
    merged: list[int] = []
    for start, determinants in sorted(spans):
        if start + len(determinants) <= first:
            continue
        invariant(start <= first + len(merged), "steps are missing between determinants", start=start, first=first)
        for at, determinant in enumerate(determinants, start - first):
            if at < 0:
                continue
            if at < len(merged):
                invariant(merged[at] == determinant, "determinants of a step differ", step=first + at)
            else:
                merged.append(determinant)
    return tuple(merged)


def unite(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same determinants in as few spans as possible. Spans that disagree stay separate: ``merge`` refuses them."""
    united: list[tuple[int, list[int]]] = []
    for start, determinants in sorted(spans):
        if united:
            first, known = united[-1]
            again = known[start - first : start - first + len(determinants)]
            if start <= first + len(known) and again == list(determinants[: len(again)]):
                known.extend(determinants[len(again) :])
                continue
        united.append((start, list(determinants)))
    return tuple((first, tuple(known)) for first, known in united)
