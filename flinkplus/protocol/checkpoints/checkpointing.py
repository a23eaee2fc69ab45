"""The coordinator of checkpoints: trigger, acknowledge, complete, decline, time out, abort, commit, retain.

The life of a checkpoint::

    triggered --all acknowledged--> ready --manifest ordered--> storing --manifest stored--> complete --> committed
        |                             |                            |
        +--- declined, timed out, superseded, interrupted ---> aborted <--- manifest failed

Rules:

- A checkpoint is complete when its manifest is stored. Only then are subtasks notified and its output is committed. It
  supersedes the older pending ones.
- One manifest at a time, in checkpoint order. While one is being stored, the outcome is open, and no other manifest
  and no rollback (``QuiesceRequested``) may pass it: an interruption aborts only other checkpoints. Without an answer
  in time, checkpointing ends (``CommitAbandoned``). The timeout starts when the commit before it has ended.
- When every source of the running generation is exhausted, and every subtask in ``also_ending``, a last checkpoint
  (``final``) is triggered at once, in addition to any pending one, and after failures again, up to a limit. No other
  checkpoint is triggered after it.
- Where checkpoints may be unaligned, all are, from ``aligned_timeout_ms`` after the trigger, but the last one and those
  that are requested aligned. The next one after an abort because of too much channel state is aligned, so that not all
  of them are aborted.
- Channel state is limited, in the snapshots of one subtask index, which a deployment puts on one slot, and in all. A
  checkpoint above a limit is aborted; it might be too large to be restored.
- A failover aborts the pending checkpoints for which a replaced subtask would take its snapshot again, unless all
  subtasks have acknowledged them. Otherwise a promoted consumer would align with a producer that is still replaying,
  and send nothing until then. For the same reason no periodic checkpoint begins within ``AFTER_FAILOVER_MS`` after
  that.
- Acknowledgements, declines and exhausted sources of another generation than the running one have no effect.
- After every ``sweep_every`` complete checkpoints, state files that no checkpoint can name any more are removed.
- The checkpoint of a savepoint is aligned, and is kept until it is copied (``savepoints``).
- Rows that are visible at once may be held back behind a checkpoint (``hold``).

Invariants: checkpoint numbers rise and are never used twice; at most ``max_concurrent`` + 1 are pending; the newest
``retained`` complete checkpoints are never dropped, nor any with uncommitted output.
"""

from __future__ import annotations

from typing_extensions import assert_never

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.checkpoints.commits import CommitQueue
from flinkplus.protocol.checkpoints.hold import OutputHold
from flinkplus.protocol.checkpoints.pending import PendingCheckpoint
from flinkplus.protocol.checkpoints.savepoints import SavepointPhase, Savepoints
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.config import CheckpointConfig, earliest_ms
from flinkplus.protocol.vocabulary.effects import CheckpointingEffect
from flinkplus.protocol.vocabulary.events import CheckpointingEvent
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId, invariant
from flinkplus.protocol.vocabulary.in_flight import AbortCause

AFTER_FAILOVER_MS = 200
"""Minimum time from the promotion order of a failover to the next periodic checkpoint; the interval, if shorter."""


