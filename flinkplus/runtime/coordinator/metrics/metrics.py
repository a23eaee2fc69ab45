"""Metrics of a running job: rows, rates, state, checkpoints, as slots report them.

Rules: the coordinator's thread writes, any thread reads; values are replaced, never changed in place. Row counts are
part of the subtasks' state: a rollback takes them back, and the final ones are exact.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dedup.filter import FilterCounts
from flinkplus.graph import JobGraph
from flinkplus.operators.event_time.event_time import MAX_LATE_MS
from flinkplus.protocol.snapshot.handle import OperatorPart, SnapshotHandle
from flinkplus.protocol.vocabulary.effects import CheckpointOutcome, CheckpointStats
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.control.messages import Heartbeat
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.coordinator.metrics.late_rows import LateRowWarnings

KEPT_CHECKPOINTS = 1000
MAXIMA = frozenset({MAX_LATE_MS})
UNALIGNED = "unaligned"
PENDING = "pending"
ORIGINS = ("received", "from_storage", "kept")
"""Where the state files of standbys came from; see ``control.Heartbeat``."""
UNREPORTED: dict[str, Any] = {"busy_s": 0.0, "rows_out": 0, "reads": 0, "operators": {}}
"""Counters of a subtask that ended before its first heartbeat; a final checkpoint adds the rest."""
PHASES = ("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "chain_ms")


@dataclass
class CheckpointFigures:
    """Metrics of one checkpoint; times in milliseconds, sizes in bytes.

    Since the trigger: ``trigger_ms`` until the last source has begun its snapshot, ``durable_ms`` until the last
    snapshot is durable, ``chain_ms`` until all standbys have it, ``duration_ms`` until it is complete.
    Maxima over the subtasks: ``alignment_ms``, ``sync_ms``, ``async_ms``.
    ``mode``: ``unaligned`` if any subtask's snapshot was unaligned.
    ``in_flight_bytes``: stored size of its channel state; ``as_dict`` adds it to ``bytes_new`` and ``bytes_total``.
    ``cause``: why it was aborted.
    """

    checkpoint: int
    triggered_s: float
    mode: str
    status: str = PENDING
    final: bool = False
    reason: str = ""
    cause: str = ""
    duration_ms: float | None = None
    trigger_ms: float | None = None
    durable_ms: float | None = None
    chain_ms: float | None = None
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    bytes_new: int = 0
    bytes_total: int = 0
    keys: int = 0
    in_flight_bytes: int = 0
    parts: dict[str, dict[str, OperatorPart]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int, int, int]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.checkpoint,
            "status": self.status,
            "final": self.final,
            "mode": self.mode,
            "reason": self.reason,
            "cause": self.cause,
            "triggered_s": round(self.triggered_s, 3),
            "duration_ms": self.duration_ms,
            **{phase: None if (ms := getattr(self, phase)) is None else round(ms, 3) for phase in PHASES},
            "bytes_new": self.bytes_new + self.in_flight_bytes,
            "bytes_total": self.bytes_total + self.in_flight_bytes,
            "keys": self.keys,
            "in_flight_bytes": self.in_flight_bytes,
        }


class Figures:
    """The metrics of one job."""

    def __init__(self, graph: JobGraph, checkpoint_mode: str = "aligned") -> None:
        self._mode = "aligned" if checkpoint_mode == UNALIGNED else checkpoint_mode  # until a snapshot shows more
        self._order = [node.name for node in graph.nodes]
        self._sources = frozenset(vertex.name for vertex in graph.vertices if vertex.is_source)
        self._subtasks: dict[str, dict[str, Any]] = {}
        self._checkpoints: dict[int, CheckpointFigures] = {}
        self.last_complete: int | None = None
        self.completed = self.aborted = self.over_budget = 0
        self._final = False
        self._late_rows = LateRowWarnings(graph)
        self._dropped: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._copied: dict[tuple[int, int], dict[str, int]] = {}
        self.id_conflicts = 0  # of the filter of message IDs and a cursor
        self.malformed_reports = 0
        self.fenced_reports = 0  # dropped reports of evicted slots, or of subtasks of older generations

    def update_process(self, process: tuple[int, int], heartbeat: Heartbeat) -> None:
        """Note what a process (slot, incarnation) has dropped, and copied to its standbys, since it started."""
        counts, copied = (heartbeat.refused, heartbeat.malformed, heartbeat.fenced), heartbeat.copied
        if any(counts) and self._dropped.get(process) != counts:
            self._dropped = {**self._dropped, process: counts}
        if any(copied.values()) and self._copied.get(process) != copied:
            self._copied = {**self._copied, process: copied}

    @property
    def copied_bytes(self) -> dict[str, int]:
        """Bytes of state files that the standbys of all processes have received or kept, by origin."""
        return {name: sum(copied.get(name, 0) for copied in self._copied.values()) for name in ORIGINS}

    @property
    def dropped(self) -> tuple[int, int, int]:
        """Refused connections, malformed frames and fenced messages of all slots; see ``control.Heartbeat``."""
        counts = list(self._dropped.values())
        return sum(one[0] for one in counts), sum(one[1] for one in counts), sum(one[2] for one in counts)

    def update(self, subtasks: dict[str, dict[str, Any]]) -> None:
        """Take the counters of a heartbeat; ignored after the final checkpoint, whose counters are exact."""
        if self._final:
            return
        self._subtasks = {**self._subtasks, **subtasks}
        self._late_rows.check(self.operators)

    def keep(self, subtasks: Collection[str]) -> None:
        """Forget the counters of all other subtasks: the job continues without them."""
        self._subtasks = {name: counters for name, counters in self._subtasks.items() if name in subtasks}

    def triggered(self, checkpoint: int) -> None:
        """A checkpoint was triggered, perhaps not for the first time."""
        if checkpoint in self._checkpoints:
            return
        figures = CheckpointFigures(checkpoint, time.time(), self._mode)
        self._checkpoints = dict([*self._checkpoints.items(), (checkpoint, figures)][-KEPT_CHECKPOINTS:])

    def triggered_s(self, checkpoint: int) -> float | None:
        """When a checkpoint was triggered (Unix epoch); ``None`` if that is not known."""
        figures = self._checkpoints.get(checkpoint)
        return None if figures is None else figures.triggered_s

    def snapshot(self, checkpoint: int, subtask: str, handle: SnapshotHandle) -> None:
        """Add one subtask's snapshot to the metrics of its checkpoint."""
        figures = self._checkpoints.get(checkpoint)
        if figures is None or figures.status != PENDING:  # a promoted subtask reports old checkpoints again
            return
        if parse_subtask(subtask).vertex in self._sources:
            begun_ms = (handle.begun_s - figures.triggered_s) * 1e3
            figures.trigger_ms = max(figures.trigger_ms or 0.0, begun_ms)
        figures.durable_ms = (time.time() - figures.triggered_s) * 1e3
        figures.alignment_ms = max(figures.alignment_ms, handle.alignment_ms)
        figures.sync_ms = max(figures.sync_ms, handle.sync_ms)
        figures.async_ms = max(figures.async_ms, handle.async_ms)
        held = handle.operator_state.in_flight_bytes
        figures.sizes[subtask] = (handle.keys, handle.bytes_total, handle.bytes_new, held)
        figures.keys, figures.bytes_total, figures.bytes_new, figures.in_flight_bytes = map(
            sum, zip(*figures.sizes.values(), strict=True)
        )
        if handle.overtaken:
            figures.mode = UNALIGNED
        figures.parts[subtask] = handle.operator_state.operators

    def replicated(self, checkpoint: int) -> None:
        figures = self._checkpoints.get(checkpoint)
        if figures is not None and figures.chain_ms is None:
            figures.chain_ms = (time.time() - figures.triggered_s) * 1e3

    def checkpoint(self, stats: CheckpointStats) -> None:
        """A checkpoint is complete or aborted."""
        figures = self._checkpoints.get(stats.checkpoint)
        if figures is None:
            return
        figures.status = stats.outcome.value
        figures.reason = stats.reason
        figures.final = stats.final
        figures.duration_ms = float(stats.ended_ms - stats.triggered_ms)
        if stats.cause is not None:
            figures.cause = stats.cause.value
            self.aborted += 1
            self.over_budget += stats.cause is AbortCause.OVER_BUDGET
        if stats.outcome is CheckpointOutcome.COMPLETE:
            self.last_complete = stats.checkpoint
            self.completed += 1
            if stats.final:
                self._adopt_cut(figures)
        figures.parts, figures.sizes = {}, {}

    def _adopt_cut(self, figures: CheckpointFigures) -> None:
        """Take the counters of the final checkpoint; heartbeats may lag behind them."""
        self._final = True
        merged = dict(self._subtasks)
        for subtask, operators in figures.parts.items():
            known = merged.get(subtask, UNREPORTED)
            counters = {
                name: {
                    **known["operators"].get(name, {}),
                    **part.own,
                    "rows_in": part.rows_in,
                    "rows_out": part.rows_out,
                }
                for name, part in operators.items()
            }
            keys, size, *_ = figures.sizes[subtask]
            merged[subtask] = {**known, "operators": counters, "keys": keys, "bytes": size}
        self._subtasks = merged
        self._late_rows.check(self.operators)

    def adopt(self, checkpoint: int, handles: dict[str, SnapshotHandle]) -> None:
        """Take the metrics of a finished job from the snapshots (subtask -> handle) of its final ``checkpoint``."""
        self.last_complete = checkpoint
        final = CheckpointFigures(checkpoint, time.time(), self._mode)
        for subtask, handle in handles.items():
            final.parts[subtask] = handle.operator_state.operators
            final.sizes[subtask] = (handle.keys, handle.bytes_total, 0, 0)
        self._adopt_cut(final)

    def operators(self) -> dict[str, dict[str, int]]:
        """Operator -> rows in and out, its own counters, and the gauges of a source while it reads (``lag_rows``),
        summed over its subtasks (``MAXIMA``: the largest)."""
        totals: dict[str, dict[str, int]] = {name: {"rows_in": 0, "rows_out": 0} for name in self._order}
        for counters in self._subtasks.values():
            gauges = {} if self._final else counters.get("gauges", {})
            for name, values in (*counters["operators"].items(), *gauges.items()):
                for key, value in values.items():
                    known = totals[name].get(key, 0)
                    totals[name][key] = max(known, value) if key in MAXIMA else known + value
        return totals

    def totals(self) -> dict[str, Any]:
        """Counters of state and work, summed over all subtasks; sizes in bytes."""
        every = self._subtasks.values()
        payload, determinants = (sum(c.get(name, 0) for c in every) for name in ("payload_bytes", "determinant_bytes"))
        ids = FilterCounts(*(sum(c.get(f"ids_{part.name}", 0) for c in every) for part in fields(FilterCounts)))
        rate = round(ids.false_positive_rate, 6)
        return {
            "message_ids": {**asdict(ids), "false_positive_rate": rate, "conflicts": self.id_conflicts},
            "payload_bytes": payload,
            "determinant_bytes": determinants,
            "determinant_share": round(determinants / payload, 6) if payload else 0.0,
            "state_keys": sum(c["keys"] for c in every),
            "state_bytes": sum(c["bytes"] for c in every),
            "state_reads": sum(c["reads"] for c in every),
            "busy_s": round(sum(c["busy_s"] for c in every), 3),
        }

    def blocked(self) -> dict[str, str]:
        """Blocked subtask -> reason."""
        return {name: c["blocked"] for name, c in sorted(self._subtasks.items()) if c.get("blocked")}

    def rows_out(self, operator: str) -> dict[str, int]:
        """Rows emitted by each subtask of one operator."""
        return {
            f"{operator}[{subtask.rpartition('[')[2]}": counters["operators"][operator]["rows_out"]
            for subtask, counters in sorted(self._subtasks.items())
            if operator in counters["operators"]
        }

    def subtasks(self) -> dict[str, dict[str, Any]]:
        return dict(self._subtasks)

    def checkpoints(self) -> list[dict[str, Any]]:
        """The last checkpoints, oldest first."""
        return [self._checkpoints[c].as_dict() for c in sorted(self._checkpoints)]
