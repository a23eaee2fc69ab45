"""The planner of a data source with ``streamReader()``: asks for offsets, stores batches that the slots read.

Rules:

- All methods of the data source but ``read`` are called here, by one thread, as Spark does in its driver. A new driver
  continues behind the last batch that is stored: that one is read as it is, and what was not stored was not read.
- A batch is asked for while fewer than the limit are unread, after a pause: also one without partitions is a file.
- ``commit`` is called when all kept checkpoints have passed a batch, which is removed after that. The last one stays.
- An error of the data source ends the job. A store that fails is tried again with the same batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from flinkplus.errors import FlinkPlusError, InputError, described
from flinkplus.runtime.job.streams.beside import SourceThread
from flinkplus.sources.files.watch import RareWarning
from flinkplus.sources.planned.area import PlanArea
from flinkplus.sources.planned.calls import PlanCalls
from flinkplus.sources.planned.planning import BatchPlanning, PlannedBatch
from flinkplus.sources.planned.source import DataSourceBatches

LOOK_S = 0.1
RETRY_S = 1.0
T = TypeVar("T")

log = logging.getLogger("flinkplus")


class PlannerStopped(Exception):
    """The job has ended."""


class BatchPlanner:
    """Plans for ``source``, from ``begin`` to ``stop``.

    ``begun``: partitions that the checkpoint from which the job resumes has begun to read.
    ``check``: raises ``JobRunsElsewhere`` when another driver has taken the job over.
    ``read``: partitions that all subtasks have read. ``floor``: the first partition that may be needed.
    ``failed``: called with the reason when planning fails.
    """

    def __init__(
        self,
        source: DataSourceBatches,
        begun: int,
        check: Callable[[], None],
        read: Callable[[], int],
        floor: Callable[[], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._source, self._begun = source, begun
        self._check, self._read, self._floor, self._failed = check, read, floor, failed
        self._warn = RareWarning()
        late = f"a method of the data source of source {source.name!r} has not returned yet"
        self._thread = SourceThread(f"flinkplus-planner-{source.name}", self._run, late)
        self._stopping = self._thread.stopping

    def begin(self) -> None:
        """Start to plan, in a thread of its own."""
        self._thread.begin()

    def stop(self) -> None:
        """End it, and wait for that. May be called twice, and without ``begin``."""
        self._thread.stop()

    # --- the thread

    def _run(self) -> None:
        try:
            self._plan(self._source.area())
        except PlannerStopped:
            pass
        except Exception as error:  # of whatever kind: without this thread no more rows come
            if not self._stopping.is_set():
                cause = error if isinstance(error, FlinkPlusError) else InputError(described(error))
                self._failed(f"no more batches are planned: {cause}", cause)

    def _plan(self, area: PlanArea) -> None:
        known, ended = self._patient("read", lambda: _known(area))
        batches = BatchPlanning(self._source.name, self._source.max_unread_batches, known)
        batches.check_kept(self._begun)
        calls = PlanCalls(self._source)
        try:
            if not ended:
                self._follow(area, batches, calls)
            while True:
                self._pause(LOOK_S, area, batches, calls)
        finally:
            calls.stop()

    def _follow(self, area: PlanArea, batches: BatchPlanning, calls: PlanCalls) -> None:
        """Plan batch after batch, until the source ends. Raises ``PlannerStopped`` when the job does."""
        if batches.at is None:
            first = calls.initial()
            self._store(PlannedBatch(0, first, first, 0), area, batches)
        calls.prepare(_at(batches))
        while True:
            self._let_go(area, batches, calls)
            if not batches.has_room(self._read()):
                self._pause(LOOK_S, area, batches, calls)
                continue
            start = _at(batches)
            end = calls.latest(start)
            if batches.is_new(end):
                self._store(batches.following(end, calls.partitions(start, end)), area, batches)
            elif self._source.available_now:
                return self._patient("write", lambda: area.end(self._check))
            self._pause(self._source.poll_s, area, batches, calls)

    def _store(self, batch: PlannedBatch, area: PlanArea, batches: BatchPlanning) -> None:
        batches.add(self._patient("write", lambda: area.put(batch, self._check)))

    def _let_go(self, area: PlanArea, batches: BatchPlanning, calls: PlanCalls) -> None:
        """Commit and remove what no kept checkpoint needs. Raises ``PlannerStopped`` when the job has ended."""
        if self._stopping.is_set():
            raise PlannerStopped
        floor = self._floor()
        batches.check_kept(floor)
        offset, numbers = batches.passed(floor)
        if offset is not None:
            calls.commit(offset)
        try:
            if numbers:
                self._check()
            for number in numbers:
                area.remove(number)
                batches.removed(number)
        except OSError as error:
            self._warn("cannot remove a planned batch of source %r: %s", self._source.name, described(error))

    def _pause(self, pause_s: float, area: PlanArea, batches: BatchPlanning, calls: PlanCalls) -> None:
        """Wait, and let go meanwhile."""
        deadline_s = time.monotonic() + pause_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._stopping.wait(min(left_s, LOOK_S))
            self._let_go(area, batches, calls)

    def _patient(self, what: str, call: Callable[[], T]) -> T:
        """Call until the store answers. Raises ``PlannerStopped`` when the job has ended."""
        while not self._stopping.is_set():
            try:
                return call()
            except OSError as error:
                text = "cannot %s planned batches of source %r, trying again: %s"
                self._warn(text, what, self._source.name, described(error))
            self._stopping.wait(RETRY_S)
        raise PlannerStopped


def _at(batches: BatchPlanning) -> str:
    assert batches.at is not None
    return batches.at


def _known(area: PlanArea) -> tuple[Sequence[PlannedBatch], bool]:
    """The batches that are planned, and whether there will be no more. Only the last ones without a gap in their
    numbers: a savepoint may have some that were about to be removed."""
    numbers, ended = area.ready()
    at = len(numbers)
    while at > 1 and numbers[at - 2] + 1 == numbers[at - 1]:
        at -= 1
    return [area.read(number) for number in numbers[max(0, at - 1) :]], ended
