"""The producer of librdkafka and its transactions, and what its errors mean. No other part of a sink imports
``confluent_kafka``.

Rules:

- Every call has a time limit. What may pass is ``OutputUnavailable``, what will not is ``OutputTopicError``.
- A client whose call has failed is closed: what a transaction has done is found out by the next one, in ``open``.
- The topic of progress has one record for each job and topic, the newest; it is compacted. Its records are written last
  in a transaction, since readers of that topic wait for those that are under way there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from flinkplus.documents import parse_document
from flinkplus.errors import ConfigurationError, OutputError, OutputTopicError, OutputUnavailable
from flinkplus.protocol.checkpoints.transactions import OutputProgress
from flinkplus.sinks.kafka.records import Staged
from flinkplus.sources.kafka.client import confluent_module
from flinkplus.sources.kafka.connecting import SERVERS, KafkaConnection, Setting

REQUIRED: Mapping[str, Setting] = {"enable.idempotence": True, "acks": "all"}
OWN = (
    *SERVERS,
    "transactional.id",
    "group.id",
    "isolation.level",
    "enable.auto.commit",
    "request.required.acks",
    "max.in.flight",
    "max.in.flight.requests.per.connection",
    "message.send.max.retries",
    "retries",
    "delivery.report.only.error",
    *REQUIRED,
)
"""What a user cannot set: exactly-once depends on it."""
DEFAULTS: Mapping[str, Setting] = {
    "partitioner": "murmur2_random",
    "linger.ms": 5,
    "delivery.report.only.error": True,
    "transaction.timeout.ms": 120_000,
    "log.connection.close": False,
    "socket.keepalive.enable": True,
    "reconnect.backoff.max.ms": 2_000,
}
"""What the user gives counts. The partitioner is that of Java's clients, so that equal keys meet in one partition."""
PATIENCE_S = 8.0
"""How long one call waits for brokers; the coordinator repeats a failed commit several times."""
POLL_S = 0.2
DESCRIBE_S = 5.0
PROGRESS_PARTITION = 0

log = logging.getLogger("flinkplus.kafka")


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


class _Quiet:
    def log(self, level: int, *arguments: Any) -> None:
        log.debug(*arguments)


def _admin_module() -> Any:
    import confluent_kafka.admin

    return confluent_kafka.admin


