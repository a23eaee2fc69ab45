"""The ports of the coordinator: control streams, lifelines, pulses, and the command server.

Rules: ``open`` opens all of them, ``Dispatch.close`` closes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flinkplus.config import Options
from flinkplus.runtime.coordinator.dispatch.dispatch import Calls, Dispatch
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.liveness.lifeline import Lifelines
from flinkplus.runtime.liveness.pulse import Pulses
from flinkplus.runtime.operations.command_server import CommandServer
from flinkplus.runtime.operations.commands import Commands
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.factory import rendezvous


@dataclass(frozen=True)
class Addresses:
    """``host:port`` of each port. ``pulses``: ``None`` if slots send none. ``commands``: empty without a server."""

    rendezvous: str
    lifelines: str
    pulses: str | None
    commands: str = ""


@dataclass(eq=False, repr=False)
class Listeners:
    """Opens the ports of one job on ``host``, for slots that have ``credentials``.

    ``reach``: name of ``host`` for slots and shells; empty: ``host``.
    ``for_commands``: the credentials of shells; ``None``: the job accepts no commands.
    ``directory``: the job's own, for the socket for shells on this host.
    """

    _options: Options
    _host: str
    _credentials: Credentials
    _calls: Calls
    _reach: str = ""
    _for_commands: Credentials | None = None
    _directory: Path | None = None

    def __post_init__(self) -> None:
        inbox, slots = self._calls.inbox, SlotProcesses(self._options.parallelism)
        self.dispatch = Dispatch(rendezvous(self._options, self._credentials, self._host, inbox), slots, inbox)

    def open(self, commands: Commands) -> Addresses:
        """Open all ports. ``commands``: what shells may request."""
        dispatch, inbox = self.dispatch, self._calls.inbox
        address = dispatch.rendezvous.start()
        dispatch.lifelines = Lifelines(self._host, self._credentials, inbox, inbox.put)
        dispatch.pulses = self.open_pulses()
        if self._for_commands is not None:
            dispatch.commands = CommandServer(
                self._host, self._for_commands, inbox, commands, self._calls.ask, self._directory
            )
        return Addresses(
            self._reached(address),
            self._reached(dispatch.lifelines.address),
            None if dispatch.pulses is None else self._reached(dispatch.pulses.address),
            "" if dispatch.commands is None else self._reached(dispatch.commands.address),
        )

    def _reached(self, address: str) -> str:
        return f"{self._reach or self._host}:{address.rpartition(':')[2]}"

    def open_pulses(self) -> Pulses | None:
        """The receiver of the slots' pulses; ``None`` without ``hang_timeout``."""
        if self._options.hang_timeout is None:
            return None
        host, inbox, clock = self._host, self._calls.inbox, self.dispatch.clock
        return Pulses(host, self._credentials.secret, self._options.hang_timeout, inbox, clock)
