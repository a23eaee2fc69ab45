"""The control plane's messages, between a slot and the coordinator.

Rules: each is a frozen dataclass; on the wire it is JSON with its name and the format version, so that an unknown
message or version is refused (``PeerProtocolError``) and never guessed at. So is a name that must not become a part of
a path (``path_names``). Texts are escaped and cut when they are decoded (``printable``), since they enter errors and
logs. No code travels here: the job graph comes with Spark's own task.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dedup.digests import Digests, pack_digests, unpack_digests
from flinkplus.documents import Document, check_fields, hints_of, parse_document, readers, whole
from flinkplus.errors import ControlMessageTooLarge, CorruptState, PeerProtocolError
from flinkplus.path_names import checked_subtask
from flinkplus.printable import printable
from flinkplus.protocol.determinants.determinants import Span
from flinkplus.protocol.snapshot.handle import SnapshotHandle
from flinkplus.protocol.vocabulary.in_flight import AbortCause
from flinkplus.runtime.control.promotion_order import PromotionOrder

FORMAT_VERSION = 2
"""2: the start of a job is a handle of checkpoint 0, and not an empty one."""
MAX_BYTES = 256 << 20
"""The longest message that is sent or taken: a promotion tells of all determinants and digests since the last
checkpoint, a deployment of all that was in flight."""
MAX_TEXT_CHARACTERS = 20_000
"""Of a text in a message, such as the reason of a failure."""
MAX_NAME_CHARACTERS = 1_000
"""Of a short one, such as a host."""


def spans_to_json(spans: Iterable[Span]) -> list[list[Any]]:
    """Spans of determinants as ``Fenced`` and ``Promote`` have them."""
    return [[first, list(determinants)] for first, determinants in spans]


def spans_from_json(found: Iterable[Sequence[Any]]) -> list[Span]:
    """The inverse of ``spans_to_json``. Raises ``PeerProtocolError``."""
    try:
        spans = [(whole(first), tuple(determinants)) for first, determinants in found]
        if not all(set(map(type, determinants)) <= {int} for _, determinants in spans):
            raise TypeError("determinants are whole numbers")
        return spans
    except (TypeError, ValueError) as error:
        raise PeerProtocolError(f"malformed spans of determinants: {error}") from error


def digests_to_json(spans: Iterable[tuple[int, Digests]]) -> list[list[Any]]:
    """Spans of digests as ``Fenced`` and ``Promote`` have them."""
    return [[first, pack_digests(digests)] for first, digests in spans]


def digests_from_json(found: Iterable[Sequence[Any]]) -> dict[int, int]:
    """Digests by the number of their message. Raises ``PeerProtocolError``."""
    try:
        return {whole(first) + at: digest for first, text in found for at, digest in enumerate(unpack_digests(text))}
    except (TypeError, ValueError) as error:
        raise PeerProtocolError(f"malformed digests: {error}") from error


# --- slot -> coordinator


@dataclass(frozen=True)
class Register:
    """A slot's first message. ``spark_attempt``: the ID of the attempt of its Spark task, larger than those of all
    earlier ones. ``address``: ``host:port`` of its data server. ``lifeline``: the name its lifeline has,
    if it has one; ``pulse``: of its pulse; ``created_s``: when its process was created (seconds since the Unix epoch;
    0: it does not say).
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
    """A slot's first and last message: its process cannot begin, for ``reason``; ``kind`` is the error's class name,
    ``trace`` where it came from. ``tries``: how many processes in a row have not started before it.
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
    """The state of ``subtask`` at ``checkpoint`` failed its checks."""

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
            raise PeerProtocolError(f"a snapshot is refused for the cause {self.cause!r:.100}") from error


@dataclass(frozen=True)
class Failed:
    """``kind`` is the error's class name, ``reason`` all of its message; ``operator``, ``row`` and ``cause``, which are
    in the message, are set when a user function raised."""

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
    """Progress of a slot's subtasks: name -> counters (``rows_in``, ``rows_out``, per operator, state, blocked).

    ``refused``: connections that its data plane has refused so far; ``malformed``: frames that it has dropped;
    ``fenced``: messages, credit and versions of fenced generations that came, and had no effect. ``copied``: bytes of
    state files that its standbys took in so far, by where they came from (``received`` from other slots,
    ``from_storage``, ``kept`` from a dead process of the slot).
    """

    generation: int
    subtasks: dict[str, dict[str, Any]]
    refused: int = 0
    malformed: int = 0
    fenced: int = 0
    copied: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progressed:
    """``subtask`` put out its first new row after a recovery, at ``time_s`` (seconds since the Unix epoch)."""

    generation: int
    subtask: str
    time_s: float


@dataclass(frozen=True)
class Staged:
    """This slot, a standby of ``subtask``, holds all of ``version``; ``generation``: of the chain it came in."""

    generation: int
    subtask: str
    version: int


@dataclass(frozen=True)
class Fenced:
    """The answer to ``Fence``: nothing of an older generation has an effect here any more.

    ``received``: channel -> next ``seq`` expected, of every channel from a failed subtask to one that is active here;
    ``sent``: channel -> next ``seq`` to send, of every channel to a failed subtask from one that is active here.
    ``determinants``: failed subtask, or ancestor of one -> spans of known determinants, each ``[first step,
    [values]]``. ``digests``: channel -> spans of digests of what was received on it, each ``[first seq, text]``.
    ``kept``: channel -> the oldest ``seq`` that can be sent again, of every channel in ``sent``.
    """

    attempt: int
    received: dict[str, int]
    sent: dict[str, int]
    determinants: dict[str, list[list[Any]]]
    digests: dict[str, list[list[Any]]] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FencedPart:
    """What of the answer to ``Fence`` does not fit into ``Fenced``, which follows: fields as there. However long the
    answer is, no message is, and each one shows that the slot is there.
    """

    attempt: int
    determinants: dict[str, list[list[Any]]]
    digests: dict[str, list[list[Any]]]


@dataclass(frozen=True)
class Promoted:
    """All subtasks of a ``Promote`` are at work; ``restore_ms`` is what restoring them took."""

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
    """The answer to ``Connect``: there is a stream to every one of them."""

    serial: int


@dataclass(frozen=True)
class PeersUnreached:
    """Slots that this one does not reach, or that it does not hear, although it sends to them: all of them (slot ->
    incarnation), said when it changes. ``flinkplus.protocol.liveness.reachability`` decides what follows.

    ``blamed``: those of them that refuse connections, or keep sending frames that cannot be read.
    """

    peers: dict[str, int]
    blamed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionLost:
    """The slot's session expired: it has stopped sending and is about to end."""

    reason: str


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

    ``assignment``: subtask -> slot, all of them. ``addresses``: slot -> [incarnation, host:port].
    ``handles``: subtask -> snapshot handle, for this slot's subtasks only, empty without a checkpoint.
    ``marks``: subtask -> rows it had put out before the failure (``Progressed`` is due when it goes beyond).
    ``notes_rows``: a process was lost since the last complete checkpoint, so rows are noted before users' functions get
    them.
    """

    generation: int
    checkpoint: int | None
    assignment: dict[str, int]
    addresses: dict[str, list[Any]]
    handles: dict[str, SnapshotHandle] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    notes_rows: bool = False


@dataclass(frozen=True)
class Halt:
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
class Join:
    """To a new incarnation of a slot while the job runs: what the others know. It hosts nothing active yet.

    ``generation``: of the deployment. ``assignment``: subtask -> slot. ``generations``: subtask -> its own generation.
    """

    generation: int
    assignment: dict[str, int]
    generations: dict[str, int]


@dataclass(frozen=True)
class Connect:
    """Have a stream to each of these slots (slot -> [incarnation, address]) and to no other; answer ``Connected``."""

    serial: int
    addresses: dict[str, list[Any]]


@dataclass(frozen=True)
class Chains:
    """Who follows whom: subtask -> [generation, [slots, head first]], all subtasks of the job."""

    chains: dict[str, list[Any]]


@dataclass(frozen=True)
class Fence:
    """Subtasks ``failed`` (-> slot of the new head) have a new ``generation``: retire those that are here, refuse what
    is older, answer ``Fenced``.
    """

    attempt: int
    generation: int
    failed: dict[str, int]


@dataclass(frozen=True)
class Promote:
    """Make the standbys of these subtasks active, and answer ``Promoted`` or ``PromotionFailed``.

    ``complete``: the newest checkpoint that is. ``notes_rows``: as in ``Deploy``.
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
    """``version`` is complete, and every chain has it: nothing before it can be asked for."""

    version: int


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
class Overtake:
    """Barriers of ``checkpoint`` wait for nothing from now on (see ``flinkplus.protocol.barriers.unaligned``)."""

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
    """Close everything and end the Spark task normally."""


