"""Options of a streaming job: one frozen dataclass, safe defaults, three ways to set them.

Rules: keyword arguments of ``StreamEnvironment`` win over ``spark.flinkplus.*`` of the session's configuration, which
wins over the defaults. The configuration key of ``checkpoint_interval`` is ``spark.flinkplus.checkpointInterval``.
Times are seconds here (what users type) and milliseconds in the protocol. Every value is checked once, in
``Options.checked``.
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
from flinkplus.protocol.channels.channel import Window
from flinkplus.protocol.vocabulary.guarantee import Guarantee

CONF_PREFIX = "spark.flinkplus."
GUARANTEES = tuple(guarantee.value for guarantee in Guarantee)
RECOVERY_MODES = ("rollback", "partial", "standby")
PLACEMENTS = ("spread", "near")
FAILBACK_MODES = ("auto", "never")
TRANSPORTS = ("tcp", "grpc")
CHECKPOINT_MODES = ("aligned", "unaligned", "synchronous")
FULL_DEPTH = "full"
CUSTOM_PLACEMENT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
MAX_PARALLELISM = 1024
MOST_SPARES = 100
"""Spare slots that a job may have."""
MAX_IN_FLIGHT_MB = 128
"""Half of what a message between driver and slot may have (``flinkplus.runtime.control.messages.MAX_BYTES``)."""
WHOLE_NUMBERS = (
    ("parallelism", 1, MAX_PARALLELISM),
    ("max_concurrent_checkpoints", 1, 16),
    ("retained_checkpoints", 1, 1000),
    ("replicas", 1, 100),
    ("cache_memory_mb", 1, 1_000_000),
    ("in_flight_mb", 1, MAX_IN_FLIGHT_MB),
    ("max_restarts", 0, 1_000_000),
    ("max_slot_losses", 0, 1_000_000),
    ("batch_rows", 1, 1_000_000),
    ("window", 2, 4096),
    ("window_kb", 1, 1 << 20),
    ("memtable_entries", 1000, 1_000_000_000),
)
"""Options that are whole numbers: name, minimum, maximum."""
SPREAD, MAX_SPREAD_S = 0.2, 0.2
CLOSE_OPTIONS = 0.75
"""There are many options: how alike a misspelt name must be to the one that an error suggests."""


@dataclass(frozen=True)
class Options:
    """Settings of one job. Times are in seconds; ``checked`` raises ``ConfigurationError`` for one that cannot work."""

    parallelism: int = 2
    """Subtasks of each operator, and slots."""
    checkpoint_interval: float | None = 1.0
    """Seconds between checkpoints; ``None``: only the checkpoint that ends a bounded job."""
    checkpoint_timeout: float = 60.0
    """Seconds after which a checkpoint is aborted; the stream keeps running."""
    checkpoint_min_pause: float = 0.0
    """Minimum seconds between the end of one checkpoint and the start of the next."""
    max_concurrent_checkpoints: int = 1
    """Maximum number of checkpoints in progress at the same time."""
    retained_checkpoints: int = 3
    """Number of complete checkpoints to keep."""
    checkpoint_dir: str | None = None
    """Path or ``pyarrow.fs`` URI that every slot and the driver can reach; ``None``: deleted with the job."""
    checkpoint_mode: str = "aligned"
    """``aligned``: asynchronous barrier snapshots. ``unaligned``: barriers overtake messages that wait in channels, and
    these messages belong to the checkpoint. ``synchronous``: the whole job pauses for each checkpoint (a baseline)."""
    aligned_timeout: float | None = None
    """Seconds for which barriers of an unaligned checkpoint do not overtake; ``None``: 0."""
    in_flight_mb: int = 64
    """Maximum MiB of in-flight messages in the snapshots of one slot; beyond it the checkpoint is aborted.

    The maximum is half of it for one snapshot and four times it for a checkpoint (see
    ``flinkplus.protocol.vocabulary.in_flight``).
    """
    guarantee: str = "exactly-once"
    """How often the effect of an input row is in the committed output: ``exactly-once``, ``at-least-once`` or
    ``at-most-once`` (see ``flinkplus.protocol.vocabulary.guarantee``)."""
    recovery: str = "standby"
    """``standby``: only the failed subtasks move, to standbys. ``partial``: no standbys; the failed subtasks and their
    upstreams return to the last checkpoint. ``rollback``: the whole job returns to it."""
    replicas: int = 3
    """Copies of each subtask's state, the active one included; at most one per slot."""
    sharing_depth: int | None = None
    """Number of channels downstream that determinants travel; ``None`` ("full"): all the way."""
    placement: str = "spread"
    """Where the copies are: ``spread`` over hosts, ``near``, or ``module:function`` (see
    ``chain_backup.failover.placement``)."""
    failback: str = "auto"
    """Whether subtasks return to a slot that has restarted: ``auto`` or ``never``."""
    zookeeper: str | None = None
    """``HOST:PORT,...`` of a ZooKeeper ensemble; ``None``: the job starts its own server."""
    zookeeper_acl: str | None = None
    """Who may read and change the job's nodes in ZooKeeper.

    ``open``: every client. ``job``: only this job, with credentials made for it. Otherwise a file on the driver's host
    with ``user:password``. ``None``: ``open`` in an ensemble, ``job`` with the job's own server.
    """
    session_timeout: float = 4.0
    """Seconds without contact after which ZooKeeper expires the session of a slot."""
    cache_memory_mb: int = 64
    """MiB of output log that a slot keeps in memory; the rest is on disk."""
    dedup_error_rate: float = 0.01
    """Maximum share of new messages that the Bloom filter of message IDs takes for known.

    Above 0 and below 1. For each of them RocksDB must be read.
    """
    max_restarts: int = 3
    """Maximum number of recoveries after exceptions; the next exception fails the job.

    Each counts for ``restart_window`` seconds, and until a checkpoint completes after it.
    """
    restart_window: float | None = 600.0
    """Seconds for which a recovery counts against ``max_restarts``; ``None``: for the life of the job."""
    max_slot_losses: int = 20
    """Maximum number of slots lost in a row without a complete checkpoint; the next loss fails the job."""
    slot_timeout: float = 60.0
    """Seconds to wait for all slots at the start."""
    deploy_timeout: float = 60.0
    """Seconds that slots may take to restore their subtasks."""
    heartbeat_interval: float = 0.1
    """Seconds between two heartbeats of a slot."""
    heartbeat_timeout: float = 10.0
    """Seconds without a heartbeat after which a slot is replaced; at least three times ``heartbeat_interval``."""
    hang_timeout: float | None = 0.4
    """Seconds without a pulse after which a slot's host counts as hung or cut off; ``None``: only ``heartbeat_timeout``
    counts."""
    batch_rows: int = 32_768
    """Target number of rows per message."""
    flush_interval: float = 0.02
    """Maximum in seconds for which a few rows wait at two exchanges. A paced source reads once in half of it for each
    stage of the job."""
    window: int = 16
    """Maximum number of in-flight messages per channel."""
    window_kb: int = 2048
    """KiB in flight to one subtask over all channels of an exchange; each channel has an equal part."""
    transport: str = "tcp"
    """Transport of messages between slots, and between slots and driver: ``tcp`` or ``grpc``."""
    tls: bool | str = False
    """Mutual TLS between slots and driver: ``True`` (certificates are made for the job), or a directory of certificates
    on every host (see ``flinkplus.runtime.transport.auth.tls``)."""
    memtable_entries: int = 2_000_000
    """Maximum number of keys of each keyed state in memory; the rest is in RocksDB."""
    encoding_errors: str = "replace"
    """Text that is not UTF-8: ``replace`` (and count) or ``strict`` (fail)."""
    work_dir: str | None = None
    """Where the job's temporary directory is made; ``None``: the system's directory for temporary files."""
    trace_output: str | None = None
    """Directory shared by slots and driver, for the time and rows of every output (see
    ``flinkplus.runtime.slot.subtasks.output_trace``)."""
    record_machines: str | None = None
    """File for a record of what the coordinator's state machines do (see
    ``flinkplus.runtime.coordinator.record.recorder``)."""
    allow_inject: bool = True
    """Whether the job accepts ``flinkplus inject`` from a holder of its command key (see
    ``flinkplus.runtime.operations.access_file``)."""
    log: str | None = None
    """How driver and slots log: ``json``, ``text``, ``json:debug``, ... (``flinkplus.runtime.base.logs``)."""
    faults: tuple[str, ...] = ()
    """Fault injection at named points (see ``flinkplus.runtime.faults.points``)."""
    signing_key: str | None = None
    """File on the driver's host with the key that signs the plan and the manifests (``flinkplus.runtime.job.signing``).

    ``None``: the file that ``FLINKPLUS_KEY_FILE`` names, or the user's own key.
    """

    def checked(self) -> Options:
        """Return self; raise ``ConfigurationError`` naming the first setting that cannot work."""
        for name, low, high in WHOLE_NUMBERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ConfigurationError(f"{name} must be a whole number from {low} to {high}, not {value!r}")
        for name, low_s in (
            ("checkpoint_timeout", 0.1),
            ("slot_timeout", 1.0),
            ("deploy_timeout", 1.0),
            ("heartbeat_interval", 0.01),
            ("heartbeat_timeout", 0.1),
            ("flush_interval", 0.001),
            ("session_timeout", 0.2),
        ):
            _check_seconds(name, getattr(self, name), low_s)
        if self.heartbeat_timeout < 3 * self.heartbeat_interval:
            raise ConfigurationError("heartbeat_timeout must be at least three times heartbeat_interval")
        if self.hang_timeout is not None:
            _check_seconds("hang_timeout", self.hang_timeout, 0.1)
        if self.restart_window is not None:
            _check_seconds("restart_window", self.restart_window, 0.001)
        _check_seconds("checkpoint_min_pause", self.checkpoint_min_pause, 0.0)
        if self.checkpoint_interval is not None:
            _check_seconds("checkpoint_interval", self.checkpoint_interval, 0.01)
        rate: Any = self.dedup_error_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise ConfigurationError(f"dedup_error_rate must be a number above 0 and below 1, not {rate!r}")
        depth = self.sharing_depth
        if depth is not None and (isinstance(depth, bool) or not isinstance(depth, int) or depth < 1):
            raise ConfigurationError(f"sharing_depth must be None, or a whole number of at least 1, not {depth!r}")
        _check_one_of("guarantee", self.guarantee, GUARANTEES)
        _check_one_of("recovery", self.recovery, RECOVERY_MODES)
        _check_one_of("failback", self.failback, FAILBACK_MODES)
        _check_one_of("transport", self.transport, TRANSPORTS)
        _check_one_of("checkpoint_mode", self.checkpoint_mode, CHECKPOINT_MODES)
        if self.checkpoint_mode == "synchronous" and self.max_concurrent_checkpoints != 1:
            raise ConfigurationError("synchronous checkpoints come one at a time: max_concurrent_checkpoints must be 1")
        self._check_unaligned()
        self._check_placement()
        for name, what in (
            ("checkpoint_dir", "a path, a URI"),
            ("work_dir", "a path, a URI"),
            ("trace_output", "a path"),
            ("record_machines", "a path"),
            ("log", "'json', 'text', 'json:debug', ..."),
            ("zookeeper", "HOST:PORT,..."),
            ("zookeeper_acl", "'job', 'open', a path of a file with USER:PASSWORD"),
            ("signing_key", "a path of a file with a key"),
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigurationError(f"{name} must be {what} or None, not {value!r}")
        tls: Any = self.tls
        if not isinstance(tls, bool) and (not isinstance(tls, str) or not tls.strip()):
            raise ConfigurationError(f"tls must be True, False or a directory with certificates, not {tls!r}")
        if not isinstance(self.allow_inject, bool):
            raise ConfigurationError(f"allow_inject must be True or False, not {self.allow_inject!r}")
        faults: Any = self.faults
        if isinstance(faults, str) or not all(isinstance(fault, str) for fault in faults):
            raise ConfigurationError(f"faults must be a sequence of texts, not {faults!r}")
        if self.encoding_errors not in ("replace", "strict"):
            raise ConfigurationError(f"encoding_errors must be 'replace' or 'strict', not {self.encoding_errors!r}")
        return self

    def _check_unaligned(self) -> None:
        if self.aligned_timeout is not None:
            _check_seconds("aligned_timeout", self.aligned_timeout, 0.0)
            if self.checkpoint_mode != "unaligned":
                raise ConfigurationError(
                    "aligned_timeout says when a checkpoint becomes an unaligned one: "
                    f"it goes with checkpoint_mode 'unaligned', not {self.checkpoint_mode!r}"
                )
        if self.checkpoint_mode == "unaligned" and not self.promises.repeats:
            raise ConfigurationError(
                f"unaligned checkpoints are for exactly-once: with {self.guarantee}, rows that were in flight would "
                "come again, or nothing would be gained; use checkpoint_mode 'aligned'"
            )

    def _check_placement(self) -> None:
        placement: Any = self.placement
        if placement not in PLACEMENTS and not (isinstance(placement, str) and CUSTOM_PLACEMENT.match(placement)):
            raise ConfigurationError(
                f"placement must be {' or '.join(PLACEMENTS)}, or a function of your own as 'module:function', "
                f"not {placement!r}"
            )

    @property
    def bundle_rows(self) -> int:
        """Maximum number of rows that a step takes from several messages. A barrier that overtakes waits for the end of
        a step, so there it is less."""
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
        """Whether the job has standbys; ``False`` with a single copy, or without checkpoints."""
        return self.recovery == "standby" and self.members > 1 and self.checkpoint_interval is not None

    @property
    def partial(self) -> bool:
        """Whether only failed subtasks and their upstreams return to a checkpoint; ``False`` without checkpoints."""
        return self.recovery == "partial" and self.checkpoint_interval is not None

    @property
    def local(self) -> bool:
        """Whether recovery is local: by standbys, or by a part of the graph."""
        return self.standbys or self.partial

    @property
    def members(self) -> int:
        """How many slots hold each subtask: ``replicas``, as far as there are slots for them."""
        return min(self.replicas, self.parallelism)


def _check_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def _check_seconds(name: str, value: Any, low: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < 1e9:
        raise ConfigurationError(f"{name} must be a number of seconds of at least {low}, not {value!r}")


def conf_key(name: str) -> str:
    """The Spark configuration key of an option: ``checkpoint_dir`` -> ``spark.flinkplus.checkpointDir``."""
    head, *rest = name.split("_")
    return CONF_PREFIX + head + "".join(part.title() for part in rest)


def options_from(conf: Mapping[str, str], overrides: Mapping[str, Any]) -> Options:
    """Options from ``spark.flinkplus.*`` entries of ``conf`` and keyword ``overrides``.

    Raises ``ConfigurationError`` for an unknown option or key, or a value of the wrong kind.
    """
    names = {field.name for field in dataclasses.fields(Options)}
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
    """What the user may have meant by a name that is not known; otherwise a pointer to docs/options.md."""
    return did_you_mean(given, known, "; docs/options.md lists all options", CLOSE_OPTIONS)


def _parse(key: str, text: str, name: str) -> Any:
    hint = typing.get_type_hints(Options)[name]
    kinds = typing.get_args(hint) or (hint,)
    if type(None) in kinds and text.strip().lower() in ("", "none"):
        return None
    if name == "sharing_depth" and text.strip().lower() == FULL_DEPTH:
        return None
    if name in ("tls", "allow_inject") and text.strip().lower() in ("true", "false"):
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
