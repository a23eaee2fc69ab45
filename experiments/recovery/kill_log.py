"""What a job says of one kill, and what its trace shows: from there to the figures of the kill. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.recovery import measure
from experiments.recovery.kill import Struck
from experiments.recovery.measure import Arrival, Trace
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.coordinator.record.recovery_times import ROLLBACK

TIMELINE_S = (2.0, 3.0)
"""Seconds before and after the kill that are kept for a picture."""
PHASES_MS = tuple(f"{phase}_ms" for phase in DURATIONS)
GAPS = ("failed", "others", "before", "handback")
MEASURED = (*PHASES_MS, "registry_ms", "recovery_ms", "caught_up_ms", "waited_for_host_ms", "fallback")
UNKNOWN: dict[str, Any] = dict.fromkeys((*MEASURED, *(f"output_gap_{which}_ms" for which in GAPS)))
"""The figures of a kill of which nothing is known."""


@dataclass(frozen=True)
class KillLog:
    """One kill of a subtask of ``stage``, by ``recovery``. ``raised``: it was an exception.

    ``recoveries``, ``handovers``: what began between it and the next one (``JobHandle.recoveries``). What the job put
    out is looked at from ``ready_s`` to ``end_s``.
    """

    struck: Struck
    raised: bool
    recovery: str
    stage: str
    recoveries: Sequence[dict[str, Any]]
    handovers: Sequence[dict[str, Any]]
    ready_s: float
    end_s: float

    @property
    def killed_s(self) -> float:
        """When it was: of a process, the moment right before the signal, which the job knows."""
        if self.raised or self.struck.host is not None or not self.recoveries:
            return self.struck.time_s
        return float(self.recoveries[0]["begin_s"])

    @property
    def _detected_s(self) -> float:
        first = self.recoveries[0]
        return float(first["begin_s"]) + (first["detect_ms"] or 0.0) / 1e3

    def failed(self, trace: Trace) -> list[str]:
        """The partitions that it hit: of an exception, one where the subtask that raised has the sink."""
        found = [name for name in trace if name.endswith(self.struck.failed)]
        if self.raised:
            found = [name for name in found if self.stage in name.rpartition("[")[0].split("+")]
        return found

    def figures(self, trace: Trace, arrival: Arrival) -> dict[str, Any]:
        """Phases as the job tells them, everything about output from the trace; ``error``, if there is nothing."""
        if not self.recoveries:
            return {"caught_up_ms": None, "error": "the kill led to no recovery"}
        first, killed_s = self.recoveries[0], self.killed_s
        known = {name: first[name] for name in (*PHASES_MS, "registry_ms")}
        known["detect_ms"] = measure.milliseconds(killed_s, self._detected_s)
        inside = measure.between(trace, self.ready_s, self.end_s)
        silent_s = killed_s if self.raised else self._detected_s
        says_s = None if first["recovery_ms"] is None else float(first["begin_s"]) + first["recovery_ms"] / 1e3
        found = measure.figures(inside, self.failed(trace), arrival, killed_s, silent_s, says_s)
        before = [known[name] for name in PHASES_MS[:-1]]
        if found["recovery_ms"] is not None and None not in before:
            known["replay_ms"] = round(max(0.0, found["recovery_ms"] - sum(before)), 3)
        return {
            **known,
            **found,
            "output_gap_handback_ms": measure.handback_gap_ms(inside, self.handovers),
            "waited_for_host_ms": self._waited_for_host_ms(found["recovery_ms"]),
            "fallback": self._fallback(),
            "recoveries": self.recoveries,
            "handovers": self.handovers,
        }

    def _waited_for_host_ms(self, recovery_ms: float | None) -> float | None:
        """How long a rollback waited for the return of the host, which is as long as the experiment has it away."""
        first, revived_s = self.recoveries[0], self.struck.revived_s
        if revived_s is None or recovery_ms is None or first["mode"] != ROLLBACK:
            return None
        fenced_s = None if first["fence_ms"] is None else self._detected_s + first["fence_ms"] / 1e3
        recovered_s = self.killed_s + recovery_ms / 1e3
        return measure.waited_for_host_ms(self._detected_s, fenced_s, revived_s, recovered_s)

    def _fallback(self) -> str | None:
        reasons = [one["fallback"] for one in self.recoveries if one["fallback"]]
        others = [f"recovered by {one['mode']}" for one in self.recoveries if one["mode"] != self.recovery]
        return next(iter(reasons + others), None)

    def timeline(self, trace: Trace, figures: dict[str, Any]) -> dict[str, Any]:
        """The output around the kill, for a picture."""
        return {
            "failed": self.failed(trace),
            "bucket_s": measure.BUCKET_S,
            "kill_at_s": TIMELINE_S[0],
            "phases_ms": {phase: figures[f"{phase}_ms"] for phase in DURATIONS},
            "recovery_ms": figures["recovery_ms"],
            "rows_per_s": measure.buckets(trace, self.killed_s - TIMELINE_S[0], self.killed_s + TIMELINE_S[1]),
        }
