"""A slot: the main loop that runs inside one long-lived Spark task and hosts the subtasks assigned to it.

One thread, the loop, owns all subtasks. The I/O thread and the snapshot pool only put events into its inbox. The loop
takes all events there are, lets every runnable subtask do one step, consumers before producers, and sleeps on the
inbox when nothing can run.

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
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark import cloudpickle
from typing_extensions import assert_never

from flinkplus.config import Options
from flinkplus.errors import CorruptState, FlinkPlusError, PeerProtocolError, UserFunctionError
from flinkplus.graph import JobGraph
from flinkplus.protocol.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime import control
from flinkplus.runtime.allocator import use_one_arena
from flinkplus.runtime.cleanup import remove_tree
from flinkplus.runtime.faults import Faults
from flinkplus.runtime.gates import InputChannel
from flinkplus.runtime.links import ControlArrived, ControlLink, ControlLost
from flinkplus.runtime.names import parse_subtask
from flinkplus.runtime.scratch import make_scratch, remove_scratch
from flinkplus.runtime.subtask import Subtask, SubtaskPlan, SubtaskPorts
from flinkplus.runtime.transport import DataPlane, FrameArrived, PeerBroken, PeerConnected
from flinkplus.runtime.wire import Kind, Message, decode_frame, encode
from flinkplus.state.backend import SubtaskState
from flinkplus.state.storage import CheckpointStorage

SWITCH_INTERVAL_S = 0.001  # the I/O thread must not wait 5 ms for the interpreter
RECONNECT_LIMIT = 20
RECONNECT_PAUSE_S = 0.1
ORPHAN_PATIENCE_S = 2.0

log = logging.getLogger("flinkplus.slot")


class CoordinatorLost(FlinkPlusError):
    """The control stream broke: the driver is gone, or has given this attempt up."""


@dataclass(frozen=True)
class SlotConfig:
    """What the driver ships to every slot, through Spark. ``plan`` is the job graph, cloudpickled.

    ``scratch`` is a directory on every slot's host for working files (``None``: the system's). ``ephemeral`` is a
    directory that a slot removes when the ``driver`` (process id, creation time) is dead: nobody else is left to do it.
    """

    job_id: str
    job_name: str
    slots: int
    first_generation: int
    coordinator: str
    token: str
    plan: bytes
    options: Options
    checkpoint_dir: str
    scratch: str | None
    ephemeral: str | None
    driver: tuple[int, float]
    local: bool


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """The asynchronous part of a snapshot ended."""

    generation: Generation
    subtask: SubtaskId
    checkpoint: CheckpointId
    handle: dict[str, Any] | None
    reason: str


SlotEvent = ControlArrived | ControlLost | FrameArrived | PeerConnected | PeerBroken | SnapshotWritten


def slot_host(config: SlotConfig) -> str:
    """The address this slot's data server binds: loopback in local mode, else the one that routes to the
    coordinator.
    """
    if config.local:
        return "127.0.0.1"
    host, port = config.coordinator.rsplit(":", 1)
    with socket.socket(
        socket.AF_INET, socket.SOCK_DGRAM
    ) as probe:  # a UDP connect sends nothing, it only looks up the route
        probe.connect((host, int(port)))
        address: str = probe.getsockname()[0]
    return address


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
        self._scratch = scratch
        self._graph: JobGraph = cloudpickle.loads(config.plan)
        self._storage = CheckpointStorage(config.checkpoint_dir)
        self._inbox: queue.SimpleQueue[SlotEvent] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="flinkplus-snapshots")
        self._data = DataPlane(index, config.token, slot_host(config), self._inbox.put)
        self._link = ControlLink(config.coordinator, config.token, self._options.heartbeat_interval, self._inbox.put)
        self._subtasks: dict[SubtaskId, Subtask] = {}
        self._consumers: dict[tuple[int, int], Subtask] = {}
        self._producers: dict[tuple[int, int], Subtask] = {}
        self._order: list[Subtask] = []
        self._generation = Generation(0)
        self._faults = Faults(config.options.faults, config.first_generation)
        self._deploying: control.Deploy | None = None
        self._restore_ms = 0.0
        self._last_peers: dict[int, tuple[int, str]] = {}
        self._connected: dict[int, int] = {}
        self._broken: dict[int, int] = {}
        self._next_heartbeat = 0.0
        self._next_reconnect: float | None = None
        self._stopping = False
        self.orphaned = False

    # --- the loop

    def run(self) -> None:
        """Register and obey until told to stop."""
        address = self._data.start()
        self._link.open()
        attempt = _spark_attempt()
        self._link.send(control.Register(self.index, attempt, os.getpid(), socket.gethostname(), address))
        gc.freeze()  # what is loaded by now stays for good; the collector need not look at it again
        while True:
            self._drain()
            if self._stopping:
                return
            now = time.monotonic()
            if now >= self._next_heartbeat:
                self._heartbeat(now)
            if self._next_reconnect is not None and now >= self._next_reconnect:
                self._reconnect()
            if not self._run_subtasks(now) and self._inbox.empty():
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
        for subtask in self._order:
            deadline = subtask.deadline(now)
            if now < deadline < wake:
                wake = deadline
        if self._next_reconnect is not None:
            wake = min(wake, self._next_reconnect)
        try:
            event = self._inbox.get(timeout=max(0.0, wake - now))
        except queue.Empty:
            return
        self._handle(event)

    def _run_subtasks(self, now: float) -> bool:
        progress = False
        for subtask in list(self._order):
            if subtask.runnable(now):
                progress = True
                self._guard(subtask, subtask.run)
        return progress

    def _guard(self, subtask: Subtask, action: Callable[[], None]) -> None:
        """Run ``action``; an exception is the subtask's failure, reported once, and the subtask stops."""
        try:
            action()
        except Exception as error:
            log.info("subtask %s failed", subtask.id, exc_info=True)
            self._fail(subtask, error)

    def _fail(self, subtask: Subtask, error: Exception) -> None:
        self._retire(subtask)
        operator, row = "", ""
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UserFunctionError):
            operator, row, reason = error.operator, error.row, str(error)
        self._link.send(
            control.SubtaskFailure(
                subtask.generation, str(subtask.id), type(error).__name__, reason, operator, row, time.time()
            )
        )

    def _retire(self, subtask: Subtask) -> None:
        if self._subtasks.pop(subtask.id, None) is not subtask:
            return
        self._order.remove(subtask)
        for table in (self._consumers, self._producers):
            for key in [key for key, value in table.items() if value is subtask]:
                del table[key]
        try:
            subtask.close()
        except Exception as error:  # closing what failed may fail too; what it held is in the scratch directory
            log.info("closing %s failed: %s", subtask.id, error)

    def _heartbeat(self, now: float) -> None:
        self._next_heartbeat = now + self._options.heartbeat_interval
        progress = {str(subtask.id): subtask.counters() for subtask in self._order}
        self._link.heartbeat = control.Heartbeat(self._generation, progress)

    # --- events

    def _handle(self, event: SlotEvent) -> None:
        match event:
            case FrameArrived(peer, frame):
                self._take_frame(peer, frame)
            case ControlArrived(_, message, _):
                self._obey(message)
            case SnapshotWritten(generation, name, checkpoint, handle, reason):
                subtask = self._subtasks.get(name)
                if subtask is not None and subtask.generation == generation:
                    self._guard(subtask, lambda: subtask.persisted(checkpoint, handle, reason))
            case PeerConnected(peer, incarnation):
                self._peer_connected(peer, incarnation)
            case PeerBroken(peer, incarnation, reason):
                self._peer_broken(peer, incarnation, reason)
            case ControlLost(_, reason, _):
                if self._stopping:
                    return  # told to stop: the coordinator closes as soon as it has heard the answer
                self.orphaned = True
                raise CoordinatorLost(f"slot {self.index} lost its coordinator: {reason}")
            case _:
                assert_never(event)

    def _take_frame(self, peer: int, frame: bytes) -> None:
        try:
            messages = decode_frame(frame)
        except PeerProtocolError as error:
            # Nobody will send its messages again: their channels would stand still for good.
            if self._order:
                self._fail(self._order[0], PeerProtocolError(f"malformed frame from slot {peer}: {error}"))
            return
        for message, payload in messages:
            channel = message.channel
            if message.generation != self._generation:
                continue  # fenced: of a generation that is over, or not yet deployed here
            if message.kind is Kind.CREDIT:
                producer = self._producers.get((channel.edge, channel.producer))
                if producer is not None:
                    self._guard(producer, lambda p=producer, m=message: self._credit(p, m))  # type: ignore[misc]
            else:
                consumer = self._consumers.get((channel.edge, channel.consumer))
                if consumer is not None:
                    self._guard(consumer, lambda c=consumer, m=message, v=payload: c.receive(m, v))  # type: ignore[misc]

    def _credit(self, producer: Subtask, message: Message) -> None:
        producer.outputs.channels[message.channel].credit(message.seq)
        producer.outputs.pump()

    def _hand_over(self, message: Message) -> None:
        consumer = self._consumers.get((message.channel.edge, message.channel.consumer))
        if consumer is not None:
            consumer.receive(message, None)

    def _grant(self, end: InputChannel, consumed: int) -> None:
        channel = end.channel
        if end.peer is None:
            producer = self._producers.get((channel.edge, channel.producer))
            if producer is not None:
                producer.outputs.channels[channel].credit(consumed)
                producer.outputs.pump()
            return
        credit = Message(Kind.CREDIT, channel, self._generation, consumed, CheckpointId(0))  # type: ignore[arg-type]
        self._data.send_back(end.peer, encode(credit))

    def _peer_connected(self, peer: int, incarnation: int) -> None:
        again = self._broken.pop(peer, None) is not None and self._deploying is None
        self._connected[peer] = incarnation
        if again:
            for subtask in list(self._order):
                for end in subtask.outputs.channels.values():
                    if end.peer == peer:
                        end.reconnect()
                self._guard(subtask, subtask.outputs.pump)
        self._finish_deployment()

    def _peer_broken(self, peer: int, incarnation: int, reason: str) -> None:
        if self._connected.get(peer) == incarnation:
            del self._connected[peer]
        tries = self._broken.get(peer, 0) + 1
        self._broken[peer] = tries
        if tries > RECONNECT_LIMIT and self._order:
            self._fail(self._order[0], ConnectionError(f"no stream to slot {peer} after {tries} tries: {reason}"))
            return
        self._next_reconnect = time.monotonic() + RECONNECT_PAUSE_S

    def _reconnect(self) -> None:
        self._next_reconnect = None
        if self._last_peers:
            self._data.connect(self._last_peers)

    # --- the coordinator's orders

    def _obey(self, message: control.ControlMessage) -> None:
        match message:
            case control.Deploy():
                self._deploy(message)
            case control.Start(generation, run, run_age_s):
                if generation == self._generation:
                    for subtask in list(self._order):
                        self._guard(subtask, lambda s=subtask: s.start(run, run_age_s))  # type: ignore[misc]
            case control.Suspend(generation):
                if generation >= self._generation:
                    self._retire_all()
            case control.Drain(generation):
                if generation == self._generation:
                    for subtask in self._order:
                        subtask.drain()
            case control.Trigger(generation, checkpoint, subtasks):
                if generation == self._generation:
                    for subtask in [s for s in self._order if str(s.id) in subtasks]:
                        subtask.trigger(CheckpointId(checkpoint))
            case control.Abort(generation, checkpoint, _):
                if generation == self._generation:
                    for subtask in list(self._order):
                        self._guard(subtask, lambda s=subtask: s.abort(CheckpointId(checkpoint)))  # type: ignore[misc]
            case control.Complete(generation, checkpoint):
                if generation == self._generation:
                    for subtask in list(self._order):
                        self._guard(subtask, lambda s=subtask: s.complete(CheckpointId(checkpoint)))  # type: ignore[misc]
            case control.Stop():
                self._retire_all()
                self._link.send(control.Stopped())
                self._stopping = True
            case control.Die():
                os.kill(os.getpid(), signal.SIGKILL)
            case control.Welcome():
                pass
            case _:
                log.warning("slot %d: %s is not for a slot", self.index, type(message).__name__)

    def _retire_all(self) -> None:
        for subtask in list(self._order):
            self._retire(subtask)
        self._deploying = None

    def _deploy(self, deploy: control.Deploy) -> None:
        if deploy.generation <= self._generation:
            return
        begun = time.perf_counter()
        self._retire_all()
        self._generation = Generation(deploy.generation)
        peers = {int(s): (int(a[0]), str(a[1])) for s, a in deploy.addresses.items() if int(s) != self.index}
        self._last_peers = peers
        self._connected.clear()
        self._broken.clear()
        self._next_reconnect = None
        self._data.connect(peers)
        assignment = {parse_subtask(name): slot for name, slot in deploy.assignment.items()}
        for subtask_id in sorted(s for s, slot in assignment.items() if slot == self.index):
            if not self._open(subtask_id, deploy, assignment):
                return
        self._deploying = deploy
        self._restore_ms = (time.perf_counter() - begun) * 1e3
        # Consumers before producers: what is in flight is worked off before more is made.
        depth = {vertex.name: at for at, vertex in enumerate(self._graph.vertices)}
        self._order.sort(key=lambda s: (-depth[s.id.vertex], s.id.index))
        self._finish_deployment()

    def _open(self, name: SubtaskId, deploy: control.Deploy, assignment: dict[SubtaskId, int]) -> bool:
        """Restore one subtask; ``False`` when that failed, which is reported and ends the deployment here."""
        plan = SubtaskPlan(
            graph=self._graph,
            vertex=self._graph.vertex_of(name.vertex),
            subtask=name,
            generation=self._generation,
            options=self._options,
            slots=assignment,
            slot=self.index,
            handle=deploy.handles.get(str(name), {}),
            checkpoint=CheckpointId(deploy.checkpoint or 0),
            mark=deploy.marks.get(str(name)),
        )
        ports = SubtaskPorts(
            self._link.send,
            self._data.send,
            self._hand_over,
            self._grant,
            lambda point, subtask: self._faults.reach(point, self._generation, subtask),
            self._persist,
            self._make_state,
        )
        try:
            subtask = Subtask(plan, ports)
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
        self._subtasks[name] = subtask
        self._order.append(subtask)
        for edge in plan.vertex.inputs:
            self._consumers[(edge, name.index)] = subtask
        for edge in plan.vertex.outputs:
            self._producers[(edge, name.index)] = subtask
        return True

    def _make_state(self, plan: SubtaskPlan) -> SubtaskState:
        return SubtaskState(
            self._scratch,
            self._storage,
            str(plan.subtask),
            plan.generation,
            max_entries=self._options.memtable_entries,
        )

    def _finish_deployment(self) -> None:
        """Answer the coordinator once state is restored and every peer is connected."""
        deploy = self._deploying
        if deploy is None:
            return
        if all(self._connected.get(peer) == target[0] for peer, target in self._last_peers.items()):
            self._deploying = None
            self._broken.clear()
            self._link.send(control.Deployed(deploy.generation, self._restore_ms))

    def _persist(self, name: SubtaskId, checkpoint: CheckpointId, work: Callable[[], dict[str, Any]]) -> None:
        """Run the asynchronous part of a snapshot in the pool; its end comes back through the inbox."""
        generation = self._generation
        future = self._pool.submit(work)

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
        self._link.close()
        self._data.close()
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