class KafkaTransactions:
    """Transactions under the name ``transactional_id``. ``owner``: the sink, for errors."""

    def __init__(
        self, owner: str, connection: KafkaConnection, transactional_id: str, topic: str, progress_topic: str
    ) -> None:
        self._kafka = confluent_module("to_kafka")
        self._owner, self._connection = owner, connection
        self._id, self._topic, self._progress_topic = transactional_id, topic, progress_topic
        self._producer: Any = None
        self._reported = self._denied = ""
        self._undelivered: Any = None
        self._is_checked = False
        codes = self._kafka.KafkaError
        self._refusals = {
            codes._AUTHENTICATION,
            codes.SASL_AUTHENTICATION_FAILED,
            codes._SSL,
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
            codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        }
        self._lasting = {
            codes.MSG_SIZE_TOO_LARGE: "raise max.message.bytes of the topic and message.max.bytes in config, or "
            "make rows smaller",
            codes.RECORD_LIST_TOO_LARGE: "raise segment.bytes of the topic",
            codes.UNKNOWN_TOPIC_OR_PART: "the topic or partition is not there: create it",
            codes._UNKNOWN_TOPIC: "the topic is not there: create it",
            codes._UNKNOWN_PARTITION: "a row names a partition that the topic does not have",
            codes.TOPIC_EXCEPTION: "give another topic",
            codes.POLICY_VIOLATION: "the brokers do not allow such records",
            codes.INVALID_RECORD: "the brokers do not allow such records; a compacted topic needs keys",
            codes.INVALID_TRANSACTION_TIMEOUT: "give a smaller transaction.timeout.ms in config",
        }
        self._too_old = {codes._UNSUPPORTED_FEATURE, codes.UNSUPPORTED_VERSION, codes.UNSUPPORTED_FOR_MESSAGE_FORMAT}
        self._fenced = {
            codes._FENCED,
            codes.INVALID_PRODUCER_EPOCH,
            codes.INVALID_PRODUCER_ID_MAPPING,
            codes.INVALID_TXN_STATE,
        }

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
                self._make_progress_topic(consumer)
        self._check_compacted()
        self._is_checked = True

    def _has(self, consumer: Any, topic: str) -> bool:
        found = consumer.list_topics(topic, timeout=PATIENCE_S).topics.get(topic)
        if found is None or found.error is None:
            return found is not None and bool(found.partitions)
        if found.error.code() in (self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, self._kafka.KafkaError._UNKNOWN_TOPIC):
            return False
        raise self._translated(found.error, f"ask for topic {topic!r}")

    def _make_progress_topic(self, consumer: Any) -> None:
        module = _admin_module()
        admin = self._made(module.AdminClient, {})
        new = module.NewTopic(self._progress_topic, 1, config={"cleanup.policy": "compact"})
        asked = admin.create_topics([new], operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S)
        try:
            asked[self._progress_topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise OutputTopicError(
                    f"{self._owner}: topic {self._progress_topic!r}, which keeps what is committed, is not there and "
                    f"cannot be created ({self._text(error.args[0])}): have it created with one partition and "
                    "cleanup.policy=compact"
                ) from None
        until_s = time.monotonic() + PATIENCE_S
        while not self._has(consumer, self._progress_topic):
            if time.monotonic() > until_s:
                raise OutputUnavailable(f"{self._owner}: topic {self._progress_topic!r} was created and is not there")
            time.sleep(POLL_S)

    def _check_compacted(self) -> None:
        """A topic that brokers have created by themselves forgets old records, and with them what is committed."""
        module = _admin_module()
        admin = self._made(module.AdminClient, {})
        resource = module.ConfigResource(module.ConfigResource.Type.TOPIC, self._progress_topic)
        try:
            found = admin.describe_configs([resource], request_timeout=DESCRIBE_S)[resource].result()
        except self._kafka.KafkaException as error:
            log.warning(
                "%s: the brokers do not say whether topic %r is compacted, as it must be (%s)",
                self._owner,
                self._progress_topic,
                self._text(error.args[0]),
            )
            return
        policy = found["cleanup.policy"].value if "cleanup.policy" in found else None
        if policy != "compact":
            raise OutputTopicError(
                f"{self._owner}: topic {self._progress_topic!r} has cleanup.policy={policy}, so that what is committed "
                "would be forgotten: set it to 'compact'"
            )

    def read(self, job: str) -> OutputProgress | None:
        """Waits for transactions of others that are under way in the topic of progress: they are before the end."""
        with self._consumer("read_uncommitted") as consumer, self._calls("read progress"):
            if not self._has(consumer, self._progress_topic):
                return None
            ends = consumer.get_watermark_offsets(self._progress_at(), timeout=PATIENCE_S)
        if ends is None:
            raise OutputUnavailable(f"{self._owner}: no answer about topic {self._progress_topic!r}{self._said()}")
        low, high = ends
        if low >= high:
            return None
        with self._consumer("read_committed") as consumer, self._calls("read progress"):
            consumer.assign([self._progress_at(low)])
            content = self._newest(consumer, self._progress_key(job), high)
        if content is None:
            return None
        try:
            document = parse_document(content)
        except ValueError as error:
            raise OutputTopicError(f"{self._owner}: the progress of job {job} is damaged: {error}") from None
        return OutputProgress.from_json(document)

    def _newest(self, consumer: Any, key: bytes, end: int) -> bytes | None:
        """The value of the last record with ``key`` before the offset ``end``."""
        found, until_s = None, time.monotonic() + PATIENCE_S
        while True:
            messages = consumer.consume(1, POLL_S)  # a larger number would wait until it is complete
            messages += consumer.consume(1_000, 0) if messages else []
            for message in messages:
                error = message.error()
                if error is None:
                    if message.key() == key:
                        found = message.value()
                elif error.code() != self._kafka.KafkaError._PARTITION_EOF:
                    raise self._translated(error, "read progress")
                elif message.offset() >= end:
                    value: bytes | None = found
                    return value
            if any(message.error() is None for message in messages):
                until_s = time.monotonic() + PATIENCE_S
            elif time.monotonic() > until_s:
                raise OutputUnavailable(
                    f"{self._owner}: topic {self._progress_topic!r} could not be read to its end: a transaction is "
                    f"under way there, or no broker answers{self._said()}"
                )

    def _progress_key(self, job: str) -> bytes:
        return f"{job}/{self._topic}".encode()

    def _progress_at(self, offset: int | None = None) -> Any:
        at = (self._progress_topic, PROGRESS_PARTITION)
        return self._kafka.TopicPartition(*at) if offset is None else self._kafka.TopicPartition(*at, offset)

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[Any]:
        own = {
            "group.id": self._id,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        consumer = self._made(self._kafka.Consumer, own)
        try:
            yield consumer
        finally:
            consumer.close()

    # --- transactions

    def open(self) -> None:
        self.close()
        own = {**DEFAULTS, **self._connection.settings, "transactional.id": self._id, **REQUIRED}
        self._denied = ""
        self._producer = self._made(self._kafka.Producer, own)
        with self._calls("open transactions"):
            self._producer.init_transactions(PATIENCE_S)

    def write(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        with self._calls("write rows"):
            self._producer.begin_transaction()
            try:
                self._produce_all(records, progress)
                self._producer.commit_transaction(PATIENCE_S)
            except BaseException:
                self._give_up()
                raise

    def _produce_all(self, records: Iterable[Staged], progress: Mapping[str, OutputProgress]) -> None:
        """Raises what has failed."""
        try:
            for key, value, headers, partition in records:
                self._produce(self._topic, key, value, headers, -1 if partition is None else partition)
            self._flush()
            for job, one in progress.items():
                content = json.dumps(one.to_json()).encode()
                self._produce(self._progress_topic, self._progress_key(job), content, None, PROGRESS_PARTITION)
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError._STATE:
                raise
            # The transaction has failed already, and cannot be committed. Only this call says why.
            self._producer.commit_transaction(PATIENCE_S)
            raise

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int,
    ) -> None:
        left, until_s = -1, 0.0
        while True:
            try:
                return self._producer.produce(
                    topic, value, key=key, headers=headers or [], partition=partition, on_delivery=self._on_undelivered
                )
            except BufferError:
                left, until_s = self._progressed(left, until_s)
                self._producer.poll(POLL_S)

    def _flush(self) -> None:
        left, until_s = -1, 0.0
        while self._producer.flush(POLL_S):
            left, until_s = self._progressed(left, until_s)

    def _progressed(self, left: int, until_s: float) -> tuple[int, float]:
        """How many records are not with the brokers, and until when fewer must be. Raises ``OutputUnavailable``."""
        now = len(self._producer)
        if now != left:
            return now, time.monotonic() + PATIENCE_S
        if time.monotonic() > until_s:
            raise OutputUnavailable(f"{self._owner}: brokers take no records{self._said()}")
        return left, until_s

    def _give_up(self) -> None:
        """Abort, so that readers of the topic need not wait for a timeout. A transaction of unknown fate is left to the
        next ``open``."""
        with suppress(self._kafka.KafkaException, SystemError):
            self._producer.purge()
            self._producer.abort_transaction(POLL_S)

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(self._kafka.KafkaException, SystemError):
                producer.purge()

    # --- settings and errors

    def _made(self, kind: Any, own: Mapping[str, Any]) -> Any:
        """A producer, consumer or admin client. Raises ``ConfigurationError``."""
        connection = self._connection
        settings = {"client.id": self._id, **connection.settings, **connection.known_secrets(self._owner)}
        always = {"bootstrap.servers": connection.servers, "error_cb": self._on_error}
        try:
            return kind({**settings, **own, **always}, logger=_Quiet())
        except (self._kafka.KafkaException, TypeError, ValueError) as error:
            text = error.args[0].str() if isinstance(error, self._kafka.KafkaException) else str(error)
            raise ConfigurationError(f"{self._owner}: config: {connection.shown(text)}") from None

    def _on_error(self, error: Any) -> None:
        """By librdkafka, in any call."""
        if error.code() in self._refusals:
            self._denied = self._text(error)
        if error.code() != self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._reported = self._text(error)

    def _on_undelivered(self, error: Any, message: Any) -> None:
        """By librdkafka: what the first record has failed with."""
        if self._undelivered is None:
            self._undelivered = error

    def _said(self) -> str:
        return f": {self._reported}" if self._reported else ""

    def _text(self, error: Any) -> str:
        return self._connection.shown(error.str())

    @contextmanager
    def _calls(self, what: str) -> Iterator[None]:
        """Errors of librdkafka as errors of an output. In a callback its fatal errors are causes of a
        ``SystemError``."""
        self._reported, self._undelivered = "", None
        try:
            yield
        except (self._kafka.KafkaException, SystemError) as raised:
            error = raised if isinstance(raised, self._kafka.KafkaException) else raised.__cause__
            if not isinstance(error, self._kafka.KafkaException):
                raise
            found = error.args[0]
            if found.code() == self._kafka.KafkaError._INCONSISTENT:  # records were not delivered
                found = self._undelivered or found
            raise self._translated(found, what) from None

    def _translated(self, error: Any, what: str) -> OutputError:
        code, text = error.code(), self._text(error)
        if code in self._refusals or self._denied:
            return OutputTopicError(
                f"{self._owner}: the brokers at {self._connection.servers} refuse to {what}: {self._denied or text}"
            )
        if code in self._too_old:
            return OutputTopicError(
                f"{self._owner}: the brokers at {self._connection.servers} have no transactions: to_kafka needs Kafka "
                f"0.11 or newer ({text})"
            )
        if code in self._fenced:
            return OutputUnavailable(
                f"{self._owner}: the cluster has ended the transaction: another driver has opened one, or it took "
                f"longer than transaction.timeout.ms ({text})"
            )
        if code in self._lasting:
            return OutputTopicError(f"{self._owner}: topic {self._topic!r}: {text}: {self._lasting[code]}")
        return OutputUnavailable(f"{self._owner}: cannot {what}: {text}{self._said()}")
