"""The topic of progress: what is committed of a job's rows, written in the transactions that have them.

Rules:

- The topic has one record for each job and topic, the newest; it is compacted. Its records are written last in a
  transaction, since readers of that topic wait for those that are under way there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Protocol

from flinkplus.documents import parse_document
from flinkplus.errors import OutputTopicError
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka.cluster import OutputClient
from flinkplus.sinks.kafka.records import Staged
from flinkplus.sources.kafka.connecting import KafkaConnection

PROGRESS_PARTITION = 0
COMPACTED = {"cleanup.policy": "compact"}


class TransactionClient(Protocol):
    """What the committer needs of a cluster. Raises ``OutputUnavailable``, ``OutputTopicError``."""

    def ready(self) -> None:
        """Check that the topic is there; make the topic of progress unless it is there."""

    def open(self) -> None:
        """Open the name for transactions: ends that of an earlier producer, and refuses further ones of it."""

    def read(self, job: str) -> OutputProgress | None:
        """The progress of a job in the topic; ``None``: nothing is known of it."""

    def write(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        """All of it in one transaction. When it raises, the transaction may have succeeded."""

    def close(self) -> None:
        """Let the connections go."""


class KafkaTransactions(OutputClient):
    """Transactions under the name ``transactional_id``, with progress in ``progress_topic``. ``owner``: the sink, for
    errors."""

    def __init__(
        self, owner: str, connection: KafkaConnection, transactional_id: str, topic: str, progress_topic: str
    ) -> None:
        super().__init__(owner, connection, transactional_id, topic)
        self._progress_topic = progress_topic
        self._is_checked = False

    # --- questions

    def ready(self) -> None:
        if self._is_checked:
            return
        with self._consumer("read_committed") as consumer, self._calls("ask for topics"):
            if not self._has(consumer, self._topic):
                raise OutputTopicError(
                    f"{self._owner}: topic {self._topic!r} is not there, or is being deleted: create it first, since "
                    "the number of its partitions is yours to choose"
                )
            if not self._has(consumer, self._progress_topic):
                self._make_topic(self._progress_topic, 1, COMPACTED, "what is committed")
                self._await_topic(consumer, self._progress_topic)
        self._check_settings(self._progress_topic, COMPACTED, "what is committed would be forgotten")
        self._is_checked = True

    def read(self, job: str) -> OutputProgress | None:
        """Waits for transactions of others that are under way in the topic of progress: they are before the end."""
        with self._consumer("read_uncommitted") as consumer, self._calls("read progress"):
            if not self._has(consumer, self._progress_topic):
                return None
            low, high = self._ends(consumer, self._progress_topic, PROGRESS_PARTITION)
        content, key = None, self._progress_key(job)
        with self._consumer("read_committed") as consumer, self._calls("read progress"):
            for message in self._read_to(consumer, self._progress_topic, PROGRESS_PARTITION, low, high):
                if message.key() == key:
                    content = message.value()
        if content is None:
            return None
        try:
            document = parse_document(content)
        except ValueError as error:
            raise OutputTopicError(f"{self._owner}: the progress of job {job} is damaged: {error}") from None
        return OutputProgress.from_json(document)

    def _progress_key(self, job: str) -> bytes:
        return f"{job}/{self._topic}".encode()

    def write(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        self._transact(lambda: self._produce_all(records, progress))

    def _produce_all(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        for key, value, headers, partition in records:
            self._produce(self._topic, key, value, headers, -1 if partition is None else partition)
        self._flush()
        for job, one in progress.items():
            content = json.dumps(one.to_json()).encode()
            self._produce(self._progress_topic, self._progress_key(job), content, None, PROGRESS_PARTITION)