@dataclass(frozen=True)
class RegistryAddress:
    """Connect to ZooKeeper at ``hosts`` from now on, with the same session."""

    hosts: str


@dataclass(frozen=True)
class Die:
    """Fault injection: kill your own process with SIGKILL."""


@dataclass(frozen=True)
class Inject:
    """Fault injection (``injections``): ``exception`` in ``subtasks``, at once; ``pause`` the process, ``cut`` it off
    from ``peers`` (slots, and -1 for the driver; ``None``: all), or ``slow`` down each step of ``subtasks`` by
    ``delay_s``: for ``for_s``. ``kill`` the process when one of ``subtasks`` next reaches ``point``
    (``faults.points``).
    """

    fault: str
    subtasks: list[str]
    for_s: float = 0.0
    delay_s: float = 0.0
    peers: list[int] | None = None
    point: str = ""


SubtaskReport = Failed | Acknowledged | Declined | Exhausted | Progressed
FailoverReport = Staged | Fenced | FencedPart | Promoted | PromotionFailed | Connected
SlotReport = Register | StartFailed | Deployed | RestoreFailed | Heartbeat | PeersUnreached | SessionLost | Stopped
JobOrder = Welcome | Deploy | Halt | Start | Drain | Stop | RegistryAddress
FailoverOrder = Join | Connect | Chains | Fence | Promote | Trim
CheckpointOrder = Trigger | Overtake | Abort | Complete
FaultOrder = Die | Inject
ControlMessage = SubtaskReport | FailoverReport | SlotReport | JobOrder | FailoverOrder | CheckpointOrder | FaultOrder

