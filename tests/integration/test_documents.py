"""The programs and commands of README.md and docs/ are run, word for word, in a directory that has what they name.

All of them share the tests' Spark session. What is not run stands in ``NOT_RUN``, with the reason; it is checked as far
as it can be: that programs compile and name what exists, and that the arguments of commands are understood.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from experiments.cluster.namespaces import Cluster
from flinkplus import StreamEnvironment
from flinkplus.cli import main, session
from flinkplus.corpus import write_corpus
from tests.documents import ROOT, Block, Command, all_blocks, blocks_of, commands_of
from tests.integration.conftest import PATIENCE_S, assert_exact, expected_counts
from tests.typed import typed_here

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BLOCKS = all_blocks()
PROGRAMS = [block for block in BLOCKS if block.language == "python"]
SHELL = [block for block in BLOCKS if block.language == "sh"]
COMMANDS = [command for block in SHELL for command in commands_of(block)]
CHECKED_ELSEWHERE = {
    "mermaid": "tests/diagrams",
    "text": "an excerpt of a log: tests/unit/runtime/base/test_logs.py",
    "yaml": "what Prometheus scrapes: tests/integration/test_page.py",
    "sql": "queries for DuckDB: tests/unit/experiments/test_nexmark.py",
    "layout": "what a directory or a frame holds: tests/unit/test_formats.py",
}
LANGUAGES = {"python", "sh", "json", "ini", *CHECKED_ELSEWHERE}

NOT_RUN = {
    # programs, by a part of their text
    "Cluster(workers=4)": "needs root and network namespaces: tests/integration/test_cluster.py",
    '.format("flinkplus-state")': "needs a checkpoint directory: tests/integration/test_state_data.py",
    "Tail((": "needs the block before it: tests/integration/test_live_sources.py runs both, and kills slots",
    "Appended, options": "needs a file that grows: tests/integration/test_data_sources.py runs it, and kills slots",
    ") -> Stream:": "needs events: tests/integration/test_nexmark.py runs each query",
    "GrowingFiles, options": "needs files that grow: tests/integration/test_stream_readers.py runs it, and kills slots",
    "kafka.example": "needs a broker: tests/integration/test_kafka_jobs.py and test_kafka_sink.py run it with one",
    "db.example": "needs a database: tests/integration/test_postgres_jobs.py runs it with one",
    # commands, by how they begin, without the path of the program
    "python3 -m venv": "sets up an environment: tests/integration/test_installed.py",
    "env/bin/pip install": "sets up an environment: tests/integration/test_installed.py",
    ". env/bin/activate": "sets up a shell",
    "mkdir books": "the directory is there",
    "make ": "setting up, or minutes of tests and measurements",
    "python -m tests.simulation": "minutes: tests/simulation/test_simulation.py runs seeds",
    "python -m experiments.bench": "minutes of measurements",
    "docker compose": "needs Docker",
    "mkdir -p results/cluster": "belongs to the commands for Docker",
    "flinkplus experiment": "minutes each: tests/integration/test_experiment.py",
    "flinkplus wordcount --repeat 100": "six million words: tests/integration/test_cli.py runs the text once",
    "flinkplus resume": "needs a driver that died: tests/integration/test_cli.py",
    "flinkplus supervise": "needs a driver that dies: tests/integration/test_supervise.py",
    "flinkplus checkpoints": "needs a checkpoint directory: tests/unit/cli/test_checkpoints.py",
    "flinkplus state": "needs a checkpoint directory: tests/unit/cli/test_state.py",
    "flinkplus savepoint": "needs a running job: tests/integration/test_savepoints.py",
    "printf": "needs a running job: tests/integration/test_operations.py",
    "flinkplus ui": "needs a running job: tests/integration/test_operations.py",
    "curl ": "needs a running job: tests/integration/test_operations.py",
    "flinkplus status": "needs a running job: tests/integration/test_operations.py",
    "flinkplus check-upgrade": "needs a program: tests/unit/cli/test_check_upgrade.py",
    "flinkplus migrate": "needs a running job: tests/integration/test_moves.py",
    "flinkplus drain": "needs a running job: tests/integration/test_moves.py",
    "flinkplus undrain": "needs a running job: tests/integration/test_moves.py",
    "flinkplus scale": "needs a running job: tests/integration/test_moves.py",
    "flinkplus rescale": "needs a running job: tests/integration/test_rescaling.py",
    "flinkplus inject": "needs a running job: tests/integration/test_operations.py",
}


def spelled(command: Command) -> str:
    words = (command.words[0].removeprefix(".venv/bin/"), *command.words[1:])
    return " ".join(words)


def why_not(command: Command) -> str | None:
    found = [key for key in NOT_RUN if spelled(command).startswith(key)]
    return NOT_RUN[max(found, key=len)] if found else None


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of a documented program: Python's, and that of Spark's Java process."""
    (tmp_path / "books").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert spark._jvm is not None and spark.sparkContext._jsc is not None
    hadoop = spark._jvm.org.apache.hadoop.fs
    files, system = hadoop.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration()), spark._jvm.java.lang.System
    before, user_dir = files.getWorkingDirectory(), system.getProperty("user.dir")
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    system.setProperty("user.dir", str(tmp_path))
    yield tmp_path
    files.setWorkingDirectory(before)
    system.setProperty("user.dir", user_dir)


