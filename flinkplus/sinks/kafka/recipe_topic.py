"""The recipe topic of a sink whose rows are visible at once: as the driver and the writers read, write and trim it.

Rules:

- The topic belongs to one job and output. Partition *n* belongs to subtask *n*: only transactions under its name write
  there. So no open transaction of another producer hides records from a reader that has opened the name.
- A subtask is read after its name was opened: what was committed before is then before the end that the brokers report.
- Nothing there is removed by time or size. A writer removes what no reader needs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from typing_extensions import override

from flinkplus.errors import OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.subtask_output import OutputState
from flinkplus.protocol.determinants.recipe import RecipeEntry
from flinkplus.sinks.kafka.cluster import DEFAULTS, PATIENCE_S, OutputClient, admin_module, log
from flinkplus.sinks.kafka.recipe_records import PIECE_BYTES, RecipeScan, Shown, pieces
from flinkplus.sinks.kafka.records import Staged
from flinkplus.sources.kafka.connecting import KafkaConnection, Setting

T = TypeVar("T")
KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
FURTHER = {"segment.bytes": str(32 << 20)}
"""Of a new topic: what is removed leaves the disk by whole segments."""
WINDOW = 2_000
"""So many offsets from the end are read first."""
WIDER = 8
TRIM_EVERY = 1_000
"""Records are removed when there are so many."""
PIECE_SHARE = 2
"""A piece has at most the largest record's size divided by this."""


class RecipePartition(Protocol):
    """What a fence or a writer needs of one subtask. Raises ``OutputUnavailable``, ``OutputTopicError``."""

    def open(self) -> None:
        """Open the subtask's name: ends the transaction under way, and refuses its producer from now on."""

    def read(self) -> Shown:
        """What is stored."""

    def append(
        self,
        rows: Sequence[Staged],
        state: OutputState,
        entries: Sequence[RecipeEntry],
        since: int,
        behind: int | None = None,
    ) -> tuple[int, int]:
        """One transaction; the offsets of its first and last record here. When it raises, it may have succeeded.

        ``behind``: the offset that its first record must have; with another one it is aborted, and
        ``OutputUnavailable`` raised."""

    def trim(self, before: int) -> None:
        """Records before this offset are needed no more."""

    def close(self) -> None:
        """Let the connections go."""


class RecipeTopic(OutputClient):
    """Reads all partitions, makes the topic and removes it. Keeps its connection. ``name``: of the topic."""

    def __init__(self, owner: str, connection: KafkaConnection, client: str, topic: str, name: str) -> None:
        super().__init__(owner, connection, client, topic)
        self.name = name
        self._in_use = threading.Lock()
        self._consumer_kept: Any = None

    def partitions(self) -> int:
        """How many there are; 0: the topic is not there."""

        def ask(consumer: Any) -> int:
            return len(self._described(consumer)) if self._has(consumer, self.name) else 0

        return self._asked(ask)

    def make(self, partitions: int) -> None:
        """Make the topic, unless it is there, and check that it keeps its records."""
        if not self.partitions():
            with self._calls("make a topic"):
                self._make_topic(self.name, partitions, {**KEPT, **FURTHER}, "what makes rows again")
            self._asked(lambda consumer: self._await_topic(consumer, self.name))
        with self._calls("ask for settings"):
            self._check_settings(self.name, KEPT, "what makes rows again would be forgotten")

    def grow(self, partitions: int) -> None:
        """Let the topic have at least ``partitions``."""
        if (known := self.partitions()) >= partitions:
            return
        if not known:
            raise OutputTopicError(f"{self._owner}: topic {self.name!r}, which keeps what makes rows again, has gone")
        module = admin_module()
        with self._calls("add partitions"):
            admin = self._made(module.AdminClient, {})
            new = module.NewPartitions(self.name, partitions)
            limits = {"operation_timeout": self._patience_s, "request_timeout": self._patience_s}
            admin.create_partitions([new], **limits)[self.name].result()

        def seen(consumer: Any) -> None:
            self._until(
                lambda: len(self._described(consumer)) >= partitions,
                f"topic {self.name!r} was enlarged and has not grown",
            )

        self._asked(seen)

    def _described(self, consumer: Any) -> Mapping[int, Any]:
        found: Mapping[int, Any] = (
            consumer.list_topics(self.name, timeout=self._patience_s).topics[self.name].partitions
        )
        return found

    def remove(self) -> None:
        """Remove the topic, if it is there."""
        if not self.partitions():
            return
        with self._calls("remove a topic"):
            admin = self._made(admin_module().AdminClient, {})
            limits = {"operation_timeout": self._patience_s, "request_timeout": self._patience_s}
            admin.delete_topics([self.name], **limits)[self.name].result()

    def read(self, partition: int, until_s: float | None = None) -> Shown:
        """What is stored of the subtask. Raises ``OutputTopicError`` if records are gone that
        count. ``until_s``: see ``OutputClient``."""
        what = f"{self._owner}: partition {partition} of topic {self.name!r}"

        def action(consumer: Any) -> Shown:
            low, end = self._ends(consumer, self.name, partition)
            first, width = max(low, end - WINDOW), WINDOW
            while True:
                scan = RecipeScan(first, what)
                for message in self._read_to(consumer, self.name, partition, first, end):
                    scan.add(message.offset(), message.key(), message.value())
                wanted = scan.reads_from
                if (wanted is None and low > 0 and first == low) or (wanted is not None and wanted < low):
                    raise OutputTopicError(f"{what}: what makes rows again was removed; do not trim this topic")
                if first == low or (wanted is not None and wanted >= first):
                    return Shown(scan.stored(), end)
                width *= WIDER
                first = max(low, end - width) if wanted is None else wanted

        return self._asked(action, until_s)

    def _asked(self, action: Callable[[Any], T], until_s: float | None = None) -> T:
        """``action`` with the kept consumer, which is replaced after a failure."""
        left_s = PATIENCE_S if until_s is None else max(0.0, until_s - time.monotonic())
        if not self._in_use.acquire(timeout=left_s):
            raise OutputUnavailable(f"{self._owner}: topic {self.name!r} is being read, and no broker answers")
        try:
            self.until_s = until_s
            with self._calls(f"read topic {self.name!r}"):
                if self._consumer_kept is None:
                    self._consumer_kept = self._made_consumer("read_committed")
                found = action(self._consumer_kept)
                self._consumer_kept.unassign()
                return found
        except BaseException:
            self._drop()
            raise
        finally:
            self.until_s = None
            self._in_use.release()

    def _drop(self) -> None:
        consumer, self._consumer_kept, self._denied = self._consumer_kept, None, ""
        if consumer is not None:
            consumer.close()

    @override
    def close(self) -> None:
        """If it is in use, the next use connects again."""
        super().close()
        if self._in_use.acquire(timeout=self._patience_s):
            try:
                self._drop()
            finally:
                self._in_use.release()


