"""Control messages between a slot and the coordinator.

Rules: each is a frozen dataclass; on the wire it is JSON with its name and the format version. An unknown message or
version is refused (``PeerProtocolError``), and so is a name that must not become part of a path (``path_names``). Texts
enter errors and logs, so they are escaped and cut when they are decoded (``printable``). Messages contain no code.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from flinkplus.documents import Document, check_fields, hints_of, parse_document, readers
from flinkplus.errors import ControlMessageTooLarge, CorruptState, PeerProtocolError
from flinkplus.path_names import checked_subtask
from flinkplus.printable import printable
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.control.promotion_order import PromotionOrder

FORMAT_VERSION = 2
"""2: the start of a job is a handle of checkpoint 0, not an empty handle."""
MAX_BYTES = 256 << 20
"""Maximum length. A promotion has all determinants and digests since a checkpoint, a deployment channel state."""
MAX_TEXT_CHARACTERS = 20_000
"""Maximum length of a text, such as the reason of a failure."""
MAX_NAME_CHARACTERS = 1_000
"""Maximum length of a short text, such as a host."""


# --- slot -> coordinator


@dataclass(frozen=True)
class Register:
    """A slot's first message.

    ``spark_attempt``: ID of its Spark task's attempt; larger than those of all earlier attempts.
    ``address``: ``host:port`` of its data server.
    ``lifeline``, ``pulse``: names of its lifeline and its pulse; empty: it has none.
    ``created_s``: when its process was created (seconds since the Unix epoch; 0: unknown).
    """

    slot: int
    spark_attempt: int
    pid: int
    host: str
    address: str
    lifeline: str = ""
    pulse: str = ""
    created_s: float = 0.0


@dataclass(frozen=True)
class StartFailed:
    """A slot's first and last message: its process cannot start.

    ``tries``: how many processes in a row failed to start before it.
    ``kind``, ``reason``, ``trace``: class name, message and traceback of the error.
    """

    slot: int
    tries: int
    pid: int
    host: str
    kind: str
    reason: str
    trace: str = ""


@dataclass(frozen=True)
class Deployed:
    generation: int
    restore_ms: float


@dataclass(frozen=True)
class RestoreFailed:
    """The state of ``subtask`` at ``checkpoint`` is damaged or missing."""

    generation: int
    checkpoint: int
    subtask: str
    reason: str


@dataclass(frozen=True)
class Acknowledged:
    generation: int
    checkpoint: int
    subtask: str
    handle: SnapshotHandle


@dataclass(frozen=True)
class Declined:
    """``cause``: the value of an ``AbortCause``."""

    generation: int
    checkpoint: int
    subtask: str
    reason: str
    cause: str = AbortCause.OTHER.value

    @property
    def abort_cause(self) -> AbortCause:
        """Raises ``PeerProtocolError``."""
        try:
            return AbortCause(self.cause)
        except ValueError as error:
            raise PeerProtocolError(f"unknown cause of a declined checkpoint: {self.cause!r:.100}") from error


@dataclass(frozen=True)
class Failed:
    """A subtask failed.

    ``kind``, ``reason``: class name and message of the error.
    ``operator``, ``row``, ``cause``: set if a user function raised; they are also part of ``reason``.
    ``time_s``: when it failed (seconds since the Unix epoch; 0: unknown).
    """

    generation: int
    subtask: str
    kind: str
    reason: str
    operator: str = ""
    row: str = ""
    time_s: float = 0.0
    cause: str = ""


@dataclass(frozen=True)
class Exhausted:
    generation: int
    subtask: str


@dataclass(frozen=True)
class Heartbeat:
    """Progress of a slot, with counters since its process started.

    ``subtasks``: subtask -> counters (``rows_in``, ``rows_out``, per operator, state, blocked).
    ``refused``: connections that its data plane has refused.
    ``malformed``: frames that it has dropped.
    ``fenced``: messages, credit and versions of fenced generations that it has dropped.
    ``copied``: origin -> bytes of its standbys' state files: ``received`` from slots, ``from_storage``, ``kept``.
    """

    generation: int
    subtasks: dict[str, dict[str, Any]]
    refused: int = 0
    malformed: int = 0
    fenced: int = 0
    copied: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progressed:
    """``subtask`` emitted its first new row after a recovery, at ``time_s`` (seconds since the Unix epoch)."""

    generation: int
    subtask: str
    time_s: float


@dataclass(frozen=True)
class Staged:
    """This slot, a standby of ``subtask``, holds all of ``version``; ``generation``: of the chain that sent it."""

    generation: int
    subtask: str
    version: int


@dataclass(frozen=True)
class Fenced:
    """The answer to ``Fence``: this slot now ignores everything of older generations.

    ``received``: channel from a failed subtask to one that runs here -> next ``seq`` expected.
    ``sent``: channel to a failed subtask from one that runs here -> next ``seq`` to send.
    ``determinants``: failed subtask, or its ancestor -> spans of known determinants, each ``[first step, [values]]``.
    ``digests``: channel -> spans of digests of received messages, each ``[first seq, text]``.
    ``kept``: channel in ``sent`` -> oldest ``seq`` that can be sent again.
    """

    attempt: int
    received: dict[str, int]
    sent: dict[str, int]
    determinants: dict[str, list[list[Any]]]
    digests: dict[str, list[list[Any]]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FencedPart:
    """A part of a long answer to ``Fence``, sent before ``Fenced``. Each part shows that the slot is alive."""

    attempt: int
    determinants: dict[str, list[list[Any]]]
    digests: dict[str, list[list[Any]]]


@dataclass(frozen=True)
class Promoted:
    """All subtasks of a ``Promote`` are running; ``restore_ms``: the time that restoring them took."""

    attempt: int
    restore_ms: float
    time_s: float


@dataclass(frozen=True)
class PromotionFailed:
    attempt: int
    subtask: str
    reason: str


@dataclass(frozen=True)
class Connected:
    """The answer to ``Connect``: this slot has a stream to each of the others."""

    serial: int


@dataclass(frozen=True)
class PeersUnreached:
    """Sent when the set of slots changes that this one cannot reach, or that do not answer it. The machine of
    ``flinkplus.protocol.liveness.reachability`` decides what follows.

    ``peers``: slot -> incarnation, of all of them.
    ``blamed``: those that refuse connections, or keep sending malformed frames.
    """

    peers: dict[str, int]
    blamed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionLost:
    """The slot's ZooKeeper session expired: it has stopped sending and is about to end."""

    reason: str


