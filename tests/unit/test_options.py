"""Options are declared once: their page and the help of the command line are made from there."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from flinkplus.cli import main
from flinkplus.config import TYPES, Options
from flinkplus.option_rules import help_of, texts
from tests import options_page

TEXTS = {name: text for group in Options.__bases__ for name, text in texts(group).items()}


def test_the_page_is_what_the_options_say() -> None:
    page = options_page.PAGE.read_text("utf-8")
    assert options_page.written(page) == page, "make options writes it"
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [
        field.name for group in Options.__bases__ for field in dataclasses.fields(group)
    ]


def test_another_text_or_default_is_another_page(monkeypatch: pytest.MonkeyPatch) -> None:
    (field,) = (field for field in dataclasses.fields(Options) if field.name == "window")
    page = options_page.PAGE.read_text("utf-8")
    monkeypatch.setattr(field, "default", 17)
    assert options_page.written(page) != page


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="generated: begin"):
        options_page.written("# Options\n")


@pytest.mark.parametrize("field", dataclasses.fields(Options), ids=lambda field: field.name)
def test_an_option_has_a_text_and_a_rule_that_its_default_keeps(field: dataclasses.Field[Any]) -> None:
    text = TEXTS[field.name]
    assert help_of(text) and "|" not in text and text.endswith(".")
    assert field.default is None or field.metadata["rule"].allows(field.default)
    assert not field.metadata["rule"].allows(object() if TYPES[field.name] != tuple[str, ...] else "text")


def test_the_command_line_has_the_texts_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parser().parse_args(["wordcount", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for field in dataclasses.fields(Options):
        if f"--{field.name.replace('_', '-')} " in shown and field.name not in ("tls",):
            assert help_of(TEXTS[field.name]) in shown, field.name
    assert "Number of copies of each subtask's state, the active one included (default: 3)" in shown
