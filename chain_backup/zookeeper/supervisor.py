"""Keeps a job's own ZooKeeper server running: when its process ends or hangs, it is restarted with its data.

Sessions survive a restart, and clients reconnect by themselves: a server's start resets all session timeouts.

A server hangs when it has not answered two requests in a row within ``HANG_S`` together. On a busy machine an answer
may be slow, so this timeout doubles each time that it expires, up to a limit. It is reset only after a long time
without a hang. A server that uses the processor but does not answer, as in a flood of connections, gets that limit at
once: a restart would help the flood.

Rules: a server that ran for a while is restarted at once, and its clients wait. One that ends soon after its start, or
cannot be started, is started after a pause, which doubles up to a limit. Meanwhile callers must not wait (``on_down``),
until it serves (``on_back``). The supervisor never stops trying. ``close`` ends a start that is under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from chain_backup.zookeeper.embedded import LOG_FOLLOWS, EmbeddedZooKeeper

LOOK_S = 0.05
YOUNG_S = 60.0
"""A server that ends within this time after its start may not be worth another one at once."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
ASK_S = 1.0
"""From one answer to the next question."""
HANG_S = 6.0
LONGEST_HANG_S = 120.0
BUSY_SHARE = 0.1
"""A server that does not answer, but takes this share of a processor, is busy, and not hung."""
QUESTIONS = 2
"""So many must be unanswered: one may have been asked just when the whole machine stood still."""
FORGOTTEN_S = 600.0
"""After so long without a hang, patience is ``HANG_S`` again."""

_log = logging.getLogger(__name__)


class Supervisor:
    """Watches over a server that was started. ``on_down`` gets the reason; both run in the supervisor's thread."""

    def __init__(self, server: EmbeddedZooKeeper, on_down: Callable[[str], None], on_back: Callable[[], None]) -> None:
        self.restarts = 0
        self._server = server
        self._on_down = on_down
        self._on_back = on_back
        self._closing = threading.Event()
        self._patience_s = HANG_S
        self._hung_s = 0.0
        self._ask_s = 0.0
        self._unanswered = 0
        self._unanswered_s = 0.0
        self._processor_s = 0.0
        self._thread = threading.Thread(target=self._watch, name="flinkplus-zookeeper-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop watching. The server stays as it is, and is not restarted any more."""
        self._closing.set()
        self._server.need_no_more()
        self._thread.join()

    def _watch(self) -> None:
        started_s, pause_s = time.monotonic(), 0.0
        while not self._closing.wait(LOOK_S):
            if not self._server.alive:
                why = self._server.end or "its process is gone"
            elif self._hangs():
                why = f"it has not answered for {time.monotonic() - self._unanswered_s:.1f} s"
            else:
                continue
            if time.monotonic() - started_s >= YOUNG_S:
                pause_s = 0.0
            pause_s = self._bring_back(why, pause_s)
            started_s = time.monotonic()
            self._unanswered = 0

    def _hangs(self) -> bool:
        """Ask the server, when it is time to. Whether it has not answered for too long."""
        begun_s = time.monotonic()
        if begun_s < self._ask_s:
            return False
        processor_s = 0.0 if self._unanswered else self._server.processor_s
        if begun_s - self._hung_s >= FORGOTTEN_S:
            self._patience_s = HANG_S
        if self._server.responds(self._patience_s / QUESTIONS) or self._closing.is_set() or not self._server.alive:
            self._unanswered = 0
            self._ask_s = time.monotonic() + ASK_S
            return False
        if not self._unanswered:
            self._unanswered_s, self._processor_s = begun_s, processor_s
        self._unanswered += 1
        now_s = time.monotonic()
        for_s = now_s - self._unanswered_s
        if self._unanswered < QUESTIONS or for_s < self._patience_s:
            return False
        if for_s < LONGEST_HANG_S and self._server.processor_s - self._processor_s > BUSY_SHARE * for_s:
            return False
        self._hung_s = now_s
        self._patience_s = min(LONGEST_HANG_S, 2 * self._patience_s)
        return True

    def _bring_back(self, why: str, pause_s: float) -> float:
        """Start the server until it serves, or is not needed any more. Returns the pause before the next time. It
        counts as a restart from the start on: the clients may be back before the server is known to serve."""
        self.restarts += 1
        while not self._closing.is_set():
            when = f"in {pause_s:.1f} s" if pause_s else "at once"
            _log.warning("restarting the job's own ZooKeeper server %s: %s", when, why)
            if pause_s:
                self._on_down(f"its server is down: {why.splitlines()[0].removesuffix(LOG_FOLLOWS)}")
                self._closing.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * pause_s))
            if self._closing.is_set():
                break
            try:
                self._server.restart()
            except Exception as error:  # any error: there is no server
                why = f"{type(error).__name__}: {error}"
                continue
            _log.warning("the job's own ZooKeeper server is running again")
            self._on_back()
            break
        return pause_s