@dataclass(frozen=True)
class Stopped:
    """All subtasks are closed; the slot's Spark task is about to end."""


@dataclass(frozen=True)
class Prefetched:
    """How far the files of a ``Prefetch`` are.

    ``left_bytes``: to be fetched; 0: nothing is.
    ``reason``: why a file was left out; otherwise empty.
    """

    request: int
    left_bytes: int
    reason: str = ""


# --- coordinator -> slot


@dataclass(frozen=True)
class Welcome:
    incarnation: int


@dataclass(frozen=True)
class Deploy:
    """Stop running subtasks, restore, connect the channels, answer ``Deployed``; wait for ``Start``.

    ``assignment``: subtask -> slot, of the whole job. ``addresses``: slot -> [incarnation, host:port].
    ``handles``: subtask -> snapshot handle, of this slot's subtasks; empty without a checkpoint.
    ``marks``: subtask -> rows emitted before the failure; ``Progressed`` is sent when it exceeds them.
    ``notes_rows``: a process was lost since the last complete checkpoint, so note each row before it is used.
    ``alone``: there is no other slot, so nothing is logged for one.
    ``repeats``: subtask of this slot -> [see ``SubtaskIdentity.recorded``, spans of determinants as in ``Fenced``].
    ``held``: as in ``Hold``.
    """

    generation: int
    checkpoint: int | None
    assignment: dict[str, int]
    addresses: dict[str, list[Any]]
    handles: dict[str, SnapshotHandle] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    notes_rows: bool = False
    alone: bool = False
    repeats: dict[str, list[Any]] = field(default_factory=dict)
    held: int = 0


