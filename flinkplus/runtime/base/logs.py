"""Structured logs: one line for each record, as JSON or as text, with job, slot, subtask, generation and phase.

The option ``log``, or ``FLINKPLUS_LOG`` in the driver's environment, is ``json`` or ``text``, or with a level:
``json:debug``. The driver ships it to the slots. Without it, the program's configuration of Python's logging counts.

Rules: the call that logs a record adds its subject (``about``), and the thread or process its owner (``speak_as``). A
record is one line of printable characters. In the text format the lines of a traceback follow, indented, so that none
can pass for a record. Only ``checked`` raises: a record that cannot be written does not fail the job.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from flinkplus.errors import ConfigurationError
from flinkplus.printable import escaped

VARIABLE = "FLINKPLUS_LOG"
FORMATS = (JSON := "json", "text")
LEVELS = ("debug", "info", "warning", "error")
FIELDS = ("job", "slot", "subtask", "generation", "phase")
LOGGERS = ("flinkplus", "chain_backup", "upstream_cache", "dedup")

_of_process: dict[str, Any] = {}
_of_thread: ContextVar[dict[str, Any] | None] = ContextVar("flinkplus_log_fields", default=None)


def checked(setting: str) -> tuple[str, int]:
    """The format and level of ``json`` or ``text:debug``. Raises ``ConfigurationError``."""
    form, _, level = setting.partition(":")
    if form not in FORMATS or (level or "info") not in LEVELS:
        raise ConfigurationError(
            f"log (and {VARIABLE}) must be {' or '.join(FORMATS)}, and after a colon {', '.join(LEVELS)} if it is not "
            f"to be info; not {setting!r}"
        )
    return form, getattr(logging, (level or "info").upper())


def wanted(option: str | None) -> str | None:
    """The setting of the option or of the environment. Raises ``ConfigurationError``."""
    setting = option or os.environ.get(VARIABLE) or None
    if setting is not None:
        checked(setting)
    return setting


def about(**fields: Any) -> dict[str, dict[str, Any]]:
    """The subject of a record, for ``extra`` of a logger's call."""
    return {"flinkplus": fields}


def speak_as(whole_process: bool = False, **fields: Any) -> None:
    """Set the owner of this thread's records, or of those of all threads without an owner."""
    if whole_process:
        _of_process.clear()
        _of_process.update(fields)
    else:
        _of_thread.set(fields)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ``FIELDS`` of a record; ``None``: unknown."""
    own = getattr(record, "flinkplus", None)
    merged = {**_of_process, **(_of_thread.get() or {}), **(own if isinstance(own, dict) else {})}
    return {name: merged.get(name) for name in FIELDS}


class JsonLines(logging.Formatter):
    """One JSON object per line; an unknown field is null."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record, "%Y-%m-%dT%H:%M:%S") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **fields_of(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return escaped(json.dumps(fields, ensure_ascii=False, default=str))


class TextLines(logging.Formatter):
    """One line for people, with the known fields at its end."""

    def format(self, record: logging.LogRecord) -> str:
        known = "".join(f" {name}={value}" for name, value in fields_of(record).items() if value is not None)
        line = f"{_time(record, '%H:%M:%S')} {record.levelname.lower()} {record.name}: {record.getMessage()}{known}"
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n".join([escaped(line), *(f"  {escaped(one)}" for one in trace)])


if TYPE_CHECKING:
    _StreamHandler = logging.StreamHandler[TextIO]
else:
    _StreamHandler = logging.StreamHandler  # Python 3.10 gives it no type parameter


def _time(record: logging.LogRecord, form: str) -> str:
    return f"{time.strftime(form, time.gmtime(record.created))}.{int(record.created % 1 * 1000):03d}"


class _ToStderr(_StreamHandler):
    """Writes to the current ``sys.stderr``."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def install(setting: str | None) -> None:
    """Set up FlinkPlus's loggers of this process by ``setting``, without other handlers; ``None``: leave them."""
    if setting is None:
        return
    form, level = checked(setting)
    uninstall()
    handler = _ToStderr()
    handler.setFormatter(JsonLines() if form == JSON else TextLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False


def uninstall() -> None:
    """Undo ``install``."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        for handler in [handler for handler in logger.handlers if isinstance(handler, _ToStderr)]:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
