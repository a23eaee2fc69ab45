"""Faults on order, in a slot's process: what ``flinkplus inject`` does to a running job, the slot's part of it.

- ``exception``: the subtask fails with ``InjectedFailure`` between two events of the loop, which may be in mid-step,
  where a step rests.
- ``pause``: the process is stopped (SIGSTOP), and continued by another one. That is a hang: threads, sockets and
  session stay as they are.
- ``cut``: for a time the process neither reads nor writes its connections to its peers, nor takes new ones; with the
  driver's, its pulse rests too. Connections stay, and what the kernel holds comes through afterwards, as with a network
  that loses everything for a while. It is not a cut network: the kernel goes on acknowledging, lifeline and ZooKeeper
  session stay, and the process can be killed by a driver on its own host.
- ``slow``: before each step of a subtask the loop waits, as a slow function of the user's would make it. All subtasks
  of a slot share its loop.
- ``kill``: SIGKILL when a subtask next reaches a point (``points``); one at once is the driver's.

Rules: called in the slot's loop only. What is done to a subtask is done to it in this process: its successor elsewhere
is well. What is ordered again begins anew.
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
"""The driver, among the peers that a slot is cut off from."""
STAND_STILL = '(sleep "$1"; kill -CONT "$0") & kill -STOP "$0"'


@runtime_checkable
class Holds(Protocol):
    """A plane whose connections can be made to rest."""

    def hold(self, peers: frozenset[int] | None) -> None:
        """Neither read nor write connections to ``peers`` (``None``: to all, and take no new ones)."""

    def go_on(self) -> None:
        """The end of it."""


class PulsePort(Protocol):
    """What sends the slot's signs of life: the process of that number."""

    @property
    def pid(self) -> int | None: ...


class Injections:
    """Of one slot. ``planes``: its connections, those of them that can be held. ``arm``: see ``Faults``."""

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
        """Do it; ``guard`` runs something that fails as a part of a subtask."""
        if order.fault == EXCEPTION:
            for subtask in [one for one in active if str(one.id) in order.subtasks]:
                guard(subtask, _raise, f"an exception on order, in {subtask.id}")
        elif order.fault == PAUSE:
            stand_still(os.getpid(), order.for_s)
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
            stand_still(self._pulse.pid, for_s)
        self._cuts += 1
        number = self._cuts
        self._inbox.call_later(for_s, lambda: self._heal(number))

    def _heal(self, number: int) -> None:
        if number == self._cuts:  # or there was another one since, whose end counts
            for plane in self._planes:
                plane.go_on()

    def before_step(self, subtask: Any) -> None:
        """A subtask is about to do a step."""
        if not self._slowed:
            return
        name = str(subtask.id)
        delay_s, until_s = self._slowed.get(name, (0.0, 0.0))
        if time.monotonic() < until_s:
            time.sleep(delay_s)
        else:
            self._slowed.pop(name, None)


def stand_still(pid: int, for_s: float) -> None:
    """SIGSTOP to a process, and SIGCONT after ``for_s``, by one that is not stopped; for any process of this user."""
    subprocess.run(
        ["/bin/sh", "-c", STAND_STILL, str(pid), f"{for_s:.3f}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def _raise(reason: str) -> None:
    raise InjectedFailure(reason)
