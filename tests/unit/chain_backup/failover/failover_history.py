"""A failover machine with its history: feeds events at rising times, answers orders, checks what must always hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from chain_backup.failover.config import FailoverConfig
from chain_backup.failover.effects import (
    ChainEntry,
    FailoverEffect,
    FailoverKind,
    FenceSlots,
    PromoteStandbys,
    RecordFailoverPhase,
    WriteRecords,
)
from chain_backup.failover.events import (
    CheckpointAborted,
    CheckpointCompleted,
    FailoverEvent,
    HeadPersisted,
    JobStarted,
    RecordsWritten,
    SlotFenced,
    StandbysPromoted,
    TimeAdvanced,
    VersionStaged,
)
from chain_backup.failover.machine import FailoverProtocol
from chain_backup.failover.recovery_line import VersionCursors
from chain_backup.failover.topology import Topology
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, SubtaskId
from flinkplus.protocol.vocabulary.phases import Phase

E = TypeVar("E")

TWO_STAGES = Topology(("lines", "count"), 4, ((0, "lines", "count"),))
THREE_STAGES = Topology(("lines", "words", "count"), 4, ((0, "lines", "words"), (1, "words", "count")))
PER_VERSION = 10


def channels_of(topology: Topology) -> tuple[ChannelId, ...]:
    """All channels, sorted."""
    return tuple(sorted(channel for subtask in topology.subtasks for channel in topology.outputs(subtask)))


"""Messages on each channel between two versions, the barrier included."""


def cursors_of(subtask: SubtaskId, version: int, topology: Topology) -> VersionCursors:
    """Every version is taken ``PER_VERSION`` messages after the one before: the barrier is the last of them."""
    sent = max(0, version * PER_VERSION - 1)  # the snapshot is taken before the barrier is sent
    return VersionCursors(
        inputs=dict.fromkeys(topology.inputs(subtask), version * PER_VERSION),
        outputs=dict.fromkeys(topology.outputs(subtask), sent),
    )


def completed(version: int) -> CheckpointCompleted:
    return CheckpointCompleted(CheckpointId(version))


def aborted(version: int) -> CheckpointAborted:
    return CheckpointAborted(CheckpointId(version))


class History:
    """4 slots on hosts of their own, and a subtask of each vertex on each."""

    def __init__(
        self,
        topology: Topology = TWO_STAGES,
        /,
        **options: int | bool | None,
    ) -> None:
        defaults: dict[str, int | bool | None] = {
            "replicas": 3,
            "fence_timeout_ms": 2_000,
            "promote_timeout_ms": 5_000,
            "registry_timeout_ms": 15_000,
        }
        self.topology = topology
        self.slots = 4
        self.now_ms = 0
        self.machine = FailoverProtocol(topology, self.slots, FailoverConfig(**{**defaults, **options}))  # type: ignore[arg-type]
        self._used: list[int] = []

    def at(self, now_ms: int, *events: FailoverEvent) -> list[FailoverEffect]:
        self.now_ms = now_ms
        effects = [effect for event in events for effect in self.machine.step(now_ms, event)]
        deadline = self.machine.next_deadline_ms()
        assert deadline is None or deadline > now_ms, "a driver would spin"
        for effect in effects:
            if isinstance(effect, WriteRecords) and effect.attempt is not None:
                (generation,) = {record.generation for record in effect.records}
                self._used.append(generation)
        assert self._used == sorted(set(self._used)), "a generation was used twice"
        for members in self.machine.chains.values():
            assert members and len(set(members)) == len(members)
        return effects

    def active(self) -> bool:
        return self.machine.active

    def time(self, now_ms: int) -> list[FailoverEffect]:
        return self.at(now_ms, TimeAdvanced())

    def started(self, version: int = 0, generation: int = 1) -> History:
        cursors = tuple((subtask, cursors_of(subtask, version, self.topology)) for subtask in self.topology.subtasks)
        hosts = tuple((slot, f"host{slot}") for slot in range(self.slots))
        self.at(self.now_ms, JobStarted(Generation(generation), version, cursors, hosts))
        return self

    def persisted(self, version: int, *subtasks: SubtaskId) -> list[FailoverEvent]:
        return [
            HeadPersisted(
                subtask, self.machine.generations[subtask], version, cursors_of(subtask, version, self.topology)
            )
            for subtask in subtasks or self.topology.subtasks
        ]

    def staged(self, version: int, *subtasks: SubtaskId) -> list[FailoverEvent]:
        return [
            VersionStaged(subtask, slot, self.machine.generations[subtask], version)
            for subtask in subtasks or self.topology.subtasks
            for slot in self.machine.chains[subtask][1:]
        ]

    def checkpoint(self, version: int) -> list[FailoverEffect]:
        """The whole of it, in the usual order: persisted, complete, staged. Stops when a handover begins."""
        effects = self.at(self.now_ms, *self.persisted(version), completed(version))
        for event in self.staged(version):
            effects += self.at(self.now_ms, event)
        return effects

    def fenced(
        self, effects: Sequence[FailoverEffect], received: Sequence[tuple[ChannelId, int]] | int = 1_000
    ) -> list[FailoverEvent]:
        """The answers to the newest ``FenceSlots`` among ``effects``. A number: all have received so far."""
        fence = only(FenceSlots, effects)
        failed = [subtask for subtask, _ in fence.failed]
        answers: list[FailoverEvent] = []
        for slot in fence.slots:
            mine = []
            for subtask in failed:
                for channel in self.topology.outputs(subtask):
                    consumer = self.topology.consumer(channel)
                    if self.machine.heads[consumer] == slot and consumer not in failed:
                        known = received if isinstance(received, int) else dict(received).get(channel, 0)
                        mine.append((channel, known))
            answers.append(SlotFenced(fence.attempt, slot, tuple(mine)))
        return answers

    def write(self, effects: Sequence[FailoverEffect]) -> list[FailoverEffect]:
        """Have the newest records among ``effects`` written: ``effects`` and what follows."""
        return [*effects, *self.at(self.now_ms + 1, RecordsWritten(attempt_of(effects)))]

    def fence(
        self, effects: Sequence[FailoverEffect], received: Sequence[tuple[ChannelId, int]] | int = 1_000
    ) -> list[FailoverEffect]:
        """From a failure's effects (``WriteRecords``) to what follows the last fenced slot."""
        written = self.write(effects)
        return self.at(self.now_ms + 1, *self.fenced(written, received))

    def promote(self, effects: Sequence[FailoverEffect]) -> list[FailoverEffect]:
        """Answer all ``PromoteStandbys`` among ``effects``."""
        answers = [StandbysPromoted(e.attempt, e.slot) for e in effects if isinstance(e, PromoteStandbys)]
        return self.at(self.now_ms + 1, *answers)

    def recover(self, effects: Sequence[FailoverEffect]) -> list[FailoverEffect]:
        return self.promote(self.fence(effects))


