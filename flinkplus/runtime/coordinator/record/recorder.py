"""Records the inputs and effects of the coordinator's machines, to replay them in a simulator.

A machine is a function of its configuration and of its events with their times. So a recorded run, fed to the same
machines in a simulator, must produce the same effects. The option ``record_machines`` names the file.

The file consists of pickles: a header (format version), then entries: ``made`` (machine, class, arguments), ``stepped``
(machine, time, event, effects), ``raised`` (machine, time, event, name of the error). Only the program that wrote it
should read it: unpickling runs code.

Rules: an error in an event or effect is recorded as text. If a write fails, recording stops and the job continues.
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

FORMAT_VERSION = 1
M = TypeVar("M")
log = logging.getLogger("flinkplus.coordinator")


class Recorder:
    """Writes one file. Raises ``OSError`` when it cannot be created."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._failed = False
        self.write(("header", FORMAT_VERSION))

    def machine(self, name: str, make: Callable[..., M], *arguments: Any, **settings: Any) -> M:
        """Create a machine by ``make`` with these arguments, recorded under ``name``."""
        self.write(("made", name, make, arguments, settings))
        return cast(M, _Recorded(self, name, make(*arguments, **settings)))

    def write(self, entry: tuple[Any, ...]) -> None:
        """Add an entry, unless an earlier one could not be written."""
        if self._failed:
            return
        try:
            self._file.write(pickle.dumps(entry))
        except (OSError, pickle.PicklingError, AttributeError, TypeError) as error:
            self._failed = True
            log.warning("cannot write the record of the machines; recording stops: %s", error)

    def close(self) -> None:
        self._file.close()


class _Recorded:
    """A machine whose steps are recorded."""

    def __init__(self, recorder: Recorder, name: str, machine: Any) -> None:
        self._recorder, self._name, self._machine = recorder, name, machine

    def step(self, now_ms: int, event: Any) -> list[Any]:
        try:
            effects: list[Any] = self._machine.step(now_ms, event)
        except Exception as error:
            self._recorder.write(("raised", self._name, now_ms, plain(event), type(error).__name__))
            raise
        self._recorder.write(("stepped", self._name, now_ms, plain(event), [plain(effect) for effect in effects]))
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


def plain(value: Any) -> Any:
    """An event or effect with its ``error``, which is opaque to every machine, as text."""
    error = getattr(value, "error", None)
    return value if error is None or isinstance(error, str) else dataclasses.replace(value, error=repr(error))


def read(path: Path) -> Iterator[tuple[Any, ...]]:
    """The entries of a file, without its header. Raises ``ValueError`` for another format."""
    with path.open("rb") as file:
        header = pickle.load(file)
        if header != ("header", FORMAT_VERSION):
            raise ValueError(f"{path} is no record of machines in format {FORMAT_VERSION}")
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return
