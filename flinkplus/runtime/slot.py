"""A slot: the main loop that runs inside one long-lived Spark task and hosts the subtasks assigned to it.

One thread, the loop, owns all subtasks and, with ``transport="tcp"``, all sockets. Other threads (the snapshot pool,
the standbys, gRPC) only put events into its inbox. The loop takes all events there
are, lets every runnable subtask do one step, consumers before producers, writes what that has put out, and sleeps on
inbox and sockets when nothing can run.

Rules: a slot obeys its coordinator and nobody else; when the control stream breaks, it closes everything and ends
with an
error, so that Spark starts a new attempt if the job still lives. A subtask's failure is reported and the subtask
stops; the slot lives on. Its scratch directory goes with it.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark import cloudpickle
from typing_extensions import assert_never

from chain_backup.zookeeper.records import (
    SessionBack,
    SessionExpired,
    SessionOpened,
    SessionSuspended,
    SlotRecord,
)
from flinkplus.errors import CorruptState, FlinkPlusError, PeerProtocolError, UserFunctionError
from flinkplus.graph import JobGraph
from flinkplus.protocol.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.runtime import control
from flinkplus.runtime.active import ActiveSubtasks, Credit
from flinkplus.runtime.allocator import use_one_arena
from flinkplus.runtime.cleanup import remove_tree
from flinkplus.runtime.faults import Faults
from flinkplus.runtime.gates import InputChannel
from flinkplus.runtime.inbox import Inbox
from flinkplus.runtime.lifeline import Lifeline
from flinkplus.runtime.log_codec import MessageCodec
from flinkplus.runtime.names import parse_subtask
from flinkplus.runtime.peers import Peers
from flinkplus.runtime.planes import (
    ControlArrived,
    ControlLost,
    FrameArrived,
    PeerAttached,
    PeerBroken,
    PeerConnected,
    control_link,
    data_plane,
)
from flinkplus.runtime.priority import Preference
from flinkplus.runtime.scratch import make_scratch, remove_scratch
from flinkplus.runtime.slot_config import SlotConfig, slot_host
from flinkplus.runtime.slot_failover import SlotFailover
from flinkplus.runtime.standbys import StandbyReady, Standbys
from flinkplus.runtime.subtask import Promotion, Subtask, SubtaskPlan, SubtaskPorts
from flinkplus.runtime.wire import Kind, Message, decode_frame, encode
from flinkplus.state.backend import SubtaskState
from flinkplus.state.storage import CheckpointStorage
from upstream_cache.retention import Retention

if TYPE_CHECKING:
    from chain_backup.zookeeper.session import SlotSession

SWITCH_INTERVAL_S = 0.001  # the I/O thread must not wait 5 ms for the interpreter
RECONNECT_LIMIT = 20
MALFORMED_LIMIT = 20
ORPHAN_PATIENCE_S = 2.0
MOST_PASSED_OVER = 4
"""Turns that a subtask which repeats steps gives up to others, one after the other."""

log = logging.getLogger("flinkplus.slot")


class SessionGone(FlinkPlusError):
    """The slot's ZooKeeper session expired: what it did is no longer its to do."""


class CoordinatorLost(FlinkPlusError):
    """The control stream broke: the driver is gone, or has given this attempt up."""


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """The asynchronous part of a snapshot ended."""

    generation: Generation
    subtask: SubtaskId
    checkpoint: CheckpointId
    handle: dict[str, Any] | None
    reason: str


SlotEvent = (
    ControlArrived
    | ControlLost
    | FrameArrived
    | PeerConnected
    | PeerAttached
    | PeerBroken
    | SnapshotWritten
    | StandbyReady
    | SessionOpened
    | SessionSuspended
    | SessionBack
    | SessionExpired
)


def run_slot(index: int, config: SlotConfig) -> None:
    """Run slot ``index`` until the job ends. Called in a Spark task; raises ``CoordinatorLost`` when the driver is
    gone.
    """
    use_one_arena()
    previous = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # sent when the driver dies; the control stream tells us
    scratch = make_scratch(config.job_id, index, config.scratch)
    slot = Slot(index, config, scratch)
    try:
        slot.run()
    finally:
        slot.close()
        remove_scratch(scratch, config.job_id)
        if slot.orphaned and config.ephemeral and not _is_alive(*config.driver):
            remove_tree(config.ephemeral, ORPHAN_PATIENCE_S)
        sys.setswitchinterval(previous)
        signal.signal(signal.SIGHUP, hang_up)


