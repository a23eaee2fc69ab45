"""Jobs to be hurt in the tests of failover, and the exact check of what they put out.

The input has no end: row ``i`` is ``(word(i), i)``. A test drains the job when it has done what it wanted to do. Then
each source must have read a prefix of its rows, each row must be in the output once, and the counts of each word must
be 1, 2, ..., n.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from chain_backup.failover.machine import FailoverProtocol
from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.api.streams.stream import Stream
from flinkplus.runtime.slot.process.slot import Slot
from tests.integration.conftest import PATIENCE_S, assert_each_count_once, this_slot, wait_until

RATE = 4_000.0
SCHEMA = "word string, i long"
NO_CHECKPOINTS = 1000.0
"""A ``checkpoint_interval``: none but the first, and those that a test asks for."""


def word(i: int) -> str:
    """Few and many occurrences, spread over all subtasks."""
    return f"word-{i * i % 211}"


class Source:
    """Row ``i``; before its first one in a slot, something may be done there."""

    def __init__(self, word: Callable[[int], str], prepare: Callable[[Slot], None] | None) -> None:
        self.word, self.prepare = word, prepare

    def __call__(self, i: int) -> tuple[str, int]:
        prepare, self.prepare = self.prepare, None
        if prepare is not None:
            prepare(this_slot())
        return self.word(i), i


class Victim:
    """A running job: numbers [| what the test puts before] | key_by(word) | count [| between] | parquet.

    A context manager that checks, at the end, that nothing is left behind. ``word``: of row ``i``. ``prepare``: called
    in each slot that reads rows. ``before``, ``between``: what the test puts in, given and returning a stream, with the
    columns word, i and, in between, count. ``limit_s``: for how long each wait is for something to come.
    """

    limit_s = PATIENCE_S
    may_be_empty = False
    """Whether no row at all is right, too."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        *,
        word: Callable[[int], str] = word,
        prepare: Callable[[Slot], None] | None = None,
        before: Callable[[Stream], Stream] | None = None,
        between: Callable[[Stream], Stream] | None = None,
        rate: float = RATE,
        **options: Any,
    ) -> None:
        self.out, self.work = path / "out", path / "work"
        self.work.mkdir()
        self._word = word
        given = {"parallelism": 3, "checkpoint_interval": 0.2, "recovery": "standby", "work_dir": str(self.work)}
        env = StreamEnvironment(spark, **{**given, **options})
        stream = env.generate(Source(word, prepare), schema=SCHEMA, rate=rate, name="numbers")
        if before is not None:
            stream = before(stream)
        stream = stream.key_by("word").count(name="count")
        if between is not None:
            stream = between(stream)
        stream.to_parquet(str(self.out), name="out")
        self.job: JobHandle = env.execute("victim")

    def __enter__(self) -> Victim:
        try:
            self.wait(lambda: self.job.running_s is not None, "the start")
            if self.job._running.coordinator.options.checkpoint_interval == NO_CHECKPOINTS:
                self.job.checkpoint_now()
            self.wait(lambda: self.metrics["checkpoints_completed"] >= 1, "a first checkpoint")
        except BaseException:
            self.job.cancel()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.job.cancel()
        if kind is None:
            assert list(self.work.iterdir()) == []

    # --- what is so

    @property
    def metrics(self) -> dict[str, Any]:
        return self.job.metrics()

    @property
    def protocol(self) -> FailoverProtocol:
        protocol = self.job._running.coordinator.parts.machines.failover
        assert protocol is not None
        return protocol

    def chain(self, subtask: str) -> tuple[int, ...]:
        """The members of a subtask's chain (``count[0]``: by one of its operators), head first."""
        operator, _, index = subtask.rstrip("]").partition("[")
        for known, members in self.protocol.chains.items():
            if operator in known.vertex.split("+") and known.index == int(index):
                return members
        return ()

    @property
    def strong(self) -> bool:
        """Whether all slots are back and every chain has all its members, which are up to date."""
        options = self.job._running.coordinator.options
        if not options.standbys:
            here = self.job.state == "running" and len(self.job.slot_pids()) == options.parallelism
            return here and not (options.local and self.protocol.active)
        chains = self.protocol.chains
        return (
            len(self.job.slot_pids()) == options.parallelism
            and not self.protocol.active
            and len(chains) > 0
            and all(len(members) == options.members for members in chains.values())
            and not any(chain.catching_up for chain in self.protocol._table)
            and self.protocol.all_have(1)
        )

    @property
    def at_home(self) -> bool:
        """Whether every subtask is at work where it belongs."""
        heads = self.job._running.coordinator.view.assignment
        return len(heads) > 0 and all(head == subtask.index for subtask, head in heads.items())

    # --- waiting

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition of a job that goes on; fails when the job ends instead."""
        wait_until(lambda: self.job.done or condition(), what, self.limit_s)
        if self.job.done:
            self.job.await_finish()
            assert condition(), f"the job ended before: {what}"

    def pass_time(self, seconds: float) -> None:
        """Let the job run on."""
        until = (self.job.running_s or 0.0) + seconds
        self.wait(lambda: (self.job.running_s or 0.0) >= until, f"{seconds} s of running")

    def wait_for_failovers(self, count: int) -> None:
        self.wait(lambda: self.metrics["failovers"] >= count, f"{count} failovers; {self.metrics}")

    def wait_for_strength(self) -> None:
        """Full chains; with failback everything is at home, too."""
        home = self.job._running.coordinator.options.failback == "auto"
        self.wait(lambda: self.strong and (self.at_home or not home), "full strength")

    def wait_for_checkpoints(self, more: int = 2) -> None:
        """``more`` checkpoints become complete from now on."""
        done = self.metrics["checkpoints_completed"]
        self.wait(lambda: self.metrics["checkpoints_completed"] >= done + more, f"{more} more checkpoints")

    # --- hurting

    def kill_slot(self, slot: int) -> None:
        """SIGKILL whatever process is slot ``slot`` just now."""
        self.signal_slot(slot, signal.SIGKILL)

    def signal_slot(self, slot: int, number: signal.Signals) -> None:
        os.kill(self.job.slot_pids()[slot], number)

    # --- the end

    def finish(self) -> dict[str, Any]:
        """End the input, wait for the end, check the output; returns the job's last metrics."""
        self.job.drain()
        self.job.await_finish(self.limit_s)
        self.check()
        return self.job.metrics()

    def check(self) -> None:
        """Every row that was read is in the output once, counted in an order that there can have been."""
        table = pq.read_table(self.out)
        numbers = table.column("i").to_pylist()
        parallelism = self.job._running.coordinator.options.parallelism
        for index in range(parallelism):
            mine = sorted(i for i in numbers if i % parallelism == index)
            assert mine == list(range(index, index + parallelism * len(mine), parallelism)), f"rows of source {index}"
        assert self.job.metrics()["operators"]["numbers"]["rows_out"] == len(numbers)
        words = table.column("word").to_pylist()
        assert Counter(words) == Counter(map(self._word, numbers))
        assert_each_count_once(table)
        assert len(numbers) > 0 or self.may_be_empty


AnyVictim = TypeVar("AnyVictim", bound=Victim)


@contextmanager
def side_by_side(
    spark: SparkSession, path: Path, variants: Sequence[Mapping[str, Any]], kind: type[AnyVictim]
) -> Iterator[list[AnyVictim]]:
    """A job of ``kind`` for each of ``variants`` (options), all at once: each of them waits most of the time."""
    with ExitStack() as running:
        victims: list[AnyVictim] = []
        for number, options in enumerate(variants):
            own = path / str(number)
            own.mkdir()
            victims.append(kind(spark, own, **options))
            running.callback(victims[-1].job.cancel)
        for victim in victims:
            running.enter_context(victim)
        yield victims
