"""Options of a streaming job: declared here, each with its default, rule and text, in six groups.

Rules: keyword arguments of ``StreamEnvironment`` win over ``spark.flinkplus.*`` of the session's configuration, which
wins over the defaults. Times are seconds here and milliseconds in the protocol. ``Options.checked`` checks every value
once. docs/options.md (``make options``) and the help of the command line are made from the docstrings here, in
Markdown. The types are repeated in ``flinkplus.job_options``, for editors and type checkers; a test compares the two.
"""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.option_rules import Rule, at_least, one_of, option, seconds, share, string, truth, whole
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.vocabulary.guarantee import Guarantee
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM, MAX_GROUPS

CONF_PREFIX = "spark.flinkplus."
GUARANTEES = tuple(guarantee.value for guarantee in Guarantee)
RECOVERY_MODES = ("standby", "partial", "rollback")
PLACEMENTS = ("spread", "near")
FAILBACK_MODES = ("auto", "never")
TRANSPORTS = ("tcp", "grpc")
CHECKPOINT_MODES = ("aligned", "unaligned", "synchronous")
ENCODING_ERRORS = ("replace", "strict")
FULL_DEPTH = "full"
CUSTOM_PLACEMENT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
MAX_PARALLELISM = 1024
MOST_SPARES = 100
"""Maximum number of spare slots of a job."""
MAX_IN_FLIGHT_MB = 128
"""Half of the maximum of a message between driver and slot (``flinkplus.runtime.control.messages.MAX_BYTES``)."""
SPREAD, MAX_SPREAD_S = 0.2, 0.2
CLOSE_OPTIONS = 0.75
"""How alike a misspelt name must be to the one that an error suggests: high, because there are many options."""


PLACEMENT = Rule(
    lambda value: isinstance(value, str) and (value in PLACEMENTS or bool(CUSTOM_PLACEMENT.match(value))),
    f"{' or '.join(PLACEMENTS)}, or a function of your own as 'module:function'",
    "`spread`, `near`, `module:function`",
    metavar="STRATEGY",
)
TLS = Rule(
    lambda value: isinstance(value, bool) or (isinstance(value, str) and bool(value.strip())),
    "True, False or a directory with certificates",
    "true, false, a directory",
)
SITE = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>\d{1,5})\Z")
UI = Rule(
    lambda value: (
        isinstance(value, bool)
        or (isinstance(value, str) and (found := SITE.match(value)) is not None and int(found["port"]) < 1 << 16)
    ),
    "True, False or HOST:PORT",
    "true, false, `HOST:PORT`",
    metavar="HOST:PORT",
)
TEXTS = Rule(
    lambda value: not isinstance(value, str) and all(isinstance(one, str) for one in value), "a sequence of texts"
)


@dataclass(frozen=True)
class ProcessingOptions:
    """Processing: how much runs at once, and how much memory it takes."""

    parallelism: int = option(2, whole(1, MAX_PARALLELISM))
    """Number of subtasks of each operator, and of slots (Spark tasks)."""
    max_parallelism: int = option(DEFAULT_MAX_PARALLELISM, whole(1, MAX_GROUPS))
    """Maximum number of subtasks that the job can ever have: the number of key groups, the parts of keyed state that
    subtasks own. Fixed for the life of the job. [Decision 53](decisions/0053-key-groups.md)."""
    batch_rows: int = option(32_768, whole(1, 1_000_000))
    """Target number of rows per read of a source, and maximum number that a step takes of several messages."""
    flush_interval: float | None = option(None, seconds(0.001))
    """Maximum interval, for each stage of the job, between two waves of small batches: rows wait at the source for one
    interval at most. A source that is paced by `throttle` reads with the waves. Other subtasks take a small batch when
    each input channel has one, or 10 ms after the stage before. In a slot that has little to do, rows wait less, or not
    at all. `None`: 0.015, or 0.007 in a job with rows that are visible at once. [Decision
    50](decisions/0050-steps-take-bundles.md)."""
    window: int = option(16, whole(2, 4096))
    """Maximum number of in-flight messages per channel (credit)."""
    window_kb: int = option(2048, whole(1, 1 << 20))
    """Maximum KiB in flight to one subtask over all channels of an exchange. Each channel has an equal part, and may
    always have one message in flight."""
    cache_memory_mb: int = option(64, whole(1, 1_000_000))
    """MiB of sent output that a slot keeps in memory for replay. The same limit holds for messages that wait on back
    edges of loops, with `rollback` too. The rest goes to disk."""
    memtable_entries: int = option(2_000_000, whole(1000, 1_000_000_000))
    """Maximum number of keys of each keyed state in memory. The others are in RocksDB only."""
    dedup_error_rate: float = option(0.01, share())
    """Maximum share of new chunks (64 message IDs of a channel) that the Bloom filter takes for known. For each of them
    RocksDB decides. `message_ids` in `job.metrics()` has the measured share."""
    encoding_errors: str = option("replace", one_of(ENCODING_ERRORS))
    """What happens to text that is not UTF-8. `replace` replaces it and counts it (`invalid_lines`); `strict` fails."""
    work_dir: str | None = option(None, string("a path, a URI", "DIR"))
    """Directory in which the job's temporary directory is made. `None`: the system's directory for temporary files."""


