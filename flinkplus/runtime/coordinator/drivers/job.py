"""The job driver: deployments, retraction of output, evictions, the end of the job."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from typing_extensions import assert_never

from flinkplus.errors import ControlMessageTooLarge, CorruptCheckpoint, CorruptState, UntrustedCheckpoint
from flinkplus.graph import JobGraph
from flinkplus.protocol.determinants.recipe import NO_RECIPE, Recipe
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.effects import RecordRollbackPhase
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.drivers.commits import Commits
from flinkplus.runtime.coordinator.drivers.failover import FailoverDriver
from flinkplus.runtime.coordinator.drivers.recipes import RecipeDriver
from flinkplus.runtime.coordinator.drivers.rescale import RescaleDriver
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog
from flinkplus.runtime.coordinator.setup.outcome import JobResult, error_of

Handles = dict[str, SnapshotHandle]
log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class JobDriver:
    """Carries out the effects of ``JobProtocol``.

    ``match``: sets the cursors of consumers to those of their producers; ``None``: they agree already.
    ``failover``: ``None``: the job recovers by rollback.
    ``rescale``: carries out the effects for another parallelism; ``None``: that cannot change.
    ``recipes``: of sinks whose rows are visible at once; ``None``: there are no such sinks.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _commits: Commits
    _recoveries: RecoveryLog
    _graph: JobGraph
    _presence: Presence
    _result: JobResult
    _match: Callable[[Handles], Handles] | None = None
    _failover: FailoverDriver | None = None
    _rescale: RescaleDriver | None = None
    _recipes: RecipeDriver | None = None
    _restored: tuple[CheckpointId, Handles] = field(default=(CheckpointId(0), {}), init=False)

    def apply(self, effect: effects.JobEffect) -> None:
        machines, send_all = self._machines, self._dispatch.send_all
        match effect:
            case effects.InterruptCheckpoints():
                self._interrupted()
                machines.step_checkpoints(events.JobInterrupted())
            case events.QuiesceRequested():
                machines.step_checkpoints(effect)
            case effects.HaltSubtasks(generation):
                send_all(control.Halt(generation))
            case effects.RetractOutputAfter(checkpoint, reason):
                self._retract(checkpoint, reason)
            case effects.FenceOutput():
                assert self._recipes is not None
                self._recipes.fence_all(effect)
            case effects.RescaleCheckpoint() | effects.ChangeSubtasks() | effects.ReportRescale():
                assert self._rescale is not None
                self._rescale.apply(effect)
            case effects.DeploySubtasks(generation, restore, assignment):
                elsewhere = {} if self._failover is None else self._failover.avoiding_drained_hosts()
                self._deploy(generation, restore, {**dict(assignment), **elsewhere})
            case effects.StartSubtasks(generation):
                self._start(generation)
            case effects.EvictSlot(slot, incarnation, reason):
                process = self._dispatch.processes.get(slot)
                if process is not None and process.incarnation == incarnation:
                    self._presence.evict(process, reason)
            case effects.StopSlots():
                self._interrupted()
                send_all(control.Stop())
            case effects.EndJob():
                self._result.end(effect.state, error_of(effect, len(self._dispatch.processes.own)))
            case effects.RecordRollbackPhase():
                self._record(effect)
            case _:
                assert_never(effect)

    def _interrupted(self) -> None:
        self._presence.interrupted()
        if self._failover is not None:
            self._failover.interrupted()

    def _record(self, effect: RecordRollbackPhase) -> None:
        names = [str(subtask) for subtask in effect.subtasks]
        detected_s = self._dispatch.event_s if effect.phase == "detect" else self._dispatch.clock.time()
        fields = about(subtask=", ".join(names) or None, generation=self._deployment.generation, phase=effect.phase)
        log.info("rollback %d, %s: %s", effect.recovery, effect.phase, effect.reason, extra=fields)
        self._recoveries.entered(
            "rollback", effect.recovery, effect.phase, effect.failure, names, effect.reason, detected_s
        )

    def _start(self, generation: Generation) -> None:
        deployment = self._deployment
        deployment.started()
        self._dispatch.send_all(control.Start(generation, deployment.run, deployment.age_s))
        if deployment.draining:
            self._dispatch.send_all(control.Drain(generation))
        self._dispatch.remove("unused state files", self._commits.collect_garbage, generation)
        subtasks = tuple(sorted(deployment.assignment))
        also_ending = {*self._graph.cycles().loop_heads, *self._graph.asking_vertices()}
        running = events.SubtasksStarted(
            subtasks,
            tuple(subtask for subtask in subtasks if self._graph.vertex_of(subtask.vertex).is_source),
            generation,
            tuple(subtask for subtask in subtasks if subtask.vertex in also_ending),
        )
        self._machines.step_checkpoints(running)
        restored, self._restored = self._restored, (CheckpointId(0), {})  # frees the handles, which may be large
        if self._failover is not None:
            self._failover.started(*restored)
            self._presence.let_spares_join()
        self._abort_repeated(generation, restored[0])

    def _abort_repeated(self, generation: Generation, restored: CheckpointId) -> None:
        """Checkpoints that had begun behind ``restored``: steps that are repeated begin them again, and no other."""
        for checkpoint in [c for c in self._recipe.checkpoints if c > restored]:
            reason = "it was under way when the job was interrupted"
            self._dispatch.send_all(control.Abort(generation, checkpoint, reason))
            if self._failover is not None:
                self._failover.aborted(checkpoint)

    @property
    def _recipe(self) -> Recipe:
        return NO_RECIPE if self._recipes is None else self._recipes.deployed

    def _retract(self, checkpoint: CheckpointId | None, reason: str) -> None:
        where = "the start" if checkpoint is None else f"checkpoint {checkpoint}"
        log.warning("rolling back to %s and retracting the output committed since: %s", where, reason)
        self._recoveries.fell_back(f"to {where}: {reason}")
        self._machines.step_checkpoints(events.CheckpointsAbandoned(checkpoint))
        self._dispatch.soon(  # after the abandoned checkpoints are dropped
            lambda: self._dispatch.work(
                self._dispatch.storage,
                lambda: self._commits.retract_after(checkpoint),
                lambda: self._machines.step_job(events.OutputRetracted(checkpoint)),
                lambda why: self._machines.step_job(events.RetractionFailed(checkpoint, why)),
            )
        )

    def _deploy(self, generation: Generation, restore: CheckpointId | None, assignment: dict[SubtaskId, int]) -> None:
        self._deployment.generation = generation
        self._deployment.alone = self._dispatch.processes.is_alone
        self._deployment.assignment = assignment
        self._deployment.generations = dict.fromkeys(assignment, generation)
        self._recoveries.restored_from(restore)
        try:
            handles = {} if restore is None else self._commits.handles(restore)
        except (CorruptCheckpoint, CorruptState, UntrustedCheckpoint) as error:
            assert restore is not None
            self._machines.step_job(events.CheckpointRestoreFailed(generation, restore, str(error)))
            return
        if self._match is not None:
            handles = self._match(handles)
        self._restored = restore or CheckpointId(0), handles
        names = {str(subtask): slot for subtask, slot in assignment.items()}
        repeats = self._recipe.repeats
        for process in self._dispatch.processes.needed():
            hosted = {name for name, slot in names.items() if slot == process.slot}
            deploy = control.Deploy(
                generation,
                restore,
                names,
                self._dispatch.processes.addresses(),
                {name: handle for name, handle in handles.items() if name in hosted},
                {name: rows for name, rows in self._recoveries.marks.items() if name in hosted},
                self._deployment.lost_at is not None,
                self._deployment.alone,
                {str(subtask): found for subtask, found in repeats.items() if str(subtask) in hosted},
                self._deployment.held,
            )
            try:
                self._dispatch.send(process.slot, deploy)
            except ControlMessageTooLarge as error:  # not a damaged checkpoint: an older one must not be restored
                raise ControlMessageTooLarge(f"checkpoint {restore} on slot {process.slot}: {error}") from error
