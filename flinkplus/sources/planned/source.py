"""A Python data source of Spark whose ``streamReader()`` plans batches of partitions, as a source."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceStreamReader
from typing_extensions import Self, override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import JsonValue
from flinkplus.path_names import checked_name
from flinkplus.sources.base import LiveReader
from flinkplus.sources.planned.area import PlanArea
from flinkplus.sources.planned.position import PlannedPosition, positions_from, redealt
from flinkplus.sources.planned.reader import PlannedReader
from flinkplus.sources.python.source import DataSourceRows
from flinkplus.state.durable.savepoint_file import INPUT_FOLDER
from flinkplus.state.durable.seals import SigningKey

SEAL = "key of planned batches"
"""What the key is called among the secrets of the source."""


@dataclass(frozen=True)
class DataSourceBatches(DataSourceRows):
    """What ``streamReader()`` reads: the driver plans batches, the slots read their partitions.

    ``max_unread_batches``: limit of what is planned and was not read. ``available_now``: what there is at the start of
    a run, and then the end.
    ``folder``: of the planned batches, set by ``planned``. ``location``, ``seal``: where it is, and the key that its
    files are signed with; set by ``placed``.
    """

    max_unread_batches: int = 32
    available_now: bool = False
    folder: str | None = None
    location: str | None = None
    seal: SigningKey | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if type(self.max_unread_batches) is not int or self.max_unread_batches < 1:
            raise ConfigurationError(f"source {self.name!r}: max_unread_batches must be at least 1")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "seal": None}

    # --- in the driver

    @override
    def planned(self) -> DataSourceBatches:
        return self if self.folder is not None else replace(self, folder=f"{self.name}-{secrets.token_hex(4)}")

    @override
    def split_plan(self) -> JsonValue:
        return self.folder

    @override
    def with_split_plan(self, plan: Any) -> DataSourceBatches:
        return replace(self, folder=checked_name(plan))

    @override
    def placed(self, checkpoint_dir: str, key: SigningKey) -> DataSourceBatches:
        location = f"{checkpoint_dir.rstrip('/')}/{INPUT_FOLDER}/{self.folder}"
        return replace(self, location=location, seal=key.derived(f"planned/{self.folder}"))

    @override
    def sign_again(self) -> None:
        self.area().sign_again()

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {**super().settings(), "reader": "streamReader"}

    @override
    def secrets(self) -> Mapping[str, str]:
        seal = {} if self.seal is None else {SEAL: self.seal.secret.hex()}
        return {**super().secrets(), **seal}

    def floor(self, position: JsonValue) -> int:
        """The first partition that a reader with this position still needs."""
        return 0 if position is None else PlannedPosition.from_json(self.name, position).floor

    def begun(self, positions: Sequence[JsonValue]) -> int:
        """The number of partitions that were planned at least, if readers have these positions."""
        found = positions_from(self.name, positions)
        return max((*(position.begun for position in found), min(position.floor for position in found)))

    # --- in the driver and in slots

    def stream_reader(self) -> DataSourceStreamReader:
        """A new reader."""
        return self.source.instance().streamReader(self.spark_schema)

    def area(self) -> PlanArea:
        """The planned batches."""
        if self.location is None or self.seal is None:
            raise ConfigurationError(f"source {self.name!r} has no place for its planned batches")
        return PlanArea(self.location, self.seal)

    @override
    def redealt(self, positions: Sequence[JsonValue], parallelism: int) -> list[JsonValue]:
        return [position.to_json() for position in redealt(positions_from(self.name, positions), parallelism)]

    # --- in slots

    @override
    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        with_options = super().with_secrets({name: value for name, value in secrets.items() if name != SEAL})
        if SEAL not in secrets:
            return with_options
        return replace(with_options, seal=SigningKey(bytes.fromhex(secrets[SEAL]), "of this source"))

    def read_planned(self, partition: bytes) -> Any:
        """What the data source returns for a pickled partition."""
        return self.stream_reader().read(cloudpickle.loads(partition))

    @override
    def reader(self, index: int, parallelism: int) -> LiveReader:
        return PlannedReader(self, index, PlannedPosition.start(index, parallelism))
