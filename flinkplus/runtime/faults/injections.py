"""Fault injection by request: the slot's part of ``flinkplus inject``.

- ``exception``: the subtask fails with ``InjectedFailure`` between two events of the loop, perhaps in a paused step.
- ``pause``: the process is stopped (SIGSTOP), and another process continues it. Sockets and ZooKeeper session remain.
- ``cut``: for a time the process neither reads nor writes its connections to peers, and accepts no new ones; if the
  driver is among the peers, its pulse stops too. Unlike with a cut network, the kernel still acknowledges, lifeline and
  ZooKeeper session remain, buffered data arrives afterwards, and a driver on the same host can kill the process.
- ``slow``: the loop waits before each step of a subtask, like a slow user function. All subtasks of a slot share it.
- ``kill``: SIGKILL when a subtask next reaches a point (``points``); the driver itself carries out immediate kills.

Rules: only the slot's loop calls this. A fault of a subtask applies in this process only, not to its successor. A
repeated request replaces the earlier one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from flinkplus.errors import InjectedFailure
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.control import messages as control

EXCEPTION, KILL, PAUSE, CUT, SLOW = FAULTS = ("exception", "kill", "pause", "cut", "slow")
DRIVER = -1
"""The driver as a peer of ``cut``."""
PAUSE_SCRIPT = '(sleep "$1"; kill -CONT "$0") & kill -STOP "$0"'


@runtime_checkable
class Holds(Protocol):
    """A plane whose connections can be paused."""

    def hold(self, peers: frozenset[int] | None) -> None:
        """Neither read nor write connections to ``peers`` (``None``: to all, and accept no new ones)."""

    def release(self) -> None:
        """Resume all connections."""


class PulsePort(Protocol):
    """The slot's pulse. ``pid``: of the process that sends it."""

    @property
    def pid(self) -> int | None: ...


class Injections:
    """The faults of one slot. ``planes``: its planes, of which ``Holds`` can be cut. ``arm``: see ``Faults``."""

    def __init__(
        self, planes: Sequence[object], pulse: PulsePort, inbox: Inbox[Any], arm: Callable[[str, str], None]
    ) -> None:
        self._planes = [plane for plane in planes if isinstance(plane, Holds)]
        self._pulse = pulse
        self._inbox = inbox
        self._arm = arm
        self._slowed: dict[str, tuple[float, float]] = {}
        self._cuts = 0

    def obey(self, order: control.Inject, active: Iterable[Any], guard: Callable[..., None]) -> None:
        """Inject a fault. ``guard``: calls a function whose error fails the subtask."""
        if order.fault == EXCEPTION:
            for subtask in [one for one in active if str(one.id) in order.subtasks]:
                guard(subtask, _raise, f"an injected exception in {subtask.id}")
        elif order.fault == PAUSE:
            pause_process(os.getpid(), order.for_s)
        elif order.fault == CUT:
            self._cut(None if order.peers is None else frozenset(order.peers), order.for_s)
        elif order.fault == SLOW:
            until_s = time.monotonic() + order.for_s
            self._slowed.update(dict.fromkeys(order.subtasks, (order.delay_s, until_s)))
        elif order.fault == KILL:
            for subtask in order.subtasks:
                self._arm(order.point, subtask)

    def _cut(self, peers: frozenset[int] | None, for_s: float) -> None:
        for plane in self._planes:
            plane.hold(peers)
        if self._pulse.pid is not None and (peers is None or DRIVER in peers):
            pause_process(self._pulse.pid, for_s)
        self._cuts += 1
        number = self._cuts
        self._inbox.call_later(for_s, lambda: self._heal(number))

    def _heal(self, number: int) -> None:
        if number == self._cuts:  # otherwise a later cut has replaced this one
            for plane in self._planes:
                plane.release()

    def before_step(self, subtask: Any) -> None:
        """Wait before a step of ``subtask`` if that is slowed."""
        if not self._slowed:
            return
        name = str(subtask.id)
        delay_s, until_s = self._slowed.get(name, (0.0, 0.0))
        if time.monotonic() < until_s:
            time.sleep(delay_s)
        else:
            self._slowed.pop(name, None)


def pause_process(pid: int, for_s: float) -> None:
    """Send SIGSTOP to a process of this user, and SIGCONT after ``for_s``, from another process."""
    subprocess.run(
        ["/bin/sh", "-c", PAUSE_SCRIPT, str(pid), f"{for_s:.3f}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def _raise(reason: str) -> None:
    raise InjectedFailure(reason)
