"""Calls of a data source's ``streamReader()`` by the driver.

Rules: one thread. Offsets are JSON texts here; the data source always gets them as JSON gives them back. An error of
the data source is an ``InputError`` that names the source, the method and the user's line.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from flinkplus.errors import InputError
from flinkplus.operators.base.row import USER_EXCEPTIONS, described_cause
from flinkplus.sources.planned.source import DataSourceBatches
from flinkplus.sources.python.position import offset_text

MAX_OFFSET_BYTES = 1 << 20
MAX_BATCH_BYTES = 64 << 20
"""Maximum size of the pickled partitions of a batch."""

log = logging.getLogger("flinkplus")


class PlanCalls:
    """Makes a reader of ``source``, and calls it until ``stop``. Raises ``InputError``, and at the start
    ``ConfigurationError`` for a secret option that is missing."""

    def __init__(self, source: DataSourceBatches) -> None:
        self._source = source.with_known_secrets()
        self._reader = self._call("streamReader", self._source.stream_reader)
        # Without parameters it is as before PySpark 4.2.
        self._is_limited = bool(inspect.signature(self._reader.latestOffset).parameters)
        self._limit: Any = None
        self._target: str | None = None

    def initial(self) -> str:
        """Where the source begins."""
        return self._offset("initialOffset", self._reader.initialOffset)

    def prepare(self, start: str) -> None:
        """Call it before ``latest``. ``start``: where the next batch begins."""
        if self._is_limited:
            self._limit = self._call("getDefaultReadLimit", self._reader.getDefaultReadLimit)
        if not self._source.available_now:
            return
        prepare = getattr(self._reader, "prepareForTriggerAvailableNow", None)
        if prepare is not None:
            self._call("prepareForTriggerAvailableNow", prepare)
            return
        if self._is_limited:
            from pyspark.sql.streaming.datasource import ReadAllAvailable  # since PySpark 4.2

            self._limit = ReadAllAvailable()
        self._target = self.latest(start)

    def latest(self, start: str) -> str:
        """Where a batch that begins at ``start`` ends; ``start`` when there is nothing new."""
        if self._target is not None:
            return self._target
        arguments = (json.loads(start), self._limit) if self._is_limited else ()
        return self._offset("latestOffset", self._reader.latestOffset, *arguments)

    def partitions(self, start: str, end: str) -> list[bytes]:
        """Those between two offsets, pickled."""
        found: list[bytes] = self._call("partitions", self._pickled, json.loads(start), json.loads(end))
        size = sum(map(len, found))
        if size > MAX_BATCH_BYTES:
            raise InputError(
                f"source {self._source.name!r}: the partitions of one batch take {size} bytes, more than "
                f"{MAX_BATCH_BYTES}: let a partition say where its rows are, and latestOffset keep to a limit"
            )
        return found

    def _pickled(self, start: Any, end: Any) -> list[bytes]:
        partitions = list(self._reader.partitions(start, end))
        for partition in partitions:
            if not isinstance(partition, InputPartition):
                raise TypeError(f"a partition must be an InputPartition, not {type(partition).__name__}")
        return [cloudpickle.dumps(partition) for partition in partitions]

    def commit(self, end: str) -> None:
        """Nothing before ``end`` will be read again."""
        self._call("commit", self._reader.commit, json.loads(end))

    def stop(self) -> None:
        """The job ends. An error is only logged."""
        try:
            self._call("stop", self._reader.stop)
        except InputError as error:
            log.warning("%s", error)

    def _offset(self, method: str, call: Callable[..., Any], *arguments: Any) -> str:
        return offset_text(self._source.name, self._call(method, call, *arguments), MAX_OFFSET_BYTES)

    def _call(self, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except USER_EXCEPTIONS as error:
            cause = self._source.hide(described_cause(error))
            raise InputError(
                f"source {self._source.name!r}: {method} of {self._source.shown} raised {cause}"
            ) from error
