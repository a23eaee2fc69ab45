"""Whether and when a driver that has ended is started again. Pure: no clock, no process.

Rules: a driver that ended well is not started again. One that ended with a usage error will not get better. Any other
end is a failure: the first restart is at once, each further one after twice the pause before. A driver that ran for
``STABLE_S`` begins a new count, so the limit is one of failures in a row.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

STABLE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
EXIT_OK, EXIT_USAGE, EXIT_OF_SIGNAL = 0, 2, 128


@dataclass(frozen=True)
class Verdict:
    """``pause_s``: until the next start; ``None``: there is none. ``text``: why, for people."""

    pause_s: float | None
    text: str


@dataclass
class RestartPolicy:
    """``limit``: restarts in a row without ``STABLE_S`` between two failures. ``failures``: so far, in a row."""

    limit: int
    failures: int = 0

    def judge(self, code: int, ran_s: float) -> Verdict:
        """The verdict on a driver that ended with ``code`` (negative: by that signal) after ``ran_s``."""
        if code == EXIT_OK:
            return Verdict(None, "the driver ended well")
        if code == EXIT_USAGE:
            return Verdict(None, "a usage error, which a restart does not mend")
        self.failures = 1 if ran_s >= STABLE_S else self.failures + 1
        if self.failures > self.limit:
            return Verdict(None, f"{how_it_ended(code)}; giving up after {self.limit} restarts in a row")
        pause_s = 0.0 if self.failures == 1 else min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.failures - 2))
        return Verdict(pause_s, f"restart {self.failures} of at most {self.limit} in a row, in {pause_s:g} s")


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the driver ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the driver was killed by {name}"


def exit_code(code: int) -> int:
    """What the supervisor ends with, as a shell would: 137 for SIGKILL."""
    return code if code >= 0 else EXIT_OF_SIGNAL - code
