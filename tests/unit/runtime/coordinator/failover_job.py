"""A job for tests of the coordinator's parts: real machine of failover, real table of slots, wires that only listen."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import ChainRecordLike
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch, FailoverWorkDone, InboxEvent
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess, SlotProcesses
from flinkplus.runtime.coordinator.drivers.failover import Failovers
from flinkplus.runtime.coordinator.record.recovery_log import RecoveryLog

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

    def __init__(self) -> None:
        self.written: list[dict[str, tuple[int, ...]]] = []
        self.refuses = False

    def write(self, records: Sequence[ChainRecordLike], urgent: bool) -> None:
        if self.refuses:
            raise TimeoutError("nobody answers")
        self.written.append({str(record.subtask): record.members for record in records})


class Job:
    """Three slots, two vertices, the real machine of failover; those of the job and of checkpoints only listen."""

    def __init__(self) -> None:
        self.state = JobState.RUNNING
        self.heard: list[core.JobEvent | core.CheckpointingEvent] = []
        self.triggered: list[tuple[CheckpointId, list[SubtaskId]]] = []
        self.evicted: list[int] = []
        self.pending = {ONE, TWO}
        self.inbox: queue.SimpleQueue[InboxEvent] = queue.SimpleQueue()
        self.wires = Registered()
        self.processes = SlotProcesses(3)
        self.dispatch = Dispatch(self.wires, self.processes, self.inbox)  # type: ignore[arg-type]
        self.dispatch.registry = Inline()  # type: ignore[assignment]
        assignment = {subtask: subtask.index for subtask in TOPOLOGY.subtasks}
        self.deployment = Deployment(G1, 0, False, assignment, dict.fromkeys(assignment, G1))
        self.recoveries = RecoveryLog(lambda subtask: subtask.startswith("count"))
        protocol = FailoverProtocol(TOPOLOGY, 3, FailoverConfig(replicas=2))
        self.failovers = Failovers(
            protocol,
            TOPOLOGY,
            self.dispatch,
            self,
            self.deployment,
            self.recoveries,
            lambda: self.state,
            lambda process, _: self.evicted.append(process.slot),
            lambda checkpoint, sources, _: self.triggered.append((checkpoint, sources)),
            lambda checkpoint: checkpoint in self.pending,
        )
        self.records = Records()
        self.failovers.registry = self.records
        for slot in range(3):
            self.register(slot)
        self.failovers.started(CheckpointId(0), {})

    def register(self, slot: int) -> SlotProcess:
        connection = 10 * (slot + 1) + self.processes.restarts
        register = control.Register(slot, 0, 1000 + slot, "here", f"here:{slot}")
        return self.processes.register(connection, register, 0.0)[0]

    def step_job(self, event: core.JobEvent) -> None:
        self.heard.append(event)

    def step_checkpoints(self, event: core.CheckpointingEvent) -> None:
        self.heard.append(event)

    def lose(self, slot: int) -> None:
        process = self.processes.remove(slot)
        assert process is not None
        self.failovers.slot_lost(process, "stream closed")

    def work(self) -> None:
        """What the workers have to say."""
        while not self.inbox.empty():
            event = self.inbox.get()
            assert isinstance(event, FailoverWorkDone)
            self.failovers.step(event.event)

    def say(self, slot: int, message: control.ControlMessage) -> None:
        process = self.processes.get(slot)
        assert process is not None
        assert self.failovers.take(process, message)

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
