"""Dispatches the reports of slots to the machines.

Rules: a subtask's report counts only in its current generation. The machines of the job and of checkpoints know only
the generation of the deployment, and get the report with that.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from typing_extensions import assert_never

from chain_backup.failover import events as failover_events
from flinkplus import errors
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import parse_subtask
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.drivers.failover import FailoverDriver
from flinkplus.runtime.coordinator.membership.presence import Presence
from flinkplus.runtime.coordinator.membership.rescales import Rescales
from flinkplus.runtime.coordinator.metrics.metrics import Figures
from flinkplus.runtime.coordinator.record.recovery_times import RecoveryLog

MISMATCHES = {
    error.__name__: error
    for error in (errors.NondeterministicOperator, errors.InputLost, errors.AnswersLost, errors.MessageIdConflict)
}
log = logging.getLogger("flinkplus.coordinator")


@dataclass(eq=False, repr=False)
class Reports:
    """Handles every message that a slot sends."""

    _dispatch: Dispatch
    _machines: JobMachines
    _deployment: Deployment
    _recoveries: RecoveryLog
    _figures: Figures
    _presence: Presence
    _failover: FailoverDriver | None
    _rescales: Rescales | None = None

    def take(self, connection: int, message: control.ControlMessage) -> None:
        """Handle a message on a connection. Raises ``PeerProtocolError`` for an impossible one."""
        if isinstance(message, control.Register):
            self._presence.register(connection, message)
            return
        if isinstance(message, control.StartFailed):
            self._presence.start_failed(connection, message)
            return
        process = self._dispatch.processes.on(connection)
        if process is None:  # the connection was closed
            self._figures.fenced_reports += 1
            return
        process.heard_s = self._dispatch.clock.monotonic()
        match message:
            case control.Heartbeat(generation, subtasks):
                self._figures.update_process((process.slot, process.incarnation), message)
                self._take_counters(process, generation, subtasks)
            case control.Deployed(generation, restore_ms):
                if generation == self._deployment.generation:
                    self._recoveries.restored(restore_ms)
                self._machines.step_job(events.SlotDeployed(Generation(generation), process.slot))
            case control.RestoreFailed(generation, checkpoint, subtask, reason):
                why = f"state of {subtask}: {reason}"
                self._machines.step_job(
                    events.CheckpointRestoreFailed(Generation(generation), CheckpointId(checkpoint), why)
                )
            case control.Prefetched():
                if self._rescales is not None:
                    self._rescales.take_prefetched(process, message)
            case control.PeersUnreached():
                self._presence.peers_unreached(process, message)
            case control.SessionLost(reason):
                self._presence.lose(process, reason)
            case control.Stopped():
                self._machines.step_job(events.SlotStopped(process.slot))
            case _ if isinstance(message, control.SubtaskReport):
                self._take_of_subtask(message)
            case _:
                if self._failover is None or not self._failover.take(process, message):
                    log.warning("dropped %s, which slots do not send to the coordinator", type(message).__name__)

    def _take_of_subtask(self, message: control.SubtaskReport) -> None:
        name, reported = parse_subtask(message.subtask), Generation(message.generation)
        if not self._is_current(name, reported):
            self._figures.fenced_reports += 1
            return
        generation = self._deployment.generation
        match message:
            case control.Failed():
                self._subtask_failed(name, message)
            case control.Acknowledged(_, checkpoint, subtask, handle):
                self._figures.snapshot(checkpoint, subtask, handle)
                number = CheckpointId(checkpoint)
                if self._failover is not None:
                    self._failover.acknowledged(name, reported, number, handle)
                held = handle.operator_state.in_flight_bytes
                self._machines.step_checkpoints(events.CheckpointAcknowledged(number, name, generation, handle, held))
            case control.Declined(_, checkpoint, _, reason):
                cause = message.abort_cause
                self._machines.step_checkpoints(
                    events.CheckpointDeclined(CheckpointId(checkpoint), name, generation, reason, cause)
                )
            case control.Exhausted():
                self._machines.step_checkpoints(events.SourceExhausted(name, generation))
            case control.Progressed(_, subtask, time_s):
                self._recoveries.progressed(subtask, time_s)
            case _:
                assert_never(message)

    def _is_current(self, subtask: SubtaskId, generation: Generation) -> bool:
        if subtask not in self._deployment.assignment:
            return False
        failover = self._machines.local_failover
        if failover is not None:
            return failover.is_current(subtask, generation)
        return generation == self._deployment.generation

    def _take_counters(self, process: SlotProcess, generation: int, subtasks: dict[str, dict[str, Any]]) -> None:
        if generation != self._deployment.generation:
            return
        hosted = {str(subtask) for subtask in self._deployment.on(process.slot)}
        reported = {name: counters for name, counters in subtasks.items() if name in hosted}
        self._figures.update(reported)
        rows_out = {name: counters["rows_out"] for name, counters in reported.items()}
        self._recoveries.reported(rows_out, self._dispatch.event_s)

    def _subtask_failed(self, subtask: SubtaskId, failure: control.Failed) -> None:
        error: errors.FlinkPlusError
        mismatch = MISMATCHES.get(failure.kind)
        if failure.operator and mismatch is None:
            name, row, cause = failure.subtask, failure.row, failure.cause
            error = errors.UserFunctionError(failure.operator, name, row, cause, failure.reason)
        else:
            error = (mismatch or errors.JobFailed)(f"{failure.subtask}: {failure.reason}")
        self._figures.id_conflicts += mismatch is errors.MessageIdConflict
        fields = about(subtask=failure.subtask, generation=failure.generation, phase="detect")
        log.info("subtask %s failed: %s", failure.subtask, failure.reason, extra=fields)
        self._recoveries.subtask_failed(failure.subtask, failure.time_s)
        if self._machines.local_failover is None:
            generation = self._deployment.generation
            self._machines.step_job(events.SubtaskFailed(subtask, generation, failure.reason, error))
        else:
            generation = Generation(failure.generation)
            failed = failover_events.SubtaskFailed(subtask, generation, failure.reason, error, mismatch is None)
            self._machines.step_failover(failed)