@dataclass(frozen=True)
class CheckpointOptions:
    """Checkpoints: when and how they are taken, and what they guarantee."""

    checkpoint_interval: float | None = option(1.0, seconds(0.01))
    """Time from one checkpoint to the next. `None`: only the checkpoint that ends a bounded job."""
    checkpoint_timeout: float = option(60.0, seconds(0.1))
    """Time after which a checkpoint is aborted. The stream keeps running."""
    checkpoint_min_pause: float = option(0.0, seconds(0.0))
    """Minimum time between the end of one checkpoint and the start of the next."""
    max_concurrent_checkpoints: int = option(1, whole(1, 16))
    """Maximum number of checkpoints in progress at the same time."""
    retained_checkpoints: int = option(3, whole(1, 1000))
    """Number of complete checkpoints to keep."""
    checkpoint_dir: str | None = option(None, string("a path, a URI", "DIR"))
    """Path or `pyarrow.fs` URI that driver and slots can reach. `None`: the checkpoints are deleted with the job."""
    checkpoint_mode: str = option("aligned", one_of(CHECKPOINT_MODES))
    """How checkpoints are taken: aligned (asynchronous barrier snapshots), unaligned (barriers overtake waiting
    messages) or synchronous (the job pauses). With `unaligned` the overtaken messages belong to the checkpoint, so it
    takes no longer under back-pressure; it needs `exactly-once` and a job without loops. `synchronous` pauses the whole
    job from the barrier to the end of the checkpoint, as a baseline for comparison; it needs a job without loops. All
    modes fail over locally. [Decision 19](decisions/0019-synchronous-checkpoints.md), [decision
    21](decisions/0021-unaligned-checkpoints.md)."""
    aligned_timeout: float | None = option(None, seconds(0.0))
    """Time from the trigger of an unaligned checkpoint until its barriers overtake. A checkpoint that is complete by
    then was an aligned one. `None`: 0."""
    in_flight_mb: int = option(64, whole(1, MAX_IN_FLIGHT_MB))
    """Maximum MiB of in-flight messages in the snapshots of one slot, as stored. This concerns unaligned checkpoints
    and loops. The maximum is half of it for one snapshot, and four times it for a checkpoint. A subtask that receives
    more before a barrier lets the rest wait, as an aligned checkpoint does. A checkpoint that is still over the maximum
    is aborted (`over budget`), and the next one is aligned. [Decision 21](decisions/0021-unaligned-checkpoints.md)."""
    guarantee: str = option("exactly-once", one_of(GUARANTEES))
    """How often an input row takes effect in the committed output. `at-least-once` loses nothing, and has no alignment,
    determinants or filter. `at-most-once` doubles nothing and sends nothing again. A job with loops must be
    `exactly-once`. [Decision 18](decisions/0018-weaker-guarantees.md)."""
    signing_key: str | None = option(None, string("a path of a file with a key", "FILE"))
    """File on the driver's host with the key that signs checkpoints. `None`: the file that `FLINKPLUS_KEY_FILE` names,
    otherwise `~/.config/flinkplus/key`, which is made when it is missing
    ([security](security.md#signed-checkpoints))."""