class CheckpointCoordinator:
    """The machine of one job, over all its generations.

    ``first``: the first number to use.
    ``complete``: checkpoints that are already stored and committed, ascending; for retention.
    """

    def __init__(self, config: CheckpointConfig, first: CheckpointId, complete: tuple[CheckpointId, ...] = ()) -> None:
        in_order = list(complete) == sorted(set(complete)) and all(0 < known < first for known in complete)
        why = "complete checkpoints must be ascending and older than the first new one"
        invariant(in_order, why, complete=complete, first=first)
        self._config = config
        self._next_id = first
        self._running = False
        self._generation = Generation(0)
        self._subtasks: tuple[SubtaskId, ...] = ()
        self._sources: tuple[SubtaskId, ...] = ()
        self._ending: tuple[SubtaskId, ...] = ()  # sources, and those that end after them
        self._exhausted: set[SubtaskId] = set()  # never iterated
        self._pending: dict[CheckpointId, PendingCheckpoint] = {}  # ascending
        self._storing: CheckpointId | None = None
        self._storing_until_ms: int | None = None  # None: it waits for a commit
        self._unswept = 0
        self._periodic_at_ms: int | None = None
        self._pause_until_ms = 0
        self._requested = self._aligned_requested = False
        self._too_much_in_flight = False
        """Whether a checkpoint was aborted for that since the last trigger."""
        self._final_at_ms: int | None = None
        self._final_failures = 0
        self._final_complete = False
        self._complete = list(complete)
        self._commits = CommitQueue(config)
        self._savepoints = Savepoints(config)
        self._hold = OutputHold(config.recipes)
        self._quiescing = False
        self._dead = False

    @property
    def complete(self) -> tuple[CheckpointId, ...]:
        """The complete checkpoints that are kept, ascending."""
        return tuple(self._complete)

    @property
    def next_number(self) -> CheckpointId:
        """The number of the next checkpoint."""
        return self._next_id

    @property
    def pending(self) -> tuple[CheckpointId, ...]:
        return tuple(self._pending)

    @property
    def savepoint_phase(self) -> SavepointPhase | None:
        """Where the savepoint under way is; ``None``: there is none."""
        return self._savepoints.phase

    @property
    def held(self) -> CheckpointId | None:
        """The checkpoint behind which sinks hold back rows that would be visible at once; ``None``: they do not."""
        return self._hold.behind

    def next_deadline_ms(self) -> int | None:
        """When to step with ``TimeAdvanced`` unless another event comes first; never in the past of the last step."""
        if self._dead:
            return None
        return earliest_ms(
            *map(self._deadline_of, self._pending.values()),
            *map(self._overtaking_ms, self._pending.values()),
            self._commits.next_deadline_ms(),
            self._savepoints.next_deadline_ms(),
            None if self._holds else self._final_at_ms,
            self._next_periodic_ms() if self._may_trigger() else None,
        )

    def step(self, now_ms: int, event: CheckpointingEvent) -> list[CheckpointingEffect]:
        """The effects of ``event``, and of all that is due at ``now_ms``. Raises ``PeerProtocolError`` or
        ``InvariantViolation``, changing nothing, when the event is impossible."""
        if self._dead and not isinstance(event, events.JobInterrupted | events.QuiesceRequested):
            return []
        found = self._handle(now_ms, event) + self._advance(now_ms)
        return found + self._hold.look(self._savepoints.stops_at, self._generation)

    def _handle(self, now_ms: int, event: CheckpointingEvent) -> list[CheckpointingEffect]:
        match event:
            case events.TimeAdvanced():
                return []
            case events.SubtasksStarted():
                return self._on_running(now_ms, event)
            case events.JobInterrupted():
                return self._on_interrupted(now_ms)
            case events.QuiesceRequested():
                invariant(not self._running, "commits are quiesced while the job runs", generation=self._generation)
                self._quiescing = True
                return []
            case events.CheckpointRequested(aligned, holding):
                self._requested = True
                self._aligned_requested |= aligned
                self._hold.requested |= holding
                return []
            case events.OutputReleased():
                self._hold.release()
                return []
            case events.CheckpointsAbandoned(after):
                return self._on_abandoned(after)
            case events.NumberTaken(checkpoint):
                invariant(not self._running and checkpoint == self._next_id, "another number is next", taken=checkpoint)
                self._next_id = CheckpointId(checkpoint + 1)
                return []
            case events.CheckpointAdopted(checkpoint):
                return self._on_adopted(checkpoint)
            case events.SubtasksReplaced(subtasks):
                return self._on_replaced(now_ms, dict(subtasks))
            case events.SourceExhausted(subtask, generation):
                return self._on_exhausted(now_ms, subtask, generation)
            case events.CheckpointAcknowledged():
                return self._on_acknowledged(now_ms, event)
            case events.CheckpointDeclined():
                return self._on_declined(now_ms, event)
            case events.ManifestStored(checkpoint):
                return self._on_stored(now_ms, checkpoint)
            case events.ManifestFailed(checkpoint, reason):
                return self._on_not_stored(now_ms, checkpoint, reason)
            case events.OutputCommitted(checkpoint):
                done = self._commits.on_committed(checkpoint)
                self._begin_storing(now_ms)
                return done + self._savepoints.on_committed(now_ms, checkpoint) + self._drop_superseded()
            case events.CommitFailed(checkpoint, reason):
                failed = self._commits.on_failed(now_ms, checkpoint, reason)
                self._begin_storing(now_ms)
                return failed
            case events.SavepointRequested():
                return self._savepoints.on_requested(event)
            case events.SavepointProgressed():
                return self._savepoints.on_progress(now_ms, event)
            case events.SavepointCopied():
                return self._savepoints.on_copied(now_ms, event)
            case events.SavepointStored():
                return self._savepoints.on_stored(event)
            case events.SavepointFailed():
                return self._savepoints.on_failed(event)
            case _:
                assert_never(event)

    # ------------------------------------------------------------------------------------ life cycle of the job

    def _on_running(self, now_ms: int, event: events.SubtasksStarted) -> list[CheckpointingEffect]:
        current, started = self._generation, event.generation
        invariant(not self._running, "the job runs already", generation=current)
        invariant(self._storing is None, "the job runs again while a manifest is stored", checkpoint=self._storing)
        invariant(started > current, "a generation was started again", current=current, started=started)
        ending, subtasks = (*event.sources, *event.also_ending), set(event.subtasks)
        is_named_once = len(set(ending)) == len(ending) and len(subtasks) == len(event.subtasks)
        invariant(
            bool(event.sources) and subtasks.issuperset(ending) and is_named_once,
            "a job has sources, they are subtasks of it, and each is named once",
            sources=event.sources,
        )
        self._running = True
        self._quiescing = False
        self._generation = started
        self._subtasks, self._sources = tuple(sorted(event.subtasks)), event.sources
        self._ending = ending
        self._exhausted.clear()
        self._final_at_ms = None
        self._final_failures = 0
        self._final_complete = False
        if self._config.interval_ms is not None:
            self._periodic_at_ms = now_ms + self._config.interval_ms
        return self._hold.started(started)

    def _on_interrupted(self, now_ms: int) -> list[CheckpointingEffect]:
        self._running = False
        self._final_at_ms = self._periodic_at_ms = None
        self._hold.release()
        found: list[CheckpointingEffect] = []
        for pending in tuple(self._pending.values()):
            if pending.checkpoint != self._storing:
                found += self._abort(now_ms, pending, "the job was interrupted")
        return found

    def _on_abandoned(self, after: CheckpointId | None) -> list[CheckpointingEffect]:
        void = [checkpoint for checkpoint in self._complete if after is None or checkpoint > after]
        quiet = not self._running and self._storing is None and not any(known in self._commits for known in void)
        invariant(
            quiet, "checkpoints are abandoned before the job is interrupted and its commits are quiesced", void=void
        )
        self._complete = self._complete[: len(self._complete) - len(void)]
        # Newest first: if this is interrupted, the rest is a prefix of one history.
        return [*self._savepoints.on_abandoned(after), *map(effects.DropCheckpoint, reversed(void))]

    def _on_adopted(self, checkpoint: CheckpointId) -> list[CheckpointingEffect]:
        quiet = not self._running and self._storing is None and not self._commits
        new = checkpoint < self._next_id and all(checkpoint > known for known in self._complete)
        invariant(quiet and new, "a checkpoint is adopted when all is quiet, and is the newest", checkpoint=checkpoint)
        self._complete.append(checkpoint)
        return self._drop_superseded()

    def _on_exhausted(self, now_ms: int, subtask: SubtaskId, generation: Generation) -> list[CheckpointingEffect]:
        if self._is_outdated(generation):
            return []
        if subtask not in self._ending:
            raise PeerProtocolError(f"{subtask} reported that it is exhausted, but it is not a source")
        before = self._all_exhausted()
        self._exhausted.add(subtask)
        if self._all_exhausted() and not before and not self._has_final():
            self._final_at_ms = now_ms
        return []

    def _has_final(self) -> bool:
        """Whether a last checkpoint is pending or complete."""
        return self._final_complete or any(pending.final for pending in self._pending.values())

    def _on_replaced(self, now_ms: int, replaced: dict[SubtaskId, CheckpointId]) -> list[CheckpointingEffect]:
        invariant(set(replaced) <= set(self._subtasks), "replaced subtasks are of the job", replaced=tuple(replaced))
        if not self._running:
            return []
        found: list[CheckpointingEffect] = []
        self._exhausted.difference_update(replaced)
        if not self._all_exhausted():
            self._final_at_ms = None
        for pending in tuple(self._pending.values()):
            again = [s for s in self._subtasks if replaced.get(s, pending.checkpoint) < pending.checkpoint]
            if not again or pending.acknowledged_ms is not None:
                continue
            why = f"{', '.join(str(subtask) for subtask in again)} restarted"
            found += self._abort(now_ms, pending, why, blame=False)
            if pending.final and self._all_exhausted():
                self._final_at_ms = max(self._pause_until_ms, now_ms + self._config.final_retry_ms)
        if self._periodic_at_ms is not None and self._config.interval_ms is not None:
            pause_ms = min(self._config.interval_ms, AFTER_FAILOVER_MS)
            self._periodic_at_ms = max(self._periodic_at_ms, now_ms + pause_ms)
        return found

    def _is_outdated(self, generation: Generation) -> bool:
        if generation > self._generation:
            raise PeerProtocolError(
                f"received a message of generation {generation}, but {self._generation} is the newest started"
            )
        return not self._running or generation < self._generation

    def _all_exhausted(self) -> bool:
        return bool(self._ending) and len(self._exhausted) == len(self._ending)

    # ------------------------------------------------------------------------------------------------- answers

    def _find(self, checkpoint: CheckpointId, subtask: SubtaskId, generation: Generation) -> PendingCheckpoint | None:
        """The pending checkpoint that an answer is for; None when the answer has no effect."""
        if self._is_outdated(generation):
            return None
        if subtask not in self._subtasks:
            raise PeerProtocolError(f"checkpoint {checkpoint} answered by {subtask}, which is not in the job")
        if checkpoint >= self._next_id:
            raise PeerProtocolError(f"{subtask} answered checkpoint {checkpoint}, which was never triggered")
        return self._pending.get(checkpoint)

    def _on_acknowledged(self, now_ms: int, event: events.CheckpointAcknowledged) -> list[CheckpointingEffect]:
        pending = self._find(event.checkpoint, event.subtask, event.generation)
        if pending is None or event.subtask in pending.handles:
            return []
        if event.in_flight_bytes:
            pending.in_flight_bytes[event.subtask] = event.in_flight_bytes
            excess = pending.excess(event.subtask.index, self._config)
            if excess is not None:
                return self._abort(now_ms, pending, excess, cause=AbortCause.OVER_BUDGET)
        pending.handles[event.subtask] = event.handle
        if len(pending.handles) == len(self._subtasks):
            pending.acknowledged_ms = now_ms
        return []

    def _on_declined(self, now_ms: int, event: events.CheckpointDeclined) -> list[CheckpointingEffect]:
        pending = self._find(event.checkpoint, event.subtask, event.generation)
        if pending is None or event.subtask in pending.handles:
            return []
        return self._abort(now_ms, pending, f"{event.subtask} declined: {event.reason}", cause=event.cause)

    def _on_stored(self, now_ms: int, checkpoint: CheckpointId) -> list[CheckpointingEffect]:
        if checkpoint != self._storing:
            return []
        self._storing = None
        pending = self._pending.pop(checkpoint)
        self._pause_until_ms = now_ms + self._config.min_pause_ms
        self._complete.append(checkpoint)
        self._final_complete = self._final_complete or pending.final
        self._commits.add(checkpoint, pending.final)
        self._savepoints.on_complete(checkpoint)
        found: list[CheckpointingEffect] = [effects.CompleteCheckpoint(checkpoint, self._generation)]
        for older in tuple(self._pending.values()):
            if older.checkpoint < checkpoint:
                found += self._abort(now_ms, older, f"superseded by checkpoint {checkpoint}")
        found.append(self._record(now_ms, pending, effects.CheckpointOutcome.COMPLETE, ""))
        return found + self._drop_superseded() + self._sweep(checkpoint)

    def _sweep(self, complete: CheckpointId) -> list[CheckpointingEffect]:
        self._unswept += 1
        if self._unswept < self._config.sweep_every:
            return []
        self._unswept = 0
        return [effects.SweepState(complete, CheckpointId(self._next_id - 1))]

    def _begin_storing(self, now_ms: int) -> None:
        """Start the manifest's timeout, once no commit is in flight before it."""
        if self._storing_until_ms is None and not self._commits.in_flight:
            self._storing_until_ms = now_ms + self._config.storage_timeout_ms

    def _on_not_stored(self, now_ms: int, checkpoint: CheckpointId, reason: str) -> list[CheckpointingEffect]:
        if checkpoint != self._storing:
            return []
        self._storing = None
        found = self._abort(now_ms, self._pending[checkpoint], f"manifest not stored: {reason}")
        # A store that failed may still have happened; a later resume must not find an aborted checkpoint.
        return [*found, effects.DropCheckpoint(checkpoint)]

    def _drop_superseded(self) -> list[CheckpointingEffect]:
        found: list[CheckpointingEffect] = []
        while len(self._complete) > self._config.retained:
            if self._complete[0] in self._commits or self._complete[0] == self._savepoints.pinned:
                break
            found.append(effects.DropCheckpoint(self._complete.pop(0)))
        return found

    def _abort(
        self,
        now_ms: int,
        pending: PendingCheckpoint,
        reason: str,
        blame: bool = True,
        cause: AbortCause = AbortCause.OTHER,
    ) -> list[CheckpointingEffect]:
        """``blame``: whether this counts as a failed attempt at a last checkpoint."""
        del self._pending[pending.checkpoint]
        self._hold.aborted(pending.checkpoint)
        self._too_much_in_flight |= cause is AbortCause.OVER_BUDGET
        self._pause_until_ms = now_ms + self._config.min_pause_ms
        found: list[CheckpointingEffect] = [
            effects.AbortCheckpoint(pending.checkpoint, reason, self._generation),
            self._record(now_ms, pending, effects.CheckpointOutcome.ABORTED, reason, cause),
        ]
        found += self._savepoints.on_aborted(pending.checkpoint, reason, blame and self._running)
        if pending.final and self._running and blame:
            self._final_failures += 1
            if self._final_failures >= self._config.final_attempts:
                found.append(events.FinalAbandoned(pending.checkpoint, self._generation, reason))
            elif self._all_exhausted():
                self._final_at_ms = max(self._pause_until_ms, now_ms + self._config.final_retry_ms)
        return found

    def _record(
        self,
        now_ms: int,
        pending: PendingCheckpoint,
        outcome: effects.CheckpointOutcome,
        reason: str,
        cause: AbortCause | None = None,
    ) -> effects.RecordCheckpoint:
        stats = pending.stats(self._generation, outcome, reason, now_ms, len(self._subtasks), cause)
        return effects.RecordCheckpoint(stats)

    # ---------------------------------------------------------------------------------------------- what is due

    def _advance(self, now_ms: int) -> list[CheckpointingEffect]:
        found: list[CheckpointingEffect] = []
        if not self._dead:
            found += self._time_out(now_ms)
            found += self._let_overtake(now_ms)
            found += self._commits.advance(now_ms)
            self._dead = self._dead or self._commits.abandoned
        if not self._dead:
            input_ended = self._running and (self._all_exhausted() or self._has_final())
            found += self._savepoints.advance(now_ms, input_ended)
            found += self._store_next(now_ms)
            found += self._trigger_due(now_ms)
        if self._quiescing and (self._dead or (self._storing is None and not self._commits)):
            self._quiescing = False
            found.append(events.CommitsQuiesced())
        return found

    def _deadline_of(self, pending: PendingCheckpoint) -> int | None:
        if pending.checkpoint == self._storing:
            return self._storing_until_ms
        return pending.triggered_ms + self._config.timeout_ms

    def _time_out(self, now_ms: int) -> list[CheckpointingEffect]:
        found: list[CheckpointingEffect] = []
        for pending in tuple(self._pending.values()):
            deadline_ms = self._deadline_of(pending)
            if deadline_ms is None or now_ms < deadline_ms:
                continue
            if pending.checkpoint == self._storing:
                reason = f"the manifest was not answered within {self._config.storage_timeout_ms} ms"
                self._storing = None
                self._dead = True
                found += [*self._abort(now_ms, pending, reason), events.CommitAbandoned(pending.checkpoint, reason)]
            else:
                found += self._abort(now_ms, pending, pending.missing(self._subtasks, self._config))
        return found

    def _overtaking_ms(self, pending: PendingCheckpoint) -> int | None:
        """When to order that its barriers may overtake; None: never, or already ordered."""
        timeout_ms = self._config.aligned_timeout_ms
        done = pending.final or pending.overtakes or pending.acknowledged_ms is not None
        if timeout_ms is None or done or not pending.may_overtake:
            return None
        return pending.triggered_ms + timeout_ms

    def _let_overtake(self, now_ms: int) -> list[CheckpointingEffect]:
        found: list[CheckpointingEffect] = []
        for pending in self._pending.values():
            due_ms = self._overtaking_ms(pending)
            if due_ms is not None and now_ms >= due_ms:
                pending.overtakes = True
                found.append(effects.OvertakeCheckpoint(pending.checkpoint, self._generation))
        return found

    def _store_next(self, now_ms: int) -> list[CheckpointingEffect]:
        if self._storing is not None:
            return []
        for pending in self._pending.values():
            if pending.acknowledged_ms is not None:
                self._storing = pending.checkpoint
                self._storing_until_ms = None
                self._begin_storing(now_ms)
                handles = tuple((subtask, pending.handles[subtask]) for subtask in self._subtasks)
                return [effects.StoreManifest(pending.checkpoint, handles, pending.final, self._generation)]
        return []

    @property
    def _holds(self) -> bool:
        """Whether no other checkpoint may be triggered."""
        return self._savepoints.holds or self._hold.active

    def _may_trigger(self) -> bool:
        """Whether the limits allow a checkpoint other than the last one."""
        return (
            self._running
            and not self._holds
            and not self._all_exhausted()
            and not self._has_final()
            and len(self._pending) < self._config.max_concurrent
            and len(self._commits) < self._config.max_uncommitted
        )

    def _next_periodic_ms(self) -> int | None:
        return None if self._periodic_at_ms is None else max(self._periodic_at_ms, self._pause_until_ms)

    def _trigger_due(self, now_ms: int) -> list[CheckpointingEffect]:
        if self._holds:
            return []
        if self._final_at_ms is not None and self._final_at_ms <= now_ms:
            self._final_at_ms = None
            return self._trigger(now_ms, final=True)
        if not self._may_trigger():
            return []
        periodic_ms, wanted = self._next_periodic_ms(), self._savepoints.waiting
        if not wanted and not self._requested and (periodic_ms is None or now_ms < periodic_ms):
            return []
        self._requested = False
        if self._config.interval_ms is not None:
            self._periodic_at_ms = now_ms + self._config.interval_ms
        return self._trigger(now_ms, final=False, savepoint=wanted)

    def _trigger(self, now_ms: int, final: bool, savepoint: bool = False) -> list[CheckpointingEffect]:
        checkpoint = self._next_id
        self._next_id = CheckpointId(checkpoint + 1)
        may_overtake = not (self._too_much_in_flight or self._aligned_requested or savepoint)
        self._pending[checkpoint] = PendingCheckpoint(checkpoint, final, now_ms, may_overtake=may_overtake)
        self._too_much_in_flight = self._aligned_requested = False
        if savepoint:
            self._savepoints.on_triggered(checkpoint)
        self._hold.triggered(checkpoint)
        return [
            *self._hold.look(self._savepoints.stops_at, self._generation),  # before the first barrier
            *self._let_overtake(now_ms),
            effects.TriggerCheckpoint(checkpoint, self._sources, final, self._generation),
        ]
