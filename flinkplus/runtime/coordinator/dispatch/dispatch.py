"""Shared by the drivers of the three machines (job, checkpoints, failover), and calls of other threads.

``Dispatch`` keeps the order: the effects of one step are all carried out before the next step. Workers do slow work,
one for storage and one for ZooKeeper, so that a failover never waits for an upload; results come through the inbox.

Rules: only the coordinator's thread calls this, with two exceptions. Any thread may use ``Calls``, except for
``later``; after the end of the job a call has no effect. Any thread may read ``Deployment``, whose values are replaced
and never changed in place.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from flinkplus.errors import FlinkPlusError, JobFailed, JobRunsElsewhere, described
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.base.clock import Clock
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcess, SlotProcesses
from flinkplus.runtime.coordinator.setup.outcome import JobResult

if TYPE_CHECKING:
    from chain_backup.zookeeper.records import RegistryEvent
    from flinkplus.runtime.base.inbox import Inbox
    from flinkplus.runtime.base.step_note import LastWords
    from flinkplus.runtime.liveness.lifeline import LifelineCut, Lifelines
    from flinkplus.runtime.liveness.pulse import Pulses
    from flinkplus.runtime.operations.command_server import CommandServer
    from flinkplus.runtime.transport.wire.ports import LinkEvent, Rendezvous

NO_CHECKPOINT = CheckpointId(0)
LOOK_AGAIN_S = 0.1
T = TypeVar("T")
log = logging.getLogger("flinkplus.coordinator")


@dataclass(frozen=True, slots=True)
class Asked:
    """An action for the coordinator's thread: a call of the user, or what follows from finished work."""

    action: Callable[[], None]


@dataclass(frozen=True, slots=True)
class RegistryReported:
    """An event of ZooKeeper."""

    event: RegistryEvent


InboxEvent: TypeAlias = "LinkEvent | LifelineCut | LastWords | RegistryReported | Asked"


@dataclass(eq=False, repr=False)
class Calls:
    """The calls to the coordinator of one job; ``result`` is set when the job ends."""

    inbox: Inbox[InboxEvent]
    result: JobResult

    def ask(self, action: Callable[[], None]) -> None:
        """Run ``action`` in the coordinator's thread; returns at once."""
        self.inbox.put(Asked(action))

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay_s`` seconds; only in the coordinator's thread."""
        self.inbox.call_later(delay_s, lambda: self.ask(action))

    def answer(self, question: Callable[[], T], otherwise: T) -> T:
        """The result of ``question`` in the coordinator's thread; ``otherwise`` when the job is over."""
        answer: Future[T] = Future()
        self.ask(lambda: answer.set_result(question()))
        while not self.result.done.is_set():
            with contextlib.suppress(FutureTimeout):
                return answer.result(LOOK_AGAIN_S)
        return otherwise

    def registry_reported(self, event: RegistryEvent) -> None:
        self.inbox.put(RegistryReported(event))

    def give_up(self, reason: str, cause: Exception | None = None) -> None:
        """End the job as failed."""
        error = JobFailed(reason)
        error.__cause__ = cause
        self.ask(lambda: self.result.end(JobState.FAILED, error))

    def taken_over(self, reason: str) -> None:
        """End the job in this driver: another driver runs it."""
        self.give_up(reason, JobRunsElsewhere(reason))


@dataclass
class Deployment:
    """The last deployment: its ``generation``, and the slot and generation of each subtask.

    ``run``: the number of this run of the job; another parallelism begins a new one.
    ``first_started_s``, ``began_s``: when the first run of this driver, and the present run, began (monotonic clock).
    ``parallelism``: the number of subtasks of each vertex.
    ``draining``: the input is being ended.
    ``assignment``: subtask -> the slot that runs it, or that it moves to.
    ``triggered``: the newest checkpoint.
    ``alone``: it has one slot, and no spare one: subtasks log nothing for others.
    ``lost_at``: the newest checkpoint when a slot's process was last lost; reset when some later ones are complete.
    """

    generation: Generation
    run: int
    draining: bool
    assignment: Mapping[SubtaskId, int] = field(default_factory=dict)
    generations: Mapping[SubtaskId, Generation] = field(default_factory=dict)
    parallelism: int = 1
    first_started_s: float | None = None
    began_s: float | None = None
    clock: Clock = time
    triggered: CheckpointId = NO_CHECKPOINT
    lost_at: CheckpointId | None = None
    alone: bool = False

    def on(self, slot: int) -> list[SubtaskId]:
        """The subtasks that are assigned to ``slot``."""
        return [subtask for subtask, at in self.assignment.items() if at == slot]

    def started(self) -> None:
        """The subtasks are started."""
        if self.first_started_s is None:
            self.first_started_s = self.began_s = self.clock.monotonic()

    def rescaled(self, parallelism: int, age_s: float) -> None:
        """Continue with other subtasks, as a new run that began ``age_s`` ago: it divides steady rates among them."""
        self.parallelism = parallelism
        self.run, self.began_s = self.run + 1, self.clock.monotonic() - age_s

    @property
    def age_s(self) -> float:
        """Seconds since the present run began."""
        return 0.0 if self.began_s is None else self.clock.monotonic() - self.began_s


