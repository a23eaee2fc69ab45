"""The consumer of librdkafka, and what its errors mean. No other part of a source imports ``confluent_kafka``.

Rules: used by one thread. A call that a broker must answer raises ``BrokersAway`` when none does within its timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

from flinkplus.errors import ConfigurationError, InputError
from flinkplus.printable import printable
from flinkplus.sources.kafka.connecting import KafkaConnection
from flinkplus.sources.kafka.partitions import Offsets, Partition

FIRST_ANSWER_S, ANSWER_S = 0.5, 10.0
"""How long the driver waits for an answer, at first and at most."""
EARLIEST, LATEST = -2, -1
"""What Kafka's protocol calls the first and the next offset of a partition, in place of a timestamp."""
Trouble = Literal["end", "gone", "unknown", "refused", "away"]
"""What an error says: a partition's end, records that are not there, a topic or partition that is not there, a right
that is missing; everything else may pass."""

log = logging.getLogger("flinkplus.kafka")


class BrokersAway(Exception):
    """No broker has answered; a later attempt may succeed."""


class Refused(Exception):
    """The brokers refuse who asks, or what is asked."""


class _Quiet:
    """librdkafka repeats itself while a broker is away; the reader says it once."""

    def log(self, level: int, *arguments: Any) -> None:
        log.debug(*arguments)