def outputs_of(program: str) -> list[str]:
    return re.findall(r"\.to_(?:parquet|text)\(\s*\"([^\"]+)\"", program)


LONGER = (
    "docs/command-line.md, sh 2",
    "docs/sources.md, python 2",
    "docs/ui.md, python 1",
    "docs/tutorial.md, python 1",
    "docs/tutorial.md, python 3",
    *(f"docs/operators.md, python {number}" for number in (2, 3, 4, 5, 7, 8, 9, 10, 11, 12)),
)
"""Programs that the long check runs: other tests show what they use."""


def block_or_long(block: Block) -> Any:
    return pytest.param(block, marks=pytest.mark.long) if str(block) in LONGER else block


@pytest.mark.parametrize("block", [block_or_long(block) for block in PROGRAMS], ids=str)
def test_a_program(spark: SparkSession, place: Path, block: Block) -> None:
    program = compile(block.text, str(block), "exec")
    if any(part in block.text for part in NOT_RUN):
        return
    write_corpus("books/zipf.txt", words=20_000, vocabulary=1_000, seed=5)
    around: dict[str, Any] = {"__name__": "__main__", "spark": spark, "StreamEnvironment": StreamEnvironment}
    exec(program, around)
    env = around.get("env")
    if isinstance(env, StreamEnvironment) and not env._executed:  # it only draws
        with env.execute("documented") as job:
            job.await_finish(120)
    for name in outputs_of(block.text):
        assert list((place / name).rglob("part-*")), f"nothing in {name}"
        if "word" in name or "count" in name:
            assert_exact(place / name, expected_counts(place / "books/zipf.txt"))


def test_the_operator_that_is_shown(spark: SparkSession) -> None:
    """What docs/add-an-operator.md makes is used as an operator, on Spark."""
    (block,) = (block for block in PROGRAMS if block.page == "docs/add-an-operator.md")
    around: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block.text, str(block), "exec"), around)
    env = StreamEnvironment(spark, parallelism=2)
    rows = env.generate(lambda i: (f"k{i % 7}", float(i * 37 % 101)), schema="k string, v double", count=500)
    rows.key_by("k")._then(around["Max"]("max", ("k",), "v")).collect(name="out")
    with env.execute("max") as job:
        job.await_finish(PATIENCE_S)
    table = job.collected("out")
    assert table.num_rows == 500 and table.schema.field("max").type == pa.float64()
    running: dict[str, list[float]] = {}
    for row in table.to_pylist():
        running.setdefault(row["k"], []).append(row["max"])
    for k in range(7):
        values = [float(i * 37 % 101) for i in range(k, 500, 7)]
        assert len(running[f"k{k}"]) == len(values) and max(running[f"k{k}"]) == max(values)
        assert set(running[f"k{k}"]) <= set(values)