class Worker(Protocol):
    """Runs submitted actions one by one, outside the coordinator's thread."""

    def submit(self, action: Callable[..., Any], /, *arguments: Any) -> Any: ...

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class Dispatch:
    """Connections to the slots, the workers, and the order in which effects are carried out. ``storage``, ``registry``,
    ``output``: workers for storage, for ZooKeeper, and for databases in a failover; ``None``: a new thread each."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        processes: SlotProcesses,
        inbox: Inbox[InboxEvent],
        clock: Clock = time,
        storage: Worker | None = None,
        registry: Worker | None = None,
        output: Worker | None = None,
    ) -> None:
        self.rendezvous = rendezvous
        self.lifelines: Lifelines | None = None
        self.pulses: Pulses | None = None
        self.commands: CommandServer | None = None
        self.processes = processes
        self.inbox = inbox
        self.clock = clock
        self.storage = storage or ThreadPoolExecutor(1, thread_name_prefix="flinkplus-storage")
        self.storage_ended = threading.Event()
        """Set when the storage worker has done everything that was submitted."""
        self.registry = registry or ThreadPoolExecutor(1, thread_name_prefix="flinkplus-registry")
        self.output = output or ThreadPoolExecutor(1, thread_name_prefix="flinkplus-output")
        self.event_s = 0.0  # when the current event happened, in seconds since the Unix epoch
        self._due: deque[Callable[[], None]] = deque()

    def now_ms(self) -> int:
        """The machines' clock: monotonic milliseconds."""
        return int(self.clock.monotonic() * 1000)

    def soon(self, action: Callable[[], None]) -> None:
        """Run ``action`` after all actions that were queued before it."""
        self._due.append(action)
        if len(self._due) > 1:
            return
        while self._due:
            try:
                self._due[0]()
            except BaseException:
                self._due.clear()
                raise
            self._due.popleft()

    def drop(self, process: SlotProcess) -> None:
        """Close the connections of a slot's process that was lost."""
        self.rendezvous.drop(process.connection)
        if self.lifelines is not None:
            self.lifelines.drop(process.lifeline)
        if self.pulses is not None:
            self.pulses.forget(process.pulse)

    def send(self, slot: int, message: control.ControlMessage) -> None:
        """Send to the current process of a slot, if one is registered."""
        process = self.processes.get(slot)
        if process is not None:
            self.rendezvous.send(process.connection, message)

    def send_all(self, message: control.ControlMessage) -> None:
        for process in self.processes.all():
            self.rendezvous.send(process.connection, message)

    def work(
        self, pool: Worker, action: Callable[[], None], done: Callable[[], None], failed: Callable[[str], None]
    ) -> None:
        """Run ``action`` in a worker; then, in the coordinator's thread, ``done``, or ``failed`` with a reason."""

        def run() -> None:
            follow = done
            try:
                action()
            except Exception as error:
                reason = described(error)
                log.warning("%s", reason)
                follow = partial(failed, reason)
            self.inbox.put(Asked(follow))

        pool.submit(run)

    def remove(self, what: str, remove: Callable[..., None], *arguments: Any) -> None:
        """Run ``remove`` in the storage worker; a failure is only logged."""

        def run() -> None:
            try:
                remove(*arguments)
            except (OSError, FlinkPlusError) as error:
                log.warning("could not remove %s: %s", what, error)

        self.storage.submit(run)

    def end_writes(self) -> None:
        """The job is over: wait until everything is written that was submitted."""
        for worker in (self.registry, self.output):
            worker.shutdown(wait=False, cancel_futures=True)
        self.storage.shutdown(wait=True)
        self.storage_ended.set()

    def close(self) -> None:
        """Close the connections, that of a shell once it knows how its requests ended. After ``end_writes``."""
        for server in (self.rendezvous, self.lifelines, self.pulses, self.commands):
            if server is not None:
                server.close()
        for worker in (self.registry, self.output):
            worker.shutdown(wait=True)  # until ZooKeeper or the database has answered, or patience is over
