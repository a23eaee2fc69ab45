"""A Java process that was started in advance is used for the same settings only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf

from flinkplus.cli.supervise import prepared
from flinkplus.cli.supervise.prepared import Gateway, runs_here


class Java:
    """In the place of PySpark's gateway, with a process that ends with its stdin. ``conf``: what it was given."""

    def __init__(self, conf: list[tuple[str, str]]) -> None:
        self.conf, self.environment, self.directory = conf, os.environ.get("MINE"), os.getcwd()
        self.proc = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def shutdown(self) -> None:
        """Its connections."""


class Spark:
    """What a program and PySpark do. ``started``: all Java processes; ``reported``: what the supervisor gets."""

    def __init__(self) -> None:
        self.started: list[Java] = []
        self.reported: list[dict[str, Any]] = []
        self.gateway = Gateway(self.reported.append)
        self.gateway._launch = self._launch

    def _launch(self, conf: Any, _popen_kwargs: Any = None) -> Java:
        self.started.append(Java(conf.getAll()))
        return self.started[-1]

    def ask(self, **conf: str) -> Java:
        found = self.gateway._asked(SparkConf(loadDefaults=False).setAll(list(conf.items())))
        assert isinstance(found, Java)
        return found


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    monkeypatch.setattr(prepared, "_load_classes", lambda gateway: None)
    monkeypatch.setenv("MINE", "1")
    made = Spark()
    yield made
    for java in made.started:
        with java.proc:
            java.proc.kill()


def prepare(spark: Spark) -> Java:
    """Java as the program has asked for it once, started in advance for the next run."""
    spark.ask(a="1", b="2")
    spark.gateway.start(spark.reported[0]["spark"])
    return spark.started[-1]


def test_the_same_settings(spark: Spark) -> None:
    java = prepare(spark)
    assert java.conf == [("a", "1"), ("b", "2")] and java is not spark.started[0]
    assert spark.ask(b="2", a="1") is java
    assert spark.ask(a="1", b="2") is not java, "it is used once"
    assert len(spark.reported) == 3


def test_another_configuration(spark: Spark) -> None:
    java = prepare(spark)
    other = spark.ask(a="1", b="3")
    assert other is not java and other.conf == [("a", "1"), ("b", "3")]
    assert java.proc.poll() is not None


def test_another_environment_or_directory(spark: Spark, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = prepare(spark)
    monkeypatch.setenv("MINE", "2")
    assert spark.ask(a="1", b="2") is not java and java.proc.poll() is not None
    spark.gateway.start(spark.reported[0]["spark"])
    assert spark.started[-1].environment == "1" and os.environ["MINE"] == "2", "as it was, for Java alone"
    monkeypatch.setenv("MINE", "1")
    monkeypatch.chdir(tmp_path)
    assert spark.ask(a="1", b="2").directory == str(tmp_path)


def test_one_that_has_died_and_one_that_cannot_start(spark: Spark) -> None:
    java = prepare(spark)
    java.proc.kill()
    java.proc.wait()
    assert spark.ask(a="1", b="2") is not java

    def fails(_conf: Any) -> Java:
        raise RuntimeError("no Java")

    launch, spark.gateway._launch = spark.gateway._launch, fails
    spark.gateway.start(spark.reported[0]["spark"])
    spark.gateway._launch = launch
    assert spark.ask(a="1", b="2") is spark.started[-1]


def test_one_that_is_not_asked_for_ends(spark: Spark) -> None:
    java = prepare(spark)
    spark.gateway.close()
    assert java.proc.poll() is not None


def test_a_java_process_of_others_is_left_alone(spark: Spark) -> None:
    spark.ask(a="1")
    settings = spark.reported[0]["spark"]
    spark.gateway.start({**settings, "environment": {**settings["environment"], "PYSPARK_GATEWAY_PORT": "1"}})
    assert len(spark.started) == 1


def test_what_runs_in_a_prepared_process() -> None:
    assert [runs_here(program) for program in ("p.py", "/a/b.py", "flinkplus", "sh", "p.pyc")] == [
        True,
        True,
        True,
        False,
        False,
    ]
