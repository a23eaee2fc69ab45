"""From one failure after the other in one job to times of recovery.

The failures come one after the other, when two checkpoint intervals have passed since the job had caught up with the
failure before: each so far into an interval as the case says (``failures``), counted from when the last checkpoint was
triggered. Where the engine does not say when that was, the interval begins at any moment. Times begin at the failure:
right before the signal is sent, or right before the exception is raised.

- *first output*: until every partition that was hit has put out a row again, in a new incarnation: it may be one that
  had been put out before;
- *recovery*: until every partition that was hit has put out a row that was due later than all that it had put out;
- *caught up*: until, from then on for ``CALM_MS``, no row of any partition was later than ``normal_ms`` says.

Rules: which partitions are hit is the engine's: all of them where the whole job restarts or waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from experiments.baselines.case import Case, Failure, RunFailed
from experiments.baselines.measure import (
    RunningJob,
    latencies,
    percentile_of,
    sleep,
    wait_for,
)
from experiments.baselines.notes import NOTED, Line, read_notes
from experiments.baselines.trees import TreeSampler
from flinkplus.protocol.vocabulary.phases import DURATIONS

PATIENCE_S = 90.0
CALM_MS = 200.0
BEFORE_MS = 3_000.0
LEAST_SLACK_MS = 20.0
SLACK = 1.5
LOOK_S = 0.25
INTERVALS_BETWEEN = 2


class BreakableJob(RunningJob, Protocol):
    """A job that can be made to fail."""

    def strike(self, failure: str, index: int) -> Struck:
        """Do it to what runs partition ``index``, or has it raise. Raises ``RunFailed``."""

    def mend(self) -> None:
        """Start again what the engine does not start again by itself."""

    def checkpoint_ms(self) -> float | None:
        """When the last checkpoint was triggered, in ms since the Unix epoch; ``None``: the engine does not say."""


@dataclass(frozen=True)
class Struck:
    """``time_ms``: since the Unix epoch; ``hit``: partitions; ``what``: in words."""

    time_ms: float
    hit: tuple[int, ...]
    what: str


Notes = Mapping[int, Sequence[Line]]


def newest_due_ms(line: Line) -> float | None:
    """When the row of this line that was due last was due (the time that notes are late against)."""
    return line.time_ms - min(late for late, _ in line.late) if line.late else None


def first_output_ms(notes: Notes, struck: Struck) -> float | None:
    """From the failure to the first row of a new incarnation, of the last partition that was hit."""
    return _last_of(notes, struck, lambda lines: _reborn(lines, struck.time_ms))


def recovery_ms(notes: Notes, struck: Struck) -> float | None:
    """From the failure to the first new row of a new incarnation, of the last partition that was hit."""

    def new(lines: Sequence[Line]) -> list[Line]:
        before = [due for line in lines if line.time_ms <= struck.time_ms and (due := newest_due_ms(line)) is not None]
        best = max(before, default=float("-inf"))
        again = _reborn(lines, struck.time_ms)
        return [line for line in again if (due := newest_due_ms(line)) is not None and due > best]

    return _last_of(notes, struck, new)


def _reborn(lines: Sequence[Line], since_ms: float) -> list[Line]:
    return [line for line in lines if line.born_ms > since_ms]


def _last_of(notes: Notes, struck: Struck, chosen: Callable[[Sequence[Line]], Sequence[Line]]) -> float | None:
    times = [next((line.time_ms for line in chosen(notes.get(index, ()))), None) for index in struck.hit]
    known = [time_ms for time_ms in times if time_ms is not None]
    return round(max(known) - struck.time_ms, 3) if known and len(known) == len(times) else None


def normal_ms(notes: Notes, struck: Struck) -> float | None:
    """How late rows may be when the job has caught up: one and a half times the 99th percentile of the seconds before,
    and not less than it and ``LEAST_SLACK_MS``."""
    usual = percentile_of(latencies(notes, struck.time_ms - BEFORE_MS, struck.time_ms), 99)
    return None if usual is None else max(SLACK * usual, usual + LEAST_SLACK_MS)


def caught_up_ms(notes: Notes, struck: Struck, recovered_ms: float | None) -> float | None:
    """From the failure to the moment when it was over for all partitions; ``None``: not seen yet."""
    normal = normal_ms(notes, struck)
    if normal is None or recovered_ms is None:
        return None
    since_ms = struck.time_ms + recovered_ms
    lines = sorted(
        (line.time_ms, max(late for late, _ in line.late))
        for all_lines in notes.values()
        for line in all_lines
        if line.time_ms >= since_ms and line.late
    )
    calm_since: float | None = None
    for time_ms, late in lines:
        if late > normal:
            calm_since = None
        elif calm_since is None:
            calm_since = time_ms
        elif time_ms - calm_since >= CALM_MS:
            return round(calm_since - struck.time_ms, 3)
    return None


def wait_s(offset_s: float, interval_s: float, checkpoint_ms: float | None, now_ms: float) -> float:
    """Seconds until an interval is ``offset_s`` old again: checkpoints begin every ``interval_s`` from
    ``checkpoint_ms`` on, or, if that is not known, from now on."""
    age_s = 0.0 if checkpoint_ms is None else (now_ms - checkpoint_ms) / 1e3
    return (offset_s - age_s) % interval_s


def phases_of(recovery: Mapping[str, Any], struck_ms: float) -> dict[str, Any]:
    """What an engine of ours reports of a recovery (``JobHandle.recoveries``), with ``detect_ms`` since the failure."""
    detected_ms = None if recovery["begin_s"] is None else recovery["begin_s"] * 1e3 + (recovery["detect_ms"] or 0.0)
    names = ("mode", *(f"{phase}_ms" for phase in DURATIONS), "registry_ms", "recovery_ms", "caught_up_ms", "fallback")
    detect_ms = None if detected_ms is None else round(detected_ms - struck_ms, 3)
    return {**{name: recovery[name] for name in names}, "detect_ms": detect_ms}


def run_recoveries(
    running: BreakableJob, case: Case, stop: threading.Event, reported: Callable[[], list[dict[str, Any]]] = list
) -> list[dict[str, Any]]:
    """The figures of each failure of the case, in one job. Raises ``RunFailed``.

    ``reported``: what the engine itself says of each recovery so far, in the form of ``JobHandle.recoveries``.
    """
    wait_for(running, case, stop)
    sleep(running, case.settle, stop)
    found = []
    for failure in case.failures:
        sleep(running, INTERVALS_BETWEEN * case.interval + BEFORE_MS / 1e3, stop)
        offset_s, earlier = failure.share * case.interval, len(reported())
        sleep(running, wait_s(offset_s, case.interval, running.checkpoint_ms(), time.time() * 1e3), stop)
        checkpoint_ms = running.checkpoint_ms()
        struck, figures = _one(running, case, failure, stop)
        age_s = None if checkpoint_ms is None else round((struck.time_ms - checkpoint_ms) / 1e3, 4)
        phases = [phases_of(recovery, struck.time_ms) for recovery in reported()[earlier:]]
        known = {"failure": failure.kind, "offset_s": round(offset_s, 4), "since_checkpoint_s": age_s}
        found.append({**known, **figures, "recoveries": phases})
        running.mend()
    return found


def _one(running: BreakableJob, case: Case, failure: Failure, stop: threading.Event) -> tuple[Struck, dict[str, Any]]:
    with TreeSampler(running.roots) as sampler:
        origin_ms = running.origin_ms()
        struck = running.strike(failure.kind, failure.index)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            sleep(running, LOOK_S, stop)
            notes = read_notes(running.notes, NOTED, origin_ms)
            recovered = recovery_ms(notes, struck)
            over = caught_up_ms(notes, struck, recovered)
            if over is not None or time.monotonic() > deadline_s:
                break
    if recovered is None:
        raise RunFailed(f"no recovery from {struck.what} within {PATIENCE_S:g} s")
    return struck, {
        "struck": struck.what,
        "hit": len(struck.hit),
        "first_output_ms": first_output_ms(notes, struck),
        "recovery_ms": recovered,
        "caught_up_ms": over,
        "cores": round(sampler.cpu_s / sampler.span_s, 3),
        "rss_mb": round(sampler.rss_mb, 1),
    }
