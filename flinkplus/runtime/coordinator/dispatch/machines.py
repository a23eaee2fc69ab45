"""The machines of a job, stepped in order; each one's driver carries out its effects.

Rules: an event that arrives while effects are being carried out is handled after all of them. The machine of local
failover is stepped only while the job runs; then it handles all failures, and updates ``assignment`` and
``generations`` of the deployment. A failure that it takes on is reported to the machine of the job first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chain_backup.failover import events as failover_events
from chain_backup.failover.effects import FailoverEffect
from chain_backup.failover.machine import FailoverProtocol
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import earliest_ms
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch

PROGRESS = (
    failover_events.HeadPersisted,
    failover_events.VersionStaged,
    failover_events.CheckpointCompleted,
    failover_events.CheckpointAborted,
)
"""The most frequent events; without an effect, they do not change the assignment of subtasks."""


@dataclass(eq=False, repr=False)
class JobMachines:
    """The machines of the job, of checkpoints and of local failover (``None``: the job recovers by rollback)."""

    _dispatch: Dispatch
    _deployment: Deployment
    job: JobProtocol
    checkpoints: CheckpointCoordinator
    failover: FailoverProtocol | None

    def __post_init__(self) -> None:
        self._newest = self._deployment.generation

    def obeyed_by(
        self,
        job: Callable[[effects.JobEffect], None],
        checkpoints: Callable[[effects.CheckpointingEffect], None],
        failover: Callable[[list[FailoverEffect]], None] | None,
    ) -> None:
        """Connect the drivers. They step the machines, so they are created after them."""
        self._obey_job, self._obey_checkpoints = job, checkpoints
        self._obey_failover = failover or (lambda _todo: None)

    @property
    def local_failover(self) -> FailoverProtocol | None:
        """The machine of local failover while it handles failures; otherwise ``None``."""
        return self.failover if self.job.state is JobState.RUNNING else None

    def step_job(self, event: events.JobEvent) -> None:
        """Step the machine of the job by ``event``, after all effects that are being carried out."""
        self._soon(self.job, event, self._obey_job)

    def step_checkpoints(self, event: events.CheckpointingEvent) -> None:
        """Step the machine of checkpoints, as ``step_job``."""
        self._soon(self.checkpoints, event, self._obey_checkpoints)

    def _soon(self, machine: Any, event: object, obey: Callable[[Any], None]) -> None:
        def step() -> None:
            for effect in machine.step(self._dispatch.now_ms(), event):
                obey(effect)

        self._dispatch.soon(step)

    def step_failover(self, event: failover_events.FailoverEvent) -> None:
        """Step the machine of local failover, as ``step_job``; dropped unless the job is running by then."""
        if self.failover is not None:
            self._dispatch.soon(lambda: self._step_failover(event))

    def _step_failover(self, event: failover_events.FailoverEvent) -> None:
        failover = self.local_failover
        if failover is None:
            return
        todo = failover.step(self._dispatch.now_ms(), event)
        if todo or not isinstance(event, PROGRESS):
            heads = failover.heads
            if heads:  # empty once it has fallen back
                self._deployment.assignment = heads
                self._deployment.generations = failover.generations
        for effect in todo:
            if isinstance(effect, events.FailureTakenOn):  # before ``GenerationsUsed``
                self.step_job(effect)
        newest = failover.newest_generation
        if newest > self._newest:
            self._newest = newest
            self.step_job(events.GenerationsUsed(newest))
        self._obey_failover(todo)

    def interrupt_failover(self) -> None:
        """Report to the machine of local failover, in any state, that a rollback or the end of the job begins."""
        failover = self.failover
        if failover is not None:
            interrupted = events.JobInterrupted()
            self._dispatch.soon(lambda: self._obey_failover(failover.step(self._dispatch.now_ms(), interrupted)))

    def change_subtasks(self, parallelism: int, slots: tuple[int, ...]) -> None:
        """The interrupted job continues with other subtasks: notify the machine of local failover, at once, since the
        deployment that follows asks it for slots."""
        if self.failover is not None:
            changed = failover_events.SubtasksChanged(parallelism, slots)
            self._obey_failover(self.failover.step(self._dispatch.now_ms(), changed))

    def advance_time(self) -> None:
        """Step each machine: a timeout may have passed."""
        self.step_job(events.TimeAdvanced())
        self.step_checkpoints(events.TimeAdvanced())
        self.step_failover(events.TimeAdvanced())

    def next_deadline_ms(self) -> int | None:
        failover = self.local_failover
        return earliest_ms(
            self.job.next_deadline_ms(),
            self.checkpoints.next_deadline_ms(),
            None if failover is None else failover.next_deadline_ms(),
        )
