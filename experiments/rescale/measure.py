"""From what each partition put out, and when, to the figures of one change of parallelism. Pure.

Subtask *i* of *n* owns a range of key groups, so the groups that two partitions have in common, one of before and one
of afterwards, change from the first to the second. The *output of a key group* are the times at which the partition
that owned it put out something new: the owner of before up to the switch, the one of afterwards behind it. Groups of
the same two owners have the same output.

- gap: the longest time between two outputs of a key group, of which one or both lie between 0.5 s before the request
  and 0.5 s after the job has caught up; the longest of any key group. It has all that the change costs: the start of
  processes, the switch, and the work of catching up;
- gap of the switch: from the last output of the owner of before to the first new one of the owner of afterwards; the
  longest of any key group;
- gap without: the longest time between two outputs of a partition in a span of the same length right before. It is
  shorter where the job had not run evenly for so long;
- caught up: as in the recovery experiments, with the request in the place of the kill.

New is a row that was never put out before (``records``); what is repeated after the switch is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.recovery.measure import AROUND_S, Arrival, Trace, caught_up_at, gap_ms, milliseconds
from experiments.rescale.records import Outputs, Partition
from flinkplus.protocol.vocabulary.key_groups import owner_of

MEASURED = ("output_ms", "caught_up_ms", "gap_ms", "switch_gap_ms", "without_gap_ms", "without_s")


@dataclass(frozen=True)
class Step:
    """One change. ``ready_s``: since when the job had run evenly; ``until_s``: up to when its output is looked at."""

    before: int
    after: int
    ready_s: float
    requested_s: float
    until_s: float


def owners_of_groups(before: int, after: int, max_parallelism: int) -> list[tuple[Partition, Partition]]:
    """The partitions that own a key group before and afterwards: each two once."""
    groups = range(max_parallelism)
    both = {(owner_of(group, before, max_parallelism), owner_of(group, after, max_parallelism)) for group in groups}
    return [(Partition(before, old), Partition(after, new)) for old, new in sorted(both)]


def totals(samples: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """``(time_s, rows so far)``, as in a trace, of ``(time_s, new rows)``."""
    found, total = [], 0
    for time_s, rows in sorted(samples):
        total += rows
        found.append((time_s, total))
    return found


def of_groups(outputs: Outputs, step: Step, max_parallelism: int) -> Trace:
    """The output of the key groups, by their two owners."""
    return {
        f"{old.subtask} to {new.subtask}": totals([*outputs.get(old, ()), *outputs.get(new, ())])
        for old, new in owners_of_groups(step.before, step.after, max_parallelism)
    }


def first_outputs(outputs: Outputs, parallelism: int, since_s: float) -> list[float | None]:
    """When each partition first put out something new after ``since_s``; ``None``: never."""
    partitions = [Partition(parallelism, index) for index in range(parallelism)]
    return [next((at for at, _ in outputs.get(one, ()) if at > since_s), None) for one in partitions]


def last_of(moments: Sequence[float | None]) -> float | None:
    """The last of some moments; ``None`` when one of them is not known."""
    known = [moment for moment in moments if moment is not None]
    return max(known) if known and len(known) == len(moments) else None


def switch_gap_ms(outputs: Outputs, step: Step, max_parallelism: int) -> float | None:
    """The gap of the switch; ``None`` when a partition of afterwards put out nothing."""
    gaps = []
    firsts = first_outputs(outputs, step.after, step.requested_s)
    for old, new in owners_of_groups(step.before, step.after, max_parallelism):
        first_s, samples = firsts[new.subtask], outputs.get(old, ())
        if first_s is None or not samples:
            return None
        gaps.append(milliseconds(samples[-1][0], first_s))
    return max(gap for gap in gaps if gap is not None)


def within(outputs: Outputs, begin_s: float, end_s: float) -> Outputs:
    """What was put out in this span of time."""
    return {partition: [one for one in samples if begin_s <= one[0] < end_s] for partition, samples in outputs.items()}


def figures(outputs: Outputs, step: Step, arrival: Arrival, max_parallelism: int) -> dict[str, Any]:
    """``MEASURED``. ``output_ms``: from the request until all partitions of afterwards had put out something new."""
    outputs = within(outputs, step.ready_s, step.until_s)
    requested_s, begin_s = step.requested_s, step.requested_s - AROUND_S
    output_s = last_of(first_outputs(outputs, step.after, requested_s))
    all_rows = {"all": totals(one for samples in outputs.values() for one in samples)}
    caught_up_s = None if output_s is None else caught_up_at(all_rows, arrival, requested_s, output_s)
    end_s = step.until_s if caught_up_s is None else caught_up_s + AROUND_S
    earlier = {str(one): totals(samples) for one, samples in within(outputs, 0.0, begin_s).items()}
    without_begin_s = max(step.ready_s, 2 * begin_s - end_s)
    groups = of_groups(outputs, step, max_parallelism)
    return {
        "output_ms": milliseconds(requested_s, output_s),
        "caught_up_ms": milliseconds(requested_s, caught_up_s),
        "gap_ms": gap_ms(groups, groups, begin_s, end_s),
        "switch_gap_ms": switch_gap_ms(outputs, step, max_parallelism),
        "without_gap_ms": gap_ms(earlier, earlier, without_begin_s, begin_s),
        "without_s": round(begin_s - without_begin_s, 3),
    }
