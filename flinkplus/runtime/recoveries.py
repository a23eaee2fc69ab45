"""What happened in each recovery, with the time of every phase, in the terms of the design's section on measuring.

Times are stamped when an event arrives at the coordinator, or where they happen when a slot reports them with its own
clock. ``recovery_ms`` runs from the kill (or, when nobody announced one, from detection) to the first *new* output
of the
failed subtasks: a row beyond what they had put out at their last report before the failure, which is at most one
heartbeat older than the failure. ``caught_up_ms``: the same for every subtask of the job.

Rules: nothing here decides anything; a recovery that is interrupted by another failure ends unfinished (times are
``None``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PHASES = ("detect", "fence", "promote", "restore", "replay")


@dataclass
class Recovery:
    """One recovery. ``stamps``: phase -> seconds since the Unix epoch when it was *entered* (``started``,
    ``done``...).
    """

    number: int
    mode: str
    failure: str
    subtasks: list[str]
    reason: str
    killed_s: float | None
    stamps: dict[str, float] = field(default_factory=dict)
    waiting_failed: set[str] = field(default_factory=set)
    waiting_all: set[str] = field(default_factory=set)
    first_new_s: float | None = None
    caught_up_s: float | None = None
    checkpoint: int | None = None
    fallback: str | None = None

    @property
    def begin_s(self) -> float:
        return self.killed_s if self.killed_s is not None else self.stamps["detect"]

    def between(self, start: str, end: str) -> float | None:
        """Milliseconds from one stamp to another, ``None`` when either is missing."""
        begun, ended = self.stamps.get(start), self.stamps.get(end)
        return None if begun is None or ended is None else _ms(begun, ended)

    def as_dict(self) -> dict[str, Any]:
        """Figures for users; times in milliseconds, each phase by itself; ``None`` where a phase did not happen."""
        done = self.first_new_s
        return {
            "mode": self.mode,
            "failure": self.failure,
            "subtasks": self.subtasks,
            "reason": self.reason,
            "checkpoint": self.checkpoint,
            "detect_ms": None if self.killed_s is None else _ms(self.killed_s, self.stamps["detect"]),
            "fence_ms": self.between("detect", "fence"),
            "promote_ms": self.between("fence", "restore"),
            "restore_ms": self.between("restore", "replay"),
            "replay_ms": None if done is None or "replay" not in self.stamps else _ms(self.stamps["replay"], done),
            "recovery_ms": None if done is None else _ms(self.begin_s, done),
            "caught_up_ms": None if self.caught_up_s is None else _ms(self.begin_s, self.caught_up_s),
            "fallback": self.fallback,
        }


def _ms(begun: float, ended: float) -> float:
    return round(max(0.0, ended - begun) * 1000, 3)


class RecoveryLog:
    """All recoveries of a job, and what is needed to measure the next one."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._recoveries: list[Recovery] = []
        self._kills: dict[int, float] = {}
        self.rows_out: dict[str, int] = {}
        self.marks: dict[str, int] = {}

    def kill_stamped(self, slot: int, time_s: float) -> None:
        """A kill of ``slot`` is about to be sent; the next loss of that slot is measured from here."""
        self._kills[slot] = time_s

    def entered(
        self, number: int, phase: str, failure: str, subtasks: list[str], reason: str, slots: set[int], now_s: float
    ) -> None:
        """Recovery ``number`` entered ``phase``; ``slots`` are those that hosted the failed subtasks."""
        if phase == "detect" and not any(r.number == number for r in self._recoveries):
            stamps = [self._kills.pop(slot) for slot in sorted(slots) if failure == "slot" and slot in self._kills]
            recovery = Recovery(number, self._mode, failure, sorted(subtasks), reason, min(stamps, default=None))
            self._recoveries.append(recovery)
            self.marks = {name: max(rows, self.marks.get(name, 0)) for name, rows in self.rows_out.items()}
        recovery = self._recoveries[-1]
        recovery.stamps[phase] = now_s
        if phase == "detect":
            recovery.subtasks = sorted(set(recovery.subtasks) | set(subtasks))
        if phase == "replay":
            recovery.waiting_failed = set(recovery.subtasks) & set(self.marks)
            recovery.waiting_all = set(self.marks)

    def restored_from(self, checkpoint: int | None) -> None:
        if self._recoveries:
            self._recoveries[-1].checkpoint = checkpoint

    def fell_back(self, reason: str) -> None:
        """The last recovery had to use an older checkpoint than the newest."""
        if self._recoveries:
            self._recoveries[-1].fallback = reason

    def progressed(self, subtask: str, time_s: float) -> None:
        """A subtask put out its first new row."""
        if not self._recoveries:
            return
        recovery = self._recoveries[-1]
        for waiting, attribute in ((recovery.waiting_failed, "first_new_s"), (recovery.waiting_all, "caught_up_s")):
            if subtask in waiting:
                waiting.remove(subtask)
                if not waiting:
                    setattr(recovery, attribute, max(time_s, recovery.stamps["replay"]))

    def heard(self, subtask: str, rows_out: int) -> None:
        """A heartbeat said how far a subtask is."""
        self.rows_out[subtask] = rows_out

    def as_dicts(self) -> list[dict[str, Any]]:
        return [recovery.as_dict() for recovery in self._recoveries]

    def __len__(self) -> int:
        return len(self._recoveries)
