"""The coordinator: runs the protocol core in the driver and carries out its effects.

One thread owns the machines, the table of slots and all metrics (``wiring``). All others put events into its inbox:
control streams, ZooKeeper, the user's calls, and the workers for storage and chain records.

Rules: the core decides, this package carries out. While a job with local failover runs, the machine of local failover
handles failures; otherwise the machine of the job. Every job ends in FINISHED, FAILED or CANCELLED, and releases all.
"""

from __future__ import annotations

import logging
import queue
import threading

from typing_extensions import assert_never

from flinkplus.errors import JobFailed, PeerProtocolError, described
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.config import earliest_ms
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.runtime.base.logs import speak_as
from flinkplus.runtime.base.step_note import LastWords
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.commands.operations import CancelCommand
from flinkplus.runtime.coordinator.dispatch.dispatch import Asked, InboxEvent, RegistryReported
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess
from flinkplus.runtime.coordinator.wiring import Parts
from flinkplus.runtime.host.priority import Preference
from flinkplus.runtime.liveness.lifeline import LifelineCut
from flinkplus.runtime.operations.commands import Body
from flinkplus.runtime.transport.wire.ports import ControlArrived, ControlLost

MAX_IDLE_S = 0.1
STOP_AT_ONCE_S = 3.0
log = logging.getLogger("flinkplus.coordinator")


