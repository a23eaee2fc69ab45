"""Faults of a running job, carried out: each begins, holds for a while, and is taken back, so that redundancy can come
back by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.cluster.control import Control
from experiments.harness.running import RunError, parallelism_of
from experiments.harness.workload import Trigger
from flinkplus.api.job import JobHandle
from flinkplus.cli.wordcount import COUNT
from flinkplus.errors import InsufficientSlots, MoveCancelled, MoveRefused

RESCALE = "rescale"
LOCAL_FAULTS = ("sigkill", "exception", "pause", RESCALE)
"""Of a slot: its process is killed, one of its subtasks raises, its process is stopped and continued. Of the job: its
parallelism changes."""
CLUSTER_FAULTS = ("sigkill", "exception", "host", "hang", "cut", "zookeeper", RESCALE)
"""Further: a host is killed and comes back, is frozen and continued, is cut off and connected again; a server of
ZooKeeper is killed and comes back."""
HOLD_S = (1.0, 3.0)
"""How long a slot or host is frozen, cut off or down."""
SERVER_TIMEOUT_S = 2.0
WAIT_S = 60.0
RESCALE_S = 120.0
POLL_S = 0.05
ORDERS = {"host": "kill", "hang": "pause", "cut": "cut"}


@dataclass(frozen=True)
class Draw:
    """A fault: its ``kind``, a number that says of which subtask, host or server, and how long it holds."""

    kind: str
    target: int
    hold_s: float


def drawn(kinds: Sequence[str], seed: int) -> Iterator[Draw]:
    """The faults, without end. All kinds in turn, shuffled: a short run has each of them."""
    generator = np.random.default_rng(seed)
    while True:
        for kind in generator.permutation(len(kinds)):
            target = int(generator.integers(1 << 30))
            yield Draw(kinds[int(kind)], target, round(float(generator.uniform(*HOLD_S)), 3))


class Striker:
    """Strikes one job. ``parallelisms``: those that a rescale draws from. ``control``: of the cluster, if it runs on
    one; ``zookeeper``: its ensemble."""

    def __init__(
        self,
        job: JobHandle,
        parallelisms: Sequence[int],
        trigger: Trigger,
        stop: threading.Event,
        control: Control | None = None,
        zookeeper: str = "",
    ) -> None:
        self._job = job
        self._parallelisms = parallelisms
        self._trigger = trigger
        self._stop = stop
        self._control = control
        self._servers = [server for server in zookeeper.split(",") if server]

    def strike(self, draw: Draw) -> str:
        """Do it, and take it back when it has held for its time; returns what was struck.

        Raises ``RunError`` when ``stop`` is set, or when there is nothing to strike.
        """
        if draw.kind == RESCALE:
            return self._rescale(draw)
        if draw.kind == "sigkill":
            index = draw.target % self._parallelism()
            self._job.kill(f"{COUNT}[{index}]")
            return f"{COUNT}[{index}]"
        if draw.kind == "exception":
            return self._raise_in(draw.target % self._parallelism())
        if draw.kind == "pause":
            return self._pause(draw)
        if draw.kind == "zookeeper":
            return self._kill_server(draw)
        return self._strike_host(draw)

    def _parallelism(self) -> int:
        parallelism = parallelism_of(self._job)
        if parallelism is None:
            raise RunError("no subtask is there that could be struck")
        return parallelism

    def _rescale(self, draw: Draw) -> str:
        """Ask for another parallelism, and wait until the job has it or says why not."""
        before = self._parallelism()
        others = [parallelism for parallelism in self._parallelisms if parallelism != before]
        if not others:
            raise RunError(f"no parallelism is there but {before}")
        what = f"{before} to {others[draw.target % len(others)]}"
        try:
            move = self._job.rescale(others[draw.target % len(others)])
            self._until(lambda: move.status != "under_way", f"the job is rescaled from {what}", RESCALE_S)
            move.check()
        except (MoveRefused, MoveCancelled, InsufficientSlots) as refusal:
            return f"{what}: not done ({refusal})"
        return what

    def _raise_in(self, index: int) -> str:
        before = self._trigger.raised_s(index)
        self._trigger.pull(index)
        self._until(lambda: self._trigger.raised_s(index) != before, f"subtask {index} has raised")
        return f"{COUNT}[{index}]"

    def _pause(self, draw: Draw) -> str:
        pids = self._job.slot_pids()
        if not pids:
            raise RunError("no slot is there that could be paused")
        slot = sorted(pids)[draw.target % len(pids)]
        with contextlib.suppress(ProcessLookupError):  # a process that hangs may be killed
            os.kill(pids[slot], signal.SIGSTOP)
            self._hold(draw, lambda: os.kill(pids[slot], signal.SIGCONT))
        return f"slot {slot}"

    def _strike_host(self, draw: Draw) -> str:
        hosts = sorted(set(self._job.placement().values()))
        if not hosts:
            raise RunError("no host is there that could be struck")
        host = hosts[draw.target % len(hosts)]
        self._order(ORDERS[draw.kind], host, draw)
        return host

    def _kill_server(self, draw: Draw) -> str:
        server = self._servers[draw.target % len(self._servers)]
        host = server.partition(":")[0]
        leads = serves(server) == "leader"
        self._order("kill", host, draw)
        self._until(self.ensemble_serves, f"all of {', '.join(self._servers)} serve again")
        return f"{host} (leader)" if leads else host

    def ensemble_serves(self) -> bool:
        """Whether every server of the ensemble takes part in it."""
        return all(serves(server) is not None for server in self._servers)

    def _order(self, order: str, host: str, draw: Draw) -> None:
        control = self._control
        assert control is not None
        control.order(order, host)
        self._hold(draw, lambda: control.order("revive", host))

    def _hold(self, draw: Draw, take_back: Callable[[], object]) -> None:
        try:
            if self._stop.wait(draw.hold_s):
                raise RunError("interrupted")
        finally:
            take_back()

    def _until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while not condition():
            if self._stop.wait(POLL_S):
                raise RunError("interrupted")
            if self._job.done or time.monotonic() > deadline:
                raise RunError(f"not within {wait_s:.0f} s: {what}")


def serves(server: str) -> str | None:
    """``leader`` or ``follower``; ``None`` for a server of ZooKeeper that does not serve at the moment."""
    host, _, port = server.partition("/")[0].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), SERVER_TIMEOUT_S) as connection:
            connection.settimeout(SERVER_TIMEOUT_S)
            connection.sendall(b"srvr")
            answer = b""
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return None
    modes = [line.partition(b":")[2].strip().decode() for line in answer.splitlines() if line.startswith(b"Mode:")]
    return modes[0] if modes and modes[0] in ("leader", "follower") else None