@dataclass(frozen=True)
class Prefetch:
    """Fetch files that a deployment may need soon, and report how far that is; others are not needed any more.

    ``request``: the number of this order, for ``Prefetched``.
    ``files``: those of all subtasks that are to run, or to have a standby, on this slot.
    """

    request: int
    files: tuple[StateFile, ...] = ()


@dataclass(frozen=True)
class Halt:
    """A recovery begins: stop subtasks of ``generation`` and older at once."""

    generation: int


@dataclass(frozen=True)
class Start:
    """Run the deployed subtasks.

    ``run``: the number of this run of the job.
    ``run_age_s``: seconds since its subtasks first started (an age, because clocks of hosts may differ).
    """

    generation: int
    run: int
    run_age_s: float


@dataclass(frozen=True)
class Join:
    """The current assignment, for a new incarnation of a slot while the job runs. It runs no subtask yet.

    ``generation``: of the deployment.
    ``assignment``: subtask -> slot.
    ``generations``: subtask -> its own generation.
    ``held``: as in ``Hold``.
    """

    generation: int
    assignment: dict[str, int]
    generations: dict[str, int]
    held: int = 0


@dataclass(frozen=True)
class Connect:
    """Keep a stream to exactly these slots (slot -> [incarnation, address]); answer ``Connected``."""

    serial: int
    addresses: dict[str, list[Any]]


@dataclass(frozen=True)
class Chains:
    """The chains of all subtasks: subtask -> [generation, [slots, head first]]."""

    chains: dict[str, list[Any]]


@dataclass(frozen=True)
class Fence:
    """Subtasks ``failed`` (-> slot of the new head) have a new ``generation``: stop those that run here, ignore older
    generations, answer ``Fenced``."""

    attempt: int
    generation: int
    failed: dict[str, int]


@dataclass(frozen=True)
class Promote:
    """Promote the standbys of these subtasks, and answer ``Promoted`` or ``PromotionFailed``.

    ``complete``: the newest complete checkpoint.
    ``run``, ``run_age_s``: as in ``Start``; ``notes_rows``: as in ``Deploy``.
    """

    attempt: int
    generation: int
    run: int
    run_age_s: float
    draining: bool
    complete: int
    subtasks: dict[str, PromotionOrder]
    notes_rows: bool = False


@dataclass(frozen=True)
class Trim:
    """``version`` is complete, and every chain has it: trim logs of everything before it."""

    version: int


@dataclass(frozen=True)
class Drain:
    """Sources stop reading, and end as if exhausted."""

    generation: int


@dataclass(frozen=True)
class Trigger:
    generation: int
    checkpoint: int
    subtasks: list[str]


@dataclass(frozen=True)
class Hold:
    """Sinks whose rows are visible at once hold back what they make behind ``checkpoint``; 0: nothing."""

    generation: int
    checkpoint: int


@dataclass(frozen=True)
class Overtake:
    """Barriers of ``checkpoint`` may overtake from now on (``flinkplus.protocol.barriers.unaligned``)."""

    generation: int
    checkpoint: int


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
    """Close all subtasks and end the Spark task normally."""


@dataclass(frozen=True)
class RegistryAddress:
    """ZooKeeper has a new address: reconnect to ``hosts`` with the same session, or open one if there is none yet."""

    hosts: str


@dataclass(frozen=True)
class Die:
    """Fault injection: kill your own process with SIGKILL."""


