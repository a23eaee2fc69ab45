"""The thread of a reader: it receives records, decodes them, and waits while the brokers are away.

Rules:

- The client is used by this thread alone. What it shares with the reader is behind one lock.
- Offsets only go up. A record that comes again, or does not belong here, is left out; one that is gone is an error.
- A topic is gone only if the brokers have said so for ``UNKNOWN_S``: one that restarts does not know its topics at
  first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flinkplus.errors import InputError
from flinkplus.sources.kafka.buffers import Buffers
from flinkplus.sources.kafka.chunks import ChunkMaker
from flinkplus.sources.kafka.client import BrokersAway, KafkaClient, Refused
from flinkplus.sources.kafka.columns import Record
from flinkplus.sources.kafka.partitions import MAX_LOCAL, Assignment, Offsets, Partition

POLL_S, BUSY_POLL_S = 0.1, 0.01
CALL_S = 2.0
"""How long a question to the brokers may keep the thread."""
MAX_FETCHED, MAX_FETCHED_BYTES = 10_000, 4 << 20
"""Records, and about how many bytes of them, that are decoded at once."""
AGAIN_S = 2.0
"""How long it waits before it asks again while something is wrong."""
UNKNOWN_S, AHEAD_S = 30.0, 30.0
"""How long a topic may be unknown, or its end before the position, before that is an error."""
WARN_EVERY_S = 60.0
HIGHS_EVERY_S = 0.5

log = logging.getLogger("flinkplus.slot")


@dataclass(frozen=True)
class Reading:
    """What a fetcher reads. ``begin``: the offset of a partition; ``stop``: the offsets to stop before, for a source
    that ends. ``discover_s``: how often it looks for new partitions."""

    source: str
    assignment: Assignment
    begin: Callable[[Partition], int]
    planned: Sequence[Partition]
    stop: Offsets | None
    discover_s: float


@dataclass
class Shared:
    """What thread and reader share; ``lock`` must be held.

    ``to_finish``: partitions of a source that ends, that are not fetched to their end. ``asked``: partitions that a
    replay needs, and that are not known. ``to_commit``: for the group. ``highs``: for each partition the offset after
    its last record.
    """

    buffers: Buffers
    to_finish: set[Partition] = field(default_factory=set)
    highs: dict[Partition, int] = field(default_factory=dict)
    to_commit: Offsets | None = None
    asked: set[Partition] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Fetcher:
    """Fetches the partitions of one reader until ``close``. ``woken``: see ``LiveReader.begin``."""

    def __init__(
        self,
        reading: Reading,
        shared: Shared,
        make: ChunkMaker,
        connect: Callable[[], KafkaClient],
        woken: Callable[[Exception | None], None],
    ) -> None:
        self._reading, self._shared, self._make, self._connect, self._woken = reading, shared, make, connect, woken
        self._client: KafkaClient
        self._closed = False
        self._next: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._most = MAX_FETCHED
        self._look_s = self._look_again_s = self._highs_s = 0.0
        self._unknown_since: dict[str, float] = {}
        self._ahead_since: dict[Partition, float] = {}
        self._away_since: float | None = None
        self._warned_s = 0.0
        self._due_s: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"flinkplus-{reading.source}-{reading.assignment.index}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Have the thread end soon, without a wait: the slot's loop has more to do. It wakes nothing from now on."""
        self._closed = True

    def join(self, wait_s: float) -> None:
        """Wait for the end of the thread."""
        self._thread.join(wait_s)

    def _wake(self, error: Exception | None = None) -> None:
        if not self._closed:
            self._woken(error)

    def _run(self) -> None:
        try:
            self._client = self._connect()
        except Exception as error:
            self._wake(error)
            return
        try:
            self._add({p: self._reading.begin(p) for p in self._reading.planned})
            self._wake()  # there may be nothing to read up to the end
            while not self._closed:
                self._serve(time.monotonic())
        except Exception as error:
            self._wake(error)
        finally:
            self._client.close()

    def _serve(self, now_s: float) -> None:
        self._pause()
        self._commit()
        if now_s >= self._look_s or (self._shared.asked and now_s >= self._look_again_s):
            self._look(now_s)
        messages = self._client.fetch(self._most, BUSY_POLL_S if self._paused else POLL_S)
        changed = self._received(messages, now_s)
        self._report(now_s)
        self._note_highs(now_s)
        with self._shared.lock:
            due_s = self._shared.buffers.due_s()
        if changed or (self._due_s is not None and self._due_s <= now_s):
            self._wake()
            self._due_s = None
        if due_s is not None and due_s > now_s:
            self._due_s = due_s

    def _pause(self) -> None:
        with self._shared.lock:
            full = self._shared.buffers.full() & self._next.keys()
        self._client.pause(full - self._paused)
        self._client.resume(self._paused - full)
        self._paused = full

    def _commit(self) -> None:
        with self._shared.lock:
            offsets, self._shared.to_commit = self._shared.to_commit, None
        if offsets:
            self._client.commit(offsets)

    def _note_highs(self, now_s: float) -> None:
        if now_s < self._highs_s:
            return
        self._highs_s = now_s + HIGHS_EVERY_S
        highs = {partition: self._client.high(partition) for partition in self._next}
        with self._shared.lock:
            self._shared.highs = {partition: high for partition, high in highs.items() if high is not None}

    # --- what comes

    def _received(self, messages: Sequence[Any], now_s: float) -> bool:
        """Whether the reader may find something else than before."""
        groups: dict[Partition, list[Record]] = {}
        errors = []
        for message in messages:
            if message.error() is not None:
                errors.append(message)
                continue
            at = (message.topic(), message.partition())
            if at in groups:
                groups[at].append(message)  # a Partition equals its tuple
            else:
                groups[Partition(*at)] = [message]
        wanted = {p: kept for p, group in groups.items() if (kept := self._wanted(p, group))}
        if wanted:
            self._added(wanted)
        for partition, group in groups.items():
            self._pass_stop(partition, group[-1].offset() or 0)
        for message in errors:
            self._on_error(message, now_s)
        return bool(wanted or errors)

    def _wanted(self, partition: Partition, group: Sequence[Record]) -> Sequence[Record]:
        """Those records that follow what was fetched, and come before the end."""
        begin = self._next.get(partition)
        if begin is None:
            return ()
        stop = None if self._reading.stop is None else self._reading.stop[partition]
        first, last = group[0].offset() or 0, group[-1].offset() or 0
        if first >= begin and (stop is None or last < stop):
            return group
        return [one for one in group if begin <= (one.offset() or 0) and (stop is None or (one.offset() or 0) < stop)]

    def _added(self, groups: Mapping[Partition, Sequence[Record]]) -> None:
        chunks = self._make(groups)
        with self._shared.lock:
            for partition, chunk in chunks:
                self._shared.buffers.add(partition, chunk)
        for partition, group in groups.items():
            self._next[partition] = (group[-1].offset() or 0) + 1
            self._ahead_since.pop(partition, None)
        self._note_ends(groups)
        records = sum(len(group) for group in groups.values())
        size = sum(chunk.size_bytes for _, chunk in chunks)
        self._most = max(1, min(MAX_FETCHED, MAX_FETCHED_BYTES * records // max(1, size)))
        for partition in groups:
            self._finish_if_read(partition)

    def _note_ends(self, partitions: Iterable[Partition]) -> None:
        """Note of which partitions the last record has come. A broker says so by an answer without records, which it
        keeps back for ``fetch.wait.max.ms``; the records of other brokers would have to wait for it."""
        highs = {partition: self._client.high(partition) for partition in partitions}
        with self._shared.lock:
            for partition, high in highs.items():
                if high is not None and high <= self._next[partition]:
                    self._shared.buffers.reached_end(partition)

    def _on_error(self, message: Any, now_s: float) -> None:
        error, topic = message.error(), message.topic()
        partition = Partition(topic, message.partition()) if topic is not None else None
        kind = self._client.trouble(error)
        if kind == "end" and partition in self._next:
            self._on_end(partition, message.offset())
        elif kind == "gone" and partition in self._next:
            self._on_gone(partition, now_s)
        elif kind == "unknown":
            self._look_s = now_s  # asks, and decides
        elif kind == "refused":
            raise InputError(f"source {self._reading.source!r}: topic {topic!r}: {self._client.text(error)}")

    def _on_end(self, partition: Partition, offset: int) -> None:
        """The broker has no record after those before ``offset``; what is between is no record."""
        if offset >= self._next[partition]:
            self._next[partition] = offset
            self._ahead_since.pop(partition, None)
            with self._shared.lock:
                self._shared.buffers.reached_end(partition)
            self._finish_if_read(partition)

    def _pass_stop(self, partition: Partition, offset: int) -> None:
        """A record at ``offset`` has come: if the source stops before it, nothing is missing up to there."""
        stop = self._reading.stop
        if stop is not None and partition in self._next and offset >= stop[partition]:
            self._next[partition] = stop[partition]
            self._finish_if_read(partition)

    def _finish_if_read(self, partition: Partition) -> None:
        stop = self._reading.stop
        if stop is not None and partition in self._next and self._next[partition] >= stop[partition]:
            self._client.unassign([partition])
            del self._next[partition]
            self._paused.discard(partition)
            with self._shared.lock:
                self._shared.buffers.reached_end(partition)
                self._shared.to_finish.discard(partition)

    def _on_gone(self, partition: Partition, now_s: float) -> None:
        """There is no record at the offset that was asked for. Raises ``InputError`` if there will be none."""
        wanted = self._next[partition]
        try:
            low, high = self._client.bounds(partition, CALL_S)
        except (BrokersAway, Refused):
            low, high = wanted, wanted
        where = f"source {self._reading.source!r}: topic {partition.topic!r}, partition {partition.number}"
        if wanted < low:
            raise InputError(
                f"{where}: the records at offsets {wanted} to {low - 1} have been removed (retention) and were not "
                "read; to continue without them see docs/kafka.md"
            )
        if wanted <= high:
            self._ahead_since.pop(partition, None)
        elif now_s - self._ahead_since.setdefault(partition, now_s) > AHEAD_S:
            raise InputError(
                f"{where}: ends at offset {high}, and the job has read up to {wanted}: the topic was made again, or "
                "brokers have lost records"
            )
        else:
            time.sleep(BUSY_POLL_S)
        self._client.unassign([partition])
        self._client.assign({partition: wanted})
        self._paused.discard(partition)

    # --- topics and brokers

    def _look(self, now_s: float) -> None:
        """Look for new partitions, for topics that are gone, and whether the brokers answer."""
        self._look_s, self._look_again_s = now_s + self._reading.discover_s, now_s + AGAIN_S
        for topic in self._reading.assignment.topics:
            try:
                found = self._client.partitions(topic, CALL_S)
            except (BrokersAway, Refused) as error:
                self._is_away(str(error), now_s)
                return
            self._found(topic, found or [], now_s)
        self._client.answered()
        self._is_back(now_s)

    def _found(self, topic: str, found: Sequence[Partition], now_s: float) -> None:
        mine = [partition for partition in self._next if partition.topic == topic]
        if not found or not set(mine) <= set(found):
            since = self._unknown_since.setdefault(topic, now_s)
            if now_s - since > UNKNOWN_S:
                what = "some of its partitions are gone" if found else "is gone"
                raise InputError(
                    f"source {self._reading.source!r}: topic {topic!r}: {what} since the job began to read it"
                )
            self._look_s = now_s + AGAIN_S
            return
        if self._unknown_since.pop(topic, None) is not None:
            self._client.unassign(mine)
            self._client.assign({partition: self._next[partition] for partition in mine})
            self._paused -= set(mine)
        if self._reading.stop is None:
            new = [p for p in found if self._reading.assignment.has(p) and p not in self._next]
            if new:
                log.info("source %r: new partitions: %s", self._reading.source, ", ".join(map(str, new)))
                self._add({partition: self._reading.begin(partition) for partition in new})

    def _add(self, offsets: Offsets) -> None:
        for partition in offsets:
            if self._reading.assignment.local(partition) > MAX_LOCAL:
                raise InputError(f"source {self._reading.source!r}: {partition}: a source cannot read so many")
        now_s = time.monotonic()
        with self._shared.lock:
            for partition in offsets:
                self._shared.buffers.open(partition, now_s)
            self._shared.asked -= offsets.keys()
        self._next |= offsets
        self._client.assign(offsets)
        for partition in offsets:
            self._finish_if_read(partition)

    def _report(self, now_s: float) -> None:
        if self._client.failure:
            self._is_away(self._client.failure, now_s)

    def _is_away(self, why: str, now_s: float) -> None:
        """The reader waits; it warns at once, and then every minute."""
        self._look_s = min(self._look_s, now_s + AGAIN_S)
        if self._away_since is None or now_s - self._warned_s >= WARN_EVERY_S:
            since = "" if self._away_since is None else f", for {now_s - self._away_since:.0f} s"
            log.warning("source %r: waits for Kafka%s: %s", self._reading.source, since, why)
            self._warned_s = now_s
        self._away_since = self._away_since if self._away_since is not None else now_s

    def _is_back(self, now_s: float) -> None:
        if self._away_since is not None:
            log.warning("source %r: Kafka answers after %.1f s", self._reading.source, now_s - self._away_since)
            self._away_since = None
