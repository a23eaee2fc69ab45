"""Metrics: what Prometheus's own parser reads, and what the page of the documents lists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from flinkplus.runtime.coordinator.commands.moves import DrainHostCommand
from flinkplus.runtime.coordinator.commands.operations import InjectCommand
from flinkplus.runtime.coordinator.record.status import Status
from flinkplus.runtime.operations.web.drawn import DrawnGraph
from flinkplus.runtime.operations.web.exposition import exposition, families
from flinkplus.runtime.operations.web.openapi import document, path_name
from tests.unit.runtime.operations.web.page_of_a_job import a_status

PAGE = Path(__file__).parents[5] / "docs" / "ui.md"
ROW = re.compile(r"^\| `(flinkplus_\w+)` \| ([^|]*) \|", re.MULTILINE)


def samples(status: dict[str, Any]) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, values of the labels) -> value, as Prometheus reads it."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition(status).decode())
        for sample in family.samples
    }


def test_values_and_units() -> None:
    found = samples(a_status())
    assert found["flinkplus_rows_total", ("out", "slot-1", "numbers+gone[1]", "numbers+gone")] == 100
    assert found["flinkplus_busy_seconds_total", ("slot-0", "numbers+gone[0]", "numbers+gone")] == 1.5
    assert (
        found["flinkplus_watermark_timestamp_seconds", ("slot-1", "numbers+gone[1]", "numbers+gone")] == 1_700_000_000.5
    )
    assert found["flinkplus_slot_silence_seconds", ("here", "slot-1")] == 0.0125
    assert found["flinkplus_checkpoints_total", ("aborted",)] == 1
    assert found["flinkplus_last_checkpoint_phase_seconds", ("duration",)] == 0.12
    assert found["flinkplus_last_recovery_phase_seconds", ("standby", "fence")] == 0.01
    assert found["flinkplus_failovers_total", ()] == 1
    assert found["flinkplus_job_state", ("running",)] == 1 and found["flinkplus_job_state", ("failed",)] == 0
    assert found["flinkplus_chain_lag_checkpoints", ("standby", "slot-0", "numbers+gone[0]")] == 2


def test_what_is_unknown_has_no_sample() -> None:
    found = samples(a_status())
    assert ("flinkplus_rows_total", ("out", "slot-0", "numbers+gone[0]", "numbers+gone")) not in found
    assert ("flinkplus_slot_silence_seconds", ("", "slot-0")) not in found
    assert ("flinkplus_last_checkpoint_phase_seconds", ("chain",)) not in found
    calm = a_status() | {"recoveries": [], "checkpoints": []}
    assert not [name for name, _ in samples(calm) if name.startswith(("flinkplus_last_rec", "flinkplus_last_ch"))]


def test_labels_are_escaped() -> None:
    assert ("flinkplus_job_info", ("exactly-once", "1f0c3a5e9b77", 'words <script>"x"</script>', "standby")) in samples(
        a_status()
    )


def test_the_page_lists_every_metric_with_its_labels() -> None:
    made = {}
    for family in families(a_status()):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = sorted({name for sample in family.samples for name in sample.labels})
        made[family.name + suffix] = ", ".join(f"`{name}`" for name in labels)
    listed = {
        name: ", ".join(sorted(labels.strip().split(", "))) for name, labels in ROW.findall(PAGE.read_text("utf-8"))
    }
    assert listed == made


def test_the_interface_describes_itself() -> None:
    found = document("1.2", Status, DrawnGraph, {"InjectCommand": InjectCommand, "DrainHostCommand": DrainHostCommand})
    assert found["openapi"] == "3.1.0" and found["info"]["version"] == "1.2"
    assert set(found["paths"]) == {
        *("/api/status", "/api/graph", "/metrics", "/api/commands/inject", "/api/commands/drain-host")
    }
    schemas = found["components"]["schemas"]
    inject = schemas["InjectCommand"]
    assert inject["required"] == ["fault", "target"] and not inject["additionalProperties"]
    assert inject["properties"]["for_s"] == {"type": "number", "default": 1.0}
    assert inject["properties"]["peers"]["anyOf"] == [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]
    assert schemas["Status"]["properties"]["slots"]["items"] == {"$ref": "#/components/schemas/SlotStatus"}
    for reference in re.findall(r"#/components/schemas/(\w+)", str(found)):
        assert schemas[reference], reference
    assert all(
        path["post"]["security"] == [{"token": []}] for name, path in found["paths"].items() if "commands" in name
    )
    assert path_name("MoveNewsCommand") == "move-news"
