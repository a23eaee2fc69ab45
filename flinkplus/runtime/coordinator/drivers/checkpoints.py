"""Obeying the machine of checkpoints: triggers and notices to slots, manifests and commits to the storage worker."""

from __future__ import annotations

import logging
from collections.abc import Callable

from typing_extensions import assert_never

from flinkplus.errors import FlinkPlusError
from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import CheckpointOutcome
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import CheckpointWorkDone, Deployment, Dispatch, Machines
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.metrics.metrics import Figures

log = logging.getLogger("flinkplus.coordinator")


class CheckpointDriver:
    """Carries out the effects of ``CheckpointCoordinator``.

    ``reach``: a point of fault injection. ``holds``: says whether the trigger for a source has to wait because that
    source is being moved, and keeps it if so.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        machines: Machines,
        deployment: Deployment,
        commits: Commits,
        figures: Figures,
        reach: Callable[[str], None],
    ) -> None:
        self._dispatch = dispatch
        self._machines = machines
        self._deployment = deployment
        self._commits = commits
        self._figures = figures
        self._reach = reach
        self.holds: Callable[[CheckpointId, SubtaskId], bool] = lambda _checkpoint, _source: False
        self.progressed: Callable[[CheckpointId], None] = lambda _checkpoint: None
        self.completed: Callable[[CheckpointId], None] = lambda _checkpoint: None
        self.aborted: Callable[[CheckpointId], None] = lambda _checkpoint: None
        self.overtaking: Callable[[CheckpointId], None] = lambda _checkpoint: None

    def apply(self, effect: effects.CheckpointingEffect) -> None:
        """Carry out one effect."""
        machines, tell_all = self._machines, self._dispatch.tell_all
        match effect:
            case effects.TriggerCheckpoint(checkpoint, sources, _, generation):
                self._figures.triggered(checkpoint)
                self._deployment.triggered = checkpoint
                held = [source for source in sources if self.holds(checkpoint, source)]
                self.trigger(checkpoint, [source for source in sources if source not in held], generation)
            case effects.OvertakeCheckpoint(checkpoint, generation):
                tell_all(control.Overtake(generation, checkpoint))
                self.overtaking(checkpoint)
            case effects.AbortCheckpoint(checkpoint, reason, generation):
                tell_all(control.Abort(generation, checkpoint, reason))
                self.aborted(checkpoint)
            case effects.StoreManifest(checkpoint, handles, final, generation):
                self._reach("manifest")
                self._work(
                    lambda: self._commits.store(checkpoint, generation, handles, final),
                    events.ManifestStored(checkpoint),
                    lambda reason: events.ManifestFailed(checkpoint, reason),
                )
            case effects.CompleteCheckpoint(checkpoint, generation):
                tell_all(control.Complete(generation, checkpoint))
                machines.step_job(events.CheckpointCompleted(checkpoint))
                lost_at = self._deployment.lost_at
                if lost_at is not None and lost_at + KEPT_CHECKPOINTS < checkpoint:
                    self._deployment.lost_at = None
                self.progressed(checkpoint)
                self.completed(checkpoint)
            case effects.CommitOutput(checkpoint, _):
                self._reach("commit")
                self._work(
                    lambda: self._commits.commit(checkpoint),
                    events.OutputCommitted(checkpoint),
                    lambda reason: events.CommitFailed(checkpoint, reason),
                )
            case effects.DropCheckpoint(checkpoint):
                machines.step_job(events.CheckpointDropped(checkpoint))
                self._dispatch.storage.submit(self._drop, checkpoint)
            case effects.RecordCheckpoint(stats):
                self._figures.checkpoint(stats)
                level = logging.DEBUG if stats.outcome is CheckpointOutcome.COMPLETE else logging.INFO
                why = f": {stats.reason}" if stats.reason else ""
                fields = about(generation=self._deployment.generation, phase="checkpoint")
                log.log(level, "checkpoint %d is %s%s", stats.checkpoint, stats.outcome.value, why, extra=fields)
            case effects.ReportCommitDelay(checkpoint, waited_ms):
                log.warning(
                    "the commit of checkpoint %d has taken %d s so far: until it ends no other checkpoint "
                    "becomes complete, and logs are not trimmed",
                    checkpoint,
                    waited_ms // 1000,
                )
            case effects.SweepState(complete, triggered):
                self._dispatch.storage.submit(self._sweep, complete, triggered)
            case (
                events.FinalCommitted() | events.FinalAbandoned() | events.CommitAbandoned() | events.CommitsQuiesced()
            ):
                machines.step_job(effect)
            case _:
                assert_never(effect)

    def trigger(self, checkpoint: CheckpointId, sources: list[SubtaskId], generation: Generation) -> None:
        """Tell sources, wherever they are, to begin ``checkpoint``."""
        by_slot: dict[int, list[str]] = {}
        for source in sources:
            by_slot.setdefault(self._deployment.assignment[source], []).append(str(source))
        for slot, names in by_slot.items():
            self._dispatch.tell(slot, control.Trigger(generation, checkpoint, names))

    def work_done(self, event: events.CheckpointingEvent) -> None:
        """The storage worker finished something."""
        if isinstance(event, events.OutputCommitted):
            self._reach("committed")
        self._machines.step_checkpoints(event)

    def _work(
        self,
        action: Callable[[], None],
        success: events.CheckpointingEvent,
        failure: Callable[[str], events.CheckpointingEvent],
    ) -> None:
        self._dispatch.work(
            self._dispatch.storage,
            action,
            CheckpointWorkDone(success),
            lambda reason: CheckpointWorkDone(failure(reason)),
        )

    def _drop(self, checkpoint: CheckpointId) -> None:
        try:
            self._commits.drop(checkpoint)
        except (OSError, FlinkPlusError) as error:
            log.warning("could not remove checkpoint %d: %s", checkpoint, error)

    def _sweep(self, complete: CheckpointId, triggered: CheckpointId) -> None:
        try:
            self._commits.sweep(complete, triggered)
        except (OSError, FlinkPlusError) as error:
            log.warning("could not remove unused state files: %s", error)
