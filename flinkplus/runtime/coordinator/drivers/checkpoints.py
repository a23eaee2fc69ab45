"""The checkpoint driver: triggers and notices to slots, manifests and commits to the storage worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import assert_never

from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import CheckpointOutcome
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.drivers.failover import FailoverDriver
from flinkplus.runtime.coordinator.drivers.savepoints import SavepointDriver
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.coordinator.metrics.metrics import Figures

log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class CheckpointDriver:
    """Carries out the effects of ``CheckpointCoordinator``.

    ``reach``: reports a point for fault injection.
    ``failover``: ``None``: the job recovers by rollback.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _commits: Commits
    _figures: Figures
    _triggers: Triggers
    _crashes: CrashReports
    _savepoints: SavepointDriver
    _reach: Callable[[str], None]
    _failover: FailoverDriver | None = None

    def apply(self, effect: effects.CheckpointingEffect) -> None:
        dispatch, step = self._dispatch, self._machines.step_checkpoints
        match effect:
            case effects.TriggerCheckpoint(checkpoint, sources, _, generation):
                self._figures.triggered(checkpoint)
                self._deployment.triggered = checkpoint
                self._triggers.send(checkpoint, sources, generation)
            case effects.HoldOutput(behind, generation):
                self._hold(behind, generation)
            case effects.OvertakeCheckpoint(checkpoint, generation):
                dispatch.send_all(control.Overtake(generation, checkpoint))
                if self._failover is not None:
                    self._failover.promotions.overtaking(checkpoint)
            case effects.AbortCheckpoint(checkpoint, reason, generation):
                dispatch.send_all(control.Abort(generation, checkpoint, reason))
                if self._failover is not None:
                    self._failover.aborted(checkpoint)
            case effects.StoreManifest(checkpoint, handles, final, generation):
                self._reach("manifest")
                dispatch.work(
                    dispatch.storage,
                    lambda: self._commits.store(checkpoint, generation, handles, final),
                    lambda: step(events.ManifestStored(checkpoint)),
                    lambda reason: step(events.ManifestFailed(checkpoint, reason)),
                )
            case effects.CompleteCheckpoint(checkpoint, generation):
                self._complete(checkpoint, generation)
            case effects.CommitOutput(checkpoint, _):
                self._reach("commit")
                dispatch.work(
                    dispatch.storage,
                    lambda: self._commits.commit(checkpoint),
                    lambda: self._committed(checkpoint),
                    lambda reason: step(events.CommitFailed(checkpoint, reason)),
                )
            case effects.DropCheckpoint(checkpoint):
                self._machines.step_job(events.CheckpointDropped(checkpoint))
                dispatch.remove(f"checkpoint {checkpoint}", self._commits.drop, checkpoint)
            case effects.SweepState(complete, triggered):
                dispatch.remove("unused state files", self._commits.sweep, complete, triggered)
            case effects.RecordCheckpoint(stats):
                self._record(stats)
            case effects.ReportCommitDelay(checkpoint, waited_ms):
                why = "until it ends, no other checkpoint becomes complete, and logs are not trimmed"
                log.warning("the commit of checkpoint %d has taken %d s so far: %s", checkpoint, waited_ms // 1000, why)
            case effects.CopySavepoint() | effects.PublishSavepoint() | effects.EndSavepoint():
                self._savepoints.apply(effect)
            case (
                events.FinalCommitted()
                | events.FinalAbandoned()
                | events.CommitAbandoned()
                | events.CommitsQuiesced()
                | events.StopRequested()
            ):
                self._machines.step_job(effect)
            case _:
                assert_never(effect)

    def _hold(self, behind: CheckpointId | None, generation: Generation) -> None:
        self._deployment.held = behind or CheckpointId(0)
        self._dispatch.send_all(control.Hold(generation, self._deployment.held))

    def _complete(self, checkpoint: CheckpointId, generation: Generation) -> None:
        deployment = self._deployment
        self._dispatch.send_all(control.Complete(generation, checkpoint))
        self._machines.step_job(events.CheckpointCompleted(checkpoint))
        if deployment.lost_at is not None and deployment.lost_at + KEPT_CHECKPOINTS < checkpoint:
            deployment.lost_at = None
        self._crashes.completed(checkpoint)
        if self._failover is not None:
            self._failover.completed(checkpoint)

    def _record(self, stats: effects.CheckpointStats) -> None:
        self._figures.checkpoint(stats)
        level = logging.DEBUG if stats.outcome is CheckpointOutcome.COMPLETE else logging.INFO
        why = f": {stats.reason}" if stats.reason else ""
        fields = about(generation=self._deployment.generation, phase="checkpoint")
        log.log(level, "checkpoint %d is %s%s", stats.checkpoint, stats.outcome.value, why, extra=fields)

    def _committed(self, checkpoint: CheckpointId) -> None:
        self._reach("committed")
        self._machines.step_checkpoints(events.OutputCommitted(checkpoint))
