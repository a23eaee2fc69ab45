"""Memory and room on disk of what runs on a host, as seen from outside of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import psutil

MB = 1e6
KINDS = ("slots", "driver", "java", "zookeeper", "other")
SLOT_MODULE, DRIVER_MODULE = "flinkplus.runtime", "flinkplus.cli.main"


def add_up(processes: Iterable[psutil.Process], driver: int | None = None) -> dict[str, float]:
    """PSS in MB by kind of process; ``driver``: that process, with any command line."""
    total = dict.fromkeys(KINDS, 0.0)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError):
            kind = "driver" if process.pid == driver else kind_of(process)
            total[kind] += pss_mb(process)
    return {kind: round(size, 1) for kind, size in total.items()}


def kind_of(process: psutil.Process) -> str:
    command = process.cmdline()
    if process.name().startswith("java"):
        return "zookeeper" if any("zookeeper" in part for part in command[-3:]) else "java"
    if any(part.startswith(SLOT_MODULE) for part in command):
        return "slots"
    return "driver" if DRIVER_MODULE in command else "other"


def pss_mb(process: psutil.Process) -> float:
    """Its share of physical memory; where the system does not tell, what is resident."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024 / MB
    except OSError:
        pass
    return float(process.memory_info().rss) / MB


def directory_mb(path: Path) -> float:
    """Bytes of the files below ``path`` on disk, each once, also with several names; they may come and go meanwhile."""
    seen: dict[tuple[int, int], int] = {}
    for base, _, files in os.walk(path):
        for file in files:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(base, file))
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return round(sum(seen.values()) / MB, 2)
