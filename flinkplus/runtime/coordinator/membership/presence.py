"""Slot membership: slots register, become silent, are lost or evicted; ZooKeeper and Spark report on them, too.

Rules: the first report that a slot is lost counts, later ones are ignored. While the job runs with local failover, the
machine of local failover handles a lost slot; otherwise the machine of the job.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from dataclasses import dataclass, field

import psutil
from typing_extensions import assert_never

from chain_backup.failover.events import SlotLost
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.zookeeper import records
from flinkplus.config import Options
from flinkplus.errors import PeerProtocolError, SlotStartError
from flinkplus.printable import printable
from flinkplus.protocol.liveness import reachability
from flinkplus.protocol.liveness.pulses import PulsedSlot
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.effects import EvictSlot, JobState
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.registry import RecordWriter
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog

SAME_PROCESS_S = 5.0  # a clock may be set between two readings of the time when a process was created
log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class Presence:
    """The coordinator's view of the slots.

    ``crashes``: is notified of processes that this class kills.
    ``registry``: provides the address of ZooKeeper if that has changed; ``None``: the job uses no ZooKeeper.
    """

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _recoveries: RecoveryLog
    _joining: Joining
    _crashes: CrashReports
    _calls: Calls
    _options: Options
    _registry: RecordWriter | None = None
    _reachability: reachability.Reachability = field(default_factory=reachability.Reachability)
    registry_lost: str | None = field(default=None, init=False)
    """Why ZooKeeper is unavailable; ``None`` while it is available."""

    def __post_init__(self) -> None:
        self._processes = self._dispatch.processes
        self._looked_s = self._dispatch.clock.monotonic()
        self._reported: dict[int, str] = {}

    @property
    def uses_registry(self) -> bool:
        """Whether the coordinator stores records in ZooKeeper."""
        return self._registry is not None and self._registry.begun

    def register(self, connection: int, register: control.Register) -> None:
        """Register a slot's process; a late one, of a slot that has ended or runs elsewhere, is stopped."""
        if self._processes.is_over(register.slot) or self._processes.is_superseded(register):
            self._dispatch.rendezvous.send(connection, control.Stop())
            return
        old = self._processes.get(register.slot)
        if old is not None:
            self.lose(old, "replaced by a new attempt")
        process = self._processes.register(connection, register, self._dispatch.clock.monotonic())
        where = f"process {process.pid} on {process.host}"
        log.info("slot %d registered: %s", process.slot, where, extra=about(slot=process.slot))
        if self._registry is not None and self._registry.moved is not None:
            address = control.RegistryAddress(self._registry.moved)
            self._dispatch.rendezvous.send(connection, address)  # before it connects
        self._dispatch.rendezvous.send(connection, control.Welcome(process.incarnation))
        self._machines.step_job(events.SlotRegistered(process.slot, process.incarnation))
        if self._machines.local_failover is not None and not self._processes.is_apart(process.slot):
            self._step(reachability.SlotArrived(process.slot, process.host))

    def start_failed(self, connection: int, failed: control.StartFailed) -> None:
        """A slot's process could not start; its keeper starts another one. Raises ``PeerProtocolError``."""
        self._dispatch.rendezvous.drop(connection)  # the report is complete
        reason = f"slot {failed.slot} cannot start on {failed.host}: {failed.kind}: {failed.reason}"
        if failed.kind == ModuleNotFoundError.__name__:
            reason += (
                "; install that module in the Python environment of the executors, or ship it with "
                "spark.sparkContext.addPyFile"
            )
        for line in failed.trace.splitlines():
            log.debug("traceback: %s", printable(line, 1_000), extra=about(slot=failed.slot))
        self.slot_failed(failed.slot, reason)

    def slot_failed(self, slot: int, reason: str) -> None:
        """A slot could not be started. Raises ``PeerProtocolError`` for a slot that the job does not have."""
        level = logging.INFO if self._reported.get(slot) == reason else logging.WARNING
        self._reported[slot] = reason
        log.log(level, "%s", reason, extra=about(slot=slot))
        self._machines.step_job(events.SlotStartFailed(slot, reason, SlotStartError(reason)))

    def lose(self, process: SlotProcess, reason: str) -> None:
        log.info("slot %d lost: %s", process.slot, reason, extra=about(slot=process.slot))
        lost = events.SlotLost(process.slot, process.incarnation, reason)
        self._processes.remove(process.slot)
        self._dispatch.drop(process)
        self._deployment.lost_at = self._deployment.triggered
        self._recoveries.slot_lost(process.slot, [str(subtask) for subtask in self._deployment.on(process.slot)])
        self._step(lost)
        failover = self._machines.local_failover
        if failover is None or self._processes.is_apart(process.slot):
            self._machines.step_job(lost)
            return
        matters = not self._processes.is_spare(process.slot) or failover.is_alive(process.slot)
        if matters:
            self._machines.step_job(self._loss_of(process.slot, reason, failover))
        self._machines.step_job(events.SlotLeft(process.slot, process.incarnation, reason))
        if matters:
            self._machines.step_failover(SlotLost(process.slot, process.incarnation, reason))
        self._joining.lost(process.slot)

    def _loss_of(self, slot: int, reason: str, failover: FailoverProtocol) -> events.FailureTakenOn:
        """The failure that the loss of ``slot`` counts as; for a slot without subtasks, a separate failure."""
        generations = self._deployment.generations
        hosted = [generations[subtask] for subtask in self._deployment.on(slot) if subtask in generations]
        generation = max(hosted, default=Generation(failover.newest_generation + 1))
        why = f"slot {slot} was lost: {reason}"
        return events.FailureTakenOn("slot", generation, failover.recovering, why, None)

    def let_spares_join(self) -> None:
        """Let the registered spare slots join: the job was started without them."""
        for process in self._processes.all():
            if self._processes.is_spare(process.slot) and not self._processes.is_apart(process.slot):
                self._step(reachability.SlotArrived(process.slot, process.host))

    def evict(self, process: SlotProcess, reason: str) -> None:
        """End a slot's process: SIGKILL on this host; closing its stream ends it on any host."""
        log.warning("evicting slot %d: %s", process.slot, reason, extra=about(slot=process.slot))
        self._crashes.ended_on_purpose(process.pulse)
        if process.host == socket.gethostname():
            _kill(process)
        self.lose(process, reason)

    def look_for_silent_slots(self) -> None:
        """Evict silent slots. If this loop was blocked and received no heartbeats, their timeouts restart."""
        now, before = self._dispatch.clock.monotonic(), self._looked_s
        self._looked_s = now
        timeout_s = self._options.heartbeat_timeout
        for process in self._processes.all():
            if now - before > timeout_s / 2:
                process.heard_s = now
            elif process.heard_s < now - timeout_s:
                self.evict(process, f"no heartbeat from slot {process.slot} for {timeout_s} s")
        pulses = self._dispatch.pulses
        if pulses is not None and pulses.due:
            registered = self._processes.all()
            pulsed = [PulsedSlot(one.pulse, one.host, round(one.heard_s * 1000)) for one in registered]
            silent = set(pulses.silent(pulsed, self._chains()))
            for process in [process for process in registered if process.pulse in silent]:
                self.evict(process, f"it hangs or is cut off: no pulse for {pulses.timeout_s} s")

        due_ms = self._reachability.next_deadline_ms()
        if due_ms is not None and self._dispatch.now_ms() >= due_ms:
            self._step(reachability.SlotsSeen(self._standings()))

    def _chains(self) -> list[list[str]] | None:
        """The pulses of each chain's members; ``None`` when the loss of a slot leads to a rollback."""
        failover = self._machines.local_failover
        if failover is None:
            return None
        members = ((self._processes.get(slot) for slot in slots) for slots in failover.chains.values())
        return [[process.pulse for process in chain if process is not None] for chain in members]

    # --- slots that do not reach each other

    def peers_unreached(self, process: SlotProcess, message: control.PeersUnreached) -> None:
        """A slot reports which peers it cannot reach. Raises ``PeerProtocolError``."""
        peers, blamed = (self._present(process, named) for named in (message.peers, message.blamed))
        if peers:
            log.warning("slot %d cannot reach slots %s", process.slot, ", ".join(map(str, peers)))
        self._step(reachability.SlotPeersUnreached(process.slot, peers, blamed))

    def _present(self, process: SlotProcess, named: dict[str, int]) -> tuple[int, ...]:
        """The slots among ``named`` (slot -> incarnation) whose named process is still registered."""
        try:
            reported = {int(peer): incarnation for peer, incarnation in named.items()}
        except ValueError as error:
            raise PeerProtocolError(
                f"slot {process.slot} reported an unreachable peer that is not a slot: {error}"
            ) from error
        known = ((slot, incarnation, self._processes.get(slot)) for slot, incarnation in sorted(reported.items()))
        return tuple(slot for slot, known_as, peer in known if peer is not None and peer.incarnation == known_as)

    def next_deadline_ms(self) -> int | None:
        """When ``look_for_silent_slots`` must next check which slots cannot reach each other."""
        return self._reachability.next_deadline_ms()

    def interrupted(self) -> None:
        """A rollback began, or the job ends: a deployment connects every registered slot."""
        self._step(events.JobInterrupted())
        self._joining.reset()

    def _standings(self) -> tuple[reachability.Standing, ...]:
        if self._machines.job.state is not JobState.RUNNING:
            return ()
        pulses, failover = self._dispatch.pulses, self._machines.failover
        return tuple(
            reachability.Standing(
                process.slot,
                process.host,
                len(self._deployment.on(process.slot)),
                failover is None or failover.is_alive(process.slot),
                pulses is not None and pulses.is_doubtful(process.pulse),
            )
            for process in self._processes.all()
            if not self._processes.is_apart(process.slot)
        )

    def _step(self, event: reachability.ReachabilityEvent) -> None:
        for effect in self._reachability.step(self._dispatch.now_ms(), event):
            process = self._processes.get(effect.slot)
            if process is None:
                continue
            match effect:
                case EvictSlot(_, _, reason):
                    self.evict(process, reason)
                case reachability.SetSlotAside(slot, reason):
                    log.warning("slot %d is set aside: %s", slot, reason)
                    self._joining.set_aside(slot)
                case reachability.LetSlotJoin():
                    if self._machines.local_failover is not None:
                        self._joining.begin(process)
                case _:
                    assert_never(effect)

    # --- ZooKeeper

    def registry_reported(self, event: records.RegistryEvent) -> None:
        match event:
            case records.SlotNodeGone(slot, record):
                process = self._processes.get(slot)
                if process is None or self._processes.is_over(slot) or process.incarnation != record.incarnation:
                    return
                if self._machines.local_failover is not None:
                    self.evict(process, f"the ZooKeeper session of slot {slot} has expired")
            case records.RegistryLost(reason, final):
                log.warning("ZooKeeper is unavailable: %s", reason)
                self.registry_lost = reason
                if final:
                    self._calls.taken_over(f"another driver has taken the job over: {reason}")
            case records.RegistryReconnected():
                log.warning("coordinator is connected to ZooKeeper again")
                self.registry_lost = None
            case records.RegistryMoved(hosts):
                self._dispatch.send_all(control.RegistryAddress(hosts))
            case records.SlotNodeSeen():
                pass  # the slot registers on its control stream
            case _:
                assert_never(event)

    def kill(self, subtask: SubtaskId) -> bool:
        """Fault injection: SIGKILL the process that hosts ``subtask``; ``False`` when no process hosts it."""
        slot = self._deployment.assignment.get(subtask)
        return slot is not None and self.kill_slot(slot)

    def kill_slot(self, slot: int) -> bool:
        """Fault injection: SIGKILL the process of ``slot``; ``False`` when the slot has no process."""
        process = self._processes.get(slot)
        if process is None:
            return False
        self._crashes.ended_on_purpose(process.pulse)
        self._recoveries.kill_stamped(process.slot, self._dispatch.clock.time())
        if process.host != socket.gethostname() or not _kill(process):
            self._dispatch.rendezvous.send(process.connection, control.Die())
        return True


def _kill(process: SlotProcess) -> bool:
    """SIGKILL the process of a slot on this host; ``False`` if it has ended, belongs to another user, or its PID is
    that of another process here, as with a slot in a container."""
    slot, pid, created_s = process.slot, process.pid, process.created_s
    try:
        if created_s and abs(psutil.Process(pid).create_time() - created_s) >= SAME_PROCESS_S:
            log.warning("process %d on this host is not slot %d", pid, slot, extra=about(slot=slot))
            return False
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, psutil.NoSuchProcess):
        log.info("cannot signal slot %d: process %d does not exist on this host", slot, pid)
        return False
    except (OSError, psutil.Error) as error:
        log.warning("cannot signal process %d of slot %d: %s", pid, slot, error, extra=about(slot=slot))
        return False
    return True
