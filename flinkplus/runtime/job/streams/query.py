"""The streaming query of one source: Spark gives batches, which are staged for the slots to read.

Rules:

- A batch is staged once. After a restart of the query Spark gives its last batch again, with the same number; what is
  complete stays as it is, since slots may have read it, and what is not is staged again. An earlier batch is an error:
  Spark has lost its checkpoint, and counts anew.
- The query waits while too much is staged and was not read. A batch that no kept checkpoint needs is removed; the last
  one stays, since its number and its count of rows say where the next one begins.
- A query that fails ends the job. One that ends because its trigger says so ends the source.
- The query is stopped whenever the job ends. A batch that is under way then is not complete, and Spark gives it again.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from flinkplus.errors import FlinkPlusError, InputError, described
from flinkplus.runtime.job.staging import spark_reason
from flinkplus.runtime.job.streams.beside import SourceThread
from flinkplus.sources.batches.area import QUERY, ReadyBatch, StagingArea
from flinkplus.sources.batches.source import StreamedBatches

LOOK_S = 0.1
ENDS_BY_ITSELF = ("once", "availableNow")

log = logging.getLogger("flinkplus")


class StreamStopped(Exception):
    """Raised in Spark's thread: the job has ended, and the batch is not taken."""


class StreamQuery:
    """The query of ``source``, from ``begin`` to ``stop``.

    ``check``: raises ``JobRunsElsewhere`` when another driver has taken the job over.
    ``rows_read``: rows that all subtasks have read. ``floor``: the first batch that may be needed.
    ``failed``: called with the reason when the query fails.
    """

    def __init__(
        self,
        source: StreamedBatches,
        df: DataFrame,
        check: Callable[[], None],
        rows_read: Callable[[], int],
        floor: Callable[[], int],
        failed: Callable[[str, Exception], None],
    ) -> None:
        assert source.location is not None
        self._source, self._df = source, df
        self._check, self._rows_read, self._floor, self._failed = check, rows_read, floor, failed
        self._area = StagingArea(source.location)
        self._staged: deque[ReadyBatch] = deque()
        self._cause: Exception | None = None
        late = f"the streaming query of source {source.name!r} has not ended yet"
        self._thread = SourceThread(f"flinkplus-query-{source.name}", self._run, late)
        self._stopping = self._thread.stopping

    def begin(self) -> None:
        """Start the query, in a thread of its own."""
        self._thread.begin()

    def stop(self) -> None:
        """End the query, and wait for that. May be called twice, and without ``begin``."""
        self._thread.stop()

    # --- the thread of the query

    def _run(self) -> None:
        try:
            numbers, ended = self._area.ready()
            self._staged.extend(self._area.read(number) for number in numbers)
            if not ended:
                self._area.remove_incomplete()
                self._follow(self._start())
            while not self._stopping.wait(LOOK_S):
                self._remove_passed()
        except Exception as error:  # of pyspark and py4j, too: whatever it is, no more rows come
            if not self._stopping.is_set():
                reason = f"the streaming query of source {self._source.name!r} failed: {_reason(self._cause or error)}"
                self._failed(reason, InputError(reason))

    def _start(self) -> StreamingQuery:
        writer = self._df.writeStream.foreachBatch(self._take)
        writer = writer.option("checkpointLocation", f"{self._area.location}/{QUERY}")
        if self._source.trigger:
            writer = writer.trigger(**self._source.trigger)
        return writer.start()

    def _follow(self, query: StreamingQuery) -> None:
        """Wait for the end of the query, and stop it when the job ends. Raises its error."""
        try:
            while not query.awaitTermination(LOOK_S):  # type: ignore[arg-type]  # it takes fractions of seconds
                self._remove_passed()
                if self._stopping.is_set():
                    return
        finally:
            with contextlib.suppress(PySparkException, Py4JError):
                query.stop()
        if self._stopping.is_set():
            return
        if not any(self._source.trigger.get(trigger) for trigger in ENDS_BY_ITSELF):
            raise InputError("it was stopped")
        self._area.end(self._check)

    def _remove_passed(self) -> None:
        floor = self._floor()
        while len(self._staged) > 1 and self._staged[0].number < floor:
            try:
                self._area.remove(self._staged[0])
            except OSError as error:
                log.warning("cannot remove a staged batch of source %r: %s", self._source.name, described(error))
                return
            self._staged.popleft()

    # --- called by Spark

    def _take(self, df: DataFrame, number: int) -> None:
        """Stage a batch. Spark's error says little of what was raised here, so it is kept."""
        try:
            self._stage(df, number)
        except Exception as error:
            self._cause = error
            raise

    def _stage(self, df: DataFrame, number: int) -> None:
        self._wait_for_room()
        last = self._staged[-1] if self._staged else None
        if last is not None and number < last.number:
            raise InputError(
                f"Spark gives batch {number} again, and batch {last.number} is staged already: the query's checkpoint "
                f"in {self._area.location}/{QUERY} was removed or is an older copy, so new rows would be taken for old"
            )
        if last is not None and number == last.number:
            return  # it is complete
        folder, place = self._area.new_folder(number)
        try:
            df.write.parquet(place)
        except (PySparkException, Py4JError):
            if not self._stopping.is_set():
                raise
        if self._stopping.is_set():
            raise StreamStopped
        rows = 0 if last is None else last.rows_so_far
        batch = self._area.complete(number, folder, self._source.schema, rows, self._check)
        if batch is not None:
            self._staged.append(batch)

    def _wait_for_room(self) -> None:
        while True:
            read = self._rows_read()
            unread = [batch for batch in list(self._staged) if batch.rows_so_far > read]
            size = sum(batch.size for batch in unread)
            if len(unread) < self._source.max_unread_batches and size < self._source.max_unread_bytes:
                return
            if self._stopping.wait(LOOK_S):
                raise StreamStopped


def _reason(error: Exception) -> str:
    return described(error) if isinstance(error, FlinkPlusError | OSError) else spark_reason(error)


def query_arguments(trigger: Any) -> dict[str, Any]:
    """The arguments of ``DataStreamWriter.trigger``. Raises ``ValueError``."""
    if trigger is None:
        return {}
    known = ("processingTime", *ENDS_BY_ITSELF)
    if not isinstance(trigger, dict) or len(trigger) != 1 or next(iter(trigger)) not in known:
        raise ValueError(f"trigger must be a dict with one of {', '.join(known)}, not {trigger!r}")
    return dict(trigger)
