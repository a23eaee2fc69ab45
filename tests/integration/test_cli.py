"""The ``flinkplus`` command as a user runs it: what it prints, writes, returns, and leaves behind."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus.cli.wordcount import WordCount, run_wordcount
from flinkplus.corpus import demo_lines
from flinkplus.errors import NoRunningJob
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.operations.access_file import access_of
from tests.integration.conftest import assert_exact, expected_counts
from tests.integration.programs import Program, cli, program
from tests.typed import Command

pytestmark = pytest.mark.integration

PROGRESS = re.compile(
    r"(starting|deploying|running|interrupted|stopping|finished|failed|cancelled) +[\d.]+ s \|"
    r" +[\d,]+ words \| +[\d,]+ words/s \| "
    r"checkpoint (-|\d+) \| state [\d,]+ keys [\d.]+ MB \| restarts \d+ *"
)
PAGE = re.compile(r"job [\w-]+: http://127\.0\.0\.1:\d+/")
OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
WORDS = 60_000


def own_errors(text: str) -> list[str]:
    """Lines on stderr that are neither progress nor the address of the job's page."""
    return [line for line in text.splitlines() if not PROGRESS.fullmatch(line) and not PAGE.fullmatch(line)]


def committed(out: Path) -> list[Path]:
    return list(out.glob("part-*.parquet")) if out.is_dir() else []


def assert_gapless(out: Path) -> None:
    """Whatever is visible: (word, 1) ... (word, n) for some n of each word, each once."""
    table = pq.read_table(out)
    pairs = Counter(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True))
    words = Counter(word for word, _ in pairs)
    assert words and max(pairs.values()) == 1
    assert all(count <= words[word] for word, count in pairs)


# --- runs that finish


@pytest.mark.slow
@pytest.mark.long
def test_a_run_with_a_kill_tells_every_figure(corpus: Path, tmp_path: Path) -> None:
    out, figures = tmp_path / "out", tmp_path / "deep" / "figures.json"
    arguments = ["--output", out, "--parallelism", 2, "--rate", 30_000, "--checkpoint-interval", 0.3]
    command = cli("wordcount", corpus, *arguments, "--kill", "count:1@1", "--json", figures)
    with program(command, tmp_path, env={"FLINKPLUS_LOG": "json"}) as run:
        assert run.wait() == 0, run.err
        run.assert_nothing_left()
    assert_exact(out, expected_counts(corpus))
    result = json.loads(figures.read_text())
    assert result["words"] == result["output_rows"] == result["batch_words"] == WORDS
    assert result["matches_batch"] is True
    assert result["elapsed_s"] > 1.9
    assert result["words_per_s"] == pytest.approx(WORDS / result["elapsed_s"], rel=0.01)
    complete = [c for c in result["checkpoints"] if c["status"] == "complete"]
    assert len(complete) >= 3 and complete[-1]["final"]
    assert all(c["duration_ms"] >= 0 and c["bytes_total"] > 0 and c["keys"] > 0 for c in complete)
    assert all(0 <= c["trigger_ms"] <= c["durable_ms"] <= c["duration_ms"] + 1 and c["sync_ms"] > 0 for c in complete)
    assert any(c["alignment_ms"] > 0 for c in complete) and any(c["chain_ms"] is not None for c in complete)
    assert 0 < result["determinant_share"] < 0.02 and result["message_ids"]["asked"] > 0
    recovery = result["recoveries"][0]  # on a busy machine a process that does not run for 0.4 s is one more
    assert (recovery["mode"], recovery["failure"], recovery["fallback"]) == ("standby", "slot", None)
    assert sorted(recovery["subtasks"]) == ["count+out[1]", "lines+tokenize[1]"]
    phases = [recovery[f"{phase}_ms"] for phase in DURATIONS]
    assert all(phase >= 0 for phase in phases)
    assert sum(phases) == pytest.approx(recovery["recovery_ms"], abs=1)
    assert "equal to the Spark SQL batch count (60,000 words)" in run.out
    assert "standby" in run.out
    assert_logged([json.loads(line) for line in own_errors(run.err)])
    assert any(PROGRESS.fullmatch(line) for line in run.err.splitlines()), "no progress line"


