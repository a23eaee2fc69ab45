"""A record of what the coordinator's machines were given and what they ordered, to be repeated elsewhere.

Each machine is a function of its configuration and of its events with their times. So a record of a real run, fed to
the same machines in a simulator, must give the same effects; where it does not, the run can be looked into step by
step. Off unless the option ``record_machines`` names a file.

The file is pickles, end to end: a header (format version), then entries: ``made`` (machine, class, arguments),
``stepped`` (machine, time, event, effects), ``raised`` (machine, time, event, name of the error). It is for the
program that wrote it: unpickling runs code.

Rules: the coordinator's thread alone. An error that travels in an event or effect is recorded as text. A record that
cannot be written any more is given up, and the job continues.
"""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

FORMAT_VERSION = 1
M = TypeVar("M")
log = logging.getLogger("flinkplus.coordinator")


class Recorder:
    """Writes one file. Raises ``OSError`` when it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._failed = False
        self._write(("header", FORMAT_VERSION))

    def machine(self, name: str, make: Callable[..., M], *arguments: Any, **settings: Any) -> M:
        """The machine that ``make`` makes of these arguments, recorded under ``name``."""
        self._write(("made", name, make, arguments, settings))
        recorded: Any = _Recorded(self, name, make(*arguments, **settings))
        machine: M = recorded
        return machine

    def stepped(self, name: str, now_ms: int, event: Any, effects: list[Any]) -> None:
        self._write(("stepped", name, now_ms, plain(event), [plain(effect) for effect in effects]))

    def raised(self, name: str, now_ms: int, event: Any, error: Exception) -> None:
        self._write(("raised", name, now_ms, plain(event), type(error).__name__))

    def _write(self, entry: tuple[Any, ...]) -> None:
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
    """Stands for a machine."""

    def __init__(self, recorder: Recorder, name: str, machine: Any) -> None:
        self._recorder = recorder
        self._name = name
        self._machine = machine

    def step(self, now_ms: int, event: Any) -> list[Any]:
        try:
            effects: list[Any] = self._machine.step(now_ms, event)
        except Exception as error:
            self._recorder.raised(self._name, now_ms, event, error)
            raise
        self._recorder.stepped(self._name, now_ms, event, effects)
        return effects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


def plain(value: Any) -> Any:
    """An event or effect whose ``error``, which is opaque to every machine, is text."""
    error = getattr(value, "error", None)
    return value if error is None or isinstance(error, str) else dataclasses.replace(value, error=repr(error))


def read(path: Path) -> Iterator[tuple[Any, ...]]:
    """The entries of a file, without its header. Raises ``ValueError`` for one of another format."""
    with path.open("rb") as file:
        header = pickle.load(file)
        if header != ("header", FORMAT_VERSION):
            raise ValueError(f"{path} is no record of machines in format {FORMAT_VERSION}")
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return
