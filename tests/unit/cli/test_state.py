"""``flinkplus state``: a table for people, JSON lines for programs, exit codes, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flinkplus.operators.base.operator import KeyedOperator
from flinkplus.operators.keyed.keyed import Count
from flinkplus.operators.keyed.keyed_rows import Process
from tests.typed import Command, typed_here
from tests.unit.runtime.job.reading.kept import KeptVertex

SCHEMA = pa.schema([("word", pa.string()), ("ts", pa.int64())])
WORDS = ["the", "a\x1b[31m", "the", "ü"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    with typed_here(capsys) as run:
        yield run


def stored(operator: KeyedOperator, folder: Path) -> str:
    vertex = KeptVertex(operator, SCHEMA, folder, 2)
    vertex.feed(pa.RecordBatch.from_pylist([{"word": word, "ts": 5} for word in WORDS], schema=SCHEMA))
    vertex.store()
    vertex.close()
    return str(vertex.directory)


def test_a_table(run: Command, tmp_path: Path) -> None:
    directory = stored(Count("count", ("word",)), tmp_path)
    code, out, err = run("state", directory, "--trust")
    assert (code, err) == (0, "") and "\x1b" not in out
    for text in ("job: state of checkpoint 2", '{"word": "the"}', '{"count": 2}', "count+out[", "a\\u001b[31m", "ü"):
        assert text in out
    assert "timer" not in out and "more rows" not in out
    code, out, err = run("state", directory, "--trust", "--limit", "2")
    assert code == 0 and "there are more rows" in out
    code, out, err = run("state", directory, "--trust", "--key", "the")
    assert code == 0 and "the" in out and "ü" not in out
    code, out, err = run("state", directory, "--trust", "--key", "none such")
    assert code == 0 and "no such key" in out


def test_json_lines(run: Command, tmp_path: Path) -> None:
    def function(key: str, row: object, ctx: object) -> None:
        ctx.event_timer(1_500)  # type: ignore[attr-defined]
        ctx.state("seen").put({"key": key})  # type: ignore[attr-defined]

    directory = stored(Process("p", ("word",), function, "word string", lambda *_: None), tmp_path)
    code, out, err = run("state", directory, "--trust", "--json", "--operator", "p", "--key", "the")
    value, timer = map(json.loads, out.splitlines())
    assert (code, err) == (0, "") and "\x1b" not in out
    assert (value["kind"], value["state"], value["value"]) == ("value", "seen", {"key": "the"})
    assert (timer["kind"], timer["value"], timer["timer"]) == ("timer", None, "1970-01-01 00:00:01.500000Z")
    assert value["key"] == timer["key"] == {"word": "the"} and value["checkpoint"] == 2
    code, out, err = run("state", directory, "--trust", "--json", "--limit", "1")
    assert len(out.splitlines()) == 1


def test_errors_are_one_line(run: Command, tmp_path: Path) -> None:
    directory = stored(Count("count", ("ts",)), tmp_path)
    for arguments, message in (
        ((str(tmp_path / "nowhere"),), "holds no job"),
        ((directory, "--trust", "--operator", "conut"), "the operators with state are: count; did you mean 'count'?"),
        ((directory, "--trust", "--key", "x"), "cannot be read as that"),
        ((directory, "--trust", "--checkpoint", "9"), "has no checkpoint 9"),
        ((directory,), "--trust"),
    ):
        code, out, err = run("state", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1) and message in err
