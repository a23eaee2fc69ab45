"""A job for tests of the coordinator's parts: real machine of failover, real table of slots, wires that only listen."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from chain_backup.failover import events
from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import ChainEntry
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.topology import Topology
from flinkplus.config import Options
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Asked, Deployment, Dispatch, InboxEvent
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess, SlotProcesses
from flinkplus.runtime.coordinator.drivers.failover import FailoverDriver
from flinkplus.runtime.coordinator.drivers.failover_stamps import FailoverStamps
from flinkplus.runtime.coordinator.drivers.triggers import Triggers
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.coordinator.membership.moves import MoveRequests, Moves
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.promotion.promotions import Promotions
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog
from tests.unit.runtime.slot.slots_in_process import graph_of

L0, L1, L2 = (SubtaskId("lines", i) for i in range(3))
C0, C1, C2 = (SubtaskId("count", i) for i in range(3))
TOPOLOGY = Topology(("lines", "count"), 3, ((0, "lines", "count"),))
G1, G2 = Generation(1), Generation(2)
ONE, TWO = CheckpointId(1), CheckpointId(2)


class Registered:
    """Connections that keep what they are told."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, control.ControlMessage]] = []
        self.dropped: list[int] = []

    def send(self, connection: int, message: control.ControlMessage) -> None:
        self.sent.append((connection, message))

    def drop(self, connection: int) -> None:
        self.dropped.append(connection)


class Inline:
    """A worker that works at once."""

    def submit(self, action: Callable[..., None], *arguments: Any) -> None:
        action(*arguments)


class Records:
    """Where chain records go."""

    moved: str | None = None
    begun = True

    def __init__(self) -> None:
        self.written: list[dict[str, tuple[int, ...]]] = []
        self.refuses = False

    def write(self, records: Sequence[ChainEntry], urgent: bool, whole: bool = False) -> None:
        if self.refuses:
            raise TimeoutError("nobody answers")
        self.written.append({str(record.subtask): record.members for record in records})


class Listening:
    """Stands for the machines of the job and of checkpoints: they hear everything and order nothing."""

    def __init__(self) -> None:
        self.state = JobState.RUNNING
        self.pending = {ONE, TWO}
        self.restore_from: CheckpointId | None = None
        self.held: CheckpointId | None = None
        self.heard: list[core.JobEvent | core.CheckpointingEvent] = []

    def step(self, now_ms: int, event: core.JobEvent | core.CheckpointingEvent) -> list[Any]:
        self.heard.append(event)
        return []

    def next_deadline_ms(self) -> int | None:
        return None


class Calls:
    """Stands for ``Calls``: runs at once what it is asked to; keeps what is for later, and why the job is to end."""

    def __init__(self) -> None:
        self.delayed: list[tuple[float, Callable[[], None]]] = []
        self.ended: list[str] = []

    def ask(self, action: Callable[[], None]) -> None:
        action()

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.delayed.append((delay_s, action))

    def taken_over(self, reason: str) -> None:
        self.ended.append(reason)


