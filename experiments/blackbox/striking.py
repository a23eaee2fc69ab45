"""The faults of one round, carried out on its driver, its slots, the servers and the connections to PostgreSQL."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from experiments.blackbox import faults
from experiments.blackbox.faults import Draw
from experiments.blackbox.feeding import Feeder
from experiments.blackbox.processes import Checker, Driver
from experiments.blackbox.servers import Servers
from experiments.harness.kafka_server import KafkaServer
from experiments.harness.postgres_server import PostgresServer
from experiments.harness.running import RunError
from experiments.harness.tcp_proxy import Proxy

POLL_S = 0.02
NOTICED_S = 0.15
"""After a fault the driver may say for a moment that all is well."""
PATIENCE_S = 120.0
"""How long a recovery may take, and a time without new rows, until the round has failed."""


class Striking:
    """Strikes one job. ``servers``: that it needs; ``proxy``: to PostgreSQL; ``feeder``: if its input comes while it
    runs.

    ``struck``: what was done, and what the checker had found by the next fault.
    """

    def __init__(
        self,
        driver: Driver,
        checker: Checker,
        servers: Servers,
        proxy: Proxy | None,
        feeder: Feeder | None,
        parallelism: int,
        stop: threading.Event,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._driver, self._checker, self._feeder = driver, checker, feeder
        self._servers, self._proxy = servers, proxy
        self._parallelism, self._stop, self._patience_s = parallelism, stop, patience_s
        self._begun_s = time.monotonic()
        self._killed: set[int] = set()
        self.struck: list[dict[str, Any]] = []

    def strike(self, draw: Draw) -> None:
        """Carry out one fault, after what comes before it. Raises ``RunError``."""
        if not draw.overlaps:
            self.recover()
        self._wait(draw.after_s)
        self._until(lambda: bool(self._slots()), "a slot is there that can be struck")
        if self._driver.status().get("finished"):
            return
        known: dict[str, Any] = {
            "kind": draw.kind,
            "overlaps": draw.overlaps,
            "at_s": round(time.monotonic() - self._begun_s, 3),
            "state": self._driver.status().get("state"),
            "recovered_s": None,
            "before": self._found(),
        }
        known["struck"] = self._carry_out(draw)
        self.struck.append(known)

    def _carry_out(self, draw: Draw) -> Any:
        match draw.kind:
            case faults.SLOT:
                return self._kill(draw, 1)
            case faults.TWO_SLOTS:
                return self._kill(draw, 2)
            case faults.ALL_SLOTS:
                return self._kill(draw, len(self._slots()))
            case faults.DRIVER:
                self._driver.kill()
                return self._driver.start()
            case faults.RESCALE:
                return self._rescale(draw)
            case faults.STOP:
                return self._pause_slot(draw)
            case faults.SERVER:
                return self._restart(self._servers.postgres, draw)
            case faults.BROKER:
                assert self._feeder is not None
                with self._feeder.held():
                    return self._restart(self._servers.kafka, draw)
            case _:
                return self._disturb(draw)

    def _rescale(self, draw: Draw) -> int:
        """To one more or one less than at the start, or back."""
        others = {self._parallelism - 1, self._parallelism, self._parallelism + 1} - {0, 1}
        known = sorted(others - {self._driver.status().get("parallelism")})
        self._driver.rescale(known[draw.target % len(known)])
        return known[draw.target % len(known)]

    def _slots(self) -> dict[str, int]:
        """The processes of the slots that were not killed; empty while there are none."""
        slots = self._driver.status().get("slots", {})
        return {slot: pid for slot, pid in slots.items() if pid and pid not in self._killed}

    def _chosen(self, draw: Draw, count: int) -> list[tuple[str, int]]:
        slots = sorted(self._slots().items())
        return [slots[(draw.target + further) % len(slots)] for further in range(min(count, len(slots)))]

    def _kill(self, draw: Draw, count: int) -> list[str]:
        chosen = self._chosen(draw, count)
        for _, pid in chosen:
            self._killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return [slot for slot, _ in chosen]

    def _pause_slot(self, draw: Draw) -> list[str]:
        chosen = self._chosen(draw, 1)
        for _, pid in chosen:
            with contextlib.suppress(ProcessLookupError):  # a process that hangs may be killed
                os.kill(pid, signal.SIGSTOP)
                try:
                    self._wait(draw.hold_s)
                finally:
                    os.kill(pid, signal.SIGCONT)
        return [slot for slot, _ in chosen]

    def _restart(self, server: PostgresServer | KafkaServer | None, draw: Draw) -> None:
        assert server is not None
        server.kill()
        try:
            self._wait(draw.hold_s)
        finally:
            server.start()

    def _disturb(self, draw: Draw) -> None:
        proxy = self._proxy
        assert proxy is not None
        if draw.kind == faults.PAUSE:
            proxy.pause()
            try:
                self._wait(draw.hold_s)
            finally:
                proxy.resume()
            return
        if draw.kind == faults.DEAF:
            proxy.mode = "deaf"
            try:
                self._wait(draw.hold_s)
            finally:
                proxy.cut()
                proxy.mode = "pass"
            return
        proxy.cut()

    # --- recovery

    def recover(self) -> None:
        """Wait until the job runs with all slots and standbys, and new rows are visible. Raises ``RunError``."""
        begun_s = time.monotonic()
        self._wait(NOTICED_S)
        before = self._checker.rows
        self._until(lambda: self._is_whole() and self._checker.rows > before, "the job runs and shows new rows")
        if self.struck:
            took_s = round(time.monotonic() - begun_s, 3)
            for one in reversed(self.struck):
                if one["recovered_s"] is not None:
                    break
                one["recovered_s"] = took_s

    def _is_whole(self) -> bool:
        status = self._driver.status()
        if status.get("finished"):
            return True
        return (
            status.get("state") == "running"
            and len(status["slots"]) == status["parallelism"]
            and all(pid and pid not in self._killed for pid in status["slots"].values())
            and not status["missing"]
        )

    def finish(self, drain: int | None) -> None:
        """Wait until the job has finished. ``drain``: the job waits for more input than so many rows; its input is
        ended when they are visible, or when no more of them come. Raises ``RunError``."""
        if drain is not None:
            seen, since_s = -1, 0.0
            while seen < drain and (seen < 0 or time.monotonic() < since_s + self._patience_s):
                if self._checker.rows > seen:
                    seen, since_s = self._checker.rows, time.monotonic()
                self._check()
                self._wait(POLL_S)
            self._driver.drain()
        self._until(lambda: bool(self._driver.status().get("finished")), "the job has finished", forward=True)

    def _check(self) -> None:
        """Raises ``RunError`` when the job has failed, or the driver or the feeder has ended too early."""
        failed = self._driver.status().get("error")
        if failed is not None:
            raise RunError(f"the job failed: {failed}")
        code = self._driver.ended
        if code is not None and not self._driver.status().get("finished"):
            raise RunError(f"the driver ended with {code}: {self._driver.log()}")
        if self._feeder is not None:
            self._feeder.check()

    def _until(self, condition: Callable[[], bool], what: str, forward: bool = False) -> None:
        """``forward``: the time counts from the last new row."""
        deadline_s, rows = time.monotonic() + self._patience_s, self._checker.rows
        while not (condition() or self._driver.status().get("finished")):
            self._check()
            if forward and self._checker.rows > rows:
                deadline_s, rows = time.monotonic() + self._patience_s, self._checker.rows
            if time.monotonic() > deadline_s:
                raise RunError(f"not within {self._patience_s:g} s: {what}; it says {self._driver.status()}")
            self._wait(POLL_S)

    def _wait(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise RunError("interrupted")

    def _found(self) -> dict[str, int]:
        return {kind: times for kind, times in self._checker.status().get("found", {}).items() if times}

    def note(self, last: dict[str, int]) -> None:
        """Say of each fault what the checker found between it and the next. ``last``: what it found in the end."""
        if not self.struck:
            return
        befores = [one.pop("before") for one in self.struck]
        for one, before, after in zip(self.struck, befores, [*befores[1:], last], strict=True):
            one["found"] = {kind: times - before.get(kind, 0) for kind, times in after.items()}
            one["found"] = {kind: times for kind, times in one["found"].items() if times}
