"""Deliberate faults in the protocol, by name: the test of the tester.

Each replaces one function of the product's core and must be found out within ``BUDGET`` seeds, by its scenario, or, in
the handshake, by the search for attacks (``tests/security/model.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from chain_backup.disk import Origin
from chain_backup.failover import attempts, chains
from chain_backup.failover import effects as chain_effects
from chain_backup.failover import recovery_line as line
from chain_backup.failover.handover import Handover
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.planned_members import PlannedMembers
from chain_backup.failover.topology import Topology
from chain_backup.replication.receiver import Receiver
from chain_backup.replication.replica import Replica, StagedVersion, _Copy
from chain_backup.replication.sender import Sender
from chain_backup.replication.transfers import Partial
from dedup.filter import MessageFilter
from flinkplus.config import Options
from flinkplus.errors import ForeignMessage
from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.cyclic import CyclicAlignment
from flinkplus.protocol.barriers.machine import BarrierMachine
from flinkplus.protocol.barriers.recording import RecordingAlignment
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.channels.channel import ACCEPT, DUPLICATE, InputCursor, Window
from flinkplus.protocol.channels.inputs import InputChannel, InputGate
from flinkplus.protocol.channels.outputs import OutputChannel, OutputChannels
from flinkplus.protocol.channels.watermarks import IDLE_MS, InputWatermarks
from flinkplus.protocol.checkpoints.checkpointing import CheckpointCoordinator
from flinkplus.protocol.checkpoints.commits import CommitQueue
from flinkplus.protocol.checkpoints.hold import OutputHold
from flinkplus.protocol.checkpoints.savepoints import Savepoints
from flinkplus.protocol.determinants.determinants import (
    CLOCK_CHOICES,
    IDLED,
    TICKED,
    AncestorLog,
    Choice,
    InputPart,
    KnownSteps,
    unpack,
)
from flinkplus.protocol.determinants.recipe import NO_RECIPE, Recipe, RecipeLog
from flinkplus.protocol.job.crashes import Crashes
from flinkplus.protocol.job.job import LIVE, JobProtocol
from flinkplus.protocol.job.restarts import RestartBudget
from flinkplus.protocol.liveness.reachability import Reachability
from flinkplus.protocol.loops.rounds import LoopRounds
from flinkplus.protocol.subtask import rescaling as protocol_rescaling
from flinkplus.protocol.subtask.answers import NO_MORE, AnswerSide
from flinkplus.protocol.subtask.channel_state import ChannelState
from flinkplus.protocol.subtask.checkpoints import SubtaskCheckpoints
from flinkplus.protocol.subtask.clock import ClockSide
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.joined import JoinedSteps
from flinkplus.protocol.subtask.reading import SourceSide
from flinkplus.protocol.subtask.replay import Replay, StepTime
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary import effects, events, key_groups
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import InFlightBudget, SnapshotLogs
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.protocol.vocabulary.messages import MessageKind
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.coordinator.drivers import recipes
from flinkplus.runtime.coordinator.drivers.recipes import RecipeDriver
from flinkplus.runtime.coordinator.drivers.savepoints import SavepointDriver
from flinkplus.runtime.coordinator.membership.prefetching import Prefetching
from flinkplus.runtime.coordinator.membership.rescales import RescalePhase, Rescales
from flinkplus.runtime.coordinator.promotion.orders import FenceAnswers
from flinkplus.runtime.coordinator.promotion.promotions import Promotions
from flinkplus.runtime.slot.control.active import ActiveSubtasks
from flinkplus.runtime.slot.control.failover import SlotFailover
from flinkplus.runtime.slot.control.orders import SlotOrders
from flinkplus.runtime.slot.control.peers import Peers
from flinkplus.runtime.slot.control.routing import Routing
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.handshake import Connecting, Listening
from flinkplus.runtime.transport.wire.frames import FrameQueue, framed
from flinkplus.sources import dealing
from flinkplus.state.durable.history import Cuts, UnusedFiles
from tests.security import model
from tests.simulation import rescaling
from tests.simulation.asking import SimAnswers
from tests.simulation.parameters import Parameters, draw
from tests.simulation.table import SimRecipeSink, SimTable
from upstream_cache.log import OutputLog

BUDGET = 2_000
"""Seeds within which each must be found out."""
ENDLESS = 1 << 40


@dataclass(frozen=True)
class Mutation:
    """``make`` gets the original of ``name`` in ``where`` and gives what takes its place. ``tells``: what is wrong.
    ``scenario``: the number of the one that finds it out, where seeds seldom do. ``finds``: what finds it out where the
    simulator does not reach; gives what is wrong. ``joined``: only where steps are repeated together does it matter.
    ``rescaled``: only where the parallelism changes. ``saved``: only where savepoints are taken.
    ``at_once``: only where rows are visible at once. ``live``: only where records arrive while the job runs.
    ``ticked``: only where subtasks have steps by the time of day.
    ``asking``: only where rows wait for answers from outside.
    ``to_barrier``: only where rows are held back until a barrier is sent."""

    where: Any
    name: str
    make: Callable[[Any], Any]
    tells: str
    scenario: str = ""
    finds: Callable[[], str] | None = None
    joined: bool = False
    rescaled: bool = False
    saved: bool = False
    at_once: bool = False
    live: bool = False
    ticked: bool = False
    asking: bool = False
    to_barrier: bool = False

    def parameters(self, seed: int) -> Parameters:
        """The job of a seed in which the fault is looked for."""
        kinds = ("joined", "rescaled", "saved", "at_once", "live", "ticked", "asking", "to_barrier")
        only = {name: getattr(self, name) for name in kinds}
        return draw(seed, **only)


MUTATIONS: dict[str, Mutation] = {}


def mutation(
    where: Any,
    name: str,
    scenario: str = "",
    finds: Callable[[], str] | None = None,
    joined: bool = False,
    rescaled: bool = False,
    saved: bool = False,
    at_once: bool = False,
    live: bool = False,
    ticked: bool = False,
    asking: bool = False,
    to_barrier: bool = False,
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Lists the decorated function, under its own name, as a fault of ``where.name``."""

    def enlist(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        tells = (make.__doc__ or "").strip()
        only = joined, rescaled, saved, at_once, live, ticked, asking, to_barrier
        MUTATIONS[make.__name__] = Mutation(where, name, make, tells, scenario, finds, *only)
        return make

    return enlist


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """The product has the fault of that name."""
    found = MUTATIONS[name]
    with mock.patch.object(found.where, found.name, found.make(vars(found.where)[found.name])):
        yield


# --- handshakes


def _code_without(**parts: bytes) -> Callable[[Any], Any]:
    """Codes that are not bound to these parts of the hello."""

    def make(original: Any) -> Any:
        return lambda secret, which, hello, nonce: original(secret, which, hello._replace(**parts), nonce)

    return make


@mutation(Listening, "_check_target", finds=model.found)
def listeners_sign_for_anybody(original: Any) -> Any:
    """A listener signs for any target, and leaves it to others to look at that (as the product did)."""
    return lambda self, said: None


@mutation(Connecting, "check", finds=model.found)
def any_welcome_is_taken(original: Any) -> Any:
    """A dialler is connected once something comes in the place of a welcome (a fault that the product had)."""
    return lambda self, welcome: None


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_purpose(original: Any) -> Any:
    """What was signed for a lifeline is good for a control stream."""
    return _code_without(purpose=b"")(original)


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_dialler(original: Any) -> Any:
    """Whoever has connected is who it says."""
    return _code_without(name=b"")(original)


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_listener(original: Any) -> Any:
    """Any listener will do."""
    return _code_without(target=b"")(original)


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_address(original: Any) -> Any:
    """A stranger may forward everything from an address of its own."""
    return _code_without(address=b"")(original)


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_diallers_nonce(original: Any) -> Any:
    """What a listener has said once can be repeated to diallers."""
    return _code_without(nonce=b"")(original)


@mutation(handshake, "_code", finds=model.found)
def codes_are_not_bound_to_the_listeners_nonce(original: Any) -> Any:
    """What a dialler has said once can be repeated to listeners."""
    return lambda secret, which, hello, nonce: original(secret, which, hello, b"")


@mutation(handshake, "_code", finds=model.found)
def one_code_is_as_good_as_another(original: Any) -> Any:
    """A code can be reflected: a challenge counts as a proof, and as a welcome."""
    return lambda secret, which, hello, nonce: original(secret, b"", hello, nonce)


# --- whose messages are taken


@mutation(InputChannel, "is_from")
def messages_of_any_slot_are_taken(original: Any) -> Any:
    """A slot may send on a channel whose producer is elsewhere (as the product allowed)."""
    return lambda self, peer, generation: True


@mutation(Routing, "_may_take", scenario="81")
def credit_of_any_slot_is_taken(original: Any) -> Any:
    """A slot may give credit for a consumer that is elsewhere (as the product allowed)."""
    return lambda self, peer, credit: True


@mutation(InputChannel, "is_from")
def what_comes_late_of_the_dead_is_held_against_their_slots(original: Any) -> Any:
    """Messages of fenced generations have to come from where the producer is now."""
    return lambda self, peer, generation: peer == self.peer


@mutation(Routing, "take_all", scenario="82")
def what_is_forged_is_dropped_and_the_rest_of_its_frame_with_it(original: Any) -> Any:
    """The streams stay as they are after a message that was not the sender's to send: nothing is sent again."""

    def take_all(self: Any, peer: int, messages: Any) -> None:
        with mock.patch.object(self._host, "_renew", lambda peer, reason: None):
            original(self, peer, messages)

    return take_all


# --- rows that are visible at once


@mutation(SimTable, "_store_recipe", at_once=True)
def rows_are_stored_without_their_recipe(original: Any) -> Any:
    """A transaction has rows and progress, and not what the rows depend on."""
    return lambda self, subtask, cuts, complete: None


@mutation(SimTable, "store", at_once=True)
def progress_is_stored_apart_from_rows(original: Any) -> Any:
    """The recipe and the progress are there, and the rows come in a transaction of their own, which may fail."""

    def store(self: Any, subtask: Any, generation: int, cuts: Any, complete: int) -> bool:
        if self._admits(subtask, generation) and self._world.rng_table.random() < 0.1:
            self._store_recipe(subtask, cuts, complete)
            self._store_progress(subtask, cuts)
            return True
        return bool(original(self, subtask, generation, cuts, complete))

    return store


@mutation(SimTable, "_admits", at_once=True)
def rows_of_any_generation_are_stored(original: Any) -> Any:
    """A transaction does not look whether its generation is fenced."""
    return lambda self, subtask, generation: True


@mutation(SimTable, "_store_recipe", at_once=True)
def recipes_are_trimmed_too_early(original: Any) -> Any:
    """What lies behind the last complete checkpoint goes with what lies before it."""

    def store(self: Any, subtask: Any, cuts: Any, complete: int) -> None:
        original(self, subtask, cuts, complete)
        if complete:
            self.entries[subtask] = [entry for entry in self.entries[subtask] if entry.checkpoint > complete]

    return store


@mutation(RecipeLog, "__init__", at_once=True)
def repeated_rows_are_written_again(original: Any) -> Any:
    """A sink does not look which steps are recorded."""

    def make(self: Any, steps: Any, ancestors: Any, recorded: int, port: Any) -> None:
        original(self, steps, ancestors, 0, port)

    return make


@mutation(recipes, "read_recipe", at_once=True)
def recipes_are_not_read(original: Any) -> Any:
    """A subtask that is deployed or promoted knows which steps are recorded, and not how to repeat them."""
    return lambda stored, lineage, since: Recipe({}, original(stored, lineage, since).recorded)


@mutation(SimTable, "fence", at_once=True)
def recipes_are_read_before_the_sink_is_fenced(original: Any) -> Any:
    """What is under way may still be stored after the recipe was read."""

    def fence(self: Any, generation: int, subtasks: Any) -> Any:
        before = {subtask: self.generations.get(subtask, 0) for subtask in subtasks}
        found = original(self, generation, subtasks)
        self.generations.update(before)
        self._world.at(self._world.now_ms + 3, original, self, generation, subtasks)
        return found

    return fence


@mutation(SimRecipeSink, "has_stored", at_once=True)
def snapshots_do_not_wait_for_their_rows(original: Any) -> Any:
    """A checkpoint may be complete before the rows that it covers are stored."""
    return lambda self, checkpoint: True


@mutation(SimRecipeSink, "_note_barrier", at_once=True)
def snapshots_wait_for_rows_and_not_for_their_barrier(original: Any) -> Any:
    """What came with the barrier is not stored when a successor may start behind it (as in the first draft)."""

    def note(self: Any, step: int) -> None:
        if self.snapshot is not None:
            self._barriers[self.snapshot], self.snapshot = self._before, None
        self._before = step

    return note


@mutation(RecipeDriver, "added_to", at_once=True)
def failovers_forget_the_recipe_of_the_deployment(original: Any) -> Any:
    """What a subtask still repeated after a rollback is lost when it fails then."""

    def added_to(self: Any, order: Any, subtask: Any, attempt: int) -> Any:
        with mock.patch.object(self, "_lasting", NO_RECIPE):
            return original(self, order, subtask, attempt)

    return added_to


@mutation(attempts.Attempts, "_promote_when_ready", at_once=True)
def promotions_do_not_wait_for_recipes(original: Any) -> Any:
    """A standby is promoted when all slots have fenced its predecessor, whatever the sink does."""

    def promote(self: Any, now_ms: int) -> Any:
        if self._attempt is not None:
            self._attempt.awaits_recipes = False
        return original(self, now_ms)

    return promote


@mutation(Recipe, "checkpoints", at_once=True)
def numbers_of_repeated_checkpoints_are_used_again(original: Any) -> Any:
    """A checkpoint may have the number of one that is aborted in steps that are repeated (as in the first draft)."""
    return property(lambda self: ())


@mutation(SimRecipeSink, "_storable", at_once=True)
def rows_behind_a_held_checkpoint_are_stored(original: Any) -> Any:
    """A sink does not hold back what it makes behind the barrier where the job is divided or stopped."""
    return lambda self: len(self._pending)


@mutation(SimTable, "close", at_once=True)
def a_resume_does_not_look_for_rows_behind_its_checkpoint(original: Any) -> Any:
    """Another parallelism begins, and the recipe that only the old subtasks can repeat is not closed."""

    def close(self: Any, generation: int, behind: int) -> bool:
        original(self, generation, behind)
        return True

    return close


@mutation(SimTable, "_replace", at_once=True)
def progress_of_subtasks_that_are_gone_stays(original: Any) -> Any:
    """With fewer subtasks, what is known of the others is left; there may be more of them again later."""
    return lambda self, before, after: original(self, [subtask for subtask in before if subtask in after], after)


@mutation(SimTable, "_replace", at_once=True)
def new_subtasks_have_the_progress_of_old_ones(original: Any) -> Any:
    """A subtask of the new division passes over steps that one of the old division had recorded under its number."""
    return lambda self, before, after: None


@mutation(OutputHold, "release", at_once=True)
def held_rows_are_not_released(original: Any) -> Any:
    """What was to happen at a checkpoint is called off, and rows behind it wait on."""
    return lambda self: None


@mutation(OutputChannels, "lift_limits", scenario="101")
def steps_that_are_bound_wait_for_credit(original: Any) -> Any:
    """Subtasks that repeat steps in a fixed order wait for each other's credit (as in the first draft)."""
    return lambda self: None


# --- promotions


@mutation(SlotFailover, "fence", scenario="66")
def ready_subtasks_wait_for_those_that_a_fence_took(original: Any) -> Any:
    """A subtask that is ready does not begin when a fence takes all those over that it waited for (a fault that the
    product had)."""

    def fence(self: Any, order: Any) -> None:
        with mock.patch.object(self, "_end_when_ready", lambda attempt: None):
            original(self, order)

    return fence


# --- inputs that end processes


@mutation(Crashes, "ended")
def no_input_is_to_blame(original: Any) -> Any:
    """An input that ends each process that works on it is tried for ever (as the product did)."""
    return lambda self, place, triggered: None


# --- restarts


@mutation(RestartBudget, "is_counted", scenario="67")
def every_exception_is_a_recovery(original: Any) -> Any:
    """Subtasks that throw in one instant cost a restart each (a fault that the product had)."""
    return lambda self, now_ms, generation, under_way, slot_missing: False


# --- alignment and snapshots


@mutation(SubtaskCheckpoints, "_apply")
def no_blocking(original: Any) -> Any:
    """Messages behind a barrier are taken while the others are waited for."""

    def apply(self: Any, effect: Any) -> None:
        if not isinstance(effect, effects.BlockChannel):
            original(self, effect)

    return apply


@mutation(BarrierAlignment, "_count")
def one_barrier_is_enough(original: Any) -> Any:
    """A checkpoint is taken at the first barrier."""

    def block(self: Any, channel: Any, checkpoint: Any) -> Any:
        self._taken.append(channel)
        return [effects.BlockChannel(channel), *self._begin_snapshot(checkpoint)]

    return block


@mutation(CyclicAlignment, "_on_barrier", scenario="47")
def early_barriers_of_back_edges_are_missed(original: Any) -> Any:
    """A barrier on a back edge that comes before the copy is waited for behind it (a fault that the product had)."""

    def on_barrier(self: Any, channel: Any, checkpoint: Any) -> Any:
        if channel in self._back:
            return self._came(channel, checkpoint)
        return original(self, channel, checkpoint)

    return on_barrier


@mutation(SubtaskCheckpoints, "_cursors_behind_barrier")
def cursors_before_the_barrier(original: Any) -> Any:
    """A snapshot's output cursors do not count the barrier."""
    return lambda self: self._outputs.cursors()


@mutation(CheckpointCoordinator, "_on_acknowledged")
def complete_without_the_last(original: Any) -> Any:
    """A checkpoint is complete when all but one have acknowledged, with an older handle for that one."""

    def acknowledged(self: Any, now_ms: int, event: Any) -> Any:
        found = original(self, now_ms, event)
        pending = self._pending.get(event.checkpoint)
        if pending is not None and len(pending.handles) == len(self._subtasks) - 1 > 0:
            (missing,) = [subtask for subtask in self._subtasks if subtask not in pending.handles]
            pending.handles[missing] = pending.handles[min(pending.handles)]
            pending.acknowledged_ms = now_ms
        return found

    return acknowledged


@mutation(CheckpointCoordinator, "_on_replaced")
def acknowledgements_of_the_dead_count(original: Any) -> Any:
    """What a subtask said of a checkpoint counts, though its successor begins from an older version."""
    return lambda self, now_ms, replaced: []


# --- channels


@mutation(InputCursor, "accept")
def stale_generation_accepted(original: Any) -> Any:
    """A message of an older generation is as good as one of the present one."""
    return lambda self, generation, seq: original(self, max(generation, self._generation), seq)


@mutation(InputCursor, "accept")
def gap_accepted(original: Any) -> Any:
    """A message that is ahead of what is expected is taken all the same."""

    def accept(self: Any, generation: Any, seq: Any) -> Any:
        if generation == self._generation and seq > self._received:
            self._received = seq + 1
            return ACCEPT
        return original(self, generation, seq)

    return accept


@mutation(InputCursor, "accept")
def last_duplicate_accepted(original: Any) -> Any:
    """The message before the expected one is taken a second time."""

    def accept(self: Any, generation: Any, seq: Any) -> Any:
        found = original(self, generation, seq)
        if found is DUPLICATE and seq == self._received - 1 and self._consumed < self._received:
            return ACCEPT
        return found

    return accept


@mutation(InputCursor, "announce")
def credit_waits_for_the_wide_window(original: Any) -> Any:
    """A promoted consumer grants nothing before its wider window is used up (a fault that the product had)."""

    def announce(self: Any) -> Any:
        if self._consumed - self._reported < self._most - self._window:
            return None
        return original(self)

    return announce


@mutation(OutputChannel, "credit")
def credit_of_the_dead_accepted(original: Any) -> Any:
    """Credit counts whatever generation it is of."""
    return lambda self, generation, consumed, peer: original(self, self.consumer_generation, consumed, peer)


@mutation(OutputChannel, "credit")
def no_resend_to_a_successor(original: Any) -> Any:
    """A standby channel is opened without going back to what the successor lacks."""

    def credit(self: Any, generation: int, consumed: int, peer: int | None) -> None:
        sent = self.log.sent
        resuming = self.resuming and generation == self.consumer_generation
        original(self, generation, consumed, peer)
        if resuming:
            while self.log.sent < sent:
                self.log.next_to_send(sent)

    return credit


@mutation(OutputChannel, "reconnect")
def no_resend_over_a_new_stream(original: Any) -> Any:
    """What was lost with a stream stays lost."""
    return lambda self: None


@mutation(StepHistory, "learn", scenario="83")
def ones_own_steps_that_came_round_are_not_told(original: Any) -> Any:
    """A subtask in a loop does not keep what came round of its own steps (a fault that the product had)."""

    def learn(self: Any, producer: SubtaskId, message: Any) -> None:
        original(self, producer, message)
        if self.known is not None:
            self.known._spans.pop(self._id, None)
            for steps in self.known._at_barrier.values():
                steps.pop(self._id, None)

    return learn


@mutation(SlotOrders, "peer_broken", scenario="36")
def streams_to_idle_slots_given_up(original: Any) -> Any:
    """A stream that breaks while nobody works at its end is not opened again (a fault that the product had)."""

    def peer_broken(self: Any, peer: int, incarnation: int, reason: str) -> None:
        if peer in self.slots.values():
            original(self, peer, incarnation, reason)

    return peer_broken


@mutation(SlotOrders, "peer_broken")
def refusals_are_failures_of_ones_own(original: Any) -> Any:
    """A slot whose peer refuses connections for two seconds fails its own subtasks (a fault that the product had)."""

    def peer_broken(self: Any, peer: int, incarnation: int, reason: str) -> None:
        original(self, peer, incarnation, reason)
        since = self._peers._broken_since.get(peer)
        if since is not None and self.clock.monotonic() - since > 2:
            for subtask in self.active:
                self._fail(subtask, ConnectionError(reason))

    return peer_broken


@mutation(Peers, "broken")
def refusals_are_not_reported(original: Any) -> Any:
    """A peer that refuses connections is tried again for ever, and the coordinator does not know."""

    def broken(self: Any, peer: int, incarnation: int) -> None:
        original(self, peer, incarnation)
        self._refusing.clear()

    return broken


@mutation(Peers, "connect")
def broken_streams_forgotten(original: Any) -> Any:
    """An order to connect makes the slot forget which streams had broken (a fault that the product had)."""

    def connect(self: Any, addresses: Any) -> None:
        original(self, addresses)
        self._broken_since.clear()

    return connect


@mutation(OutputChannel, "trim")
def trimmed_one_too_early(original: Any) -> Any:
    """One message more is let go than nobody can ask for."""
    return lambda self, seq: original(self, seq + 1)


@mutation(OutputChannel, "_trim")
def trimmed_when_consumed(original: Any) -> Any:
    """What is consumed is let go, as without standbys."""

    def trim(self: Any) -> None:
        if self.log.acknowledged > self.log.trimmed:
            self.log.trim(self.log.acknowledged)

    return trim


@mutation(SubtaskCheckpoints, "trim")
def never_trimmed(original: Any) -> Any:
    """Output logs keep everything."""
    return lambda self, version: None


# --- replay


@mutation(OutputChannels, "_news")
def determinants_dropped(original: Any) -> Any:
    """Messages carry no determinants."""
    return lambda self, end, **_: b""


@mutation(AncestorLog, "since")
def ancestors_not_shared(original: Any) -> Any:
    """Messages carry no determinants of ancestors, while failover counts on it."""
    return lambda self, position, **_: b""


@mutation(StepHistory, "learn")
def ancestors_passed_on_before_their_turn(original: Any) -> Any:
    """What is passed on of ancestors is what has arrived, not what was taken: a barrier tells too much."""

    def learn(self: Any, producer: Any, message: Any) -> None:
        original(self, producer, message)
        self.pass_on(producer, message)

    return learn


@mutation(StepHistory, "_hear")
def ancestors_passed_on_once_are_taken_for_passed_on_everywhere(original: Any) -> Any:
    """What arrives is noted as passed on although no step has taken it."""

    def hear(self: Any, data: bytes) -> Any:
        found = original(self, data)
        found.passed_on = True
        return found

    return hear


@mutation(StepHistory, "_hear")
def ancestors_of_another_message_are_heard(original: Any) -> Any:
    """Determinants of the same size are taken for the same."""

    def hear(self: Any, data: bytes) -> Any:
        known = self.__dict__.setdefault("heard_by_size", {})
        if len(data) not in known:
            known[len(data)] = original(self, data)
        return known[len(data)]

    return hear


@mutation(KnownSteps, "barrier")
def let_go_one_checkpoint_too_early(original: Any) -> Any:
    """Receivers forget determinants at the barrier of a checkpoint, not when it is complete."""

    def barrier(self: Any, checkpoint: Any, subtask: Any, step: int) -> None:
        original(self, checkpoint, subtask, step)
        self.complete(checkpoint)

    return barrier


@mutation(FenceAnswers, "order")
def determinants_not_told(original: Any) -> Any:
    """The successor is not told how its predecessor's steps began."""
    return lambda *arguments: replace(original(*arguments), determinants=[])


@mutation(FenceAnswers, "add_part")
def only_the_end_of_an_answer_counts(original: Any) -> Any:
    """Of a long answer to a fence, the parts that come first are forgotten."""

    def add_part(self: Any, part: Any) -> None:
        if isinstance(part, control.Fenced):
            original(self, part)

    return add_part


@mutation(StepTime, "_read")
def the_clock_is_read_anew(original: Any) -> Any:
    """Who repeats a step takes the time from the clock and not from the determinant."""

    def read(self: Any) -> None:
        before = len(self._replay.determinants)
        original(self)
        if len(self._replay.determinants) < before:
            self._clock.ms = self._wall_ms()

    return read


@mutation(SubtaskSteps, "saved")
def the_clock_forgotten(original: Any) -> Any:
    """A version does not say what time it was."""
    return lambda self, checkpoint: replace(original(self, checkpoint), clock_ms=0)


@mutation(OutputChannels, "_compare")
def digests_not_compared(original: Any) -> Any:
    """What is made again may be something else."""
    return lambda self, end, message, payload: None


@mutation(FenceAnswers, "order")
def digests_not_told(original: Any) -> Any:
    """The successor is not told what its predecessor's consumers have had."""
    return lambda *arguments: replace(original(*arguments), digests={})


@mutation(MessageFilter, "drop")
def digests_forgotten_too_soon(original: Any) -> Any:
    """A consumer forgets what was in the messages of an epoch that may have to be made again."""
    return lambda self, before: original(self, before + 1)


@mutation(MessageFilter, "drop")
def message_ids_never_let_go(original: Any) -> Any:
    """A consumer remembers the IDs of all messages that it ever received."""
    return lambda self, before: None


@mutation(MessageFilter, "drop", scenario="56")
def messages_of_dropped_epochs_are_new(original: Any) -> Any:
    """The filter drops the messages of an epoch, and not how far their numbers went."""

    def drop(self: Any, before: int) -> None:
        floors = {channel: known.floor for channel, known in self._channels.items()}
        original(self, before)
        for channel, floor in floors.items():
            self._channels[channel].floor = floor

    return drop


@mutation(MessageFilter, "_put_away")
def message_ids_lost_on_the_way_to_the_store(original: Any) -> Any:
    """The filter forgets the IDs that leave its memory."""

    def put_away(self: Any, known: Any, run: Any) -> None:
        original(self, known, run)
        self._store.delete([self._key(known, run, chunk) for chunk in run.stored])

    return put_away


@mutation(MessageFilter, "__init__")
def message_ids_outlive_the_subtask(original: Any) -> Any:
    """A subtask that starts from a version knows IDs that its predecessor in this process received behind it."""

    def init(self: Any, store: Any, number: int, error_rate: float) -> None:
        original(self, store, number, error_rate)
        blooms, channels = vars(store).setdefault("_kept", ({}, {}))
        self._blooms, self._channels, self._number = blooms, channels, 0
        self.close = lambda: None

    return init


@mutation(MessageFilter, "begin")
def message_ids_of_a_newer_version(original: Any) -> Any:
    """The filter takes the first message behind a version for one that the version holds."""
    return lambda self, channel, first: original(self, channel, first + (first > 0))


@mutation(InputCursor, "replace_producer")
def the_cursor_goes_back(original: Any) -> Any:
    """When its producer fails, a consumer expects again what it has received and not consumed."""

    def replace_producer(self: Any, generation: Any) -> None:
        original(self, generation)
        self._received = self._consumed

    return replace_producer


@mutation(InputCursor, "replace_producer")
def the_cursor_goes_ahead(original: Any) -> Any:
    """When its producer fails, a consumer takes the next message for one that it has received."""

    def replace_producer(self: Any, generation: Any) -> None:
        if generation > self._generation:
            self._received += 1
        original(self, generation)

    return replace_producer


@mutation(KnownSteps, "complete")
def determinants_never_let_go(original: Any) -> Any:
    """Receivers keep all determinants that they ever heard of."""
    return lambda self, checkpoint: None


@mutation(FenceAnswers, "order", scenario="32")
def successors_know_nothing_of_ancestors(original: Any) -> Any:
    """A promoted subtask is not told what survivors know of its ancestors."""
    return lambda *arguments: replace(original(*arguments), ancestors={})


@mutation(Promotions, "aborted", scenario="35")
def given_up_checkpoints_forgotten(original: Any) -> Any:
    """Whoever is promoted is not told which checkpoints were given up before it was (a fault that the product had)."""
    return lambda self, checkpoint: None


@mutation(SubtaskSteps, "abort", scenario="30")
def aborts_taken_in_the_middle_of_a_step(original: Any) -> Any:
    """A checkpoint is given up while a step rests half-way (a fault that the product had)."""

    def abort(self: Any, checkpoint: Any) -> None:
        step, self._step = self._step, None
        original(self, checkpoint)
        self._step = step

    return abort


@mutation(SubtaskSteps, "_repeat")
def ranges_chosen_anew(original: Any) -> Any:
    """A promoted source reads as many rows as it likes."""

    def repeat(self: Any, choice: Choice, value: int) -> Any:
        anew = self._work.next_read() if choice is Choice.READ else None
        return original(self, choice, value if anew is None else anew)

    return repeat


# --- live sources


@mutation(SourceSide, "read", live=True)
def places_are_chosen_anew(original: Any) -> Any:
    """A promoted source reads what is there, from any of its places, in the place of what its predecessor chose."""

    def read(self: Any, choice: Choice, value: int) -> Any:
        anew = self._work.next_read() if choice is Choice.READ and self._replay.unchecked else None
        return original(self, choice, value if anew is None else anew)

    return read


@mutation(SourceSide, "can_repeat", live=True)
def repeated_reads_do_not_wait(original: Any) -> Any:
    """A promoted source reads what its predecessor chose before all of it is there."""
    return property(lambda self: True)


@mutation(SourceSide, "read", live=True)
def rows_are_logged_and_not_the_choice(original: Any) -> Any:
    """The determinant of a read says how many rows were read, and not which."""

    def read(self: Any, choice: Choice, value: int) -> Any:
        if choice is Choice.END or value == 0:
            yield from original(self, choice, value)
            return
        self._history.begin(choice, self._work.rows_of(value))
        yield from self._work.read_rows(value)

    return read


@mutation(SourceSide, "read", live=True)
def idle_sources_are_not_logged(original: Any) -> Any:
    """That a source was idle for long is sent on, and is no step: a successor finds out by itself."""

    def read(self: Any, choice: Choice, value: int) -> Any:
        return self._work.become_idle() if (choice, value) == (Choice.END, IDLED) else original(self, choice, value)

    return read


@mutation(ClockSide, "tick", ticked=True)
def steps_of_the_clock_are_not_logged(original: Any) -> Any:
    """A step by the time of day is not logged: a successor has it by its own clock."""
    return lambda self: self._work.tick()


@mutation(SubtaskSteps, "_repeat", ticked=True)
def steps_of_the_clock_are_not_repeated(original: Any) -> Any:
    """A promoted subtask leaves out the steps that its predecessor had by the time of day."""

    def repeat(self: Any, choice: Choice, value: int) -> Any:
        if (choice, value) != (Choice.END, TICKED):
            return original(self, choice, value)
        while self.replay.determinants and unpack(self.replay.determinants[0])[0] in CLOCK_CHOICES:
            self.replay.determinants.popleft()
        self.history.begin(choice, value)
        return None

    return repeat


@mutation(InputWatermarks, "saved", live=True)
def idle_channels_are_not_saved(original: Any) -> Any:
    """A snapshot does not say which of the input channels were idle."""
    return lambda self: {name: ms for name, ms in original(self).items() if ms != IDLE_MS}


@mutation(Replay, "reads_ahead", live=True, joined=True)
def joined_reads_are_repeated_in_another_order(original: Any) -> Any:
    """A source that repeats several steps together reads of its places in another order."""
    return lambda self: iter(sorted(original(self)))


# --- answers from outside


@mutation(AnswerSide, "take", asking=True)
def answers_are_not_logged(original: Any) -> Any:
    """That a subtask takes answers is no step of its own: a successor asks again, and takes what it is answered."""

    def take(self: Any, choice: int) -> Any:
        return original(self, choice) if choice == NO_MORE else self._answers.take(choice)

    return take


@mutation(AnswerSide, "ask", asking=True)
def rows_are_asked_for_while_steps_are_repeated(original: Any) -> Any:
    """A successor asks again for rows whose answers its predecessor has sent on."""
    return lambda self: self._answers.ask()


@mutation(AnswerSide, "can_repeat", asking=True)
def repeated_answers_are_not_awaited(original: Any) -> Any:
    """A successor takes answers before it has read them."""
    return property(lambda self: True)


@mutation(SimAnswers, "_write", asking=True)
def answers_are_taken_before_they_are_stored(original: Any) -> Any:
    """Answers are stored beside the stream."""

    def write(self: Any, number: int, together: Any) -> None:
        world = self._world
        at_ms, key = world.now_ms + world.storage_ms(), (self._key, number)
        world.at(at_ms, self._slot.event, world.answers.__setitem__, key, together)
        self._is_stored(number, together)

    return write


@mutation(SimAnswers, "holds", asking=True)
def watermarks_overtake_rows_that_wait(original: Any) -> Any:
    """A watermark is sent on before the answers of rows that came before it."""
    return lambda self, watermark_ms: False


@mutation(OutputChannels, "add_channels")
def ids_forgotten_at_promotion(original: Any) -> Any:
    """Whoever begins from a version numbers its messages from 0 again."""
    return lambda self, edge, producer, peers, first, is_back=False: original(self, edge, producer, peers, {}, is_back)


@mutation(SubtaskSteps, "abort")
def aborts_taken_while_repeating(original: Any) -> Any:
    """A promoted subtask gives a checkpoint up at once, not after what it has to repeat."""

    def abort(self: Any, checkpoint: Any) -> None:
        determinants, self.replay.determinants = self.replay.determinants, deque()
        original(self, checkpoint)
        self.replay.determinants = determinants

    return abort


# --- failover


@mutation(chains, "recovery_line", scenario="25")
def received_ignored(original: Any) -> Any:
    """A version counts as usable though messages before it were never delivered."""

    class Everything(dict[ChannelId, int]):
        def get(self, channel: Any, default: Any = None) -> Any:
            return ENDLESS

    return lambda failed, versions, received, *rest: original(failed, versions, Everything(), *rest)


@mutation(attempts.Attempts, "fenced")
def one_fence_is_enough(original: Any) -> Any:
    """Standbys are promoted when the first slot has fenced."""

    def fenced(self: Any, now_ms: int, number: int, slot: int, received: Any) -> Any:
        if self._attempt is not None and self._attempt.number == number:
            self._attempt.awaited = [slot]
        return original(self, now_ms, number, slot, received)

    return fenced


@mutation(attempts.Attempts, "_promote_when_ready")
def zookeeper_not_awaited(original: Any) -> Any:
    """Standbys are promoted whether or not ZooKeeper has the new generation."""

    def promote(self: Any, now_ms: int) -> Any:
        if self._attempt is not None:
            self._attempt.is_written = True
        return original(self, now_ms)

    return promote


@mutation(attempts, "unprovable")
def everything_provable(original: Any) -> Any:
    """Producers are repeated though nobody knows how."""
    return lambda *arguments: None


@mutation(chains.ChainTable, "_can_begin")
def versions_that_all_have_count_for_nothing(original: Any) -> Any:
    """A failed set goes back behind a version that every head has stored, and that is about to be complete."""
    return lambda self, chain, version, pending: version == self.complete


@mutation(chains.Chain, "stable")
def stable_before_it_is_staged(original: Any) -> Any:
    """A version counts as stable when the head has it."""
    return property(lambda self: max(self.persisted))


@mutation(Replica, "stage")
def staged_delta_applied_too_soon(original: Any) -> Any:
    """A standby's store takes a version in when it arrives."""

    def stage(self: Any, number: int, generation: int, handle: bytes, files: Any) -> None:
        original(self, number, generation, handle, files)
        for copy in self._copies:
            self.disk.ingest(copy.store, files, True)

    return stage


# --- replication


@mutation(Partial, "matches")
def checksum_of_a_file_not_looked_at(original: Any) -> Any:
    """A file counts as held when as many bytes have arrived as it has."""
    return property(lambda self: self.complete)


@mutation(Receiver, "take_offer")
def offer_of_a_fenced_head_taken(original: Any) -> Any:
    """A version of an older generation is as good as one of the present one."""

    def take_offer(self: Any, peer: int, frame: Any) -> None:
        member = self._members.get(frame.topic.subtask)
        if member is None or frame.topic.generation >= member.generation:
            original(self, peer, frame)
            return
        present, member.generation = member.generation, frame.topic.generation
        original(self, peer, frame)
        member.generation = present

    return take_offer


@mutation(Sender, "_next_version")
def versions_of_a_fenced_head_offered(original: Any) -> Any:
    """A version goes down the chain under the present generation, whichever it was made in."""

    def next_version(self: Any, member: Any) -> Any:
        for version in member.replica.staged.values():
            version.generation = member.generation
        return original(self, member)

    return next_version


@mutation(Receiver, "_ask")
def staged_before_all_is_held(original: Any) -> Any:
    """A standby says that it has a version while files of it are on their way."""

    def ask(self: Any, member: Any, inbound: Any) -> None:
        original(self, member, inbound)
        self._report(member.subtask, inbound.topic.generation, inbound.topic.version)

    return ask


@mutation(Receiver, "_after_file")
def all_held_with_the_first_file(original: Any) -> Any:
    """A version counts as held when the first of its missing files is there."""
    return lambda self, member, inbound: self._finish(member, inbound)


@mutation(Receiver, "_checked")
def files_of_a_dead_process_trusted(original: Any) -> Any:
    """What a dead process has left is held, whatever its checksum is."""
    return lambda self, member, file, error: original(self, member, file, None)


@mutation(Receiver, "_after_check")
def damaged_files_of_a_dead_process_left_out(original: Any) -> Any:
    """A version counts as held though a file that a dead process had left was damaged."""

    def after_check(self: Any, member: Any, inbound: Any, file: Any) -> None:
        inbound.stored.remove(file)
        self._finish(member, inbound)

    return after_check


@mutation(Replica, "fetch", scenario="92")
def files_of_a_dead_process_promoted_unchecked(original: Any) -> Any:
    """A promotion takes what a dead process has left as it is."""

    def fetch(self: Any, file: Any) -> None:
        if self.disk.has_left(file):
            self.adopt(file, Origin.LEFT)
        else:
            original(self, file)

    return fetch


@mutation(Replica, "tidy", scenario="93")
def files_of_a_dead_process_discarded_with_any_version(original: Any) -> Any:
    """What a dead process has left goes with the first version held, be it older than the newest one left (a fault
    that the product had).
    """

    def tidy(self: Any) -> None:
        original(self)
        if self.staged:
            self.disk.discard_all_left()

    return tidy


@mutation(Replica, "serving", scenario="94")
def what_a_base_replaces_is_discarded(original: Any) -> Any:
    """A base is received although a dead process has left all that it replaces (a fault that the product had)."""
    return lambda self, files, lacks: ()


@mutation(StagedVersion, "instead_of")
def any_version_makes_do_for_a_base(original: Any) -> Any:
    """Whatever version is held serves for a base that is not."""
    return lambda self, base: self.files


@mutation(Replica, "stage")
def history_that_was_left_kept(original: Any) -> Any:
    """Versions of the dead head stay beside those of its successor."""

    def stage(self: Any, number: int, generation: int, handle: bytes, files: Any) -> None:
        before = dict(self.staged)
        original(self, number, generation, handle, files)
        self.staged = {**self.staged, **before}

    return stage


@mutation(_Copy, "begins")
def files_ingested_on_top_of_others(original: Any) -> Any:
    """Any RocksDB will do to ingest a version's files into."""
    return lambda self, files: True


@mutation(Replica, "promote")
def newest_version_promoted(original: Any) -> Any:
    """A successor begins from the newest version that it holds, not from the one that it is told."""

    def promote(self: Any, files: Any, generation: int) -> Any:
        newest = self.newest(ENDLESS)
        return original(self, files if newest is None else newest.files, generation)

    return promote


@mutation(SlotFailover, "_fence_inputs")
def inputs_not_fenced(original: Any) -> Any:
    """A slot answers a fence, and still takes what the old generation sends."""

    def fence_inputs(self: Any, subtask: Any, failed: Any, generation: int, answer: Any) -> Any:
        cursors = {end.channel: end.cursor._generation for end in subtask.inputs.channels.values()}
        digests = original(self, subtask, failed, generation, answer)
        for end in subtask.inputs.channels.values():
            end.cursor._generation = cursors[end.channel]
        return digests

    return fence_inputs


@mutation(SubtaskSteps, "_can_proceed")
def goes_on_during_a_synchronous_checkpoint(original: Any) -> Any:
    """A subtask does not wait for the end of a synchronous checkpoint."""

    def can_proceed(self: Any) -> bool:
        self.checkpoints.paused_by = None
        return bool(original(self))

    return can_proceed


# --- loops


@mutation(InputGate, "add")
def what_was_in_flight_is_lost(original: Any) -> Any:
    """A restore does not put back what was logged of back edges."""

    def add(self: Any, *arguments: Any) -> None:
        original(self, *arguments[:7])

    return add


@mutation(CyclicAlignment, "_on_barrier", scenario="47")
def one_barrier_round_is_enough(original: Any) -> Any:
    """A snapshot is persisted when the barrier has come round on the first of its back edges."""

    def on_barrier(self: Any, channel: Any, checkpoint: Any) -> Any:
        found = original(self, channel, checkpoint)
        awaited = self._recordings.get(checkpoint)
        if channel in self._back and awaited:
            del self._recordings[checkpoint]
            closed = [effects.EndCapture(checkpoint, other) for other in awaited]
            return [*found, *closed, effects.PersistSnapshot(checkpoint)]
        return found

    return on_barrier


@mutation(ChannelState, "taken")
def only_the_first_is_logged(original: Any) -> Any:
    """Of what is in flight on a back edge, one message is logged."""

    def note(self: Any, channel: Any, message: Any, payload: Any) -> None:
        if all(not log.messages for log in self.logging.get(channel, {}).values()):
            original(self, channel, message, payload)

    return note


@mutation(ChannelState, "logs_of")
def logged_and_sent_again(original: Any) -> Any:
    """What is in flight on a back edge is in the snapshot, and its cursor stands before it."""

    def logs_of(self: Any, checkpoint: Any) -> Any:
        logs = original(self, checkpoint)
        for log in logs.values():
            log.next = log.messages[0][0].seq if log.messages else log.next
        return logs

    return logs_of


@mutation(SnapshotLogs, "takes")
def whatever_is_in_flight_is_held(original: Any) -> Any:
    """Snapshots hold what is in flight, however much it is."""

    def takes(self: Any, log: Any, size_bytes: int) -> bool:
        self.held_bytes += size_bytes
        self._budget.held_bytes += size_bytes
        return True

    return takes


@mutation(SnapshotLogs, "release")
def what_was_in_flight_is_never_given_back(original: Any) -> Any:
    """A slot counts what its snapshots held for ever."""
    return lambda self: None


@mutation(LoopRounds, "start")
def a_loop_ends_after_one_round(original: Any) -> Any:
    """The first round of a loop counts as one in which nothing moved."""

    def start(self: Any) -> Any:
        return original(self)[0], False

    return start


@mutation(LoopRounds, "record_came_round")
def records_that_come_round_are_not_told(original: Any) -> Any:
    """A round does not say that records came round."""
    return lambda self: None


@mutation(LoopRounds, "saved")
def rounds_are_not_saved(original: Any) -> Any:
    """A snapshot says nothing of the rounds of a loop."""
    return lambda self: {}


@mutation(CheckpointCoordinator, "_all_exhausted")
def loops_are_not_waited_for(original: Any) -> Any:
    """The last checkpoint is taken when all sources are exhausted, whatever is in flight in a loop."""
    return lambda self: bool(self._sources) and self._exhausted.issuperset(self._sources)


@mutation(OutputChannels, "add_channels")
def back_edges_have_little_room(original: Any) -> Any:
    """An output log of a back edge takes no more messages than others."""

    def add_channels(self: Any, edge: Any, producer: Any, peers: Any, first: Any, is_back: bool = False) -> None:
        original(self, edge, producer, peers, first)

    return add_channels


@mutation(Lineage, "_ancestors_of", scenario="40")
def nobody_is_an_ancestor_of_its_like(original: Any) -> Any:
    """In a loop, determinants of the other subtasks of a vertex, and those behind it, are not passed on by it."""

    def ancestors_of(self: Any, vertex: Any) -> Any:
        found = original(self, vertex)
        found.pop(vertex, None)
        return found

    return ancestors_of


@mutation(OutputLog, "lift_limits")
def back_edges_stay_in_memory(original: Any) -> Any:
    """What waits on a back edge does not go to disk."""

    def lift_limits(self: Any) -> None:
        original(self)
        self._limited = True

    return lift_limits


@mutation(RecordingAlignment, "_end_recording", scenario="48")
def given_up_recordings_are_waited_for(original: Any) -> Any:
    """A checkpoint that is given up while its barrier goes round holds up those behind it."""
    return lambda self, checkpoint: []


@mutation(KnownSteps, "__init__")
def lower_bounds_are_taken_for_the_truth(original: Any) -> Any:
    """What a barrier says of the steps of others is exact in loops as well."""
    return lambda self, told=None, cyclic=False: original(self, told)


@mutation(InputPart, "value")
def how_many_were_taken_is_not_noted(original: Any) -> Any:
    """A determinant says of several messages that were taken from one channel that it was one."""
    return lambda self, channels: original(self._replace(messages=1), channels)


@mutation(Replay, "take_bundle")
def bundles_are_repeated_in_another_order(original: Any) -> Any:
    """A repeated step takes the messages of its bundle in the order of the channels."""
    return lambda self: sorted(original(self))


@mutation(InputPart, "of")
def bundles_are_repeated_one_channel_at_a_time(original: Any) -> Any:
    """A step that took a bundle from several channels is repeated as several steps."""
    return classmethod(lambda cls, value, channels: original.__func__(cls, value & ~1, channels))


@mutation(SubtaskSteps, "_begin")
def bundles_are_chosen_anew(original: Any) -> Any:
    """A repeated step takes whatever waits by then, in place of the bundle that its predecessor took."""

    def begin(self: Any) -> Any:
        if not self.replay.next_bundle(len(self._by_position)):
            return original(self)
        self.replay.take_bundle()
        bundle = self.inputs.next()
        return self._take(bundle) if bundle else None

    return begin


@mutation(SubtaskSteps, "_has_work")
def bundles_are_taken_before_all_messages_came(original: Any) -> Any:
    """A promoted consumer repeats a bundle as soon as one message of each of its channels has come, with those that
    are there."""

    def has_work(self: Any) -> bool:
        if self._step is None and self.replay.determinants:
            parts = self.replay.next_bundle(len(self._by_position))
            waiting = [len(self._by_position[part.position].queue) for part in parts]
            if parts and all(waiting):
                counts = [min(part.messages, count) for part, count in zip(parts, waiting, strict=True)]
                parts[:] = [part._replace(messages=count) for part, count in zip(parts, counts, strict=True)]
                return True
        return bool(original(self))

    return has_work


@mutation(Window, "always_open", scenario="86")
def bundles_are_larger_than_what_is_sent_again(original: Any) -> Any:
    """A step takes more of a channel than its producer may send before the step has ended (a fault that the product
    had)."""
    return property(lambda self: (self.messages, ENDLESS))


@mutation(InputGate, "_records")
def bundles_reach_across_barriers(original: Any) -> Any:
    """A bundle takes the records behind a message of another kind as well, and leaves that for later."""

    def records(self: Any, ready: Any) -> Any:
        for end in ready:
            end.queue = deque(sorted(end.queue, key=lambda item: item[0].kind is not MessageKind.RECORDS))
        return original(self, ready)

    return records


@mutation(JoinedSteps, "_push", joined=True)
def joined_steps_are_logged_before_any_sends(original: Any) -> Any:
    """Of steps that are repeated together all begin before the first one sends: what a consumer has of the first one
    already would tell it of the others."""

    def push(self: Any, bundles: Any, waiting: Any) -> Any:
        sendings = self._work.push_together(waiting)
        for bundle in bundles:
            self._begin_bundle(bundle)
            for found in self._inputs.take(bundle):
                self._pass_on(*found)
        for bundle, sending in zip(bundles, sendings, strict=True):
            yield from sending
            if bundle is not bundles[-1]:
                self._ended(bundle)

    return push


@mutation(JoinedSteps, "_ended", joined=True, at_once=True)
def joined_steps_are_cut_together(original: Any) -> Any:
    """The rows of steps that are repeated together are one piece, also where the last transaction ended between two of
    them."""

    def ended(self: Any, bundle: Any) -> None:
        for end, count in bundle:
            self._inputs.consumed(end, count)

    return ended


@mutation(JoinedSteps, "_push", joined=True)
def joined_steps_grant_credit_together(original: Any) -> Any:
    """What steps that are repeated together took is consumed at the end of the last one, and its bytes count at once (a
    fault that the simulator found)."""

    def push(self: Any, bundles: Any, waiting: Any) -> Any:
        own, taken = self._inputs, [iter(self._inputs.take(bundle)) for bundle in bundles]
        sendings = self._work.push_together(waiting)
        for bundle, messages, sending in zip(bundles, taken, sendings, strict=True):
            self._begin_bundle(bundle)
            for found in messages:
                self._pass_on(*found)
            yield from sending
            if bundle is not bundles[-1]:
                self._outputs.cut_recipe()
        for end, count in [part for bundle in bundles[:-1] for part in bundle]:
            own.consumed(end, count)

    return push


@mutation(Replay, "bundles_ahead", joined=True)
def joined_steps_take_one_message_of_each_channel(original: Any) -> Any:
    """Of steps that are repeated together each takes one message of a channel of which its predecessor took several."""

    def bundles_ahead(self: Any, channels: Any) -> Any:
        for parts in original(self, channels):
            yield [part._replace(messages=1) for part in parts]

    return bundles_ahead


@mutation(Replay, "reads_ahead", joined=True)
def joined_reads_are_one(original: Any) -> Any:
    """A source that repeats several steps together reads all their rows in the first one."""

    def reads_ahead(self: Any) -> Any:
        rows = list(original(self))
        return iter([sum(rows), *[0] * (len(rows) - 1)])

    return reads_ahead


@mutation(Replay, "take_steps", joined=True)
def joined_steps_are_repeated_again(original: Any) -> Any:
    """The last one of several steps that are repeated together is repeated once more."""
    return lambda self, determinants: original(self, determinants - 1)


@mutation(InputCursor, "announce")
def bytes_are_not_reported(original: Any) -> Any:
    """A consumer grants credit when it has consumed half a window of messages, however large they are."""

    def announce(self: Any) -> Any:
        self._unreported_bytes = 0
        return original(self)

    return announce


@mutation(OutputChannel, "next_to_send")
def bytes_in_flight_are_not_counted(original: Any) -> Any:
    """A producer sends as many messages as it has credit for, however large they are."""

    def next_to_send(self: Any) -> Any:
        item = self.log.next_to_send(self.limit)
        return None if item is None else item[1]

    return next_to_send


@mutation(StepHistory, "_reached_at")
def what_was_passed_on_is_forgotten(original: Any) -> Any:
    """Whoever begins from a version does not know how far it had passed on what ancestors did."""
    return lambda self, saved: {}


# --- the recovery line


def _without_neighbours(original: Any, named: Callable[[Topology, Any], list[Any]]) -> Any:
    """The check of a version does not know what these neighbours of each failed subtask began from."""

    def obstacle(component: Any, version: int, versions: Any, received: Any, topology: Any, restored: Any) -> Any:
        neighbours = [other for subtask in component for other in named(topology, subtask)]
        known = {subtask: began for subtask, began in restored.items() if subtask not in neighbours}
        return original(component, version, versions, received, topology, known)

    return obstacle


@mutation(line, "_obstacle", scenario="57")
def producers_may_have_begun_from_newer_versions(original: Any) -> Any:
    """A version counts as usable though a living producer has nothing older than a newer one."""
    return _without_neighbours(original, lambda topology, one: [topology.producer(c) for c in topology.inputs(one)])


@mutation(line, "_obstacle", scenario="58")
def consumers_may_have_begun_from_newer_versions(original: Any) -> Any:
    """A version counts as usable though a living consumer knows nothing of what it received before a newer one."""
    return _without_neighbours(original, lambda topology, one: [topology.consumer(c) for c in topology.outputs(one)])


# --- weaker guarantees


@mutation(OutputChannels, "append_end")
def the_end_is_not_sent_again(original: Any) -> Any:
    """At most once: the end of input that a failed consumer had received is not sent to its successor."""
    return lambda self, end: None


# --- partial recovery


@mutation(Topology, "with_upstreams")
def upstreams_stay(original: Any) -> Any:
    """Only what failed goes back, and asks its producers for what nobody keeps."""
    return lambda self, subtasks: tuple(sorted(subtasks))


@mutation(Topology, "with_upstreams")
def only_direct_producers_go_back(original: Any) -> Any:
    """The producers of what failed go back, and theirs do not."""

    def with_producers(self: Any, subtasks: Any) -> Any:
        return tuple(other for other in original(self, subtasks) if _is_near(self, other, subtasks))

    return with_producers


def _is_near(topology: Any, subtask: Any, failed: Any) -> bool:
    return subtask in failed or any(topology.feeds(subtask, other) for other in failed)


@mutation(ActiveSubtasks, "retire_for_successor", scenario="52")
def credit_of_the_predecessor_lost(original: Any) -> Any:
    """What consumers said to one who begins anew in the same slot, just before it was fenced, is forgotten (a fault
    that the product had)."""
    return lambda self, subtask: self.retire(subtask)


@mutation(ActiveSubtasks, "add", scenario="54")
def what_was_granted_to_the_predecessor_is_not_granted(original: Any) -> Any:
    """Who begins anew in the same slot may send what its predecessor might, and waits then for a grant that it had (a
    fault that the product had)."""

    def add(self: Any, subtask: Any) -> None:
        channels = subtask.outputs.channels
        before = {c: channels[c].granted for c in self._granted.keys() & channels.keys() if c not in self._early}
        original(self, subtask)
        for channel, granted in before.items():
            channels[channel].granted = granted

    return add


@mutation(OutputChannel, "let_go")
def what_is_compared_is_kept(original: Any) -> Any:
    """Messages that are made again only to be compared stay in memory."""
    return lambda self: None


# --- event time


@mutation(InputWatermarks, "saved")
def watermarks_not_saved(original: Any) -> Any:
    """A snapshot says nothing of event time."""
    return lambda self: {}


@mutation(InputWatermarks, "_least")
def watermark_of_the_fastest(original: Any) -> Any:
    """The watermark is that of the input channel that is ahead, not of the one behind."""

    def least(self: Any) -> int:
        ahead = max([known for channel, known in self._known.items() if channel not in self._ended], default=None)
        return original(self) if ahead is None else ahead

    return least


# --- rows up to the barrier


@mutation(BarrierAlignment, "completes", to_barrier=True)
def rows_leave_at_the_first_barrier(original: Any) -> Any:
    """Rows that are held back leave at the first barrier of a checkpoint; more follow from the other channels."""
    return lambda self, channel, checkpoint: checkpoint > self._newest_seen


@mutation(SubtaskSteps, "_emit_before", to_barrier=True)
def rows_leave_behind_their_barrier(original: Any) -> Any:
    """The subtask's barrier precedes the rows that are held back until then."""

    def emit(self: Any, end: Any, message: Any) -> Any:
        self._take_barrier(end, message)
        yield from self._work.before_barrier()

    return emit


@mutation(SubtaskSteps, "_emit_before", to_barrier=True)
def rows_that_wait_for_room_stay(original: Any) -> Any:
    """The barrier does not wait for the rows that need room in an output log."""

    def emit(self: Any, end: Any, message: Any) -> Any:
        next(self._work.before_barrier(), None)
        self._take_barrier(end, message)
        yield from ()

    return emit


# --- barriers that overtake


@mutation(ChannelState, "arrived")
def what_comes_behind_the_copy_is_not_recorded(original: Any) -> Any:
    """An unaligned snapshot holds what was here when the state was copied, and not what came before the barrier."""
    return lambda self, channel, message, payload: None


@mutation(ChannelState, "open_record")
def what_waits_is_not_recorded(original: Any) -> Any:
    """An unaligned snapshot holds what came behind the copy of the state, and not what was here."""

    def record(self: Any, checkpoint: Any, end: Any) -> None:
        queue, end.queue = end.queue, type(end.queue)()
        original(self, checkpoint, end)
        end.queue = queue

    return record


@mutation(SubtaskSteps, "_begin_overtaking")
def overtaking_is_no_determinant(original: Any) -> Any:
    """Nobody is told where a barrier overtook."""

    def begin(self: Any, checkpoint: Any) -> None:
        with mock.patch.object(self.history, "begin"):
            original(self, checkpoint)

    return begin


@mutation(CheckpointCoordinator, "_overtaking_ms")
def the_last_checkpoint_may_be_unaligned(original: Any) -> Any:
    """What is in flight when the job ends is in its last checkpoint, and never worked on."""

    def overtaking_ms(self: Any, pending: Any) -> int | None:
        final, pending.final = pending.final, False
        found: int | None = original(self, pending)
        pending.final = final
        return found

    return overtaking_ms


@mutation(UnalignedBarriers, "_on_overtook")
def complete_with_the_first_barrier(original: Any) -> Any:
    """An unaligned snapshot does not wait for the barriers of its other inputs."""

    def overtook(self: Any, checkpoint: Any) -> Any:
        found = original(self, checkpoint)
        awaited = self._recordings.pop(checkpoint, ())
        closed = [effects.EndCapture(checkpoint, channel) for channel in awaited]
        return [*found, *closed, *([effects.PersistSnapshot(checkpoint)] if awaited else ())]

    return overtook


@mutation(StepHistory, "saved_of_ancestors", scenario="43")
def ancestors_are_known_anew(original: Any) -> Any:
    """A version does not say how far ancestors were known, though messages in flight tell of steps before it."""
    return lambda self: {}


@mutation(OutputChannel, "may_be_overdrawn", scenario="44")
def what_is_sent_again_is_sent_without_credit(original: Any) -> Any:
    """A barrier that overtakes takes all along that is sent again to a consumer's successor (a fault that the product
    had)."""
    return property(lambda self: not self.resuming)


@mutation(InFlightBudget, "room")
def more_is_overtaken_than_a_snapshot_may_hold(original: Any) -> Any:
    """A subtask begins to overtake though it can see that its snapshot will be declined (a fault that the product
    had)."""
    return property(lambda self: ENDLESS)


@mutation(BarrierMachine, "__init__")
def barriers_of_the_version_count(original: Any) -> Any:
    """A barrier that was in flight at a version is one like any other when its turn comes."""
    return lambda self, subtask, inputs, version=0, *rest, **more: original(self, subtask, inputs, 0, *rest, **more)


# --- within a slot


@mutation(Routing, "hand_over")
def consumers_fail_their_producers(original: Any) -> Any:
    """What a consumer throws at a message of its own slot counts as its producer's failure (a fault that the product
    had)."""

    def hand_over(self: Any, message: Any, payload: Any) -> None:
        consumer = self._host.active.consumer(message.channel)
        if consumer is not None:
            consumer.steps.receive(message, payload)

    return hand_over


# --- frames


@mutation(FrameQueue, "next_frame")
def frames_are_cut_inside_messages(original: Any) -> Any:
    """A frame ends at any buffer once it is long enough (a fault that the product had)."""

    def next_frame(self: Any, with_length: bool = False) -> bytes:
        frame = b""
        while self._messages and (not frame or len(frame) < self.joined_bytes):
            first, *rest = self._messages.popleft()
            frame += bytes(first)
            if rest:
                self._messages.appendleft(rest)
        return framed(frame) if with_length else frame

    return next_frame


@mutation(SlotOrders, "frame_malformed")
def what_could_not_be_read_is_not_sent_again(original: Any) -> Any:
    """A frame that cannot be read is dropped, and its stream stays."""
    return lambda self, peer, error: None


@mutation(Peers, "malformed", scenario="65")
def one_who_cannot_be_understood_is_kept(original: Any) -> Any:
    """A peer that keeps sending frames that cannot be read is asked for them again for ever."""
    return lambda self, peer: None


# --- slots that do not reach each other


@mutation(Reachability, "_judge")
def nobody_is_given_up(original: Any) -> Any:
    """Slots that do not reach each other wait for the network."""
    return lambda self, now_ms, pairs, known: []


@mutation(Reachability, "_judge")
def only_the_first_word_counts(original: Any) -> Any:
    """Nobody is given up unless most say at once that they do not reach it."""
    return lambda self, now_ms, pairs, known: original(self, now_ms, pairs, known) if len(pairs) > 1 else []


# --- planned moves


@mutation(chains.ChainTable, "is_full", scenario="71")
def surplus_standbys_leave_at_once(original: Any) -> Any:
    """A standby leaves a chain before those who take its place have its state."""
    return lambda self, chain, only_living: True


@mutation(PlannedMembers, "update_hosts")
def drains_end_when_a_slot_joins(original: Any) -> Any:
    """A host that was drained gets work when slots are placed anew."""

    def hosted(self: Any, hosts: Any) -> None:
        drains, self._host_drains = self._host_drains, {}
        original(self, hosts)
        self._host_drains = drains

    return hosted


@mutation(FailoverProtocol, "deployment_slots")
def rollbacks_use_drained_hosts(original: Any) -> Any:
    """A rollback puts every subtask on the slot of its number, also on a host that is drained."""
    return lambda self, hosts: {}


@mutation(PlannedMembers, "progress")
def done_when_the_standby_is_there(original: Any) -> Any:
    """A migration is said to be done before the work is handed over."""

    def progress(self: Any, table: Any) -> Any:
        found = original(self, table)
        for subtask, move in tuple(self._moves.items()):
            if move.slot in table[subtask].members:
                del self._moves[subtask]
                found.append(chain_effects.ReportMove(move.request, "done"))
        return found

    return progress


@mutation(PlannedMembers, "progress")
def what_is_done_is_not_reported(original: Any) -> Any:
    """Nobody learns that a request is done."""
    return lambda self, table: [report for report in original(self, table) if report.status != "done"]


@mutation(attempts.Attempts, "call_off")
def handovers_that_are_called_off_are_not_reported(original: Any) -> Any:
    """A handover that is called off is not reported as ended."""

    def call_off(self: Any) -> Any:
        original(self)
        return []

    return call_off


@mutation(Receiver, "take_offer", scenario="85")
def the_next_predecessor_is_forgotten(original: Any) -> Any:
    """An offer of the predecessor makes a standby forget what the next one has offered early (as the product did)."""

    def take_offer(self: Any, peer: int, frame: Any) -> None:
        member = self._members.get(frame.topic.subtask)
        if member is not None and member.predecessor == peer:
            self._early = {key: offer for key, offer in self._early.items() if key[0] != frame.topic.subtask}
        original(self, peer, frame)

    return take_offer


@mutation(Handover, "_may_take")
def heads_never_leave_a_drained_host(original: Any) -> Any:
    """A head that is to leave its slot waits until it is among its planned members, which it never is."""
    return lambda self, slot: all(chain.head in chain.planned for chain in self._away(slot))


# --- spare slots


@mutation(PlannedMembers, "_left_to_scale")
def retired_with_something_on_it(original: Any) -> Any:
    """A spare slot is no slot of the job any more while it is still in chains."""

    def left(self: Any, table: Any) -> Any:
        return () if self._scaling.slots else original(self, table)

    return left


@mutation(SlotProcesses, "needed")
def spare_slots_are_deployed_on(original: Any) -> Any:
    """A rollback counts on the spare slots that are there."""
    return lambda self: self.all()


# --- another parallelism


@mutation(SlotOrders, "_assign", rescaled=True)
def slots_keep_the_parallelism_that_they_began_with(original: Any) -> Any:
    """A slot learns where all subtasks are, and not how many there are now."""

    def assign(self: Any, assignment: Any) -> None:
        before = self.parallelism
        original(self, assignment)
        self.parallelism = before

    return assign


@mutation(JobProtocol, "_on_divided", rescaled=True)
def deployments_use_the_assignment_of_before(original: Any) -> Any:
    """The checkpoint is divided, and the subtasks of before are deployed from it."""

    def divided(self: Any, now_ms: int, event: Any) -> Any:
        before = self._assignment
        found = original(self, now_ms, event)
        self._assignment = before
        return found

    return divided


@mutation(JobProtocol, "_on_divided", rescaled=True)
def the_plan_changes_though_the_division_failed(original: Any) -> Any:
    """The subtasks are changed although no divided checkpoint is stored."""

    def divided(self: Any, now_ms: int, event: Any) -> Any:
        if not isinstance(event, events.RescalingFailed) or not event.certain or self._rescale.until_ms is None:
            return original(self, now_ms, event)
        wanted = self._rescale.divided()
        self._slots.need(wanted.slots)
        self._assignment = self._assigned(wanted.subtasks)
        return [effects.ChangeSubtasks(wanted.subtasks, wanted.slots)]

    return divided


@mutation(JobProtocol, "_on_divided", rescaled=True)
def checkpoints_of_another_parallelism_are_fallbacks(original: Any) -> Any:
    """After a rescale the job may go back to the checkpoints of before."""

    def divided(self: Any, now_ms: int, event: Any) -> Any:
        before = list(self._available)
        found = original(self, now_ms, event)
        if isinstance(event, events.CheckpointRescaled):
            self._available = [*before, *self._available]
        return found

    return divided


@mutation(CheckpointCoordinator, "next_number", rescaled=True)
def a_divided_checkpoint_has_a_number_that_was_used(original: Any) -> Any:
    """A divided checkpoint is stored under the number of the newest complete one."""
    return property(lambda self: self._complete[-1] if self._complete else self._next_id)


@mutation(JobMachines, "change_subtasks", rescaled=True)
def the_machine_of_failover_hears_of_new_subtasks_too_late(original: Any) -> Any:
    """The deployment asks for slots before the machine of failover knows the new subtasks (as the product did)."""

    def change(self: Any, parallelism: int, slots: Any) -> None:
        self._dispatch.soon(lambda: original(self, parallelism, slots))

    return change


@mutation(Joining, "lost", rescaled=True)
def slots_that_end_are_waited_for(original: Any) -> Any:
    """Slots that join wait for one that a rescale has ended (as the product did)."""
    return lambda self, slot, over=False: None if over else original(self, slot)


@mutation(Routing, "take", rescaled=True)
def what_comes_late_of_another_plan_is_foreign(original: Any) -> Any:
    """A slot blames another one for what that sent on a channel that there is no more (as the product did)."""

    def take(self: Any, peer: int, message: Any, payload: Any) -> None:
        channel, consumer = message.channel, self._host.active.consumer(message.channel)
        of_channel = message.kind not in (MessageKind.CREDIT, MessageKind.REPLICA)
        if of_channel and consumer is not None and channel not in consumer.inputs.channels:
            raise ForeignMessage(f"slot {peer} sends on {channel}, which does not exist")
        original(self, peer, message, payload)

    return take


@mutation(SlotProcesses, "is_apart", rescaled=True)
def reserved_slots_join(original: Any) -> Any:
    """A slot that was started for a rescale takes part in the job before the switch."""
    return lambda self, slot: self.is_over(slot)


@mutation(Rescales, "_await_checkpoint", rescaled=True)
def slots_end_before_the_switch(original: Any) -> Any:
    """A slot that will not be needed ends when the switch begins."""

    def wait(self: Any, rescale: Any) -> None:
        original(self, rescale)
        if rescale.phase is RescalePhase.SWITCHING:
            for slot in [slot for slot in rescale.before if slot not in rescale.slots]:
                self._end(slot)

    return wait


@mutation(Prefetching, "is_stuck", rescaled=True)
def a_silent_slot_is_waited_for(original: Any) -> Any:
    """The switch waits for files of a slot that reports nothing any more."""
    return property(lambda self: False)


@mutation(Options, "local_unless")
def nothing_is_logged_for_standbys(original: Any) -> Any:
    """Every deployment counts as one of a single slot."""
    return lambda self, alone: original(self, True)


@mutation(Prefetching, "is_worth_a_round", rescaled=True)
def rounds_have_no_end(original: Any) -> Any:
    """Slots fetch state again whenever a checkpoint has added any, or one is silent."""
    return lambda self, divided, places: True


@mutation(key_groups, "groups_of", rescaled=True)
def ranges_of_key_groups_overlap(original: Any) -> Any:
    """A subtask takes the state of the key group before its own as well."""

    def groups(index: int, parallelism: int, max_parallelism: int) -> range:
        found = original(index, parallelism, max_parallelism)
        return range(max(0, found.start - 1), found.stop)

    return groups


@mutation(key_groups, "groups_of", rescaled=True)
def ranges_of_key_groups_leave_gaps(original: Any) -> Any:
    """A subtask does not take the state of its last key group."""

    def groups(index: int, parallelism: int, max_parallelism: int) -> range:
        found = original(index, parallelism, max_parallelism)
        return range(found.start, found.stop - 1)

    return groups


@mutation(dealing, "deal_blocks", rescaled=True)
def records_of_sources_that_lag_are_left_behind(original: Any) -> Any:
    """Only what is left from the furthest source on is dealt again."""

    def deal(left: Any, parallelism: int) -> Any:
        return [[run for run in mine if run.end is None] for mine in original(left, parallelism)]

    return deal


@mutation(dealing, "deal_blocks", rescaled=True)
def sources_keep_their_records(original: Any) -> Any:
    """Each source continues where the one of its number was; those of the others are left behind."""

    def deal(left: Any, parallelism: int) -> Any:
        return [list(left[index]) if index < len(left) else [] for index in range(parallelism)]

    return deal


@mutation(rescaling, "inherited_rows", rescaled=True)
def rows_that_were_held_back_are_left_behind(original: Any) -> Any:
    """A subtask does not take over what waited for event time (in the work, as operators must not)."""
    return lambda rows, owns: ()


@mutation(protocol_rescaling, "rescaled_part", rescaled=True)
def event_time_is_left_behind(original: Any) -> Any:
    """A subtask begins without the event time that those before had come to."""
    return lambda *arguments: replace(original(*arguments), watermark_ms=None)


@mutation(protocol_rescaling, "rescaled", rescaled=True)
def promises_are_left_behind(original: Any) -> Any:
    """What event time producers had promised is forgotten."""
    return lambda *arguments: replace(original(*arguments), watermarks={})


@mutation(protocol_rescaling, "least", rescaled=True)
def the_furthest_promise_counts(original: Any) -> Any:
    """All producers are taken to have promised what the furthest one had."""
    return lambda watermarks: max((known for known in watermarks if known is not None), default=None)


@mutation(protocol_rescaling, "rescaled", rescaled=True)
def cursors_stay_before_what_is_in_flight(original: Any) -> Any:
    """Channels begin at number 0, also those with messages in flight."""

    def rescaled(*arguments: Any) -> Any:
        found = original(*arguments)
        return replace(found, outputs=dict.fromkeys(found.outputs, 0))

    return rescaled


# --- durable storage


@mutation(Cuts, "voids", scenario="95")
def late_manifests_count(original: Any) -> Any:
    """A manifest that was given up, and appears later, is a checkpoint."""
    return lambda self, epoch, checkpoint: False


@mutation(UnusedFiles, "find")
def files_of_snapshots_under_way_are_removed(original: Any) -> Any:
    """A state file is removed as soon as no manifest names it."""
    return lambda self, stored, named, complete, triggered: [name for name in stored if name not in named]


@mutation(CheckpointCoordinator, "_sweep", scenario="96")
def unused_files_stay(original: Any) -> Any:
    """State files of checkpoints that were given up stay until the next deployment."""
    return lambda self, complete: []


@mutation(CommitQueue, "advance")
def slow_commits_end_the_job(original: Any) -> Any:
    """A commit that is not answered in time is given up, and with it the job."""

    def advance(self: Any, now_ms: int) -> Any:
        found = original(self, now_ms)
        late = any(isinstance(effect, effects.ReportCommitDelay) for effect in found)
        return self._abandon("the commit was not answered") if late else found

    return advance


# --- rollback


@mutation(JobProtocol, "_quiesce", scenario="97")
def rollbacks_wait_for_ever(original: Any) -> Any:
    """A rollback has no deadline for a commit that hangs."""

    def quiesce(self: Any, now_ms: int) -> Any:
        found = original(self, now_ms)
        if self._state in LIVE:
            self._quiesce_until_ms = None
        return found

    return quiesce


@mutation(JobProtocol, "_quiesce")
def rollback_before_all_is_quiet(original: Any) -> Any:
    """A rollback does not wait for manifests that are being stored."""

    def quiesce(self: Any, now_ms: int) -> Any:
        found = original(self, now_ms)
        self._quiesced = True
        return found

    return quiesce


@mutation(JobProtocol, "restore_from")
def older_checkpoint_restored(original: Any) -> Any:
    """A rollback goes to the checkpoint before the newest one, and takes no output back."""

    def restore_from(self: Any) -> Any:
        return self._available[-2] if len(self._available) > 1 else None

    return property(restore_from)


# --- savepoints


@mutation(CheckpointCoordinator, "_trigger", saved=True)
def barriers_of_savepoints_overtake(original: Any) -> Any:
    """The checkpoint of a savepoint may be unaligned, as others."""

    def trigger(self: Any, now_ms: int, final: bool, savepoint: bool = False) -> Any:
        found = original(self, now_ms, final, savepoint)
        if savepoint:
            self._pending[max(self._pending)].may_overtake = True
        return found

    return trigger


@mutation(Savepoints, "pinned", saved=True)
def checkpoints_of_savepoints_are_dropped(original: Any) -> Any:
    """A checkpoint is not kept until it is copied."""
    return property(lambda self: None)


@mutation(Savepoints, "holds", saved=True)
def checkpoints_go_on_beside_a_stop(original: Any) -> Any:
    """Output behind the savepoint that a job is stopped with becomes visible."""
    return property(lambda self: False)


@mutation(SavepointDriver, "_carry_out", saved=True)
def savepoints_that_failed_are_reported_as_stored(original: Any) -> Any:
    """The job stops, though the storage has refused what it was to stop with."""

    def carry_out(self: Any, savepoint: Any, writer: Any, action: Any, done: Any) -> None:
        def without_errors() -> None:
            with suppress(Exception):
                action()

        original(self, savepoint, writer, without_errors, done)

    return carry_out
