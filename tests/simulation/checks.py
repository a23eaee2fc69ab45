"""What must always hold (design, section 12): one checker for each invariant, looked at after every step.

1. *results*: what is visible is right at every commit, and whole at the end, which every subtask has reached; a message
   that is made again is the same.
2. *generations*: nobody is promoted whom ZooKeeper does not know; a fenced generation has no effect any more.
3. *retention*: nothing is trimmed that a recovery line may need; in a healthy job nothing is kept for long.
4. *chains*: a version that counts as stable is on every member that counts; a copy is what the head of its generation
   had.
5. *checkpoints*: a complete one is a consistent cut, and every file that it names is in durable storage.
6. *repetition*: whoever is promoted repeats all steps that anybody alive has seen an effect of, through whomever.
7. *event time*: no row comes behind a watermark that is later; a subtask's watermark never goes back.
8. *in flight*: what snapshots hold of it is within the budget of the slot while they are made, and within those of
   snapshot, slot and job in every complete checkpoint; nothing of it is kept for longer.
9. *moves*: no standby leaves a chain but for others that have its state; a drained host gets nothing new; what is said
   to be done is so; every request, handover and failover that begins also ends (see ``endings``).
10. *plans*: every complete checkpoint, and every deployment, is of all subtasks of the one parallelism that is in
   force; a divided checkpoint has all of the one before, each part once, where it belongs.
11. *savepoints*: the checkpoint that is copied is aligned, whole, and all its output is visible; a job that stops with
   it has nothing visible behind it; a new job that begins with it gives the right results.
12. *recipes*: whatever is visible at once, the recipe stored with it makes it again: it has every step behind the last
   complete checkpoint that a visible row depends on. What is made again is the same, and nothing becomes visible twice.
13. *progress*: once all is healed the job ends within a bounded number of steps (see ``world``); of two slots of a
   running job that do not reach each other, one is given up before long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from dedup.filter import MessageFilter
from flinkplus.errors import UserFunctionError
from flinkplus.protocol.channels.channel import REPLAY_WINDOWS
from flinkplus.protocol.channels.outputs import MAX_UNSENT_MESSAGES, MAX_UNSENT_TO_FAILED
from flinkplus.protocol.channels.watermarks import IDLE_MS
from flinkplus.protocol.determinants.recipe import Division, StoredOutput, read_recipe
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId, parallelism_of
from flinkplus.protocol.vocabulary.in_flight import JOB_SLOTS, SUBTASK_SHARE, AbortCause, cost_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.coordinator.setup.configs import topology_of
from tests.simulation.causes import Causes
from tests.simulation.graph import Row
from tests.simulation.live import blocks_of
from tests.simulation.network import GARBLED
from tests.simulation.subtask import event_time_ms, fold, packed_bytes, unpacked, work_of

if TYPE_CHECKING:
    from flinkplus.protocol.channels.inputs import InputChannel
    from flinkplus.protocol.channels.outputs import OutputChannel
    from tests.simulation.slot import SimSlot
    from tests.simulation.subtask import SimSubtask, WatchedLog
    from tests.simulation.table import Cut
    from tests.simulation.world import World

Content = tuple[MessageKind, Any, int, int, bytes, int]
NOTHING: dict[int, Content] = {}
MOST_OF_A_STEP = 3
"""Messages that a step puts into one channel."""
UNREACHED_MS = 2_500
JUDGED_MS = 500
NOT_UNDERSTOOD_MS = 4_000
"""For so long one process may send another frames that cannot be read; then one should have been given up."""
"""How long two slots may not reach each other; and in a job that has just begun to run (again)."""
MOST_UNNAMED = 14
"""Complete checkpoints during which a state file may be stored that no manifest names."""
HEALTHY_VERSIONS = 4
"""Complete checkpoints that output logs may go back to when nothing ever failed."""


@dataclass(frozen=True)
class Parallelism:
    """What a user asks for who wants so many ``subtasks`` of each vertex."""

    subtasks: int


Moved: TypeAlias = SubtaskId | str | int | Parallelism
"""What a request is about: a subtask, a host, a number of spare slots, a parallelism."""


class Violation(AssertionError):
    """An invariant does not hold. ``invariant``: which one, by the names above."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant


def content_of(message: Message) -> Content:
    epoch = message.epoch if message.kind is MessageKind.BARRIER else 0
    return message.kind, message.records, message.size, epoch, message.determinants, message.watermark_ms


