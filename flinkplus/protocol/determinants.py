"""Determinants: the logged choices that began the steps of a subtask, and what its receivers know of them.

Sharing depth 1: every message carries those of its sender's determinants that its receiver has not been sent before. So
whoever has seen an effect of a step knows how that step, and every one before it, came about; a promoted standby asks
them all, repeats exactly those steps, and then chooses freely, for nobody has seen anything beyond.

A determinant is one number: a kind (``Choice``) in the lowest three bits, and its value above. Steps of a subtask
are numbered from 0, over all its generations of one deployment; a snapshot holds the number of the next one.

Rules and invariants:

- what is known of a subtask is one run without gaps, from a step that no usable version is behind, to the newest one
  heard of; two receivers never know different determinants of the same step (``merge`` checks it);
- a barrier carries everything up to the step that sent it: so all channels are told alike at each snapshot, and the
  sender's own log begins anew there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.ids import CheckpointId, SubtaskId, invariant

_HEAD = struct.Struct("<QI")
_BITS = 3
_MASK = (1 << _BITS) - 1
MAX_VALUE = (1 << 32 - _BITS) - 1

Run = tuple[int, tuple[int, ...]]
"""The first step of a run, and the determinants of that step and the following ones."""


class Choice(IntEnum):
    """What a step was begun by; in brackets: the value that goes with it."""

    READ = 0
    """A source read from its split (rows asked for)."""
    TRIGGER = 1
    """A source was told to begin a checkpoint (its number)."""
    END = 2
    """A source was told to read no more (0)."""
    INPUT = 3
    """A message was taken from an input channel (position among the subtask's sorted channels)."""
    ABORT = 4
    """A checkpoint was given up while the subtask might have been aligning it (its number)."""


def pack(choice: Choice, value: int) -> int:
    """One determinant as a number below 2**32."""
    invariant(0 <= value <= MAX_VALUE, "a determinant's value is out of range", choice=choice.name, value=value)
    return value << _BITS | choice


def unpack(determinant: int) -> tuple[Choice, int]:
    """The inverse of ``pack``. Raises ``PeerProtocolError`` for an unknown kind."""
    try:
        return Choice(determinant & _MASK), determinant >> _BITS
    except ValueError:
        raise PeerProtocolError(f"{determinant} is no determinant") from None


def encode_run(first: int, determinants: Sequence[int]) -> bytes:
    """A run as bytes, to go with a message."""
    return _HEAD.pack(first, len(determinants)) + struct.pack(f"<{len(determinants)}I", *determinants)


def decode_run(data: bytes) -> Run:
    """The inverse of ``encode_run``. Raises ``PeerProtocolError`` for anything else."""
    try:
        first, count = _HEAD.unpack_from(data)
        if len(data) != _HEAD.size + 4 * count:
            raise PeerProtocolError(f"{count} determinants announced in {len(data)} bytes")
        return first, struct.unpack_from(f"<{count}I", data, _HEAD.size)
    except struct.error as error:
        raise PeerProtocolError(f"malformed determinants: {error}") from error


class StepLog:
    """A subtask's own determinants since its last barrier. ``first``: number of the first step to come."""

    __slots__ = ("_determinants", "_first")

    def __init__(self, first: int = 0) -> None:
        self._first = first
        self._determinants: list[int] = []

    @property
    def next_step(self) -> int:
        """The number of the next step."""
        return self._first + len(self._determinants)

    def begin(self, choice: Choice, value: int) -> None:
        """A step begins."""
        self._determinants.append(pack(choice, value))

    def since(self, step: int) -> bytes:
        """The run from ``step`` on, encoded; empty when there is nothing."""
        invariant(step >= self._first, "determinants are asked for that were let go", step=step, first=self._first)
        if step == self.next_step:
            return b""
        return encode_run(step, self._determinants[step - self._first :])

    def clear(self) -> None:
        """All receivers have been told everything."""
        self._first = self.next_step
        self._determinants.clear()


class KnownSteps:
    """What one receiver knows of its producers' determinants."""

    def __init__(self) -> None:
        self._runs: dict[SubtaskId, tuple[int, list[int]]] = {}
        self._at_barrier: dict[CheckpointId, dict[SubtaskId, int]] = {}

    def learn(self, producer: SubtaskId, data: bytes) -> None:
        """A message of ``producer`` came with these. Raises ``PeerProtocolError`` when steps are missing between."""
        first, determinants = decode_run(data)
        run = self._runs.get(producer)
        if run is None:
            self._runs[producer] = (first, list(determinants))
            return
        known = run[0] + len(run[1])
        if first > known:
            raise PeerProtocolError(f"{producer}: determinants begin at step {first}, known are those before {known}")
        run[1].extend(determinants[known - first :])

    def barrier(self, checkpoint: CheckpointId, producer: SubtaskId) -> None:
        """The barrier of ``checkpoint`` came from ``producer``: its snapshot is behind every step known now."""
        run = self._runs.get(producer)
        if run is not None:
            self._at_barrier.setdefault(checkpoint, {})[producer] = run[0] + len(run[1])

    def complete(self, checkpoint: CheckpointId) -> None:
        """``checkpoint`` is complete: nobody goes back before it."""
        for producer, step in self._at_barrier.get(checkpoint, {}).items():
            first, determinants = self._runs[producer]
            if step > first:
                self._runs[producer] = (step, determinants[step - first :])
        self._at_barrier = {number: steps for number, steps in self._at_barrier.items() if number > checkpoint}

    def of(self, producer: SubtaskId) -> Run | None:
        """What is known of ``producer``; None when that is nothing."""
        run = self._runs.get(producer)
        return None if run is None or not run[1] else (run[0], tuple(run[1]))


def merge(first: int, runs: Iterable[Run]) -> tuple[int, ...]:
    """The determinants from step ``first`` on that several receivers know together.

    Raises ``InvariantViolation`` when two of them disagree, or when steps are missing in between.
    """
    merged: list[int] = []
    for start, determinants in sorted(runs):
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