def test_what_is_not_run_names_what_exists() -> None:
    """The program for a cluster calls methods that a cluster has."""
    (block,) = (block for block in PROGRAMS if "Cluster(workers=4)" in block.text)
    called = {
        node.attr
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cluster"
    }
    assert {"kill", "cut", "heal"} <= called
    assert [name for name in called if not hasattr(Cluster, name)] == []


# --- commands


def help_of(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What ``python -m module --help`` prints."""
    found = importlib.import_module(module)
    entry = importlib.import_module(f"{module}.__main__") if hasattr(found, "__path__") else found
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with contextlib.suppress(SystemExit):
        entry.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_is_understood(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is run or not: the program exists, and so do its options."""
    program, options = command.words[0], re.findall(r"--[a-z-]+", command.line.partition(" #")[0])
    if command.synopsis:
        with contextlib.suppress(SystemExit):
            assert command.arguments is not None
            main.parser().parse_args([command.arguments[0], "--help"])
        shown = capsys.readouterr().out
        assert [option for option in options if option not in shown] == []
    elif command.arguments is not None:
        main.parser().parse_args(command.arguments)  # SystemExit when it does not understand
    elif program == "make":
        assert f"\n{command.words[1]}:" in (ROOT / "Makefile").read_text()
    elif program.endswith("python"):
        assert command.words[1] == "-m"
        shown = help_of(command.words[2], monkeypatch, capsys)
        assert [option for option in options if option not in shown] == []
    else:
        assert why_not(command), f"{program} is neither known nor said to be not run"


@pytest.mark.parametrize("block", [block_or_long(b) for b in SHELL if not all(map(why_not, commands_of(b)))], ids=str)
def test_commands(
    spark: SparkSession,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    block: Block,
) -> None:
    """The commands of a block, one after the other, in this process, with the session that is here."""

    @contextlib.contextmanager
    def shared(*_arguments: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "session", shared)
    write_corpus("books/zipf.txt", words=450_000, vocabulary=5_000, seed=5)  # more than what is killed after 4 s
    with typed_here(capsys) as run:
        for command in commands_of(block):
            if command.synopsis or why_not(command):
                continue
            assert command.arguments is not None
            code, out, err = run(*command.arguments)
            assert code == 0, f"{command}: {out[-2000:]} {err[-2000:]}"
            assert "did not happen" not in err


# --- the list itself


def test_every_block_is_of_a_language_that_is_checked() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    for block in BLOCKS:
        if block.language == "json":
            for line in block.text.splitlines():
                json.loads(line)
        elif block.language == "ini":
            configparser.ConfigParser(interpolation=None).read_string(block.text)
    assert len(PROGRAMS) >= 5 and len(COMMANDS) >= 50, "the pages are not found"


def test_the_list_of_what_is_not_run_is_not_stale() -> None:
    texts = [*map(spelled, COMMANDS), *(block.text for block in PROGRAMS)]
    assert [key for key in NOT_RUN if not any(key in text for text in texts)] == []
    for reason in (*NOT_RUN.values(), *CHECKED_ELSEWHERE.values()):
        for path in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / path).exists(), reason


def test_blocks_and_commands_are_found() -> None:
    page = "a\n```sh\nflinkplus a 'b # c' \\\n  --d # e\n# f\nsudo make x\n```\n\n```python\nx = 1\n```\n```sh\n"
    page += "until flinkplus z --y; do sleep 5; done\n```\n"
    first, program, second = blocks_of("p", page)
    assert (str(first), program.text, str(second)) == ("p, sh 1", "x = 1\n", "p, sh 2")
    assert [command.words for command in commands_of(first)] == [
        ("flinkplus", "a", "b # c", "--d"),
        ("make", "x"),
    ]
    assert commands_of(second)[0].arguments == ("z", "--y")
