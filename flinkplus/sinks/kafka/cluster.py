"""The producer of librdkafka and its transactions, and what its errors mean. No other module of a sink imports
``confluent_kafka``.

Rules:

- Every call has a time limit. What may pass is ``OutputUnavailable``, what will not is ``OutputTopicError``.
- A client whose call has failed is closed: what a transaction has done is found out by the next one, in ``open``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

from typing_extensions import Self

from flinkplus.errors import ConfigurationError, OutputError, OutputTopicError, OutputUnavailable
from flinkplus.sources.kafka.client import confluent_module
from flinkplus.sources.kafka.connecting import SERVERS, KafkaConnection, Setting

SCHEME = "kafka:"
"""Before the topic, where it is a sink's location."""
PROGRESS_TOPIC = "flinkplus-progress"
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
LEAST_S = 0.05
QUESTIONS = 3
"""After so many answers a producer is connected to the broker that it has found."""
POLL_S = 0.2
DESCRIBE_S = 5.0

log = logging.getLogger("flinkplus.kafka")


class _Quiet:
    def log(self, level: int, *arguments: Any) -> None:
        log.debug(*arguments)


def _counted(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number} {what}s"


def admin_module() -> Any:
    import confluent_kafka.admin

    return confluent_kafka.admin


class OutputClient:
    """A producer of ``topic`` with transactions under the name ``transactional_id``. ``owner``: the sink, for
    errors."""

    defaults: ClassVar[Mapping[str, Setting]] = DEFAULTS

    def __init__(self, owner: str, connection: KafkaConnection, transactional_id: str, topic: str) -> None:
        self._kafka = confluent_module("to_kafka")
        self._owner, self._connection = owner, connection
        self._id, self._topic = transactional_id, topic
        self.until_s: float | None = None
        """When calls end, of the monotonic clock; ``None``: each ``PATIENCE_S`` after it began."""
        self._producer: Any = None
        self._prepared: Any = None
        self._reported = self._denied = ""
        self._undelivered: Any = None
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

    @property
    def _patience_s(self) -> float:
        return PATIENCE_S if self.until_s is None else max(LEAST_S, min(PATIENCE_S, self.until_s - time.monotonic()))

    # --- questions

    def _has(self, consumer: Any, topic: str) -> bool:
        found = consumer.list_topics(topic, timeout=self._patience_s).topics.get(topic)
        if found is None or found.error is None:
            return found is not None and bool(found.partitions)
        if found.error.code() in (self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, self._kafka.KafkaError._UNKNOWN_TOPIC):
            return False
        raise self._translated(found.error, f"ask for topic {topic!r}")

    def _make_topic(self, topic: str, partitions: int, config: Mapping[str, str], purpose: str) -> None:
        """``purpose``: for errors."""
        module = admin_module()
        admin = self._made(module.AdminClient, {})
        new = module.NewTopic(topic, partitions, config=dict(config))
        asked = admin.create_topics([new], operation_timeout=self._patience_s, request_timeout=self._patience_s)
        try:
            asked[topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                wanted = ", ".join(f"{name}={value}" for name, value in config.items())
                raise OutputTopicError(
                    f"{self._owner}: topic {topic!r}, which keeps {purpose}, is not there and cannot be created "
                    f"({self._text(error.args[0])}): have it created with {_counted(partitions, 'partition')} and "
                    f"{wanted}"
                ) from None

    def _await_topic(self, consumer: Any, topic: str) -> None:
        self._until(lambda: self._has(consumer, topic), f"topic {topic!r} was created and is not there")

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait for the brokers. Raises ``OutputUnavailable``."""
        until_s = time.monotonic() + self._patience_s
        while not holds():
            if time.monotonic() > until_s:
                raise OutputUnavailable(f"{self._owner}: {otherwise}")
            time.sleep(POLL_S)

    def _check_settings(self, topic: str, wanted: Mapping[str, str], why: str) -> None:
        """A topic that brokers have created by themselves forgets old records. Raises ``OutputTopicError``."""
        module = admin_module()
        admin = self._made(module.AdminClient, {})
        resource = module.ConfigResource(module.ConfigResource.Type.TOPIC, topic)
        try:
            found = admin.describe_configs([resource], request_timeout=DESCRIBE_S)[resource].result()
        except self._kafka.KafkaException as error:
            log.warning(
                "%s: the brokers do not say whether topic %r %s (%s)",
                self._owner,
                topic,
                "is compacted, as it must be" if wanted.get("cleanup.policy") == "compact" else "keeps its records",
                self._text(error.args[0]),
            )
            return
        for name, value in wanted.items():
            has = found[name].value if name in found else None
            if has != value:
                raise OutputTopicError(
                    f"{self._owner}: topic {topic!r} has {name}={has}, so that {why}: set it to {value!r}"
                )

    def _ends(self, consumer: Any, topic: str, partition: int) -> tuple[int, int]:
        """The first offset of a partition, and the one behind its last record, as far as ``consumer`` reads it."""
        at = self._kafka.TopicPartition(topic, partition)
        ends: tuple[int, int] | None = consumer.get_watermark_offsets(at, timeout=self._patience_s)
        if ends is None:
            raise OutputUnavailable(f"{self._owner}: no answer about topic {topic!r}{self._said()}")
        return ends

    def _read_to(self, consumer: Any, topic: str, partition: int, begin: int, end: int) -> Iterator[Any]:
        """The records from the offset ``begin`` to before ``end``, or further. Waits for transactions that are under
        way before ``end``."""
        if begin >= end:
            return
        consumer.assign([self._kafka.TopicPartition(topic, partition, begin)])
        until_s = time.monotonic() + self._patience_s
        while True:
            messages = consumer.consume(1, POLL_S)  # a larger number would wait until it is complete
            messages += consumer.consume(1_000, 0) if messages else []
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() != self._kafka.KafkaError._PARTITION_EOF:
                    raise self._translated(error, f"read topic {topic!r}")
                elif message.offset() >= end:
                    return
            if any(message.error() is None for message in messages):
                until_s = time.monotonic() + self._patience_s
            elif time.monotonic() > until_s:
                raise OutputUnavailable(
                    f"{self._owner}: topic {topic!r} could not be read to its end: a transaction is under way there, "
                    f"or no broker answers{self._said()}"
                )

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[Any]:
        consumer = self._made_consumer(isolation)
        try:
            yield consumer
        finally:
            consumer.close()

    def _made_consumer(self, isolation: str) -> Any:
        own = {
            "group.id": self._id,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 5,  # so long a reader waits for the answer that it is at the end
        }
        return self._made(self._kafka.Consumer, own)

    # --- transactions

    def prepare(self) -> Self:
        """Connect the producer that ``open`` uses next. The name is not opened.

        Without this, and with one question alone, librdkafka may ask for the name while it changes from the connection
        to a given address to that of a known broker. It then asks again half a second later.
        """
        self._denied = ""
        self._prepared = self._made_producer()
        with self._calls("connect"):
            try:
                for _ in range(QUESTIONS):
                    self._prepared.list_topics(self._topic, timeout=self._patience_s)
            except self._kafka.KafkaException:
                self._prepared.poll(0)  # calls ``_on_error`` with the reason, such as refused credentials
                raise
        return self

    def _made_producer(self) -> Any:
        own = {**self.defaults, **self._connection.settings, "transactional.id": self._id, **REQUIRED}
        return self._made(self._kafka.Producer, own)

    def open(self) -> None:
        if self._prepared is None:
            self.prepare()
        prepared = self._prepared
        self.close()
        self._producer = prepared
        with self._calls("open transactions"):
            self._producer.init_transactions(self._patience_s)

    def _transact(self, produce: Callable[[], None]) -> None:
        """One transaction with what ``produce`` hands over. When it raises, the transaction may have succeeded."""
        with self._calls("write rows"):
            self._producer.begin_transaction()
            try:
                self._produced(produce)
                self._producer.commit_transaction(self._patience_s)
            except BaseException:
                self._give_up()
                raise

    def _produced(self, produce: Callable[[], None]) -> None:
        """Raises what has failed."""
        try:
            produce()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError._STATE:
                raise
            # The transaction has failed already, and cannot be committed. Only this call says why.
            self._producer.commit_transaction(self._patience_s)
            raise

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        on_delivery = on_delivery or self._on_undelivered
        left, until_s = -1, 0.0
        while True:
            try:
                return self._producer.produce(
                    topic, value, key=key, headers=headers or [], partition=partition, on_delivery=on_delivery
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
            return now, time.monotonic() + self._patience_s
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
        producer, self._producer, self._prepared = self._producer, None, None
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
        if error is not None and self._undelivered is None:
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
