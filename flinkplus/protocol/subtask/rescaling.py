"""Snapshots for another parallelism or another program: the part that is not keyed state.

Rules:
- channels restart: their cursors are 0, or behind the messages that were in flight. No message of before has an ID
  of after, since generations rise;
- a subtask that had ended ends again: its input is empty, so it emits nothing more. So it does not matter which of the
  subtasks before had ended;
- event time does not go back: on each edge all producers have promised the least of what those of before had, except
  for those that had ended (``rescaled_part``). Snapshots are aligned, so what was promised has arrived;
- totals stay: the new subtask *i* of *n* takes those of all *j* with ``j % n == i``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState
from flinkplus.protocol.vocabulary.ids import ChannelId

MAXIMUM = "max_"
"""The beginning of the names of counters of which the largest counts, not the sum."""


def rescaled(
    before: Sequence[OperatorState],
    index: int,
    parallelism: int,
    inputs: Mapping[int, int | None],
    outputs: Sequence[int],
    in_flight: Mapping[ChannelId, int],
) -> OperatorState:
    """The protocol's part for subtask ``index`` of ``parallelism``, from those of all subtasks ``before``.

    ``inputs``, ``outputs``: the edges of its vertex; for inputs with the event time that their producers have promised.
    ``in_flight``: how many messages each new channel has in flight; they are numbered from 0.
    """
    others = range(parallelism)
    arriving = [ChannelId(edge, other, index) for edge in inputs for other in others]
    leaving = [ChannelId(edge, index, other) for edge in outputs for other in others]
    return OperatorState(
        inputs={str(channel): in_flight.get(channel, 0) for channel in arriving},
        outputs={str(channel): in_flight.get(channel, 0) for channel in leaving},
        steps=max(state.steps for state in before),
        clock_ms=max(state.clock_ms for state in before),
        watermarks={str(c): known for c in arriving if (known := inputs[c.edge]) is not None},
        drained=any(state.drained for state in before),
    )


def least(watermarks: Sequence[int | None]) -> int | None:
    """The least of some watermarks; ``None`` when one of them is not known."""
    known = [watermark for watermark in watermarks if watermark is not None]
    return min(known) if known and len(known) == len(watermarks) else None


def rescaled_part(before: Sequence[OperatorPart], ended: Sequence[bool], index: int, parallelism: int) -> OperatorPart:
    """The counters and the watermark of one operator. ``ended``: which of the subtasks before had ended."""
    own: dict[str, int] = {}
    mine = before[index::parallelism]
    for part in mine:
        for name, count in part.own.items():
            known = own.get(name, 0)
            own[name] = max(known, count) if name.startswith(MAXIMUM) else known + count
    reading = [part.watermark_ms for part, over in zip(before, ended, strict=True) if not over]
    known_of_all = [part.watermark_ms for part in before if part.watermark_ms is not None]
    return OperatorPart(
        rows_in=sum(part.rows_in for part in mine),
        rows_out=sum(part.rows_out for part in mine),
        own=own,
        watermark_ms=least(reading) if reading else max(known_of_all, default=None),
    )


def with_state(part: OperatorPart, state: object, position: object) -> OperatorPart:
    """``part`` with an operator's state, or a source's position."""
    return replace(part, state=state, position=position)
