"""A slot: the main loop of a process below one long-lived Spark task (its ``keeper``), which hosts subtasks.

One thread, the loop, owns all subtasks and, with ``transport="tcp"``, all sockets. Other threads (the snapshot pool,
the standbys, gRPC) only put events into its inbox. The loop takes all waiting events, lets every runnable subtask do
one step, consumers before producers, and writes their output. When no subtask can run, it sleeps.

Rules: a slot obeys only its coordinator. When the control stream breaks, it closes everything and ends with an error,
so that its keeper starts a new process if the job still lives. When a subtask fails, the slot reports it and stops the
subtask, and keeps running.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark import cloudpickle
from typing_extensions import assert_never

from chain_backup.zookeeper.records import (
    SessionEvent,
    SessionExpired,
    SessionOpened,
    SessionReconnected,
    SessionSuspended,
)
from dedup.filter import MessageFilter
from dedup.store import RocksStore
from flinkplus.errors import FlinkPlusError, NondeterministicOperator, PeerProtocolError, UserFunctionError, described
from flinkplus.graph import JobGraph
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.base.step_note import StepNote, disown
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.faults.injections import Injections
from flinkplus.runtime.faults.points import Faults
from flinkplus.runtime.host.priority import Preference
from flinkplus.runtime.host.scratch import TIDY_S
from flinkplus.runtime.liveness.lifeline import Lifeline
from flinkplus.runtime.liveness.pulse import Pulse
from flinkplus.runtime.slot.control.failover import SlotFailover
from flinkplus.runtime.slot.control.orders import SlotOrders
from flinkplus.runtime.slot.control.peers import Peers
from flinkplus.runtime.slot.control.ports import StandbyReady
from flinkplus.runtime.slot.process.config import SlotConfig, slot_host
from flinkplus.runtime.slot.process.making import open_session, state_files_of, with_secrets
from flinkplus.runtime.slot.process.prefetcher import FilesFetched, Prefetcher
from flinkplus.runtime.slot.process.rehearsal import rehearse
from flinkplus.runtime.slot.process.silence import SilenceWatch
from flinkplus.runtime.slot.process.standbys import Standbys
from flinkplus.runtime.slot.process.turns import Turns
from flinkplus.runtime.slot.process.workers import SlotWorkers, SnapshotWritten
from flinkplus.runtime.slot.subtasks.log_codec import MessageCodec
from flinkplus.runtime.slot.subtasks.pacing import SlotLoad
from flinkplus.runtime.slot.subtasks.plan import SubtaskPlan, SubtaskPorts
from flinkplus.runtime.slot.subtasks.subtask import Subtask
from flinkplus.runtime.transport.factory import control_link, data_plane
from flinkplus.runtime.transport.wire.message_format import Message, decode_frame, encode
from flinkplus.runtime.transport.wire.ports import (
    ControlArrived,
    ControlLost,
    FrameArrived,
    LinkEvent,
    PeerAttached,
    PeerBroken,
    PeerConnected,
    TransportEvent,
)
from flinkplus.state.backend import SubtaskState
from upstream_cache.retention import Retention

if TYPE_CHECKING:
    from chain_backup.zookeeper.session import SlotSession

log = logging.getLogger("flinkplus.slot")


class SessionGone(FlinkPlusError):
    """The slot's ZooKeeper session expired: what it did is no longer its to do."""


class CoordinatorLost(FlinkPlusError):
    """The control stream broke: the driver is gone, or has given this attempt up."""


@dataclass(frozen=True, slots=True)
class SubtaskWoken:
    """A sink has room for further rows, or a live source has something to read; ``error``: it has failed."""

    subtask: SubtaskId
    generation: Generation
    error: Exception | None


SlotEvent = SubtaskWoken | LinkEvent | TransportEvent | SnapshotWritten | FilesFetched | StandbyReady | SessionEvent


