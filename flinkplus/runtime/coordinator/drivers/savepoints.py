"""Savepoints of a running job: a user requests them in any thread; their files are copied in a thread of their own.

Rules:
- the target is taken before the request counts, so that a wrong one is refused at once and costs the job nothing;
- the core (``protocol.checkpoints.savepoints``) decides when the checkpoint is taken, copied, published, or given up;
- neither the coordinator's thread nor the storage worker waits for a copy, so that checkpoints go on beside it;
- every request ends, at the latest with the job. One that failed removes what it has written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from flinkplus.errors import FlinkPlusError, SavepointError, SavepointRefused, described, without_secrets
from flinkplus.protocol.checkpoints.savepoints import SavepointPhase
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Dispatch
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
from flinkplus.state.durable.savepoint import Copied, SavepointWriter

ANSWER_TIMEOUT_S = 60.0
END_PATIENCE_S = 5.0  # for a copy, at the end of the job
REPORT_S = 0.2
KEPT = 100  # remembered requests
SavepointStatus: TypeAlias = SavepointPhase | Literal["begun", "done", "failed"]

log = logging.getLogger("flinkplus.coordinator")


class Savepoint:
    """A savepoint that was requested, and its progress. Any thread may read it.

    ``target``: where it is. ``number``: of the request.
    ``status``: ``begun``: the target is being taken; ``waiting``: for its checkpoint to begin; ``taking``: its
    checkpoint is under way; ``complete``: its output is being committed; ``copying``; ``publishing``: its last file is
    being written; ``done``; ``failed``.
    ``checkpoint``: the number of the checkpoint, once it is copied.
    """

    def __init__(self, target: str, number: int, stop: bool, phase: Callable[[], SavepointPhase | None]) -> None:
        self.target, self.number, self.stop = target, number, stop
        self._phase = phase  # of the request that the core carries out
        self.checkpoint: int | None = None
        self.copied = Copied()
        self.began_s = time.time()
        self.ended_s: float | None = None
        self.error: FlinkPlusError | None = None
        self._answered = threading.Event()
        self._ended = threading.Event()

    def __repr__(self) -> str:
        return f"<Savepoint {without_secrets(self.target)!r}: {self.status}>"

    def await_done(self, timeout: float | None = None) -> str:
        """Wait until the savepoint is there; returns ``target``.

        Raises ``SavepointRefused`` or ``SavepointError`` when it will not be; ``TimeoutError`` after ``timeout``
        seconds, and the savepoint continues.
        """
        return self._await(self._ended, timeout)

    def await_answer(self, timeout_s: float = ANSWER_TIMEOUT_S) -> str:
        """Wait until its target is taken. Raises as ``await_done``."""
        return self._await(self._answered, timeout_s)

    def _await(self, event: threading.Event, timeout_s: float | None) -> str:
        if not event.wait(timeout_s):
            raise TimeoutError(f"savepoint {without_secrets(self.target)!r}: {self.status} after {timeout_s} s")
        if self.error is not None:
            raise self.error
        return self.target

    @property
    def status(self) -> SavepointStatus:
        if self.ended:
            return "done" if self.error is None else "failed"
        return (self._phase() or "waiting") if self._answered.is_set() else "begun"

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def began(self) -> None:
        """Its target is taken."""
        self._answered.set()

    def end(self, error: FlinkPlusError | None) -> None:
        """``error``: why it is not there; ``None``: it is."""
        if not self.ended:
            self.error, self.ended_s = error, time.time()
            self._ended.set()
            self._answered.set()

    def as_dict(self) -> dict[str, Any]:
        """For the status; times in seconds since the Unix epoch."""
        return {
            "number": self.number,
            "target": without_secrets(self.target),
            "stop": self.stop,
            "status": self.status,
            "checkpoint": self.checkpoint,
            "files": self.copied.files,
            "files_in_all": self.copied.files_in_all,
            "bytes": self.copied.bytes,
            "bytes_in_all": self.copied.bytes_in_all,
            "began_s": round(self.began_s, 3),
            "ended_s": None if self.ended_s is None else round(self.ended_s, 3),
            "reason": "" if self.error is None else str(self.error),
        }


class SavepointDriver:
    """The savepoints of one job. ``writer_for``: opens a target; raises ``FlinkPlusError``."""

    def __init__(
        self,
        dispatch: Dispatch,
        machines: JobMachines,
        calls: Calls,
        writer_for: Callable[[str], SavepointWriter] | None = None,
    ) -> None:
        self._dispatch, self._machines, self._calls, self._writer_for = dispatch, machines, calls, writer_for
        self._lock = threading.Lock()
        self._requests = 0
        self._known: dict[int, Savepoint] = {}
        self._current: tuple[Savepoint, SavepointWriter] | None = None
        self._threads: list[threading.Thread] = []
        self._closed = False

    # --- any thread

    def request(self, target: str, stop: bool) -> Savepoint:
        """Begin a savepoint; returns at once. ``stop``: the job stops with it."""
        with self._lock:
            self._requests += 1
            savepoint = Savepoint(target, self._requests, stop, lambda: self._machines.checkpoints.savepoint_phase)
            self._known = dict([*self._known.items(), (savepoint.number, savepoint)][-KEPT:])
            under_way = [one for one in self._known.values() if one is not savepoint and not one.ended]
            closed = self._closed or self._writer_for is None
        if closed:
            savepoint.end(SavepointRefused("the job is over"))
        elif under_way:
            other = without_secrets(under_way[0].target)
            savepoint.end(SavepointRefused(f"the savepoint {other!r} is under way; try again when it has ended"))
        else:
            self._in_thread(lambda: self._begin(savepoint))
        return savepoint

    def find(self, number: int) -> Savepoint | None:
        """The request of that number; ``None`` if it is unknown or too old."""
        return self._known.get(number)

    def as_dicts(self) -> list[dict[str, Any]]:
        """The last savepoints, oldest first."""
        return [savepoint.as_dict() for savepoint in list(self._known.values())]

    def metrics(self) -> dict[str, Any]:
        """How many are done, the one under way, the last one that is done."""
        known = list(self._known.values())
        done = [one for one in known if one.status == "done"]
        under_way = next((one for one in known if not one.ended), None)
        return {
            "savepoints_completed": len(done),
            "savepoint_under_way": None if under_way is None else under_way.as_dict(),
            "last_savepoint": without_secrets(done[-1].target) if done else None,
        }

    def _in_thread(self, action: Callable[[], None]) -> None:
        thread = threading.Thread(target=action, name="flinkplus-savepoint", daemon=True)
        with self._lock:
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        thread.start()

    # --- threads of savepoints

    def _begin(self, savepoint: Savepoint) -> None:
        assert self._writer_for is not None
        try:
            writer = self._writer_for(savepoint.target)
            writer.begin()
        except Exception as error:
            refused = error if isinstance(error, FlinkPlusError) else SavepointRefused(described(error))
            savepoint.end(refused)
            return
        with self._lock:
            self._current = None if self._closed else (savepoint, writer)
        if self._current is None:
            self._remove(writer)
            savepoint.end(SavepointRefused("the job is over"))
            return
        savepoint.copied = writer.copied
        self._calls.ask(lambda: self._began(savepoint, writer))

    def _carry_out(
        self, savepoint: Savepoint, writer: SavepointWriter, action: Callable[[], None], done: events.CheckpointingEvent
    ) -> None:
        """In a thread of its own: do it, and report it to the core."""

        def run() -> None:
            event = done
            try:
                action()
            except Exception as error:
                event = events.SavepointFailed(savepoint.number, described(error))
            if savepoint.ended:  # it was given up meanwhile
                self._remove(writer)
            self._calls.ask(lambda: self._machines.step_checkpoints(event))

        self._in_thread(run)

    def _remove(self, writer: SavepointWriter) -> None:
        try:
            writer.remove()
        except Exception as error:
            log.warning("what a failed savepoint has written to %r stays: %s", writer.target.uri, described(error))

    # --- the coordinator's thread

    def _began(self, savepoint: Savepoint, writer: SavepointWriter) -> None:
        reported_s = 0.0

        def progressed() -> None:
            nonlocal reported_s
            if time.monotonic() - reported_s >= REPORT_S:
                reported_s = time.monotonic()
                further = events.SavepointProgressed(savepoint.number)
                self._calls.ask(lambda: self._machines.step_checkpoints(further))

        writer.progressed = progressed
        savepoint.began()
        self._machines.step_checkpoints(events.SavepointRequested(savepoint.number, savepoint.stop))

    def apply(self, effect: effects.CopySavepoint | effects.PublishSavepoint | effects.EndSavepoint) -> None:
        """Carry out an effect of the core."""
        if self._current is None or self._current[0].number != effect.number:
            return
        savepoint, writer = self._current
        match effect:
            case effects.CopySavepoint(number, checkpoint, stop):
                savepoint.checkpoint = checkpoint
                copied = events.SavepointCopied(number)
                self._carry_out(savepoint, writer, lambda: writer.copy(checkpoint, stop), copied)
            case effects.PublishSavepoint(number):
                self._carry_out(savepoint, writer, writer.publish, events.SavepointStored(number))
            case effects.EndSavepoint(_, made_of, reason):
                self._current = None
                self._end(savepoint, writer, None if made_of is not None else SavepointError(reason))

    def _end(self, savepoint: Savepoint, writer: SavepointWriter, error: SavepointError | None) -> None:
        place = without_secrets(savepoint.target)
        if error is None:
            log.info("savepoint %r is complete: checkpoint %s", place, savepoint.checkpoint)
            savepoint.end(None)
            return
        log.warning("savepoint %r failed: %s", place, error)
        writer.cancel()
        savepoint.end(error)
        self._in_thread(lambda: self._remove(writer))

    def close(self) -> None:
        """The job is over: end every request. What is being copied is given up."""
        with self._lock:
            self._closed = True
            threads, known = self._threads, list(self._known.values())
            current, self._current = self._current, None
        if current is not None:
            current[1].cancel()
        until_s = time.monotonic() + END_PATIENCE_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        over = SavepointError("the job has ended before the savepoint was complete")
        for savepoint in known:
            if current is not None and savepoint is current[0]:
                savepoint.end(None if current[1].published else over)
                if savepoint.error is not None:
                    self._remove(current[1])
            else:
                savepoint.end(over)
