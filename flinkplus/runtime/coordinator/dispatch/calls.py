"""Calls of other threads to the coordinator: each call is an event in its inbox.

Rules: any thread may call, except for ``later``. A call that arrives after the end of the job has no effect.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from flinkplus.errors import FlinkPlusError, JobFailed, JobRunsElsewhere
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.runtime.coordinator.dispatch.dispatch import Asked, InboxEvent, RegistryReported
from flinkplus.runtime.coordinator.setup.outcome import JobResult

if TYPE_CHECKING:
    from chain_backup.zookeeper.records import RegistryEvent
    from flinkplus.runtime.base.inbox import Inbox

LOOK_AGAIN_S = 0.1
T = TypeVar("T")


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

    def give_up(self, reason: str) -> None:
        """End the job as failed."""
        self._fail(JobFailed(reason))

    def taken_over(self, reason: str) -> None:
        """End the job in this driver: another driver runs it."""
        error = JobFailed(reason)
        error.__cause__ = JobRunsElsewhere(reason)
        self._fail(error)

    def _fail(self, error: FlinkPlusError) -> None:
        self.ask(lambda: self.result.end(JobState.FAILED, error))