def assert_logged(records: list[dict[str, Any]]) -> None:
    """What driver and slots have logged of one job with one failover, of slot 1."""
    assert len({record["job"] for record in records}) == 1, [r for r in records if r["job"] is None]
    phases = [record["phase"] for record in records if record["message"].startswith("failover 1, ")]
    assert phases == ["detect", "fence", "promote", "restore", "replay"]
    (fence,) = [record for record in records if record["phase"] == "fence" and "failover 1" in record["message"]]
    assert fence["subtask"] == "count+out[1], lines+tokenize[1]" and fence["slot"] is None
    begun = [record for record in records if record["message"].startswith("promoted subtask starts from version")]
    assert [(one["slot"], one["subtask"]) for one in begun[:2]] == [(0, "count+out[1]"), (0, "lines+tokenize[1]")]
    assert all(one["generation"] == fence["generation"] and one["logger"] == "flinkplus.slot" for one in begun[:2])
    assert any(record["message"].startswith("slot 1 lost: ") for record in records if record["slot"] == 1)


def test_without_input_and_without_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    result = run_wordcount(spark, WordCount(options={"parallelism": 2}))
    assert result["words"] == result["output_rows"] == sum(len(line.split()) for line in demo_lines())
    assert result["matches_batch"] is None
    assert result["distinct_words"] == len({word for line in demo_lines() for word in line.lower().split()})
    assert PROGRESS.match(capsys.readouterr().err)


@pytest.mark.parametrize("pattern", ["books/*.txt"])
def test_a_directory_and_a_glob(spark: SparkSession, corpus: Path, tmp_path: Path, pattern: str) -> None:
    books = tmp_path / "books"
    books.mkdir()
    lines = corpus.read_text().splitlines(keepends=True)[:1_000]
    (books / "a [1].txt").write_text("".join(lines[:300]))  # characters that mean something to Spark, but not here
    (books / "b.txt").write_text("".join(lines[300:]) + "caf\u00e9 CAF\u00c9")
    (books / "_hidden.txt").write_text("not to be read")
    run = WordCount(str(tmp_path / pattern), str(tmp_path / "out"), repeat=2, options={"parallelism": 3})
    result = run_wordcount(spark, run, progress=False)
    assert result["matches_batch"] is True, result
    assert result["words"] == 2 * (10_000 + 2)


def test_a_kill_that_comes_too_late_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flinkplus.cli.wordcount import parse_kill

    (tmp_path / "in.txt").write_text("a few words")
    result = run_wordcount(spark, WordCount(str(tmp_path / "in.txt"), kills=(parse_kill("count:0@3600"),)), False)
    assert result["words"] == 3
    assert "kill count:0@3600.0 did not happen: the job was over before" in capsys.readouterr().err


# --- wrong usage: no Spark is started for it


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["wordcuont"], "invalid choice: 'wordcuont'"),
        (["wordcount", "IN", "--parallelism", "0"], "--parallelism: 0 is not a whole number of at least 1"),
        (["wordcount", "IN", "--parallelism", "two"], "--parallelism: "),
        (["wordcount", "IN", "--parallelism", "5000"], "parallelism must be a whole number from 1 to 1024, not 5000"),
        (["wordcount", "IN", "--rate", "-5"], "--rate: -5 is not a positive number"),
        (["wordcount", "IN", "--repeat", "0"], "--repeat: 0 is not a whole number of at least 1"),
        (["wordcount", "IN", "--checkpoint-interval", "nan"], "--checkpoint-interval: nan is not a positive number"),
        (["wordcount", "IN", "--checkpoint-interval", "0.001"], "checkpoint_interval must be a number of seconds of"),
        (["wordcount", "IN", "--recovery", "magic"], "--recovery: invalid choice: 'magic'"),
        (["wordcount", "IN", "--max-restarts", "-1"], "max_restarts must be a whole number from 0"),
        (["wordcount", "IN", "--paralelism", "2"], "unrecognized arguments: --paralelism 2"),
        (["wordcount", "IN", "--kill", "count:1"], "--kill: 'count:1' is not SUBTASK@SECONDS, such as count:1@4"),
        (["wordcount", "IN", "--kill", "count:1@soon"], "--kill: 'count:1@soon' is not SUBTASK@SECONDS"),
        (["wordcount", "IN", "--kill", "count@4"], "'count' is not a subtask; write OPERATOR:INDEX, such as count:1"),
        (["wordcount", "IN", "--kill", "cuont:1@4"], "no operator is called 'cuont'; the operators are: lines, tok"),
        (["wordcount", "IN", "--kill", "count:2@4"], "'count:2': 'count' has subtasks 0 to 1"),
        (["wordcount", "missing.txt"], "no such file, and no file matches it: 'missing.txt'"),
        (["wordcount", ""], "no such file, and no file matches it: ''"),
        (["wordcount", "IN", "--output", ""], "--output is empty; give a directory"),
        (["wordcount", "IN", "--resume", "auto"], "--resume needs --checkpoint-dir"),
        (["wordcount", "IN", "--checkpoint-dir", ""], "checkpoint_dir must be a path, a URI or None, not ''"),
        (["wordcount", "IN", "--json", "/proc/no/such.json"], "cannot write --json /proc/no/such.json"),
        (["wordcount", "IN", "--json", "/"], "cannot write --json /"),
        (["wordcount", "IN", "--master", "nonsense"], "'nonsense' is not a master URL; use local[N]"),
        (["wordcount", "IN", "--master", "local[1]"], "needs 2 slots but master 'local[1]' runs 1 tasks at once; use"),
        (
            ["wordcount", "IN", "--master", "local-cluster[1,1,512]"],
            "needs 2 slots but master 'local-cluster[1,1,512]'",
        ),
        (["resume"], "the following arguments are required: CHECKPOINT_DIR"),
        (["resume", "nowhere"], "checkpoint directory 'nowhere' holds no job; check the path"),
        (["corpus", "--words", "10", "--output", "OUT"], "the following arguments are required: --vocabulary"),
        (["corpus", "--words", "0", "--vocabulary", "3", "--output", "OUT"], "0 is not a whole number of at least 1"),
        (["corpus", "--words", "10", "--vocabulary", "3", "--output", "/proc/no/such.txt"], "/proc/no/such.txt"),
    ],
)
def test_wrong_usage(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "IN").write_text("words")
    code, out, err = command(*arguments)
    assert code == 2, err
    assert out == ""
    assert message in err.splitlines()[-1]
    assert err.startswith("usage: ") or len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["IN"], "something was made"


