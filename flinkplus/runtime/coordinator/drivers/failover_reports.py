"""What slots report to the machine of local failover: versions, fence answers, promotions, connections."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from chain_backup.failover import events
from chain_backup.failover.machine import FailoverProtocol
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_channel, parse_subtask
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.rejoin import Joining
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.drivers.failover import cursors_of
from flinkplus.runtime.coordinator.drivers.failover_phases import FailoverPhases
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.promotion.promotions import Promotions

log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class FailoverReports:
    """Takes the reports of slots. ``figures``: of a job with standbys; ``None`` when it recovers partially."""

    _dispatch: Dispatch
    _machines: JobMachines
    _failover: FailoverProtocol
    _promotions: Promotions
    _phases: FailoverPhases
    _joining: Joining
    _figures: Figures | None

    def take(self, process: SlotProcess, message: control.ControlMessage) -> bool:
        """A message of a slot; ``False`` when it is not for this machine."""
        step = self._machines.step_failover
        match message:
            case control.Staged(generation, subtask, version):
                number = CheckpointId(version)
                step(events.VersionStaged(parse_subtask(subtask), process.slot, Generation(generation), number))
                self._note_replicated(number)
            case control.Fenced(attempt, received):
                self._promotions.answers.add(message)
                cursors = tuple(sorted((parse_channel(name), seq) for name, seq in received.items()))
                step(events.SlotFenced(attempt, process.slot, cursors))
            case control.FencedPart(attempt):
                self._promotions.answers.add_part(message)
                step(events.SlotFencedPart(attempt, process.slot))
            case control.Promoted(attempt, restore_ms, time_s):
                self._phases.promoted(restore_ms, time_s)
                step(events.StandbysPromoted(attempt, process.slot))
            case control.PromotionFailed(attempt, subtask, reason):
                log.warning("slot %d cannot promote its standby of %s: %s", process.slot, subtask, reason)
                step(events.StandbyPromotionFailed(attempt, process.slot, parse_subtask(subtask), reason))
            case control.Connected(serial):
                self._joined(self._joining.ready(process, serial))
            case _:
                return False
        return True

    def acknowledged(
        self, subtask: SubtaskId, generation: Generation, checkpoint: CheckpointId, handle: SnapshotHandle
    ) -> None:
        """The head has a new version, and so has the durable store."""
        self._promotions.acknowledged(subtask, checkpoint, handle)
        self._machines.step_failover(events.HeadPersisted(subtask, generation, checkpoint, cursors_of(handle)))
        self._dispatch.soon(lambda: self._promotions.forget_versions(subtask))
        self._note_replicated(checkpoint)

    def _note_replicated(self, version: CheckpointId) -> None:
        if self._figures is not None and self._failover.all_have(version):
            self._figures.replicated(version)

    def _joined(self, processes: list[SlotProcess]) -> None:
        for process in [process for process in processes if not self._dispatch.processes.is_over(process.slot)]:
            self._joining.tell(process)  # what it was sent when it registered may be outdated by now
            self._machines.step_failover(events.SlotJoined(process.slot, process.host))
