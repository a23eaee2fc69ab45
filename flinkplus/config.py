"""Options of a streaming job: one frozen dataclass, safe defaults, three ways to set them.

Rules: keyword arguments of ``StreamEnvironment`` win over ``spark.flinkplus.*`` of the session's configuration,
which win
over the defaults. The configuration key of ``checkpoint_interval`` is ``spark.flinkplus.checkpointInterval``. Times are
seconds here (what users type) and milliseconds in the protocol. Every value is checked once, in ``Options.checked``.
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flinkplus.errors import ConfigurationError

CONF_PREFIX = "spark.flinkplus."
RECOVERY_MODES = ("rollback",)
MAX_PARALLELISM = 1024


@dataclass(frozen=True)
class Options:
    """Settings of one job.

    ``parallelism``: subtasks of each operator, and slots. ``checkpoint_interval``: seconds between checkpoints,
    ``None``
    for only the one that ends a bounded job. ``checkpoint_dir``: path or ``pyarrow.fs`` URI that every slot and the
    driver can reach; ``None`` keeps checkpoints in a directory that goes away with the job. ``window``: messages in
    flight per channel. ``batch_rows``: rows per message aimed at. ``flush_interval``: seconds between two reads of a
    paced source. ``max_restarts``: recoveries after exceptions before the job fails. ``max_slot_losses``: slots lost in
    a row, without a checkpoint between, before it fails. ``memtable_entries``: keys of each keyed state held in memory.
    ``encoding_errors``: what to do with text that is not UTF-8. ``faults``: see ``flinkplus.runtime.faults``.
    """

    parallelism: int = 2
    checkpoint_interval: float | None = 1.0
    checkpoint_timeout: float = 60.0
    checkpoint_min_pause: float = 0.0
    max_concurrent_checkpoints: int = 1
    retained_checkpoints: int = 3
    checkpoint_dir: str | None = None
    recovery: str = "rollback"
    max_restarts: int = 3
    max_slot_losses: int = 20
    slot_timeout: float = 60.0
    deploy_timeout: float = 60.0
    heartbeat_interval: float = 0.1
    heartbeat_timeout: float = 10.0
    batch_rows: int = 32_768
    flush_interval: float = 0.02
    window: int = 16
    memtable_entries: int = 2_000_000
    encoding_errors: str = "replace"
    work_dir: str | None = None
    faults: tuple[str, ...] = ()

    def checked(self) -> Options:
        """Return self; raise ``ConfigurationError`` naming the first setting that cannot work."""
        for name, low, high in (
            ("parallelism", 1, MAX_PARALLELISM),
            ("max_concurrent_checkpoints", 1, 16),
            ("retained_checkpoints", 1, 1000),
            ("max_restarts", 0, 1_000_000),
            ("max_slot_losses", 0, 1_000_000),
            ("batch_rows", 1, 1_000_000),
            ("window", 2, 4096),
            ("memtable_entries", 1000, 1_000_000_000),
        ):
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
        ):
            _check_seconds(name, getattr(self, name), low_s)
        if self.heartbeat_timeout < 3 * self.heartbeat_interval:
            raise ConfigurationError("heartbeat_timeout must be at least three times heartbeat_interval")
        _check_seconds("checkpoint_min_pause", self.checkpoint_min_pause, 0.0)
        if self.checkpoint_interval is not None:
            _check_seconds("checkpoint_interval", self.checkpoint_interval, 0.01)
        if self.recovery not in RECOVERY_MODES:
            raise ConfigurationError(f"recovery must be one of {', '.join(RECOVERY_MODES)}, not {self.recovery!r}")
        for name in ("checkpoint_dir", "work_dir"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigurationError(f"{name} must be a path, a URI or None, not {value!r}")
        faults: Any = self.faults
        if isinstance(faults, str) or not all(isinstance(fault, str) for fault in faults):
            raise ConfigurationError(f"faults must be a sequence of texts, not {faults!r}")
        if self.encoding_errors not in ("replace", "strict"):
            raise ConfigurationError(f"encoding_errors must be 'replace' or 'strict', not {self.encoding_errors!r}")
        return self


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
        raise ConfigurationError(f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(names))}")
    by_key = {conf_key(name): name for name in names}
    values: dict[str, Any] = {}
    for key, text in conf.items():
        if not key.startswith(CONF_PREFIX):
            continue
        if key not in by_key:
            raise ConfigurationError(f"unknown configuration key {key!r}; the keys are {', '.join(sorted(by_key))}")
        values[by_key[key]] = _parse(key, text, by_key[key])
    values.update({name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in overrides.items()})
    return Options(**values).checked()


def _parse(key: str, text: str, name: str) -> Any:
    hint = typing.get_type_hints(Options)[name]
    kinds = typing.get_args(hint) or (hint,)
    if type(None) in kinds and text.strip().lower() in ("", "none"):
        return None
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
