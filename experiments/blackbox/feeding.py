"""Feeders: threads that give a job its input while it runs, as it would come from others.

Rules: rows come at the rate of the job, in bursts. A feeder waits when the rows that it has given are too far ahead of
those that are visible: so a long recovery does not use up the input. Each row is given exactly once, so a feeder gives
nothing while its broker is away (``held``).
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.harness.kafka_server import KafkaServer, Producing
from experiments.harness.running import RunError

LEAD_S = 3.0
"""How far the rows that are given may be ahead of those that are visible, at the rate of the job."""
HURRY = 20_000.0
PAUSES_S = (0.0, 0.02, 0.1, 0.3)
"""Between two bursts, one of these."""


class Feeder(ABC):
    """Gives ``rows`` rows at ``rate`` rows per second, in units of ``unit`` rows. ``visible``: how many are visible."""

    def __init__(self, rows: int, rate: float, seed: int, visible: Callable[[], int], unit: int = 1) -> None:
        self._rows, self._rate, self._visible, self._unit = rows, rate, visible, unit
        self._chance = random.Random(seed)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="feeder")
        self.given = 0

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Give what is left at ``HURRY`` rows per second."""
        self._rate = HURRY

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Gives nothing behind this, and has given all that it began to give."""
        with self._lock:
            yield

    def check(self) -> None:
        """Raises ``RunError`` when it has failed."""
        if self._error is not None:
            raise RunError(f"the input could not be given: {type(self._error).__name__}: {self._error}")

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    @abstractmethod
    def _give(self, first: int, end: int) -> None:
        """Give the rows of a range; all of them are there when it returns."""

    def _run(self) -> None:
        try:
            allowed, last_s = 0.0, time.monotonic()
            while self.given < self._rows and not self._stop.wait(self._chance.choice(PAUSES_S) + 0.005):
                now_s = time.monotonic()
                room = self._visible() + LEAD_S * self._rate
                allowed, last_s = min(allowed + (now_s - last_s) * self._rate, room, self._rows), now_s
                end = int(allowed) if allowed >= self._rows else int(allowed) // self._unit * self._unit
                if end > self.given:
                    with self._lock:
                        self._give(self.given, end)
                    self.given = end
        except Exception as problem:  # it is raised by ``check``, in the thread that waits for rows
            self._error = problem


class FileFeeder(Feeder):
    """Files that appear in a directory, complete, one after the other. ``content``: the text of file number *f*."""

    def __init__(
        self,
        rows: int,
        rate: float,
        seed: int,
        visible: Callable[[], int],
        per_file: int,
        directory: Path,
        content: Callable[[int], str],
    ) -> None:
        super().__init__(rows, rate, seed, visible, per_file)
        self._directory, self._content = directory, content

    def _give(self, first: int, end: int) -> None:
        for file in range(first // self._unit, end // self._unit):
            hidden = self._directory / f".{file:06}.tmp"
            hidden.write_text(self._content(file))
            os.replace(hidden, self._directory / f"{file:06}.txt")


class TopicFeeder(Feeder):
    """Records of a topic: row *i* is a record of partition ``i % partitions``. ``value``: of row *i*."""

    def __init__(
        self,
        rows: int,
        rate: float,
        seed: int,
        visible: Callable[[], int],
        kafka: KafkaServer,
        topic: str,
        partitions: int,
        value: Callable[[int], bytes],
    ) -> None:
        super().__init__(rows, rate, seed, visible)
        self._kafka, self._topic, self._partitions, self._value = kafka, topic, partitions, value
        self._connect()

    def _connect(self) -> None:
        """With another producer for each start of the broker. One that asks a broker which does not lead its partitions
        yet takes the topic for one that has none, for a while."""
        self._starts = self._kafka.starts
        self._kafka.until_led(self._topic, self._partitions)
        self._producing = Producing(self._kafka.servers, self._kafka.config)
        self._producing.touch(self._topic)

    def _give(self, first: int, end: int) -> None:
        if self._starts != self._kafka.starts:
            self._connect()
        for i in range(first, end):
            self._producing.send(self._topic, i % self._partitions, [self._value(i)])
        self._producing.flush()
