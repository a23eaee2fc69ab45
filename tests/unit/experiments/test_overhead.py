"""What checkpoints cost: variants, summary, table and picture, from runs that never ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.harness import console
from experiments.overhead import EXPERIMENT, PHASES, OverheadSettings, Variant, time_by_interval
from flinkplus.errors import ConfigurationError

SETTINGS = OverheadSettings(intervals=(0.5, 10.0), rounds=3)


def made_up_run(variant: Variant, round_number: int, seconds: float, beside_s: float = 0.5) -> dict[str, Any]:
    taken = 0 if variant.mode is None else 4
    return {
        "variant": variant.name,
        "mode": variant.mode,
        "interval_s": variant.interval_s,
        "round": round_number,
        "beside_s": beside_s,
        "seconds": seconds,
        "checkpoints": taken + 1,
        **dict.fromkeys((*PHASES, "bytes_new", "bytes_total"), 2.0 if taken else None),
    }


def test_variants_and_their_options() -> None:
    names = {interval: [variant.name for variant in group] for interval, group in SETTINGS.groups.items()}
    assert names == {
        0.5: ["none", "aligned, 0.5 s", "unaligned, 0.5 s", "synchronous, 0.5 s"],
        10.0: ["none", "aligned, 10 s", "unaligned, 10 s", "synchronous, 10 s"],
    }
    assert EXPERIMENT.total(SETTINGS) == 24
    none, *_ = SETTINGS.groups[0.5]
    long = SETTINGS.groups[10.0][-1]
    wanted = {"parallelism": 2, "checkpoint_interval": None, "recovery": "rollback", "transport": "tcp"}
    assert SETTINGS.options(none) == wanted
    assert SETTINGS.options(long)["checkpoint_mode"] == "synchronous"
    SETTINGS.check()
    with pytest.raises(ConfigurationError, match="checkpoint_interval must be"):
        OverheadSettings(intervals=(0.001,)).check()


def test_losses_are_medians_of_the_rounds(tmp_path: Path) -> None:
    """The machine is slower in the second round; that is not taken for a loss."""
    document = EXPERIMENT.document(SETTINGS, tmp_path / "overhead.json")
    slower = {"none": 1.0, "aligned, 0.5 s": 1.04, "unaligned, 0.5 s": 1.05, "synchronous, 0.5 s": 2.0}
    for round_number, seconds in enumerate((10.0, 25.0, 9.0)):
        for variant in SETTINGS.groups[0.5]:
            document.add(made_up_run(variant, round_number, seconds * slower[variant.name]))
        document.add(made_up_run(Variant(), round_number, 7 * seconds, beside_s=10.0))
    rows = {row["variant"]: row for row in document.content["summary"]}
    assert [round(row["loss_percent"], 6) for row in rows.values()] == [0.0, 4.0, 5.0, 100.0]
    assert (rows["none"]["running_s"], rows["none"]["n"]) == (44.0, 6) and rows["none"]["duration_ms"] is None
    aligned = rows["aligned, 0.5 s"]
    assert (aligned["running_s"], aligned["n"], aligned["checkpoints"]) == (10.4, 3, 5)
    assert (aligned["running_low_s"], aligned["running_high_s"]) == (9.36, 26.0)
    assert aligned["loss_low_percent"] == aligned["loss_high_percent"] == 4.0, "the same loss in each round"
    console.show(*EXPERIMENT.tables(document.content))
    assert time_by_interval(document.content, tmp_path / "out" / "overhead.png")
    assert (tmp_path / "out" / "overhead.png").read_bytes().startswith(b"\x89PNG")


def test_without_checkpoints_there_is_nothing_to_draw(tmp_path: Path) -> None:
    document = EXPERIMENT.document(SETTINGS, tmp_path / "overhead.json")
    document.add(made_up_run(Variant(), 0, 1000.0))
    assert not time_by_interval(document.content, tmp_path / "overhead.png")
    assert not (tmp_path / "overhead.png").exists()
