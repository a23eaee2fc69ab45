"""Planned moves that a shell asks for.

Rules: in the coordinator's thread. A request is answered when it is known whether it can be carried out. Its
progress is asked for by the number in that answer (``MoveNewsCommand``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flinkplus.config import MOST_SPARES
from flinkplus.errors import CommandRefused, ConfigurationError, InsufficientSlots, MoveCancelled, MoveRefused
from flinkplus.runtime.control.names import find_subtask
from flinkplus.runtime.coordinator.membership.moves import Moves
from flinkplus.runtime.coordinator.membership.requests import PlannedMove
from flinkplus.runtime.operations.commands import Body, Commands, Later

if TYPE_CHECKING:
    from flinkplus.config import Options
    from flinkplus.graph import JobGraph


@dataclass(frozen=True)
class MigrateCommand:
    """Have ``subtask`` (``count:1``) work on ``slot``."""

    subtask: str
    slot: int


@dataclass(frozen=True)
class DrainHostCommand:
    """Have nothing on ``host``; ``force``: even where chains get shorter, or share hosts, by that."""

    host: str
    force: bool = False


@dataclass(frozen=True)
class UndrainHostCommand:
    """Use ``host`` again."""

    host: str


@dataclass(frozen=True)
class ScaleSparesCommand:
    """Have ``count`` spare slots; ``force``: as of ``DrainHostCommand``."""

    count: int
    force: bool = False


@dataclass(frozen=True)
class MoveNewsCommand:
    """What has become of request ``number``?"""

    number: int


def add_move_commands(commands: Commands, moves: Moves, graph: JobGraph, options: Options) -> None:
    """Accept requests for planned moves from shells."""

    def migrate(request: MigrateCommand) -> Later:
        """Raises ``ConfigurationError`` for an unknown subtask."""
        return _answer(moves.migrate(find_subtask(request.subtask, graph, options.parallelism), request.slot))

    def news(request: MoveNewsCommand) -> Body:
        """Raises ``CommandRefused`` for a request that is unknown or too old; otherwise the error that ended it."""
        move = moves.requests.find(request.number)
        if move is None:
            raise CommandRefused(f"request {request.number} is unknown or no longer remembered")
        move.check()
        return _body(move)

    commands.add(MigrateCommand, migrate)
    commands.add(DrainHostCommand, lambda request: _answer(moves.drain_host(request.host, request.force)))
    commands.add(UndrainHostCommand, lambda request: _answer(moves.undrain_host(request.host)))
    commands.add(ScaleSparesCommand, lambda request: _answer(moves.scale(check_count(request.count), request.force)))
    commands.add(MoveNewsCommand, news)


def check_count(count: int) -> int:
    """``count`` spare slots. Raises ``ConfigurationError`` when no job can have so many."""
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_SPARES:
        raise ConfigurationError(f"a job has from 0 to {MOST_SPARES} spare slots, not {count!r}")
    return count


def _body(move: PlannedMove) -> Body:
    return {"number": move.number, "status": move.status, "left": move.left}


def _answer(move: PlannedMove) -> Later:
    later = Later()

    def answer() -> None:
        try:
            move.check()
        except (MoveRefused, MoveCancelled, InsufficientSlots) as error:
            later.refuse(error)
        else:
            later.give(_body(move))

    if move.status is None:
        move.on_answer = answer
    else:
        answer()
    return later
