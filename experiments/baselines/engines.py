"""The engines: what each needs, and how a run of it is started, measured and ended.

Rules: a run has processes of its own, which end with it, also when it fails or is interrupted. What an engine needs is
had before the first run of any.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from experiments.baselines.case import FLINKPLUS, RECOVERY, SPARK, Case, RunFailed
from experiments.baselines.flink import Flink, FlinkCluster, FlinkProcess
from experiments.baselines.java_tools import Say, compiled, flink_jars
from experiments.baselines.measure import POLL_S, measured
from experiments.baselines.notes import ORDERS
from experiments.baselines.recovery import run_recoveries
from experiments.baselines.spark import Spark, SparkJob, jars
from experiments.baselines.trees import bound, end_tree

CHILD_END_S = 20.0


class Engine(Protocol):
    """What can run a case."""

    def prepare(self, say: Say) -> None:
        """Have what runs need. Raises ``BaselineMissing``."""

    def run(self, case: Case, directory: Path, text: Path, stop: threading.Event) -> list[dict[str, Any]]:
        """The figures of a run; of a recovery, of each of its failures. Raises ``RunFailed``."""


class FlinkPlusEngine:
    """Runs in a Python process of its own, ``flinkplus_run``."""

    def prepare(self, say: Say) -> None:
        return None

    def run(self, case: Case, directory: Path, text: Path, stop: threading.Event) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "experiments.baselines.flinkplus_run"]
        with (directory / "out").open("wb") as out, (directory / "log").open("wb") as log:
            child = subprocess.Popen(
                bound([*command, "--case", case.to_json(), "--text", str(text)]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env={**os.environ, "TMPDIR": str(directory)},
                start_new_session=True,
            )
        try:
            while child.poll() is None:
                if stop.wait(POLL_S):
                    raise RunFailed("interrupted")
        finally:
            end_tree(child, CHILD_END_S)
        if child.returncode != 0:
            lines = (directory / "log").read_text(errors="replace").strip().splitlines()
            raise RunFailed(lines[-1] if lines else f"it ended with {child.returncode}")
        figures: list[dict[str, Any]] = json.loads((directory / "out").read_text().strip().splitlines()[-1])
        return figures


class FlinkEngine:
    """Real Flink, with state in memory or in RocksDB: the case says which. ``home``: of its jars."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._flink: Flink | None = None

    def prepare(self, say: Say) -> None:
        jars = flink_jars(self._home, say)
        self._flink = Flink(tuple(jars), compiled(("flink",), jars, self._home, say))

    def run(self, case: Case, directory: Path, text: Path, stop: threading.Event) -> list[dict[str, Any]]:
        assert self._flink is not None
        if case.measure == RECOVERY:
            with contextlib.closing(FlinkCluster(self._flink, case, directory, text, stop)) as cluster:
                return run_recoveries(cluster, case, stop)
        with contextlib.closing(FlinkProcess(self._flink, case, directory, text)) as process:
            return [measured(process, case, stop)]


class SparkEngine:
    """Spark Structured Streaming, of the Spark that FlinkPlus uses. ``home``: for the compiled program."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._spark: Spark | None = None

    def prepare(self, say: Say) -> None:
        self._spark = Spark(compiled(("spark",), jars(), self._home, say))

    def run(self, case: Case, directory: Path, text: Path, stop: threading.Event) -> list[dict[str, Any]]:
        assert self._spark is not None
        with contextlib.closing(SparkJob(self._spark, case, directory, text, stop)) as job:
            return run_recoveries(job, case, stop) if case.measure == RECOVERY else [measured(job, case, stop)]


def engines(names: tuple[str, ...], home: Path) -> dict[str, Engine]:
    """The engines with these names."""
    found: dict[str, Engine] = {}
    for name in names:
        if name == FLINKPLUS:
            found[name] = FlinkPlusEngine()
        elif name == SPARK:
            found[name] = SparkEngine(home)
        else:
            found[name] = FlinkEngine(home)
    return found


@contextlib.contextmanager
def run_directory(parent: Path) -> Iterator[Path]:
    """A directory for one run, with what notes and orders need; it is removed behind the block."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=parent, ignore_cleanup_errors=True) as name:
        directory = Path(name)
        (directory / "notes" / ORDERS).mkdir(parents=True)
        yield directory
