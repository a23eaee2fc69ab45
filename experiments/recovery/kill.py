"""One failure in a running job: of a subtask, of its process, or of its host."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from experiments.cluster.control import Control
from experiments.harness.running import RunError
from experiments.harness.workload import Trigger
from experiments.recovery.plan import EXCEPTION, HOST_FAILURES, PlannedKill
from flinkplus.api.job import JobHandle

PAUSE_S = 2.5
"""How long a host is frozen or cut off."""
KILL, REVIVE = "kill", "revive"
ORDERS = dict(zip(HOST_FAILURES, (KILL, "pause", "cut"), strict=True))
"""What the cluster is ordered to do to a host, by the kind of failure."""


@dataclass(frozen=True)
class Struck:
    """What was done: ``time_s``, right before it, in seconds since the Unix epoch; ``failed``: what the names of the
    subtasks that it hit end with; ``host``: that it was done to; ``revived_s``: when it ended, if it did.
    """

    time_s: float
    failed: tuple[str, ...]
    host: str | None = None
    revived_s: float | None = None


@dataclass(frozen=True)
class Striker:
    """Strikes one job. ``triggers``: what makes the subtasks of each stage raise; ``control``: of its cluster."""

    job: JobHandle
    failure: str
    triggers: Mapping[str, Trigger] = field(default_factory=dict)
    control: Control | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def strike(self, kill: PlannedKill) -> Struck:
        """Do it, and take it back when it has lasted as long as it should.

        Raises ``RunError`` when there is nothing to strike, or ``stop`` is set.
        """
        if self.failure in HOST_FAILURES:
            return self._strike_host(kill)
        if self.failure == EXCEPTION:
            return Struck(self.triggers[kill.stage].fire(kill.index, self._check), (f"[{kill.index}]",))
        failed, now_s = self._of_one_slot(kill), time.time()
        if not self.job.kill(kill.subtask):
            raise RunError("the input ended before the kill")
        return Struck(now_s, failed)

    def _of_one_slot(self, kill: PlannedKill) -> tuple[str, ...]:
        """What is on the same slot as the subtask: what has its index, unless it has moved."""
        heads = heads_of(self.job)
        slot = next((slot for name, slot in heads.items() if _is_of(name, kill.stage, kill.index)), None)
        return tuple(name for name, at in heads.items() if at == slot) or (f"[{kill.index}]",)

    def _check(self) -> None:
        if self.stop.is_set():
            raise RunError("interrupted")
        if self.job.done:
            raise RunError("the input ended before the kill")

    def _strike_host(self, kill: PlannedKill) -> Struck:
        if self.control is None:
            raise RunError(f"the failure {self.failure} takes a cluster that this program can give orders to")
        placement = self.job.placement()
        place = next((host for name, host in placement.items() if _is_of(name, kill.stage, kill.index)), None)
        if place is None:
            raise RunError(f"{kill.subtask} was on no host when it was to be killed")
        indices = sorted({name[name.rindex("[") :] for name, host in placement.items() if host == place})
        struck_s = self.control.order(ORDERS[self.failure], place)
        if ORDERS[self.failure] == KILL:
            return Struck(struck_s, tuple(indices), place)
        self.stop.wait(PAUSE_S)
        return Struck(struck_s, tuple(indices), place, self.control.order(REVIVE, place))


def heads_of(job: JobHandle) -> dict[str, int]:
    """The slot of each subtask; empty without standbys."""
    return {subtask: slots[0] for subtask, slots in job.chains().items()}


def _is_of(subtask: str, operator: str, index: int) -> bool:
    """Whether a subtask, as placed (``count+out[1]``), is number ``index`` of the vertex with ``operator``."""
    vertex, _, number = subtask.rstrip("]").rpartition("[")
    return operator in vertex.split("+") and number == str(index)