class Slot(SlotOrders[Subtask]):
    """The loop and what it owns."""

    graph: JobGraph
    _prefetcher: Prefetcher

    def __init__(
        self,
        index: int,
        config: SlotConfig,
        scratch: Path,
        attempt: int = 0,
        on_welcome: Callable[[], object] = lambda: None,
    ) -> None:
        graph: JobGraph = with_secrets(cloudpickle.loads(config.plan), config.credentials)
        unaligned = self._unaligned = config.options.checkpoint_mode == "unaligned"
        options = config.options
        super().__init__(index, options.parallelism, graph, time, options.depth, unaligned, options.in_flight_bytes)
        self._config = config
        self._attempt, self._on_welcome, self._scratch = attempt, on_welcome, scratch
        self._options = options
        self._inbox: Inbox[SlotEvent] = Inbox()
        self._prefetcher = Prefetcher(state_files_of(config, scratch), scratch, self._inbox.put)
        turn_s = options.snapshot_spread * (index % options.parallelism) / options.parallelism
        self._workers = SlotWorkers(turn_s, self._inbox.put)
        self._data = data_plane(index, config.options, config.credentials, slot_host(config), self._inbox)
        self._link = control_link(index, config.options, config.credentials, config.coordinator, self._inbox)
        self._lifeline = Lifeline()
        self._pulse = Pulse()
        self._note = StepNote(scratch)
        self._faults = Faults(config.options.faults, config.first_generation)
        self._injections = Injections([self._data, self._link], self._pulse, self._inbox, self._faults.arm)
        self._retention: Retention[tuple[Message, Any]] | None = None
        self._ids: RocksStore | None = None
        if self._options.standbys or self.cycles:
            self._retention = Retention(scratch / "log", MessageCodec(), self._options.cache_memory_mb << 20)
        self._standbys: Standbys | None = None
        if self._options.local:
            self._standbys = Standbys(
                index,
                scratch,
                self._prefetcher.files,
                self._data.send_beside,
                self._staged,
                self._inbox.put,
                partial(self._inbox.call_later, turn_s),
            )
            self._failover = SlotFailover(self, self._standbys, time)
            if self._options.promises.repeats:
                self._ids = RocksStore(scratch / "ids")
        self._load = SlotLoad(time.process_time)
        self._turns = Turns(
            self.active,
            self._injections.before_step,
            lambda subtask: self.guard(subtask, subtask.run),
            self._data.flush,
            unaligned,
        )
        self._filters = 0
        self._session: SlotSession | None = None
        self._address, self._next_heartbeat = "", 0.0
        self._silence = SilenceWatch(options, self._data, self._link, self._pulse, self._lose_coordinator)
        self._peers = Peers(index, self._data.connect, refused_s=self._silence.refused_s)
        self._preference = Preference()
        self.orphaned = self.welcomed = False

    # --- the loop

    def run(self) -> None:
        """Register, and obey orders until the order to stop."""
        rehearse(self._scratch)
        address = self._address = self._data.start()
        self._link.open()
        name = f"{self.index}-{secrets.token_hex(8)}"
        lifeline = name if self._lifeline.open(self._config.lifelines, self._config.credentials, name) else ""
        host, pid = socket.gethostname(), os.getpid()
        created_s = psutil.Process().create_time()
        self._link.send(control.Register(self.index, self._attempt, pid, host, address, lifeline, name, created_s))
        if self._config.pulses is not None and self._options.hang_timeout is not None:
            known = self._config.credentials
            timeout_s, hides_rows = self._options.hang_timeout, known.tls is not None
            self._pulse.open(self._config.pulses, known.secret, name, timeout_s, self._note, hides_rows)
        gc.freeze()  # everything loaded by now stays until the end; the collector need not scan it
        while True:
            self._handle_all()
            self._data.flush()
            if self._stopping:
                return
            now = time.monotonic()
            if now >= self._next_heartbeat:
                self._heartbeat(now)
            self._load.look(now)
            self._peers.reconnect(now)
            if self._turns.take(now) or not self._inbox.empty():
                self._inbox.poll()
            else:
                self._sleep(now)

    def keep_tidy(self, tidy: Callable[[], None]) -> None:
        """Have ``tidy`` run beside the stream, now and every ``TIDY_S`` seconds."""
        self._workers.beside(tidy)
        self._inbox.call_later(TIDY_S, lambda: self.keep_tidy(tidy))

    def _handle_all(self) -> None:
        for _ in range(10_000):
            try:
                event = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(event)

    def _sleep(self, now: float) -> None:
        wake = self._turns.next_deadline(now, self._next_heartbeat)
        if self._peers.next_reconnect is not None:
            wake = min(wake, self._peers.next_reconnect)
        self._inbox.sleep(wake - now)

    def guard(self, subtask: Subtask, action: Callable[..., None], /, *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception as error:
            fields = about(subtask=str(subtask.id), generation=subtask.generation, phase="detect")
            log.info("subtask %s failed", subtask.id, exc_info=True, extra=fields)
            self._fail(subtask, error)

    def _fail(self, subtask: Subtask, error: Exception) -> None:
        if not self.active.retire(subtask):
            return
        error = _nondeterminism(error) or error
        kind = type(error).__name__
        operator, row, cause, reason = "", "", "", described(error)
        if isinstance(error, UserFunctionError):
            operator, row, cause, reason = error.operator, error.row, error.cause, str(error)
        self._link.send(
            control.Failed(subtask.generation, str(subtask.id), kind, reason, operator, row, time.time(), cause)
        )

    def reach(self, point: str, generation: int, name: SubtaskId) -> None:
        self._faults.reach(point, Generation(generation), str(name))

    def report(self, message: control.ControlMessage) -> None:
        self._link.send(message)

    def send_credit(self, slot: int, credit: Message) -> None:
        self._data.send_back(slot, encode(credit))

    def _renew(self, peer: int, reason: str) -> None:
        self._data.renew(peer, reason)

    def _die(self) -> None:
        disown()
        os.kill(os.getpid(), signal.SIGKILL)

    def _staged(self, subtask: str, generation: int, version: int) -> None:
        self._faults.reach("staged", generation, subtask)
        self._link.send(control.Staged(generation, subtask, version))

    def _heartbeat(self, now: float) -> None:
        self._next_heartbeat = now + self._silence.interval_s
        self._data.expire(now)
        self.peers_silent(self._silence.look(now))
        self._preference.end(now)
        progress = {str(subtask.id): subtask.counters() for subtask in self.active}
        refused, malformed, fenced = self._data.refusals.total, self.malformed_frames, self.active.stale
        copied: dict[str, int] = {}
        if self._failover is not None:
            figures = self._failover.standbys.figures
            malformed += figures.frames_malformed
            fenced += figures.offers_fenced
            copied = figures.copied_bytes
        self._link.heartbeat = control.Heartbeat(self.deployed, progress, refused, malformed, fenced, copied)

    # --- events

    def _handle(self, event: SlotEvent) -> None:
        match event:
            case FrameArrived(peer, frame):
                self._take_frame(peer, frame)
            case ControlArrived(_, message, _):
                if isinstance(message, control.Promote):
                    self._preference.begin(time.monotonic())
                if isinstance(message, control.Deploy | control.Start) and self._standbys is not None:
                    self._standbys.rest(isinstance(message, control.Start))
                if isinstance(message, control.Promote | control.Fence):
                    self._load.hurry(time.monotonic())
                if isinstance(message, control.Inject):
                    self._injections.obey(message, list(self.active), self.guard)
                elif isinstance(message, control.RegistryAddress):
                    self._config = replace(self._config, zookeeper=message.hosts)
                    if self._session is not None:
                        self._session.client.move_to(message.hosts)
                    elif self.welcomed:  # the job has a ZooKeeper server only now
                        incarnation = self._data.incarnation
                        self._session = open_session(
                            self.index, self._config, self._address, incarnation, self._inbox.put
                        )
                else:
                    self._obey(message)
            case SnapshotWritten(generation, name, checkpoint, handle, reason):
                subtask = self.active.get(name)
                if subtask is not None and subtask.generation == generation:
                    self.guard(subtask, subtask.persisted, checkpoint, handle, reason)
            case SubtaskWoken(name, generation, error):
                subtask = self.active.get(name)
                if error is not None and subtask is not None and subtask.generation == generation:
                    self._fail(subtask, error)
            case PeerConnected(peer, incarnation):
                self.peer_connected(peer, incarnation)
            case PeerBroken(peer, incarnation, reason):
                self.peer_broken(peer, incarnation, reason)
            case PeerAttached(peer):
                self.peer_attached(peer)
            case FilesFetched(report):
                self._link.send(report)
            case StandbyReady():
                assert self._failover is not None
                self._failover.ready(event)
            case SessionOpened() | SessionSuspended() | SessionReconnected():
                log.info("slot %d: %s", self.index, type(event).__name__)
            case SessionExpired():
                self._lose_session()
            case ControlLost(_, reason, _):
                self._lose_coordinator(reason)
            case _:
                assert_never(event)

    def _lose_coordinator(self, reason: str) -> None:
        if self._stopping:
            return  # ordered to stop: the coordinator closes as soon as it has the answer
        self.orphaned = True
        raise CoordinatorLost(f"slot {self.index} lost its coordinator: {reason}")

    def _take_frame(self, peer: int, frame: bytes | bytearray | memoryview) -> None:
        try:
            messages = decode_frame(frame)
        except PeerProtocolError as error:
            self.frame_malformed(peer, error)
            return
        self.routing.take_all(peer, messages)

    # --- the session

    def _welcome(self, incarnation: int) -> None:
        self.welcomed = True
        self._on_welcome()
        self._data.incarnation = incarnation
        if self._config.zookeeper is not None:
            self._session = open_session(self.index, self._config, self._address, incarnation, self._inbox.put)

    def _lose_session(self) -> None:
        """Other slots may have taken over: stop sending at once, and start again."""
        reason = f"the ZooKeeper session of slot {self.index} expired"
        self._link.send(control.SessionLost(reason))
        self.active.retire_all()
        raise SessionGone(reason)

    # --- for the protocol: see SlotOrders

    def build(
        self,
        name: SubtaskId,
        handle: SnapshotHandle,
        checkpoint: CheckpointId,
        mark: int | None,
        promotion: Promotion | None = None,
        repeats: tuple[int, ...] = (),
        recorded: int = 0,
    ) -> Subtask:
        plan = SubtaskPlan(
            graph=self.graph,
            vertex=self.graph.vertex_of(name.vertex),
            subtask=name,
            generation=self.generations[name],
            options=self._options,
            parallelism=self.parallelism,
            slots=self.slots,
            generations=self.generations,
            lineage=self.lineage,
            cycles=self.cycles,
            slot=self.index,
            handle=handle,
            checkpoint=checkpoint,
            mark=mark,
            salt=self._config.job_id,
            promotion=promotion,
            guarantee=self._options.promises,
            synchronous=self._options.checkpoint_mode == "synchronous",
            unaligned=self._unaligned,
            in_flight=self.in_flight,
            repeats=repeats,
            recorded=recorded,
            notes_rows=self.notes_rows,
            alone=self.alone,
        )
        ports = SubtaskPorts(
            self._link.send,
            self._data.send,
            self.routing.hand_over,
            self.routing.grant,
            lambda point, subtask: self._faults.reach(point, self.generations[name], subtask),
            lambda subtask, checkpoint, work: self._workers.persist(
                self.generations[subtask], subtask, checkpoint, work
            ),
            self._workers.tend,
            self._workers.beside,
            self._make_state,
            self._retention,
            self._snapshotted,
            self._make_filter,
            self._load,
            self._config.checkpoint_dir,
            self._note,
            lambda subtask, generation, error: self._inbox.put(SubtaskWoken(subtask, generation, error)),
        )
        return Subtask(plan, ports)

    def _make_state(self, plan: SubtaskPlan) -> SubtaskState:
        return SubtaskState(
            self._scratch,
            self._prefetcher.files,
            str(plan.subtask),
            plan.generation,
            max_entries=self._options.memtable_entries,
            prepared=plan.promotion.state if plan.promotion is not None else None,
            max_parallelism=self._options.max_parallelism,
        )

    def _make_filter(self) -> MessageFilter | None:
        if self._ids is None:
            return None
        self._filters += 1
        return MessageFilter(self._ids, self._filters, self._options.dedup_error_rate)

    def close(self, keeps: bool = False) -> None:
        """Give everything back, bounded. ``keeps``: the state files stay, for the slot's next process."""
        self._retire_all()
        self._workers.close()
        self._prefetcher.close()
        if self._failover is not None:
            self._failover.close(keeps)
        if self._session is not None:
            self._session.close()
        if self._retention is not None:
            self._retention.close()
        if self._ids is not None:
            self._ids.close()
        self._link.close()
        self._data.close()
        self._inbox.close()
        self._lifeline.close()
        self._pulse.close()
        self._note.close()
        gc.unfreeze()


def _nondeterminism(error: BaseException | None) -> NondeterministicOperator | None:
    """The cause of ``error`` of that type, if any: it may have passed through a user's function."""
    while error is not None and not isinstance(error, NondeterministicOperator):
        error = error.__cause__ or error.__context__
    return error
