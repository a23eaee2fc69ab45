"""What another parallelism costs: records, figures, rows, tables and pictures, from made-up output."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.harness.console import show
from experiments.recovery.measure import Arrival
from experiments.rescale import live, measure, pictures, restore
from experiments.rescale.experiment import EXPERIMENT, RescaleSettings
from experiments.rescale.filled import LINKED_BYTES, Filled
from experiments.rescale.job import KEPT_BYTES, RescaledJob, numbered, objects_of
from experiments.rescale.measure import Step
from experiments.rescale.records import SUFFIX, Batch, Outputs, Partition, Recorder, new_outputs, read_records
from experiments.rescale.summary import summarize
from experiments.rescale.tables import tables
from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import OperatorContext

SCHEMA = pa.schema({"word": pa.string(), "count": pa.int64()})


# --- records


def record(directory: Path, parallelism: int, subtask: int, *batches: dict[str, int]) -> None:
    """What a subtask put out, in one process."""
    context = OperatorContext("record", f"count[{subtask}]", subtask, parallelism, SCHEMA)
    instance = Recorder("record", directory, "word", "count").create(context)
    for rows in batches:
        batch = pa.record_batch([list(rows), list(rows.values())], schema=SCHEMA)
        assert list(instance.process(batch)) == [batch]
    instance.close()


def test_a_row_is_new_the_first_time_that_it_comes_from_any_partition(tmp_path: Path) -> None:
    record(tmp_path, 2, 0, {"a": 1, "b": 1}, {"a": 2})
    record(tmp_path, 2, 1, {"c": 1})
    record(tmp_path, 3, 2, {"b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2})
    outputs = new_outputs(read_records(tmp_path))
    assert {one: [rows for _, rows in samples] for one, samples in outputs.items()} == {
        Partition(2, 0): [2, 1],
        Partition(2, 1): [1],
        Partition(3, 2): [2],
    }
    times = [time_s for samples in outputs.values() for time_s, _ in samples]
    assert times == sorted(times)


def test_columns_of_a_batch_may_be_encoded(tmp_path: Path) -> None:
    record(tmp_path / "plain", 1, 0, {"a": 1, "b": 7})
    context = OperatorContext("record", "count[0]", 0, 1, SCHEMA)
    instance = Recorder("record", tmp_path / "encoded", "word", "count").create(context)
    word = pa.array(["a", "b"]).dictionary_encode()
    list(instance.process(pa.RecordBatch.from_arrays([word, pa.array([1, 7])], ["word", "count"])))
    (plain,), (encoded,) = read_records(tmp_path / "plain"), read_records(tmp_path / "encoded")
    assert plain.keys.tolist() == encoded.keys.tolist() and len(set(plain.keys.tolist())) == 2
    assert plain.counts.tolist() == encoded.counts.tolist() == [1, 7]


def test_half_a_record_is_left_out(tmp_path: Path) -> None:
    record(tmp_path, 2, 0, {"a": 1}, {"a": 2, "b": 1})
    (path,) = tmp_path.glob(f"*{SUFFIX}")
    whole = path.read_bytes()
    for cut, left in ((1, 1), (33, 1), (47, 1), (48, 1), (len(whole) - 1, 0)):
        path.write_bytes(whole[:-cut])
        assert len(list(read_records(tmp_path))) == left, cut
    assert new_outputs(read_records(tmp_path / "none")) == {}


def test_the_same_count_of_another_key_is_new(tmp_path: Path) -> None:
    record(tmp_path, 2, 0, {"a": 1}, {"b": 1, "c": 1}, {"a": 1})
    assert [rows for _, rows in new_outputs(read_records(tmp_path))[Partition(2, 0)]] == [1, 2]


# --- figures

RATE = 1_000.0
REQUEST_S, SWITCH_S = 1_010.0, 1_013.0


def steady(begin_s: float, end_s: float, step_s: float = 0.02, rows: int = 0) -> list[tuple[float, int]]:
    """Output each ``step_s`` seconds, ``rows`` at a time."""
    return [(begin_s + step * step_s, rows) for step in range(round((end_s - begin_s) / step_s))]


def change(pause_s: float, late: int = 2, late_s: float = 0.0, until_s: float = 1_020.0) -> tuple[Outputs, Step]:
    """2 to 3: steady to the switch; a pause, the longest in the partition ``late``; what was missed; steady again."""
    outputs: dict[Partition, list[tuple[float, int]]] = {}
    for subtask in range(2):
        outputs[Partition(2, subtask)] = steady(1_000.0, SWITCH_S, rows=10)
    for subtask in range(3):
        begin_s = SWITCH_S + pause_s + (late_s if subtask == late else 0.0)
        missed = (begin_s - SWITCH_S) * RATE / 3
        samples = steady(begin_s, until_s, 0.03, rows=10)
        outputs[Partition(3, subtask)] = [(begin_s, round(missed) + 10), *samples[1:]]
    return outputs, Step(2, 3, 1_001.0, REQUEST_S, until_s)


def test_groups_change_between_the_owners_that_have_them() -> None:
    def pairs(before: int, after: int, groups: int = 128) -> list[tuple[int, int]]:
        return [(old.subtask, new.subtask) for old, new in measure.owners_of_groups(before, after, groups)]

    assert pairs(2, 3) == [(0, 0), (0, 1), (1, 1), (1, 2)]
    assert pairs(2, 8) == [(new // 4, new) for new in range(8)]
    assert pairs(8, 3) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (6, 2), (7, 2)]
    assert pairs(1, 4, 4) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_the_longest_gap_is_that_of_the_groups_whose_new_owner_is_the_latest() -> None:
    outputs, step = change(0.3, late_s=0.2)
    figures = measure.figures(outputs, step, Arrival(RATE, 10**9), 128)
    assert figures["switch_gap_ms"] == pytest.approx(520, abs=1)
    assert figures["gap_ms"] == pytest.approx(520, abs=1)
    assert figures["output_ms"] == pytest.approx(3_500, abs=1)
    assert figures["caught_up_ms"] == pytest.approx(3_500, abs=20)
    assert figures["without_gap_ms"] == pytest.approx(20, abs=1)
    # As long as from 0.5 s before the request to 0.5 s after it has caught up.
    assert figures["without_s"] == pytest.approx(4.5, abs=0.05)


def test_a_pause_beside_the_switch_counts_in_the_gap_around_the_change() -> None:
    outputs, step = change(0.05)
    slow = Partition(2, 1)
    outputs = {**outputs, slow: [one for one in outputs[slow] if not REQUEST_S + 1 < one[0] < REQUEST_S + 1.4]}
    figures = measure.figures(outputs, step, Arrival(RATE, 10**9), 128)
    assert figures["gap_ms"] == pytest.approx(410, abs=11)
    assert figures["switch_gap_ms"] == pytest.approx(70, abs=1)
    assert figures["without_gap_ms"] == pytest.approx(20, abs=1)


def test_what_was_normal_is_looked_for_before_the_request_only() -> None:
    outputs, step = change(0.05)
    slow = Partition(2, 0)
    outputs = {**outputs, slow: [one for one in outputs[slow] if not 1_008.0 < one[0] < 1_008.3]}
    figures = measure.figures(outputs, step, Arrival(RATE, 10**9), 128)
    assert figures["without_gap_ms"] == pytest.approx(310, abs=11)
    assert figures["gap_ms"] == pytest.approx(70, abs=1)
    late = {**outputs, slow: [one for one in outputs[slow] if not REQUEST_S - 0.7 < one[0] < REQUEST_S]}
    figures = measure.figures(late, step, Arrival(RATE, 10**9), 128)
    assert figures["gap_ms"] == pytest.approx(710, abs=11) and figures["without_gap_ms"] == pytest.approx(310, abs=11)
    short = Step(2, 3, 1_009.0, REQUEST_S, 1_020.0)
    assert measure.figures(outputs, short, Arrival(RATE, 10**9), 128)["without_s"] == 0.5


def test_a_partition_that_puts_out_nothing_has_no_time() -> None:
    outputs, step = change(0.05)
    outputs = {one: samples for one, samples in outputs.items() if one != Partition(3, 1)}
    figures = measure.figures(outputs, step, Arrival(RATE, 10**9), 128)
    assert figures["output_ms"] is figures["caught_up_ms"] is figures["switch_gap_ms"] is None
    assert figures["without_gap_ms"] == pytest.approx(20, abs=1)


def test_output_of_other_steps_does_not_count() -> None:
    outputs, step = change(0.05, until_s=1_015.0)
    others = {Partition(3, subtask): [*outputs[Partition(3, subtask)], (1_019.0, 5)] for subtask in range(3)}
    before = steady(995.0, 1_000.9, rows=1_000)
    later = {**outputs, **others, Partition(8, 0): [*before, (1_016.0, 5)]}
    arrival = Arrival(RATE, 10**9)
    assert measure.figures(later, step, arrival, 128) == measure.figures(outputs, step, arrival, 128)


def test_a_backlog_that_is_worked_off_slowly() -> None:
    outputs, step = change(0.05)
    slow = {Partition(3, n): [(at, 8 if at < 1_016.0 else 40) for at, _ in outputs[Partition(3, n)]] for n in range(3)}
    figures = measure.figures({**outputs, **slow}, step, Arrival(RATE, 10**9), 128)
    assert 6_000 < figures["caught_up_ms"] < 6_800 and figures["output_ms"] < 3_100
    next_step = replace(step, until_s=1_015.0)
    assert measure.figures({**outputs, **slow}, next_step, Arrival(RATE, 10**9), 128)["caught_up_ms"] is None


def test_the_phases_of_a_restore() -> None:
    moments = {"begun": 10.0, "divided": 10.5, "slots": 12.0, "subtasks": 12.25, "first": 12.2}
    assert restore.phases(moments) == {
        "running_ms": 2_250.0,
        "output_ms": 2_200.0,
        "divided_ms": 500.0,
        "slots_ms": 1_500.0,
        "subtasks_ms": 250.0,
        "first_ms": 0.0,
    }
    assert set(restore.phases(moments)) == set(restore.KNOWN)


# --- the job


def test_an_object_depends_on_its_number_alone() -> None:
    numbers = numbered(5, 3).column("key").to_numpy()
    assert numbers.tolist() == [5, 6, 7]
    one, two, three = objects_of(numbers)
    assert [two] == objects_of(np.array([6])) and len({one, two, three}) == 3
    assert len(one) == KEPT_BYTES and len(set(one)) > 200, "it looks random"


def test_each_run_finds_the_files_as_they_were(tmp_path: Path) -> None:
    keep, run = tmp_path / "filled", tmp_path / "run"
    (keep / "checkpoints").mkdir(parents=True)
    (keep / "checkpoints" / "small").write_bytes(b"1")
    (keep / "checkpoints" / "large").write_bytes(bytes(LINKED_BYTES))
    filled = Filled(RescaledJob(run, tmp_path / "text", 10, 1.0, 0), keep)
    for _ in range(2):
        filled.again()
        found = run / "checkpoints"
        assert (found / "small").read_bytes() == b"1"
        assert os.stat(found / "small").st_nlink == 1, "it may be written to"
        assert os.path.samefile(found / "large", keep / "checkpoints" / "large")
        (found / "small").write_bytes(b"2")
        (found / "large").unlink()
        (run / "more").touch()
    filled.clear()
    assert not run.exists() and (keep / "checkpoints" / "large").exists()


# --- rows, tables, pictures


def live_run(run: int, gap_ms: float | None, recovery: str = "standby", **more: Any) -> dict[str, Any]:
    known = {**dict.fromkeys(live.KNOWN), "gap_ms": gap_ms, "switch_gap_ms": gap_ms, "without_gap_ms": 20.0}
    known |= {"recoveries": 0, "moved_ms": 3_000.0, "prepare_ms": 2_900.0, "without_s": 4.0, "before": 2, "after": 8}
    return {"state_mb": 10, "recovery": recovery, "run": run, **known, "exact": True, "error": None, **more}


def restored_run(run: int, after: int) -> dict[str, Any]:
    known = {
        **dict.fromkeys(restore.KNOWN, 500.0),
        "before": 2,
        "after": after,
        "output_ms": 1_000.0 + after,
        "recoveries": None,
    }
    return {"state_mb": 1_000, "recovery": "standby", "run": run, **known, "exact": True, "error": None}


def content_of(runs: list[dict[str, Any]], restored: bool) -> dict[str, Any]:
    settings = RescaleSettings(restore=restored)
    found = {"parameters": {"restore": restored}, "runs": runs, **EXPERIMENT.derive(runs, settings)}
    parsed: dict[str, Any] = json.loads(json.dumps(found))
    return parsed


def test_a_row_for_each_change_mode_and_size() -> None:
    runs = [live_run(run, 40.0 + run) for run in range(11)]
    runs[3]["recoveries"] = 2
    runs += [live_run(0, None, "rollback", exact=False, error="RunError: interrupted", recoveries=None)]
    standby, rollback = summarize(runs, 1, restored=False)
    assert (standby["before"], standby["after"], standby["recovery"], standby["state_mb"]) == (2, 8, "standby", 10)
    assert (standby["runs"], standby["exact_runs"], standby["unmeasured"]) == (11, 11, 0)
    assert (standby["recoveries"], rollback["recoveries"]) == (2, 0)
    assert (standby["gap_ms"], standby["gap_p95_ms"]) == (45.0, 49.5)
    assert 40.0 <= standby["gap_low_ms"] < 45.0 < standby["gap_high_ms"] <= 50.0
    assert (standby["without_s"], standby["prepare_ms"]) == (4.0, 2_900.0)
    assert (rollback["runs"], rollback["exact_runs"], rollback["unmeasured"], rollback["gap_ms"]) == (1, 0, 1, None)


def test_tables_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = live_run(1, 50.0, exact=False, wrong=3, example_of_wrong="word")
    failed = live_run(2, None, exact=False, error="RunError: the input ended too early")
    content = content_of([live_run(0, 40.0), wrong, failed], restored=False)
    show(*tables(content))
    shown = capsys.readouterr().out
    assert "2 to 8" in shown and "1 of 3" in shown and "45 (40 - 50)" in shown and "without a change" in shown
    assert "2 to 8, standby, 10 MB, run 1: 3 words differ, such as 'word'" in shown
    assert "run 2: RunError: the input ended too early" in shown
    assert pictures.gaps(content, tmp_path / "gaps.png") and (tmp_path / "gaps.png").stat().st_size > 5_000
    assert not pictures.restores(content, tmp_path / "none.png")
    resumed = content_of([restored_run(run, after) for run in range(3) for after in (2, 3)], restored=True)
    show(*tables(resumed))
    shown = capsys.readouterr().out
    assert "1,003 (1,003 - 1,003)" in shown and "2 to 2" in shown and "first new output" in shown
    assert pictures.restores(resumed, tmp_path / "restore.png") and not pictures.gaps(resumed, tmp_path / "none.png")
    nothing = content_of([failed], restored=False)
    assert tables(nothing) and not pictures.gaps(nothing, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def test_settings() -> None:
    settings = RescaleSettings(state_mb=(0, 1_000), runs=3)
    assert settings.changes == ((2, 8), (8, 3)) and EXPERIMENT.total(settings) == 24
    assert settings.words(1_000) - settings.words(0) == 2 * 40 * settings.rate
    assert settings.options("standby")["replicas"] == 3 and "replicas" not in settings.options("rollback")
    resumed = RescaleSettings(restore=True, steps=(2, 3), runs=3)
    assert resumed.changes == ((2, 2), (2, 3)) and EXPERIMENT.total(resumed) == 12
    assert RescaleSettings(transport="grpc").options("standby")["transport"] == "grpc"
    RescaleSettings(restore=True, steps=(2,)).check()
    with pytest.raises(ConfigurationError, match="--steps 2 has no change"):
        RescaleSettings(steps=(2,)).check()
    with pytest.raises(ConfigurationError, match="max_parallelism"):
        RescaleSettings(steps=(2, 129)).check()


def test_batches_are_taken_in_the_order_of_time() -> None:
    def batch(subtask: int, time_s: float, *counts: int) -> Batch:
        return Batch(Partition(2, subtask), time_s, np.ones(len(counts), np.uint64), np.array(counts))

    outputs = new_outputs([batch(0, 5.0, 1, 2, 3), batch(1, 4.0, 2)])
    assert outputs == {Partition(2, 1): [(4.0, 1)], Partition(2, 0): [(5.0, 2)]}
