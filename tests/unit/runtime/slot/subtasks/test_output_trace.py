"""Notes of output: whole, in order, bounded, and there although nobody closed the file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flinkplus.runtime.slot.subtasks.output_trace import RECORD, OutputRecorder, read_traces


def test_notes_of_all_incarnations_by_time(tmp_path: Path) -> None:
    first = OutputRecorder(tmp_path / "new", "count+out[1]", 1)
    other = OutputRecorder(tmp_path / "new", "a@b/c[0]", 1)
    for rows in (3, 3, 5):
        first.note(rows)
    other.note(7)
    second = OutputRecorder(tmp_path / "new", "count+out[1]", 2)
    second.note(4)
    first.close()
    traces = read_traces(tmp_path / "new")  # before the others are closed
    for recorder in (other, second):
        recorder.close()
    assert list(traces) == ["a@b/c[0]", "count+out[1]"]
    assert [rows for _, rows in traces["count+out[1]"]] == [3, 5, 4]
    times = [time_s for time_s, _ in traces["count+out[1]"]]
    assert times == sorted(times)


def test_a_torn_record_is_left_out(tmp_path: Path) -> None:
    recorder = OutputRecorder(tmp_path, "count[0]", 1)
    recorder.note(1)
    recorder.close()
    recorder.close()
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes() + RECORD.pack(1.0, 2)[:-1])
    assert [rows for _, rows in read_traces(tmp_path)["count[0]"]] == [1]
    assert read_traces(tmp_path / "nothing") == {}


def test_no_more_than_allowed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = OutputRecorder(tmp_path, "count[0]", 1, max_records=2)
    with caplog.at_level(logging.WARNING):
        for rows in range(1, 6):
            recorder.note(rows)
    recorder.close()
    recorder.note(9)
    assert [rows for _, rows in read_traces(tmp_path)["count[0]"]] == [1, 2]
    assert [record.getMessage().endswith("is full: later rows are not recorded") for record in caplog.records] == [True]