class KafkaPartition(OutputClient):
    """The partition of one subtask, and rows in ``topic``. ``transactional_id``: the subtask's. ``reader``: of its
    topic. ``largest``: bytes of a record."""

    defaults: ClassVar[Mapping[str, Setting]] = {
        **DEFAULTS,
        "delivery.report.only.error": False,
        "linger.ms": 0,
        "transaction.timeout.ms": 10_000,
    }

    def __init__(
        self,
        owner: str,
        connection: KafkaConnection,
        transactional_id: str,
        topic: str,
        reader: RecipeTopic,
        partition: int,
        largest: int,
    ) -> None:
        super().__init__(owner, connection, transactional_id, topic)
        self._reader, self._partition = reader, partition
        self._piece_bytes = min(PIECE_BYTES, largest // PIECE_SHARE)
        self._trimmed_to: int | None = None
        self._trimming: Any = None
        self._admin: Any = None
        self._has_warned = False

    def read(self) -> Shown:
        return self._reader.read(self._partition, self.until_s)

    def append(
        self,
        rows: Sequence[Staged],
        state: OutputState,
        entries: Sequence[RecipeEntry],
        since: int,
        behind: int | None = None,
    ) -> tuple[int, int]:
        offsets: list[int] = []
        unplaced = 0

        def delivered(error: Any, message: Any) -> None:
            nonlocal unplaced
            if error is None and message.offset() is not None:
                offsets.append(message.offset())
            elif error is None:  # it was sent once more, and the brokers know only that they have it
                unplaced += 1
            self._on_undelivered(error, message)

        def produce() -> None:
            for key, value, headers, partition in rows:
                self._produce(self._topic, key, value, headers, -1 if partition is None else partition)
            for key, value in pieces(state, entries, since, self._piece_bytes):
                self._produce(self._reader.name, key, value, None, self._partition, delivered)
            self._flush()  # which calls ``delivered``
            if unplaced:
                raise OutputUnavailable(f"{self._owner}: the brokers do not say where records are")
            if behind is not None and offsets and min(offsets) != behind:
                raise OutputUnavailable(
                    f"{self._owner}: the brokers had shown topic {self._reader.name!r} up to {behind}, and it ends at "
                    f"{min(offsets)}"
                )

        self._transact(produce)
        if not offsets:
            raise OutputUnavailable(f"{self._owner}: the brokers do not say where records are")
        return min(offsets), max(offsets)

    def trim(self, before: int) -> None:
        """Asks the brokers, and does not wait: they may refuse, which costs their disk only."""
        if self._trimmed_to is None:
            self._trimmed_to = before
        if before - self._trimmed_to < TRIM_EVERY or (self._trimming is not None and not self._trimming.done()):
            return
        try:
            if self._trimming is not None:
                self._trimming.result()
            if self._admin is None:
                self._admin = self._made(admin_module().AdminClient, {})
            at = self._kafka.TopicPartition(self._reader.name, self._partition, before)
            (self._trimming,) = self._admin.delete_records([at]).values()
        except self._kafka.KafkaException as error:
            if not self._has_warned:
                log.warning("%s: the brokers do not trim the recipe (%s)", self._owner, self._text(error.args[0]))
            self._has_warned, self._trimming = True, None
        self._trimmed_to = before

    @override
    def close(self) -> None:
        super().close()
        self._admin = None
