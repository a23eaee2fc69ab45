"""One run: what is run, on which engine, and what is measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flinkplus.config import conf_key, options_from
from flinkplus.errors import ConfigurationError

THROUGHPUT, STEADY, RECOVERY = MEASURES = ("throughput", "steady", "recovery")
FLINKPLUS, FLINK_MEMORY, FLINK_ROCKSDB, SPARK = ENGINES = ("flinkplus", "flink-memory", "flink-rocksdb", "spark")
EXCEPTION, WORKER, TASKMANAGER = FAILURES = ("exception", "worker", "taskmanager")


class RunFailed(Exception):
    """A run that does not count: it says why."""


@dataclass(frozen=True)
class Failure:
    """One failure of a job.

    ``share``: of a checkpoint interval, at the moment of the failure. ``index``: the partition that it is done to.
    """

    kind: str
    share: float
    index: int


@dataclass(frozen=True)
class Case:
    """``rate``: rows per second at a steady rate (``steady``, ``recovery``).

    ``settle``: seconds that the job runs before it is measured. ``interval``: seconds between checkpoints.
    ``failures``: of ``recovery``, one after the other in one job. ``options``: further ones of a job of FlinkPlus.
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
    failures: tuple[Failure, ...] = ()
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
        fields["failures"] = tuple(Failure(**failure) for failure in fields["failures"])
        fields["options"] = tuple((name, value) for name, value in fields["options"])
        return Case(**fields)


def job_options(texts: Iterable[str], own: Mapping[str, Any]) -> dict[str, Any]:
    """``own`` options of FlinkPlus's jobs, and those that ``NAME=VALUE`` texts say. Raises ``ConfigurationError``."""
    pairs = {name.strip(): value for name, _, value in (text.partition("=") for text in texts)}
    if twice := sorted(pairs.keys() & own.keys()):
        raise ConfigurationError(f"{twice[0]} has an option of its own; do not give it by --option")
    options = options_from({conf_key(name): value for name, value in pairs.items()}, own)
    return {**own, **{name: getattr(options, name) for name in pairs}}
