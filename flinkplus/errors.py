"""The errors that FlinkPlus raises on purpose; all derive from ``FlinkPlusError``.

Rules: each message names the thing (operator, channel, file, setting) and says what to do.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

from flinkplus.printable import escaped, printable

_USER_INFO = re.compile(r"(?<=://)[^\s'\"/@:]+:(?!\d+(?:[/\s]|$))[^\s'\"@]*@")
_PARAMETER = re.compile(r"(?i)([?&][^=&\s'\"]*(?:key|secret|token|password|signature)[^=&\s'\"]*=)[^&\s'\"]+")
HIDDEN = "***"
LONGEST_DESCRIPTION = 4_000


def without_secrets(text: str) -> str:
    """The text, with ``***`` for keys and secrets in URIs: ``s3://KEY:SECRET@bucket``, ``?secret_key=...``."""
    if "://" not in text:
        return text
    return _PARAMETER.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))


class FlinkPlusError(Exception):
    """The base. Its text has no secret of a URI, and no control characters except line breaks and tabs."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*(_shown(arg) if isinstance(arg, str) else arg for arg in args), **named)


def _shown(text: str) -> str:
    return escaped(without_secrets(text), keep="\n\t")


def described(error: BaseException) -> str:
    """An error in one short printable line, without secrets: its kind and text; without a text, where it was raised."""
    kind, text = type(error).__name__, printable(without_secrets(str(error)), LONGEST_DESCRIPTION)
    if text:
        return f"{kind}: {text}"
    where = traceback.extract_tb(error.__traceback__)[-1:]
    return kind + "".join(f" at {frame.filename}:{frame.lineno} in {frame.name}" for frame in where)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, short, printable and without secrets; without a text, its kind."""
    lines = without_secrets(str(error)).splitlines() or [type(error).__name__]
    return printable(lines[0], LONGEST_DESCRIPTION)


class ConfigurationError(FlinkPlusError):
    """A setting, option or graph that cannot work."""


class ShadowedPackage(ConfigurationError, ImportError):
    """A module of the user's has the name of a package that FlinkPlus imports, and Python finds that one first.

    Attributes: ``name`` of the package, ``path`` of the module.
    """


class InputError(FlinkPlusError):
    """Input that is missing, unreadable, changed, or not valid."""


class OutputError(FlinkPlusError):
    """Output that cannot be taken where it should go."""


class OutputTableError(OutputError):
    """A table of a database that cannot take the job's results."""


class OutputTopicError(OutputError):
    """A topic of Kafka that cannot take the job's results."""


class OutputFunctionError(OutputError):
    """A user's function that takes output (``foreach_batch``) raised; or what it was given cannot be taken back."""


class OutputUnavailable(OutputError, OSError):
    """A database, table or cluster that does not answer, or could not do what was asked; a later attempt may."""


class OutputDirectoryError(OutputError):
    """An output directory that cannot take the job's results."""


class CheckpointDirectoryError(FlinkPlusError):
    """A checkpoint directory that is not writable, holds checkpoints already, or belongs to another job."""


class JobRunsElsewhere(FlinkPlusError):
    """Another driver runs the job; two would spoil its checkpoints and its output."""


class CorruptCheckpoint(FlinkPlusError):
    """A manifest that is truncated, altered, or of an unknown format."""


class UntrustedCheckpoint(FlinkPlusError):
    """A plan or manifest that was not signed with the key here: to resume from it would run the code of its author."""

    ADVICE = (
        "to resume runs the code that is in it. If you know who wrote it, give the key that it was signed with "
        "(signing_key=FILE, --signing-key FILE, FLINKPLUS_KEY_FILE), or resume once with trust=True (--trust), which "
        "signs it with the key here (docs/security.md)"
    )

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.ADVICE}"


class UntrustedState(UntrustedCheckpoint):
    """State that a user asked to read as data, and that is not signed with the key here."""

    ADVICE = (
        "give the key that it was signed with (signing_key=FILE, --signing-key FILE, FLINKPLUS_KEY_FILE), or read it "
        "all the same with trust=True (--trust): no code that is in it is run (docs/security.md)"
    )