@dataclass(frozen=True)
class RecoveryOptions:
    """Recovery: what happens after a failure, and when the job fails."""

    recovery: str = option("standby", one_of(RECOVERY_MODES))
    """What a failure moves: standby (only the failed subtasks), partial (they and their upstreams) or rollback (the
    whole job). `standby`: the failed subtasks move to standbys. `partial`: there are no standbys; the failed subtasks
    and their upstreams return to the last checkpoint, and all others drop what they have received already ([decision
    22](decisions/0022-partial-graph-recovery.md)). `rollback`: the whole job returns to the last checkpoint. With one
    replica or no periodic checkpoints a job has no standbys, and with one slot none while it has no other. `partial`
    needs periodic checkpoints and a job without loops."""
    replicas: int = option(3, whole(1, 100))
    """Number of copies of each subtask's state, the active one included. `standby`: at most one per slot, so at most
    `parallelism`, and one more for each [spare slot](operations.md#spare-slots). `partial`: the number of slots that
    `placement` names for a subtask; when its own slot is lost, the next of them is preferred."""
    sharing_depth: int | None = option(None, at_least(1))
    """Number of channels downstream that determinants travel. `None` (or `full` in the configuration): all the way, so
    that any set of subtasks that fails together fails over. With 1, messages are a little smaller, and a slot that
    hosts two keyed stages in a row rolls back. With any limit a job with loops recovers by rollback."""
    placement: str = option("spread", PLACEMENT)
    """Where the copies are: spread (over hosts), near (neighbouring slots), or a function of your own."""
    failback: str = option("auto", one_of(FAILBACK_MODES))
    """Whether subtasks move back to a restarted slot. `auto`: at a checkpoint. `never`: they stay where they are."""
    max_restarts: int = option(3, whole(0, 1_000_000))
    """Maximum number of recoveries after exceptions. The next exception fails the job and is its cause. A recovery
    counts once, however many subtasks fail in it ([decision
    33](decisions/0033-what-counts-as-one-recovery-and-which-input-is-to-blame.md)), and as long as `restart_window`
    says."""
    restart_window: float | None = option(600.0, seconds(0.001))
    """Time for which a recovery counts against `max_restarts`, and until a checkpoint completes after it. So rare
    exceptions do not add up, and an input that fails repeatedly ends the job. `None`: for the life of the job."""
    max_slot_losses: int = option(20, whole(0, 1_000_000))
    """Maximum number of slots lost in a row without a complete checkpoint. The next loss fails the job. An input that
    ends a process fails the job after the second loss, with `ProcessCrashed`."""


@dataclass(frozen=True)
class LivenessOptions:
    """Slots and liveness: how long to wait, and when a slot counts as failed."""

    slot_timeout: float = option(60.0, seconds(1.0))
    """Time to wait for all slots at the start. The same time is the limit for a [spare slot](operations.md#spare-slots)
    to start and join; three times as long is the limit for the needed slots in a recovery. A slot that cannot start
    (missing module, full disk) reports why. When it fails three times in a row, a job that has not begun ends with that
    reason (`SlotStartError`)."""
    deploy_timeout: float = option(60.0, seconds(1.0))
    """Time that slots may take to restore their subtasks."""
    heartbeat_interval: float = option(0.1, seconds(0.01))
    """Time between two heartbeats of a slot, which report its progress."""
    heartbeat_timeout: float = option(10.0, seconds(0.1))
    """Time without a heartbeat after which a slot is ended and replaced. At least three times `heartbeat_interval`."""
    hang_timeout: float | None = option(0.4, seconds(0.1))
    """Time after which a slot is replaced whose process is stopped, or whose host hangs or is cut off. The same holds
    for one of two slots that cannot reach each other, or of which one refuses the connections of the other. `None`:
    only `heartbeat_timeout` counts. Decisions [24](decisions/0024-pulses.md),
    [26](decisions/0026-slots-that-do-not-reach-each-other.md)."""
    session_timeout: float = option(4.0, seconds(0.2))
    """Time without contact after which ZooKeeper expires a slot's session: the slot counts as failed, and stops."""
    zookeeper: str | None = option(None, string("HOST:PORT,...", "HOSTS"))
    """`HOST:PORT,...` of a ZooKeeper ensemble. `None`: the job runs its own server, and restarts it if it dies."""
    zookeeper_acl: str | None = option(
        None, string("'job', 'open', a path of a file with USER:PASSWORD", "job|open|FILE")
    )
    """Access to the job's nodes in ZooKeeper: open (every client), job (only this job), or a file with user:password.
    `None`: `job` with the job's own server, `open` in an ensemble ([security](security.md))."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Connections: how slots and driver reach each other, and which commands they accept."""

    transport: str = option("tcp", one_of(TRANSPORTS))
    """Transport of messages between slots, and between slots and driver. [Decision
    11](decisions/0011-sockets-in-the-loops.md)."""
    tls: bool | str = option(False, TLS)
    """Mutual TLS between slots and driver, with certificates made for the job. A directory on every host with `ca.pem`,
    `cert.pem` and `key.pem` is used instead ([security](security.md))."""
    allow_inject: bool = option(True, truth())
    """Whether the job accepts `flinkplus inject` ([operations](operations.md))."""
    ui: bool | str = option(False, UI)
    """Whether the driver serves a live page, a REST interface and metrics for Prometheus. `true` is a free port of
    loopback; `HOST:PORT` is that port (0: a free one). A host other than loopback needs `tls`, and each reader the
    job's token. [The page](ui.md)."""
    ui_linger: float = option(0.0, seconds(0.0))
    """Time for which the page shows the end of a job that has ended, at most until the driver's process ends."""


