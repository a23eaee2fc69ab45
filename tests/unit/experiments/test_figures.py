"""The tables of published figures are those of the files in docs/results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.figures.__main__ import documents
from experiments.figures.sources import row
from experiments.figures.tables import kills, markdown, recovery
from experiments.recovery.summary import compare

DOCUMENTS = list(documents())


@pytest.mark.parametrize(("path", "text"), DOCUMENTS, ids=[path.name for path, _ in DOCUMENTS])
def test_documents_have_the_tables_of_their_files(path: Path, text: str) -> None:
    assert path.read_text(encoding="utf-8") == text, "make figures"


def test_a_file_that_says_little_of_itself_is_in_the_page_too() -> None:
    assert row("old.json", {"figures": {}}) == ["[old.json](results/old.json)", *["-"] * 8]
    known: dict[str, Any] = {
        "command": "x",
        "commit": "0123456789ab",
        "started": "2026-11-24T21:00:00",
        "machine": {"cores": 2},
    }
    known |= {"uid": 0, "nice": 0, "may_raise_priority": False, "runs": [{"load_1min": 1.5}, {"load_1min": 0.5}]}
    cells = ["`x`", "012345678", "2026-11-24", "2", "0, 0", "not raised", "0.5 to 1.5", "2"]
    assert row("new.json", known)[1:] == cells


def summary(mode: str, median_ms: float, unmeasured: int = 0) -> dict[str, Any]:
    low_ms, high_ms = median_ms - 5, median_ms + 5.4
    interval = {"median_low_ms": low_ms, "median_high_ms": high_ms, "without_pause_median_ms": median_ms}
    interval |= {"without_pause_low_ms": low_ms, "without_pause_high_ms": high_ms}
    gaps = {f"output_gap_{which}_ms": 7.0 for which in ("others_median", "before_median", "handback_p95")}
    gaps["output_gap_handback_median_ms"] = None  # type: ignore[assignment]
    counts = {"runs": 10, "exact_runs": 10, "unmeasured": unmeasured}
    known = {"failure": "sigkill", "parallelism": 8, "recovery": mode, "state_keys": 0, "p95_ms": 99.5}
    return {**known, "median_ms": median_ms, **interval, **counts, **gaps}


def test_modes_stand_side_by_side() -> None:
    both = [summary("rollback", 200.0), summary("standby", 50.0)]
    document = {"parameters": {}, "summary": both, "comparison": compare(both)}
    cells = ("sigkill", "8", "200 (195 to 205)", "50 (45 to 55)", "100", "75.0 %", "10 and 10", "20 of 20")
    assert recovery(document)[1] == cells
    alone = {"parameters": {}, "summary": both[1:], "comparison": compare(both[1:])}
    assert recovery(alone)[1][2:6] == ("-", "50 (45 to 55)", "100", "-")


def test_kills_without_a_time_are_counted() -> None:
    given = {"job": "wordcount", "rate": 30_000.0, "beside": 2}
    (_, cells) = kills({"parameters": given, "summary": [summary("standby", 50.0, unmeasured=1)]})
    assert cells[2:5] == ("30,000", "2 busy processes", "10, 1 not measured") and cells[-2:] == ("-", "7")


def test_numbers_are_on_the_right() -> None:
    assert markdown([("what", "ms"), ("a", "1"), ("b", "-")]) == "| what | ms |\n| --- | ---: |\n| a | 1 |\n| b | - |\n"
