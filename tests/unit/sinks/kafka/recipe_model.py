"""A model of a Kafka cluster for rows that are visible at once: names that are opened, partitions, what readers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from flinkplus.errors import OutputUnavailable
from flinkplus.protocol.checkpoints.subtask_output import OutputState
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.sinks.kafka.client import TransactionClient
from flinkplus.sinks.kafka.recipe_records import RecipeScan, Shown, pieces
from flinkplus.sinks.kafka.recipe_topic import RecipePartition
from flinkplus.sinks.kafka.records import Staged
from tests.unit.sinks.kafka.kafka_model import ModelCluster

Record = tuple[int, bytes, bytes]
"""Offset, key, value."""


@dataclass
class ModelFarEnd:
    """``visible``: rows in the topic. ``logs``: the records of each partition of the recipe topic. ``calls``: of
    partitions; the one with the number ``fail_at`` fails, before its effect or, with ``fail_after``, after it."""

    cluster: ModelCluster = field(default_factory=ModelCluster)
    visible: list[Staged] = field(default_factory=list)
    logs: list[list[Record]] = field(default_factory=list)
    trimmed: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    calls: int = 0
    fail_at: int = 0
    fail_after: bool = False
    piece: int = 1_000_000

    def transactions(self, job: str) -> TransactionClient:
        return self.cluster.client(job)

    def partition(self, index: int, until_s: float = 0.0) -> ModelPartition:
        return ModelPartition(self, index)

    def partitions(self) -> int:
        return len(self.logs)

    def make(self, partitions: int) -> None:
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        self.logs += [[] for _ in range(partitions - len(self.logs))]

    def remove(self) -> None:
        self.logs = []

    def read(self, index: int) -> Shown:
        scan = RecipeScan(0, "the recipe")
        for offset, key, value in self.logs[index]:
            if offset >= self.trimmed.get(index, 0):
                scan.add(offset, key, value)
        return Shown(scan.stored(), self.end(index))

    def end(self, index: int) -> int:
        """Behind a record is the mark of its transaction's end."""
        return self.logs[index][-1][0] + 2 if self.logs[index] else 0

    def close(self) -> None:
        return None


class ModelPartition(RecipePartition):
    def __init__(self, far: ModelFarEnd, index: int) -> None:
        self._far, self._index = far, index
        self._epoch: int | None = None

    def _called(self) -> bool:
        """Whether the call fails after its effect. Raises if it fails before."""
        far = self._far
        far.calls += 1
        fails = far.calls == far.fail_at
        if fails and not far.fail_after:
            raise OutputUnavailable("no answer")
        return fails

    @override
    def open(self) -> None:
        fails = self._called()
        self._epoch = self._far.epochs[self._index] = self._far.epochs.get(self._index, 0) + 1
        if fails:
            raise OutputUnavailable("no answer")

    @override
    def read(self) -> Shown:
        if self._called():
            raise OutputUnavailable("no answer")
        return self._far.read(self._index)

    @override
    def append(
        self,
        rows: Sequence[Staged],
        state: OutputState,
        entries: Sequence[RecipeEntry],
        since: int,
        behind: int | None = None,
    ) -> tuple[int, int]:
        fails, far = self._called(), self._far
        if self._epoch is None or self._epoch != far.epochs.get(self._index):
            raise OutputUnavailable("another producer has opened the name")
        first = far.end(self._index)
        if behind is not None and first != behind:
            raise OutputUnavailable(f"read up to {behind}, and it ends at {first}")
        made = pieces(state, entries, since, far.piece)
        far.logs[self._index] += [(first + n, key, value) for n, (key, value) in enumerate(made)]
        far.visible += rows
        if fails:
            raise OutputUnavailable("no answer")
        return first, first + len(made) - 1

    @override
    def trim(self, before: int) -> None:
        self._far.trimmed[self._index] = before

    @override
    def close(self) -> None:
        self._epoch = None