_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in ControlMessage.__args__}
_HINTS: dict[str, dict[str, Any]] = {name: hints_of(cls) for name, cls in _CLASSES.items()}
_SUBTASKS = {"subtask", "subtasks", "assignment", "generations", "chains", "failed", "marks", "handles"}
"""Fields that are, list, or are keyed by, names of subtasks."""
_LONG = {"reason", "cause", "row", "trace"}
_SEVERAL_LINES = {"trace"}
"""Texts in which line breaks and tabs stay."""
_TEXTS = {
    name: {
        field: (
            MAX_TEXT_CHARACTERS if field in _LONG else MAX_NAME_CHARACTERS,
            "\n\t" if field in _SEVERAL_LINES else "",
        )
        for field, hint in hints.items()
        if hint is str and field not in _SUBTASKS
    }
    for name, hints in _HINTS.items()
}
_NAMING = {name: sorted(_SUBTASKS.intersection(hints)) for name, hints in _HINTS.items()}


def encode(message: ControlMessage) -> bytes:
    """The message as JSON bytes. Raises ``ControlMessageTooLarge``: the receiver would break the connection."""
    name = type(message).__name__
    body = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    data = json.dumps({"v": FORMAT_VERSION, "type": name, "body": body}, default=_document).encode()
    if len(data) > MAX_BYTES:
        raise ControlMessageTooLarge(f"{name} would take {len(data):,} bytes; the maximum is {MAX_BYTES:,}")
    return data


def decode(data: bytes) -> ControlMessage:
    """The message of ``encode``'s bytes; ``PeerProtocolError`` for anything else."""
    try:
        outer = parse_document(data)
        if outer["v"] != FORMAT_VERSION:
            raise PeerProtocolError(f"control format {outer['v']!r:.100}, this program speaks {FORMAT_VERSION}")
        body = {**outer["body"]}
        for name, (longest, keep) in _TEXTS[outer["type"]].items():
            if type(body.get(name)) is str:
                body[name] = printable(body[name], longest, keep)
        for name, read in readers(_CLASSES[outer["type"]]).items():
            if name in body:
                body[name] = read(body[name])
        message: ControlMessage = _CLASSES[outer["type"]](**body)
        check_fields(message, _HINTS[outer["type"]])
        _check_names(message)
    except (ValueError, KeyError, TypeError, CorruptState) as error:
        raise PeerProtocolError(f"malformed control message: {error!r:.500}") from error
    return message


def _document(value: object) -> dict[str, Any]:
    if isinstance(value, Document):
        return value.to_json()
    raise TypeError(f"{type(value).__name__} has no place in a control message")


def _check_names(message: ControlMessage) -> None:
    """Raises ``UnsafeName``."""
    for name in _NAMING[type(message).__name__]:
        found = getattr(message, name)
        for subtask in [found] if isinstance(found, str) else found:
            checked_subtask(subtask)