def of(kind: type[E], effects: Sequence[FailoverEffect]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def only(kind: type[E], effects: Sequence[FailoverEffect]) -> E:
    (found,) = of(kind, effects)
    return found


def attempt_of(effects: Sequence[FailoverEffect]) -> int:
    attempts = [effect.attempt for effect in of(WriteRecords, effects) if effect.attempt is not None]
    return attempts[-1]


def without_phases(effects: Sequence[FailoverEffect]) -> list[FailoverEffect]:
    return [effect for effect in effects if not isinstance(effect, RecordFailoverPhase)]


def phases(effects: Sequence[FailoverEffect]) -> list[tuple[int, Phase]]:
    return [(effect.number, effect.phase) for effect in of(RecordFailoverPhase, effects)]


def record(subtask: SubtaskId, generation: int, *members: int, stable: int = 0) -> ChainEntry:
    return ChainEntry(subtask, Generation(generation), members, stable)


def phase(
    number: int,
    name: Phase,
    kind: FailoverKind,
    subtasks: Sequence[SubtaskId],
    reason: str,
    moved: Sequence[SubtaskId] | None = None,
) -> RecordFailoverPhase:
    return RecordFailoverPhase(number, name, kind, tuple(subtasks), reason, tuple(subtasks if moved is None else moved))
