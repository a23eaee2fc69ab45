"""The rescale driver: divides a checkpoint among other subtasks, and makes these known to all parts of the coordinator.

Rules: the division is done by the storage worker, in the order of manifests and commits. If it fails, its manifest is
made void, before the job continues with the subtasks of before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flinkplus.errors import ConfigurationError, described
from flinkplus.protocol.snapshot.handle import is_aligned
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, parallelism_of
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog

log = logging.getLogger("flinkplus.coordinator")


class Divider(Protocol):
    """Divides complete checkpoints of a running job; called by the storage worker."""

    def check(self, checkpoint: CheckpointId, parallelism: int) -> None:
        """Raise ``ConfigurationError`` if ``checkpoint`` cannot be divided for another parallelism. Stores nothing."""

    def divide(self, checkpoint: CheckpointId, new: CheckpointId, generation: Generation, parallelism: int) -> None:
        """Store the checkpoint ``new``: ``checkpoint`` for another parallelism. ``generation``: of the running
        subtasks. Raises ``ConfigurationError`` if it cannot be divided."""


@dataclass(eq=False, repr=False)
class RescaleDriver:
    """Carries out the effects of ``JobProtocol`` for another parallelism.

    ``report``: takes the answer to the request.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _commits: Commits
    _figures: Figures
    _recoveries: RecoveryLog
    _divider: Divider
    _report: Callable[[effects.ReportRescale], None]
    _checkpoint: CheckpointId = field(default=CheckpointId(0), init=False)

    def apply(self, effect: effects.RescaleCheckpoint | effects.ChangeSubtasks | effects.ReportRescale) -> None:
        match effect:
            case effects.RescaleCheckpoint():
                self._rescale(effect)
            case effects.ChangeSubtasks():
                self._replace(effect)
            case effects.ReportRescale():
                self._report(effect)

    def _rescale(self, effect: effects.RescaleCheckpoint) -> None:
        machines, new = self._machines, self._machines.checkpoints.next_number
        generation, parallelism = self._newest_generation, parallelism_of(effect.subtasks)
        uncertain: list[str] = []
        overtaken = False

        def divide() -> None:
            nonlocal overtaken
            try:
                overtaken = not is_aligned(self._commits.handles(effect.checkpoint).values())
                if overtaken:  # it became complete after the one for which the job was interrupted
                    raise ConfigurationError(f"checkpoint {effect.checkpoint} is unaligned")
                self._divider.divide(effect.checkpoint, new, generation, parallelism)
            except Exception:
                try:
                    self._commits.drop(new)
                except Exception as error:
                    uncertain.append(f"checkpoint {new} may be stored, or not: {described(error)}")
                raise

        def divided() -> None:
            self._checkpoint = effect.checkpoint
            machines.step_checkpoints(events.CheckpointAdopted(new))
            machines.step_job(events.CheckpointRescaled(new))

        def failed(reason: str) -> None:
            why = "; ".join([reason, *uncertain])
            machines.step_job(events.RescalingFailed(why, certain=not uncertain, again=overtaken))

        machines.step_checkpoints(events.NumberTaken(new))
        self._dispatch.work(self._dispatch.storage, divide, divided, failed)

    @property
    def _newest_generation(self) -> Generation:
        """The newest one of a subtask: a failover may have given single ones newer than that of the deployment."""
        return max(self._deployment.generation, *self._deployment.generations.values())

    def _age_s(self) -> float:
        """For how long rows have arrived that are not in the checkpoint: the sources continue with them."""
        triggered_s = self._figures.triggered_s(self._checkpoint)
        return 0.0 if triggered_s is None else max(0.0, self._dispatch.clock.time() - triggered_s)

    def _replace(self, effect: effects.ChangeSubtasks) -> None:
        before, after = self._deployment.parallelism, parallelism_of(effect.subtasks)
        log.info("the job continues at parallelism %d instead of %d", after, before)
        self._dispatch.processes.need(effect.slots)
        self._deployment.rescaled(after, self._age_s())
        self._figures.keep({str(subtask) for subtask in effect.subtasks})
        self._recoveries.rescaled([str(subtask) for subtask in effect.subtasks])
        self._machines.change_subtasks(after, effect.slots)
