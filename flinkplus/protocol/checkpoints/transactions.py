"""When the transactions of a sink are opened, written and given up, where only one producer can have a name open.

The far end (Kafka) knows transactions by a name. Opening a name ends what is under way under it, waits until the fate
of that is settled, and refuses every producer that had opened it before. What a transaction writes becomes visible
together: rows, and ``OutputProgress``, which says up to which checkpoint rows are there.

Rules and invariants:

- A session goes through open, check, read, and is *known* then. Only a known session writes.
- Check comes after open. If no other driver had taken the job over by then, the driver of each later run opens the name
  later than this one, and what this one writes after that is refused.
- Read comes after open. So it finds whatever earlier transactions have done, also those whose answer was lost.
- A failure of any kind closes the session: it is not known whether the transaction was carried out. The next attempt
  opens the name again, and finds out.
- A transaction with rows has the progress, and leaves out what the progress that was read covers.
- Progress never shrinks, and a name whose output another job has taken over is written no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from typing_extensions import assert_never

from flinkplus.documents import Document
from flinkplus.errors import OutputTopicError

PROGRESS_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProgress(Document):
    """What is visible of a job's output. ``checkpoint``: rows up to this one. ``taken_by``: the job that continues the
    output; otherwise empty."""

    FORMAT: ClassVar[int] = PROGRESS_FORMAT
    REFUSED: ClassVar[type[Exception]] = OutputTopicError

    checkpoint: int
    taken_by: str = ""


# --- what is wanted ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """The output of the job begins at ``checkpoint``. ``again``: it may have begun already."""

    checkpoint: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Continue:
    """A run of the job continues its output."""


@dataclass(frozen=True, slots=True)
class Add:
    """The rows of all checkpoints up to ``checkpoint`` are to be visible."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The job ``to`` continues from ``checkpoint`` of the job of this session, which may write no more."""

    to: str
    checkpoint: int


Goal = Begin | Continue | Add | HandOver

# --- what comes next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Open the name."""


@dataclass(frozen=True, slots=True)
class Check:
    """Check that no other driver has taken the job over."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read the progress of the job."""


@dataclass(frozen=True, slots=True)
class Write:
    """One transaction: the rows of checkpoints after ``after`` up to ``through``, and ``progress``, of each job."""

    after: int
    through: int
    progress: tuple[tuple[str, OutputProgress], ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The goal cannot be reached. ``why``: the output has begun; it has not begun; progress is gone or older than it
    was; another job has it (``taken_by``); it has rows after the checkpoint to continue from (``checkpoint``)."""

    why: Literal["begun", "absent", "lost", "taken", "later"]
    checkpoint: int = 0
    taken_by: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The goal is reached. ``progress``: ``None``: the job has no output there."""

    progress: OutputProgress | None


Order = Open | Check | Read | Write | Refuse | Done


@dataclass(frozen=True, slots=True)
class Session:
    """What the driver knows of the output of ``job``. ``progress``: what was read or written last, in ``known``.
    ``least``: the checkpoint that was seen there."""

    job: str
    phase: Literal["closed", "opened", "checked", "known"] = "closed"
    progress: OutputProgress | None = None
    least: int = 0


def next_order(session: Session, goal: Goal) -> Order:
    """What the driver does next towards ``goal``. After it, one of the functions below gives the session."""
    match session.phase:
        case "closed":
            return Open()
        case "opened":
            return Check()
        case "checked":
            return Read()
        case "known":
            return _decided(session, goal)
    assert_never(session.phase)


def _decided(session: Session, goal: Goal) -> Order:
    known = session.progress
    if (session.least and known is None) or (known is not None and known.checkpoint < session.least):
        return Refuse("lost")
    match goal:
        case HandOver(to, checkpoint):
            return _handed_over(session.job, known, to, checkpoint)
        case _ if known is not None and known.taken_by:
            return Refuse("taken", taken_by=known.taken_by)
        case Begin(checkpoint, again):
            if known is None:
                return Write(checkpoint, checkpoint, ((session.job, OutputProgress(checkpoint=checkpoint)),))
            return Done(known) if again or not known.checkpoint else Refuse("begun")
        case Continue():
            return Refuse("absent") if known is None else Done(known)
        case Add(checkpoint):
            if known is None:
                return Refuse("absent")
            if known.checkpoint >= checkpoint:
                return Done(known)
            return Write(known.checkpoint, checkpoint, ((session.job, replace(known, checkpoint=checkpoint)),))
    assert_never(goal)


def _handed_over(job: str, known: OutputProgress | None, to: str, checkpoint: int) -> Order:
    if known is None or known.taken_by == to:
        return Done(known)
    if known.taken_by:
        return Refuse("taken", taken_by=known.taken_by)
    if known.checkpoint > checkpoint:
        return Refuse("later", checkpoint=known.checkpoint)
    taken, begun = replace(known, taken_by=to), OutputProgress(checkpoint=checkpoint)
    return Write(checkpoint, checkpoint, ((job, taken), (to, begun)))


def opened(session: Session) -> Session:
    return replace(session, phase="opened", progress=None)


def checked(session: Session) -> Session:
    return replace(session, phase="checked")


def found(session: Session, progress: OutputProgress | None) -> Session:
    """``progress`` was read; ``None``: it has none."""
    least = session.least if progress is None else max(session.least, progress.checkpoint)
    return replace(session, phase="known", progress=progress, least=least)


def written(session: Session, order: Write) -> Session:
    """The transaction has succeeded."""
    return found(session, dict(order.progress)[session.job])


def failed(session: Session) -> Session:
    """Anything has failed, or its answer was lost."""
    return replace(session, phase="closed", progress=None)
