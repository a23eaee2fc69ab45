"""``flinkplus wordcount``: the running count of every word, with kills on request, checked against Spark SQL."""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.batch_check import BatchCheck, check_output
from flinkplus.cli.progress import ProgressLine
from flinkplus.cli.tables import Table, console
from flinkplus.config import options_from
from flinkplus.corpus import demo_file
from flinkplus.errors import ConfigurationError
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.control.names import check_subtask, find_subtask
from flinkplus.sources.text import TextFiles
from flinkplus.state.durable.ownership import Resume

KILL = re.compile(r"(?P<subtask>.+)@(?P<at>\d+(?:\.\d+)?)$")
POLL_S = 0.05
CHECKPOINT_PHASES = {
    "last source begun": "trigger_ms",
    "longest alignment": "alignment_ms",
    "longest synchronous part": "sync_ms",
    "longest asynchronous part": "async_ms",
    "all durable": "durable_ms",
    "all standbys": "chain_ms",
    "complete": "duration_ms",
}
SOURCE, TOKENIZE, COUNT, SINK = "lines", "tokenize", "count", "out"


@dataclass(frozen=True)
class Kill:
    """SIGKILL the process that hosts ``subtask``, ``at_s`` seconds after the job began to run."""

    subtask: str
    at_s: float