class Slot:
    """The loop and what it owns."""

    def __init__(self, index: int, config: SlotConfig, scratch: Path) -> None:
        self.index = index
        self._config = config
        self._options = config.options
        self.parallelism = config.options.parallelism
        self._scratch = scratch
        self.graph: JobGraph = cloudpickle.loads(config.plan)
        self._storage = CheckpointStorage(config.checkpoint_dir)
        self._inbox: Inbox[SlotEvent] = Inbox()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-snapshots")
        self._data = data_plane(index, config.options, config.token, slot_host(config), self._inbox)
        self._link = control_link(index, config.options, config.token, config.coordinator, self._inbox)
        self._lifeline = Lifeline()
        self.active = ActiveSubtasks(self.graph)
        self.slots: dict[SubtaskId, int] = {}
        self.generations: dict[SubtaskId, Generation] = {}
        self._generation = Generation(0)
        self._retention: Retention[tuple[Message, Any]] | None = None
        self._failover: SlotFailover | None = None
        if self._options.standbys:
            self._retention = Retention(scratch / "log", MessageCodec(), self._options.cache_memory_mb << 20)
            standbys = Standbys(index, scratch, self._storage, self._data.send_beside, self._staged, self._inbox.put)
            self._failover = SlotFailover(self, standbys)
        self._session: SlotSession | None = None
        self._address = ""
        self._malformed = 0
        self._peers_serial: int | None = None
        self._faults = Faults(config.options.faults, config.first_generation)
        self._deploying: control.Deploy | None = None
        self._restore_ms = 0.0
        self._peers = Peers(index, self._data)
        self._next_heartbeat = 0.0
        self._passed_over = 0
        self._preference = Preference()
        self._stopping = False
        self.orphaned = False

    # --- the loop

    def run(self) -> None:
        """Register and obey until told to stop."""
        address = self._address = self._data.start()
        self._link.open()
        attempt = _spark_attempt()
        name = f"{self.index}-{secrets.token_hex(8)}"
        lifeline = name if self._lifeline.open(self._config.lifelines, self._config.token, name) else ""
        self._link.send(control.Register(self.index, attempt, os.getpid(), socket.gethostname(), address, lifeline))
        gc.freeze()  # what is loaded by now stays for good; the collector need not look at it again
        while True:
            self._drain()
            self._data.flush()
            if self._stopping:
                return
            now = time.monotonic()
            if now >= self._next_heartbeat:
                self._heartbeat(now)
            self._peers.reconnect(now)
            if self._run_subtasks(now) or not self._inbox.empty():
                self._inbox.poll()
            else:
                self._sleep(now)

    def _drain(self) -> None:
        for _ in range(10_000):
            try:
                event = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(event)

    def _sleep(self, now: float) -> None:
        wake = self._next_heartbeat
        for subtask in self.active:
            deadline = subtask.deadline(now)
            if now < deadline < wake:
                wake = deadline
        if self._peers.next_reconnect is not None:
            wake = min(wake, self._peers.next_reconnect)
        self._inbox.sleep(wake - now)

    def _run_subtasks(self, now: float) -> bool:
        progress = False
        for subtask in self.active:
            if progress and subtask.repeating and self._passed_over < MOST_PASSED_OVER:
                self._passed_over += 1  # most of what it does is known to everybody: what is new goes first
                continue
            if subtask.runnable(now):
                progress = True
                if subtask.repeating:
                    self._passed_over = 0
                self.guard(subtask, subtask.run)
                self._data.flush()
        return progress

    def guard(self, subtask: Subtask, action: Callable[[], None]) -> None:
        """Run ``action``; an exception is the subtask's failure, reported once, and the subtask stops."""
        try:
            action()
        except Exception as error:
            log.info("subtask %s failed", subtask.id, exc_info=True)
            self._fail(subtask, error)

    def _fail(self, subtask: Subtask, error: Exception) -> None:
        if not self.active.retire(subtask):
            return
        operator, row = "", ""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UserFunctionError):
            operator, row, reason = error.operator, error.row, str(error)
        self._link.send(
            control.SubtaskFailure(
                subtask.generation, str(subtask.id), type(error).__name__, reason, operator, row, time.time()
            )
        )

    def reach(self, point: str, generation: int, name: SubtaskId) -> None:
        """A point of fault injection that is not a subtask's own; see ``faults``."""
        self._faults.reach(point, Generation(generation), str(name))

    def report(self, message: control.ControlMessage) -> None:
        """Send to the coordinator."""
        self._link.send(message)

    def _staged(self, subtask: str, generation: int, version: int) -> None:
        self._link.send(control.VersionStaged(generation, subtask, version))

    def _heartbeat(self, now: float) -> None:
        self._next_heartbeat = now + self._options.heartbeat_interval
        self._data.expire(now)
        self._preference.end(now)
        progress = {str(subtask.id): subtask.counters() for subtask in self.active}
        self._link.heartbeat = control.Heartbeat(self._generation, progress)

    # --- events

    def _handle(self, event: SlotEvent) -> None:
        match event:
            case FrameArrived(peer, frame):
                self._take_frame(peer, frame)
            case ControlArrived(_, message, _):
                self._obey(message)
            case SnapshotWritten(generation, name, checkpoint, handle, reason):
                subtask = self.active.get(name)
                if subtask is not None and subtask.generation == generation:
                    self.guard(subtask, lambda: subtask.persisted(checkpoint, handle, reason))
            case PeerConnected(peer, incarnation):
                self._peer_connected(peer, incarnation)
            case PeerBroken(peer, incarnation, reason):
                self._peer_broken(peer, incarnation, reason)
            case PeerAttached(peer):
                self._peer_attached(peer)
            case StandbyReady():
                assert self._failover is not None
                self._failover.ready(event)
            case SessionOpened() | SessionSuspended() | SessionBack():
                log.info("slot %d: %s", self.index, type(event).__name__)
            case SessionExpired():
                self._lose_session()
            case ControlLost(_, reason, _):
                if self._stopping:
                    return  # told to stop: the coordinator closes as soon as it has heard the answer
                self.orphaned = True
                raise CoordinatorLost(f"slot {self.index} lost its coordinator: {reason}")
            case _:
                assert_never(event)

    def _take_frame(self, peer: int, frame: bytes | bytearray | memoryview) -> None:
        try:
            messages = decode_frame(frame)
        except PeerProtocolError as error:
            # What was in it is lost, and so is what follows on its channels; over new streams it is all sent again.
            log.warning("slot %d: malformed frame from slot %d: %s", self.index, peer, error)
            self._malformed += 1
            if self._malformed > MALFORMED_LIMIT:
                raise PeerProtocolError(
                    f"{self._malformed} malformed frames, the last from slot {peer}: {error}"
                ) from error
            self._data.renew(peer, f"malformed frame: {error}")
            return
        for message, payload in messages:
            channel = message.channel
            if message.kind is Kind.CREDIT:
                self._take_credit(channel, (message.generation, message.seq, peer))
            elif message.kind is Kind.REPLICA:
                if self._failover is not None:
                    self._failover.standbys.receive(peer, bytes(payload))
            else:
                consumer = self.active.consumer(channel)
                if consumer is not None:
                    self.guard(consumer, lambda c=consumer, m=message, v=payload: c.receive(m, v))  # type: ignore[misc]

    def _take_credit(self, channel: ChannelId, credit: Credit) -> None:
        producer = self.active.producer(channel)
        if producer is None:
            self.active.credit(channel, credit)
            return

        def take() -> None:
            self.active.credit(channel, credit)
            producer.outputs.pump()

        self.guard(producer, take)

    def _hand_over(self, message: Message, payload: Any) -> None:
        consumer = self.active.consumer(message.channel)
        if consumer is not None:
            consumer.receive(message, payload)

    def _grant(self, generation: Generation, end: InputChannel, consumed: int) -> None:
        channel = end.channel
        if end.peer is None:
            producer = self.active.credit(channel, (generation, consumed, None))
            if producer is not None:
                producer.outputs.pump()
            return
        credit = Message(Kind.CREDIT, channel, generation, Seq(consumed), CheckpointId(0))
        self._data.send_back(end.peer, encode(credit))

    def _peer_connected(self, peer: int, incarnation: int) -> None:
        again = self._peers.connected(peer, incarnation) and self._deploying is None
        if again:
            for subtask in self.active:
                for end in subtask.outputs.channels.values():
                    if end.peer == peer:
                        end.reconnect()
                self.guard(subtask, subtask.outputs.pump)
        if self._failover is not None:
            self._failover.standbys.peer_connected(peer)
        self._finish_deployment()

    def _peer_attached(self, peer: int) -> None:
        """A peer has a new stream to this slot: credit that went the old way may be lost."""
        for subtask in self.active:
            for end in subtask.inputs.channels.values():
                if end.peer == peer:
                    subtask.inputs.grant_anew(end)

    def _peer_broken(self, peer: int, incarnation: int, reason: str) -> None:
        wanted = self._failover is None or peer in self.slots.values()
        tries = self._peers.broken(peer, incarnation, wanted)
        if tries > RECONNECT_LIMIT:
            for subtask in self.active:
                self._fail(subtask, ConnectionError(f"no stream to slot {peer} after {tries} tries: {reason}"))
                return

    # --- the session

    def _open_session(self, incarnation: int) -> None:
        config = self._config
        if config.zookeeper is None or not self._options.standbys:
            return
        from chain_backup.zookeeper.session import SlotSession

        record = SlotRecord(self._address, socket.gethostname(), os.getpid(), incarnation)
        self._session = SlotSession(
            config.zookeeper, config.application, self.index, record, self._options.session_timeout, self._inbox.put
        )

    def _lose_session(self) -> None:
        """Others may have taken over: stop sending at once, and begin anew."""
        reason = f"the ZooKeeper session of slot {self.index} expired"
        self._link.send(control.SessionLost(reason))
        self.active.retire_all()
        raise SessionGone(reason)

    # --- the coordinator's orders

    def _obey(self, message: control.ControlMessage) -> None:
        match message:
            case control.Deploy():
                self._deploy(message)
            case control.Start(generation, run, run_age_s):
                if generation == self._generation:
                    for subtask in self.active:
                        self.guard(subtask, lambda s=subtask: s.start(run, run_age_s))  # type: ignore[misc]
            case control.Suspend(generation):
                if generation >= self._generation:
                    self._retire_all()
            case control.Drain(generation):
                if generation == self._generation:
                    for subtask in self.active:
                        subtask.drain()
            case control.Trigger(generation, checkpoint, subtasks):
                if generation == self._generation:
                    for subtask in [s for s in self.active if str(s.id) in subtasks]:
                        subtask.trigger(CheckpointId(checkpoint))
            case control.Abort(generation, checkpoint, _):
                if generation == self._generation:
                    for subtask in self.active:
                        self.guard(subtask, lambda s=subtask: s.abort(CheckpointId(checkpoint)))  # type: ignore[misc]
            case control.Complete(generation, checkpoint):
                if generation == self._generation:
                    for subtask in self.active:
                        self.guard(subtask, lambda s=subtask: s.complete(CheckpointId(checkpoint)))  # type: ignore[misc]
            case control.Stop():
                self._retire_all()
                self._link.send(control.Stopped())
                self._stopping = True
            case control.Die():
                os.kill(os.getpid(), signal.SIGKILL)
            case control.Welcome(incarnation):
                self._open_session(incarnation)
            case control.Join():
                self._join(message)
            case control.Peers(serial, addresses):
                self._peers_serial = serial
                self._peers.connect(addresses)
                self._finish_deployment()
            case _ if self._failover is not None:
                self._obey_failover(self._failover, message)
            case _:
                log.warning("slot %d: %s is not for a slot", self.index, type(message).__name__)

    def _obey_failover(self, failover: SlotFailover, message: control.ControlMessage) -> None:
        match message:
            case control.Fence():
                failover.fence(message)
            case control.Promote():
                self._preference.begin(time.monotonic())
                failover.promote(message)
            case control.Chains():
                failover.chains(message)
            case control.Trim(version):
                failover.trim(CheckpointId(version))
            case _:
                log.warning("slot %d: %s is not for a slot", self.index, type(message).__name__)

    def _retire_all(self) -> None:
        self.active.retire_all()
        if self._failover is not None:
            self._failover.reset()
        self._deploying = None

    def _join(self, join: control.Join) -> None:
        """This slot comes late: the job runs."""
        self._generation = Generation(join.generation)
        self.slots = {parse_subtask(name): slot for name, slot in join.assignment.items()}
        self.generations = {parse_subtask(name): Generation(g) for name, g in join.generations.items()}

    def _deploy(self, deploy: control.Deploy) -> None:
        if deploy.generation <= self._generation:
            return
        begun = time.perf_counter()
        self._retire_all()
        self._generation = Generation(deploy.generation)
        self._peers_serial = None
        self._peers.forget()
        self._peers.connect(deploy.addresses)
        self.slots = {parse_subtask(name): slot for name, slot in deploy.assignment.items()}
        self.generations = dict.fromkeys(self.slots, self._generation)
        for subtask_id in sorted(s for s, slot in self.slots.items() if slot == self.index):
            if not self._open(subtask_id, deploy):
                return
        self._deploying = deploy
        self._restore_ms = (time.perf_counter() - begun) * 1e3
        self._finish_deployment()

    def build(
        self,
        name: SubtaskId,
        handle: dict[str, Any],
        checkpoint: CheckpointId,
        mark: int | None,
        promotion: Promotion | None = None,
    ) -> Subtask:
        """A subtask restored from ``handle`` (empty: the start), not yet active. Raises whatever restoring raises."""
        plan = SubtaskPlan(
            graph=self.graph,
            vertex=self.graph.vertex_of(name.vertex),
            subtask=name,
            generation=self.generations[name],
            options=self._options,
            slots=self.slots,
            generations=self.generations,
            slot=self.index,
            handle=handle,
            checkpoint=checkpoint,
            mark=mark,
            promotion=promotion,
        )
        ports = SubtaskPorts(
            self._link.send,
            self._data.send,
            self._hand_over,
            self._grant,
            lambda point, subtask: self._faults.reach(point, self.generations[name], subtask),
            self._persist,
            self._make_state,
            self._retention,
            self._snapshotted,
        )
        return Subtask(plan, ports)

    def _snapshotted(self, name: SubtaskId, generation: Generation, handle: dict[str, Any]) -> None:
        if self._failover is not None:
            self._failover.standbys.persisted(str(name), generation, handle)

    def _open(self, name: SubtaskId, deploy: control.Deploy) -> bool:
        """Restore one subtask; ``False`` when that failed, which is reported and ends the deployment here."""
        handle = deploy.handles.get(str(name), {})
        try:
            subtask = self.build(name, handle, CheckpointId(deploy.checkpoint or 0), deploy.marks.get(str(name)))
        except CorruptState as error:
            refusal = control.RestoreRefused(self._generation, deploy.checkpoint or 0, str(name), str(error))
            self._link.send(refusal)
            return False
        except Exception as error:
            log.info("deploying %s failed", name, exc_info=True)
            reason = f"{type(error).__name__}: {error}"
            self._link.send(
                control.SubtaskFailure(self._generation, str(name), type(error).__name__, reason, time_s=time.time())
            )
            return False
        self.active.add(subtask)
        if handle:
            self._snapshotted(name, self._generation, handle)
        return True

    def _make_state(self, plan: SubtaskPlan) -> SubtaskState:
        return SubtaskState(
            self._scratch,
            self._storage,
            str(plan.subtask),
            plan.generation,
            max_entries=self._options.memtable_entries,
            prepared=plan.promotion.state if plan.promotion is not None else None,
        )

    def _finish_deployment(self) -> None:
        """Answer the coordinator once every peer is connected, and what was to be restored is."""
        if not self._peers.complete:
            return
        deploy, self._deploying = self._deploying, None
        serial, self._peers_serial = self._peers_serial, None
        if deploy is not None:
            self._link.send(control.Deployed(deploy.generation, self._restore_ms))
        if serial is not None:
            self._link.send(control.PeersReady(serial))

    def _persist(self, name: SubtaskId, checkpoint: CheckpointId, work: Callable[[], dict[str, Any]]) -> None:
        """Run the asynchronous part of a snapshot in the pool; its end comes back through the inbox.

        The slots take turns, for a part of the checkpoint interval: all at once would keep the stream from the
        processors.
        """
        generation = self.generations[name]

        def in_turn() -> dict[str, Any]:
            time.sleep(self._options.snapshot_spread * self.index / self.parallelism)
            return work()

        future = self._pool.submit(in_turn)

        def done(result: Future[dict[str, Any]]) -> None:
            error = result.exception()
            handle = result.result() if error is None else None
            reason = "" if error is None else f"{type(error).__name__}: {error}"
            self._inbox.put(SnapshotWritten(generation, name, checkpoint, handle, reason))

        future.add_done_callback(done)

    def close(self) -> None:
        """Give everything back, bounded."""
        self._retire_all()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._failover is not None:
            self._failover.close()
        if self._session is not None:
            self._session.close()
        if self._retention is not None:
            self._retention.close()
        self._link.close()
        self._data.close()
        self._inbox.close()
        self._lifeline.close()
        gc.unfreeze()


def _is_alive(pid: int, created_s: float) -> bool:
    """Whether the very process (not a later one of the same number) still runs."""
    try:
        process = psutil.Process(pid)
        return process.create_time() == created_s and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _spark_attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