def test_help(command: Command) -> None:
    for arguments in (["--help"], *([name, "--help"] for name in ("wordcount", "resume", "status", "inject"))):
        code, out, err = command(*arguments)
        assert (code, err) == (0, "") and out.startswith("usage: flinkplus")


def test_corpus(command: Command, tmp_path: Path) -> None:
    numbers = ["--words", 5_000, "--vocabulary", 100, "--seed", 3]
    for name in ("a.txt", "b.txt"):
        code, out, err = command("corpus", *numbers, "--output", tmp_path / name)
        assert (code, err) == (0, "")
        assert out == f"5,000 words of a vocabulary of 100 written to {tmp_path / name}\n"
    assert (tmp_path / "a.txt").read_bytes() == (tmp_path / "b.txt").read_bytes()
    counts = expected_counts(tmp_path / "a.txt")
    assert sum(counts.values()) == 5_000 and len(counts) <= 100


@pytest.mark.parametrize("java", ["absent", "too old"])
def test_java_absent_or_too_old(corpus: Path, tmp_path: Path, java: str) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    if java == "too old":
        (path / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
        (path / "java").chmod(0o755)
    with program(cli("wordcount", corpus), tmp_path, env={"PATH": str(path), "JAVA_HOME": ""}) as run:
        assert run.wait() == 2
    (line,) = run.err.splitlines()
    reason = "there is no java on the PATH" if java == "absent" else "java is 11"
    assert line.startswith("flinkplus: Spark needs Java 17 or newer, ") and reason in line
    assert "install it with: sudo apt-get install openjdk-17-jre-headless" in line


# --- runs that fail


@pytest.mark.long
def test_a_job_that_fails(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"fine\nnot \xff fine\n")
    arguments = ["--encoding-errors", "strict", "--max-restarts", 1, "--json", tmp_path / "figures.json"]
    with program(cli("wordcount", tmp_path / "bad.txt", *arguments), tmp_path) as run:
        assert run.wait() == 1
        run.assert_nothing_left()
    assert len(own_errors(run.err)) == 2, run.err
    rollback, line = own_errors(run.err)
    assert rollback.startswith("the whole job rolls back: ") and "(again, without a complete checkpoint" in rollback
    assert line.startswith("flinkplus: ") and "bad.txt' is not UTF-8 at byte 9 (0xff)" in line
    assert run.out == ""
    assert not (tmp_path / "figures.json").exists()


# --- interrupted runs


def endless(corpus: Path, out: Path, *more: object) -> list[str]:
    """A WordCount of an hour, with output after a moment."""
    numbers = ["--repeat", 10_000, "--rate", 50_000, "--checkpoint-interval", 0.2]
    return cli("wordcount", corpus, "--output", out, *numbers, *more)


def test_ctrl_c_on_a_terminal(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with program(endless(corpus, out), tmp_path, terminal=True) as run:
        run.wait_for(lambda: len(committed(out)) >= 4, "some output")
        before = run.descendants()
        assert any("java" in process.name() for process in before)
        run.type(b"\x03")
        run.type(b"\x03")  # an impatient user does not stop the cleaning up
        assert run.wait() == 130
        run.assert_nothing_left(before)
        shown = run.read_terminal()
    assert_gapless(out)
    assert not (out / "_staging").exists()
    lines = shown.replace("\r\n", "\n").split("\n")
    updates = [update for update in lines[0].split("\r") if update] + lines[1].split("\r")
    assert sum(PROGRESS.fullmatch(update.replace("^C", "")) is not None for update in updates) >= 3, shown
    assert "interrupted; the job was ended" in lines
    assert "Traceback" not in shown
    assert run.out == ""


@pytest.mark.long
def test_sigterm(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with program(endless(corpus, out, "--json", tmp_path / "figures.json"), tmp_path) as run:
        run.wait_for(lambda: committed(out), "some output")
        before = run.descendants()
        run.process.terminate()
        assert run.wait() == 130
        run.assert_nothing_left(before)
    assert own_errors(run.err) == ["interrupted; the job was ended"]
    assert_gapless(out)
    assert not (tmp_path / "figures.json").exists()


def test_interrupted_while_spark_starts(corpus: Path, tmp_path: Path) -> None:
    def java(run: Program) -> list[psutil.Process]:
        return [process for process in run.descendants() if "java" in process.name()]

    with program(endless(corpus, tmp_path / "out"), tmp_path) as run:
        run.wait_for(lambda: java(run), "a JVM")
        before = run.descendants()
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 130
        run.assert_nothing_left(before)
    assert own_errors(run.err) == ["interrupted; the job was ended"]
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.slow
def test_the_driver_killed_and_the_job_resumed(corpus: Path, tmp_path: Path) -> None:
    out, checkpoints = tmp_path / "out", tmp_path / "checkpoints"
    numbers = ["--rate", 20_000, "--checkpoint-interval", 0.2]
    arguments = cli("wordcount", corpus, "--output", out, *numbers, "--checkpoint-dir", checkpoints)
    with program(arguments, tmp_path) as run:
        run.wait_for(lambda: len(list(checkpoints.glob("checkpoints/*.json"))) >= 2, "two checkpoints")
        before = run.descendants()
        run.process.kill()
        run.assert_nothing_left(before)
    assert_gapless(out)
    with pytest.raises(NoRunningJob, match=r"the job on the checkpoint directory .* has ended"):
        access_of(str(checkpoints))
    with program(cli("resume", checkpoints, "--json", tmp_path / "figures.json"), tmp_path) as again:
        assert again.wait() == 0, again.err
        again.assert_nothing_left()
    assert_exact(out, expected_counts(corpus))
    assert re.match(r"resumed job 'wordcount' from checkpoint \d+\n", again.out)
    assert again.out.endswith("out: 60,000 rows committed in all\n")
    assert own_errors(again.err) == []
    result = json.loads((tmp_path / "figures.json").read_text())
    assert result["committed_rows"] == {"out": WORDS} and result["checkpoints"][-1]["final"]


def supervisor_loop() -> str:
    """The loop that the documentation shows, with the command to be run in place of the one there."""
    (loop,) = re.findall(r"^until [^\n]*; do sleep \d+; done$", OPERATIONS.read_text("utf-8"), re.MULTILINE)
    return str(loop)


@pytest.mark.long  # test_supervise shows the same with FlinkPlus's own supervisor
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_supervisor_restarts_a_driver_that_is_killed(corpus: Path, tmp_path: Path) -> None:
    """By the shell loop of docs/operations.md: killed after a checkpoint, it resumes; finished, the loop ends."""
    out, checkpoints = tmp_path / "out", tmp_path / "ckpt"
    command = [sys.executable, "-m", "flinkplus", "wordcount", str(corpus), "--output", str(out), "--rate", "20000"]
    command += ["--checkpoint-interval", "0.2", "--checkpoint-dir", str(checkpoints), "--resume", "auto"]
    documented = re.sub(r"until .*?; do sleep \d+", lambda _: f"until {shlex.join(command)}; do :", supervisor_loop())
    with program(["sh", "-c", documented], tmp_path) as loop:

        def driver() -> psutil.Process:
            (found,) = psutil.Process(loop.process.pid).children()
            return found

        loop.wait_for(lambda: len(list(checkpoints.glob("checkpoints/*.json"))) >= 2, "two checkpoints")
        first = driver()
        first.send_signal(signal.SIGKILL)
        assert loop.wait(240) == 0, loop.err
        loop.assert_nothing_left([first])
    assert_exact(out, expected_counts(corpus))
    assert re.match(r"resumed job 'wordcount' from checkpoint \d+\n", loop.out)
    assert "equal to the Spark SQL batch count (60,000 words)" in loop.out
