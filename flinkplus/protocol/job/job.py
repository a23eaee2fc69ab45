"""The life cycle of a job, and its recovery by rollback.

With local failover, a running job stays RUNNING while single subtasks move. Its events then report only registered
slots, the cost of the failure, used generations, and the need for a rollback.

States and transitions (each state before STOPPING also goes there when the job is cancelled, cannot continue, or has
made its final commit)::

    STARTING     -- all slots registered ---------------------------------------------> DEPLOYING
    DEPLOYING    -- all slots deployed -----------------------------------------------> RUNNING
    DEPLOYING    -- subtask failed, slot lost, corrupt checkpoint, deploy timeout ----> INTERRUPTED
    RUNNING      -- subtask failed, slot lost, no last checkpoint, rescale -----------> INTERRUPTED
    INTERRUPTED  -- quiet, retracted, fenced, rescaled, backoff over, slots registered -> DEPLOYING
    INTERRUPTED  -- not quiet, not retracted, or slots missing, in time --------------> STOPPING
    STOPPING     -- slots stopped and all quiet, or deadlines -----> FINISHED | FAILED | CANCELLED | STOPPED

Rules:

- Each deployment has its own generation. An interruption ends it: later reports about it have no effect.
- A job goes back to its newest complete checkpoint. To know which that is, it first waits for manifests and commits in
  flight. If they do not end in time, the job fails; its staged output stays, and a resume completes it. If that
  checkpoint is corrupt, the job goes back to the previous one (None: the start), and first retracts the output
  committed since.
- Several slots lost at once are one failure; slots lost while the job waits for slots cost only time.
- Repeated failed starts of one slot end a job that has not begun. In a job that has begun, the host is a more likely
  cause: the job waits until the timeout, and then reports the cause.
- A failure that local failover handles uses the same budget as one that rolls back, unless it is part of a counted
  recovery (``restarts``). A local failover that ends in a rollback is one recovery with it.
- A slot that does not deploy in time is evicted, since resetting it in place has just failed.
- Sinks whose rows are visible at once are fenced before each deployment (``output_fence``), which waits for that.
  Rows behind the checkpoint that are visible call a rescale off: only the old subtasks can repeat them.
- A rescale is a planned interruption, without a backoff and outside the budget. When all is quiet, the newest complete
  checkpoint is divided among the new subtasks. Before that is stored, the old subtasks continue in any case; from then
  on, the new ones. Without an answer in time it is not known which, and the job fails; a resume finds out.
- *Spare* slots come and go while the job lives. No deployment uses them, their loss has no effect here, and the job
  waits for them only at its end, to stop.
- An input that has ended two processes at the same place ends the job (``crashes``).
- After the final commit the job is FINISHED in any case, because all its output is there.

Invariants: ``DeploySubtasks`` only when all slots are registered, no manifest or commit is in flight and the backoff
has ended; generations rise; every wait has a deadline, here or (for a manifest) in ``CheckpointCoordinator``, except
for a commit while the job runs; exactly one ``EndJob``.
"""

from __future__ import annotations

from typing_extensions import assert_never

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.job.notes import Failure, Retraction, StartFailure
from flinkplus.protocol.job.output_fence import OutputFence
from flinkplus.protocol.job.rescale import Rescale
from flinkplus.protocol.job.restarts import RestartBudget
from flinkplus.protocol.job.slots import SlotTable
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import RecoveryConfig, earliest_ms
from flinkplus.protocol.vocabulary.effects import EndJob, JobEffect, JobState
from flinkplus.protocol.vocabulary.events import JobEvent
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.phases import FailureKind, Phase

FIRST_GENERATION = Generation(1)
MAX_FALLBACKS = 100
"""Maximum number of complete checkpoints kept as fallbacks; the oldest are dropped first."""

LIVE = (JobState.DEPLOYING, JobState.RUNNING)
"""States in which the newest generation can fail."""

WAITING = (JobState.STARTING, JobState.INTERRUPTED)
"""States that wait for the conditions of a deployment."""


