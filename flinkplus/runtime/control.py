"""The control plane's messages, between a slot and the coordinator.

Rules: each is a frozen dataclass; on the wire it is JSON with its name and the format version, so that an unknown
message
or version is refused (``PeerProtocolError``) and never guessed at. No code travels here: the job graph comes with
Spark's own task.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from flinkplus.errors import PeerProtocolError

FORMAT_VERSION = 1


# --- slot -> coordinator


@dataclass(frozen=True)
class Register:
    """A slot's first message. ``address``: ``host:port`` of its data server."""

    slot: int
    spark_attempt: int
    pid: int
    host: str
    address: str


@dataclass(frozen=True)
class Deployed:
    generation: int
    restore_ms: float


@dataclass(frozen=True)
class RestoreRefused:
    """The state of ``subtask`` at ``checkpoint`` failed its checks."""

    generation: int
    checkpoint: int
    subtask: str
    reason: str


@dataclass(frozen=True)
class SnapshotAcked:
    generation: int
    checkpoint: int
    subtask: str
    handle: dict[str, Any]


@dataclass(frozen=True)
class SnapshotRefused:
    generation: int
    checkpoint: int
    subtask: str
    reason: str


@dataclass(frozen=True)
class SubtaskFailure:
    """``kind`` is the error's class name; ``operator`` and ``row`` are set when a user function raised."""

    generation: int
    subtask: str
    kind: str
    reason: str
    operator: str = ""
    row: str = ""
    time_s: float = 0.0


@dataclass(frozen=True)
class Exhausted:
    generation: int
    subtask: str


@dataclass(frozen=True)
class Heartbeat:
    """Progress of a slot's subtasks: name -> counters (``rows_in``, ``rows_out``, per operator, state, blocked)."""

    generation: int
    subtasks: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Progressed:
    """``subtask`` put out its first new row after a recovery, at ``time_s`` (seconds since the Unix epoch)."""

    generation: int
    subtask: str
    time_s: float


@dataclass(frozen=True)
class Stopped:
    """All subtasks are closed; the slot's Spark task is about to return."""


# --- coordinator -> slot


@dataclass(frozen=True)
class Welcome:
    incarnation: int


@dataclass(frozen=True)
class Deploy:
    """Stop what runs, restore, wire the channels, answer ``Deployed``; do not run yet.

    ``assignment``: subtask -> slot, all of them. ``addresses``: slot -> [incarnation, host:port]. ``handles``:
    subtask ->
    snapshot handle, for this slot's subtasks only, empty without a checkpoint. ``marks``: subtask -> rows it had put
    out before the failure (``Progressed`` is due when it goes beyond).
    """

    generation: int
    checkpoint: int | None
    assignment: dict[str, int]
    addresses: dict[str, list[Any]]
    handles: dict[str, dict[str, Any]] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Suspend:
    """A recovery began: subtasks of ``generation`` and older stop at once."""

    generation: int


@dataclass(frozen=True)
class Start:
    """Run. ``run``: which run of the job this is (a resume is another); ``run_age_s``: how long ago its subtasks first
    started (an age, since hosts may differ in their clocks).
    """

    generation: int
    run: int
    run_age_s: float


@dataclass(frozen=True)
class Drain:
    """Sources read no more: they end as if exhausted."""

    generation: int


@dataclass(frozen=True)
class Trigger:
    generation: int
    checkpoint: int
    subtasks: list[str]


@dataclass(frozen=True)
class Abort:
    generation: int
    checkpoint: int
    reason: str


@dataclass(frozen=True)
class Complete:
    generation: int
    checkpoint: int


@dataclass(frozen=True)
class Stop:
    """Close everything and end the Spark task normally."""


@dataclass(frozen=True)
class Die:
    """Fault injection: kill your own process with SIGKILL."""


ControlMessage = (
    Register
    | Deployed
    | RestoreRefused
    | SnapshotAcked
    | SnapshotRefused
    | SubtaskFailure
    | Exhausted
    | Heartbeat
    | Progressed
    | Stopped
    | Welcome
    | Deploy
    | Suspend
    | Start
    | Drain
    | Trigger
    | Abort
    | Complete
    | Stop
    | Die
)

_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in ControlMessage.__args__}


def encode(message: ControlMessage) -> bytes:
    """The message as JSON bytes."""
    body = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    return json.dumps({"v": FORMAT_VERSION, "type": type(message).__name__, "body": body}).encode()


def decode(data: bytes) -> ControlMessage:
    """The message of ``encode``'s bytes; ``PeerProtocolError`` for anything else."""
    try:
        outer = json.loads(data)
        if outer["v"] != FORMAT_VERSION:
            raise PeerProtocolError(f"control format {outer['v']}, this program speaks {FORMAT_VERSION}")
        message: ControlMessage = _CLASSES[outer["type"]](**outer["body"])
    except (ValueError, KeyError, TypeError) as error:
        raise PeerProtocolError(f"malformed control message: {error!r}") from error
    return message
