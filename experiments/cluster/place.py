"""The cluster as a program on its job's host sees it, with Docker or without."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cluster.control import CONTROL_FILE, Control
from experiments.cluster.network import ClusterError
from flinkplus.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER, ZOOKEEPER, SHARED = "FLINKPLUS_MASTER", "FLINKPLUS_ZOOKEEPER", "FLINKPLUS_SHARED"
WEB_PORT = 8080
PATIENCE_S = 90.0
POLL_S = 0.1


@dataclass(frozen=True)
class Place:
    """``shared``: a directory that all hosts have. ``control``: orders to the harness, where there is one."""

    master: str
    zookeeper: str
    shared: Path
    control: Control | None = None

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Place:
        """From the environment of the job's host. Raises ``ConfigurationError`` on any other."""
        missing = [name for name in (MASTER, ZOOKEEPER, SHARED) if not environment.get(name)]
        if missing:
            raise ConfigurationError(f"{missing[0]} is not set: this is not the job's host of a cluster")
        shared = Path(environment[SHARED])
        path = shared / CONTROL_FILE
        control = Control(str(path)) if path.exists() else None
        return cls(environment[MASTER], environment[ZOOKEEPER], shared, control)

    def cores(self, workers: int) -> int:
        """The cores of all workers, once there are ``workers`` of them. Raises ``ClusterError``."""
        host = self.master.removeprefix("spark://").partition(":")[0]
        deadline = time.monotonic() + PATIENCE_S
        alive, reason = 0, ""
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://{host}:{WEB_PORT}/json/", timeout=5) as answer:
                    state = json.load(answer)
                alive = int(state["aliveworkers"])
                if alive >= workers:
                    return int(state["cores"])
            except (OSError, urllib.error.URLError, ValueError, KeyError) as error:
                reason = f" ({error})"
            time.sleep(POLL_S)
        raise ClusterError(f"{alive} of {workers} workers have registered with {self.master}{reason}")

    def session_settings(self, workers: int) -> dict[str, str]:
        """What a session needs so that slots start when all executors are there, and come to all hosts alike."""
        return {
            "spark.cores.max": str(self.cores(workers)),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
            "spark.executor.memory": "512m",
        }

    def options(self, directory: Path) -> dict[str, Any]:
        """Options of a job here whose checkpoints are to be in ``directory``, which is shared."""
        return {"zookeeper": self.zookeeper, "checkpoint_dir": str(directory / "checkpoints")}

    def await_executors(self, spark: SparkSession, workers: int) -> None:
        """Return when each worker has its executor again. Raises ``ClusterError``."""
        jsc = spark.sparkContext._jsc
        assert jsc is not None
        deadline = time.monotonic() + PATIENCE_S
        while (count := int(jsc.sc().getExecutorMemoryStatus().size()) - 1) < workers:  # the driver counts as one
            if time.monotonic() > deadline:
                raise ClusterError(f"{count} of {workers} executors are there")
            time.sleep(POLL_S)