class JobProtocol:
    """The machine of one job.

    ``started_ms``: when the wait for slots began.
    ``restore_from``: the complete checkpoint to start from (None: no checkpoint).
    ``available``: all complete checkpoints in the store, ascending; newer ones than ``restore_from`` are retracted.
    ``first_generation``: higher than any that an earlier run of the job has used.
    ``recipes``: sinks keep recipes, so that the output is fenced before each deployment.
    """

    def __init__(
        self,
        subtasks: tuple[SubtaskId, ...],
        slots: int,
        config: RecoveryConfig,
        *,
        started_ms: int,
        restore_from: CheckpointId | None = None,
        available: tuple[CheckpointId, ...] = (),
        first_generation: Generation = FIRST_GENERATION,
        recipes: bool = False,
    ) -> None:
        invariant(bool(subtasks) and len(set(subtasks)) == len(subtasks), "a job has subtasks, each once")
        invariant(list(available) == sorted(set(available)), "available checkpoints must be ascending", given=available)
        is_there = restore_from is None or restore_from in available
        invariant(is_there, "the checkpoint to restore is not available", wanted=restore_from, available=available)
        self._config = config
        self._slots = SlotTable(slots)
        self._assignment = self._assigned(subtasks)
        self._state = JobState.STARTING
        self._generation = Generation(first_generation - 1)
        self._newest_used = self._generation
        self._start_failures: dict[int, StartFailure] = {}
        self._deployed: set[int] = set()  # never iterated
        self._available = [known for known in available if restore_from is not None and known <= restore_from]
        self._newest_complete = max(available, default=CheckpointId(0))
        self._budget = RestartBudget(config)
        self._recovery = 0
        self._failure: Failure | None = None
        self._outcome = EndJob(JobState.FINISHED, None, "", "")
        self._quiesced = True
        self._slots_until_ms: int | None = started_ms + config.slot_timeout_ms
        self._quiescing = False
        self._quiesce_until_ms: int | None = None
        self._backoff_until_ms: int | None = None
        self._deploy_until_ms: int | None = None
        self._stop_until_ms: int | None = None
        self._retraction: Retraction | None = None
        self._rescale = Rescale()
        self._output = OutputFence(recipes)
        if (restore_from or 0) < self._newest_complete:
            self._retraction = Retraction(restore_from, f"the job starts from checkpoint {restore_from}")

    def _assigned(self, subtasks: tuple[SubtaskId, ...]) -> tuple[tuple[SubtaskId, int], ...]:
        needed = self._slots.needed
        return tuple((subtask, needed[subtask.index % len(needed)]) for subtask in sorted(subtasks))

    @property
    def state(self) -> JobState:
        return self._state

    @property
    def generation(self) -> Generation:
        """The newest deployed generation (before the first deployment: one less than its generation)."""
        return self._generation

    @property
    def restore_from(self) -> CheckpointId | None:
        """The checkpoint that the next deployment restores."""
        return self._available[-1] if self._available else None

    def next_deadline_ms(self) -> int | None:
        """When to step with ``TimeAdvanced`` unless another event comes first; never in the past of the last step."""
        if self._state in WAITING:
            retract_until_ms = None if self._retraction is None else self._retraction.until_ms
            return earliest_ms(
                self._slots_until_ms,
                self._backoff_until_ms,
                self._quiesce_until_ms,
                retract_until_ms,
                self._rescale.until_ms,
                self._output.until_ms,
            )
        if self._state is JobState.DEPLOYING:
            return self._deploy_until_ms
        if self._state is JobState.STOPPING:
            return earliest_ms(self._stop_until_ms, self._quiesce_until_ms)
        return None

    def step(self, now_ms: int, event: JobEvent) -> list[JobEffect]:
        """The effects of ``event``, and of all that is due at ``now_ms``. Raises ``PeerProtocolError`` or
        ``InvariantViolation``, changing nothing, when the event is impossible."""
        if self._state.terminal:
            return [effects.StopSlots()] if isinstance(event, events.SlotRegistered) else []
        found = self._handle(now_ms, event)
        return found + self._advance(now_ms)

    def _handle(self, now_ms: int, event: JobEvent) -> list[JobEffect]:
        match event:
            case events.TimeAdvanced():
                return []
            case events.SlotRegistered(slot, incarnation):
                return self._on_slot_registered(now_ms, slot, incarnation)
            case events.SlotStartFailed(slot, reason, error):
                return self._on_start_failed(now_ms, slot, reason, error)
            case events.SlotLost(slot, incarnation, reason):
                return self._on_slot_gone(now_ms, slot, incarnation, reason)
            case events.SlotLeft(slot, incarnation, reason):
                return self._on_slot_gone(now_ms, slot, incarnation, reason, bearable=self._state is JobState.RUNNING)
            case events.SlotStopped(slot):
                return self._on_slot_gone(now_ms, slot, self._slots.holder(slot), "it stopped by itself")
            case events.SpareAdded(slot):
                self._slots.add(slot)
                return []
            case events.SpareRemoved(slot):
                self._slots.take_away(slot)
                return []
            case events.SlotDeployed(generation, slot):
                self._on_slot_deployed(generation, slot)
                return []
            case events.FailureTakenOn() | events.FailoverFellBack():
                return self._on_local_failure(now_ms, event)
            case events.InputBlamed(reason, error):
                return self._stop(now_ms, EndJob(JobState.FAILED, error, reason, "exception"))
            case events.GenerationsUsed(newest):
                self._newest_used = max(self._newest_used, newest)
                return []
            case events.SubtaskFailed() | events.CheckpointRestoreFailed() | events.FinalAbandoned():
                return self._on_generation_failed(now_ms, event)
            case events.CheckpointCompleted() | events.CheckpointDropped():
                self._on_checkpoint(now_ms, event)
                return []
            case events.CommitsQuiesced():
                return self._on_quiesced()
            case events.OutputRetracted() | events.RetractionFailed():
                return self._on_retraction(now_ms, event)
            case events.OutputFenced() | events.OutputFenceFailed():
                return self._on_output_fenced(now_ms, event)
            case events.RescaleRequested():
                return self._on_rescale_requested(now_ms, event)
            case events.CheckpointRescaled() | events.RescalingFailed():
                return self._on_divided(now_ms, event)
            case events.CommitAbandoned(_, reason):
                return self._on_commit_abandoned(now_ms, reason)
            case events.FinalCommitted():
                self._end_quiescing()  # no manifest or commit follows the final commit
                return self._stop(now_ms, EndJob(JobState.FINISHED, None, "", ""))
            case events.CancelRequested():
                return self._stop(now_ms, EndJob(JobState.CANCELLED, None, "cancelled", ""))
            case events.StopRequested():
                return self._stop(now_ms, EndJob(JobState.STOPPED, None, "stopped with a savepoint", ""))
            case _:
                assert_never(event)

    # --------------------------------------------------------------------------------------------------- slots

    def _on_slot_registered(self, now_ms: int, slot: int, incarnation: int) -> list[JobEffect]:
        replaced = self._slots.holder(slot)
        if not self._slots.register(slot, incarnation):
            return []
        self._start_failures.pop(slot, None)
        if self._state is JobState.STOPPING:
            return [effects.StopSlots()]
        if replaced is None or self._state not in LIVE or self._slots.is_spare(slot):
            return []
        return self._fail(now_ms, self._slot_failure(slot, f"incarnation {incarnation} registered in its place"))

    def _on_start_failed(self, now_ms: int, slot: int, reason: str, error: object) -> list[JobEffect]:
        if self._slots.holder(slot) is not None or self._slots.is_spare(slot):
            return []  # another process holds the slot, or the job does not wait for it
        before = self._start_failures.get(slot)
        count = 1 if before is None else before.count + 1
        self._start_failures[slot] = StartFailure(count, reason, error)
        if self._state is not JobState.STARTING or count <= self._config.max_start_failures:
            return []
        return self._stop(now_ms, EndJob(JobState.FAILED, error, f"{reason} ({count} times in a row)", "slots"))

    def _on_slot_gone(
        self, now_ms: int, slot: int, incarnation: int | None, reason: str, bearable: bool = False
    ) -> list[JobEffect]:
        if incarnation is None or self._slots.holder(slot) != incarnation:
            return []
        self._slots.release(slot)
        if bearable or self._state not in LIVE or self._slots.is_spare(slot):
            return []
        return self._fail(now_ms, self._slot_failure(slot, reason))

    def _slot_failure(self, slot: int, reason: str) -> Failure:
        hosted = tuple(subtask for subtask, at in self._assignment if at == slot)
        return Failure("slot", hosted, f"slot {slot} was lost: {reason}")

    def _on_slot_deployed(self, generation: Generation, slot: int) -> None:
        self._slots.holder(slot)
        if self._is_current(generation) and self._state is JobState.DEPLOYING:
            self._deployed.add(slot)

    def _is_current(self, generation: Generation) -> bool:
        if generation > self._generation:
            raise PeerProtocolError(
                f"received a message of generation {generation}, but {self._generation} is the newest deployed"
            )
        return generation == self._generation and self._state in LIVE

    # ------------------------------------------------------------------------------------------------ failures

    def _on_generation_failed(
        self, now_ms: int, event: events.SubtaskFailed | events.CheckpointRestoreFailed | events.FinalAbandoned
    ) -> list[JobEffect]:
        if not self._is_current(event.generation):
            return []
        match event:
            case events.SubtaskFailed(subtask, _, reason, error):
                if all(subtask != known for known, _ in self._assignment):
                    raise PeerProtocolError(f"{subtask} failed, but it is not a subtask of the job")
                return self._fail(now_ms, Failure("exception", (subtask,), f"{subtask}: {reason}"), error)
            case events.CheckpointRestoreFailed(_, checkpoint, reason):
                return self._fall_back(now_ms, checkpoint, reason)
            case events.FinalAbandoned(_, _, reason):
                return self._fail(now_ms, Failure("checkpoint", (), f"no last checkpoint became complete: {reason}"))
            case _:
                assert_never(event)

    def _fall_back(self, now_ms: int, checkpoint: CheckpointId, reason: str) -> list[JobEffect]:
        if self._state is not JobState.DEPLOYING or checkpoint != self.restore_from:
            raise PeerProtocolError(
                f"checkpoint {checkpoint} reported as corrupt, but {self.restore_from} is the one to restore"
            )
        self._available.pop()
        why = f"checkpoint {checkpoint} cannot be restored: {reason}"
        self._retraction = Retraction(self.restore_from, why)
        return self._interrupt(now_ms, Failure("restore", (), why))

    def _on_local_failure(self, now_ms: int, event: events.FailureTakenOn | events.FailoverFellBack) -> list[JobEffect]:
        if self._state is not JobState.RUNNING:
            return []
        if isinstance(event, events.FailoverFellBack):
            failure = Failure(event.kind, event.subtasks, event.reason)
            return self._interrupt(now_ms, failure) if event.counted else self._fail(now_ms, failure, event.error)
        if self._budget.is_counted(now_ms, event.generation, event.under_way, bool(self._slots.missing)):
            return []
        enough = self._budget.spend(now_ms, event.kind, self._newest_used)
        return [] if enough is None else self._too_many(now_ms, event.kind, event.reason, event.error, enough)

    def _too_many(self, now_ms: int, kind: FailureKind, reason: str, error: object, enough: str) -> list[JobEffect]:
        return self._stop(now_ms, EndJob(JobState.FAILED, error, f"{reason} ({enough})", kind))

    def _fail(self, now_ms: int, failure: Failure, error: object = None) -> list[JobEffect]:
        """The newest generation has failed: recover, or end the job when the limit is exceeded."""
        enough = self._budget.spend(now_ms, failure.kind, self._newest_used)
        if enough is not None:
            return self._too_many(now_ms, failure.kind, failure.reason, error, enough)
        return self._interrupt(now_ms, failure)

    def _interrupt(self, now_ms: int, failure: Failure) -> list[JobEffect]:
        self._recovery += 1
        self._failure = failure
        self._budget.rolls_back()
        self._output.reset()
        found = [*self._phase("detect", "fence"), effects.HaltSubtasks(self._generation), *self._quiesce(now_ms)]
        if self._quiesced:
            found += self._phase("promote")
        self._state = JobState.INTERRUPTED
        self._slots_until_ms = self._deploy_until_ms = None
        self._backoff_until_ms = now_ms + self._budget.delay_ms()
        return found

    def _phase(self, *phases: Phase) -> list[JobEffect]:
        failure = self._failure
        if failure is None:
            return []
        what = failure.kind, failure.subtasks, failure.reason
        return [effects.RecordRollbackPhase(self._recovery, phase, *what) for phase in phases]

    # --------------------------------------------------------------------------------- checkpoints and output

    def _on_checkpoint(self, now_ms: int, event: events.CheckpointCompleted | events.CheckpointDropped) -> None:
        checkpoint = event.checkpoint
        if isinstance(event, events.CheckpointDropped):
            invariant(checkpoint != self.restore_from, "the checkpoint to restore was dropped", checkpoint=checkpoint)
            if checkpoint in self._available:
                self._available.remove(checkpoint)
            return
        if checkpoint <= self._newest_complete:
            return
        why = "a checkpoint became complete after all commits were quiesced"
        invariant(not self._quiesced, why, checkpoint=checkpoint, state=self._state.value)
        self._newest_complete = checkpoint
        self._available = [*self._available, checkpoint][-MAX_FALLBACKS:]
        self._budget.on_progress(now_ms)

    def _end_quiescing(self) -> None:
        self._quiesced, self._quiescing, self._quiesce_until_ms = True, False, None

    def _quiesce(self, now_ms: int) -> list[JobEffect]:
        """Ensure that no checkpoint or output of the old generation becomes complete or visible later."""
        if self._quiesced or self._quiescing:
            return []
        self._quiescing = True
        self._quiesce_until_ms = now_ms + self._config.quiesce_timeout_ms
        return [effects.InterruptCheckpoints(), events.QuiesceRequested()]

    def _on_quiesced(self) -> list[JobEffect]:
        if not self._quiescing:
            return []
        self._end_quiescing()
        return self._phase("promote") if self._state is JobState.INTERRUPTED else []

    def _on_retraction(self, now_ms: int, event: events.OutputRetracted | events.RetractionFailed) -> list[JobEffect]:
        retraction = self._retraction
        if retraction is None or retraction.until_ms is None or event.checkpoint != retraction.checkpoint:
            return []
        if isinstance(event, events.RetractionFailed):
            where = "the start" if self.restore_from is None else f"checkpoint {self.restore_from}"
            why = f"the output committed after {where} could not be retracted: {event.reason}"
            return self._stop(now_ms, EndJob(JobState.FAILED, None, why, "commit"))
        self._retraction = None
        return []

    def _on_output_fenced(self, now_ms: int, event: events.OutputFenced | events.OutputFenceFailed) -> list[JobEffect]:
        why = self._output.answered(event)
        return [] if why is None else self._stop(now_ms, EndJob(JobState.FAILED, None, why, "commit"))

    def _on_rescale_requested(self, now_ms: int, event: events.RescaleRequested) -> list[JobEffect]:
        if self._state is not JobState.RUNNING:
            state = "being rescaled" if self._rescale.active else self._state.value
            return [effects.ReportRescale("refused", f"the job is {state}; try again when it runs")]
        if self.restore_from is None:
            return [effects.ReportRescale("refused", "no checkpoint is complete yet")]
        reason = self._rescale.begin(event, self._slots)
        found = self._interrupt(now_ms, Failure("rescale", (), reason))
        self._backoff_until_ms = None
        return found

    def _on_divided(self, now_ms: int, event: events.CheckpointRescaled | events.RescalingFailed) -> list[JobEffect]:
        if self._state is not JobState.INTERRUPTED or self._rescale.until_ms is None:
            return []
        if isinstance(event, events.RescalingFailed):
            if not event.certain:
                return self._stop(now_ms, EndJob(JobState.FAILED, None, f"{event.reason}; resume the job", "rescale"))
            return self._rescale.failed(event)
        new = event.checkpoint
        invariant(new > self._newest_complete, "a divided checkpoint is new", checkpoint=new)
        wanted = self._rescale.divided()
        self._slots.need(wanted.slots)
        self._assignment = self._assigned(wanted.subtasks)
        self._available, self._newest_complete = [new], new
        self._output.reset()
        return [effects.ChangeSubtasks(wanted.subtasks, wanted.slots)]

    def _on_commit_abandoned(self, now_ms: int, reason: str) -> list[JobEffect]:
        found: list[JobEffect] = []
        if self._state is not JobState.STOPPING:
            found = self._stop(now_ms, EndJob(JobState.FAILED, None, f"output not committed: {reason}", "commit"))
        else:
            self._note_uncommitted(reason)
        self._end_quiescing()
        return found

    def _note_uncommitted(self, reason: str) -> None:
        """A cancelled job reports that its output is incomplete."""
        if self._outcome.state is JobState.CANCELLED:
            why = f"{self._outcome.reason}; output not committed: {reason}"
            self._outcome = EndJob(JobState.CANCELLED, None, why, "commit")

    @property
    def _quiesce_timed_out(self) -> str:
        return f"manifests or commits did not end within {self._config.quiesce_timeout_ms} ms; resume the job"

    # ------------------------------------------------------------------------------------------------- the end

    def _stop(self, now_ms: int, outcome: EndJob) -> list[JobEffect]:
        if self._state is JobState.STOPPING:
            if outcome.state is JobState.FINISHED:
                self._outcome = outcome
            return []
        found = self._quiesce(now_ms)
        self._outcome = outcome
        self._output.reset()
        self._state = JobState.STOPPING
        self._stop_until_ms = now_ms + self._config.stop_timeout_ms
        return [*found, effects.StopSlots()] if self._slots.held else found

    def _advance_stopping(self, now_ms: int) -> list[JobEffect]:
        if self._stop_until_ms is not None and (not self._slots.held or now_ms >= self._stop_until_ms):
            self._stop_until_ms = None
        if self._quiesce_until_ms is not None and now_ms >= self._quiesce_until_ms:
            self._quiesce_until_ms = None
            self._note_uncommitted(self._quiesce_timed_out)
        if self._stop_until_ms is not None or self._quiesce_until_ms is not None:
            return []
        self._state = self._outcome.state
        return [self._outcome]

    # ---------------------------------------------------------------------------------------------- what is due

    def _advance(self, now_ms: int) -> list[JobEffect]:
        found: list[JobEffect] = []
        if self._state is JobState.DEPLOYING:
            found += self._advance_deploying(now_ms)
        if self._state in WAITING:
            found += self._advance_waiting(now_ms)
        if self._state is JobState.STOPPING:
            found += self._advance_stopping(now_ms)
        return found

    def _advance_deploying(self, now_ms: int) -> list[JobEffect]:
        late = [slot for slot in self._slots.needed if slot not in self._deployed]
        if not late:
            found = [effects.StartSubtasks(self._generation), *self._phase("replay"), *self._rescale.started()]
            self._state = JobState.RUNNING
            self._budget.runs_again()
            self._quiesced = False
            self._failure = self._deploy_until_ms = None
            return found
        if self._deploy_until_ms is None or now_ms < self._deploy_until_ms:
            return []
        reason = f"not deployed within {self._config.deploy_timeout_ms} ms"
        evictions: list[JobEffect] = []
        for slot in late:
            evictions.append(effects.EvictSlot(slot, self._slots.holder(slot) or 0, reason))
            self._slots.release(slot)
        hosted = tuple(subtask for subtask, slot in self._assignment if slot in late)
        where = ", ".join(str(slot) for slot in late)
        return [*evictions, *self._fail(now_ms, Failure("deploy", hosted, f"slots {where}: {reason}"))]

    def _advance_waiting(self, now_ms: int) -> list[JobEffect]:
        too_late = self._check_waits(now_ms)
        if too_late is not None:
            return self._stop(now_ms, too_late)
        if self._backoff_until_ms is not None and now_ms >= self._backoff_until_ms:
            self._backoff_until_ms = None
        retraction = self._retraction
        if retraction is not None:
            if not self._quiesced or retraction.until_ms is not None:
                return []
            until_ms = now_ms + self._config.quiesce_timeout_ms
            self._retraction = Retraction(retraction.checkpoint, retraction.reason, until_ms)
            return [effects.RetractOutputAfter(retraction.checkpoint, retraction.reason)]
        if not self._quiesced or self._backoff_until_ms is not None:
            return []
        generation, until_ms = Generation(self._newest_used + 1), now_ms + self._config.quiesce_timeout_ms
        fencing = self._output.advance(generation, self.restore_from, until_ms)
        if fencing is not None:
            return fencing
        found: list[JobEffect] = []
        if self._rescale.undecided and self._output.repeats:
            why = f"rows behind checkpoint {self.restore_from} are visible"
            found = self._rescale.failed(events.RescalingFailed(why, again=True))
        dividing = self._rescale.advance(self.restore_from, now_ms + self._config.deploy_timeout_ms)
        if dividing is not None:
            return dividing
        return found if self._slots.missing else [*found, *self._deploy(now_ms)]

    def _check_waits(self, now_ms: int) -> EndJob | None:
        starting = self._state is JobState.STARTING
        timeout_ms = self._config.slot_timeout_ms if starting else self._config.restart_slot_timeout_ms
        missing = self._slots.missing
        if not missing:
            self._slots_until_ms = None
        elif self._slots_until_ms is None:
            self._slots_until_ms = now_ms + timeout_ms
        elif now_ms >= self._slots_until_ms:
            where = ", ".join(str(slot) for slot in missing)
            why = f"{len(missing)} of {len(self._slots.needed)} slots did not register within {timeout_ms} ms: {where}"
            failure = next((self._start_failures[slot] for slot in missing if slot in self._start_failures), None)
            if failure is None:
                return EndJob(JobState.FAILED, None, why, "slots")
            return EndJob(JobState.FAILED, failure.error, f"{why}; {failure.reason}", "slots")
        if self._quiesce_until_ms is not None and now_ms >= self._quiesce_until_ms:
            return EndJob(JobState.FAILED, None, f"output not committed: {self._quiesce_timed_out}", "commit")
        if self._rescale.until_ms is not None and now_ms >= self._rescale.until_ms:
            why = f"the checkpoint was not divided within {self._config.deploy_timeout_ms} ms; resume the job"
            return EndJob(JobState.FAILED, None, why, "rescale")
        retract_until_ms = None if self._retraction is None else self._retraction.until_ms
        if retract_until_ms is not None and now_ms >= retract_until_ms:
            why = f"output was not retracted within {self._config.quiesce_timeout_ms} ms"
            return EndJob(JobState.FAILED, None, why, "commit")
        if self._output.until_ms is not None and now_ms >= self._output.until_ms:
            why = f"the recipe of the output was not read within {self._config.quiesce_timeout_ms} ms; resume the job"
            return EndJob(JobState.FAILED, None, why, "commit")
        return None

    def _deploy(self, now_ms: int) -> list[JobEffect]:
        self._generation = self._newest_used = Generation(self._newest_used + 1)
        self._deployed.clear()
        self._state = JobState.DEPLOYING
        self._deploy_until_ms = now_ms + self._config.deploy_timeout_ms
        return [*self._phase("restore"), effects.DeploySubtasks(self._generation, self.restore_from, self._assignment)]
