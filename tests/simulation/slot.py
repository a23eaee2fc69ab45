"""A simulated slot: one process, which runs the product's own orders, failover and streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flinkplus.errors import ForeignMessage, NondeterministicOperator, PeerProtocolError, UserFunctionError
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import CheckpointId, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import InFlightBudget
from flinkplus.protocol.vocabulary.messages import Message
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.slot.control.failover import PART_VALUES, SlotFailover
from flinkplus.runtime.slot.control.orders import SlotOrders
from flinkplus.runtime.slot.control.peers import Peers
from flinkplus.runtime.transport.wire.message_format import decode_frame
from tests.memory_store import MemoryStore
from tests.simulation.checks import Violation
from tests.simulation.disk import SimVolume
from tests.simulation.graph import SimGraph
from tests.simulation.network import SimStreams, unpacked
from tests.simulation.standbys import REFUSED, SimStandbys
from tests.simulation.subtask import MarshalCodec, ProcessEnded, SimPlan, SimSubtask, fold
from upstream_cache.log import LogFull
from upstream_cache.retention import Retention
from upstream_cache.segments import CorruptSegment

if TYPE_CHECKING:
    from tests.simulation.world import World

EXPECTED = (UserFunctionError, CorruptSegment)
"""What may go wrong in a subtask; anything else is a fault of the product's."""
SEGMENT_BYTES = 4_000
SILENT = 0.1
"""How often a slot stops to fetch files, and does not say so."""


class SimPrefetcher:
    """Files come one by one, as slow as the storage is; now and then one cannot be had, or none comes any more."""

    def __init__(self, slot: SimSlot) -> None:
        self._slot = slot
        self._order: control.Prefetch | None = None

    def begin(self, order: control.Prefetch) -> None:
        self._order = order
        self._fetch(order, sum(file.bytes for file in order.files), "")

    def _fetch(self, order: control.Prefetch, left: int, reason: str) -> None:
        world = self._slot.world
        if self._order is not order or not order.files or world.rng_divided.random() < SILENT:
            return
        reason = reason or ("download refused" if world.storage_fails and world.rng_divided.random() < 0.3 else "")
        fetched = world.rng_divided.randint(1, max(1, left))
        self._slot.later(world.storage_ms(), self._fetched, order, max(0, left - fetched), reason)

    def _fetched(self, order: control.Prefetch, left: int, reason: str) -> None:
        self._slot.report(control.Prefetched(order.request, left, reason))
        if left:
            self._fetch(order, left, reason)

    def drop(self) -> None:
        self._order = None


