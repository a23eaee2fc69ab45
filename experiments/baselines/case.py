"""One run: what is run, on which engine, and what is measured."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

THROUGHPUT, STEADY, RECOVERY = MEASURES = ("throughput", "steady", "recovery")
FLINKPLUS, FLINK_MEMORY, FLINK_ROCKSDB, SPARK = ENGINES = ("flinkplus", "flink-memory", "flink-rocksdb", "spark")
EXCEPTION, WORKER, TASKMANAGER = FAILURES = ("exception", "worker", "taskmanager")


class RunFailed(Exception):
    """A run that does not count: it says why."""


@dataclass(frozen=True)
class Case:
    """``rate``: rows per second at a steady rate (``steady``, ``recovery``).

    ``settle``: seconds that the job runs before it is measured. ``interval``: seconds between checkpoints.
    ``failures``: of ``recovery``, one after the other in one job. ``seed``: decides where and when they happen.
    ``options``: further ones of a job of FlinkPlus.
    """

    engine: str
    job: str
    parallelism: int
    measure: str
    run: int
    seconds: float
    settle: float
    interval: float
    rate: float
    seed: int
    failures: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def paced(self) -> float | None:
        """The rate of the source; ``None``: unlimited."""
        return None if self.measure == THROUGHPUT else self.rate

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Case:
        fields = json.loads(text)
        fields["failures"] = tuple(fields["failures"])
        fields["options"] = tuple((name, value) for name, value in fields["options"])
        return Case(**fields)
