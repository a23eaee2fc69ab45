"""The descriptor: what users give it, what is stored of it, and that no secret is."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from flinkplus.errors import ConfigurationError
from flinkplus.sources.kafka.partitions import Partition
from flinkplus.sources.kafka.planning import SplitPlan
from flinkplus.sources.kafka.source import KafkaOptions, KafkaSource, kafka_source

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'")
SECRET = "pass-word-of-kafka"


def source(topics: Any = ("u", "t"), servers: Any = "127.0.0.1:1", **given: Any) -> KafkaSource:
    defaults = {"value": "text", "schema": None, "metadata": False, "start": "earliest", "stop": None, "group": None}
    options = {**defaults, "on_error": "fail", "discover": 30, "config": None, **given}
    return kafka_source("orders", servers, topics, KafkaOptions(**options))


def test_no_secret_is_stored_or_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = source(config={"sasl.password": SECRET, "sasl.username": "me", "ssl.key.pem": SECRET + "2"})
    stored = pickle.dumps(made)
    assert SECRET.encode() not in stored and SECRET not in repr(made) and SECRET not in str(made.settings())
    assert made.secrets() == {"sasl.password": SECRET, "ssl.key.pem": SECRET + "2"}
    found = pickle.loads(stored)
    with pytest.raises(ConfigurationError, match=r"'sasl.password' is not known here.*KAFKA_SASL_PASSWORD"):
        found.secrets()
    again = found.with_secrets(made.secrets())
    configuration = again.connection.configuration("orders", None, "c")
    assert configuration["sasl.password"] == SECRET and configuration["sasl.username"] == "me"
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", "a")
    monkeypatch.setenv("KAFKA_SSL_KEY_PEM", "b")
    assert found.secrets() == {"sasl.password": "a", "ssl.key.pem": "b"}


def test_an_error_of_the_configuration_shows_no_secret() -> None:
    wrong = source(config={"sasl.password": SECRET, "no.such.setting": 1})
    with pytest.raises(ConfigurationError, match="config: No such configuration property") as raised:
        wrong.planned()
    assert SECRET not in str(raised.value)


def test_what_exactly_once_needs_cannot_be_configured() -> None:
    for name in ("enable.auto.commit", "auto.offset.reset", "group.id", "bootstrap.servers"):
        with pytest.raises(ConfigurationError, match=f"config cannot set '{name}'"):
            source(config={name: "x"})
    with pytest.raises(ConfigurationError, match="the value of 'error_cb' in config must be text"):
        source(config={"error_cb": print})
    configuration = source(config={"isolation.level": "read_uncommitted"}).connection.configuration("s", "g", "c")
    assert configuration["isolation.level"] == "read_uncommitted"
    assert configuration["enable.auto.commit"] is False and configuration["group.id"] == "g"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": ()}, "topics must be different, and one at least"),
        ({"servers": ""}, "servers must be 'host:port'"),
        ({"start": "committed"}, "start='committed' needs group"),
        ({"start": "beginning"}, "start must be 'earliest', 'latest', 'committed'"),
        ({"stop": "earliest"}, "stop must be 'latest'"),
        ({"on_error": "ignore"}, "on_error must be one of 'fail', 'skip', 'dead-letter'; not 'ignore'"),
        ({"discover": 0}, "discover must be at least 100 ms"),
        ({"value": "json", "schema": "key long", "metadata": ["key"]}, "the column 'key' is one of the schema"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source(**given)


def test_what_a_changed_program_is_compared_by() -> None:
    first = source(topics=["t", "u"], servers=["a:1", "b:1"])
    assert first.connection.servers == "a:1,b:1"
    assert first.settings() == source(servers="c:1", start="latest", group="g").settings()
    assert first.settings() != source(topics="t").settings()
    plan = SplitPlan({Partition("t", 0): 3}, {Partition("t", 0): 9})
    planned = first.with_split_plan(plan.to_json())
    assert planned.plan == plan and planned.planned() is planned
    assert planned.split_plan() == plan.to_json() and first.split_plan() is None


def test_positions_are_dealt_to_another_number_of_readers() -> None:
    document: Any = {"format": 1, "rows": 7, "invalid_records": 1, "offsets": {"t": {"0": 5}, "u": {"0": 6}}}
    dealt = source().redealt([document], 2)
    assert dealt == [
        {"format": 1, "rows": 7, "invalid_records": 1, "offsets": {"t": {"0": 5}}},
        {"format": 1, "rows": 0, "invalid_records": 0, "offsets": {"u": {"0": 6}}},
    ]
