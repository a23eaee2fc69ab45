"""What tables show of others' names and messages, and how they fit: nothing is markup, and nothing is cut."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from experiments.harness.console import bar, show
from flinkplus.cli import tables
from flinkplus.cli.status import failover_table, slot_table, subtask_table
from flinkplus.cli.status import tables as all_tables
from flinkplus.cli.wordcount import print_summary
from flinkplus.runtime.coordinator.record.status import SlotStatus, Status, SubtaskStatus
from tests.unit.cli.test_operations import CHECKPOINT, RECOVERY, STATUS

NAMES = [f"read_events+parse_events+keep_the_good_ones[{index}]" for index in range(4)]


def shown(thing: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(thing)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "reason",
    [
        "ValueError: cannot read [/data/in]",
        "FileNotFoundError: [Errno 2] No such file: 'x'",
        "KeyError: [red]",
        "it is :warning: here",
    ],
)
def test_what_others_say_is_no_markup(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reason in shown(failover_table([{**RECOVERY, "reason": reason}]), 250)
    job = {**STATUS["job"], "name": reason, "host": reason}
    metrics = {**STATUS["metrics"], "zookeeper": reason}
    slots = [{**STATUS["slots"][0], "host": reason}]
    chains = [{**STATUS["chains"][0], "subtask": reason}]
    checkpoints = [{**CHECKPOINT, "reason": reason}]
    status = {**STATUS, "job": job, "metrics": metrics, "slots": slots, "chains": chains, "checkpoints": checkpoints}
    assert shown(all_tables(Status.from_json(status)), 250).count(reason) == 6
    show(reason)
    with bar(1, reason) as progress:
        progress.say(reason)
    told = capsys.readouterr()
    assert reason in told.out and reason in told.err


def test_a_word_of_the_input_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = dict.fromkeys(
        ("words", "output_rows", "distinct_words", "elapsed_s", "words_per_s", "invalid_lines", "wrong_words"), 1
    )
    words = {"matches_batch": False, "example_of_wrong_word": "[/b]", "batch_words": 1}
    print_summary({**numbers, **words, "checkpoints": [], "recoveries": []})
    assert "such as '[/b]'" in capsys.readouterr().out


def test_what_others_say_gives_the_terminal_no_orders() -> None:
    told = shown(failover_table([{**RECOVERY, "reason": "a\x1b[2Jb\x07c\td\ud800\u202e"}]), 250)
    assert "\x1b" not in told and r"a\u001b[2Jb\u0007c d\ud800\u202e" in told


def test_an_emoji_in_a_list_of_runs_stays_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    show("no :heart: here")
    assert capsys.readouterr().out == "no :heart: here\n"


def subtasks() -> list[dict[str, Any]]:
    return [{**STATUS["subtasks"][0], "subtask": name, "rows_in": 1_234_567} for name in NAMES]


def read(documents: list[dict[str, Any]]) -> list[SubtaskStatus]:
    return [SubtaskStatus.from_json(document) for document in documents]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_names_and_numbers_are_whole_at_any_width(width: int) -> None:
    text = shown(subtask_table(read(subtasks())), width)
    for name in (*NAMES, "1,234,567", "spill volume full", "generation"):
        assert name in text, name
    assert max(map(len, text.splitlines())) <= width
    assert "\u2026" not in text


def test_what_does_not_fit_goes_on_below_with_its_keys_again() -> None:
    narrow, wide = (shown(subtask_table(read(subtasks())), width) for width in (80, 200))
    assert wide.count(NAMES[0]) == 1 and narrow.count(NAMES[0]) > 1
    assert narrow.count("Subtasks") == 1, "one title"


def test_a_key_that_is_wider_than_the_terminal_is_folded() -> None:
    name = "x" * 100 + "[7]"
    text = shown(subtask_table(read([{**STATUS["subtasks"][0], "subtask": name}])), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "[7]" in text and text.count("x") >= 100


def test_all_of_the_status_is_there_at_eighty_columns() -> None:
    long = {**RECOVERY, "reason": "InjectedFailure: " + " ".join(f"word{number}" for number in range(60))}
    text = shown(all_tables(Status.from_json({**STATUS, "subtasks": subtasks(), "recoveries": [long]})), 80)
    words = ("slot-0", "worker-1", "working", "standby", "recovery", "2.2", "in flight", "duration", "word59", "4711")
    assert [word for word in words if word not in text] == []
    assert max(map(len, text.splitlines())) <= 80


def test_the_number_of_a_process_has_no_separators() -> None:
    text = shown(slot_table([SlotStatus.from_json({**STATUS["slots"][0], "pid": 1_234_567})]), 120)
    assert "1234567" in text and "1,234,567" not in text


def test_a_slot_that_is_away_has_no_process() -> None:
    away = {**STATUS["slots"][0], "state": "away", "host": None, "pid": None, "heard_ms": None}
    assert "None" not in shown(slot_table([SlotStatus.from_json(away)]), 120)


def test_a_pipe_is_wide_enough(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    tables.console().print("x" * 100)
    assert capsys.readouterr().out == "x" * 100 + "\n"
    monkeypatch.setenv("COLUMNS", "200")
    assert tables.console().width == 200


def test_a_line_has_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        tables.Table("t", ("a",), ("b",)).add_row("x")