@dataclass(frozen=True)
class Inject:
    """Fault injection: ``fault`` is one of ``faults.injections.FAULTS``.

    ``for_s``: duration of ``pause``, ``cut`` and ``slow``.
    ``delay_s``: delay of each step of ``subtasks``, for ``slow``.
    ``peers``: for ``cut``: slots, and -1 for the driver; ``None``: all.
    ``point``: for ``kill``: where one of ``subtasks`` must arrive (``faults.points``).
    """

    fault: str
    subtasks: list[str]
    for_s: float = 0.0
    delay_s: float = 0.0
    peers: list[int] | None = None
    point: str = ""


SubtaskReport = Failed | Acknowledged | Declined | Exhausted | Progressed
FailoverReport = Staged | Fenced | FencedPart | Promoted | PromotionFailed | Connected
SlotReport = (
    Register | StartFailed | Deployed | RestoreFailed | Prefetched | Heartbeat | PeersUnreached | SessionLost | Stopped
)
JobOrder = Welcome | Prefetch | Deploy | Halt | Start | Drain | Stop | RegistryAddress
FailoverOrder = Join | Connect | Chains | Fence | Promote | Trim
CheckpointOrder = Trigger | Hold | Overtake | Abort | Complete
FaultOrder = Die | Inject
ControlMessage = SubtaskReport | FailoverReport | SlotReport | JobOrder | FailoverOrder | CheckpointOrder | FaultOrder

_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in ControlMessage.__args__}
_HINTS: dict[str, dict[str, Any]] = {name: hints_of(cls) for name, cls in _CLASSES.items()}
_SUBTASKS = {"subtask", "subtasks", "assignment", "generations", "chains", "failed", "marks", "handles", "repeats"}
"""Fields that contain names of subtasks: as their value, in a list, or as keys."""
_TEXTS = {
    name: [field for field, hint in hints.items() if hint is str and field not in _SUBTASKS]
    for name, hints in _HINTS.items()
}
_LONG = {"reason", "cause", "row", "trace"}
_SEVERAL_LINES = {"trace"}
"""Texts that keep line breaks and tabs."""
_NAMING = {name: sorted(_SUBTASKS.intersection(hints)) for name, hints in _HINTS.items()}


def encode(message: ControlMessage) -> bytes:
    """The message as JSON bytes. Raises ``ControlMessageTooLarge`` beyond ``MAX_BYTES``, which receivers refuse."""
    name = type(message).__name__
    body = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    data = json.dumps({"v": FORMAT_VERSION, "type": name, "body": body}, default=_document).encode()
    if len(data) > MAX_BYTES:
        raise ControlMessageTooLarge(f"{name} would take {len(data):,} bytes; the maximum is {MAX_BYTES:,}")
    return data


def decode(data: bytes) -> ControlMessage:
    """The inverse of ``encode``. Raises ``PeerProtocolError`` for anything else."""
    try:
        outer = parse_document(data)
        if outer["v"] != FORMAT_VERSION:
            raise PeerProtocolError(f"control format {outer['v']!r:.100}; this program reads {FORMAT_VERSION}")
        body = {**outer["body"]}
        for name in _TEXTS[outer["type"]]:
            if type(body.get(name)) is str:
                longest = MAX_TEXT_CHARACTERS if name in _LONG else MAX_NAME_CHARACTERS
                body[name] = printable(body[name], longest, "\n\t" if name in _SEVERAL_LINES else "")
        for name, read in readers(_CLASSES[outer["type"]]).items():
            if name in body:
                body[name] = read(body[name])
        message: ControlMessage = _CLASSES[outer["type"]](**body)
        check_fields(message, _HINTS[outer["type"]])
        for name in _NAMING[outer["type"]]:
            found = getattr(message, name)
            for subtask in [found] if isinstance(found, str) else found:
                checked_subtask(subtask)
    except (ValueError, KeyError, TypeError, CorruptState) as error:
        raise PeerProtocolError(f"malformed control message: {error!r:.500}") from error
    return message


def _document(value: object) -> dict[str, Any]:
    if isinstance(value, Document):
        return value.to_json()
    raise TypeError(f"a control message cannot contain {type(value).__name__}")
