"""Statistics, the document, tables and pictures of the experiment, from runs that never ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import cost
from experiments.cost import CostSettings
from experiments.demo import check_stay, story
from experiments.harness import console, statistics
from experiments.harness.document import Document, command_line
from experiments.recovery import pictures
from experiments.recovery.experiment import EXPERIMENT, RECOVERIES, Settings, keep_timeline
from experiments.recovery.summary import compare, summarize
from flinkplus.cli.figures import write_json
from flinkplus.cli.tables import LEAST_WIDTH
from flinkplus.errors import ConfigurationError
from flinkplus.protocol.vocabulary.phases import DURATIONS


def made_up_run(parallelism: int, recovery: str, failure: str, run: int, recovery_ms: float | None) -> dict[str, Any]:
    total = 0.0 if recovery_ms is None else recovery_ms
    return {
        "parallelism": parallelism,
        "recovery": recovery,
        "failure": failure,
        "state_keys": 0,
        "job": 0,
        "run": run,
        "kill": run,
        "seed": 7,
        "subtask": "count[1]",
        "rows": 1000,
        "since_trigger_s": 0.4 * run,
        "during_checkpoint": run == 0,
        "busy_share": 0.9 - run / 10,
        "restored_s": None if run == 1 else 1.5,
        "recovery_ms": recovery_ms,
        **{f"{phase}_ms": total / 5 for phase in DURATIONS},
        "caught_up_ms": total + 10,
        **{f"output_gap_{which}_ms": total + at for at, which in enumerate(("failed", "others", "before", "handback"))},
        "exact": recovery_ms is not None,
        "fallback": None,
        "error": None if recovery_ms is not None else "JobFailed: for this test",
        "usage": {"total": {"cores": 0.5, "rss_mb": 100.0}},
    }


def made_up_timeline(recovery: str, failure: str, parallelism: int) -> dict[str, Any]:
    return {
        "parallelism": parallelism,
        "recovery": recovery,
        "failure": failure,
        "state_keys": 0,
        "run": 0,
        "failed": ["count[1]"],
        "bucket_s": 0.05,
        "kill_at_s": 2.0,
        "phases_ms": dict.fromkeys(DURATIONS, 40.0) | {"fence": None},
        "recovery_ms": 200.0,
        "rows_per_s": {f"count[{index}]": [100.0] * 40 + [0.0] * 4 + [100.0] * 56 for index in range(2)},
    }


@pytest.fixture
def document(tmp_path: Path) -> Document:
    """Two levels, both modes, both failures, three runs each; one of them failed."""
    made = EXPERIMENT.document(Settings(parallelism=(1, 8), runs=3), tmp_path / "deep" / "recovery.json")
    for parallelism in (1, 8):
        for failure in ("sigkill", "exception"):
            for run in range(3):
                for recovery, base in (("standby", 20.0), ("rollback", 500.0)):
                    broken = (parallelism, failure, run, recovery) == (8, "exception", 2, "standby")
                    keep_timeline(made.content, made_up_timeline(recovery, failure, parallelism))
                    made.add(made_up_run(parallelism, recovery, failure, run, None if broken else base + 10 * run))
    return made


def test_percentiles_and_intervals() -> None:
    values = [10.0, None, 20.0, 30.0, 40.0]
    assert statistics.median(values) == 25.0
    assert statistics.percentile(values, 95) == 38.5
    assert statistics.median([None]) is None and statistics.percentile([], 95) is None
    low, high = statistics.median_interval(values, seed=1)
    assert low is not None and high is not None and 10 <= low <= 25 <= high <= 40
    assert statistics.median_interval(values, seed=1) == (low, high), "the same seed gives the same interval"
    assert statistics.median_interval([5.0], 1) == (5.0, 5.0)
    assert statistics.median_interval([None], 1) == (None, None)


def test_the_interval_holds_the_true_median_in_most_cases() -> None:
    import numpy as np

    generator = np.random.default_rng(5)
    held = 0
    for seed in range(100):
        low, high = statistics.median_interval(generator.normal(100, 10, 15).tolist(), seed)
        assert low is not None and high is not None
        held += low <= 100 <= high
    assert held >= 88


def test_the_shape_of_the_document(document: Document) -> None:
    content = json.loads(document.path.read_text())
    assert content == json.loads(json.dumps(document.content))
    assert content["experiment"] == "recovery" and content["interrupted"] is False
    assert content["parameters"]["parallelism"] == [1, 8] and content["parameters"]["seed"] == 1
    assert {"python", "pyspark", "flinkplus"} <= set(content["versions"])
    assert content["machine"]["cores"] >= 1
    assert len(content["runs"]) == 24
    assert len(content["summary"]) == 8
    row = content["summary"][0]
    assert (row["parallelism"], row["recovery"], row["failure"]) == (1, "standby", "sigkill")
    assert (row["runs"], row["exact_runs"], row["fallbacks"]) == (3, 3, 0)
    assert (row["median_ms"], row["p95_ms"]) == (30.0, 39.0)
    assert row["median_low_ms"] == 20.0 and row["median_high_ms"] == 40.0
    broken = next(r for r in content["summary"] if r["exact_runs"] < 3)
    assert (broken["runs"], broken["exact_runs"], broken["unmeasured"], broken["median_ms"]) == (3, 2, 1, 25.0)
    reductions = {(c["parallelism"], c["failure"]): c["reduction_percent"] for c in content["comparison"]}
    assert reductions[1, "sigkill"] == pytest.approx(100 * (1 - 30 / 510), abs=0.01)
    assert len(reductions) == 4
    assert (row["not_restored"], row["unmeasured"]) == (1, 0)
    assert (row["output_gap_handback_median_ms"], row["output_gap_handback_p95_ms"]) == (33.0, 42.0)
    assert {part["moment"]: part["median_ms"] for part in row["by_moment"] if part["runs"]} == {
        "quarter 1": 20.0,
        "quarter 2": 30.0,
        "quarter 4": 40.0,
        "checkpoint under way": 20.0,
        "no checkpoint": 35.0,
    }
    assert [(part["busy_from"], part["median_ms"]) for part in row["by_load"]] == [
        (0.7, 40.0),
        (0.8, 30.0),
        (0.9, 20.0),
    ]
    assert len(content["timelines"]) == 8, "the first of each kind"
    assert [path.name for path in document.path.parent.iterdir()] == ["recovery.json"]


def test_one_mode_alone_has_no_reduction() -> None:
    (row,) = compare(summarize([made_up_run(2, "rollback", "sigkill", 0, 400.0)], 1, 1.0))
    assert (row["rollback_ms"], row["standby_ms"], row["reduction_percent"]) == (400.0, None, None)


@pytest.fixture
def three_modes(tmp_path: Path) -> Document:
    settings = Settings(parallelism=(4,), runs=3, recovery=RECOVERIES)
    made = EXPERIMENT.document(settings, tmp_path / "recovery.json")
    for run in range(3):
        for recovery, base in (("standby", 20.0), ("partial", 50.0), ("rollback", 500.0)):
            keep_timeline(made.content, made_up_timeline(recovery, "sigkill", 4))
            made.add(made_up_run(4, recovery, "sigkill", run, base))
    return made


def test_partial_recovery_is_compared_as_well(
    three_modes: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = three_modes.content["comparison"]
    assert (case["rollback_ms"], case["partial_ms"], case["standby_ms"]) == (500.0, 50.0, 20.0)
    assert (case["partial_reduction_percent"], case["reduction_percent"]) == (90.0, 96.0)
    console.show(*EXPERIMENT.tables(three_modes.content))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= LEAST_WIDTH
    line = next(line for line in lines if line.split()[:2] == ["sigkill", "4"])
    found = [line.index(text) for text in ("500.0 (500", "50.0 (50", "90.00 %", "20.0 (20", "96.00 %")]
    assert found == sorted(found), "rollback, partial, standby"
    assert pictures.recovery_by_parallelism(three_modes.content, tmp_path / "a.png")
    assert pictures.timeline(three_modes.content, tmp_path / "b.png")
    chosen = pictures.choose_timelines(three_modes.content["timelines"])
    assert [one["recovery"] for one in chosen] == ["rollback", "partial", "standby"]


def test_a_document_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot write"):
        write_json(tmp_path / "file" / "recovery.json", {})


def test_the_tables(document: Document, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(*EXPERIMENT.tables(document.content))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= LEAST_WIDTH
    line = next(line for line in lines if line.split()[:2] == ["sigkill", "8"])
    assert "510.0 (500 - 520)" in line and "30.0 (20 - 40)" in line and "94.12 %" in line
    assert any(line.split()[:3] == ["standby", "exception", "8"] and "2 of 3" in line for line in lines)


def test_unmeasured_kills_are_shown_everywhere(document: Document, capsys: pytest.CaptureFixture[str]) -> None:
    console.show(*EXPERIMENT.tables(document.content))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.split()[:3] == ["standby", "exception", "8"]]
    assert lines[0].split()[3:] == ["3", "1", "2", "of", "3", "0", "1"]
    quarters, checkpoints, loads = (" ".join(line.split()[3:]) for line in lines[3:])
    assert quarters == "20 (1) 30 (1) - - (0 of 1)" and checkpoints == "20 (1) 30 (1 of 2)"
    assert loads == "- (0 of 1; 70-70 %) 30 (1; 80-80 %) 20 (1; 90-90 %)"


def test_the_tables_of_every_column_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = EXPERIMENT.document(Settings(parallelism=(16,)), tmp_path / "recovery.json")
    for run in range(10):
        unknown = {"busy_share": None, "since_trigger_s": None, "during_checkpoint": None} if run == 9 else {}
        made.add({**made_up_run(16, "rollback", "exception", run, 2_345.6), "state_keys": 1_000_000, **unknown})
    console.show(*EXPERIMENT.tables(made.content))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= LEAST_WIDTH
    assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines), "a column is cut off"
    assert sum("not known" in line for line in lines) == 3


def test_the_pictures(document: Document, tmp_path: Path) -> None:
    drawn = tmp_path / "pictures"
    assert pictures.recovery_by_parallelism(document.content, drawn / "a.png")
    assert pictures.timeline(document.content, drawn / "b.png")
    assert all((drawn / name).read_bytes().startswith(b"\x89PNG") for name in ("a.png", "b.png"))
    assert not pictures.recovery_by_state(document.content, drawn / "c.png")
    document.add({**made_up_run(8, "rollback", "sigkill", 0, 700.0), "state_keys": 10_000})
    assert pictures.recovery_by_state(document.content, drawn / "c.png")
    chosen = pictures.choose_timelines(document.content["timelines"])
    assert [(one["recovery"], one["failure"], one["parallelism"]) for one in chosen] == [
        ("rollback", "sigkill", 8),
        ("standby", "sigkill", 8),
    ]


def test_nothing_to_draw(tmp_path: Path) -> None:
    content = EXPERIMENT.document(Settings(parallelism=(1,)), tmp_path / "r.json").content
    assert not pictures.recovery_by_parallelism(content, tmp_path / "a.png")
    assert not pictures.timeline(content, tmp_path / "b.png")
    assert list(tmp_path.iterdir()) == []


def test_the_story_of_the_demo(document: Document) -> None:
    lines = story(document.content)
    assert (
        "rollback: the words of count[1] were counted on 500 ms after the kill; longest silence of the others"
        in str(lines)
    )
    assert "standby: the run failed: JobFailed: for this test" in lines
    assert "Standbys took 94.1 % less time." in lines


def cost_run(standbys: int | None, kind: str, round_number: int, words_per_s: float, cores: float) -> dict[str, Any]:
    name = "rollback" if standbys is None else f"{standbys} standbys"
    usage = {"total": {"cores": cores, "rss_mb": 500.0}}
    run = {"variant": name, "standbys": standbys, "kind": kind, "round": round_number, "words_per_s": words_per_s}
    return {**run, "usage": usage, "checkpoint_ms_median": None}


def test_costs_are_ratios_within_a_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = cost.EXPERIMENT.document(CostSettings(), tmp_path / "cost.json")
    for round_number, scale in enumerate((1.0, 2.0, 4.0)):
        for standbys, loss in ((0, 0.0), (2, 0.1)):
            document.add(cost_run(standbys, "unlimited", round_number, 1000 * scale * (1 - loss), 2.0))
            document.add(cost_run(standbys, "steady", round_number, 100.0, 0.5 * scale * (1 + loss)))
    none, two = json.loads(document.path.read_text())["summary"]
    assert none["variant"] == none["base"] == two["base"] == "0 standbys"
    assert none["unlimited"]["throughput_loss_percent"] == 0
    assert two["unlimited"]["throughput_loss_percent"] == pytest.approx(10)
    assert two["steady"]["more_cpu_percent"] == pytest.approx(10)
    console.show(*cost.EXPERIMENT.tables(document.content))
    assert "2 standbys" in capsys.readouterr().out


def test_costs_have_intervals_over_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    losses = (0.02, 0.10, 0.04, 0.06, 0.08)
    runs = [
        cost_run(standbys, kind, at, 1000.0 * (1 + at) * (1 - loss * (standbys or 0) / 2), 0.5 * (1 + loss * at))
        for at, loss in enumerate(losses)
        for kind in cost.KINDS
        for standbys in (0, 2)
    ]
    unpaired = cost_run(2, "unlimited", 9, 1.0, 2.0)
    none, two = cost.summarize([*runs, unpaired], 1)
    assert (two["unlimited"]["runs"], two["unlimited"]["n"], two["steady"]["n"]) == (6, 5, 5)
    assert two["unlimited"]["throughput_loss_percent"] == pytest.approx(6.0)
    assert two["unlimited"]["intervals"]["throughput_loss_percent"] == pytest.approx([2.0, 10.0])
    assert two["steady"]["intervals"]["more_cpu_percent"] == [0.0, 0.0] and none["unlimited"]["n"] == 5
    console.show(*cost.EXPERIMENT.tables({"summary": [none, two]}))
    assert "6.0 (2.0 - 10.0)" in capsys.readouterr().out
    few = cost.summarize(runs[:8], 1)[1]
    assert few["steady"]["n"] == 2 and few["steady"]["intervals"] == {}, "too few for an interval"


def test_costs_of_weaker_guarantees_and_of_parts() -> None:
    settings = CostSettings(
        replicas=(1, 3), guarantees=("at-least-once", "exactly-once"), without=("filter", "digests")
    )
    settings.check()
    assert [variant.name for variant in settings.variants] == [
        "0 standbys",
        "2 standbys",
        "2 standbys, at-least-once",
        "2 standbys, no filter or digests",
        "rollback",
    ]
    assert [variant.options().get("guarantee") for variant in settings.variants][2] == "at-least-once"
    assert settings.variants[3].options()["faults"] == ("without:filter", "without:digests")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/env/bin/flinkplus", "experiment", "cost", "--rounds", "12"], "flinkplus experiment cost --rounds 12"),
        (["/src/flinkplus/__main__.py", "experiment", "cost", "--out", "a b", "--json=c"], "flinkplus experiment cost"),
        (["/src/experiments/bench_log.py", "--mb", "64", "--json", "x"], "python -m experiments.bench_log --mb 64"),
    ],
)
def test_a_document_says_what_repeats_its_runs(arguments: list[str], command: str) -> None:
    assert command_line(arguments) == command


def test_pages_of_the_demo_that_stay_need_a_port_each() -> None:
    check_stay(True, True)
    check_stay("127.0.0.1:0", True)
    check_stay("127.0.0.1:8080", False)
    for ui, why in ((False, "needs --ui"), ("127.0.0.1:8080", "give port 0")):
        with pytest.raises(ConfigurationError, match=why):
            check_stay(ui, True)
