"""A thread that samples something while a block runs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from typing_extensions import Self


class SamplingThread(ABC):
    """A context manager: a thread named ``name`` takes a sample every ``period_s`` seconds until the block ends."""

    def __init__(self, name: str, period_s: float) -> None:
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._sample()

    @abstractmethod
    def _sample(self) -> None:
        """Take one sample."""
