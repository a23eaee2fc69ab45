"""What is killed where: modes of checkpoints and recovery, points of a checkpoint
(``flinkplus.runtime.faults.points``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flinkplus.runtime.faults.points import STANDBY_POINTS
from tests.integration.failover_jobs import Victim
from tests.kills.jobs import Components, Loop, SlowStages, Stages

PARALLELISM = 3
OPTIONS: Mapping[str, Any] = {
    "parallelism": PARALLELISM,
    "checkpoint_interval": 0.4,
    "batch_rows": 20,
    "hang_timeout": 5.0,
    "checkpoint_timeout": 600.0,
}
"""Of all jobs. ``batch_rows``: a source that is behind would read ever more at a time, and a step of a slow function
last for seconds, in which nobody else in the slot does anything. ``hang_timeout``: on a machine that is busy with other
things, nobody else is to be given up, and no checkpoint.
"""
STANDBY, PARTIAL, ROLLBACK = RECOVERIES = ("standby", "partial", "rollback")
AT_THE_START, AT_THE_END = ("start",), ("round", "end")
KILLS_A_JOB = 6
"""So that no slot dies so often in a short time that it is set aside for a while."""
STAGES = {
    "start": "count",
    "trigger": "numbers",
    "alignment": "count",
    "snapshot": "count",
    "upload": "place",
    "uploaded": "count",
    "acknowledged": "place",
    "staged": "count",
    "manifest": "place",
    "commit": "count",
    "committed": "numbers",
    "end": "place",
}
OVERTAKING = {"recording": "place", "recorded": "place"}
LOOP = {
    **STAGES,
    **{"start": "loop", "alignment": "halve", "logging": "loop", "returned": "loop", "round": "halve"},
    **{"upload": "halve", "acknowledged": "halve", "staged": "halve", "manifest": "loop"},
}
COMPONENTS = {
    **{"start": "lowest", "trigger": "graph", "alignment": "lowest", "logging": "spread", "returned": "spread"},
    **{"snapshot": "lowest", "upload": "lowest", "uploaded": "lowest", "acknowledged": "lowest", "staged": "lowest"},
    **{"manifest": "spread", "commit": "lowest", "committed": "graph", "round": "lowest", "end": "spread"},
}
COLUMNS = (
    *("start", "trigger", "alignment", "recording", "recorded", "logging", "returned", "snapshot", "upload"),
    *("uploaded", "acknowledged", "staged", "manifest", "commit", "committed", "round", "end"),
)


@dataclass(frozen=True)
class Mode:
    """A way to take checkpoints: a job, and the operator that is killed at each of its points."""

    name: str
    kind: type[Victim]
    points: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    loops: bool = False


def without(points: Mapping[str, str], *names: str) -> dict[str, str]:
    return {point: operator for point, operator in points.items() if point not in names}


ALIGNED = Mode("aligned", Stages, STAGES)
SLOW_STAGES = {**without(STAGES, "alignment"), **OVERTAKING}
"""Under back-pressure a subtask with a time-out may not come to align anything for a long time."""
UNALIGNED = Mode("unaligned", SlowStages, SLOW_STAGES, {"checkpoint_mode": "unaligned"})
WITH_TIME_OUT = Mode("with time-out", SlowStages, SLOW_STAGES, {"checkpoint_mode": "unaligned", "aligned_timeout": 1.0})
SYNCHRONOUS = Mode("synchronous", Stages, STAGES, {"checkpoint_mode": "synchronous"})
IN_LOOP = Mode("loop", Loop, LOOP, loops=True)
IN_COMPONENTS = Mode("components", Components, COMPONENTS, loops=True)
MODES = (ALIGNED, UNALIGNED, WITH_TIME_OUT, SYNCHRONOUS, IN_LOOP, IN_COMPONENTS)
REFUSED = (
    ("unaligned with a loop", Loop, {"checkpoint_mode": "unaligned"}),
    ("synchronous with a loop", Loop, {"checkpoint_mode": "synchronous"}),
)


@dataclass(frozen=True)
class Plan:
    """One job, and where its slots are killed, one after the other: at a point of the operator that the mode says, or
    of another one (``snapshot:numbers``). ``first``: the slot of the first kill. ``options``: of the job.
    """

    mode: Mode
    recovery: str
    points: tuple[str, ...]
    first: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recovers(self) -> str:
        """How it does recover."""
        return ROLLBACK if self.recovery == PARTIAL and self.mode.loops else self.recovery

    def kills(self) -> Iterator[tuple[str, str, int]]:
        """Point, operator, and index of the subtask."""
        for number, text in enumerate(self.points, self.first):
            point, _, operator = text.partition(":")
            yield point, operator or self.mode.points[point], number % PARALLELISM


def plans(mode: Mode, recovery: str) -> list[Plan]:
    """Jobs of at most so many kills, the first of which may be at the start, the last at the end. A few kills where the
    job recovers in another way than asked for.
    """
    if mode.loops and recovery == PARTIAL:
        return [Plan(mode, recovery, ("logging", "returned", "manifest"))]
    points = [point for point in COLUMNS if point in mode.points]
    if recovery != STANDBY:
        points = [point for point in points if point not in STANDBY_POINTS]
    ends = [point for point in points if point in AT_THE_END]
    others = [point for point in points if point not in AT_THE_END]
    found: list[list[str]] = []
    count = max(len(ends), -(-len(points) // KILLS_A_JOB))
    for number in range(count):
        found.append(others[number * len(others) // count : (number + 1) * len(others) // count])
    for part, end in zip(found, ends, strict=False):
        part.append(end)
    return [Plan(mode, recovery, tuple(part), number) for number, part in enumerate(found)]
