"""Planned moves that a shell requests. The answer to a request has a number, by which the shell polls its progress.

Rules: only the coordinator's thread calls this.
"""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.config import MOST_SPARES
from flinkplus.errors import CommandRefused, ConfigurationError, InsufficientSlots, MoveCancelled, MoveRefused
from flinkplus.graph import JobGraph
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment
from flinkplus.runtime.coordinator.membership.moves import Moves, PlannedMove
from flinkplus.runtime.operations.commands import Body, Commands, Later


@dataclass(frozen=True)
class MigrateCommand:
    """Move ``subtask`` (``count:1``) to ``slot``."""

    subtask: str
    slot: int


@dataclass(frozen=True)
class DrainHostCommand:
    """Move all subtasks and standbys off ``host``; ``force``: even if chains get shorter, or share hosts."""

    host: str
    force: bool = False


@dataclass(frozen=True)
class UndrainHostCommand:
    """Allow subtasks and standbys on ``host`` again."""

    host: str


@dataclass(frozen=True)
class ScaleSparesCommand:
    """Start or end spare slots until there are ``count``; ``force``: as of ``DrainHostCommand``."""

    count: int
    force: bool = False


@dataclass(frozen=True)
class RescaleCommand:
    """Continue at ``parallelism``."""

    parallelism: int


@dataclass(frozen=True)
class MoveNewsCommand:
    """Report the progress of request ``number``."""

    number: int


def add_move_commands(
    commands: Commands, moves: Moves, graph: JobGraph, deployment: Deployment, max_parallelism: int
) -> None:

    def migrate(request: MigrateCommand) -> Later:
        """Raises ``ConfigurationError`` for an unknown subtask."""
        return _answer(moves.migrate(find_subtask(request.subtask, graph, deployment.parallelism), request.slot))

    def news(request: MoveNewsCommand) -> Body:
        """Raises ``CommandRefused`` for an unknown or too old request; otherwise the error that ended it."""
        move = moves.requests.find(request.number)
        if move is None:
            raise CommandRefused(f"request {request.number} is unknown or no longer remembered")
        move.check()
        return _body(move)

    commands.add(MigrateCommand, migrate)
    commands.add(DrainHostCommand, lambda request: _answer(moves.drain_host(request.host, request.force)))
    commands.add(UndrainHostCommand, lambda request: _answer(moves.undrain_host(request.host)))
    commands.add(ScaleSparesCommand, lambda request: _answer(moves.scale(check_count(request.count), request.force)))
    commands.add(
        RescaleCommand,
        lambda request: _answer(moves.rescale(check_parallelism(request.parallelism, max_parallelism))),
    )
    commands.add(MoveNewsCommand, news, reports=True)


def check_count(count: int) -> int:
    """Returns ``count``. Raises ``ConfigurationError`` unless it is a possible number of spare slots."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_SPARES:
        raise ConfigurationError(f"a job has from 0 to {MOST_SPARES} spare slots, not {count!r}")
    return count


def check_parallelism(parallelism: int, max_parallelism: int) -> int:
    """Returns ``parallelism``. Raises ``ConfigurationError`` unless a job with that many key groups can have it."""
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"the job can have a parallelism from 1 to {max_parallelism} (max_parallelism), not {parallelism!r}"
        )
    return parallelism


def _body(move: PlannedMove) -> Body:
    return {"number": move.number, "status": move.status, "left": move.left}


def _answer(move: PlannedMove) -> Later:
    later = Later()

    def answer() -> None:
        try:
            move.check()
        except (MoveRefused, MoveCancelled, InsufficientSlots) as error:
            later.give(error)
        else:
            later.give(_body(move))

    if move.status is None:
        move.on_answer = answer
    else:
        answer()
    return later
