"""Every error a user can meet, typed.

Rules: each message names the thing (operator, channel, file, setting) and says what to do; nothing raises a bare
``Exception``; every class derives from ``FlinkPlusError``, so one ``except`` catches what the project says on purpose.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

_USER_INFO = re.compile(r"(?<=://)[^\s'\"/@:]+:(?!\d+(?:[/\s]|$))[^\s'\"@]*@")
_PARAMETER = re.compile(r"(?i)([?&][^=&\s'\"]*(?:key|secret|token|password|signature)[^=&\s'\"]*=)[^&\s'\"]+")
HIDDEN = "***"


def without_secrets(text: str) -> str:
    """The text, with ``***`` for keys and secrets in URIs: ``s3://KEY:SECRET@bucket``, ``?secret_key=...``."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))


class FlinkPlusError(Exception):
    """Base of every error that FlinkPlus raises on purpose. Its text shows no secret of a URI."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*(without_secrets(arg) if isinstance(arg, str) else arg for arg in args), **named)


def described(error: BaseException) -> str:
    """An error in one line, without secrets: its kind and text; where it was raised if it has no text."""
    kind, text = type(error).__name__, without_secrets(str(error))
    if text:
        return f"{kind}: {text}"
    where = traceback.extract_tb(error.__traceback__)[-1:]
    return kind + "".join(f" at {frame.filename}:{frame.lineno} in {frame.name}" for frame in where)


class ConfigurationError(FlinkPlusError):
    """A setting, option or graph that cannot work."""


class ShadowedPackage(ConfigurationError, ImportError):
    """A module of the user's has the name of a package that FlinkPlus imports, and Python finds that one first.

    Attributes: ``name`` of the package, ``path`` of the module.
    """


class InputError(FlinkPlusError):
    """Input that is missing, unreadable, changed, or not valid."""


class OutputDirectoryError(FlinkPlusError):
    """An output directory that cannot take the job's results."""


class CheckpointDirectoryError(FlinkPlusError):
    """A checkpoint directory that is not writable, holds checkpoints already, or belongs to another job."""


class JobRunsElsewhere(FlinkPlusError):
    """Another driver runs the job; two would spoil its checkpoints and its output."""


class CorruptCheckpoint(FlinkPlusError):
    """A manifest that is truncated, altered, or of an unknown format."""


class CorruptState(FlinkPlusError):
    """A state file that does not match its recorded checksum, size or format."""


class UserFunctionError(FlinkPlusError):
    """A user's function raised, or returned what its schema does not allow.

    Attributes: ``operator`` name, ``subtask`` as text (``count[1]``), ``row`` as text (cut at 1,000 characters),
    ``cause`` as text. ``told``: the message of all that, where it was made by another process.
    """

    def __init__(self, operator: str, subtask: str, row: str, cause: str, told: str | None = None) -> None:
        super().__init__(operator, subtask, row, cause, told)
        self.told: str | None
        self.operator, self.subtask, self.row, self.cause, self.told = self.args  # which show no secret

    def __str__(self) -> str:
        if self.told is not None:
            return self.told
        return f"operator {self.operator!r}, subtask {self.subtask}: {self.cause}; input row: {self.row}"


class ProcessCrashed(FlinkPlusError):
    """The same input ended the processes of two slots, one after the other, inside the same operator.

    Attributes, as text: ``operator`` name, ``subtask``, ``message`` (its channel and number, or the rows of a source),
    ``row`` (empty: not known), ``cause`` (the signal that the process died of; empty: not known).
    """

    def __init__(self, operator: str, subtask: str, message: str, row: str, cause: str) -> None:
        super().__init__(operator, subtask, message, row, cause)
        self.operator, self.subtask, self.message, self.row, self.cause = self.args  # which show no secret

    def __str__(self) -> str:
        cause = self.cause or "no signal of its own, as when the process runs out of memory, exits or is killed"
        return (
            f"operator {self.operator!r}, subtask {self.subtask}: the same input ended the process twice ({cause}); "
            f"{self.message}; input row: {self.row or 'not known'}. Fix the function, or filter such rows out"
        )


class HistoryMismatch(FlinkPlusError):
    """What a subtask does, or receives, contradicts what happened before a failure: local failover cannot be exact, and
    the job rolls back.
    """


class NondeterministicOperator(HistoryMismatch):
    """A subtask that repeats steps of the one before it does not do what that one did: local failover cannot be exact.

    A user's function reads something that is not logged: a clock, a random number, a set's order, another service.
    """


class SubtaskNotRunning(FlinkPlusError):
    """A subtask did not run within the timeout of a request that needs it running."""


class MessageIdConflict(HistoryMismatch):
    """The filter of message IDs and the cursor of a channel disagree whether a message is new: one of them has lost
    what the subtask had received. Counted as ``conflicts`` of ``message_ids`` in ``job.metrics()``.
    """


class JobFailed(FlinkPlusError):
    """The job ended with an error; the message and ``__cause__`` say which."""


class JobCancelled(FlinkPlusError):
    """The job was cancelled before it finished."""


class InsufficientSlots(FlinkPlusError):
    """Spark cannot run all slots of the job at once."""


class SlotStartError(FlinkPlusError):
    """A slot's process cannot begin its work, as when what the job's functions need is not there; it is the cause of
    the ``JobFailed`` that this ends in.
    """


class MoveRefused(FlinkPlusError):
    """Work cannot be moved as asked; nothing was changed."""


class RedundancyAtRisk(MoveRefused):
    """A host was not drained: standbys would be fewer, or share hosts, without it. ``force=True`` drains it."""


class MoveCancelled(FlinkPlusError):
    """Work that was to be moved stays, or went elsewhere: something failed on the way, or another request came."""


class JavaError(FlinkPlusError):
    """Java is absent, too old, or cannot be started."""


class CommandRefused(FlinkPlusError):
    """A running job does not do what it was told from outside; the message says why."""


class InjectedFailure(FlinkPlusError):
    """Raised in a subtask on order, by ``flinkplus inject exception``."""


class NoRunningJob(FlinkPlusError):
    """There is no running job to be told anything: none was found, it is over, or it does not answer."""


class PeerProtocolError(FlinkPlusError):
    """A peer sent what the protocol does not allow; nothing was changed by it."""


class ControlMessageTooLarge(FlinkPlusError):
    """A message between a slot and the driver that is longer than its receiver would take; it was not sent."""


class PeerRefused(FlinkPlusError):
    """Who is at the other end of a connection could not prove to be of this job; ``reason`` is one word for it."""

    def __init__(self, reason: str, told: str) -> None:
        super().__init__(f"{told} ({reason})")
        self.reason = reason


class InvariantViolation(FlinkPlusError):
    """A broken invariant of our own: the subtask stops and is recovered."""


class StateError(FlinkPlusError):
    """The local state store, or the storage behind it, cannot be read or written, or was closed."""