class CorruptState(FlinkPlusError):
    """A state file that does not match its recorded checksum, size or format."""


class UnsafeName(FlinkPlusError, ValueError):
    """A name in a file or a message that must not become a part of a path. Decoders raise their own error from it."""


class UserFunctionError(FlinkPlusError):
    """A user's function raised, or returned what its schema does not allow.

    Attributes, as text: ``operator`` name, ``subtask`` (``count[1]``), ``row`` (cut at 1,000 characters), ``cause``;
    ``text``: the whole message, if another process has made it.
    """

    def __init__(self, operator: str, subtask: str, row: str, cause: str, text: str | None = None) -> None:
        super().__init__(operator, subtask, row, cause, text)
        self.text: str | None
        self.operator, self.subtask, self.row, self.cause, self.text = self.args  # which show no secret

    def __str__(self) -> str:
        if self.text is not None:
            return self.text
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
    """What a subtask does or receives contradicts its history before a failure: the job rolls back."""


class NondeterministicOperator(HistoryMismatch):
    """A replayed step differs from the original one: a user's function reads something that is not logged, such as a
    clock, a random number, a set's order or another service."""


class SubtaskNotRunning(FlinkPlusError):
    """A subtask did not run within the timeout of a request that needs it running."""


class InputLost(HistoryMismatch):
    """Rows of a source that cannot be read again (``from_socket``) are gone with the subtask that had read them."""


class AnswersLost(HistoryMismatch):
    """Answers from outside (``map_async``) that were sent on are missing or damaged in the checkpoint directory."""


class MessageIdConflict(HistoryMismatch):
    """The filter of message IDs and the cursor of a channel disagree whether a message is new."""


class JobFailed(FlinkPlusError):
    """The job ended with an error; the message and ``__cause__`` say which."""


class JobCancelled(FlinkPlusError):
    """The job was cancelled before it finished."""


class InsufficientSlots(FlinkPlusError):
    """Spark cannot run all slots of the job at once."""


class SlotStartError(FlinkPlusError):
    """A slot's process cannot start, for example for want of a module; the cause of the ``JobFailed`` that follows."""


class MoveRefused(FlinkPlusError):
    """A move was refused; nothing was changed."""


class RedundancyAtRisk(MoveRefused):
    """A host was not drained: standbys would be fewer, or share hosts, without it. ``force=True`` drains it."""


class MoveCancelled(FlinkPlusError):
    """A move was not completed: something failed during it, or another request replaced it."""


class SavepointRefused(FlinkPlusError):
    """A savepoint was refused, before the job did anything for it."""


class SavepointError(FlinkPlusError):
    """A savepoint was not completed; the job runs on, unless it has ended by itself."""


class JavaError(FlinkPlusError):
    """Java is absent, too old, or cannot be started."""


class CommandRefused(FlinkPlusError):
    """A running job refused a command; the message says why."""


class InjectedFailure(FlinkPlusError):
    """Raised in a subtask by ``flinkplus inject exception``."""


class NoRunningJob(FlinkPlusError):
    """A command found no running job: it does not exist, has ended, or does not answer."""


class PeerProtocolError(FlinkPlusError):
    """A peer sent what the protocol does not allow; nothing was changed by it."""


class ForeignMessage(PeerProtocolError):
    """A slot sent a message or credit on a channel whose end, in the generation that it names, is on another slot."""


class ControlMessageTooLarge(FlinkPlusError):
    """A message between a slot and the driver that is longer than its receiver would take; it was not sent."""


class PeerRefused(FlinkPlusError):
    """The peer of a connection could not prove that it belongs to this job; ``reason`` is one word for the cause."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(f"{text} ({reason})")
        self.reason = reason


class InvariantViolation(FlinkPlusError):
    """A broken invariant of our own: the subtask stops and is recovered."""


class StateError(FlinkPlusError):
    """The local state store, or the storage behind it, cannot be read or written, or was closed."""


class CheckpointRemoved(StateError):
    """A checkpoint was removed by its job, which has newer ones, while it was read."""
