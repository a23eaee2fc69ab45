"""Fault injection at named points, for tests and experiments: SIGKILL of a slot in the middle of an action.

A fault is written ``POINT:SUBTASK[#N]``: when the slot that hosts the subtask (``count[1]``) reaches the point for
the N-th time (default 1), its process is killed. A fault applies in the first generation of a run only, so the job can
recover. ``JobHandle.kill`` arms a fault in a running job, in any generation: it applies when the point is next reached.

Points of a subtask:

- ``start``; ``end`` (end of input); ``trigger`` (a source was triggered, and has done nothing yet), ``alignment`` (a
  channel was blocked), ``snapshot`` (frozen, barrier not sent yet), ``upload`` (before the asynchronous part),
  ``uploaded`` (after it, not acknowledged yet), ``acknowledged`` (not offered to its standbys yet);
- in loops: ``logging`` (the head is frozen and logs a back edge, barrier not sent yet), ``returned`` (the barrier has
  returned to the head on a back edge), ``round`` (any subtask is about to send a round);
- where barriers overtake: ``recording`` (frozen, waiting messages of a channel are recorded, barrier not sent yet),
  ``recorded`` (the barrier has arrived behind them).

Points of a standby: ``staged`` (it has a version, and has not reported it yet); in the first failover of a run
``promotion`` (ordered to promote), ``promoted`` (running, and not reported yet). Points of the coordinator, which then
kills the subtask's slot: ``manifest`` (before it is written), ``commit`` (before output is made visible),
``committed``.

``without:PART`` is an ablation: it removes a part of the protocol from the whole job, to show what that protects
against (``slot.subtasks.ablation``). After a failover the job may then be *wrong*:

- ``determinants``: subtasks neither log nor send determinants, so a promoted standby makes its own choices;
- ``bundles``: a repeated step takes the messages that wait, and not those that its predecessor took;
- ``digests``: repeated messages are not compared with the original ones;
- ``filter``: message IDs are recorded, but the cursor alone decides which messages are new;
- ``cursor``: the filter alone decides which messages are new; gaps are not detected;
- ``suppression``: a promoted producer ignores the cursors of its consumers, and sends everything again.
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
    """Kill ``subtask``'s slot when it reaches ``point`` for the ``count``-th time."""

    point: str
    subtask: str
    count: int


def parse_fault(text: str) -> Fault:
    """Parse ``POINT:SUBTASK[#N]``. Raises ``ConfigurationError`` that lists the points."""
    match = FAULT.match(text)
    if match is None or match["point"] not in POINTS:
        points, near = ", ".join(POINTS), did_you_mean(text.partition(":")[0], POINTS)
        raise ConfigurationError(
            f"{text!r} is not a fault; write POINT:SUBTASK[INDEX]#N with a point of: {points}{near}"
        )
    return Fault(match["point"], match["subtask"], int(match["count"] or 1))


def check_point(point: str) -> None:
    """Raises ``ConfigurationError``, which lists the points, for an unknown point."""
    if point not in POINTS:
        raise ConfigurationError(
            f"{point!r} is not a fault point; the points are: {', '.join(POINTS)}{did_you_mean(point, POINTS)}"
        )


def named(texts: Sequence[str]) -> list[str]:
    """The subtasks of the faults. Raises ``ConfigurationError`` for a malformed fault."""
    return [parse_fault(text).subtask for text in texts if not text.startswith(WITHOUT)]


def left_out(texts: Sequence[str]) -> frozenset[str]:
    """The parts of the protocol that the job lacks. Raises ``ConfigurationError`` that lists the parts."""
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
        left_out(texts)  # only to check them
        for fault in [parse_fault(text) for text in texts if not text.startswith(WITHOUT)]:
            self._left.setdefault(fault.point, []).append((fault, fault.count))

    def arm(self, point: str, subtask: str) -> None:
        """Kill once when ``point`` is next reached, in any generation."""
        self._ordered.setdefault(point, []).append(subtask)

    def reach(
        self, point: str, generation: int, subtask: str | None = None, strike: Callable[[str], None] | None = None
    ) -> None:
        """``subtask`` (any of its names), or the coordinator (``None``), reaches ``point``. ``strike``: called for each
        subtask whose fault applies; ``None``: kill this process."""
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
    """Whether ``named``, such as ``count[1]``, names ``subtask``, such as ``count+out[1]``."""
    vertex, _, index = subtask.rpartition("[")
    name, _, wanted = named.rpartition("[")
    return index == wanted and (name == vertex or name in vertex.split("+"))
