"""Answers in files: the same for every reader, whole or refused, and never replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from flinkplus.errors import AnswersLost
from flinkplus.operators.calls.stored import AnswerFiles, Answers, numbers_after

SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False), ("n", pa.list_(pa.int64()))])
ROWS = pa.record_batch([pa.array(["a", "b"]), pa.array([[1, 2], None], pa.list_(pa.int64()))], schema=SCHEMA)
ANSWERS = Answers((4, 9, 5), ROWS, {1: "ValueError: no"})


def test_what_is_read_is_what_was_stored(tmp_path: Path) -> None:
    files = AnswerFiles(str(tmp_path), "ask", 2)
    assert files.list() == 0
    assert files.create(1, ANSWERS.to_bytes())
    assert AnswerFiles(str(tmp_path), "ask", 2).read(1, SCHEMA) == ANSWERS
    assert (tmp_path / "answers/ask/2/000000000001.answers").exists()


def test_answers_without_rows_or_errors() -> None:
    for answers in (Answers((1,), ROWS.slice(0, 0), {0: "x"}), Answers((1, 2), ROWS)):
        assert Answers.from_bytes(answers.to_bytes(), SCHEMA) == answers


def test_a_number_that_was_used_stays_what_it_is(tmp_path: Path) -> None:
    mine, other = (AnswerFiles(str(tmp_path), "ask", 0) for _ in range(2))
    assert other.create(1, ANSWERS.to_bytes())
    assert not mine.create(1, Answers((1,), ROWS.slice(0, 1)).to_bytes())
    assert mine.create(2, Answers((1,), ROWS.slice(0, 1)).to_bytes())
    assert mine.read(1, SCHEMA) == ANSWERS
    assert other.create(1, ANSWERS.to_bytes()), "it was done before, and is tried again after an error"
    mine.remove(2)
    assert not list(tmp_path.rglob("*.answers")), "also what another one has stored meanwhile"


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:40], lambda data: b"", lambda data: data[:60] + b"x" + data[61:]],
)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    files = AnswerFiles(str(tmp_path), "ask", 0)
    files.create(3, damage(ANSWERS.to_bytes()))
    with pytest.raises(AnswersLost, match=r"'ask'.*000000000003\.answers.*damaged"):
        files.read(3, SCHEMA)


def test_answers_of_another_schema_are_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        Answers.from_bytes(ANSWERS.to_bytes(), pa.schema([("name", pa.string())]))


def test_what_a_checkpoint_covers_is_removed_also_what_a_predecessor_has_left(tmp_path: Path) -> None:
    before = AnswerFiles(str(tmp_path), "ask", 0)
    for number in (1, 2, 4):
        before.create(number, ANSWERS.to_bytes())
    files = AnswerFiles(str(tmp_path), "ask", 0)
    assert files.list() == 4
    files.create(5, ANSWERS.to_bytes())
    assert files.holds(2) and not files.holds(0)
    files.remove(2)
    assert sorted(path.name for path in tmp_path.rglob("*.answers")) == ["000000000004.answers", "000000000005.answers"]
    assert not files.holds(2)


def test_what_a_predecessor_was_writing_is_removed(tmp_path: Path) -> None:
    files = AnswerFiles(str(tmp_path), "ask", 0)
    files.create(1, ANSWERS.to_bytes())
    (tmp_path / "answers/ask/0/000000000002.answers.0123456789abcdef.tmp").write_bytes(b"half of it")
    assert files.list() == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["000000000001.answers"]


def test_what_subtasks_have_left_that_there_are_no_more_is_removed(tmp_path: Path) -> None:
    for index in range(3):
        AnswerFiles(str(tmp_path), "ask", index).create(1, ANSWERS.to_bytes())
    AnswerFiles(str(tmp_path), "other", 2).create(1, ANSWERS.to_bytes())
    AnswerFiles(str(tmp_path), "ask", 0).remove_beyond(2)
    left = sorted(str(path.parent.relative_to(tmp_path / "answers")) for path in tmp_path.rglob("*.answers"))
    assert left == ["ask/0", "ask/1", "other/2"]


def test_choices_are_distances() -> None:
    assert numbers_after(7, [1, 1, 4]) == [8, 9, 13]
