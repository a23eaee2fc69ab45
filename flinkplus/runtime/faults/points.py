"""Fault injection at named points: SIGKILL of a slot exactly when something is half done.

A fault is written ``POINT:SUBTASK[#N]``: when the slot that hosts the subtask (``count[1]``) reaches the point for
the N-th time (1 when left out), its process is killed. A fault strikes in the first generation of a run only, so a job
recovers from it. Points reached by a subtask: ``start``, ``trigger`` (a source is told to begin a checkpoint, nothing
is done yet), ``alignment`` (a channel was blocked), ``snapshot`` (frozen, barrier not sent yet), ``upload`` (before the
asynchronous part), ``uploaded`` (after it, not acknowledged yet), ``acknowledged`` (not offered to its standbys yet),
``end`` (end of input). In loops, by the head: ``logging`` (frozen, a back edge is logged, barrier not sent yet),
``returned`` (the barrier has come round on a back edge); by all: ``round`` (a round is about to be sent). Where
barriers overtake: ``recording`` (frozen, what waits on a channel is recorded, barrier not sent yet), ``recorded`` (the
barrier has come in behind what was recorded). Points reached by a standby of the subtask: ``staged`` (it has a version
of it, and has not said so yet), and in the first failover of a run ``promotion`` (told to take over), ``promoted`` (has
begun to work, and not said so yet). Points reached by the coordinator, which then kills the subtask's slot:
``manifest`` (before it is written), ``commit`` (before output is made visible), ``committed``.

A running job can be told to have one strike as well, in whatever generation (``JobHandle.kill``): when the process that
was told reaches the point for the next time.

``without:PART`` takes a part of the protocol out of the whole job, to show what it is there for
(``slot.subtasks.ablation``). After a failover the job may then be *wrong*:

- ``determinants``: subtasks neither note nor send how steps began, so a promoted standby chooses freely;
- ``bundles``: a step that is repeated takes the messages that wait, in place of those that its predecessor took;
- ``digests``: what is made again, or arrives again, is not compared with what it was;
- ``filter``: message IDs are noted, and the cursor alone decides which messages are new;
- ``cursor``: the filter alone decides which messages are new; gaps are not noticed;
- ``suppression``: a promoted producer does not hear what its consumers have received, and sends everything again.

Rules: costs a dictionary look-up per point when no fault is armed; for tests and experiments.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.runtime.base.step_note import disown

LOOP_POINTS = ("logging", "returned", "round")
OVERTAKING_POINTS = ("recording", "recorded")
SUBTASK_POINTS = (
    *("start", "trigger", "alignment", "snapshot", "upload", "uploaded", "acknowledged", "end"),
    *LOOP_POINTS,
    *OVERTAKING_POINTS,
)
STANDBY_POINTS = ("staged", "promotion", "promoted")
COORDINATOR_POINTS = ("manifest", "commit", "committed")
POINTS = SUBTASK_POINTS + STANDBY_POINTS + COORDINATOR_POINTS
WITHOUT = "without:"
DETERMINANTS, BUNDLES, DIGESTS, FILTER, CURSOR, SUPPRESSION = PARTS = (
    "determinants",
    "bundles",
    "digests",
    "filter",
    "cursor",
    "suppression",
)
FAULT = re.compile(r"(?P<point>[a-z]+):(?P<subtask>[^#]+\[\d+\])(?:#(?P<count>\d+))?$")


@dataclass(frozen=True)
class Fault:
    """Strike ``subtask``'s slot at the ``count``-th time ``point`` is reached."""

    point: str
    subtask: str
    count: int


def parse_fault(text: str) -> Fault:
    """Raises ``ConfigurationError`` naming the points there are."""
    match = FAULT.match(text)
    if match is None or match["point"] not in POINTS:
        points, near = ", ".join(POINTS), did_you_mean(text.partition(":")[0], POINTS)
        raise ConfigurationError(
            f"{text!r} is not a fault; write POINT:SUBTASK[INDEX]#N with a point of: {points}{near}"
        )
    return Fault(match["point"], match["subtask"], int(match["count"] or 1))


def check_point(point: str) -> None:
    """Raises ``ConfigurationError`` naming the points there are."""
    if point not in POINTS:
        raise ConfigurationError(
            f"{point!r} is not a fault point; the points are: {', '.join(POINTS)}{did_you_mean(point, POINTS)}"
        )


def named(texts: Sequence[str]) -> list[str]:
    """The subtasks that the faults are to strike. Raises ``ConfigurationError`` for what is no fault."""
    return [parse_fault(text).subtask for text in texts if not text.startswith(WITHOUT)]


def left_out(texts: Sequence[str]) -> frozenset[str]:
    """The parts of the protocol that the job is to do without. Raises ``ConfigurationError`` naming those there are."""
    parts = frozenset(text.removeprefix(WITHOUT) for text in texts if text.startswith(WITHOUT))
    for part in sorted(parts - set(PARTS)):
        raise ConfigurationError(
            f"{WITHOUT}{part!r} is not a fault; the parts that can be left out are: {', '.join(PARTS)}"
        )
    return parts


class Faults:
    """The armed faults of one process."""

    def __init__(self, texts: Sequence[str], first_generation: int) -> None:
        self._first_generation = first_generation
        self._left: dict[str, list[tuple[Fault, int]]] = {}
        self._ordered: dict[str, list[str]] = {}
        left_out(texts)  # not for here, but what is none is said
        for fault in [parse_fault(text) for text in texts if not text.startswith(WITHOUT)]:
            self._left.setdefault(fault.point, []).append((fault, fault.count))

    def arm(self, point: str, subtask: str) -> None:
        """Strike when ``point`` is reached for the next time, once, in any generation."""
        self._ordered.setdefault(point, []).append(subtask)

    def reach(
        self, point: str, generation: int, subtask: str | None = None, strike: Callable[[str], None] | None = None
    ) -> None:
        """``point`` is reached, by ``subtask`` (any of its names) or by the coordinator (``None``).

        Without ``strike`` this very process is killed, else ``strike(subtask)`` is called once.
        """
        for named in [named for named in self._ordered.get(point, ()) if subtask is None or _same(subtask, named)]:
            self._ordered[point].remove(named)
            _strike(named, strike)
        armed = self._left.get(point)
        if not armed or generation != self._first_generation:
            return
        for at, (fault, left) in enumerate(armed):
            if left < 1 or (subtask is not None and not _same(subtask, fault.subtask)):
                continue
            armed[at] = (fault, left - 1)
            if left == 1:
                _strike(fault.subtask, strike)


def _strike(subtask: str, strike: Callable[[str], None] | None) -> None:
    if strike is not None:
        strike(subtask)
    else:
        disown()
        os.kill(os.getpid(), signal.SIGKILL)


def _same(subtask: str, named: str) -> bool:
    """Whether ``count+out[1]`` is what ``count[1]`` names."""
    vertex, _, index = subtask.rpartition("[")
    name, _, wanted = named.rpartition("[")
    return index == wanted and (name == vertex or name in vertex.split("+"))
