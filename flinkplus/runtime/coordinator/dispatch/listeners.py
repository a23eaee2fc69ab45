"""The ports of the coordinator: control streams, lifelines, pulses, and commands of shells.

Rules: nothing is open before ``open``. ``Dispatch.close`` closes all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flinkplus.config import Options
from flinkplus.runtime.coordinator.dispatch.dispatch import Dispatch, InboxEvent, UserAsked
from flinkplus.runtime.coordinator.dispatch.slot_processes import SlotProcesses
from flinkplus.runtime.liveness.lifeline import Lifelines
from flinkplus.runtime.liveness.pulse import Pulses
from flinkplus.runtime.operations.command_server import CommandDoor
from flinkplus.runtime.operations.commands import Commands
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.factory import rendezvous

if TYPE_CHECKING:
    from flinkplus.runtime.base.inbox import Inbox


@dataclass(frozen=True)
class Addresses:
    """``host:port`` of each port.

    ``pulses``: ``None`` when slots send none. ``commands``: empty when the job accepts none.
    """

    rendezvous: str
    lifelines: str
    pulses: str | None
    commands: str = ""

    def at(self, host: str) -> Addresses:
        """The same ports, as seen from elsewhere."""

        def reached(address: str) -> str:
            return f"{host}:{address.rpartition(':')[2]}"

        pulses = None if self.pulses is None else reached(self.pulses)
        return Addresses(reached(self.rendezvous), reached(self.lifelines), pulses, reached(self.commands))


class Listeners:
    """Opens the ports of one job on ``host``, for slots that have ``credentials``.

    ``for_commands``: the credentials of shells; with ``None`` the job accepts no commands.
    ``directory``: the job's own, for shells on the same host.
    """

    def __init__(
        self,
        options: Options,
        host: str,
        credentials: Credentials,
        inbox: Inbox[InboxEvent],
        for_commands: Credentials | None = None,
        directory: Path | None = None,
    ) -> None:
        self._host = host
        self._credentials = credentials
        self._inbox = inbox
        self._for_commands = for_commands
        self._directory = directory
        self._hang_timeout_s = options.hang_timeout
        self.dispatch = Dispatch(
            rendezvous(options, credentials, host, inbox), SlotProcesses(options.parallelism), inbox
        )

    def open(self, commands: Commands) -> Addresses:
        """Accept slots, and have shells give ``commands``."""
        dispatch, inbox = self.dispatch, self._inbox
        address = dispatch.rendezvous.start()
        dispatch.lifelines = Lifelines(self._host, self._credentials, inbox, inbox.put)
        dispatch.pulses = self.open_pulses()
        if self._for_commands is not None:
            dispatch.door = CommandDoor(
                self._host,
                self._for_commands,
                inbox,
                commands,
                lambda action: inbox.put(UserAsked(action)),
                self._directory,
            )
        return Addresses(
            address,
            dispatch.lifelines.address,
            None if dispatch.pulses is None else dispatch.pulses.address,
            "" if dispatch.door is None else dispatch.door.address,
        )

    def open_pulses(self) -> Pulses | None:
        """Where slots send their pulses; ``None`` when hung slots are not looked for."""
        if self._hang_timeout_s is None:
            return None
        return Pulses(self._host, self._credentials.secret, self._hang_timeout_s, self._inbox, self.dispatch.clock)
