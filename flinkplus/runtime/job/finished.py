"""A job that an earlier run has finished: ``resume="auto"`` returns it instead of running it again.

It has no threads, slots or ports; its metrics are those of its final checkpoint.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.coordinator.coordinator import Coordinator
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.dispatch.listeners import Listeners
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.setup.outcome import JobResult, Restore
from flinkplus.runtime.coordinator.wiring import Parts
from flinkplus.runtime.job.launcher import LOOPBACK
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.transport.auth.credentials import Credentials


class FinishedJob:
    """Used by a ``JobHandle`` instead of a ``RunningJob``. ``restore``: has the final checkpoint."""

    running_s = 0.0
    ui = None

    def __init__(self, plan: Plan, checkpoint_dir: str, commits: Commits, restore: Restore) -> None:
        assert restore.checkpoint is not None
        self.name, self.job_id = plan.name, plan.output_id
        self.checkpoint_dir = checkpoint_dir
        self.restored_from = restore.checkpoint
        self.closed = threading.Event()
        alone = replace(plan.options, transport="tcp", hang_timeout=None, record_machines=None, faults=())
        calls = Calls(Inbox(), JobResult())
        dispatch = Listeners(alone, LOOPBACK, Credentials(b""), calls).dispatch
        self.coordinator = Coordinator(Parts(plan.graph, alone, commits, restore, dispatch, calls))
        self.coordinator.show_finished(restore.checkpoint)
        self.closed.set()

    def cancel(self) -> None:
        """Has no effect: the job is over."""

    def metrics(self) -> dict[str, Any]:
        """The metrics of the final checkpoint; see ``JobHandle.metrics``."""
        return metrics_of(self.coordinator, 0.0, zookeeper_restarts=0)


def metrics_of(coordinator: Coordinator, elapsed_s: float, zookeeper_restarts: int) -> dict[str, Any]:
    """The metrics of a job, as ``JobHandle.metrics`` returns them."""
    figures, view = coordinator.figures, coordinator.view
    return {
        "state": view.state,
        "elapsed_s": round(elapsed_s, 3),
        "running_s": round(view.running_s() or 0.0, 3),
        "operators": figures.operators(),
        "committed_rows": dict(coordinator.commits.rows),
        **figures.totals(),
        "blocked": figures.blocked(),
        "checkpoints_completed": figures.completed,
        "checkpoints_aborted": figures.aborted,
        "checkpoints_over_budget": figures.over_budget,
        "last_checkpoint": figures.last_complete,
        **coordinator.savepoints.metrics(),
        "recoveries": len(coordinator.recoveries),
        **view.security(),
        "slot_restarts": view.slot_restarts,
        "copied_bytes": figures.copied_bytes,
        **view.failovers(),
        "zookeeper_restarts": zookeeper_restarts,
    }
