"""Under which conditions runs happen: who runs them, with which priority, and how busy the machine is.

``may_raise_priority`` says whether the failover path gets its better ``nice`` value in processes of this user
(``flinkplus.runtime.host.priority``). It follows the kernel's rule and changes no priority.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flinkplus.runtime.host.priority import PREFERRED

CAP_SYS_NICE = 23
"""The number of the capability that permits any ``nice`` value. Root has it, except in most containers."""
COMMIT_DIGITS = 12


def conditions() -> dict[str, Any]:
    """``uid``, ``nice`` of this process, ``may_raise_priority``, and ``load`` (the averages of 1, 5 and 15 minutes)."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0] if sys.platform == "linux" else 0
    return {
        "uid": os.getuid(),
        "nice": nice,
        "may_raise_priority": sys.platform == "linux" and may_raise_priority(nice, limit, _capabilities()),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def load_1min() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def may_raise_priority(nice: int, limit: int, capabilities: int) -> bool:
    """Whether a process may take the ``nice`` value ``PREFERRED``.

    ``limit``: its ``RLIMIT_NICE``, which permits values from ``20 - limit`` up; -1: any.
    ``capabilities``: its effective ones, as a bit set.
    """
    return nice <= PREFERRED or limit == resource.RLIM_INFINITY or 20 - limit <= PREFERRED or _has_nice(capabilities)


def _has_nice(capabilities: int) -> bool:
    return bool(capabilities >> CAP_SYS_NICE & 1)


def _capabilities() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)


def load_range(runs: Sequence[dict[str, Any]]) -> str | None:
    """The lowest and the highest ``load_1min`` of these runs, for people; ``None`` where none has it."""
    loads = [run["load_1min"] for run in runs if "load_1min" in run]
    return f"{min(loads):g} to {max(loads):g}" if loads else None


def conditions_line(content: dict[str, Any]) -> str:
    """The conditions of a document's runs, for people."""
    commit, dirty, _ = (content["commit"] or "unknown").partition("-dirty")
    raised = "raised" if content["may_raise_priority"] else "not raised"
    busy = load_range(content["runs"]) or f"{content['load'][0]:g}"
    return (
        f"conditions: {content['machine']['cores']} cores; commit {commit[:COMMIT_DIGITS]}{dirty}; "
        f"uid {content['uid']}, nice {content['nice']}; priority of the failover path {raised} "
        f"(raising it needs root or RLIMIT_NICE); load at the beginning of a run {busy}"
    )
