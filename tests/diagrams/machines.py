"""The machines in the driver: a checkpoint at its coordinator, the life of a job, a failover by standbys."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from chain_backup.failover import effects as chain_effects
from chain_backup.failover import events as chain_events
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.job.job import JobProtocol
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import CheckpointConfig, RecoveryConfig
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from tests.diagrams.explore import Diagram, Move, Subject, content, names_of

ONE, TWO = CheckpointId(1), CheckpointId(2)
LINES, COUNT = SubtaskId("lines", 0), SubtaskId("count", 0)
TIME_IS_UP = Move("time is up", events.TimeAdvanced())


class Timed(Subject):
    """A machine with deadlines: it has a clock that only goes when nothing else happens, and then to the next one.

    ``limits``: how often an event of each kind may happen at most. ``failures``: kinds that may happen so often
    together.
    """

    machine: Any

    def __init__(self, limits: dict[str, int], failures: tuple[int, set[str]]) -> None:
        self.now_ms = 0
        self.left = dict(limits)
        self.failures_left, self._failures = failures

    def key(self) -> Hashable:
        hidden = ("machine", "now_ms")
        mine = {name: value for name, value in vars(self).items() if name not in hidden}
        return content(self.machine, self.now_ms), content(mine, self.now_ms)

    def may(self, kind: str) -> bool:
        return self.left.get(kind, 1) > 0 and (self.failures_left > 0 or kind not in self._failures)

    def tell(self, event: Any) -> list[Any]:
        if isinstance(event, events.TimeAdvanced):
            self.now_ms = max(self.now_ms, self.machine.next_deadline_ms() or 0)
        kind = type(event).__name__
        if kind in self.left:
            self.left[kind] -= 1
        if kind in self._failures:
            self.failures_left -= 1
        found: list[Any] = self.machine.step(self.now_ms, event)
        return found

    def time_passes(self) -> Iterable[Move]:
        if self.may("TimeAdvanced") and self.machine.next_deadline_ms() is not None:
            yield TIME_IS_UP


# --------------------------------------------------------------------------------- a checkpoint at its coordinator

CHECKPOINT_STATES = {
    "unknown": "its number was not given out yet",
    "triggered": "the sources were told; acknowledgements are collected",
    "ready": "all have acknowledged, but an older manifest is still being stored",
    "storing": "its manifest is being stored; whether it will be complete is open",
    "complete": "it can be restored, alone; its output is being committed",
    "committed": "its output is visible",
    "dropped": "newer ones are enough, or the job went back before it: its files may go",
    "aborted": "nobody does anything for it any more; files of a manifest that failed are removed",
}


class _Checkpoint(Timed):
    """What becomes of the checkpoint ``watched`` of two, in a job of a source and a count."""

    def __init__(self, watched: CheckpointId) -> None:
        super().__init__(
            {"CheckpointRequested": 2, "CheckpointsAbandoned": 1, "JobInterrupted": 1},
            (2, {"TimeAdvanced", "CheckpointDeclined", "ManifestFailed", "CommitFailed", "SubtasksReplaced"}),
        )
        config = CheckpointConfig(interval_ms=None, max_concurrent=2, retained=1, commit_attempts=2)
        self.machine = CheckpointCoordinator(config, ONE)
        self._watched = watched
        self._state = "unknown"
        self._pending: dict[CheckpointId, list[SubtaskId]] = {}  # -> who has yet to answer
        self._storing: list[CheckpointId] = []
        self._committing: list[CheckpointId] = []
        self._running = self._quiesced = False
        self.tell(events.SubtasksStarted((COUNT, LINES), (LINES,), Generation(1)))
        self._running = True

    @property
    def state(self) -> str:
        if self._state == "triggered" and self._pending.get(self._watched) == []:
            return "ready"
        return self._state

    def moves(self) -> Iterable[Move]:
        yield from self.time_passes()
        if self._running:
            yield from self._while_running()
        for checkpoint in self._storing:
            yield Move(f"manifest {self._of(checkpoint)} stored", events.ManifestStored(checkpoint))
            if self.may("ManifestFailed"):
                yield Move(f"manifest {self._of(checkpoint)} failed", events.ManifestFailed(checkpoint, "reason"))
        for checkpoint in self._committing:
            yield Move(f"output {self._of(checkpoint)} committed", events.OutputCommitted(checkpoint))
            if self.may("CommitFailed"):
                yield Move(f"commit {self._of(checkpoint)} failed", events.CommitFailed(checkpoint, "reason"))
        if self._quiesced and self.may("CheckpointsAbandoned"):
            yield Move("job goes back to the start", events.CheckpointsAbandoned(None))

    def _while_running(self) -> Iterable[Move]:
        if self.may("CheckpointRequested"):
            yield Move("checkpoint due", events.CheckpointRequested())
        for checkpoint, missing in self._pending.items():
            for subtask in missing[:1]:
                which = "last" if len(missing) == 1 else "first"
                acknowledged = events.CheckpointAcknowledged(checkpoint, subtask, Generation(1), "handle")
                yield Move(f"{which} acknowledgement {self._of(checkpoint)}", acknowledged)
                if self.may("CheckpointDeclined"):
                    declined = events.CheckpointDeclined(checkpoint, subtask, Generation(1), "reason")
                    yield Move(f"snapshot {self._of(checkpoint)} declined", declined)
        if self.may("SubtasksReplaced"):
            yield Move("source replaced by its standby", events.SubtasksReplaced(((LINES, CheckpointId(0)),)))
        if self.may("JobInterrupted"):
            yield Move("job interrupted", events.JobInterrupted())

    def _of(self, checkpoint: CheckpointId) -> str:
        if checkpoint == self._watched:
            return "of it"
        return "of a newer one" if checkpoint > self._watched else "of an older one"

    def do(self, event: Any) -> list[str]:
        match event:
            case events.CheckpointAcknowledged(checkpoint, subtask):
                self._pending[checkpoint].remove(subtask)
            case events.ManifestStored(checkpoint) | events.ManifestFailed(checkpoint):
                self._storing.remove(checkpoint)
            case events.OutputCommitted(checkpoint):
                self._committing.remove(checkpoint)
                if checkpoint == self._watched:
                    self._state = "committed"
            case events.CommitFailed(checkpoint):
                self._committing.remove(checkpoint)
            case events.JobInterrupted():
                self._running = False
            case events.SubtasksReplaced():
                for missing in self._pending.values():
                    if missing and LINES not in missing:
                        missing.append(LINES)
        found = self.tell(event)
        if isinstance(event, events.JobInterrupted):
            found += self.tell(events.QuiesceRequested())
        return names_of(effect for effect in found if self._concerns(effect))

    def _concerns(self, effect: effects.CheckpointingEffect) -> bool:
        if isinstance(effect, events.CommitsQuiesced):
            self._quiesced = True
            return False
        if isinstance(
            effect, effects.RecordCheckpoint | effects.SweepState | effects.HoldOutput | events.StopRequested
        ):
            return False
        if isinstance(effect, effects.CopySavepoint | effects.PublishSavepoint | effects.EndSavepoint):
            return False
        checkpoint = effect.checkpoint
        match effect:
            case effects.TriggerCheckpoint():
                self._pending.setdefault(checkpoint, [COUNT, LINES])
            case effects.StoreManifest():
                self._storing.append(checkpoint)
            case effects.CommitOutput():
                self._committing.append(checkpoint)
            case effects.AbortCheckpoint():
                self._storing = [other for other in self._storing if other != checkpoint]
                self._pending.pop(checkpoint, None)
        if checkpoint != self._watched:
            return False
        match effect:
            case effects.TriggerCheckpoint():
                self._state = "triggered"
            case effects.StoreManifest():
                self._state = "storing"
            case effects.CompleteCheckpoint():
                self._state = "complete"
                self._pending.pop(checkpoint)
            case effects.AbortCheckpoint():
                self._state = "aborted"
            case effects.DropCheckpoint() if self._state != "aborted":
                self._state = "dropped"
        return True


CHECKPOINT = Diagram(
    "A checkpoint at its coordinator",
    "flinkplus/protocol/checkpoints/checkpointing.py",
    "One of two checkpoints that may be under way at once, the older or the newer.",
    "two checkpoints, a source and a count, two failures",
    CHECKPOINT_STATES,
    (partial(_Checkpoint, ONE), partial(_Checkpoint, TWO)),
)

# -------------------------------------------------------------------------------------------------- the life of a job

JOB_STATES = {
    "starting": "slots register",
    "deploying": "every slot builds its subtasks, from a checkpoint or from nothing",
    "running": "subtasks work; single ones may move to their standbys meanwhile",
    "interrupted": "the generation is dead: manifests and commits in flight end, slots come back",
    "stopping": "how it ends is decided; slots stop, what is in flight ends",
    "finished": "all output is there",
    "failed": "it says why",
    "cancelled": "what was committed stays",
    "stopped": "a savepoint is there, and all output that it covers",
}


class _Job(Timed):
    """Two slots, of which the first may be lost. They register and deploy in their order."""

    def __init__(self) -> None:
        super().__init__(
            {
                "SlotRegistered": 3,
                "CheckpointCompleted": 1,
                "TimeAdvanced": 1,
                "CheckpointRestoreFailed": 1,
                "RetractionFailed": 1,
            },
            (
                2,
                {
                    *("SlotLost", "SlotLeft", "SubtaskFailed", "FailoverFellBack", "FailureTakenOn"),
                    *("FinalAbandoned", "CommitAbandoned", "CancelRequested", "StopRequested"),
                },
            ),
        )
        self.machine = JobProtocol((LINES, COUNT), 2, RecoveryConfig(max_restarts=1, backoff_first_ms=10), started_ms=0)
        self._incarnations = [0, 0]
        self._asked: dict[str, object] = {}  # answers that are owed

    @property
    def state(self) -> str:
        return str(self.machine.state.value)

    def moves(self) -> Iterable[Move]:
        state, generation = self.machine.state, self.machine.generation
        if state.terminal:
            return
        yield from self.time_passes()
        for slot in (0, 1):
            yield from self._moves_of(slot, state, generation)
        if state in (JobState.DEPLOYING, JobState.RUNNING) and self.may("SubtaskFailed"):
            yield Move("subtask failed", events.SubtaskFailed(COUNT, generation, "reason"))
        restore = self.machine.restore_from
        if state is JobState.DEPLOYING and restore is not None and self.may("CheckpointRestoreFailed"):
            yield Move("checkpoint is corrupt", events.CheckpointRestoreFailed(generation, restore, "reason"))
        if state is JobState.RUNNING:
            yield from self._while_running(generation)
        if "quiesce" in self._asked:
            yield Move("commits quiesced", events.CommitsQuiesced())
            if self.may("CommitAbandoned"):
                yield Move("commit abandoned", events.CommitAbandoned(ONE, "reason"))
        if "retract" in self._asked:
            yield Move("output retracted", events.OutputRetracted(restore))
            if self.may("RetractionFailed"):
                yield Move("retraction failed", events.RetractionFailed(restore, "reason"))
        if self.may("CancelRequested"):
            yield Move("cancel requested", events.CancelRequested())
        if self.may("StopRequested") and self.machine.state is JobState.RUNNING:
            yield Move("stop requested", events.StopRequested())

    def _moves_of(self, slot: int, state: JobState, generation: Generation) -> Iterable[Move]:
        incarnation = self._incarnations[slot]
        held = self.machine._slots.holder(slot) is not None
        if self.may("SlotRegistered") and (not held or slot == 0) and all(self._incarnations[:slot]):
            yield Move("slot registered", events.SlotRegistered(slot, incarnation + 1))
        if not held:
            return
        if state is JobState.DEPLOYING and slot == len(self.machine._deployed):
            yield Move("slot deployed", events.SlotDeployed(generation, slot))
        if state is JobState.STOPPING:
            yield Move("slot stopped", events.SlotStopped(slot))
        elif slot == 0 and self.may("SlotLost"):
            yield Move("slot lost", events.SlotLost(slot, incarnation, "reason"))
        if state is JobState.RUNNING and slot == 0 and self.may("SlotLeft"):
            yield Move("slot left to its standbys", events.SlotLeft(slot, incarnation, "reason"))

    def _while_running(self, generation: Generation) -> Iterable[Move]:
        if self.may("CheckpointCompleted"):
            yield Move("checkpoint completed", events.CheckpointCompleted(ONE))
        if self.may("FinalAbandoned"):
            yield Move("no last checkpoint", events.FinalAbandoned(ONE, generation, "reason"))
        if self.may("FinalCommitted"):
            yield Move("final committed", events.FinalCommitted(ONE))
        if self.may("FailoverFellBack"):
            fell_back = events.FailoverFellBack("slot", (COUNT,), "reason", None, counted=False)
            yield Move("failover fell back", fell_back)
        if self.may("FailureTakenOn"):
            yield Move("failure taken on", events.FailureTakenOn("exception", generation, False, "reason", None))

    def do(self, event: Any) -> list[str]:
        if isinstance(event, events.SlotRegistered):
            self._incarnations[event.slot] = event.incarnation
        if isinstance(event, events.CommitsQuiesced | events.CommitAbandoned | events.FinalCommitted):
            self._asked.pop("quiesce", None)
        if isinstance(event, events.OutputRetracted | events.RetractionFailed):
            self._asked.pop("retract", None)
        found = self.tell(event)
        for effect in found:
            if isinstance(effect, events.QuiesceRequested):
                self._asked["quiesce"] = True
            if isinstance(effect, effects.RetractOutputAfter):
                self._asked["retract"] = True
        return names_of(effect for effect in found if not isinstance(effect, effects.RecordRollbackPhase))


JOB = Diagram(
    "The life of a job",
    "flinkplus/protocol/job/job.py",
    "Failures that local failover takes on leave it running; what is drawn is rollback.",
    "two slots, two failures, one restart, a checkpoint",
    JOB_STATES,
    (_Job,),
)

# --------------------------------------------------------------------------------------------- a failover by standbys

FAILOVER_STATES = {
    "at rest": "every subtask is at work, and nothing is under way",
    "writing and fencing": "ZooKeeper writes the new heads, and living slots refuse what is old",
    "fencing": "ZooKeeper has the new heads; some slots have not fenced",
    "writing": "all living slots have fenced; ZooKeeper has not answered",
    "promoting": "the recovery line is known, standbys were told to go on from it",
    "promoting, another attempt": "some are being promoted; for what failed meanwhile the exchange goes on",
    "handover, may be called off": "ZooKeeper writes that a slot gets its work back; nobody else was told",
    "handover, fencing": "as after a failure; it can be called off no more",
    "rolled back": "what cannot be proved safe: the whole job goes back to a checkpoint",
}
TOPOLOGY = Topology(("count",), 2, ())


class _Failover(Timed):
    """Two subtasks on two slots or three, and as many replicas as slots. Slots fence in their order. ``returned``: the
    first slot was lost, its subtask was promoted elsewhere, and the slot has come back."""

    def __init__(self, slots: int, failures: int, returned: bool) -> None:
        super().__init__(
            {"SlotJoined": 2 if returned else 0, "CheckpointCompleted": 2 if returned else 0},
            (failures, {"SlotLost", "SubtaskFailed", "RecordsRefused", "StandbyPromotionFailed", "TimeAdvanced"}),
        )
        self.machine = FailoverProtocol(TOPOLOGY, slots, FailoverConfig(replicas=slots))
        self._alive = [True] * slots
        self._owed: list[Any] = []  # answers
        self._version = 0
        hosts = tuple((slot, f"host{slot}") for slot in range(slots))
        self.tell(chain_events.JobStarted(Generation(1), 0, (), hosts))
        if returned:
            self.do(chain_events.SlotLost(0, 1, "reason"))
            while self._owed:
                self.do(self._owed[0])
            self.do(chain_events.SlotJoined(0, "host0"))
            self.failures_left = failures

    @property
    def state(self) -> str:
        attempts = self.machine._attempts
        attempt = attempts._attempt
        if not self.machine._running:
            return "rolled back"
        if attempt is None:
            return "promoting" if attempts._promotions else "at rest"
        if attempts._promotions:
            return "promoting, another attempt"
        if attempts.kind == "handover":
            return "handover, fencing" if attempt.is_written else "handover, may be called off"
        if attempt.is_written:
            return "fencing"
        return "writing and fencing" if attempt.awaited else "writing"

    def moves(self) -> Iterable[Move]:
        if self.state == "rolled back":
            return
        yield from self.time_passes()
        fenced = [answer for answer in self._owed if isinstance(answer, chain_events.SlotFenced)]
        for answer in self._owed:
            if answer in fenced[1:]:
                continue
            yield Move(self._name(answer), answer)
            if isinstance(answer, chain_events.RecordsWritten) and self.may("RecordsRefused"):
                yield Move("ZooKeeper refuses", chain_events.RecordsRefused(answer.attempt, "reason"))
            if isinstance(answer, chain_events.StandbysPromoted) and self.may("StandbyPromotionFailed"):
                subtask = self.machine._attempts._promotions[answer.attempt, answer.slot].subtasks[0]
                failed = chain_events.StandbyPromotionFailed(answer.attempt, answer.slot, subtask, "reason")
                yield Move("promotion failed", failed)
        if self.may("SlotLost"):
            for slot in self._living():
                yield Move("slot lost", chain_events.SlotLost(slot, 1, "reason"))
        if self.may("SlotJoined"):
            for slot in [slot for slot, alive in enumerate(self._alive) if not alive]:
                yield Move("slot joined", chain_events.SlotJoined(slot, f"host{slot}"))
        for subtask, generation in self.machine.generations.items():
            if self.may("SubtaskFailed") and self.machine.is_current(subtask, generation):
                threw = chain_events.SubtaskFailed(subtask, generation, "reason")
                yield Move("subtask failed", threw)
                yield Move("subtask repeats other things", replace(threw, deterministic=False))
        if self.may("CheckpointCompleted") and not self.machine.active:
            yield Move("checkpoint completed", chain_events.CheckpointCompleted(CheckpointId(self._version + 1)))

    def _living(self) -> list[int]:
        return [slot for slot, alive in enumerate(self._alive) if alive]

    def _name(self, answer: Any) -> str:
        match answer:
            case chain_events.RecordsWritten():
                return "ZooKeeper has written"
            case chain_events.SlotFenced():
                last = sum(isinstance(other, chain_events.SlotFenced) for other in self._owed) == 1
                return "last slot fenced" if last else "slot fenced"
        last = sum(isinstance(other, chain_events.StandbysPromoted) for other in self._owed) == 1
        return "last standbys promoted" if last else "standbys promoted"

    def do(self, event: Any) -> list[str]:
        match event:
            case chain_events.RecordsRefused(attempt):
                self._owed.remove(chain_events.RecordsWritten(attempt))
            case chain_events.StandbyPromotionFailed(attempt, slot):
                self._owed.remove(chain_events.StandbysPromoted(attempt, slot))
            case chain_events.SlotLost(slot):
                self._alive[slot] = False
            case chain_events.SlotJoined(slot):
                self._alive[slot] = True
            case chain_events.CheckpointCompleted(version):
                self._take_version(version)
            case _ if event in self._owed:
                self._owed.remove(event)
        return self._obey(self.tell(event))

    def _take_version(self, version: int) -> None:
        """Everybody persists a version, and all living members of its chain stage it."""
        self._version = version
        for subtask in TOPOLOGY.subtasks:
            generation = self.machine.generations[subtask]
            cursors = VersionCursors({}, {})
            self.tell(chain_events.HeadPersisted(subtask, generation, version, cursors))
            for slot in self.machine.chains[subtask][1:]:
                self.tell(chain_events.VersionStaged(subtask, slot, generation, version))

    def _obey(self, found: list[chain_effects.FailoverEffect]) -> list[str]:
        ordered: list[chain_effects.FailoverEffect] = []
        for effect in found:
            match effect:
                case chain_effects.WriteRecords(None) | chain_effects.RecordFailoverPhase() | chain_effects.TrimLogs():
                    continue
                case chain_effects.WriteRecords(int() as attempt):
                    self._owed.append(chain_events.RecordsWritten(attempt))
                case chain_effects.FenceSlots(attempt, _, _, slots):
                    self._owed += [chain_events.SlotFenced(attempt, slot, ()) for slot in slots]
                case chain_effects.PromoteStandbys(attempt, _, slot):
                    self._owed.append(chain_events.StandbysPromoted(attempt, slot))
                case effects.EvictSlot(slot):
                    self._alive[slot] = False
            ordered.append(effect)
        self._owed = [answer for answer in self._owed if self._counts(answer)]
        return names_of(ordered)

    def _counts(self, answer: Any) -> bool:
        """Whether the machine waits for this; what it does not wait for has no effect, which tests show."""
        attempt = self.machine._attempts._attempt
        match answer:
            case chain_events.RecordsWritten(number):
                return attempt is not None and attempt.number == number and not attempt.is_written
            case chain_events.SlotFenced(number, slot):
                return attempt is not None and attempt.number == number and slot in attempt.awaited
        return (answer.attempt, answer.slot) in self.machine._attempts._promotions


FAILOVER = Diagram(
    "A failover by standbys",
    "chain_backup/failover/machine.py",
    "From a failure until all are at work again, and handing work back to a slot that has returned.",
    "two subtasks; three slots and two failures, or two slots, of which one has come back, and one failure",
    FAILOVER_STATES,
    (partial(_Failover, 3, 2, False), partial(_Failover, 2, 1, True)),
)

DIAGRAMS = (CHECKPOINT, JOB, FAILOVER)
