"""From what each partition put out, and when, to the times of one recovery (design, section 13).

A trace is ``{subtask: [(time_s, rows so far), ...]}`` by time; a partition is the output of one subtask with a sink. An
output is *new* when it lies beyond the most rows the subtask ever had; what a replay puts out again is not.

- recovery: from the kill to the first new output of every failed partition, the last of them counting;
- output gap: the longest time between two new outputs of a partition, from 0.5 s before the kill to 0.5 s after the job
  has caught up; the longest of the failed partitions, and the longest of the untouched ones;
- hand-back: the longest output gap of any partition, from the begin of a planned move until 0.5 s after it;
- caught up: rows arrive at a known rate, so what is missing is known at every moment; the job has caught up when the
  backlog is back within the 99th percentile of the (up to) 10 s before the kill. All partitions together: in local
  failover the only ones that lag are the failed ones.

Kills follow one another in one job: each is measured in the span of time between the moment when the job was as before
the first kill and the next kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Trace: TypeAlias = Mapping[str, Sequence[tuple[float, int]]]

AROUND_S = 0.5
BEFORE_S = 10.0
SETTLED_S = 0.5
"""After its first output a job needs a moment to run evenly; that is no measure of what is normal."""
BUCKET_S = 0.05


@dataclass(frozen=True)
class Arrival:
    """``rate`` rows a second arrive, ``total`` in all."""

    rate: float
    total: int


def new_outputs(samples: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """``(time_s, new rows)`` of every output that went beyond the most rows there were."""
    best, found = 0, []
    for time_s, rows in samples:
        if rows > best:
            found.append((time_s, rows - best))
            best = rows
    return found


def between(trace: Trace, begin_s: float, end_s: float) -> dict[str, list[tuple[float, int]]]:
    """The new outputs in this span of time, as a trace."""
    found: dict[str, list[tuple[float, int]]] = {}
    for subtask, samples in trace.items():
        best, kept = 0, []
        for time_s, rows in samples:
            if rows > best and begin_s <= time_s < end_s:
                kept.append((time_s, rows))
            best = max(best, rows)
        found[subtask] = kept
    return found


def first_new_output(samples: Sequence[tuple[float, int]], since_s: float) -> float | None:
    """When the subtask first put out a new row after ``since_s``; ``None`` when it never did."""
    return next((time_s for time_s, _ in new_outputs(samples) if time_s > since_s), None)


def recovered_at(trace: Trace, failed: Iterable[str], since_s: float) -> float | None:
    """When all of ``failed`` had put out new rows; ``None`` when one of them never did."""
    times = [first_new_output(trace.get(subtask, ()), since_s) for subtask in failed]
    known = [time_s for time_s in times if time_s is not None]
    return max(known) if known and len(known) == len(times) else None


def longest_gap_s(samples: Sequence[tuple[float, int]], begin_s: float, end_s: float) -> float | None:
    """The longest time between two new outputs of which one or both lie within ``begin_s`` and ``end_s``."""
    times = np.array([time_s for time_s, _ in new_outputs(samples)])
    first = max(0, int(np.searchsorted(times, begin_s)) - 1)
    last = int(np.searchsorted(times, end_s, side="right"))
    inside = times[first : last + 1]
    return float(np.diff(inside).max()) if len(inside) > 1 else None


def gap_ms(trace: Trace, subtasks: Iterable[str], begin_s: float, end_s: float) -> float | None:
    """The longest of these subtasks' gaps."""
    gaps = [longest_gap_s(trace.get(subtask, ()), begin_s, end_s) for subtask in subtasks]
    return milliseconds(0.0, max((gap for gap in gaps if gap is not None), default=None))


def caught_up_at(trace: Trace, arrival: Arrival, killed_s: float, since_s: float) -> float | None:
    """When the backlog was back to what is normal, not before ``since_s``; ``None`` when the trace does not tell."""
    events = sorted(event for samples in trace.values() for event in new_outputs(samples))
    if not events:
        return None
    times = np.array([time_s for time_s, _ in events])
    done = np.cumsum([rows for _, rows in events])
    behind = arrival.rate * (times - times[0]) - done
    before = behind[(times > max(killed_s - BEFORE_S, times[0] + SETTLED_S)) & (times < killed_s)]
    if len(before) < 2:
        return None
    even = float(np.median(before))
    arrived = np.minimum(arrival.rate * (times - times[0]) - even, arrival.total)
    normal = float(np.percentile(before, 99)) - even
    back = np.flatnonzero((times >= since_s) & (arrived - done <= normal))
    return float(times[back[0]]) if len(back) else None


