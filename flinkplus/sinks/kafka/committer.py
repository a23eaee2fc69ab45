"""The driver's side of a topic: the records that a checkpoint describes are produced, all in one transaction.

Rules and invariants:

- What comes next is decided by ``protocol.checkpoints.transactions``; this carries it out.
- There is one name for transactions for each job and topic, and the driver alone opens it. So a job with another
  parallelism leaves no name behind.
- Staged files are removed after their rows are committed; what nothing describes any more goes with the next commit
  of a new generation, or at the end.
- What is committed stays: ``retract_after`` refuses to go back behind it.
- Connections are closed after each failure, and when the job has ended, however it did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from typing_extensions import override

from flinkplus.errors import InvariantViolation, OutputTopicError
from flinkplus.printable import printable
from flinkplus.protocol.checkpoints.transactions import (
    Add,
    Begin,
    Check,
    Continue,
    Done,
    Goal,
    HandOver,
    Open,
    OutputProgress,
    Read,
    Refuse,
    Session,
    Write,
    checked,
    failed,
    found,
    next_order,
    opened,
    written,
)
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.base import not_yet_committed
from flinkplus.sinks.files import OutputFiles
from flinkplus.sinks.kafka.client import TransactionClient
from flinkplus.sinks.kafka.records import Staged, staged_records
from flinkplus.sinks.staging import LastingCommitter, StagingFolder, written_order

Connect = Callable[[str], TransactionClient]
"""Returns the client for the transactions of a job."""
RecordsOf = Callable[[Write], Iterable[Staged]]


class TopicSession:
    """What one job writes to the topic, as the driver carries it out."""

    def __init__(self, job: str, client: TransactionClient, check: Callable[[], None], topic: str) -> None:
        self.client = client
        self._check = check
        self._topic = topic
        self._session = Session(job)

    def reach(self, goal: Goal, records: RecordsOf = lambda order: ()) -> OutputProgress | None:
        """The progress once ``goal`` is reached. ``records``: those of a transaction."""
        try:
            while not isinstance(order := next_order(self._session, goal), Done):
                self._session = self._carried_out(order, records)
        except BaseException:
            self.close()
            raise
        return order.progress

    def close(self) -> None:
        """Let the connections go. It may be used again."""
        self._session = failed(self._session)
        self.client.close()

    def _carried_out(self, order: Open | Check | Read | Write | Refuse, records: RecordsOf) -> Session:
        match order:
            case Refuse():
                raise OutputTopicError(f"topic {self._topic!r} {why_refused(order)}")
            case Open():
                self.client.open()
                return opened(self._session)
            case Check():
                self._check()
                return checked(self._session)
            case Read():
                self.client.ready()
                return found(self._session, self.client.read(self._session.job))
            case Write():
                self.client.write(records(order), dict(order.progress))
                return written(self._session, order)


def why_refused(order: Refuse) -> str:
    """For users, behind the name of the topic."""
    match order.why:
        case "begun":
            return (
                "holds output of this job already: give each sink of a job a topic of its own, or union their streams"
            )
        case "absent":
            return (
                "does not hold the output of the job to be resumed: give the servers, topic and progress_topic that "
                "the job wrote to, or start a new job"
            )
        case "lost":
            return (
                "has lost what is known of this job's output: the topic of progress was changed or created again, and "
                "rows may be missing"
            )
        case "taken":
            return (
                f"is continued by another job now, {printable(order.taken_by)}, which was started from a savepoint of "
                "this one"
            )
        case "later":
            return (
                f"holds the rows of checkpoint {order.checkpoint} of the job that the savepoint is of, and the "
                "savepoint is of an earlier one: what comes after it would be there twice; give another topic, or the "
                "newest savepoint, taken with stop_with_savepoint"
            )


class KafkaCommitter(LastingCommitter):
    """Commits the rows of one sink to ``topic``. ``staging``: the folder in ``files`` where they are staged."""

    def __init__(self, job_id: str, topic: str, connect: Connect, files: OutputFiles, staging: str) -> None:
        self._job_id, self._topic, self._connect = job_id, topic, connect
        self._files = files
        self._staging = StagingFolder(files, staging)
        self._own: TopicSession | None = None
        self._committed_through = 0
        self._in_use = threading.Lock()
        self._is_over = False

    def _session_of(self, job: str) -> TopicSession:
        return TopicSession(job, self._connect(job), self._check, self._topic)

    def _check(self) -> None:
        self._files.check()  # which is given later

    @property
    def _session(self) -> TopicSession:
        if self._own is None:
            self._own = self._session_of(self._job_id)
        return self._own

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._files.check = check

    # --- before the first deployment ----------------------------------------------------------------------------------

    @override
    def prepare(self, resume: bool) -> None:
        self._ready(Continue() if resume else Begin())

    def _ready(self, goal: Begin | Continue) -> None:
        self._committed_through = self._reached(goal).checkpoint
        self._staging.make()

    def _reached(self, goal: Begin | Continue | Add, records: RecordsOf = lambda order: ()) -> OutputProgress:
        try:
            with self._in_use:
                progress = self._session.reach(goal, records)
        finally:
            self._close_when_over()
        if progress is None:
            raise InvariantViolation(f"topic {self._topic!r}: nothing is known of the job's output")
        return progress

    @override
    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        if job_id is None:
            return
        client = self._connect(job_id)
        try:
            known = found(Session(job_id), client.read(job_id))
        finally:
            client.close()
        order = next_order(known, HandOver(self._job_id, checkpoint))
        if isinstance(order, Refuse):
            raise OutputTopicError(f"topic {self._topic!r} {why_refused(order)}")

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        if job_id is not None:
            former = self._session_of(job_id)
            try:
                former.reach(HandOver(self._job_id, checkpoint))
            finally:
                former.close()
        self._ready(Begin(checkpoint, again=True))

    # --- while the job runs -------------------------------------------------------------------------------------------

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        new = not_yet_committed(files, self._committed_through)
        if new:
            newest = max(file.checkpoint for file in new)
            self._committed_through = self._reached(Add(newest), lambda order: self._records(files, order)).checkpoint
        self._staging.remove_committed(checkpoint, files)

    def _records(self, files: Sequence[StagedFile], order: Write) -> Iterator[Staged]:
        """The records of a transaction, those of each subtask in the order of its rows."""
        for file in sorted(not_yet_committed(files, order.after), key=written_order):
            yield from self._records_of(file)

    def _records_of(self, file: StagedFile) -> Iterator[Staged]:
        try:
            content = self._files.read(self._staging.path(file.name))
        except FileNotFoundError:
            content = b""
        if len(content) != file.bytes or not content:
            raise self._damaged(file, f"is missing or has not the {file.bytes} bytes that were written")
        try:
            yield from staged_records(content)
        except (ValueError, pa.ArrowException) as error:
            raise self._damaged(file, f"is damaged: {printable(error)}") from error

    def _damaged(self, file: StagedFile, why: str) -> OutputTopicError:
        return OutputTopicError(
            f"topic {self._topic!r}: staged file {file.name} of checkpoint {file.checkpoint} in "
            f"{self._files.location!r} {why}"
        )

    @override
    def _last_committed(self) -> int:
        return self._reached(Continue()).checkpoint

    @override
    def _lasts(self, checkpoint: int, consequence: str) -> OutputTopicError:
        return OutputTopicError(
            f"topic {self._topic!r} holds the rows of checkpoint {checkpoint}, and what is committed to a topic "
            f"{consequence}"
        )

    @override
    def discard(self) -> None:
        if self._own is not None:
            self._own.close()
        super().discard()

    @override
    def close(self) -> None:
        """If a transaction is under way, its thread closes the connections after it."""
        self._is_over = True
        self._close_when_over()

    def _close_when_over(self) -> None:
        if self._is_over and self._in_use.acquire(blocking=False):
            try:
                if self._own is not None:
                    self._own.close()
            finally:
                self._in_use.release()
