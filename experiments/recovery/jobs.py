"""The jobs that are struck, at a steady rate, to Parquet files, and whether what they put out is exact.

- ``wordcount``: the WordCount of a made-up text; a subtask of ``count`` is struck. The output is compared with a Spark
  SQL batch count of the text.
- ``three-sums``: three keyed sums, one behind the other (``experiments.baselines.jobs``); a subtask of the source or of
  any of the sums is struck. ``sums`` checks the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow.parquet as pq

from experiments.baselines.jobs import ROWS, SINK, SUMS, THREE_SUMS, draw_sums
from experiments.harness.running import Context
from experiments.harness.workload import PROBE, Probe, Trigger, draw
from experiments.recovery.sums import Check, check_sums
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.streams.stream import Stream
from flinkplus.cli.wordcount import COUNT, TOKENIZE

WORDCOUNT = "wordcount"
STAGES: dict[str, tuple[str, ...]] = {WORDCOUNT: (COUNT,), THREE_SUMS: (ROWS, *SUMS.values())}
"""Job -> the operators whose subtasks are struck."""


class StruckJob(Protocol):
    """``rows`` come at ``rate``. ``counted``: the operator that puts out each of them once, in front of the keys."""

    rows: int
    rate: float
    counted: str

    def draw(self, env: StreamEnvironment, triggers: Mapping[str, Trigger], ballast_keys: int) -> None:
        """Draw the job. ``triggers``: have the subtasks of a stage raise; ``ballast_keys``: further keyed state."""

    def check(self, context: Context[Any]) -> Check:
        """Check the output of the job, which has finished."""


@dataclass
class WordCountJob:
    """See ``StruckJob``."""

    text: Path
    output: Path
    rows: int
    rate: float
    counted: str = TOKENIZE

    def draw(self, env: StreamEnvironment, triggers: Mapping[str, Trigger], ballast_keys: int) -> None:
        trigger = triggers.get(COUNT)
        probe = Probe(PROBE, trigger, ballast_keys) if trigger is not None or ballast_keys else None
        draw(env, str(self.text), str(self.output), self.rate, probe)

    def check(self, context: Context[Any]) -> Check:
        found = context.batch_check(self.output, self.text)
        return Check(found.words, found.wrong, found.example)


@dataclass
class ThreeSumsJob:
    """See ``StruckJob``."""

    output: Path
    rows: int
    rate: float
    counted: str = ROWS

    def draw(self, env: StreamEnvironment, triggers: Mapping[str, Trigger], ballast_keys: int) -> None:
        last = STAGES[THREE_SUMS][-1]

        def probed(stream: Stream) -> Stream:
            trigger, ballast = triggers.get(stream.name), ballast_keys if stream.name == last else 0
            return stream._then(Probe(f"{stream.name}-{PROBE}", trigger, ballast)) if trigger or ballast else stream

        draw_sums(env, self.rate, self.rows, probed).to_parquet(str(self.output), name=SINK)

    def check(self, context: Context[Any]) -> Check:
        return check_sums(pq.read_table(self.output), self.rows)


def struck_job(job: str, context: Context[Any], output: Path, rows: int, rate: float) -> StruckJob:
    """The job ``wordcount`` or ``three-sums``, for one run."""
    if job == THREE_SUMS:
        return ThreeSumsJob(output, rows, rate)
    return WordCountJob(context.text(rows), output, rows, rate)


def document_of(job: StruckJob) -> dict[str, Any]:
    """The job, for another process: ``job_of_document``."""
    assert isinstance(job, WordCountJob | ThreeSumsJob)
    kind = WORDCOUNT if isinstance(job, WordCountJob) else THREE_SUMS
    return {"kind": kind, **{name: str(part) if isinstance(part, Path) else part for name, part in vars(job).items()}}


def job_of_document(document: Mapping[str, Any]) -> StruckJob:
    """The inverse of ``document_of``."""
    given: dict[str, Any] = {
        name: Path(part) if name in ("text", "output") else part for name, part in document.items()
    }
    return WordCountJob(**given) if given.pop("kind") == WORDCOUNT else ThreeSumsJob(**given)
