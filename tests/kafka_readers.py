"""Readers of Kafka whose threads run, for tests; and records to be read."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from flinkplus.sources.base import MAX_CHOICE, LiveReader
from flinkplus.sources.kafka.source import KafkaOptions, KafkaSource, kafka_source
from tests.kafka_server import Producing, Reachable

PATIENCE_S = 60.0
QUICK = {"fetch.wait.max.ms": 20}
"""An imitated broker keeps a request so long though records come meanwhile."""


def produced(cluster: Reachable, topic: str, values: dict[int, Sequence[bytes | None]], **more: Any) -> None:
    producing = Producing(cluster.servers, cluster.config)
    producing.touch(topic)
    for partition, ones in values.items():
        producing.send(topic, partition, ones, **more)
    producing.flush()


def source(cluster: Reachable, topics: Any, **given: Any) -> KafkaSource:
    defaults = {"value": "json", "schema": "n long", "metadata": ["partition", "offset"], "start": "earliest"}
    more = {"stop": None, "group": None, "on_error": "fail", "discover": 30, "config": {**QUICK, **cluster.config}}
    options = KafkaOptions(**{**defaults, **more, **given})
    return kafka_source("orders", cluster.servers, topics, options).planned()


class Running:
    """A reader whose thread runs, and what it has said. A context manager."""

    def __init__(self, given: KafkaSource, index: int = 0, parallelism: int = 1, position: Any = None) -> None:
        self.reader: LiveReader = pickle.loads(pickle.dumps(given)).reader(index, parallelism)
        self.reader.open(position)
        self._changed = threading.Event()
        self.error: Exception | None = None

    def _woken(self, error: Exception | None) -> None:
        self.error = self.error or error
        self._changed.set()

    def __enter__(self) -> Running:
        self.reader.begin(self._woken)
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def until(self, condition: Callable[[], Any]) -> Any:
        """What ``condition`` gives that is not ``None`` or false; it is asked again only when the reader says so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._changed.clear()
            found = condition()
            if found is not None and found is not False:
                return found
            assert time.monotonic() < deadline
            self._changed.wait(1.0)
            if self.error is not None:
                raise self.error

    def rows(self, count: int, max_rows: int = 7) -> tuple[list[dict[str, Any]], list[int]]:
        """``count`` rows or more, and the choices that gave them."""
        rows: list[dict[str, Any]] = []
        choices = []
        while len(rows) < count:
            choice = self.until(lambda: self.reader.choose(max_rows))
            assert 0 < choice <= MAX_CHOICE and self.reader.can_read(choice)
            batch = self.reader.read(choice)
            assert batch is not None and batch.num_rows <= self.reader.rows_of(choice) <= max_rows
            batch.validate(full=True)
            rows += batch.to_pylist()
            choices.append(choice)
        return rows, choices

    def to_the_end(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while True:
            choice = self.until(lambda: self.reader.choose(1_000))
            batch = self.reader.read(choice)
            if batch is None:
                return rows
            rows += batch.to_pylist()

    def repeat(self, choices: list[int]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for choice in choices:
            self.until(lambda choice=choice: self.reader.can_read(choice))  # type: ignore[misc]
            batch = self.reader.read(choice)
            assert batch is not None
            rows += batch.to_pylist()
        return rows


def numbered(begin: int, end: int) -> list[bytes | None]:
    return [b'{"n": %d}' % n for n in range(begin, end)]
