"""Savepoints that a shell requests. The answer has a number, by which the shell asks for its progress.

Rules: only the coordinator's thread calls this.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.errors import CommandRefused, ConfigurationError
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls
from flinkplus.runtime.coordinator.drivers.savepoints import Savepoint, SavepointDriver
from flinkplus.runtime.operations.commands import Commands, Later

LOOK_S = 0.02
LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class SavepointCommand:
    """Take a savepoint at ``target``, a URI or an absolute path on the driver's host; ``stop``: and stop the job."""

    target: str
    stop: bool = False


@dataclass(frozen=True)
class SavepointNewsCommand:
    """Report the progress of request ``number``: when its state changes from ``seen``, or after ``wait_s`` seconds."""

    number: int
    seen: str = ""
    wait_s: float = 0.0


def add_savepoint_commands(commands: Commands, savepoints: SavepointDriver, calls: Calls) -> None:

    def take(request: SavepointCommand) -> Later:
        if not request.target.startswith("/") and "://" not in request.target:
            raise ConfigurationError(f"{request.target!r:.200} is neither an absolute path nor a URI")
        savepoint = savepoints.request(request.target, request.stop)
        return _answered(savepoint, "begun", LONGEST_WAIT_S)

    def news(request: SavepointNewsCommand) -> Later:
        savepoint = savepoints.find(request.number)
        if savepoint is None:
            raise CommandRefused(f"savepoint {request.number} is unknown or no longer remembered")
        return _answered(savepoint, request.seen, min(max(request.wait_s, 0.0), LONGEST_WAIT_S))

    def _answered(savepoint: Savepoint, seen: str, wait_s: float) -> Later:
        left = [wait_s]

        def look(later: Later) -> None:
            if savepoint.error is not None:
                later.give(savepoint.error)
            elif savepoint.status != seen or left[0] <= 0:
                later.give(savepoint.as_dict())
            elif later.wanted:
                left[0] -= LOOK_S
                calls.later(LOOK_S, lambda: look(later))

        later = Later(look)
        look(later)
        return later

    commands.add(SavepointCommand, take)
    commands.add(SavepointNewsCommand, news, reports=True)