class Coordinator:
    """The coordinator of one job. ``job_id``: of its log records."""

    def __init__(self, parts: Parts, job_id: str | None = None) -> None:
        self.parts = parts
        self.graph, self.options, self.commits = parts.graph, parts.options, parts.commits
        self.calls, self.result = parts.calls, parts.calls.result
        self.commands, self.moves, self.view = parts.commands, parts.moves, parts.view
        self.figures, self.recoveries, self.savepoints = parts.figures, parts.recoveries, parts.savepoints
        self._dispatch = dispatch = parts.dispatch
        self._inbox, self._processes = dispatch.inbox, dispatch.processes
        self._machines, self._presence = parts.machines, parts.presence
        self.commands.add(CancelCommand, self._cancel)
        self._preference = Preference()
        self._job_id = job_id
        self._thread = threading.Thread(target=self._run, name="flinkplus-coordinator", daemon=True)

    # --- called by other threads

    def start(self) -> None:
        """Start the loop. The ports must be open."""
        self._thread.start()

    def show_finished(self, checkpoint: CheckpointId) -> None:
        """Instead of ``start``: an earlier run has finished the job with ``checkpoint``; show its metrics."""
        self.figures.adopt(checkpoint, self.commits.handles(checkpoint))
        self.moves.requests.close()
        self.savepoints.close()
        self.result.end(JobState.FINISHED, None)

    def slot_failed(self, slot: int, reason: str) -> None:
        """The Spark job of a slot failed; the launcher submits it again."""
        self.calls.ask(lambda: self._presence.slot_failed(slot, f"slot {slot} cannot start: {reason}"))

    def cancel(self) -> None:
        """Request the end of the job; returns at once."""
        self.calls.ask(lambda: self._machines.step_job(events.CancelRequested()))

    def _cancel(self, _request: CancelCommand) -> Body:
        self._machines.step_job(events.CancelRequested())
        return {"state": self.view.state}

    def request_checkpoint(self) -> None:
        """Request a checkpoint; returns at once."""
        self.calls.ask(lambda: self._machines.step_checkpoints(events.CheckpointRequested()))

    def drain(self) -> None:
        """End the input: now, and again after every recovery."""
        self.calls.ask(self._drain)

    def _drain(self) -> None:
        deployment = self.parts.deployment
        deployment.draining = True
        self._dispatch.send_all(control.Drain(deployment.generation))

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @property
    def is_over(self) -> bool:
        """Whether the loop has run and ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    @property
    def storage_ended(self) -> threading.Event:
        """Set when the job is over and all its writes of manifests and commits have ended."""
        return self._dispatch.storage_ended

    # --- the loop

    def _run(self) -> None:
        speak_as(job=self._job_id)
        try:
            while not self.result.done.is_set():
                self._turn()
        except Exception as error:
            log.debug("the coordinator failed", exc_info=True)
            self._stop_slots_at_once()
            failure = JobFailed(f"the coordinator failed: {described(error)}")
            failure.__cause__ = error
            self.result.end(JobState.FAILED, failure)
        finally:
            self._dispatch.end_writes()
            if self.parts.recorder is not None:
                self.parts.recorder.close()
            self.moves.requests.close()
            self.savepoints.close()
            self._dispatch.close()
            self._inbox.close()

    def _stop_slots_at_once(self) -> None:
        """The core has failed: stop the slots without it, and wait up to ``STOP_AT_ONCE_S``."""
        self._dispatch.send_all(control.Stop())
        deadline = self._dispatch.clock.monotonic() + STOP_AT_ONCE_S
        while self._processes.all() and self._dispatch.clock.monotonic() < deadline:
            try:
                event = self._inbox.get(timeout=MAX_IDLE_S)
            except queue.Empty:
                continue
            if isinstance(event, ControlLost):
                process = self._processes.on(event.connection)
                if process is not None:
                    self._processes.remove(process.slot)

    def _turn(self) -> None:
        due_ms = self.next_deadline_ms()
        wait_s = MAX_IDLE_S if due_ms is None else min(MAX_IDLE_S, max(0, due_ms - self._dispatch.now_ms()) / 1000)
        try:
            event: InboxEvent | None = self._inbox.get(timeout=wait_s)
        except queue.Empty:
            event = None
        self.turn(event, due_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next timeout passes (the machines' clock); ``None``: no timeout is set."""
        starting = [part for part in (self.parts.spares, self.parts.rescales) if part is not None]
        return earliest_ms(
            self._machines.next_deadline_ms(),
            self._presence.next_deadline_ms(),
            *(part.next_deadline_ms() for part in starting),
        )

    def turn(self, event: InboxEvent | None, due_ms: int | None) -> None:
        """Handle ``event``, and the timeouts if ``due_ms`` has passed."""
        self._dispatch.event_s = self._dispatch.clock.time()
        if event is not None:
            self._handle(event)
        if due_ms is not None and due_ms <= self._dispatch.now_ms():
            self._machines.advance_time()
        self._presence.look_for_silent_slots()
        for part in (self.parts.spares, self.parts.rescales):
            if part is not None:
                part.look()
        self._preference.end(self._dispatch.clock.monotonic())

    def _handle(self, event: InboxEvent) -> None:
        if _is_failure(event):
            self._preference.begin(self._dispatch.clock.monotonic())
        match event:
            case ControlArrived(connection, message, time_s):
                self._dispatch.event_s = time_s
                try:
                    self.parts.reports.take(connection, message)
                except PeerProtocolError as error:
                    self.figures.malformed_reports += 1
                    log.warning("dropped a malformed message on connection %d: %s", connection, error)
            case ControlLost(connection, reason, time_s):
                self._lose(self._processes.on(connection), reason, time_s)
            case LifelineCut(name, time_s):
                self._lose(self._processes.with_lifeline(name), "its process ended", time_s)
            case RegistryReported(reported):
                self._presence.registry_reported(reported)
            case LastWords():
                self.parts.crashes.take(event)
            case Asked(action):
                action()
            case _:
                assert_never(event)

    def _lose(self, process: SlotProcess | None, reason: str, time_s: float) -> None:
        self._dispatch.event_s = time_s
        if process is not None:
            self._presence.lose(process, reason)


def _is_failure(event: InboxEvent) -> bool:
    """Whether ``event`` may lead to a failover."""
    if isinstance(event, ControlArrived):
        return isinstance(event.message, control.Failed)
    return isinstance(event, (ControlLost, LifelineCut))