@dataclass(frozen=True)
class DiagnosticOptions:
    """Diagnosis: logs, records and faults."""

    log: str | None = option(None, string("'json', 'text', 'json:debug', ..."))
    """Log format of driver and slots: `json` or `text`, with a level other than info as in `json:debug`. `None`: as
    `FLINKPLUS_LOG` in the driver's environment, otherwise as Python's `logging` is configured
    ([operations](operations.md#logs))."""
    trace_output: str | None = option(None, string("a path", "DIR"))
    """Directory shared by slots and driver, for the time and rows of every output. For measurements
    (`flinkplus/runtime/slot/subtasks/output_trace.py`)."""
    record_machines: str | None = option(None, string("a path", "FILE"))
    """File for a record of the events and effects of the coordinator's machines (`docs/simulation.md`)."""
    faults: tuple[str, ...] = option((), TEXTS)
    """Fault injection at named points (`flinkplus/runtime/faults/points.py`)."""


@dataclass(frozen=True)
class Options(
    ProcessingOptions, CheckpointOptions, RecoveryOptions, LivenessOptions, ConnectionOptions, DiagnosticOptions
):
    """Settings of one job. Times are in seconds."""

    def checked(self) -> Options:
        """Return self; raise ``ConfigurationError`` naming the first setting that cannot work."""
        for field in dataclasses.fields(self):
            value, rule, optional = getattr(self, field.name), field.metadata["rule"], is_optional(field.name)
            if not (value is None and optional) and not rule.allows(value):
                none = " or None" if optional else ""
                raise ConfigurationError(f"{field.name} must be {rule.must_be}{none}, not {value!r}")
        if self.parallelism > self.max_parallelism:
            raise ConfigurationError(
                f"parallelism {self.parallelism} is above max_parallelism, which is {self.max_parallelism}: lower "
                "parallelism, or start a new job with a higher max_parallelism"
            )
        if self.heartbeat_timeout < 3 * self.heartbeat_interval:
            raise ConfigurationError("heartbeat_timeout must be at least three times heartbeat_interval")
        if self.checkpoint_mode == "synchronous" and self.max_concurrent_checkpoints != 1:
            raise ConfigurationError("synchronous checkpoints come one at a time: max_concurrent_checkpoints must be 1")
        self._check_unaligned()
        return self

    def _check_unaligned(self) -> None:
        if self.aligned_timeout is not None and self.checkpoint_mode != "unaligned":
            raise ConfigurationError(
                "aligned_timeout says when a checkpoint becomes an unaligned one: "
                f"it goes with checkpoint_mode 'unaligned', not {self.checkpoint_mode!r}"
            )
        if self.checkpoint_mode == "unaligned" and not self.promises.repeats:
            raise ConfigurationError(
                f"unaligned checkpoints are for exactly-once: with {self.guarantee}, rows that were in flight would "
                "come again, or nothing would be gained; use checkpoint_mode 'aligned'"
            )

    @property
    def bundle_rows(self) -> int:
        """Maximum number of rows that a step takes from several messages; less where a barrier that overtakes waits."""
        return max(1, self.batch_rows // 8) if self.checkpoint_mode == "unaligned" else self.batch_rows

    @property
    def channel_window(self) -> Window:
        """How much of one channel may be in flight."""
        return Window(self.window, max(1, (self.window_kb << 10) // self.parallelism))

    @property
    def snapshot_spread(self) -> float:
        """Seconds over which the slots begin to write their parts of a checkpoint."""
        return min(SPREAD * (self.checkpoint_interval or 0.0), MAX_SPREAD_S)

    @property
    def until_unaligned(self) -> float | None:
        """Seconds from the trigger of a checkpoint until its barriers overtake; ``None``: they never do."""
        return self.aligned_timeout or 0.0 if self.checkpoint_mode == "unaligned" else None

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes of in-flight messages in the snapshots of one slot."""
        return self.in_flight_mb << 20

    @property
    def promises(self) -> Guarantee:
        """``guarantee``, as the protocol knows it."""
        return Guarantee(self.guarantee)

    @property
    def depth(self) -> int | None:
        """How far downstream determinants travel: ``sharing_depth`` if steps are repeated, otherwise ``None``."""
        return self.sharing_depth if self.promises.repeats else None

    @property
    def standbys(self) -> bool:
        """Whether the job has standbys, while it has more than one slot; ``False`` with a single copy, or without
        checkpoints. With one slot it has none yet: a rescale gives it some."""
        return self.recovery == "standby" and self.replicas > 1 and self.checkpoint_interval is not None

    @property
    def partial(self) -> bool:
        """Whether only failed subtasks and their upstreams return to a checkpoint; ``False`` without checkpoints."""
        return self.recovery == "partial" and self.checkpoint_interval is not None

    @property
    def local(self) -> bool:
        """Whether recovery is local: by standbys, or by a part of the graph."""
        return self.standbys or self.partial

    def local_unless(self, alone: bool) -> bool:
        """``local``, of a deployment. ``alone``: it has one slot, so there are no standbys yet."""
        return self.partial or (self.standbys and not alone)

    @property
    def members(self) -> int:
        """How many slots hold each subtask: ``replicas``, as far as there are slots for them."""
        return min(self.replicas, self.parallelism)


TYPES: dict[str, Any] = typing.get_type_hints(Options)


def is_optional(name: str) -> bool:
    """Whether an option may be ``None``."""
    return type(None) in typing.get_args(TYPES[name])


def conf_key(name: str) -> str:
    """The Spark configuration key of an option: ``checkpoint_dir`` -> ``spark.flinkplus.checkpointDir``."""
    head, *rest = name.split("_")
    return CONF_PREFIX + head + "".join(part.title() for part in rest)


def options_from(conf: Mapping[str, str], overrides: Mapping[str, Any]) -> Options:
    """Options from ``spark.flinkplus.*`` entries of ``conf`` and keyword ``overrides``. Raises ``ConfigurationError``
    for an unknown option or key, or a value of the wrong kind."""
    names = set(TYPES)
    unknown = sorted(set(overrides) - names)
    if unknown:
        raise ConfigurationError(f"unknown option {unknown[0]!r}{_suggestion(unknown[0], names)}")
    by_key = {conf_key(name): name for name in names}
    values: dict[str, Any] = {}
    for key, text in conf.items():
        if not key.startswith(CONF_PREFIX):
            continue
        if key not in by_key:
            raise ConfigurationError(f"unknown configuration key {key!r}{_suggestion(key, by_key)}")
        values[by_key[key]] = _parse(key, text, by_key[key])
    values.update({name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in overrides.items()})
    return Options(**values).checked()


def _suggestion(given: str, known: Iterable[str]) -> str:
    return did_you_mean(given, known, "; docs/options.md lists all options", CLOSE_OPTIONS)


def _parse(key: str, text: str, name: str) -> Any:
    hint = TYPES[name]
    kinds = typing.get_args(hint) or (hint,)
    if type(None) in kinds and text.strip().lower() in ("", "none"):
        return None
    if name == "sharing_depth" and text.strip().lower() == FULL_DEPTH:
        return None
    if name in ("tls", "allow_inject", "ui") and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if name == "faults":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if int in kinds:
            return int(text)
        if float in kinds:
            return float(text)
    except ValueError:
        raise ConfigurationError(f"{key} must be a number, not {text!r}") from None
    return text