class Job:
    """Three slots, two vertices, the real machine of failover; those of the job and of checkpoints only listen.

    ``standbys``: whether the job has the machine of failover.
    """

    def __init__(self, standbys: bool = True) -> None:
        self.listening = Listening()
        self.inbox: queue.SimpleQueue[InboxEvent] = queue.SimpleQueue()
        self.wires = Registered()
        self.processes = SlotProcesses(3)
        self.dispatch = Dispatch(self.wires, self.processes, self.inbox)  # type: ignore[arg-type]
        self.dispatch.registry = Inline()  # type: ignore[assignment]
        assignment = {subtask: subtask.index for subtask in TOPOLOGY.subtasks}
        self.deployment = deployment = Deployment(
            G1, 0, False, assignment, dict.fromkeys(assignment, G1), parallelism=3
        )
        self.recoveries = RecoveryLog(lambda subtask: subtask.startswith("count"))
        self.protocol = FailoverProtocol(TOPOLOGY, 3, FailoverConfig(replicas=2))
        machine: Any = self.listening
        failover = self.protocol if standbys else None
        self.machines = JobMachines(self.dispatch, deployment, machine, machine, failover)
        self.joining = Joining(self.dispatch, deployment)
        self.calls = Calls()
        calls: Any = self.calls
        crashes = CrashReports(graph_of(10, 1), self.machines, deployment)
        options = Options(parallelism=3, recovery="standby" if standbys else "rollback")
        self.records = Records()
        self.presence = Presence(
            self.dispatch,
            self.machines,
            deployment,
            self.recoveries,
            self.joining,
            crashes,
            calls,
            options,
            self.records,
        )
        self.promotions = Promotions(lambda: TOPOLOGY, self.protocol.versions, Guarantee.EXACTLY_ONCE)
        self.stamps = FailoverStamps(self.dispatch, self.recoveries)
        self.triggers = Triggers(self.dispatch, deployment, lambda: self.listening.pending)
        self.moves = Moves(calls, self.machines, MoveRequests())
        self.driver = FailoverDriver(
            self.dispatch,
            self.machines,
            self.protocol,
            deployment,
            self.promotions,
            self.stamps,
            self.triggers,
            self.records,
            self.joining,
            self.presence,
            self.moves,
        )
        self.machines.obeyed_by(lambda _: None, lambda _: None, self.driver.apply)
        for slot in range(3):
            self.register(slot)
        self.driver.started(CheckpointId(0), {})

    @property
    def heard(self) -> list[core.JobEvent | core.CheckpointingEvent]:
        """What the machines of the job and of checkpoints hear."""
        return self.listening.heard

    @property
    def state(self) -> JobState:
        return self.listening.state

    @state.setter
    def state(self, state: JobState) -> None:
        self.listening.state = state

    def register(self, slot: int) -> SlotProcess:
        connection = 10 * (slot + 1) + self.processes.restarts
        register = control.Register(slot, 0, 1000 + slot, "here", f"here:{slot}")
        return self.processes.register(connection, register, 0.0)

    def lose(self, slot: int) -> None:
        process = self.processes.get(slot)
        assert process is not None
        self.presence.lose(process, "stream closed")

    def fail(self, subtask: SubtaskId) -> None:
        """A subtask reports an exception."""
        self.machines.step_failover(events.SubtaskFailed(subtask, G1, "boom", None))

    def acknowledge(self, subtask: SubtaskId, checkpoint: CheckpointId, handle: SnapshotHandle) -> None:
        self.driver.acknowledged(subtask, G1, checkpoint, handle)

    def work(self) -> None:
        """What the workers have to say."""
        while not self.inbox.empty():
            event = self.inbox.get()
            assert isinstance(event, Asked)
            event.action()

    def say(self, slot: int, message: control.ControlMessage) -> None:
        process = self.processes.get(slot)
        assert process is not None
        assert self.driver.take(process, message)

    def told(self, kind: type[Any], slot: int | None = None) -> list[Any]:
        """What slots were told of one kind, since the last look at that."""
        found = [(c, m) for c, m in self.wires.sent if isinstance(m, kind) and slot in (None, c // 10 - 1)]
        self.wires.sent = [entry for entry in self.wires.sent if entry not in found]
        return [message for _, message in found]

    def fence(self, **answers: dict[str, Any]) -> None:
        """Slots 0 and 2 have fenced."""
        for slot in (0, 2):
            (fence,) = self.told(control.Fence, slot)
            answer = answers.get(f"slot{slot}", {})
            received, sent, runs = answer.get("received", {}), answer.get("sent", {}), answer.get("determinants", {})
            self.say(slot, control.Fenced(fence.attempt, received, sent, runs, answer.get("digests", {})))

    def promoted(self) -> None:
        for slot in (0, 2):
            for order in self.told(control.Promote, slot):
                self.say(slot, control.Promoted(order.attempt, 1.0, 1.0))