def parse_kill(text: str) -> Kill:
    """``count:1@4``. Raises ``argparse.ArgumentTypeError`` for anything else."""
    match = KILL.match(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not SUBTASK@SECONDS, such as count:1@4")
    return Kill(match["subtask"], float(match["at"]))


@dataclass(frozen=True)
class WordCount:
    """Settings of one run. ``input`` ``None``: the demo text. ``duration_s``: end the input after that time.
    ``resume``, ``trust``: as ``StreamEnvironment.execute``."""

    input: str | None = None
    output: str | None = None
    rate: float | None = None
    repeat: int = 1
    kills: tuple[Kill, ...] = ()
    duration_s: float | None = None
    check: bool = True
    resume: Resume = False
    trust: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def draw(env: StreamEnvironment, run: WordCount, path: str) -> TextFiles:
    """Draw the pipeline; returns its source."""
    lines = env.read_text(path, name=SOURCE, repeat=run.repeat)
    words = lines.tokenize("value", output="word", name=TOKENIZE)
    if run.rate is not None:
        words = words.throttle(run.rate)
    counts = words.key_by("word").count(name=COUNT)
    if run.output is None:
        counts.discard(name=SINK)
    else:
        counts.to_parquet(run.output, name=SINK)
    source = env.graph.nodes[0].body
    assert isinstance(source, TextFiles)
    return source


def run_wordcount(spark: SparkSession, run: WordCount, progress: bool = True) -> dict[str, Any]:
    """Run one WordCount to its end; returns every figure. Raises what ``execute`` and ``await_finish`` raise."""
    env = StreamEnvironment(spark, **run.options)
    source = draw(env, run, str(demo_file()) if run.input is None else run.input)
    for kill in run.kills:
        find_subtask(kill.subtask, env.graph.fuse(), env.options.parallelism)
    with env.execute("wordcount", resume=run.resume, trust=run.trust) as job:
        if job.finished_before:
            print("the job had finished before: nothing was run")
        elif job.restored_from is not None:
            print(f"resumed job {job.name!r} from checkpoint {job.restored_from}")
        _watch(job, run, progress)
        job.await_finish()
    check = None
    stopped = job.state == "stopped"
    if stopped:
        print("the job was stopped with a savepoint: its output is what that covers")
    if run.output is not None and run.check and run.duration_s is None and not stopped:
        check = check_output(spark, run.output, [file.path for file in source.files or ()], run.repeat)
    return figures(job, env, run, check)


def check_usage(run: WordCount) -> None:
    """Checks without Spark, whose start takes seconds. Raises ``ConfigurationError`` or ``InputError``."""
    options = options_from({}, run.options)
    if run.output is not None and not run.output.strip():
        raise ConfigurationError("--output is empty; give a directory")
    if run.resume and options.checkpoint_dir is None:
        raise ConfigurationError("--resume needs --checkpoint-dir, where the checkpoints to continue from are")
    if run.input is not None:
        TextFiles(name=SOURCE, path=run.input, repeat=run.repeat).planned()
    for kill in run.kills:
        check_subtask(kill.subtask, (SOURCE, TOKENIZE, COUNT, SINK), options.parallelism)


def _watch(job: JobHandle, run: WordCount, progress: bool) -> None:
    """Follow the job to its end: kills at their times, the end of a timed run, the progress line."""
    line = ProgressLine(job, TOKENIZE) if progress else None
    kills = sorted(run.kills, key=lambda kill: kill.at_s)
    drained = False
    try:
        while not job.wait(POLL_S):
            running_s = job.running_s
            while kills and running_s is not None and running_s >= kills[0].at_s:
                if not job.kill(kills[0].subtask):
                    break
                kills.pop(0)
            if run.duration_s is not None and running_s is not None and running_s >= run.duration_s and not drained:
                drained = True
                job.drain()
            if line is not None:
                line.tick()
    finally:
        if line is not None:
            line.close()
    for kill in kills:
        print(f"kill {kill.subtask}@{kill.at_s} did not happen: the job was over before", file=sys.stderr)


def figures(job: JobHandle, env: StreamEnvironment, run: WordCount, check: BatchCheck | None) -> dict[str, Any]:
    """Every figure of a finished run, JSON-able."""
    metrics = job.metrics()
    operators = metrics["operators"]
    words = operators[TOKENIZE]["rows_out"]
    elapsed_s = metrics["running_s"]
    return {
        "words": words,
        "output_rows": metrics["committed_rows"][SINK],
        "matches_batch": None if check is None else check.matches and check.words == words,
        "batch_words": None if check is None else check.words,
        "distinct_words": metrics["state_keys"],
        "wrong_words": None if check is None else check.wrong,
        "example_of_wrong_word": None if check is None else check.example,
        "words_per_s": round(words / elapsed_s, 1) if elapsed_s else 0.0,
        "elapsed_s": elapsed_s,
        "invalid_lines": operators[SOURCE].get("invalid_lines", 0),
        "parallelism": env.options.parallelism,
        "recovery": env.options.recovery,
        "rate": run.rate,
        "repeat": run.repeat,
        "checkpoint_interval_s": env.options.checkpoint_interval,
        "state_bytes": metrics["state_bytes"],
        "determinant_share": metrics["determinant_share"],
        "message_ids": metrics["message_ids"],
        "slot_restarts": metrics["slot_restarts"],
        "operators": operators,
        "checkpoints": job.checkpoints(),
        "recoveries": job.recoveries(),
    }


def verdict(result: dict[str, Any]) -> str:
    """The comparison with the batch count, as a sentence."""
    match result["matches_batch"]:
        case None:
            return "not compared with a batch count (nothing stored, stopped, or --no-check)"
        case True:
            return f"equal to the Spark SQL batch count ({result['batch_words']:,} words)"
        case _:
            example = result["example_of_wrong_word"]
            return f"DIFFERENT from the Spark SQL batch count in {result['wrong_words']:,} words, such as {example!r}"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms"


def print_summary(result: dict[str, Any]) -> None:
    out = console()
    table = Table("WordCount", ("",), note="")
    complete = [c for c in result["checkpoints"] if c["status"] == "complete"]
    for label, value in (
        ("words", f"{result['words']:,}"),
        ("output rows", f"{result['output_rows']:,}"),
        ("distinct words", f"{result['distinct_words']:,}"),
        ("time", f"{result['elapsed_s']:.2f} s"),
        ("words per second", f"{result['words_per_s']:,.0f}"),
        ("checkpoints", f"{len(complete)} complete"),
        ("recoveries", str(len(result["recoveries"]))),
        ("invalid lines", f"{result['invalid_lines']:,}"),
        ("result", verdict(result)),
    ):
        table.add_row(label, value)
    out.print(table)
    if complete:
        out.print(checkpoint_table(complete))
    if result["recoveries"]:
        out.print(recovery_table(result["recoveries"]))


def checkpoint_table(checkpoints: list[dict[str, Any]]) -> Table:
    """How long the phases of complete checkpoints took, in milliseconds, and how large they are."""
    table = Table("Checkpoints", ("",), (), ("median", "longest"))
    for phase, key in CHECKPOINT_PHASES.items():
        times = [checkpoint[key] for checkpoint in checkpoints if checkpoint[key] is not None]
        if times:
            table.add_row(phase, milliseconds(statistics.median(times)), milliseconds(max(times)))
    for size, key in (("new bytes", "bytes_new"), ("all bytes", "bytes_total"), ("bytes in flight", "in_flight_bytes")):
        sizes = [checkpoint[key] for checkpoint in checkpoints]
        table.add_row(size, f"{statistics.median(sizes):,.0f}", f"{max(sizes):,}")
    modes = Counter(checkpoint["mode"] for checkpoint in checkpoints)
    table.add_row("taken", ", ".join(f"{count} {mode}" for mode, count in modes.items()), "")
    return table


def recovery_table(recoveries: list[dict[str, Any]]) -> Table:
    """One line for each recovery, with its phases in milliseconds."""
    table = Table("Recoveries (ms)", ("mode", "failure"), (), (*DURATIONS, "total"))
    for recovery in recoveries:
        times = [recovery[f"{phase}_ms"] for phase in (*DURATIONS, "recovery")]
        cells = ["-" if value is None else f"{value:,.1f}" for value in times]
        table.add_row(recovery["mode"], recovery["failure"], *cells)
    return table
