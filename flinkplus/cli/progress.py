"""The live line of a running job on stderr: words per second, last checkpoint, state size, restarts.

On a terminal one line is rewritten a few times a second; elsewhere a line is printed every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any

from flinkplus.api.job import JobHandle

TERMINAL_PERIOD_S = 0.25
LOG_PERIOD_S = 5.0
RATE_SPAN_S = 2.0


class ProgressLine:
    """Prints the progress of one job; call ``tick`` often, ``close`` at the end."""

    def __init__(self, job: JobHandle, counted: str) -> None:
        self._job = job
        self._counted = counted
        self._terminal = sys.stderr.isatty()
        self._period_s = TERMINAL_PERIOD_S if self._terminal else LOG_PERIOD_S
        self._next_s = time.monotonic()
        self._seen: deque[tuple[float, int]] = deque()
        self._width = 0

    def tick(self) -> None:
        now = time.monotonic()
        metrics = self._job.metrics()
        rows = metrics["operators"][self._counted]["rows_out"]
        self._seen.append((now, rows))
        while len(self._seen) > 1 and now - self._seen[0][0] > RATE_SPAN_S:
            self._seen.popleft()
        if now < self._next_s:
            return
        self._next_s = now + self._period_s
        self._print(self._text(metrics, rows))

    def _text(self, metrics: dict[str, Any], rows: int) -> str:
        (then, before), (now, _) = self._seen[0], self._seen[-1]
        rate = (rows - before) / (now - then) if now > then else 0.0
        last = metrics["last_checkpoint"]
        return (
            f"{metrics['state']:<9} {metrics['elapsed_s']:6.1f} s | {rows:>12,} words | "
            f"{max(0.0, rate):>10,.0f} words/s | "
            f"checkpoint {'-' if last is None else last} | state {metrics['state_keys']:,} keys "
            f"{metrics['state_bytes'] / 1e6:.1f} MB | restarts {metrics['recoveries']}"
        )

    def _print(self, text: str) -> None:
        if self._terminal:
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._terminal and self._width:
            print(file=sys.stderr, flush=True)