class Checks:
    """All checkers of one world. ``exact``: messages are the same whenever they are made."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parallelism = world.parameters.parallelism
        self._since = 0
        self._malformed: dict[tuple[int, int], tuple[int, int]] = {}  # since when, and the last time
        self.exact = world.options.promises.repeats
        self._expected = world.graph.expected()
        self._lineage = topology_of(world.graph, 1).lineage(None)  # type: ignore[arg-type]
        self._accepted: dict[ChannelId, dict[int, Content]] = {}
        self._at_work: dict[SubtaskId, SimSubtask] = {}
        self._fenced: dict[tuple[int, SubtaskId], int] = {}
        self.causes = Causes()
        self._trims = 0
        self._chains: dict[str, list[Any]] = {}
        self._holders: dict[int, SimSlot | None] = {}
        self._made: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self._formed: dict[tuple[int, str], int] = {}
        self._files_of: dict[tuple[SubtaskId, int], tuple[str, ...]] = {}
        self._cuts: list[tuple[int, dict[ChannelId, int]]] = []
        self._steps_at: list[dict[SubtaskId, int]] = []
        self.counts = dict.fromkeys(
            (
                "accepted",
                "appended",
                "trimmed",
                "cuts",
                "rows",
                "promotions",
                "dependent",
                "whims",
                "in_flight",
                "put_back",
                "recorded",
                "overtaken",
                "over_budget",
                "overdraft_held",
                "rounds",
                "came_round",
                "bundles",
                "joint_bundles",
                "repeated_bundles",
                "joined_steps",
                "joined_reads",
                "stable",
                "bounded",
                "copied",
                "moves_begun",
                "moves_judged",
                "thinned",
                "left_out",
                "held_to_barrier",
                "watermarks",
                "known_ids",
                "old_ids",
                "divided",
                "output_divided",
                "saved",
                "transactions",
                "refused_transactions",
                "asked",
                "not_written_again",
                "live_reads",
                "answers_taken",
                "answers_repeated",
                "awaited_rows",
                "said_idle",
                "ticks",
                "repeated_ticks",
                "fenced_output",
            ),
            0,
        )

    def _wrong(self, invariant: str, why: str) -> NoReturn:
        violated = self._world.violated or Violation(invariant, why)
        self._world.violated = violated  # code that catches what is raised here must not hide it
        raise violated

    # --- slots

    def not_reached(self, ends: tuple[SimSlot, SimSlot], lasts: Callable[[], bool], first: bool = True) -> None:
        """One end has found that it does not reach the other. ``lasts``: whether that is so still."""
        world = self._world
        wait_ms = UNREACHED_MS if first else JUDGED_MS
        world.at(world.now_ms + wait_ms, self._still_not_reached, ends, lasts, first)

    def _still_not_reached(self, ends: tuple[SimSlot, SimSlot], lasts: Callable[[], bool], first: bool) -> None:
        if not lasts() or not self._are_both_in_the_job(ends):
            return
        if first:
            self.not_reached(ends, lasts, first=False)
        else:
            self._wrong("progress", f"{ends[0]} and {ends[1]} do not reach each other, and none is given up")

    def _are_both_in_the_job(self, ends: tuple[SimSlot, SimSlot]) -> bool:
        world, coordinator = self._world, self._world.coordinator
        if coordinator is None or any(end.paused for end in ends):
            return False
        machines = coordinator.parts.machines
        joined = machines.failover is None or all(machines.failover.is_alive(end.index) for end in ends)
        if machines.job.state is not JobState.RUNNING or not joined:
            return False
        return all(world.process_of(end.index) is end for end in ends)

    def malformed(self, receiver: SimSlot, sender: int, frame: bytes) -> None:
        """A slot cannot read a frame."""
        if frame[:1] != bytes([GARBLED]):
            self._wrong("frames", f"{receiver} cannot read a frame of slot {sender} that nothing has garbled")
        self._not_understood(receiver, sender)

    def foreign(self, receiver: SimSlot, sender: int, error: Exception) -> None:
        """A slot was sent what was not the sender's to send."""
        self._world.note("%s: %s", receiver, error)
        if (sender, receiver.index) not in self._world.forged:
            self._wrong("frames", f"{receiver} blames a slot that has sent nothing but its own: {error}")
        self._not_understood(receiver, sender)

    def _not_understood(self, receiver: SimSlot, sender: int) -> None:
        process = self._world.process_of(sender)
        if process is None:
            return
        key, now_ms = (receiver.process, process.process), self._world.now_ms
        since_ms, last_ms = self._malformed.get(key, (now_ms, now_ms))
        if now_ms - last_ms > NOT_UNDERSTOOD_MS:
            since_ms = now_ms
        self._malformed[key] = since_ms, now_ms
        if now_ms - since_ms > NOT_UNDERSTOOD_MS and self._are_both_in_the_job((receiver, process)):
            self._wrong("progress", f"{process} sends {receiver} what cannot be read, time and again, and is kept")

    def unbounded(self, who: str, what: str, waited_ms: int) -> None:
        """Something waited for longer than its limit."""
        self._wrong("progress", f"{who} waited {waited_ms} ms for {what}")

    def unexplained(self, deadline: str, what: str) -> None:
        """``deadline`` fires, and no fault made what was waited for late."""
        self._wrong("progress", f"no injected fault explains that the deadline of a {deadline} fires: {what}")

    # --- subtasks and their messages

    def began(self, subtask: SimSubtask) -> None:
        """A subtask begins to be; what its predecessor had accepted beyond its version counts no more."""
        before = self._at_work.get(subtask.id)
        if subtask.generation < self._since or (before is not None and before.generation >= subtask.generation):
            self.causes.seen.setdefault(subtask.id, {})
            return  # of a zombie's
        self._at_work[subtask.id] = subtask
        if not self.exact:
            return
        self.causes.began(subtask)
        for channel, end in subtask.inputs.channels.items():
            known = self._accepted.setdefault(channel, {})
            for seq in [seq for seq in known if seq >= end.cursor.consumed]:
                del known[seq]
        if subtask.plan.promotion is not None:
            self.counts["promotions"] += 1
            record = self._world.registry.records.get(subtask.id)
            if record is None or record.generation < subtask.generation:
                self._wrong(
                    "generations",
                    f"{subtask.id} becomes active in generation {subtask.generation}, and ZooKeeper has {record}",
                )
            self._check_neighbours(subtask)
            self._check_repetition(subtask)

    def _check_neighbours(self, subtask: SimSubtask) -> None:
        """Whatever a promoted subtask will be asked for, and will ask for, is there."""
        generations = subtask.slot.generations
        for channel, out in subtask.outputs.channels.items():
            taker = self._at_work.get(subtask.consumer_of(channel))
            if taker is not None and taker.generation == generations[taker.id] and not taker.closed:
                expected = taker.inputs.channels[channel].cursor.expected
                if out.log.trimmed > expected:
                    self._wrong(
                        "retention",
                        f"{subtask.id} begins {channel} at {out.log.trimmed}, and {taker.id} has received it to "
                        f"{expected}",
                    )
        for channel, end in subtask.inputs.channels.items():
            maker = self._at_work.get(end.producer)
            if maker is not None and maker.generation == generations[maker.id] and not maker.closed:
                begins = maker.outputs.channels[channel].log.trimmed
                if begins > end.cursor.consumed:
                    self._wrong(
                        "retention",
                        f"{subtask.id} needs {channel} from {end.cursor.consumed} on, {maker.id} has it from {begins} "
                        "on",
                    )

    def _check_repetition(self, subtask: SimSubtask) -> None:
        """It repeats every step that one who lives, or is promoted with it, depends on."""
        if subtask.steps.history.steps is None:
            return
        repeated = subtask.steps.history.steps.next_step + len(subtask.steps.replay.determinants)
        for other in self._at_work.values():
            if other is subtask or other.closed or other.generation < subtask.slot.generations[other.id]:
                continue
            self.counts["dependent"] += 1
            seen = self.causes.seen[other.id].get(subtask.id, 0)
            if seen > repeated:
                self._wrong(
                    "repetition",
                    f"{other.id} has seen effects of {subtask.id} up to step {seen}, it repeats up to {repeated}",
                )

    def is_at_work(self, subtask: SimSubtask) -> bool:
        return self._at_work.get(subtask.id) is subtask

    def accepted(self, subtask: SimSubtask, end: InputChannel, message: Message) -> None:
        """``subtask`` took a message as the next one."""
        self.counts["accepted"] += 1
        fenced = self._fenced.get((subtask.slot.process, end.producer), 0)
        if message.generation < fenced:
            self._wrong(
                "generations",
                f"{subtask.id} took message {message.seq} of {message.channel} in generation {message.generation}, "
                f"after its slot had fenced generation {fenced}",
            )
        held = end.cursor._received - end.cursor._consumed
        window = self._world.parameters.window * (REPLAY_WINDOWS if subtask.plan.promotion is not None else 1)
        if held > window and subtask.plan.unaligned:  # a barrier overtook; barriers themselves do not count
            waiting = len(end.queue) - end.put_back
            held -= sum(end.queue[-1 - at][0].kind is MessageKind.BARRIER for at in range(waiting))
            replayed = subtask.plan.promotion is not None or message.generation > subtask.generation
            window += (MAX_UNSENT_TO_FAILED if replayed else MAX_UNSENT_MESSAGES) + MOST_OF_A_STEP
        if held > window and not self._world.parameters.at_once:  # what recipes bind is sent without credit
            self._wrong("retention", f"{subtask.id} holds {held} messages, its window is {window}")
        self._check_bytes_held(subtask, end, message)
        if self._at_work.get(subtask.id) is subtask and self.exact:
            self.causes.arrived(subtask, message)
            self._accepted[message.channel][message.seq] = content_of(message)

    def _check_bytes_held(self, subtask: SimSubtask, end: InputChannel, message: Message) -> None:
        """A producer sends nothing new when a window of bytes is in flight. What is sent again, and what a barrier that
        overtakes takes with it, does not count."""
        before = end.waiting_bytes - message.size
        replayed = subtask.plan.promotion is not None or message.generation > subtask.generation or end.put_back
        replayed = replayed or self._world.parameters.at_once
        if before >= self._world.parameters.window_bytes and not (replayed or subtask.plan.unaligned):
            self._wrong("retention", f"{subtask.id} held {before} bytes of {end.channel}, and more were sent")

    def appended(self, subtask: SimSubtask, message: Message) -> None:
        """``subtask`` made a message, perhaps again."""
        self.counts["appended"] += 1
        if self._world.parameters.loops:
            self._check_memory(subtask, message.channel)
        if not self.exact:
            return
        self.causes.made(subtask, message)
        consumer = subtask.consumer_of(message.channel)
        taker = self._at_work.get(consumer)
        if not self.is_at_work(subtask) or taker is None or taker.generation < subtask.slot.generations[consumer]:
            return  # the consumer is being replaced as well: what it had taken binds nobody
        known = self._accepted.get(message.channel, NOTHING).get(message.seq)
        if known is not None and known != content_of(message):
            self._wrong(
                "results",
                f"{subtask.id} made message {message.seq} of {message.channel} again, and it is another: {known} "
                f"before, {content_of(message)} now",
            )

    def _check_memory(self, subtask: SimSubtask, channel: ChannelId) -> None:
        """What waits on a back edge is on disk when there is no memory for it."""
        end, retention = subtask.outputs.channels[channel], subtask.slot.retention
        if not end.is_back or retention is None or retention.blocked is not None:
            return
        log: Any = end.log
        held = log.appended - log.kept
        if held and retention.memory_bytes > retention.budget_bytes:
            self._wrong("retention", f"{channel} holds {held} messages in memory, and there is no room")

    def on_time(self, subtask: SimSubtask, message: Message, watermark_ms: int | None) -> None:
        """``subtask`` works on a message of records; ``watermark_ms``: of its channel."""
        if not self.exact:
            return
        if watermark_ms is None or self._world.parameters.idle_ms is not None:
            return  # rows of a source that was idle may be late
        for row in message.records:
            if event_time_ms(row) < watermark_ms:
                self._wrong("event time", f"{subtask.id} is given {row} on {message.channel}, behind {watermark_ms} ms")

    def works(self, subtask: SimSubtask) -> None:
        """``subtask`` begins to work on rows. In a synchronous checkpoint nobody does from its snapshot to the end."""
        coordinator, checkpoint = self._world.coordinator, subtask.snapshot_of
        if not self._world.parameters.synchronous or coordinator is None or not self.is_at_work(subtask):
            return
        if checkpoint in coordinator.parts.machines.checkpoints.pending:
            self._wrong("synchronous", f"{subtask.id} works on while checkpoint {checkpoint} is pending")

    def begins_step(self, subtask: SimSubtask) -> None:
        """``subtask`` is about to do something: no barrier may be waiting that overtakes."""
        if subtask.steps.overdue:
            self._wrong("unaligned", f"{subtask.id} goes on while a barrier is to overtake")

    def _check_in_flight(self, checkpoint: int, subtask: SubtaskId, saved: OperatorState) -> None:
        """What a snapshot holds of each channel is all from what its state was to take next up to the barrier."""
        for channel, first in work_of(saved)["next"].items():
            held = [message[3] for message in saved.in_flight.get(channel, ())]
            end = saved.inputs[channel]
            if held != list(range(first, end)):
                self._wrong(
                    "unaligned",
                    f"checkpoint {checkpoint} of {subtask} holds {held} of {channel}, in flight were "
                    f"those from {first} to {end}",
                )
            if held:
                self.counts["recorded"] += len(held) - 1
                self.counts["overtaken"] += 1

    def takes_in_loop(self, subtask: SimSubtask, end: InputChannel, message: Message) -> None:
        """``subtask`` takes a message off ``end``, which is a back edge, or takes a round of a loop."""
        if end.put_back:
            self.counts["put_back"] += message.kind is MessageKind.RECORDS
        if message.kind is MessageKind.ROUND:
            self.counts["rounds"] += 1
        elif message.kind is MessageKind.RECORDS:
            self.counts["came_round"] += len(message.records)

    def holds_nothing(self, subtask: SimSubtask, checkpoint: CheckpointId, held: int) -> None:
        """``subtask`` takes the snapshot of ``checkpoint``; ``held``: rows that were to leave before."""
        if held:
            self._wrong("held rows", f"{subtask.id} has {held} rows at its snapshot of {checkpoint}")

    def takes_watermark(self, subtask: SimSubtask, message: Message, before_ms: int | None) -> None:
        """``before_ms``: of the channel, so far."""
        if not self.exact:
            return
        if before_ms is not None and message.watermark_ms <= before_ms and message.watermark_ms != IDLE_MS:
            self._wrong(
                "event time",
                f"{subtask.id} takes {message.watermark_ms} ms on {message.channel}, which is at {before_ms} ms",
            )

    def advances(self, subtask: SimSubtask, watermark_ms: int) -> None:
        """The watermark of ``subtask`` rises."""
        self.counts["watermarks"] += 1
        if watermark_ms <= subtask.advanced_ms:
            self._wrong("event time", f"{subtask.id} goes back from {subtask.advanced_ms} ms to {watermark_ms} ms")
        subtask.advanced_ms = watermark_ms
        self._world.note("%s has come to %s ms of event time", subtask.id, watermark_ms)

    def trimmed(self, subtask: SimSubtask, log: WatchedLog) -> None:
        """A log forgot something."""
        self.counts["trimmed"] += 1
        if (
            subtask.plan.alone
            or not self._world.options.standbys
            or subtask.closed
            or not self.is_at_work(subtask)
            or not self.exact
        ):
            return
        oldest = self._cuts[-1][1].get(log.channel, 0) if self._cuts else 0  # type: ignore[call-overload]
        if log.trimmed > oldest:
            self._wrong(
                "retention",
                f"{subtask.id} trimmed {log.channel} to {log.trimmed}; the last complete checkpoint stands at {oldest}",
            )

    def stepped(self, subtask: SimSubtask) -> None:
        """A step was taken, or a part of one."""
        self._check_held(subtask)
        for end in subtask.outputs.channels.values():
            log: Any = end.log
            if not (log.trimmed <= log.acknowledged <= log.sent <= log.appended or subtask.closed):
                self._wrong(
                    "retention",
                    f"{end.channel}: trimmed {log.trimmed}, acknowledged {log.acknowledged}, sent {log.sent}, "
                    f"appended {log.appended}",
                )
            if self._world.options.partial and log.trimmed < log.acknowledged and not subtask.closed:
                self._wrong(
                    "retention",
                    f"{end.channel} is consumed up to {log.acknowledged}, and kept from {log.trimmed} on, for nobody",
                )

    def overdrawn(self, before: list[tuple[OutputChannel, int, int]]) -> None:
        """Barriers that overtake were to be sent without credit; of each channel, ``limit`` and ``sent`` before."""
        for end, limit, sent in before:
            log: Any = end.log
            if end.limit > limit and sent < log.resend_end:
                self._wrong(
                    "unaligned",
                    f"{end.channel} is sent from {sent} to {end.limit} without credit, and up to {log.resend_end} "
                    "that is sent again",
                )
            if end.limit <= limit and not end.resuming and sent < log.resend_end:
                self.counts["overdraft_held"] += 1
                self._world.note("%s: the barrier waits behind what is sent again, for credit", end.channel)

    def overtook(self, subtask: SimSubtask, checkpoint: int) -> None:
        """``subtask`` chose to begin a checkpoint, and recorded what waits."""
        state = subtask.steps.checkpoints.channel_state
        for logs in (state._of_snapshots.get(checkpoint), state._persisting.get(checkpoint)):  # type: ignore[call-overload]
            if logs is not None and logs.excess:
                self._wrong("unaligned", f"{subtask.id} overtook for checkpoint {checkpoint}, but {logs.excess}")

    def failed(self, subtask: SimSubtask, error: Exception) -> None:
        """``error`` counts as the failure of ``subtask``."""
        if isinstance(error, UserFunctionError) and error.subtask != str(subtask.id):
            self._wrong("progress", f"{subtask.id} counts as failed for what {error.subtask} has thrown")
        if isinstance(error, ConnectionError):
            self._wrong("progress", f"{subtask.id} counts as failed for what the network does: {error}")

    def fences(self, slot: SimSlot, order: control.Fence) -> None:
        """A slot is about to fence."""
        for name in order.failed:
            key = slot.process, parse_subtask(name)
            self._fenced[key] = max(order.generation, self._fenced.get(key, 0))

    # --- checkpoints and output

    def completed(self, checkpoint: int, handles: dict[SubtaskId, SnapshotHandle]) -> None:
        """The manifest of a checkpoint is stored."""
        self._check_plan(f"checkpoint {checkpoint}", set(handles))
        if self._cuts and checkpoint <= self._cuts[-1][0]:
            self._wrong("checkpoints", f"checkpoint {checkpoint} is complete after {self._cuts[-1][0]}")
        self.counts["cuts"] += 1
        world, cut = self._world, {}
        for subtask, handle in handles.items():
            names = tuple(file.name for file in handle.files)
            for name in names:
                if name not in world.durable.state:
                    self._wrong("checkpoints", f"checkpoint {checkpoint} names {name}, which is not stored")
            self._files_of[subtask, checkpoint] = names
            if world.parameters.aligned_timeout_ms is not None:
                self._check_in_flight(checkpoint, subtask, handle.operator_state)
            for logged in handle.operator_state.in_flight.values():
                self.counts["in_flight"] += sum(message[0] == MessageKind.RECORDS for message in logged)
        self._check_budget(checkpoint, handles)
        for channel, producer, consumer in world.graph.channels(self._parallelism):
            sent = handles[producer].operator_state.outputs.get(str(channel), 0)
            received = handles[consumer].operator_state.inputs.get(str(channel), 0)
            cut[channel] = received
            if sent != received and self.exact:
                self._wrong(
                    "checkpoints",
                    f"checkpoint {checkpoint} is no consistent cut: {producer} had sent {sent} on {channel}, and "
                    f"{consumer} had taken {received}",
                )
        self._cuts.append((checkpoint, cut))
        self._steps_at.append(self._steps_that_were_taken({s: h.operator_state for s, h in handles.items()}))
        self._world.note("checkpoint %s is complete", checkpoint)
        self._check_that_logs_are_trimmed()
        self._check_leaks()

    # --- savepoints

    def is_savepoint(self, checkpoint: int, handles: Mapping[SubtaskId, SnapshotHandle] | None) -> None:
        """``checkpoint`` is copied to a savepoint. ``handles``: those of its manifest, if that is there."""
        durable = self._world.durable
        if handles is None:
            self._wrong("savepoints", f"checkpoint {checkpoint} is gone before it was copied")
        self.counts["saved"] += 1
        for subtask, handle in handles.items():
            if handle.overtaken:
                self._wrong("savepoints", f"barriers have overtaken messages to {subtask} in checkpoint {checkpoint}")
            for file in handle.files:
                if file.name not in durable.state:
                    self._wrong("savepoints", f"{file.name} of checkpoint {checkpoint} is gone before it was copied")
            for name, *_ in work_of(handle.operator_state)["staged"]:
                if name not in durable.visible:
                    self._wrong("savepoints", f"checkpoint {checkpoint} is copied, and {name} is not committed")

    def stopped(self, stored: tuple[int, frozenset[str]] | None) -> None:
        """The job has stopped. ``stored``: the checkpoint of the savepoint, and what was visible then."""
        if stored is None:
            self._wrong("savepoints", "the job has stopped, and its savepoint is not there")
        behind = sorted(self._world.durable.visible - stored[1])
        if behind:
            self._wrong("savepoints", f"{behind[:3]} are visible, and behind checkpoint {stored[0]} of the savepoint")
        self._nothing_behind(stored[0], list(self._world.table.recorded))

    def begins_with(self, checkpoint: int, handles: Mapping[SubtaskId, SnapshotHandle]) -> None:
        """A new job begins with the savepoint that is ``checkpoint``; what was behind it did not happen."""
        self._parallelism = parallelism_of(handles)
        kept = sum(number <= checkpoint for number, _ in self._cuts)
        del self._cuts[kept:], self._steps_at[kept:]
        self._begin_anew(handles)

    def _begin_anew(self, handles: Mapping[SubtaskId, SnapshotHandle]) -> None:
        """The job begins with these snapshots, and nothing else is at work."""
        self._since = self._world.next_generation
        self._at_work.clear()
        self._accepted.clear()
        self.causes.divided(
            [
                (message.channel, message.seq)
                for handle in handles.values()
                for messages in handle.operator_state.in_flight.values()
                for message in map(unpacked, messages)
            ]
        )

    # --- another parallelism

    def begins(self, parallelism: int) -> None:
        """The job begins at the start of its input, with so many subtasks of each vertex."""
        if parallelism != self._parallelism:
            self._parallelism = parallelism
            self._begin_anew({})

    def _check_plan(self, what: str, subtasks: set[SubtaskId]) -> None:
        """``what`` is of all subtasks of the parallelism that is in force, and of no others."""
        wanted = set(self._world.graph.subtasks(self._parallelism))
        if subtasks != wanted:
            wrong = sorted(map(str, subtasks ^ wanted))
            self._wrong("plans", f"{what} is not of parallelism {self._parallelism}, which is in force: {wrong}")

    def not_divided(self, checkpoint: int, error: Exception) -> None:
        """``checkpoint`` could not be divided, and neither was it refused nor did the storage fail."""
        self._wrong("plans", f"checkpoint {checkpoint} was not divided: {type(error).__name__}: {error}")

    def divided(
        self, checkpoint: int, before: Mapping[SubtaskId, SnapshotHandle], handles: Mapping[SubtaskId, SnapshotHandle]
    ) -> None:
        """``checkpoint`` is stored, which was made of the snapshots ``before``. From now on its subtasks are those of
        the job, whatever the others still do."""
        graph = self._world.graph
        self._check_plan(f"what became checkpoint {checkpoint}", set(before))
        self._parallelism = parallelism_of(handles)
        self._begin_anew(handles)
        self.counts["divided"] += 1
        for at, vertex in enumerate(graph.vertices):
            old = [before[subtask] for subtask in sorted(before) if subtask.vertex == vertex.name]
            new = [handles[subtask] for subtask in sorted(handles) if subtask.vertex == vertex.name]
            self._check_division(f"v{at} in checkpoint {checkpoint}", at, old, new)
        self.completed(checkpoint, dict(handles))

    def _check_division(self, where: str, at: int, old: list[SnapshotHandle], new: list[SnapshotHandle]) -> None:
        """All of one vertex is there once, and where it belongs; its event time neither goes back nor ahead."""
        graph, is_source = self._world.graph, self._world.graph.vertices[at].is_source
        works = [[work_of(handle.operator_state) for handle in handles] for handles in (old, new)]
        left, dealt = (
            sorted(block for work in some for run in work["left"] for block in blocks_of(run, graph.blocks))
            for some in works
        )
        if is_source and left != dealt:
            self._wrong("plans", f"{where}: the records {left} were left, and {dealt} are dealt")
        counts: dict[int, int] = {}
        for handle in old:
            counts.update(fold(self._world.files, [file.name for file in handle.files]))
        for key, count in counts.items():
            found = [fold(self._world.files, [file.name for file in handle.files]).get(key) for handle in new]
            wanted = [count if index == graph.owner(key, len(new)) else None for index in range(len(new))]
            if found != wanted:
                self._wrong("plans", f"{where}: key {key} was counted {count} times, and its counts are {found}")
        before, after = (Counter(row for work in some for row in _rows_of(work)) for some in works)
        if before != after:
            self._wrong("plans", f"{where}: rows that were held back are lost, or there twice")
        times = [[work["advanced_ms"] for work in some] for some in works]
        if not all(min(times[0]) <= time_ms <= max(times[0]) for time_ms in times[1]):
            self._wrong("plans", f"{where}: the event time was {times[0]}, and is {times[1]}")
        moving = [
            Counter(
                row
                for handle in handles
                for messages in handle.operator_state.in_flight.values()
                for message in map(unpacked, messages)
                for row in message.records or ()
            )
            for handles in (old, new)
        ]
        if moving[0] != moving[1]:
            self._wrong("plans", f"{where}: rows that were in flight are lost, or there twice")
        for edge in graph.vertices[at].inputs:
            self._check_promises(where, edge, [[h.operator_state for h in handles] for handles in (old, new)])

    def _check_promises(self, where: str, edge: int, states: list[list[OperatorState]]) -> None:
        """No new channel promises more than the least of those before that had not ended, nor less."""
        known: list[int | None] = []
        for consumer, state in enumerate(states[0]):
            names = [str(ChannelId(edge, producer, consumer)) for producer in range(len(states[0]))]
            known += [state.watermarks.get(name) for name in names if name not in state.ended_channels]
        known = [None if time_ms == IDLE_MS else time_ms for time_ms in known]
        if not known:
            return
        least = None if None in known else min(time_ms for time_ms in known if time_ms is not None)
        for consumer, state in enumerate(states[1]):
            for producer in range(len(states[1])):
                now = state.watermarks.get(str(ChannelId(edge, producer, consumer)))
                if now != least:
                    self._wrong("plans", f"{where}: of edge {edge} {known} were promised, and now {now}")

    # --- durable storage

    def _check_leaks(self) -> None:
        """Every stored file is named by a manifest, or is younger than so many complete checkpoints."""
        durable = self._world.durable
        durable.completed += 1
        for name in durable.unnamed():
            age = durable.completed - durable.uploaded_at[name]
            if age > MOST_UNNAMED:
                self._wrong("storage", f"{name} is stored, and no manifest has named it for {age} checkpoints")

    def no_state_left(self) -> None:
        """The job is over: what is stored is named."""
        left = self._world.durable.unnamed()
        if left:
            self._wrong("storage", f"{left[:3]} are left in storage, and no manifest names them")

    def is_staged(self, name: str, checkpoint: int, removed: list[tuple[int, int]]) -> None:
        """Output that is committed has not been removed before."""
        generation = int(name.rsplit("-", 2)[1])
        if any(generation < before and checkpoint > after for before, after in removed):
            self._wrong("storage", f"{name} of checkpoint {checkpoint} is committed, and was removed before")

    def nothing_is_taken_back(self, newest: int, committed: int) -> None:
        """A resume begins at what is visible, or later."""
        if newest < committed:
            self._wrong("storage", f"checkpoint {newest} is resumed, and the output of {committed} is visible")

    def _steps_that_were_taken(self, saved: dict[SubtaskId, OperatorState]) -> dict[SubtaskId, int]:
        """Of each subtask, the steps whose messages nobody had still to take at a checkpoint."""
        steps = {subtask: state.steps for subtask, state in saved.items()}
        if self._world.parameters.aligned_timeout_ms is None:
            return steps
        for subtask, state in saved.items():
            for number, step in state.reached.items():
                ancestor = self._at_work[subtask].plan.lineage.subtask(int(number))
                steps[ancestor] = min(steps[ancestor], step)
        return steps

    def _check_budget(self, checkpoint: int, handles: dict[SubtaskId, SnapshotHandle]) -> None:
        """What was in flight in a checkpoint is little enough to be restored, wherever that is."""
        slot_bytes = self._world.parameters.in_flight_bytes
        if slot_bytes is None or any(work_of(handle.operator_state).get("next") == {} for handle in handles.values()):
            return
        held: dict[int, int] = {}
        for subtask, handle in handles.items():
            logs = handle.operator_state.in_flight.values()
            size = sum(packed_bytes(message) for logged in logs for message in logged)
            held[subtask.index] = held.get(subtask.index, 0) + size
            if size > slot_bytes // SUBTASK_SHARE:
                self._wrong("in flight", f"checkpoint {checkpoint} of {subtask} holds {size} bytes, of {slot_bytes}")
        if max(held.values()) > slot_bytes or sum(held.values()) > JOB_SLOTS * slot_bytes:
            self._wrong("in flight", f"checkpoint {checkpoint} holds {held} bytes by index, of {slot_bytes}")

    def _check_held(self, subtask: SimSubtask) -> None:
        """A slot's snapshots hold what they say, and no more than they may."""
        slot = subtask.slot
        if not slot.runs_ahead:
            return
        held = 0
        for other in slot.active:
            state = other.steps.checkpoints.channel_state
            for logs in (*state._of_snapshots.values(), *state._persisting.values()):
                held += sum(cost_of(message) for log in logs.channels.values() for message, _ in log.messages)
        if not held == slot.in_flight.held_bytes <= slot.in_flight.slot_bytes:
            self._wrong("in flight", f"{slot} holds {held} bytes, and counts them as {slot.in_flight}")

    def aborted(self, cause: str) -> None:
        """A subtask declines a checkpoint."""
        self.counts["over_budget"] += cause == AbortCause.OVER_BUDGET.value

    def _check_that_logs_are_trimmed(self) -> None:
        world = self._world
        if world.parameters.faults or not world.options.standbys or len(self._cuts) <= HEALTHY_VERSIONS:
            return
        oldest, cut = self._cuts[-1 - HEALTHY_VERSIONS]
        for subtask in self._at_work.values():
            epochs = sorted(subtask.seen._blooms) if isinstance(subtask.seen, MessageFilter) else []
            if epochs and epochs[0] < oldest:
                self._wrong(
                    "retention",
                    f"{subtask.id} remembers the messages of epoch {epochs[0]}, and checkpoint {oldest} was complete "
                    f"{HEALTHY_VERSIONS} complete checkpoints ago",
                )
            for channel, end in subtask.outputs.channels.items():
                self.counts["bounded"] += 1
                if end.log.trimmed < cut[channel]:
                    self._wrong(
                        "retention",
                        f"{channel} keeps messages from {end.log.trimmed} on, and {HEALTHY_VERSIONS} complete "
                        f"checkpoints ago it stood at {cut[channel]}",
                    )
            self._check_that_determinants_are_let_go(subtask)

    def _check_that_determinants_are_let_go(self, subtask: SimSubtask) -> None:
        steps = self._steps_at[-1 - HEALTHY_VERSIONS]
        for ancestor in subtask.steps.history.known.subtasks() if subtask.steps.history.known is not None else ():
            assert subtask.steps.history.known is not None
            run = subtask.steps.history.known.of(ancestor)
            if run is not None and run[0] < steps[ancestor]:
                self._wrong(
                    "retention",
                    f"{subtask.id} knows the steps of {ancestor} from {run[0]} on, and {HEALTHY_VERSIONS} complete "
                    f"checkpoints ago all before {steps[ancestor]} had been taken",
                )

    @property
    def completions(self) -> list[int]:
        """The checkpoints that were complete, in order."""
        return [checkpoint for checkpoint, _ in self._cuts]

    def committed(self, checkpoint: int, rows: list[Row]) -> None:
        """Rows became visible."""
        self.counts["rows"] += len(rows)
        self._world.note("output of checkpoint %s is visible: %s rows", checkpoint, len(rows))
        guarantee = self._world.options.promises
        again = guarantee is Guarantee.AT_LEAST_ONCE
        wrong = self._expected.take(rows) if guarantee.repeats else self._expected.take_loosely(rows, again)
        if wrong is not None:
            self._wrong("results", f"in the output of checkpoint {checkpoint}, {wrong}")

    # --- rows that are visible at once

    def visible(self, subtask: SubtaskId, cuts: Sequence[Cut]) -> None:
        """A transaction has shown the rows of ``cuts``."""
        world, complete = self._world, self._cuts[-1][0] if self._cuts else 0
        self.committed(complete, [row for cut in cuts for row in cut.rows])
        stored = StoredOutput(world.table.recorded.get(subtask, 0), tuple(world.table.entries.get(subtask, ())))
        recipe = read_recipe({subtask: stored}, self._lineage, CheckpointId(complete))
        covered = self._steps_at[-1] if self._steps_at else {}
        depends = {**cuts[-1].depends, subtask: cuts[-1].step}
        for other, step in depends.items():
            ends = [first + len(determinants) for first, determinants in recipe.spans.get(other, ())]
            if step > max([*ends, covered.get(other, 0)]):
                self._wrong(
                    "recipes",
                    f"rows of {subtask} are visible that depend on {other} up to step {step}, and the recipe has "
                    f"{ends}, checkpoint {complete} {covered.get(other, 0)}",
                )
        if stored.recorded < cuts[-1].step:
            self._wrong("recipes", f"rows of {subtask} are visible up to step {cuts[-1].step}, not recorded")

    def output_divided(self, subtasks: Sequence[SubtaskId], division: Division) -> None:
        """Subtasks of a sink give way to others: nothing that they have made behind the division is visible."""
        self.counts["output_divided"] += 1
        self._nothing_behind(division.of, subtasks)

    def output_known(self, subtasks: Sequence[SubtaskId]) -> None:
        """The table has the progress of ``subtasks`` of a sink: those that are in force, and no others."""
        wrong = [str(subtask) for subtask in subtasks if subtask.index >= self._parallelism]
        if wrong:
            self._wrong("plans", f"the table has progress of {wrong} at parallelism {self._parallelism}")

    def _nothing_behind(self, checkpoint: int, subtasks: Sequence[SubtaskId]) -> None:
        """The job goes on from ``checkpoint`` with something that would not make visible rows again."""
        at = [number for number, _ in self._cuts].index(checkpoint)
        for subtask in subtasks:
            stored, covered = self._world.table.recorded.get(subtask, 0), self._steps_at[at].get(subtask, 0)
            if stored > covered:
                self._wrong(
                    "recipes",
                    f"rows of {subtask} before step {stored} are visible, and checkpoint {checkpoint}, where others go "
                    f"on, covers those before {covered}",
                )

    def made_again(self, subtask: SimSubtask, step: int, rows: tuple[Row, ...]) -> None:
        """A subtask has made rows again that are stored: they are the same."""
        known = self._world.table.rows.get((subtask.id, step))
        if known is not None and known != rows and self._at_work.get(subtask.id) is subtask:
            self._wrong("recipes", f"{subtask.id} made {rows} again, and {known} are stored of the step before {step}")

    # --- the coordinator

    def trims(self, version: int) -> None:
        """Everybody is about to be told that nothing before ``version`` is needed: all that counts must have it."""
        if version == self._trims:
            return  # told another slot before
        self._trims = version
        failover = self._world.failover
        assert failover is not None
        for chain in failover._table:
            for slot in chain.members[1:]:
                process = self._world.process_of(slot)
                if slot not in chain.catching_up and process is not None and not process.paused:
                    self.counts["stable"] += 1
                    self._check_copy(process, chain.subtask, version)

    def _check_copy(self, process: SimSlot, subtask: SubtaskId, version: int) -> None:
        member = process.standbys.agent._members.get(str(subtask))
        staged = {} if member is None else member.replica.staged
        found = staged.get(version)
        newer = [other for number, other in staged.items() if number > version]
        if found is None and not newer:
            self._wrong("chains", f"version {version} of {subtask} counts as stable, and {process} does not have it")
        if member is None:
            return
        if found is not None:
            names, expected = tuple([file.name for file in found.named]), self._files_of.get((subtask, version))
            # One of a history that was left may still be there, where a newer version of the present one is.
            if names != expected and not any(other.generation > found.generation for other in newer):
                self._wrong(
                    "chains",
                    f"version {version} of {subtask} on {process} is {names}, and the checkpoint has {expected}",
                )
            if not all(member.replica.holds(file) for file in found.files):
                self._wrong("chains", f"version {version} of {subtask} is not whole on {process}: {names}")
        for copy in member.replica._copies:
            store: Any = copy.store
            if store.counts != fold(self._world.files, [file.name for file in copy.files]):
                self._wrong("chains", f"a store of {subtask} on {process} holds something else than {copy.files}")

    def received_again(self, process: SimSlot, name: str) -> None:
        """A file has arrived that a dead process had left undamaged, and that was discarded too early."""
        self._wrong("chains", f"{process} has received {name}, which was left there and was right")

    # --- planned moves

    def endless(self, what: str) -> NoReturn:
        """A request, failover or handover that has begun does not end."""
        self._wrong("moves", what)

    def plans(self, chains: dict[str, list[Any]]) -> None:
        """Slots are about to be told who follows whom."""
        before, self._chains = self._chains, chains
        holders = self._holders
        coordinator = self._world.coordinator
        slots = [] if coordinator is None else coordinator._processes.numbers
        self._holders = {slot: self._world.process_of(slot) for slot in slots}
        protocol = self._world.failover
        if protocol is None or chains == before:
            return
        barred, forced = protocol._planned.barred, protocol._planned.forced
        some = len(barred) < len(protocol._planned.slots)
        for name, (_, members) in chains.items():
            known = before.get(name, [0, []])[1]
            chain = protocol._table[parse_subtask(name)]
            for slot in members[1:]:
                if some and slot in barred and slot not in known:
                    self._wrong("moves", f"slot {slot} is on a drained host, and is to hold {name}")
            for slot in known[1:]:
                stayed = protocol._table.is_alive(slot) and self._holders.get(slot) is holders.get(slot)
                if slot not in members and stayed:
                    self.counts["thinned"] += 1
                    self._check_others(chain, slot, slot in forced)

    def deployed(self, assignment: dict[str, int]) -> None:
        """Slots are about to be told where all begin."""
        failover = self._world.failover
        barred = () if failover is None else failover._planned.barred
        coordinator = self._world.coordinator
        assert coordinator is not None
        self._check_plan("a deployment", set(map(parse_subtask, assignment)))
        own, job = self._world.own, coordinator.parts.machines.job
        if len(own) != self._parallelism or not set(assignment.values()).issubset(own):
            self._wrong("plans", f"the slots are {own}, and {assignment} is deployed")
        for known in job._available:
            found = self._world.commits.manifests[known]["handles"]
            self._check_plan(f"checkpoint {known}, which the job may go back to,", set(found))
        if len(barred) == len(own):
            return
        for name, slot in assignment.items():
            if slot in barred:
                self._wrong("moves", f"{name} begins on slot {slot}, on a drained host")
        self.counts["left_out"] += bool(barred)

    def _check_others(self, chain: Any, slot: int, forced: bool) -> None:
        """A standby on ``slot``, which lives, is in the chain no more: all who are to be there have its state."""
        table = self._world.failover._table  # type: ignore[union-attr]
        for other in [other for other in chain.planned if other != chain.head and not forced]:
            process = self._world.process_of(other)
            if not table.is_alive(other):
                self._wrong("moves", f"slot {slot} leaves the chain of {chain.subtask}, and slot {other} is not there")
            if process is not None and not process.paused and table.complete > 0:
                self._check_copy(process, chain.subtask, table.complete)

    def scaled(self, count: int) -> None:
        """There are said to be so many spare slots, and every chain is said to be whole."""
        coordinator = self._world.coordinator
        assert coordinator is not None and self._world.failover is not None
        slots = coordinator._processes.numbers
        apart = set() if coordinator.parts.rescales is None else set(coordinator.parts.rescales.states)
        spares = [slot for slot in slots if slot not in self._world.own and slot not in apart]
        running = [
            process.index
            for process in self._world.processes.values()
            if process.incarnation > 0 and process.index not in slots and process.index not in apart
        ]
        if len(spares) != count or running:
            self._wrong("moves", f"there are said to be {count} spare slots, and there are {spares}; over: {running}")
        used = {slot for chain in self._world.failover.chains.values() for slot in chain}
        if not used.issubset(slots):
            self._wrong("moves", f"chains are on {sorted(used)}, and the slots are {slots}")

    def rescaled(self, parallelism: int) -> None:
        """The job is said to run with so many subtasks of each vertex, on as many slots."""
        world, coordinator = self._world, self._world.coordinator
        assert coordinator is not None
        own, slots = world.own, coordinator._processes.numbers
        if not len(own) == world.parallelism == self._parallelism == parallelism:
            self._wrong("plans", f"parallelism {parallelism} is said to be reached: {own}, {world.parallelism}")
        self._check_plan("what runs", set(coordinator.parts.deployment.assignment))
        states = {} if coordinator.parts.rescales is None else coordinator.parts.rescales.states
        running = [
            process.index
            for process in world.processes.values()
            if process.incarnation > 0 and process.index not in (*slots, *states)
        ]
        if running:
            self._wrong("plans", f"parallelism {parallelism} is said to be reached, and {running} still run")

    def joins(self, process: SimSlot) -> None:
        """The driver is about to order a slot to take part in the job."""
        coordinator = self._world.coordinator
        rescales = None if coordinator is None else coordinator.parts.rescales
        if rescales is not None and rescales.states.get(process.index) == "starting":
            self._wrong("plans", f"{process} takes part in the job, and is reserved for a rescale")

    def moved(self, what: Moved, slot: int) -> None:
        """A request is said to be fulfilled."""
        if isinstance(what, Parallelism):
            self.rescaled(what.subtasks)
            return
        coordinator = self._world.coordinator
        assert coordinator is not None and self._world.failover is not None
        if isinstance(what, int):
            self.scaled(what)
            return
        if isinstance(what, SubtaskId):
            at_work = self._at_work[what]
            if (at_work.slot.index, coordinator.parts.deployment.assignment[what]) != (slot, slot):
                self._wrong("moves", f"{what} is said to be on slot {slot}, and is on {at_work.slot}")
            return
        for process in coordinator._processes.all():
            used = [s for s, slots in self._world.failover.chains.items() if process.slot in slots]
            if process.host == what and used:
                self._wrong("moves", f"{what} is said to be empty, and slot {process.slot} is in the chains of {used}")

    # --- the copies of state

    def made(self, subtask: str, generation: int, handle: SnapshotHandle) -> None:
        """The head of ``generation`` has a version, which it made or began from."""
        self._made[subtask, generation, handle.checkpoint] = tuple(file.name for file in handle.files)

    def formed(self, slot: SimSlot, chains: dict[str, tuple[int, tuple[int, ...]]]) -> None:
        """A slot is told who follows whom."""
        for subtask, (generation, _) in chains.items():
            key = slot.process, subtask
            self._formed[key] = max(generation, self._formed.get(key, 0))

    def copied(self, slot: SimSlot, subtask: str, generation: int, version: int) -> None:
        """A slot says that it holds a version."""
        self.counts["copied"] += 1
        formed = self._formed.get((slot.process, subtask), 0)
        if generation < formed:
            self._wrong(
                "generations",
                f"{slot} takes version {version} of {subtask} in generation {generation}, and knows of {formed}",
            )
        replica = slot.standbys.agent._members[subtask].replica
        held = replica.staged.get(version)
        made = self._made.get((subtask, generation, version))
        names = None if held is None else tuple([file.name for file in held.named])
        if held is None or names != made:
            self._wrong(
                "chains", f"{slot} says that it holds version {version} of {subtask}, {made}, and it has {names}"
            )
        for file in held.files:
            if not replica.holds(file):
                self._wrong("chains", f"{slot} says that it holds version {version} of {subtask}, and not {file}")
        if held.files != held.named:
            files, made_of = self._world.files, [file.name for file in held.files]
            if fold(files, made_of) != fold(files, made or ()):
                self._wrong("chains", f"{slot} makes do with {made_of} for version {version} of {subtask}, {made}")
        for other in replica.staged.values():
            if other.number >= version > 0 and other.generation < generation:
                self._wrong("chains", f"{slot} has version {other.number} of {subtask}, of a history that was left")

    # --- the end

    def finished(self) -> None:
        """The job says that it is done."""
        guarantee = self._world.options.promises
        last = self._world.commits.manifests[max(self._world.commits.manifests)]["handles"]
        for subtask in sorted(last):
            if not last[subtask].operator_state.ended:
                self._wrong("results", f"the job has finished, and {subtask} has not reached the end of its input")
        missing = self._expected.missing() if guarantee.repeats else self._expected.lost()
        if missing is not None and guarantee.replays:
            self._wrong("results", f"the job has finished, but {missing}")


def _rows_of(work: dict[str, Any]) -> tuple[Row, ...]:
    """The rows that a subtask holds back, or that wait there for answers."""
    return (*work["held"], *(row for _, row in work["asked"].get("rows", ())))
