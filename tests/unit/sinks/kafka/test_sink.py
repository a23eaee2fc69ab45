"""The descriptor: what users give it, what is stored of it, and that no secret is."""

from __future__ import annotations

import builtins
import pickle
import re
from typing import Any

import pytest
from pyspark import cloudpickle

from flinkplus.errors import ConfigurationError, InvariantViolation
from flinkplus.sinks.former import FormerStagedSink, former_sink
from flinkplus.sinks.kafka.at_once import KafkaAtOnceSink, SharedReader
from flinkplus.sinks.kafka.sink import KafkaOutputOptions, kafka_sink
from tests.unit.sinks.harness import SCHEMA

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'")
SECRET = "pass-word-of-kafka"


def sink(topic: Any = "orders", servers: Any = "kafka.example:9092", **given: Any) -> Any:
    defaults = {"value": "json", "key": None, "headers": None, "partition": None, "visibility": "checkpoint"}
    options = {**defaults, "config": None, "progress_topic": "flinkplus-progress", **given}
    return kafka_sink("out", servers, topic, KafkaOutputOptions(**options))


def test_no_secret_is_stored_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sink(config={"sasl.password": SECRET, "sasl.username": "me", "linger.ms": 1}).bind(SCHEMA, "job-1")
    texts = [repr(made), str(made.settings()), made.place]
    for stored in (pickle.dumps(made), cloudpickle.dumps({"graph": [made]})):
        texts.append(stored.decode("latin-1"))
    assert not [text for text in texts if SECRET in text]
    assert not made.secrets(), "slots do not connect"
    again = pickle.loads(pickle.dumps(made))
    assert again.connection.settings == {"sasl.username": "me", "linger.ms": 1}
    with pytest.raises(ConfigurationError, match=r"sink 'out': 'sasl.password' is not known here.*KAFKA_SASL_PASSWORD"):
        again.transactions("job-1").open()
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "x")
    assert again.connection.known_secrets("sink 'out'") == {"sasl.password": "x"}


def test_a_sink_is_known_by_its_topic() -> None:
    made = sink(servers=["a:1", "b:2"], key=["word"]).bind(SCHEMA, "job-1").staged_in("/checkpoints")
    assert made.settings() == {"location": "kafka:orders", "value": "json"}
    assert sink(servers="c:3").settings() == made.settings(), "the servers of a cluster may change"
    former = former_sink("old", dict(made.settings()), "job-1", "/checkpoints")
    assert isinstance(former, FormerStagedSink)
    assert (former.path, former.staging) == ("/checkpoints", made.staging)
    assert former_sink("old", dict(made.settings()), "job-1", "/checkpoints", made) is made
    with pytest.raises(InvariantViolation, match="before it knows the checkpoint directory"):
        assert sink().bind(SCHEMA, "job-1").staging


def test_rows_that_are_visible_at_once_are_written_by_slots_which_get_the_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = sink(visibility="at_once", config={"sasl.password": SECRET, "linger.ms": 1}).bind(SCHEMA, "job-1")
    assert isinstance(made, KafkaAtOnceSink) and made.keeps_recipe
    assert made.settings() == {"location": "kafka:orders", "value": "json", "visibility": "at_once"}
    assert SECRET not in repr(made) and SECRET.encode() not in pickle.dumps(made)
    assert made.secrets() == {"sasl.password": SECRET}
    there = pickle.loads(pickle.dumps(made))
    with pytest.raises(ConfigurationError, match="KAFKA_SASL_PASSWORD"):
        there.secrets()
    assert there.with_secrets(made.secrets()).connection.secrets == {"sasl.password": SECRET}
    other = sink(visibility="at_once").bind(SCHEMA, "job-2")
    assert isinstance(other, KafkaAtOnceSink) and made.recipe_topic != other.recipe_topic
    assert re.fullmatch("flinkplus-progress-[0-9a-f]{24}", made.recipe_topic)


def test_writers_in_a_process_share_what_they_read_with() -> None:
    made = sink(visibility="at_once").bind(SCHEMA, "job-1")
    one, two = SharedReader(made), SharedReader(made)
    with one:
        first = one.topic
        with two:
            assert two.topic is first
        assert one.topic is first
    with two:
        assert two.topic is not first
    assert not SharedReader._topics


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"visibility": "later"}, r"visibility 'later' must be one of \('checkpoint', 'at_once'\)"),
        ({"visibility": "at_once", "progress_topic": "p" * 225}, "progress_topic must have at most 224 characters"),
        ({"value": "avro"}, "value 'avro' must be one of"),
        ({"topic": "a/b"}, "topic 'a/b' must be 1 to 249 letters"),
        ({"topic": ".."}, "topic '..' must be"),
        ({"topic": ["a"]}, r"topic \['a'\] must be"),
        ({"topic": "p", "progress_topic": "p"}, "topic 'p' keeps the progress of jobs"),
        ({"progress_topic": ""}, "topic '' must be"),
        ({"servers": " "}, "servers must be 'host:port'"),
        ({"key": ["a", "a"]}, "key .* must be a column's name, or a list of different ones"),
        ({"key": 3}, "key 3 must be a column's name"),
        ({"headers": ["h"]}, r"headers \['h'\] must be the name of a column"),
        ({"partition": 3}, "partition 3 must be the name of a column"),
        ({"config": {"transactional.id": "x"}}, "config cannot set 'transactional.id', which exactly-once needs"),
        ({"config": {"acks": 1}}, "config cannot set 'acks'"),
        ({"config": {"enable.idempotence": False}}, "config cannot set 'enable.idempotence'"),
        ({"config": {"error_cb": print}}, "the value of 'error_cb' in config must be text"),
        ({"config": {"message.max.bytes": "big"}}, "message.max.bytes in config must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"sink 'out': {message}"):
        sink(**given)


def test_largest_records_are_those_of_the_configuration() -> None:
    assert sink().form.max_bytes == 1_000_000
    assert sink(config={"message.max.bytes": 5_000_000}).form.max_bytes == 5_000_000


def test_without_the_client_there_is_no_such_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("confluent_kafka"):
            raise ImportError("no module")
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"to_kafka needs confluent-kafka .*pip install 'flinkplus\[kafka\]'"):
        sink()
