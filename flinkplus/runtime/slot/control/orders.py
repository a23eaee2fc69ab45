"""What a slot does with its coordinator's orders and with new streams to other slots.

It keeps which subtasks are active here, and the slot and generation of every subtask of the job. How frames travel,
what state is made of and where an event waits belongs to the slot's process (``slot.process``), and to the simulator.

Rules: one thread. A slot takes orders from its coordinator only. Messages from any other deployment are ignored.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping

from flinkplus.errors import CorruptState, described
from flinkplus.protocol.determinants.determinants import merge
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.protocol.subtask.subtask import SubtaskSteps
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId, parallelism_of
from flinkplus.protocol.vocabulary.in_flight import InFlightBudget
from flinkplus.protocol.vocabulary.lineage import Lineage
from flinkplus.runtime.base.clock import Clock
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.control.spans import spans_from_json
from flinkplus.runtime.slot.control.active import ActiveSubtasks
from flinkplus.runtime.slot.control.failover import SlotFailover
from flinkplus.runtime.slot.control.host import SlotHost
from flinkplus.runtime.slot.control.peers import Peers
from flinkplus.runtime.slot.control.ports import GraphPort, PrefetchPort, S
from flinkplus.runtime.slot.control.routing import Routing

log = logging.getLogger("flinkplus.slot")


class SlotOrders(SlotHost[S]):
    """The protocol of slot ``index``; a driver derives from it. It sets ``_failover`` when there are standbys,
    ``_peers`` and ``_prefetcher`` always."""

    _peers: Peers
    _prefetcher: PrefetchPort

    def __init__(
        self,
        index: int,
        parallelism: int,
        graph: GraphPort,
        clock: Clock,
        sharing_depth: int | None = None,
        unaligned: bool = False,
        in_flight_bytes: int = InFlightBudget().slot_bytes,
    ) -> None:
        self.index = index
        self.parallelism = parallelism
        self.graph = graph
        self.clock = clock
        producers = {edge: vertex.name for vertex in graph.vertices for edge in vertex.outputs}
        consumers = {edge: vertex.name for vertex in graph.vertices for edge in vertex.inputs}
        edges = [(producers[edge], consumers[edge]) for edge in sorted(consumers)]
        self.routing: Routing[S] = Routing(self, consumers)
        self.lineage = Lineage([vertex.name for vertex in graph.vertices], edges, sharing_depth, graph.recipes())
        self.cycles = graph.cycles()
        self.runs_ahead = unaligned or bool(self.cycles)
        self.in_flight = InFlightBudget(in_flight_bytes, slots=parallelism)
        self.active: ActiveSubtasks[S] = ActiveSubtasks(graph)
        self.slots: dict[SubtaskId, int] = {}
        self.generations: dict[SubtaskId, Generation] = {}
        self.deployed = Generation(0)
        self._failover: SlotFailover[S] | None = None
        self._peers_serial: int | None = None
        self._deploying: control.Deploy | None = None
        self._restore_ms = 0.0
        self._prefetched_in: Generation | None = None  # the deployment before the one that files are ready for
        self.malformed_frames = 0
        self._stopping = False
        self._silent: dict[int, int] = {}
        self._unreached = control.PeersUnreached({})
        self.notes_rows = self.alone = False

    # --- by the driver

    @abstractmethod
    def _renew(self, peer: int, reason: str) -> None:
        """Break the streams from and to another slot; they are opened again."""

    @abstractmethod
    def _fail(self, subtask: S, error: Exception) -> None:
        """Retire a subtask and report its failure, unless it is retired already."""

    @abstractmethod
    def _welcome(self, incarnation: int) -> None:
        """The coordinator knows this slot now, as this incarnation."""

    @abstractmethod
    def _die(self) -> None:
        """Fault injection: end this process by force."""

    def take_replica(self, peer: int, frame: bytes) -> None:
        if self._failover is not None:
            self._failover.standbys.receive(peer, frame)

    # --- streams

    def peer_connected(self, peer: int, incarnation: int) -> None:
        """There is a stream to ``peer``. In the place of one that broke: what was sent on that may be lost."""
        again = self._peers.connected(peer, incarnation) and self._deploying is None
        self._report_unreached()
        if again:
            for subtask in self.active:
                for end in subtask.outputs.channels.values():
                    if end.peer == peer:
                        end.reconnect()
                self.guard(subtask, subtask.outputs.pump)
        if self._failover is not None:
            self._failover.standbys.peer_connected(peer)
        self._finish_deployment()

    def peer_broken(self, peer: int, incarnation: int, reason: str) -> None:
        """The stream to ``peer`` broke, or could not be opened: it is tried again, as long as ``peer`` is wanted."""
        log.debug("slot %d: cannot connect to slot %d: %s", self.index, peer, reason)
        self._peers.broken(peer, incarnation)
        self._report_unreached()

    def frame_malformed(self, peer: int, error: Exception) -> None:
        log.warning("slot %d: malformed frame from slot %d: %s", self.index, peer, error)
        self.malformed_frames += 1
        self._peers.malformed(peer)
        self._renew(peer, f"malformed frame: {error}")
        self._report_unreached()

    def peers_silent(self, silent: dict[int, int]) -> None:
        """The peers (slot -> incarnation) of which nothing comes back, though something was sent to them."""
        self._silent = silent
        self._report_unreached()

    def _report_unreached(self) -> None:
        """Report all peers that are not reached, when that changes."""
        blamed = self._peers.to_blame
        peers = {**self._silent, **blamed}
        unreached = control.PeersUnreached(
            {str(peer): peers[peer] for peer in sorted(peers)}, {str(peer): blamed[peer] for peer in blamed}
        )
        if unreached != self._unreached:
            self._unreached = unreached
            self.report(unreached)

    def peer_attached(self, peer: int) -> None:
        """A peer has a new stream to this slot: credit that went the old way may be lost."""
        for subtask in self.active:
            for end in subtask.inputs.channels.values():
                if end.peer == peer:
                    subtask.inputs.grant_anew(end)

    # --- the coordinator's orders

    def _obey(self, message: control.ControlMessage) -> None:
        match message:
            case control.Deploy():
                self._deploy(message)
            case control.Start(generation, run, run_age_s):
                if generation == self.deployed:
                    for subtask in self.active:
                        self.guard(subtask, subtask.begin, run, run_age_s)
            case control.Halt(generation):
                if generation >= self.deployed:
                    self._retire_all()
            case control.Drain(generation):
                if generation == self.deployed:
                    for subtask in self.active:
                        subtask.steps.drain()
            case control.Trigger(generation, checkpoint, subtasks):
                if generation == self.deployed:
                    for subtask in [s for s in self.active if str(s.id) in subtasks]:
                        subtask.steps.trigger(CheckpointId(checkpoint))
            case control.Hold(generation, checkpoint):
                if generation == self.deployed:
                    self.active.hold(CheckpointId(checkpoint))
            case control.Overtake(generation, checkpoint):
                self._pass_on(
                    generation, CheckpointId(checkpoint), lambda one: one.checkpoints.overtake, lambda one: one.overtake
                )
            case control.Abort(generation, checkpoint, _):
                self._pass_on(generation, CheckpointId(checkpoint), lambda one: one.abort, lambda one: one.abort)
            case control.Complete(generation, checkpoint):
                self._pass_on(generation, CheckpointId(checkpoint), lambda one: one.complete, lambda one: one.complete)
                if self._prefetched_in is not None and generation == self.deployed > self._prefetched_in:
                    self._prefetched_in = None  # subtasks and standbys of this deployment have their files
                    self._prefetcher.drop()
            case control.Prefetch():
                self._prefetched_in = self.deployed if message.files else None
                self._prefetcher.begin(message)
            case control.Stop():
                self._retire_all()
                self.report(control.Stopped())
                self._stopping = True
            case control.Die():
                self._die()
            case control.Welcome(incarnation):
                self._welcome(incarnation)
            case control.Join():
                self._join(message)
            case control.Connect(serial, addresses):
                self._peers_serial = serial
                self._peers.connect(addresses)
                self._finish_deployment()
            case _ if self._failover is not None:
                self._obey_failover(self._failover, message)
            case _:
                log.warning("slot %d: %s is not for a slot", self.index, type(message).__name__)

    def _pass_on(
        self,
        generation: int,
        checkpoint: CheckpointId,
        order: Callable[[SubtaskSteps], Callable[[CheckpointId], None]],
        failover_order: Callable[[SlotFailover[S]], Callable[[CheckpointId], None]],
    ) -> None:
        """Give an order about a checkpoint to all active subtasks, and to those that are being promoted."""
        if generation != self.deployed:
            return
        for subtask in self.active:
            self.guard(subtask, order(subtask.steps), checkpoint)
        if self._failover is not None:
            failover_order(self._failover)(checkpoint)

    def _obey_failover(self, failover: SlotFailover[S], message: control.ControlMessage) -> None:
        match message:
            case control.Fence():
                failover.fence(message)
            case control.Promote():
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
        """This slot comes late: the job runs. What it did before a rollback, if anything, is over."""
        self.alone = False
        if join.generation > self.deployed:
            self._retire_all()
            self._peers.forget()
        self.deployed = Generation(join.generation)
        self.active.hold(CheckpointId(join.held))
        self._assign(join.assignment)
        self.generations = {parse_subtask(name): Generation(g) for name, g in join.generations.items()}

    def _deploy(self, deploy: control.Deploy) -> None:
        self.notes_rows, self.alone = deploy.notes_rows, deploy.alone
        if deploy.generation <= self.deployed:
            return
        begun = self.clock.monotonic()
        self._retire_all()
        self.deployed = Generation(deploy.generation)
        self.active.hold(CheckpointId(deploy.held))
        self._peers_serial = None
        self._peers.forget()
        self._peers.connect(deploy.addresses)
        self._assign(deploy.assignment)
        self.generations = dict.fromkeys(self.slots, self.deployed)
        for subtask_id in sorted(s for s, slot in self.slots.items() if slot == self.index):
            if not self._open(subtask_id, deploy):
                return
        self._deploying = deploy
        self._restore_ms = (self.clock.monotonic() - begun) * 1e3
        self._finish_deployment()

    def _assign(self, assignment: Mapping[str, int]) -> None:
        """``assignment``: the slot of every subtask of the job, whose number may have changed."""
        self.slots = {parse_subtask(name): slot for name, slot in assignment.items()}
        self.parallelism = self.in_flight.slots = parallelism_of(self.slots)

    def _snapshotted(self, name: SubtaskId, generation: Generation, handle: SnapshotHandle) -> None:
        if self._failover is not None:
            self._failover.standbys.persisted(str(name), generation, handle)

    def _open(self, name: SubtaskId, deploy: control.Deploy) -> bool:
        """Restore one subtask; ``False`` when that failed, which is reported and ends the deployment here."""
        handle = deploy.handles.get(str(name), START)
        try:
            recorded, spans = deploy.repeats.get(str(name), (0, ()))
            subtask = self.build(
                name,
                handle,
                CheckpointId(deploy.checkpoint or 0),
                deploy.marks.get(str(name)),
                repeats=merge(handle.operator_state.steps, spans_from_json(spans)),
                recorded=recorded,
            )
        except CorruptState as error:
            refusal = control.RestoreFailed(self.deployed, deploy.checkpoint or 0, str(name), str(error))
            self.report(refusal)
            return False
        except Exception as error:
            log.info("deploying %s failed", name, exc_info=True)
            reason = described(error)
            kind, now_s = type(error).__name__, self.clock.time()
            self.report(control.Failed(self.deployed, str(name), kind, reason, time_s=now_s))
            return False
        self.active.add(subtask)
        if handle.checkpoint:
            self._snapshotted(name, self.deployed, handle)
        return True

    def _finish_deployment(self) -> None:
        """Answer the coordinator once every peer is connected, and what was to be restored is."""
        if not self._peers.complete:
            return
        deploy, self._deploying = self._deploying, None
        serial, self._peers_serial = self._peers_serial, None
        if deploy is not None:
            self.report(control.Deployed(deploy.generation, self._restore_ms))
        if serial is not None:
            self.report(control.Connected(serial))
