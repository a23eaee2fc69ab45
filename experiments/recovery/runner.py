"""Runs one kill after the other.

Rules: a run that fails is a run with an ``error``, and the next one follows. What a run has written is removed with it.
"""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from experiments.cluster.place import Place
from experiments.recovery.kill import CHECK_TAG, Kill, KillRun
from experiments.recovery.settings import Case, Settings
from flinkplus.corpus import write_corpus

VOCABULARY = 50_000


@dataclass(frozen=True)
class Outcome:
    """The figures of one run, and its output around the kill for a picture (``None`` when it was not traced)."""

    figures: dict[str, Any]
    timeline: dict[str, Any] | None


class Runner:
    """All runs of an experiment. ``begun`` is told before each; ``stop`` may come from another thread. ``place``: the
    cluster, if there is one; ``directory`` is shared by its hosts then.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        directory: Path,
        begun: Callable[[Case], None],
        place: Place | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._directory = directory
        self._begun = begun
        self._place = place
        self._control = None if place is None else place.control
        self._texts: dict[int, Path] = {}
        self._stop = threading.Event()

    def outcomes(self) -> Iterator[Outcome]:
        """One run after the other."""
        cases = self._settings.cases()
        if self._settings.warm_up:
            self._run(dataclasses.replace(cases[0], failure="sigkill", state_keys=0, run=-1))
        for case in cases:
            if self._stop.is_set():
                return
            self._begun(case)
            yield self._run(case)

    def stop(self) -> None:
        """End the run that is under way, which fails, and begin no other."""
        self._stop.set()
        self._spark.sparkContext.cancelJobsWithTag(CHECK_TAG)

    def _text(self, state_keys: int) -> Path:
        words = self._settings.words(state_keys)
        if words not in self._texts:
            self._texts[words] = self._directory / f"zipf-{words}.txt"
            write_corpus(self._texts[words], words, VOCABULARY, self._settings.seed)
        return self._texts[words]

    def _run(self, case: Case) -> Outcome:
        directory = self._directory / "run"
        kill = Kill.drawn(case, self._settings.interval, directory, self._control)
        text = self._text(case.state_keys)
        run = KillRun(self._spark, self._settings, case, text, directory, kill, self._stop, self._place)
        figures = {**dataclasses.asdict(case), "subtask": kill.subtask, "offset_s": round(kill.offset_s, 4)}
        try:
            directory.mkdir()
            if self._place is not None and self._settings.hosts is not None:
                self._place.await_executors(self._spark, self._settings.hosts)
            run.run()
            error = None
        except Exception as problem:  # whatever it is, it ends this run and is told in its figures
            error = f"{type(problem).__name__}: {problem}"
        finally:
            self._revive(run.struck_host)
            shutil.rmtree(directory, ignore_errors=True)
        return Outcome({**figures, **run.figures, "error": error}, run.timeline)

    def _revive(self, host: str | None) -> None:
        """The next run finds all hosts as they were."""
        if host is not None and self._control is not None:
            self._control.order("revive", host)
