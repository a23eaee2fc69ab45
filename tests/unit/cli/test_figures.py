"""Figures in files: written whole, and found writable without a trace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from flinkplus.cli.figures import check_json, write_json
from flinkplus.errors import ConfigurationError


def test_a_check_leaves_nothing_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "new" / "figures.json"
    seen: list[bool] = []
    touch = Path.touch

    def watched(path: Path) -> None:
        touch(path)
        seen.append(target.exists())

    monkeypatch.setattr(Path, "touch", watched)
    check_json(target)
    assert seen == [False] and list(target.parent.iterdir()) == []


def test_what_is_there_stays_until_the_new_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "figures.json"
    target.write_text("old")
    check_json(target)
    assert target.read_text() == "old"
    with pytest.raises(TypeError):
        write_json(target, {"not": object()})
    assert target.read_text() == "old"
    write_json(target, {"words": 3})
    assert json.loads(target.read_text()) == {"words": 3}
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("path", ["/proc/no.json", "/"])
def test_what_cannot_be_written_is_said_at_once(path: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot write --json"):
        check_json(path)


def test_pipes_and_links_are_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("")
    link.symlink_to(target)
    write_json(link, {"a": 1})
    assert link.is_symlink() and json.loads(target.read_text()) == {"a": 1}
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_json(pipe)
        write_json(pipe, {"b": 2})
        assert json.loads(os.read(reader, 100)) == {"b": 2}
    finally:
        os.close(reader)
    assert pipe.is_fifo()
