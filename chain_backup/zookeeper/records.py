"""What stands in ZooKeeper, and the events that tell of its changes.

Layout below ``/flinkplus/<application>`` (and the prefix that the hosts may end with)::

    epoch            its version is raised by every election; every write checks it, so an old coordinator cannot write
    coordinator      ephemeral: who coordinates
    slots/<i>        ephemeral: a living slot
    subtasks/<name>  generation, members and stable version of a chain

Rules: every node is a JSON object with ``format``; application and subtask names are percent-quoted in paths.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from chain_backup.zookeeper.errors import BadRecord
from flinkplus.documents import parse_document, whole
from flinkplus.errors import ConfigurationError, UnsafeName
from flinkplus.path_names import checked_subtask
from flinkplus.printable import printable

ROOT = "/flinkplus"
FORMAT = 1
Fields: TypeAlias = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChainRecord:
    """One subtask's chain: ``members`` are slots, head first; ``stable`` is the newest version they all hold."""

    subtask: str
    generation: int
    members: tuple[int, ...]
    stable: int

    def encode(self) -> bytes:
        """As bytes; equal records give equal bytes."""
        return encode(generation=self.generation, members=list(self.members), stable=self.stable)

    @staticmethod
    def decode(subtask: str, data: bytes) -> ChainRecord:
        """Of ``encode``. Raises ``BadRecord``."""

        def read(fields: Fields) -> ChainRecord:
            members = tuple(whole(slot) for slot in fields["members"])
            return ChainRecord(subtask, whole(fields["generation"]), members, whole(fields["stable"]))

        return decode(f"chain record of {printable(subtask)}", data, read)


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """A living slot: ``address`` (host:port) of its server, ``host``, process, and the coordinator's number of it."""

    address: str
    host: str
    pid: int
    incarnation: int

    def encode(self, epoch: int) -> bytes:
        """As bytes, with the coordinator's ``epoch`` it was registered in."""
        return encode(address=self.address, host=self.host, pid=self.pid, incarnation=self.incarnation, epoch=epoch)

    @staticmethod
    def decode(slot: int, data: bytes) -> tuple[SlotRecord, int]:
        """The record and the epoch of ``encode``. Raises ``BadRecord``."""

        def read(fields: Fields) -> tuple[SlotRecord, int]:
            address, host = printable(fields["address"]), printable(fields["host"])
            record = SlotRecord(address, host, whole(fields["pid"]), whole(fields["incarnation"]))
            return record, whole(fields["epoch"])

        return decode(f"slot {slot}", data, read)


def encode(**fields: Any) -> bytes:
    """A node's data."""
    return json.dumps({"format": FORMAT, **fields}, sort_keys=True).encode()


def decode(what: str, data: bytes, read: Callable[[Fields], T]) -> T:
    """What ``read`` makes of the fields of a node's data. Raises ``BadRecord`` naming ``what``."""
    try:
        fields = parse_document(data)
        if fields["format"] != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        return read(fields)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"{what}: {data[:200]!r}: {error!r:.200}") from error


class Paths:
    """The nodes of one application below ``prefix``. Raises ``ConfigurationError`` when it has no name."""

    def __init__(self, application: str, prefix: str = "") -> None:
        if not application:
            raise ConfigurationError("an application needs a name to register in ZooKeeper")
        self.root = f"{prefix}{ROOT}"
        self.base = f"{self.root}/{quote(application)}"
        self.epoch = f"{self.base}/epoch"
        self.coordinator = f"{self.base}/coordinator"
        self.slots = f"{self.base}/slots"
        self.subtasks = f"{self.base}/subtasks"

    def slot(self, slot: int) -> str:
        return f"{self.slots}/{slot}"

    def subtask(self, subtask: str) -> str:
        return f"{self.subtasks}/{quote(subtask)}"


def split_hosts(hosts: str) -> tuple[str, str]:
    """``host:port,host:port/some/prefix`` as servers and prefix: made when missing, unlike kazoo's own."""
    servers, _, prefix = hosts.partition("/")
    steps = [step for step in prefix.split("/") if step]
    return servers, "".join(f"/{step}" for step in steps)


def quote(name: str) -> str:
    """A name as one step of a path; ``.`` and ``..`` are none in ZooKeeper."""
    return urllib.parse.quote(name, safe="+[]").replace(".", "%2E")


def unquote(step: str) -> str:
    """The name of ``quote``, of a subtask. Raises ``BadRecord``."""
    try:
        return checked_subtask(urllib.parse.unquote(step))
    except UnsafeName as error:
        raise BadRecord(f"node {step[:200]!r} does not name a subtask") from error


@dataclass(frozen=True, slots=True)
class SlotNodeSeen:
    """A slot has registered (again)."""

    slot: int
    record: SlotRecord


@dataclass(frozen=True, slots=True)
class SlotNodeGone:
    """The registration ``record`` of a slot is gone: closed, expired, or replaced by a newer one (reported next)."""

    slot: int
    record: SlotRecord


@dataclass(frozen=True, slots=True)
class RegistryLost:
    """No connection to ZooKeeper until ``RegistryReconnected``; ``final``: never again, as another driver took over."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class RegistryReconnected:
    """Connected again, and still (or again) the coordinator; changes in between have been reported."""


@dataclass(frozen=True, slots=True)
class RegistryMoved:
    """The job's own server was restarted on another port. Clients reach it at ``hosts`` from now on."""

    hosts: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The slot has registered for the first time."""


@dataclass(frozen=True, slots=True)
class SessionSuspended:
    """No connection to ZooKeeper; the session may still live."""


@dataclass(frozen=True, slots=True)
class SessionReconnected:
    """Connected again in the same session, and registered."""


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The registration is lost permanently: the slot must stop sending. The last event, reported once."""

    reason: str


RegistryEvent: TypeAlias = SlotNodeSeen | SlotNodeGone | RegistryLost | RegistryReconnected | RegistryMoved
SessionEvent: TypeAlias = SessionOpened | SessionSuspended | SessionReconnected | SessionExpired
