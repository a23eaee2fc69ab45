"""The recovery log: each recovery, with the time of every phase (``protocol.vocabulary.phases``).

Times are taken when an event arrives at the coordinator's machine, or by a slot that reports them with its own clock. A
recovery begins with the kill, or with the time that the failed subtask reports; if neither is known, with detection.
``recovery_ms`` runs from there to the first *new* output (rows beyond those emitted before the failure) of all failed
subtasks with a sink or keyed state; without any such, of all failed subtasks. In a rollback or partial recovery, the
rows emitted before the failure are those of the last heartbeat. ``caught_up_ms``: the same for all subtasks that
restarted: the failed ones; in a partial recovery also their upstreams; in a rollback all.

Rules: a recovery that another failure interrupts stays unfinished. A local failover that ends in a rollback is one
recovery, by rollback, with the reason in ``fallback``. Handovers are listed separately, and so are rescales, which go
through the phases of a rollback.

A rescale is measured by vertex: which new subtask repeats which rows depends on their keys, but all subtasks of a
vertex together repeat what those before had emitted, and their counters continue from the same sum. So a vertex has new
output when the sum is above that before the interruption, by the heartbeats. ``recovery_ms`` is of all vertices with a
sink or keyed state, ``caught_up_ms`` of all; those that have never emitted a row are not waited for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.protocol.vocabulary.phases import PHASES, Phase
from flinkplus.runtime.control.names import parse_subtask

HANDOVER, RESCALE = "handover", "rescale"
PLANNED = (HANDOVER, RESCALE)
STANDBY, PARTIAL, ROLLBACK = "standby", "partial", "rollback"
KEPT = 1000


@dataclass
class Recovery:
    """One recovery. ``moved``: all subtasks that restart. ``stamps``: phase -> when it was *entered* (Unix epoch).

    ``waiting_failed``, ``waiting_all``: subtasks that have no new output yet; in a rescale vertices. ``emitted``: rows
    of each vertex before a rescale.
    """

    number: int
    mode: str
    failure: str
    subtasks: list[str]
    reason: str
    begun_s: float | None
    moved: list[str] = field(default_factory=list)
    stamps: dict[Phase, float] = field(default_factory=dict)
    waiting_failed: set[str] = field(default_factory=set)
    waiting_all: set[str] = field(default_factory=set)
    emitted: dict[str, int] = field(default_factory=dict)
    first_new_s: float | None = None
    registry_ms: float | None = None
    """Time of the registry to write the records, in the last attempt that it answered."""
    restored_ms: float | None = None
    checkpoint: int | None = None
    fallback: str | None = None

    def enter(self, phase: Phase, now_s: float) -> None:
        """Stamp a phase; entering it again voids the later ones. A failure is detected only once."""
        if phase == "detect" and phase in self.stamps:
            return
        for later in PHASES[PHASES.index(phase) :]:
            self.stamps.pop(later, None)
        self.stamps[phase] = now_s
        if phase in ("detect", "fence", "restore"):
            self.restored_ms = None

    def as_dict(self) -> dict[str, Any]:
        """The entry in ``JobHandle.recoveries``: the time of each phase, in ms; ``None`` if it did not happen."""
        detected, replayed = self.stamps.get("detect"), self.stamps.get("replay")
        fenced, caught_up = self.stamps.get("promote"), self.stamps.get("caught_up")
        promoted = _ms(fenced, replayed)
        begun = self.begun_s if self.begun_s is not None else detected
        return {
            "mode": self.mode,
            "failure": self.failure,
            "subtasks": self.subtasks,
            "restarted": self.moved,
            "reason": self.reason,
            "checkpoint": self.checkpoint,
            "begin_s": None if begun is None else round(begun, 6),
            "detect_ms": _ms(self.begun_s, detected),
            "fence_ms": _ms(detected, fenced),
            "registry_ms": None if self.registry_ms is None else round(self.registry_ms, 3),
            "promote_ms": None if promoted is None else round(max(0.0, promoted - (self.restored_ms or 0.0)), 3),
            "restore_ms": None if replayed is None else round(self.restored_ms or 0.0, 3),
            "replay_ms": _ms(replayed, self.first_new_s),
            "recovery_ms": _ms(begun, self.first_new_s),
            "caught_up_ms": _ms(begun, caught_up),
            "fallback": self.fallback,
        }


def _by_vertex(rows: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for name, count in rows.items():
        found[parse_subtask(name).vertex] += count
    return dict(found)


def _ms(begun: float | None, ended: float | None) -> float | None:
    return None if begun is None or ended is None else round(max(0.0, ended - begun) * 1000, 3)


class RecoveryLog:
    """All recoveries of a job. ``has_results``: whether a subtask (as text) has a sink or keyed state."""

    def __init__(self, has_results: Callable[[str], bool]) -> None:
        self._has_results = has_results
        self._records: list[Recovery] = []
        self._kills: dict[int, float] = {}
        self._begun: dict[str, float] = {}
        self._refused: tuple[Recovery | None, str] | None = None
        self._emitted: dict[str, int] | None = None
        """Vertex -> rows that the subtasks before had emitted, once a rescale has replaced them."""
        self.rows_out: dict[str, int] = {}
        """Subtask -> rows that it has emitted, by its last heartbeat."""
        self.marks: dict[str, int] = {}
        """Subtask -> rows that it had emitted before the last rollback or partial recovery."""

    # --- begin of a recovery

    def kill_stamped(self, slot: int, time_s: float) -> None:
        """``slot`` is killed at ``time_s``: the next loss of that slot is measured from there."""
        self._kills[slot] = time_s

    def slot_lost(self, slot: int, subtasks: Collection[str]) -> None:
        killed_s = self._kills.pop(slot, None)
        if killed_s is not None:
            self._begun.update(dict.fromkeys(subtasks, killed_s))

    def subtask_failed(self, subtask: str, time_s: float) -> None:
        """``subtask`` reports that it failed at ``time_s`` (0: unknown)."""
        if time_s:
            self._begun[subtask] = time_s

    def rescaled(self, subtasks: Sequence[str]) -> None:
        """The job continues with other ``subtasks``. What one of them will have emitted when its output is new is not
        known."""
        self._emitted = self._totals()
        self.rows_out, self.marks = dict.fromkeys(subtasks, 0), dict.fromkeys(subtasks, 0)
        self._begun.clear()

    def _totals(self) -> dict[str, int]:
        return _by_vertex({name: max(rows, self.rows_out.get(name, 0)) for name, rows in self.marks.items()})

    # --- its phases

    def entered(
        self,
        mode: str,
        number: int,
        phase: Phase,
        failure: str,
        subtasks: Collection[str],
        reason: str,
        now_s: float,
        moved: Collection[str] = (),
    ) -> None:
        """Recovery ``number`` of ``mode`` entered ``phase``. ``moved``: the subtasks that restart because of
        ``subtasks`` (in a rollback: all)."""
        record = self._find(mode, number) or self._open(mode, number, failure, subtasks, reason)
        if record.failure == HANDOVER != failure:  # a failure during a handover makes it a recovery
            record.failure, record.reason, record.begun_s, record.stamps = failure, reason, None, {}
            record.registry_ms = None
        record.subtasks = sorted({*record.subtasks, *subtasks})
        record.moved = sorted({*record.subtasks, *moved, *(self.marks if mode == ROLLBACK else ())})
        begun = [self._begun.pop(name) for name in record.subtasks if name in self._begun]
        record.begun_s = min([*begun, *([] if record.begun_s is None else [record.begun_s])], default=None)
        record.enter(phase, now_s)
        if phase == "restore":
            self._begin_waiting(record)
        elif phase == "replay" and mode == ROLLBACK:
            self._begun.clear()  # failures during this recovery

    def _begin_waiting(self, record: Recovery) -> None:
        """The subtasks that restart are known: wait for their new output."""
        record.first_new_s = None
        if record.failure == RESCALE:
            self._begin_waiting_for_vertices(record)
            return
        record.waiting_all = set(self.marks) if record.mode == ROLLBACK else set(record.moved)
        failed = set(record.subtasks) & record.waiting_all
        record.waiting_failed = {name for name in failed if self._has_results(name)} or failed

    def _begin_waiting_for_vertices(self, record: Recovery) -> None:
        for older in self._records:  # none of their subtasks runs any more
            older.waiting_all = set()
        record.emitted, self._emitted = self._totals() if self._emitted is None else self._emitted, None
        record.waiting_all = {vertex for vertex, rows in record.emitted.items() if rows}
        with_results = {vertex for vertex in record.waiting_all if self._has_results(f"{vertex}[0]")}
        record.waiting_failed = with_results or set(record.waiting_all)
        self.rows_out = dict.fromkeys(self.marks, 0)  # reports from before this count no more

    def _find(self, mode: str, number: int) -> Recovery | None:
        return next((r for r in reversed(self._records) if (r.mode, r.number) == (mode, number)), None)

    def _find_local(self, number: int) -> Recovery | None:
        return self._find(STANDBY, number) or self._find(PARTIAL, number)

    def _open(self, mode: str, number: int, failure: str, subtasks: Collection[str], reason: str) -> Recovery:
        refused, self._refused = self._refused, None
        record = None
        if failure == RESCALE:
            self._emitted = None
        if mode != STANDBY:
            self.marks = {name: max(rows, self.marks.get(name, 0)) for name, rows in self.rows_out.items()}
        if mode == ROLLBACK:
            record = refused[0] if refused is not None else None
        if record is None:
            record = Recovery(number, mode, failure, sorted(subtasks), reason, None)
            self._records = [*self._records, record][-KEPT:]
        else:
            record.number, record.mode, record.registry_ms = number, mode, None
            record.stamps = {phase: at for phase, at in record.stamps.items() if phase == "detect"}
        if refused is not None:
            record.fallback = refused[1]
        return record

    def refused(self, number: int | None, reason: str) -> None:
        """Failover ``number`` (``None``: it had not begun) falls back to a rollback, which ends it."""
        record = None if number is None else self._find_local(number)
        if record is not None and record.failure == HANDOVER:
            record = None
        self._refused = (record, reason)

    def called_off(self, number: int) -> None:
        """Handover ``number`` moved nothing."""
        record = self._find_local(number)
        self._records = [known for known in self._records if known is not record]

    def recorded(self, number: int, registry_ms: float) -> None:
        """The registry has written the new heads of failover ``number``, in ``registry_ms``."""
        record = self._find_local(number)
        if record is not None:
            record.registry_ms = registry_ms

    def restored_from(self, checkpoint: int | None) -> None:
        """The last recovery restores ``checkpoint``."""
        if self._records:
            self._records[-1].checkpoint = checkpoint

    def restored(self, restore_ms: float) -> None:
        """A slot restored its part of the last recovery; the slowest counts."""
        if self._records:
            self._records[-1].restored_ms = max(restore_ms, self._records[-1].restored_ms or 0.0)

    def fell_back(self, reason: str) -> None:
        """The last recovery had to restore an older checkpoint than the newest."""
        if self._records:
            self._records[-1].fallback = reason

    def progressed(self, subtask: str, time_s: float) -> None:
        """A subtask emitted its first new row."""
        record = next((r for r in reversed(self._records) if subtask in r.waiting_all), None)
        if record is None:
            return
        self._has_new_output(record, subtask, time_s)

    def reported(self, rows_out: Mapping[str, int], now_s: float) -> None:
        """Subtasks report how many rows they have emitted."""
        self.rows_out.update(rows_out)
        record = self._records[-1] if self._records else None
        if record is None or record.failure != RESCALE or not record.waiting_all:
            return
        totals = _by_vertex(self.rows_out)
        for vertex in [vertex for vertex in record.waiting_all if totals.get(vertex, 0) > record.emitted[vertex]]:
            self._has_new_output(record, vertex, now_s)

    def _has_new_output(self, record: Recovery, name: str, time_s: float) -> None:
        """``name``: a subtask, or a vertex."""
        time_s = max(time_s, record.stamps.get("restore", time_s))
        record.waiting_all.discard(name)
        if name in record.waiting_failed:
            record.waiting_failed.discard(name)
            if not record.waiting_failed:
                record.first_new_s = time_s
        if not record.waiting_all:
            record.enter("caught_up", time_s)

    # --- read by any thread

    def as_dicts(self) -> list[dict[str, Any]]:
        """The recoveries, oldest first."""
        return [record.as_dict() for record in self._records if record.failure not in PLANNED]

    def handovers(self) -> list[dict[str, Any]]:
        """The planned moves, oldest first."""
        return [record.as_dict() for record in self._records if record.failure == HANDOVER]

    def rescales(self) -> list[dict[str, Any]]:
        """The changes of parallelism, oldest first."""
        return [record.as_dict() for record in self._records if record.failure == RESCALE]

    def __len__(self) -> int:
        return sum(record.failure not in PLANNED for record in self._records)
