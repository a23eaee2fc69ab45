"""A model of a Kafka cluster, for the committer: names that are opened, transactions, what readers see of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from typing_extensions import override

from flinkplus.errors import OutputUnavailable
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka.client import TransactionClient
from flinkplus.sinks.kafka.records import Staged


@dataclass
class ModelCluster:
    """``visible``: records, as readers of committed ones see them. ``fail_at``: the number of the call that fails,
    before it has any effect or, with ``fail_after``, although it has had it; 0: none."""

    visible: list[Staged] = field(default_factory=list)
    progress: dict[str, OutputProgress] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    fail_at: int = 0
    fail_after: bool = False

    def client(self, job: str) -> ModelClient:
        return ModelClient(self, job)

    def plan(self, fail_at: int, fail_after: bool) -> None:
        self.calls, self.fail_at, self.fail_after = 0, fail_at, fail_after

    def values(self) -> list[bytes | None]:
        return [value for _, value, _, _ in self.visible]


class ModelClient(TransactionClient):
    def __init__(self, cluster: ModelCluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self._epoch: int | None = None
        self.is_closed = False

    def _called(self) -> bool:
        """Whether the call fails after its effect. Raises if it fails before."""
        cluster = self._cluster
        cluster.calls += 1
        fails = cluster.calls == cluster.fail_at
        if fails and not cluster.fail_after:
            raise OutputUnavailable("no answer")
        return fails

    @override
    def ready(self) -> None:
        if self._called():
            raise OutputUnavailable("no answer")

    @override
    def open(self) -> None:
        fails = self._called()
        self._epoch = self._cluster.epochs[self._job] = self._cluster.epochs.get(self._job, 0) + 1
        self.is_closed = False
        if fails:
            raise OutputUnavailable("no answer")

    @override
    def read(self, job: str) -> OutputProgress | None:
        if self._called():
            raise OutputUnavailable("no answer")
        return self._cluster.progress.get(job)

    @override
    def write(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        fails, cluster = self._called(), self._cluster
        rows = list(records)
        if self.is_closed or self._epoch != cluster.epochs.get(self._job):
            raise OutputUnavailable("another producer has opened the name")
        cluster.visible += rows
        cluster.progress.update(progress)
        if fails:
            raise OutputUnavailable("no answer")

    @override
    def close(self) -> None:
        self.is_closed = True
