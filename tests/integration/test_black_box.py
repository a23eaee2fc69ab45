"""Jobs under drawn faults, watched by a checker that knows the input alone: exact as the product is, and with faults in
the sink, each of which the checker must find."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from experiments.blackbox import experiment
from experiments.blackbox.broken import APART, FORGOTTEN, HALVES, LATE, UNFENCED
from experiments.blackbox.experiment import EXPERIMENT, BlackBoxSettings
from experiments.blackbox.faults import ALL_SLOTS, BROKER, CUT, DEAF, PAUSE, SERVER, SLOT, STOP, TWO_SLOTS
from experiments.blackbox.pipelines import BROKEN_PIPELINES, PIPELINES, POSTGRES_AT_ONCE
from experiments.harness.kafka_server import KafkaMissing, check_kafka, default_jars
from experiments.harness.running import Context

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.slow]
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


@pytest.fixture(autouse=True)
def enterable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of PostgreSQL is where the server's user can enter: that of the tests is root's own under root."""
    monkeypatch.setattr(tempfile, "tempdir", os.environ["PYTEST_DEBUG_TEMPROOT"])


def rounds(tmp_path: Path, **given: Any) -> list[dict[str, Any]]:
    """The rounds of these settings, as many as it takes, until one is not exact."""
    settings = BlackBoxSettings(**{"patience": 300.0, **given})
    settings.check()
    found = []
    for figures in experiment.runs(Context(None, settings, tmp_path)):
        found.append(figures)
        if not figures["exact"]:
            break
    assert EXPERIMENT.passed(settings, {"runs": found}), str(found)
    return found


def broker() -> str:
    """The folder of the broker's jars; without a broker the test is skipped."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'flinkplus[kafka]'")
    try:
        check_kafka(default_jars())
    except KafkaMissing as error:
        pytest.skip(str(error))
    return str(default_jars())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_pipeline_is_exact(tmp_path: Path, pipeline: str) -> None:
    jars = broker() if PIPELINES[pipeline].needs(BROKER) else None
    (one,) = rounds(tmp_path, pipeline=(pipeline,), faults=6, per_round=6, rounds=1, seed=5, kafka_jars=jars)
    assert one["struck"] and one["rows"] and one["looks"] > 20
    assert list(tmp_path.iterdir()) == [], "what a round made is gone"


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("fault", "kinds"),
    [(APART, (SLOT, ALL_SLOTS)), (UNFENCED, (SLOT, TWO_SLOTS)), (FORGOTTEN, (ALL_SLOTS,)), (HALVES, (SLOT,))],
)
def test_a_fault_of_the_sink_is_found(tmp_path: Path, fault: str, kinds: tuple[str, ...]) -> None:
    found = rounds(
        tmp_path, pipeline=(BROKEN_PIPELINES[fault],), broken=fault, kind=kinds, faults=40, per_round=8, seed=3
    )
    assert found[-1]["examples"]


@pytest.mark.timeout(900)
def test_a_writer_that_goes_on_is_fenced(tmp_path: Path) -> None:
    """As the fault ``unfenced``, with the product's fences."""
    rounds(tmp_path, pipeline=(POSTGRES_AT_ONCE,), broken=LATE, kind=(SLOT, TWO_SLOTS), faults=8, per_round=8, seed=3)


@pytest.mark.timeout(900)
def test_the_server_and_its_connections(tmp_path: Path) -> None:
    kinds = (SERVER, CUT, DEAF, PAUSE, STOP)
    rounds(tmp_path, pipeline=(POSTGRES_AT_ONCE,), kind=kinds, faults=10, per_round=10, seed=6)


@pytest.mark.timeout(900)
def test_the_broker_is_killed(tmp_path: Path) -> None:
    kinds = (BROKER, SLOT, SERVER)
    given = {"pipeline": ("kafka-postgres-at-once",), "kind": kinds, "kafka_jars": broker()}
    (one,) = rounds(tmp_path, **given, faults=8, per_round=8, rounds=1, seed=2)
    assert {fault["kind"] for fault in one["struck"]} >= {BROKER}
