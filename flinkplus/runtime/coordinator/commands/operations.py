"""Fault injection in a running job: by a shell (``InjectCommand``), by the program that started it, by its options.

Rules: only the coordinator's thread calls this, except for ``kill``, which waits in another. Unless all of the target
is registered, an injection is refused. Injections of shells need the key for commands, and ``allow_inject``.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from flinkplus.errors import CommandRefused, ConfigurationError, SubtaskNotRunning
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.faults.injections import CUT, DRIVER, EXCEPTION, FAULTS, KILL, PAUSE, SLOW
from flinkplus.runtime.faults.points import COORDINATOR_POINTS, STANDBY_POINTS, Faults
from flinkplus.runtime.operations.commands import Body, Later

if TYPE_CHECKING:
    from flinkplus.config import Options
    from flinkplus.graph import JobGraph
    from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Deployment, Dispatch
    from flinkplus.runtime.coordinator.dispatch.machines import JobMachines
    from flinkplus.runtime.coordinator.membership.presence import Presence

LOOK_AGAIN_S = 0.01
MAX_FOR_S = 3600.0
MAX_DELAY_S = 60.0
SLOT = re.compile(r"slot-(\d{1,9})\Z")
TO_DRIVER = "driver"
log = logging.getLogger("flinkplus.coordinator")


@dataclass(frozen=True)
class StatusCommand:
    """Report the status; the reply is a ``record.status.Status``."""


@dataclass(frozen=True)
class CancelCommand:
    """End the job now; committed output and checkpoints stay."""


@dataclass(frozen=True)
class InjectCommand:
    """Inject ``fault`` into ``target``: a subtask (``count:1``), a slot (``slot-2``) or a host.

    ``at_s``: seconds since the job started running; ``None``: now.
    ``for_s``: duration of ``pause``, ``cut`` and ``slow``.
    ``delay_s``: delay of each step, for ``slow``.
    ``peers``: for ``cut``: slots and ``driver``; ``None``: all.
    """

    fault: str
    target: str
    at_s: float | None = None
    for_s: float = 1.0
    delay_s: float = 0.01
    peers: list[str] | None = None


Hit: TypeAlias = dict[int, list[SubtaskId]]
"""The targets of an injection: slot -> subtasks on it."""


def _named(slots: Sequence[int]) -> str:
    if list(slots) == list(range(len(slots))):
        return f"slot-0 to slot-{len(slots) - 1}"
    return ", ".join(f"slot-{slot}" for slot in slots)


@dataclass(eq=False, repr=False)
class Operations:
    """The driver's part of fault injection. ``faults``: armed by the options of the job."""

    _dispatch: Dispatch
    _deployment: Deployment
    _presence: Presence
    _graph: JobGraph
    _options: Options
    _calls: Calls
    _machines: JobMachines
    _faults: Faults

    def inject(self, request: InjectCommand) -> Later:
        """Inject the fault, now or at its time. Raises ``CommandRefused``."""
        peers = self._check(request)
        find = partial(self._find, request.target, peers)
        find()  # refuses an unknown target now, not at the time of the injection
        answer = Later()
        wait_s = 0.0 if request.at_s is None else self._wait_s(request.at_s)

        def strike() -> None:
            if not answer.wanted:
                return  # the shell has disconnected
            try:
                answer.give(self._strike(request, find(), peers))
            except CommandRefused as error:
                answer.give(error)

        if wait_s > 0:
            self._calls.later(wait_s, strike)
        else:
            strike()
        return answer

    def _check(self, request: InjectCommand) -> list[int] | None:
        if not self._options.allow_inject:
            raise CommandRefused("this job accepts no injections: it was started with allow_inject=False")
        if request.fault not in FAULTS:
            raise CommandRefused(f"{request.fault!r:.200} is not a fault; the faults are {', '.join(FAULTS)}")
        if not 0 < request.for_s <= MAX_FOR_S:
            raise CommandRefused(f"the duration must be above 0 and at most {MAX_FOR_S:g} s, not {request.for_s}")
        if not 0 < request.delay_s <= MAX_DELAY_S:
            raise CommandRefused(f"the delay must be above 0 and at most {MAX_DELAY_S:g} s, not {request.delay_s}")
        if request.fault != CUT:
            return None
        if self._options.transport != "tcp":
            raise CommandRefused(f"cut needs transport 'tcp'; this job uses {self._options.transport!r}")
        return None if request.peers is None else [self._peer(name) for name in request.peers]

    def _peer(self, name: str) -> int:
        if name == TO_DRIVER:
            return DRIVER
        slot, slots = SLOT.match(name), self._dispatch.processes.numbers
        if slot is None or int(slot[1]) not in slots:
            raise CommandRefused(f"{name!r:.200} is not a peer; the peers are {TO_DRIVER} and {_named(slots)}")
        return int(slot[1])

    def _wait_s(self, at_s: float) -> float:
        started_s = self._deployment.first_started_s
        if not 0 <= at_s < 1e9:
            raise CommandRefused(f"the time must be a number of seconds since the job started, not {at_s}")
        if started_s is None:
            raise CommandRefused("the job is not running yet; try again in a moment")
        age_s = self._dispatch.clock.monotonic() - started_s
        if at_s < age_s:
            raise CommandRefused(f"the job has been running for {age_s:.1f} s already, which is more than {at_s:g} s")
        return at_s - age_s

    def _find(self, target: str, peers: list[int] | None) -> Hit:
        """The current targets that ``target`` names. Raises ``CommandRefused``, which names the slots and hosts."""
        hit = self._find_subtasks(target)
        alone = [slot for slot in hit if peers is not None and set(peers) <= {slot}]
        if alone:
            raise CommandRefused(
                f"slot-{alone[0]} would be cut off only from itself: give {TO_DRIVER} or another slot, or omit "
                "the peers to cut it off from all"
            )
        return hit

    def _find_subtasks(self, target: str) -> Hit:
        table, deployment = self._dispatch.processes, self._deployment
        slot = SLOT.match(target)
        if slot is not None:
            number = int(slot[1])
            if number not in table.numbers:
                raise CommandRefused(f"{target} does not exist; the slots are {_named(table.numbers)}")
            if table.get(number) is None:
                raise CommandRefused(
                    f"{target} is not registered: its process has ended and is restarting; try again in a moment"
                )
            return {number: sorted(deployment.on(number))}
        hosts = sorted({process.host for process in table.all()})
        if target in hosts:
            return {one.slot: sorted(deployment.on(one.slot)) for one in table.all() if one.host == target}
        try:
            subtask = find_subtask(target, self._graph, self._deployment.parallelism)
        except ConfigurationError as error:
            known = f"the hosts with slots are {', '.join(hosts)}" if hosts else "no slot is registered"
            raise CommandRefused(
                f"{target!r:.200} is not a subtask, slot or host of this job: {error}; {known}"
            ) from error
        at = deployment.assignment.get(subtask)
        if at is None or table.get(at) is None:
            raise CommandRefused(f"{subtask} is not assigned to a registered slot; try again when the job is running")
        return {at: [subtask]}

    def _strike(self, request: InjectCommand, hit: Hit, peers: list[int] | None) -> Body:
        if request.fault in (EXCEPTION, SLOW) and not any(hit.values()):
            raise CommandRefused(f"no subtask is running on {request.target}")
        struck_s = self._dispatch.clock.time()
        for slot, subtasks in hit.items():
            names = [str(subtask) for subtask in subtasks]
            if request.fault == KILL:
                self._presence.kill_slot(slot)
            else:
                order = control.Inject(request.fault, names, float(request.for_s), float(request.delay_s), peers)
                self._dispatch.send(slot, order)
        return {
            "fault": request.fault,
            "target": request.target,
            "time_s": round(struck_s, 6),
            "slots": sorted(hit),
            "subtasks": [str(subtask) for subtasks in hit.values() for subtask in subtasks],
            "for_s": request.for_s if request.fault in (PAUSE, CUT, SLOW) else None,
        }

    # --- kills by the program that started the job

    def kill(self, subtask: SubtaskId, point: str | None, timeout_s: float) -> bool:
        """Kill the process that hosts a subtask; ``False`` when the job is over.

        ``point``: kill it when the subtask, its first standby or the coordinator next reaches this point.
        Raises ``SubtaskNotRunning`` if the subtask has no process within ``timeout_s``.
        """

        def strike() -> bool:
            if self._deployment.first_started_s is None:
                return False
            return self._presence.kill(subtask) if point is None else self._arm(point, subtask)

        until_s = time.monotonic() + timeout_s
        while not self._calls.answer(strike, False):
            if self._calls.result.done.is_set():
                return False
            if time.monotonic() >= until_s:
                raise SubtaskNotRunning(
                    f"{subtask} cannot be killed: it has not run within {timeout_s:g} s, the job is "
                    f"{self._machines.job.state.value}"
                )
            time.sleep(LOOK_AGAIN_S)
        return True

    def _arm(self, point: str, subtask: SubtaskId) -> bool:
        if point in COORDINATOR_POINTS:
            self._faults.arm(point, str(subtask))
            return True
        slot = self._deployment.assignment.get(subtask)
        if point in STANDBY_POINTS:
            chains = {} if self._machines.failover is None else self._machines.failover.chains
            slot = next(iter(chains.get(subtask, ())[1:]), None)
        if slot is None or self._dispatch.processes.get(slot) is None:
            return False
        self._dispatch.send(slot, control.Inject(KILL, [str(subtask)], point=point))
        return True

    def reach(self, point: str) -> None:
        """The coordinator reaches a fault point."""
        self._faults.reach(point, self._deployment.generation, strike=self._kill_named)

    def _kill_named(self, name: str) -> None:
        if not self._presence.kill(find_subtask(name, self._graph, self._deployment.parallelism)):
            log.warning("cannot kill %s: its slot is not registered", name)
