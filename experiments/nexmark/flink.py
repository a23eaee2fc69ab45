"""A query on Flink: one Java process for everything, with state in memory or in RocksDB.

Rules: each run has a process and a directory of its own, which end with it. The rate is of events read, by the
process's own count, over the same time after the same settling as of FlinkPlus.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.baselines.case import FLINK_ROCKSDB
from experiments.baselines.flink import (
    BACKENDS,
    LOCAL_HEAP_MB,
    Flink,
    JavaProcesses,
    configured,
    process_settings,
)
from experiments.baselines.java_tools import BaselineMissing, Say, compiled, flink_jars
from experiments.baselines.trees import TreeSampler
from experiments.harness.running import SETTLE_S, RunError
from experiments.nexmark.events import EVENTS_PER_S
from experiments.nexmark.flink_sql import FLINK

MAIN = "baselines.nexmark.Nexmark"
FOLDERS = ("nexmark", "flink")
TABLE_JARS = ("flink-table-*.jar", "flink-cep-*.jar")
"""Of its SQL, which loads what finds patterns with every query."""
START_S = 180.0
POLL_S = 0.05
NAME = "flink"


def flink_of(home: Path, say: Say) -> Flink:
    """Flink with its SQL, and this project's program for it. Raises ``BaselineMissing``."""
    jars = flink_jars(home, say)
    tables = [jar for pattern in TABLE_JARS for jar in sorted((home / "lib").glob(pattern))]
    if len(tables) < len(TABLE_JARS):
        raise BaselineMissing(f"{home / 'lib'} lacks {' or '.join(TABLE_JARS)}: remove it, and it is fetched again")
    return Flink((*jars, *tables), compiled(FOLDERS, [*jars, *tables], home, say))


def settings_of(engine: str, interval: float, directory: Path) -> dict[str, str]:
    """Of a job: what is not Flink's default."""
    return {
        "state.backend.type": BACKENDS[engine == FLINK_ROCKSDB],
        "execution.checkpointing.interval": f"{round(interval * 1e3)}ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "pipeline.object-reuse": "true",
        **process_settings(),
        "io.tmp.dirs": str(directory),
    }


@dataclass
class FlinkRun:
    """One query in one process. ``further``: settings of the job."""

    flink: Flink
    query: str
    engine: str
    parallelism: int
    interval: float
    directory: Path
    further: Mapping[str, str]

    def throughput(self, seconds: float, stop: threading.Event) -> dict[str, Any]:
        """Events per second, and what the process used. Raises ``RunError``."""
        sql, progress = self.directory / "query.sql", self.directory / "progress"
        sql.write_text(FLINK[self.query])
        conf = {**settings_of(self.engine, self.interval, self.directory), **self.further}
        arguments = [
            *("--sql", str(sql), "--progress", str(progress)),
            *("--parallelism", str(self.parallelism), "--rate", str(EVENTS_PER_S)),
            *configured(conf),
        ]
        java = JavaProcesses(self.directory)
        java.start(NAME, self.flink.command(LOCAL_HEAP_MB, self.directory, MAIN, arguments))

        def wait(until: Callable[[], bool]) -> None:
            while not until():
                if java.processes[NAME].poll() is not None:
                    raise RunError(f"Flink has ended: {java.last_words(NAME)}")
                if stop.wait(POLL_S):
                    raise RunError("interrupted")

        try:
            begun_s = time.monotonic()
            wait(lambda: _read(progress)[1] > 0 or _late(begun_s))
            if _read(progress)[1] == 0:
                raise RunError(f"Flink has read nothing after {START_S:g} s: {java.last_words(NAME)}")
            settled_s = time.monotonic() + SETTLE_S
            wait(lambda: time.monotonic() >= settled_s)
            with TreeSampler(lambda: [java.processes[NAME].pid]) as sampler:
                (before_ms, before), until_s = _read(progress), time.monotonic() + seconds
                wait(lambda: (time.monotonic() >= until_s and _read(progress)[1] > before) or _late(until_s))
                after_ms, after = _read(progress)
        finally:
            java.close()
        if after <= before:
            raise RunError(f"Flink has read nothing for {START_S:g} s")
        return {
            "events_per_s": round((after - before) / (after_ms - before_ms) * 1e3, 1),
            "cpu_s_per_million": round(sampler.cpu_s / (after - before) * 1e6, 4),
            "rss_mb": round(sampler.rss_mb, 1),
        }


def _late(since_s: float) -> bool:
    return time.monotonic() > since_s + START_S


def _read(progress: Path) -> tuple[int, int]:
    """The last whole line: when, in ms since the Unix epoch, and how many events had been read."""
    try:
        lines = progress.read_text().split("\n")
    except FileNotFoundError:
        return 0, 0
    if len(lines) < 2:
        return 0, 0
    time_ms, events = lines[-2].split()
    return int(time_ms), int(events)
