"""Routes of the rows of an exchange: by key, straight on, all to one subtask, or all to all.

Rules: every producer subtask has a channel to every consumer subtask, with any route, so that barriers and the end of
input arrive over all of them. A route depends only on the rows and the producer's index: after a failover the same rows
take the same route.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa
from typing_extensions import assert_never

from flinkplus.operators.base.columns import SMALL_ROWS, compact, cut_at, decoded
from flinkplus.operators.base.keys import HashPartitioner
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM

Route = Literal["hash", "forward", "gather", "broadcast"]
"""By the hash of key columns; to the consumer subtask with the producer's own index; all to consumer subtask 0; all to
every consumer subtask."""


class Partitioner(Protocol):
    """Splits batches among consumers."""

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """``(target, rows)`` for each target with rows, ascending; rows keep their order."""

    def split_steps(self, batch: pa.RecordBatch, ends: list[int]) -> list[list[tuple[int, pa.RecordBatch]]]:
        """The same for each of the small batches that ``batch``, of plain columns, consists of; ``ends``: the row after
        each."""


@dataclass(frozen=True, slots=True)
class ToOne:
    """All rows to one ``target``, in the form that ``HashPartitioner`` gives them."""

    target: int

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if not batch.num_rows:
            return []
        if not any(isinstance(column, pa.DictionaryArray) for column in batch.columns):
            return [(self.target, batch)]
        small = decoded(batch) if batch.num_rows <= SMALL_ROWS else None
        if small is None:
            small = pa.RecordBatch.from_arrays([compact(c) for c in batch.columns], names=batch.schema.names)
        return [(self.target, small)]

    def split_steps(self, batch: pa.RecordBatch, ends: list[int]) -> list[list[tuple[int, pa.RecordBatch]]]:
        return [self.split(piece) for piece in cut_at(batch, ends)]


@dataclass(frozen=True, slots=True)
class ToAll:
    """All rows to each of ``targets`` consumers."""

    targets: int

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return [(target, rows) for _, rows in ToOne(0).split(batch) for target in range(self.targets)]

    def split_steps(self, batch: pa.RecordBatch, ends: list[int]) -> list[list[tuple[int, pa.RecordBatch]]]:
        return [self.split(piece) for piece in cut_at(batch, ends)]


def partitioner(
    route: Route,
    columns: Sequence[str],
    producer: int,
    targets: int,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> Partitioner:
    """How subtask ``producer`` splits its rows among ``targets`` consumers."""
    match route:
        case "hash":
            return HashPartitioner(columns, targets, max_parallelism)
        case "forward":
            return ToOne(producer)
        case "gather":
            return ToOne(0)
        case "broadcast":
            return ToAll(targets)
        case _:
            assert_never(route)