def confluent_module(used_by: str = "from_kafka") -> Any:
    """``confluent_kafka``. Raises ``ConfigurationError`` if it is not installed."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ConfigurationError(
            f"{used_by} needs confluent-kafka ({printable(error)}): pip install 'flinkplus[kafka]'"
        ) from error
    return confluent_kafka


class KafkaClient:
    """One consumer, which is assigned its partitions by hand. ``group``: that positions are committed to."""

    def __init__(self, source: str, connection: KafkaConnection, group: str | None, client_id: str) -> None:
        self._kafka = confluent_module()
        self._source, self._connection = source, connection
        self._failure = self._reported = ""
        self._commit_failed = self._denied = self._is_assigned = False
        codes = self._kafka.KafkaError
        self._meanings: dict[int, Trouble] = {
            codes._PARTITION_EOF: "end",
            codes._AUTO_OFFSET_RESET: "gone",
            codes.OFFSET_OUT_OF_RANGE: "gone",
            codes._UNKNOWN_TOPIC: "unknown",
            codes._UNKNOWN_PARTITION: "unknown",
            codes.UNKNOWN_TOPIC_OR_PART: "unknown",
            codes.TOPIC_AUTHORIZATION_FAILED: "refused",
            codes.CLUSTER_AUTHORIZATION_FAILED: "refused",
        }
        self._unauthenticated = {codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL}
        configuration = connection.configuration(source, group, client_id)
        configuration |= {"error_cb": self._on_error, "on_commit": self._on_commit}
        try:
            self._consumer = self._kafka.Consumer(configuration, logger=_Quiet())
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            text = error.args[0].str() if isinstance(error, self._kafka.KafkaException) else str(error)
            raise ConfigurationError(f"source {source!r}: config: {connection.shown(text)}") from None

    # --- records

    def fetch(self, most: int, timeout_s: float) -> list[Any]:
        """Up to ``most`` records or errors, as messages: what is here, or what comes first within ``timeout_s``."""
        first = self._consumer.consume(1, timeout_s)  # a larger number would wait until it is complete
        return first + self._consumer.consume(most - 1, 0) if first and most > 1 else first

    def trouble(self, error: Any) -> Trouble:
        """What the error of a message says."""
        return self._meanings.get(error.code(), "away")

    def text(self, error: Any) -> str:
        """An error for users."""
        return self._connection.shown(error.str())

    def assign(self, offsets: Offsets) -> None:
        """Fetch these partitions too, from ``offsets`` on."""
        if offsets:
            self._is_assigned = True
            self._consumer.incremental_assign([self._at(*item) for item in sorted(offsets.items())])

    def unassign(self, partitions: Collection[Partition]) -> None:
        """Fetch ``partitions`` no longer."""
        if partitions:
            self._consumer.incremental_unassign([self._at(partition) for partition in partitions])

    def pause(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self._consumer.pause([self._at(partition) for partition in partitions])

    def resume(self, partitions: Collection[Partition]) -> None:
        if partitions:
            self._consumer.resume([self._at(partition) for partition in partitions])

    def high(self, partition: Partition) -> int | None:
        """The offset after the partition's last record, as far as it is known; asks no broker."""
        _, high = self._consumer.get_watermark_offsets(self._at(partition), cached=True)
        return high if high >= 0 else None

    def commit(self, offsets: Offsets) -> None:
        """Commit ``offsets`` to the group, some time. A failure is logged, once."""
        if offsets:
            try:
                self._consumer.commit(offsets=[self._at(*item) for item in offsets.items()], asynchronous=True)
            except self._kafka.KafkaException as error:
                self._say_commit_failed(error.args[0])

    def close(self) -> None:
        self._consumer.close()

    # --- questions to the brokers

    def partitions(self, topic: str, timeout_s: float | None = None) -> list[Partition] | None:
        """The partitions of ``topic``; ``None``: it is not there. Raises ``BrokersAway``, ``Refused``."""
        found = self._asked(lambda limit_s: self._consumer.list_topics(topic, timeout=limit_s), timeout_s)
        found = found.topics.get(topic)
        if found is None or (found.error is not None and self.trouble(found.error) == "unknown"):
            return None
        if found.error is not None:
            self._raise(found.error)
        return [Partition(topic, number) for number in sorted(found.partitions)] or None

    def offsets_at(
        self, times: Iterable[tuple[Partition, int]], timeout_s: float | None = None
    ) -> dict[Partition, int | None]:
        """For each partition the offset of its first record from a time on, in milliseconds, or ``EARLIEST`` or
        ``LATEST``; ``None``: there is no such record. Raises ``BrokersAway``, ``Refused``."""
        asked = [self._at(*item) for item in times]
        answers = self._asked(lambda limit_s: self._consumer.offsets_for_times(asked, timeout=limit_s), timeout_s)
        return self._offsets(answers)

    def bounds(self, partition: Partition, timeout_s: float | None = None) -> tuple[int, int]:
        """The offsets of the partition's first record, and after its last. Raises ``BrokersAway``, ``Refused``."""
        at = self._at(partition)
        found = self._asked(lambda limit_s: self._consumer.get_watermark_offsets(at, timeout=limit_s), timeout_s)
        if found is None:
            raise BrokersAway(f"no answer about {partition}")
        return int(found[0]), int(found[1])

    def committed(self, partitions: Sequence[Partition], timeout_s: float | None = None) -> dict[Partition, int | None]:
        """The group's offsets. Raises ``BrokersAway``, ``Refused``."""
        asked = [self._at(partition) for partition in partitions]
        answers = self._asked(lambda limit_s: self._consumer.committed(asked, timeout=limit_s), timeout_s)
        return self._offsets(answers)

    def _offsets(self, answers: Iterable[Any]) -> dict[Partition, int | None]:
        found = {}
        for answer in answers:
            if answer.error is not None:
                self._raise(answer.error)
            found[Partition(answer.topic, answer.partition)] = answer.offset if answer.offset >= 0 else None
        return found

    def _asked(self, ask: Callable[[float], Any], timeout_s: float | None) -> Any:
        """The answer to ``ask``, which is given a time limit. A driver asks with growing limits, so that it learns of a
        refusal soon: a refused client gets no answer."""
        until_s = time.monotonic() + (ANSWER_S if timeout_s is None else timeout_s)
        limit_s = FIRST_ANSWER_S if timeout_s is None else timeout_s
        while True:
            try:
                return ask(limit_s)
            except self._kafka.KafkaException as error:
                if not self._is_assigned:
                    self._consumer.poll(0)  # calls ``_on_error``
                left_s = until_s - time.monotonic()
                if self._denied or left_s < FIRST_ANSWER_S or self.trouble(error.args[0]) != "away":
                    self._raise(error.args[0])
            limit_s = min(2 * limit_s, left_s)

    def _raise(self, error: Any) -> None:
        if self._denied or self.trouble(error) == "refused" or error.code() in self._unauthenticated:
            raise Refused(self._failure or self.text(error))
        raise BrokersAway(self._reported or self.text(error))

    # --- by librdkafka, in ``fetch`` and ``poll``

    def _on_error(self, error: Any) -> None:
        """Not every lost connection is a failure: a broker closes those that were idle."""
        codes = self._kafka.KafkaError
        if error.code() != codes._ALL_BROKERS_DOWN:
            self._reported = self.text(error)
        if error.code() == codes._ALL_BROKERS_DOWN or error.code() in self._unauthenticated or error.fatal():
            self._failure = self._reported or self.text(error)
        self._denied = self._denied or error.code() in self._unauthenticated

    def _on_commit(self, error: Any, offsets: Any) -> None:
        failed = [one.error for one in offsets or [] if one.error is not None]
        if error is not None or failed:
            self._say_commit_failed(error or failed[0])

    def _say_commit_failed(self, error: Any) -> None:
        level = logging.DEBUG if self._commit_failed else logging.WARNING
        log.log(level, "source %r: offsets not committed to the group: %s", self._source, self.text(error))
        self._commit_failed = True

    @property
    def failure(self) -> str:
        """What librdkafka has reported since ``answered``; ``""``: nothing."""
        return self._failure

    def answered(self) -> None:
        """A broker has answered."""
        self._failure = self._reported = ""
        self._denied = False

    @staticmethod
    def _at(partition: Partition, offset: int | None = None) -> Any:
        from confluent_kafka import TopicPartition

        if offset is None:
            return TopicPartition(partition.topic, partition.number)
        return TopicPartition(partition.topic, partition.number, offset)


def planning_error(source: str, servers: str, error: Exception) -> Exception:
    """The error of a job that cannot start, for one of ``BrokersAway`` and ``Refused``."""
    if isinstance(error, Refused):
        return ConfigurationError(f"source {source!r}: the brokers at {servers} refuse: {error}")
    return InputError(f"source {source!r}: no broker at {servers} answers: {error}")
