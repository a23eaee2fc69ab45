"""A text of the user's, as exactly so many words."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from experiments.harness.running import Context, input_of
from experiments.harness.text import WORDS_PER_LINE, check_text, words_of, write_text
from experiments.overhead import OverheadSettings
from flinkplus.errors import ConfigurationError

TEXT = b"One two\xe2\x80\xa8three\r\n\n \t four\xc2\xa0\xff five"
"""With Unicode's line separator and blank, and a byte that is not UTF-8."""
WORDS = ["One", "two", "three", "four", "\ufffd", "five"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "mine"
    path.write_bytes(TEXT)
    return path


def test_words_are_those_that_python_splits(source: Path) -> None:
    assert list(words_of(source)) == WORDS
    text = source.read_bytes().decode("utf-8", "replace")
    assert list(words_of(source)) == text.split()


@pytest.mark.parametrize("words", [1, 6, 7, 10, 20, 23])
def test_a_text_of_exactly_so_many_words(source: Path, tmp_path: Path, words: int) -> None:
    target = tmp_path / "text"
    write_text(source, target, words)
    lines = target.read_text("utf-8").split("\n")
    found = [line.split(" ") for line in lines[:-1]]
    assert lines[-1] == "" and list(chain.from_iterable(found)) == (WORDS * 4)[:words]
    assert [len(line) for line in found[:-1]] == [WORDS_PER_LINE] * (len(found) - 1)


def test_the_runs_of_an_experiment_read_it(source: Path, tmp_path: Path) -> None:
    context = Context(None, OverheadSettings(input=str(source)), tmp_path)
    assert len(context.text(25).read_text("utf-8").split()) == 25
    assert context.text(25) == context.text(25) != context.text(24)
    made_up = Context(None, OverheadSettings(), tmp_path)
    assert input_of(made_up.settings) is None and len(made_up.text(25).read_text().split()) == 25
    assert made_up.text(25) != context.text(25)


def test_a_text_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "blank").write_text(" \n\t\n")
    for name, reason in (("blank", "has no words"), ("none", "No such file"), (".", "Is a directory")):
        with pytest.raises(ConfigurationError, match=reason):
            check_text(tmp_path / name)