class SimSlot(SlotOrders[SimSubtask]):
    """One process of slot ``index``. While it is paused, what happens to it waits."""

    graph: SimGraph

    def __init__(self, world: World, index: int, process: int) -> None:
        super().__init__(
            index,
            world.options.parallelism,
            world.graph,
            world.clock,
            world.options.depth,
            world.options.checkpoint_mode == "unaligned",
            world.parameters.in_flight_bytes or InFlightBudget().slot_bytes,
        )
        self.world = world
        self.process = process
        self.host = world.host_of(index)
        self.connection = world.connect(self)
        self.alive = True
        self.paused = False
        self.incarnation = 0
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._working = False
        self._uploaded_ms = 0
        self.doom: tuple[str, int, int] | None = None
        self.volume = SimVolume()
        self.data = SimStreams(self)
        self._peers = Peers(index, self.data.connect, world.clock)
        self.retention: Retention[Any] | None = None
        self.ids = MemoryStore()
        self._filters = 0
        self._prefetcher = SimPrefetcher(self)
        self.standbys = SimStandbys(self)
        if world.options.standbys or world.graph.loops:
            self.retention = Retention(
                Path("spill"),
                MarshalCodec(),
                world.parameters.budget_bytes,
                SEGMENT_BYTES,
                world.clock.monotonic,
                self.volume,
            )
        if world.options.local:
            most = world.parameters.fence_values or PART_VALUES
            self._failover = SlotFailover(self, self.standbys, world.clock, most)  # type: ignore[arg-type]
        world.cyclic += [self, self.active, self.standbys.agent]
        self.report(control.Register(index, 0, process, self.host, str(process)))

    def __str__(self) -> str:
        return f"slot {self.index} (process {self.process})"

    def next_filter(self) -> int:
        """A number for the filter of a subtask that begins here."""
        self._filters += 1
        return self._filters

    # --- what happens

    def event(self, action: Callable[..., None], *arguments: Any) -> None:
        """Something happens to this process, unless it is dead."""
        if not self.alive:
            return
        if self.paused:
            self._backlog.append((action, arguments))
            return
        action(*arguments)
        if not self._working:
            self.wake()

    def quietly(self, action: Callable[..., None], *arguments: Any) -> None:
        """Something happens that the subtasks here need not look at."""
        if self.paused:
            self._backlog.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def later(self, delay_ms: int, action: Callable[..., None], *arguments: Any) -> None:
        self.world.at(self.world.now_ms + delay_ms, self.event, action, *arguments)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Go on, without knowing what has happened meanwhile."""
        if not self.paused:
            return
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for action, arguments in backlog:
            self.event(action, *arguments)
        self.wake()

    def wake(self) -> None:
        if not self._working and self.alive:
            self._working = True
            world = self.world
            world.at(world.now_ms + world.rng_work.randint(0, world.parameters.work_ms), self._work)

    def _work(self) -> None:
        self._working = False
        if not self.alive or self.paused:
            return
        world = self.world
        now = world.clock.monotonic()
        if self._peers.next_reconnect is not None:
            self._peers.reconnect(now)
        busy, rng = False, world.rng_work
        for subtask in self.active:
            if subtask.steps.runnable(now) and self.alive:
                busy = True
                if rng.random() < 0.8:
                    self.guard(subtask, subtask.steps.run)
                    while self.alive and subtask.steps._running and subtask.steps.repeats_on and rng.random() < 0.7:
                        self.guard(subtask, subtask.steps.run)
                    self._pass_barriers(subtask, now)
                    world.checks.stepped(subtask)
        if busy:
            self.wake()
            return
        deadlines = [deadline for subtask in self.active if (deadline := subtask.steps.deadline(now)) > now]
        if self._peers.next_reconnect is not None:
            deadlines.append(self._peers.next_reconnect)
        if self.retention is not None and self.retention.blocked is not None:
            deadlines.append(max(now + 0.02, self.retention._retry_at))
        if deadlines:
            self._working = True
            world.at(max(world.now_ms + 1, round(min(deadlines) * 1000)), self._work)

    def _pass_barriers(self, subtask: SimSubtask, now: float) -> None:
        """What comes behind a barrier that had overtaken, if that is taken in no time."""
        while (
            self.world.parameters.quick_barriers
            and self.alive
            and subtask.passes_barrier
            and subtask.steps.runnable(now)
        ):
            subtask.passes_barrier = False
            self.guard(subtask, subtask.steps.run)

    def end(self, why: str) -> None:
        """The process ends; Spark will start another one."""
        if not self.alive:
            return
        self.alive = False
        self.world.note("%s ends: %s", self, why)
        self._backlog.clear()
        self.data.close()
        self.world.process_ended(self)

    # --- control

    def report(self, message: control.ControlMessage) -> None:
        if isinstance(message, control.PromotionFailed) and message.reason != REFUSED and not self.world.violated:
            self.world.violated = Violation("progress", f"{message.subtask} is not promoted: {message.reason}")
        self.world.report(self, message)

    def obey(self, message: control.ControlMessage) -> None:
        """An order of the coordinator's."""
        self.world.note("%s is told %s", self, message)
        if isinstance(message, control.Fence):
            self.world.checks.fences(self, message)
        self._obey(message)
        if self._stopping:
            self.alive = False
            self.data.close()
            self.world.process_stopped(self)

    def control_lost(self) -> None:
        self.active.retire_all()
        self.end("it lost its coordinator")

    def session_expired(self) -> None:
        self.report(control.SessionLost(f"the ZooKeeper session of slot {self.index} expired"))
        self.active.retire_all()
        self.end("its session expired")

    def _welcome(self, incarnation: int) -> None:
        self.incarnation = incarnation

    def _die(self) -> None:
        self.end("it was told to die")

    # --- subtasks

    def build(
        self,
        name: SubtaskId,
        handle: SnapshotHandle,
        checkpoint: CheckpointId,
        mark: int | None,
        promotion: Promotion | None = None,
        repeats: tuple[int, ...] = (),
        recorded: int = 0,
    ) -> Any:
        return SimSubtask(
            self,
            SimPlan(
                subtask=name,
                generation=self.generations[name],
                slot=self.index,
                slots=self.slots,
                generations=self.generations,
                lineage=self.lineage,
                cycles=self.cycles,
                checkpoint=checkpoint,
                promotion=promotion,
                guarantee=self.world.options.promises,
                synchronous=self.world.options.checkpoint_mode == "synchronous",
                unaligned=self.world.options.checkpoint_mode == "unaligned",
                in_flight=self.in_flight,
                repeats=repeats,
                recorded=recorded,
                vertex=self.graph.vertex_of(name.vertex),
                parallelism=self.parallelism,
                handle=handle,
                alone=self.alone,
            ),
        )

    def fold(self, files: tuple[str, ...]) -> dict[int, int]:
        return fold(self.world.files, files)

    def upload(self, subtask: SimSubtask, checkpoint: CheckpointId) -> None:
        """The asynchronous part of a snapshot: as slow as the storage is, or failing."""
        reason = "upload refused" if self.world.uploads_fail else ""
        # One after the other, as the pool of one thread does.
        self._uploaded_ms = max(self._uploaded_ms, self.world.now_ms) + self.world.storage_ms()
        self.world.at(self._uploaded_ms, self.event, self._uploaded, subtask, checkpoint, reason)

    def _uploaded(self, subtask: SimSubtask, checkpoint: CheckpointId, reason: str) -> None:
        active: Any = self.active.get(subtask.id)
        if active is subtask:
            self.guard(subtask, subtask.uploaded, checkpoint, reason)
        elif not reason:  # it is closed, and its file is stored all the same
            self.world.durable.put(f"{subtask.id}/{subtask.generation}-{checkpoint}-0.sst")

    def guard(self, subtask: Any, action: Callable[..., None], /, *arguments: Any) -> None:
        try:
            action(*arguments)
        except ProcessEnded:
            return
        except EXPECTED as error:
            self._fail(subtask, error)
        except NondeterministicOperator as error:
            if not subtask.has_whims:
                raise
            self.world.checks.counts["whims"] += 1
            self._fail(subtask, error)
        except PeerProtocolError as error:
            if self.world.is_at_work(subtask):
                raise
            self._fail(subtask, error)
        except LogFull:
            # It failed within its step, at a message of its own, and the rest of the step finds its logs closed.
            if self.active.get(subtask.id) is subtask:
                raise

    def _fail(self, subtask: Any, error: Exception) -> None:
        self.world.checks.failed(subtask, error)
        if self.active.retire(subtask):
            self.world.note("%s fails: %s", subtask.id, error)
            kind = type(error).__name__
            self.report(control.Failed(subtask.generation, str(subtask.id), kind, str(error)))

    def reach(self, point: str, generation: int, name: SubtaskId) -> None:
        self.world.reach(point, self, name)

    def take_frame(self, peer: int, frame: bytes) -> None:
        """A frame of ``peer``, whole."""
        try:
            messages = decode_frame(frame)
        except PeerProtocolError as error:
            self.world.checks.malformed(self, peer, frame)
            self.frame_malformed(peer, error)
            return
        whole = (unpacked(message, payload) for message, payload in messages)
        self.routing.take_all(peer, ((message, message.records) for message in whole))

    def take_one(self, peer: int, message: Message) -> None:
        """A message of ``peer`` that did not come in a frame."""
        self.routing.take_all(peer, [(message, message.records)])

    def frame_malformed(self, peer: int, error: Exception) -> None:
        if isinstance(error, ForeignMessage):
            self.world.checks.foreign(self, peer, error)
        super().frame_malformed(peer, error)

    def _renew(self, peer: int, reason: str) -> None:
        self.data.renew(peer)

    def send_credit(self, slot: int, credit: Message) -> None:
        self.data.send_back(slot, credit)
