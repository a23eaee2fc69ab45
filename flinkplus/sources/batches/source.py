"""A streaming DataFrame as a source: batches that the driver stages (``area``), read by row ranges (``pieces``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.sources.base import Source
from flinkplus.sources.batches.pieces import BatchPosition, redealt
from flinkplus.sources.batches.reader import BatchReader
from flinkplus.sources.splits import check_options


@dataclass(frozen=True)
class StreamedBatches(Source):
    """The rows of a streaming DataFrame with the columns of ``schema``.

    ``errors``: of text that is not UTF-8. ``trigger``: when Spark begins a batch (``DataStreamWriter.trigger``).
    ``max_unread_batches``, ``max_unread_bytes``: limits of what is staged and was not read.
    ``location``: of the staging area, set by ``staged_in``.
    """

    name: str
    schema: pa.Schema
    errors: str = "replace"
    trigger: Mapping[str, Any] = field(default_factory=dict)
    max_unread_batches: int = 32
    max_unread_bytes: int = 1 << 30
    location: str | None = None

    is_live: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_options(self.name, 1, self.errors)
        if self.max_unread_batches < 1 or self.max_unread_bytes < 1:
            raise ConfigurationError(f"source {self.name!r}: the limits of unread batches must be at least 1")

    def staged_in(self, location: str) -> StreamedBatches:
        """This source, with its staging area."""
        return replace(self, location=location)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {"rows": ", ".join(f"{field.name} {field.type}" for field in self.schema)}

    @override
    def split_plan(self) -> JsonValue:
        return self.location

    @override
    def with_split_plan(self, plan: Any) -> StreamedBatches:
        return self.staged_in(str(plan))

    @override
    def reader(self, index: int, parallelism: int) -> BatchReader:
        if self.location is None:
            raise ConfigurationError(f"source {self.name!r} has no staging area")
        start = BatchPosition.start(index, parallelism)
        return BatchReader(self.name, self.schema, self.errors == "strict", self.location, start)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        found = [
            BatchPosition.start(index, len(positions))
            if position is None
            else BatchPosition.from_json(self.name, position)
            for index, position in enumerate(positions)
        ]
        return [position.to_json() for position in redealt(found, parallelism)]

    def floor(self, position: JsonValue) -> int:
        """The first batch that a reader with this position still needs."""
        return 0 if position is None else BatchPosition.from_json(self.name, position).floor