def buckets(trace: Trace, begin_s: float, end_s: float, bucket_s: float = BUCKET_S) -> dict[str, list[float]]:
    """New rows per second of each partition, in equal spans of time."""
    edges = begin_s + bucket_s * np.arange(round((end_s - begin_s) / bucket_s) + 1)
    rates = {}
    for subtask, samples in trace.items():
        outputs = new_outputs(samples)
        rows, _ = np.histogram([time_s for time_s, _ in outputs], edges, weights=[rows for _, rows in outputs])
        rates[subtask] = [round(float(value) / bucket_s, 1) for value in rows]
    return rates


def handback_gap_ms(trace: Trace, moves: Iterable[Mapping[str, Any]]) -> float | None:
    """The longest output gap of any partition around these planned moves (``JobHandle.handovers``)."""
    gaps = [gap_ms(trace, trace, move["begin_s"], _end_s(move) + AROUND_S) for move in moves]
    return max((gap for gap in gaps if gap is not None), default=None)


def _end_s(move: Mapping[str, Any]) -> float:
    took_ms = (move[name] for name in ("caught_up_ms", "recovery_ms"))
    return float(move["begin_s"]) + next((ms for ms in took_ms if ms is not None), 0.0) / 1e3


def waited_for_host_ms(detected_s: float, fenced_s: float | None, revived_s: float, recovered_s: float) -> float:
    """How long a recovery that takes the host waited, ready to go on, for its return at ``revived_s``.

    From the end of the fence (``None``: not known) on, or from detection, if it only ended afterwards.
    """
    begin_s = fenced_s if fenced_s is not None and fenced_s < revived_s else detected_s
    return round(max(0.0, revived_s - begin_s) * 1e3, 3) if recovered_s > revived_s else 0.0


def at_kill(checkpoints: Iterable[Mapping[str, Any]], killed_s: float) -> dict[str, Any]:
    """``since_trigger_s``, from the last trigger of a checkpoint to the kill (``None``: there was none before), and
    ``during_checkpoint``, whether one was under way. ``checkpoints``: of the job (``JobHandle.checkpoints``)."""
    before = [one for one in checkpoints if one["triggered_s"] <= killed_s]
    if not before:
        return {"since_trigger_s": None, "during_checkpoint": None}
    under_way = any(
        one["duration_ms"] is None or one["triggered_s"] + one["duration_ms"] / 1e3 > killed_s for one in before
    )
    last_s = max(one["triggered_s"] for one in before)
    return {"since_trigger_s": round(killed_s - last_s, 4), "during_checkpoint": under_way}


def milliseconds(begin_s: float, end_s: float | None) -> float | None:
    return None if end_s is None else round(max(0.0, end_s - begin_s) * 1e3, 3)


def figures(
    trace: Trace,
    failed: Iterable[str],
    arrival: Arrival,
    killed_s: float,
    silent_s: float,
    recovered_s: float | None = None,
) -> dict[str, Any]:
    """``recovery_ms``, ``caught_up_ms`` and the output gaps of one kill; what the trace does not tell is ``None``.

    ``silent_s``: from here on nothing of the failed incarnation can be put out any more. ``recovered_s``: when the job
    says that it had recovered, which counts where no partition has failed.
    """
    failed = sorted(failed)
    if failed:
        recovered_s = recovered_at(trace, failed, silent_s)
    caught_up_s = None if recovered_s is None else caught_up_at(trace, arrival, killed_s, recovered_s)
    end_s = max((samples[-1][0] for samples in trace.values() if samples), default=killed_s)
    until_s = end_s if caught_up_s is None else caught_up_s + AROUND_S
    begin_s = killed_s - AROUND_S
    others = sorted(set(trace) - set(failed))
    settled_s = min((samples[0][0] for samples in trace.values() if samples), default=killed_s) + SETTLED_S
    return {
        "recovery_ms": milliseconds(killed_s, recovered_s),
        "caught_up_ms": milliseconds(killed_s, caught_up_s),
        "output_gap_failed_ms": gap_ms(trace, failed, begin_s, until_s),
        "output_gap_others_ms": gap_ms(trace, others, begin_s, until_s),
        "output_gap_before_ms": gap_ms(trace, trace, max(settled_s, 2 * begin_s - until_s), begin_s),
    }
