"""A topic that shows rows at once and exactly once: the descriptor, and the driver's side."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import ClassVar, Protocol, TypeVar

import pyarrow as pa
from typing_extensions import Self, override

from flinkplus.errors import FlinkPlusError, InvariantViolation, OutputTopicError
from flinkplus.operators.base.operator import JsonValue, OperatorContext
from flinkplus.protocol.checkpoints.subtask_output import SubtaskFence
from flinkplus.protocol.checkpoints.transactions import Add, Begin, Continue, Goal, Refuse
from flinkplus.protocol.determinants.recipe import Division, StoredOutput
from flinkplus.protocol.program.description import LOCATION
from flinkplus.protocol.snapshot.files import StagedFile
from flinkplus.sinks.at_once.attempts import patiently
from flinkplus.sinks.at_once.writer import AtOnceWriter
from flinkplus.sinks.base import RecipeKeeper, RecipeWriter, Sink
from flinkplus.sinks.kafka.client import KafkaTransactions, TransactionClient
from flinkplus.sinks.kafka.cluster import PATIENCE_S, PROGRESS_TOPIC, SCHEME
from flinkplus.sinks.kafka.committer import TopicSession, why_refused
from flinkplus.sinks.kafka.prepared import PreparedPartitions
from flinkplus.sinks.kafka.recipe_records import Shown, Stored
from flinkplus.sinks.kafka.recipe_topic import KafkaPartition, RecipePartition, RecipeTopic
from flinkplus.sinks.kafka.records import RecordForm
from flinkplus.sinks.kafka.subtask import KafkaSubtask, begin_recipe, fence_subtask
from flinkplus.sources.kafka.connecting import KafkaConnection

T = TypeVar("T")
TAG_BYTES = 12
"""Of a job and topic, in the name of their recipe topic."""
FENCES = 8
"""So many subtasks are fenced beside each other."""

log = logging.getLogger("flinkplus")


@dataclass(frozen=True)
class KafkaAtOnceSink(Sink):
    """Records in ``topic``, visible at once. Other fields: see ``KafkaSink``."""

    keeps_recipe: ClassVar[bool] = True
    connection: KafkaConnection = field(default_factory=lambda: KafkaConnection(""))
    topic: str = ""
    progress_topic: str = PROGRESS_TOPIC
    form: RecordForm = field(default_factory=RecordForm)

    @property
    def place(self) -> str:
        """The topic, as a location. The servers of a cluster may change."""
        return f"{SCHEME}{self.topic}"

    @override
    def check_schema(self, schema: pa.Schema) -> None:
        self.form.check(schema, self.name)

    @override
    def settings(self) -> Mapping[str, JsonValue]:
        return {LOCATION: self.place, "value": self.form.value, "visibility": "at_once"}

    @override
    def secrets(self) -> Mapping[str, str]:
        return self.connection.known_secrets(self._owner)

    @override
    def with_secrets(self, secrets: Mapping[str, str]) -> Self:
        return replace(self, connection=replace(self.connection, secrets=dict(secrets)))

    @property
    def _owner(self) -> str:
        return f"sink {self.name!r}"

    @property
    def _producer(self) -> str:
        """What the names of all producers begin with."""
        return f"flinkplus-{self.job_id}/{self.topic}"

    @property
    def recipe_topic(self) -> str:
        tag = blake2b(f"{self.job_id}/{self.topic}".encode(), digest_size=TAG_BYTES).hexdigest()
        return f"{self.progress_topic}-{tag}"

    def transactions(self, job: str) -> KafkaTransactions:
        """The driver's client for the progress of a job."""
        name = f"flinkplus-{job}-{self.topic}"
        return KafkaTransactions(self._owner, self.connection, name, self.topic, self.progress_topic)

    def recipes(self) -> RecipeTopic:
        return RecipeTopic(self._owner, self.connection, self._producer, self.topic, self.recipe_topic)

    def partition(self, index: int, reader: RecipeTopic) -> KafkaPartition:
        """The partition of a subtask. Its producer's name differs from that of the driver."""
        name = f"{self._producer}/{index}"
        return KafkaPartition(self._owner, self.connection, name, self.topic, reader, index, self.form.max_bytes)

    @override
    def writer(self, context: OperatorContext, generation: int) -> RecipeWriter:
        reader = SharedReader(self)

        def connect() -> RecipePartition:
            return self.partition(context.index, reader.topic)

        place = f"topic {self.topic!r}"
        store = KafkaSubtask(self.name, place, generation, self.bound_schema, self.form, connect, reader)
        return AtOnceWriter(self.name, context.index, generation, store)

    @override
    def committer(self) -> KafkaAtOnceKeeper:
        return KafkaAtOnceKeeper(self.job_id, self.topic, KafkaFarEnd(self))


class FarEnd(Protocol):
    """What the keeper needs of a cluster."""

    def transactions(self, job: str) -> TransactionClient: ...

    def partition(self, index: int, until_s: float) -> RecipePartition: ...

    def partitions(self) -> int: ...

    def make(self, partitions: int) -> None: ...

    def grow(self, partitions: int) -> None: ...

    def remove(self) -> None: ...

    def read(self, index: int) -> Shown: ...

    def close(self) -> None: ...


class KafkaFarEnd:
    """The cluster of a sink. Keeps the connection that recipes are read with, and has producers ready."""

    def __init__(self, sink: KafkaAtOnceSink) -> None:
        self._topic = sink.recipes()
        self._prepared = PreparedPartitions(lambda index: sink.partition(index, self._topic))
        self.transactions = sink.transactions
        self.partitions, self.make, self.grow = self._topic.partitions, self._topic.make, self._topic.grow
        self.remove, self.read = self._topic.remove, self._topic.read

    def partition(self, index: int, until_s: float) -> RecipePartition:
        made = self._prepared.take(index)
        made.until_s = until_s
        return made

    def close(self) -> None:
        self._prepared.close()
        self._topic.close()


class KafkaAtOnceKeeper(RecipeKeeper):
    """The driver's side: it makes the recipe topic, fences writers and reads recipes. Rows never go through it.

    The topic of progress says for which checkpoint the subtasks that write were made: the division.
    """

    def __init__(self, job_id: str, topic: str, far: FarEnd) -> None:
        self._job_id, self._topic, self._far = job_id, topic, far
        self._check: Callable[[], None] = lambda: None
        self._division: int | None = None
        self._fenced_at: int | None = None
        """The parallelism at which this driver has fenced the writers: the topic has the partitions."""
        self._place = f"topic {topic!r}"

    @override
    def allow_only_if(self, check: Callable[[], None]) -> None:
        self._check = check

    @contextmanager
    def _session(self, job: str) -> Iterator[TopicSession]:
        session = TopicSession(job, self._far.transactions(job), self._check, self._topic)
        try:
            yield session
        finally:
            session.close()

    def _reached(self, goal: Goal) -> None:
        with self._session(self._job_id) as session:
            self._reach(session, goal)

    def _reach(self, session: TopicSession, goal: Goal) -> int:
        """The division once ``goal`` is reached."""
        progress = session.reach(goal)
        if progress is None:
            raise InvariantViolation(f"{self._place}: nothing is known of the job's output")
        if progress.checkpoint < (self._division or 0):
            raise OutputTopicError(f"{self._place} {why_refused(Refuse('lost'))}")
        self._division = progress.checkpoint
        return progress.checkpoint

    # --- before the first deployment

    @override
    def prepare(self, resume: bool) -> None:
        if resume:
            self._reached(Continue())
            if self._far.partitions():  # it is removed when the job has finished
                self._check_kept()
            return
        self._begin(Begin())

    def _check_kept(self) -> None:
        if not self._far.partitions() or self._far.read(0).stored is None:
            raise OutputTopicError(
                f"{self._place}: what makes its rows again has gone: its topic was removed or made again"
            )

    def _begin(self, goal: Begin) -> None:
        """The recipe topic comes first: where progress is known, a topic that is not there was lost."""
        with self._session(self._job_id) as session:
            session.client.open()  # which brokers without transactions refuse
            session.client.ready()
            has_begun = session.client.read(self._job_id) is not None
        if has_begun:
            self._check_kept()
        self._far.make(1)
        if self._far.read(0).stored is None:  # so that one can see whether the topic was made again
            begin_recipe(self._far.partition(0, time.monotonic() + PATIENCE_S))
        if not goal.again and any(stored.state.step for stored in self._stored().values()):
            raise OutputTopicError(
                f"{self._place} holds output of this job already: give each sink of a job a topic of its own, or union "
                "their streams"
            )
        self._reached(goal)

    @override
    def check_successor(self, job_id: str | None, checkpoint: int) -> None:
        if job_id is None:
            return
        client = self._far.transactions(job_id)
        try:
            known = client.read(job_id)
        finally:
            client.close()
        if known is not None:
            raise OutputTopicError(
                f"{self._place} holds rows of the job that the savepoint is of, also rows after the savepoint, since "
                "they are visible at once: give another topic"
            )

    @override
    def succeed(self, job_id: str | None, checkpoint: int) -> None:
        self.check_successor(job_id, checkpoint)
        self._begin(Begin(again=True))

    # --- while the job runs

    @override
    def fence(
        self, generation: int, subtasks: Collection[int], parallelism: int, patience_s: float
    ) -> Mapping[int, StoredOutput]:
        until_s = time.monotonic() + patience_s

        def action() -> Mapping[int, StoredOutput]:
            if self._fenced_at != parallelism:
                self._far.grow(parallelism)
                self._check_parallelism(parallelism)
            stored = self._fence_all(SubtaskFence(generation, parallelism, self._begun), subtasks, until_s)
            self._fenced_at = parallelism
            return {
                index: StoredOutput() if found is None else StoredOutput(found.state.step, found.entries)
                for index, found in stored.items()
            }

        return patiently(action, patience_s, f"{self._place}: the recipe is read")

    @property
    def _begun(self) -> int:
        if self._division is None:
            raise InvariantViolation(f"{self._place} is written before it was prepared")
        return self._division

    def _check_parallelism(self, parallelism: int) -> None:
        """Raises ``OutputTopicError`` if another number of subtasks has written: some would not be fenced."""
        known = {stored.state.parallelism for stored in self._stored().values() if self._is_of_now(stored)}
        if others := known - {0, parallelism}:
            raise OutputTopicError(
                f"{self._place}: the job has written its rows, which are visible at once, at parallelism "
                f"{max(others)}: resume it at that"
            )

    def _is_of_now(self, stored: Stored) -> bool:
        return stored.state.division == self._begun

    def _fence_all(self, fence: SubtaskFence, subtasks: Collection[int], until_s: float) -> dict[int, Stored | None]:
        def one(index: int) -> Stored | None:
            return fence_subtask(self._far.partition(index, until_s), fence, self._place)

        return self._beside_each_other(one, sorted(subtasks))

    @staticmethod
    def _beside_each_other(action: Callable[[int], T], indexes: Sequence[int]) -> dict[int, T]:
        if not indexes:
            return {}
        with ThreadPoolExecutor(min(FENCES, len(indexes)), "flinkplus-fence") as pool:
            return dict(zip(indexes, pool.map(action, indexes), strict=True))

    def _stored(self) -> dict[int, Stored]:
        """What is stored of all subtasks."""
        found = {index: self._far.read(index).stored for index in range(self._far.partitions())}
        return {index: stored for index, stored in found.items() if stored is not None}

    def _closed_behind(self, generation: int, behind: int, patience_s: float) -> bool:
        """Fence all subtasks that have written; whether nothing of them was made behind the checkpoint ``behind``."""
        of_now = [index for index, stored in self._stored().items() if self._is_of_now(stored)]
        stored = self._fence_all(SubtaskFence(generation), of_now, time.monotonic() + patience_s)
        return not any(
            entry.checkpoint >= behind for found in stored.values() if found is not None for entry in found.entries
        )

    @override
    def divide(self, generation: int, division: Division, parallelism: int, patience_s: float) -> None:
        def action() -> None:
            with self._session(self._job_id) as session:
                if self._reach(session, Continue()) >= division.checkpoint:
                    return
                if not self._closed_behind(generation, division.of, patience_s):
                    raise OutputTopicError(
                        f"{self._place}: rows are visible that were made behind checkpoint {division.of}, of which "
                        f"checkpoint {division.checkpoint} was made: what is stored was changed or restored"
                    )
                self._reach(session, Add(division.checkpoint))
            self._fenced_at = None

        patiently(action, patience_s, f"{self._place}: begun")

    @override
    def close_behind(self, generation: int, behind: int) -> bool:
        def action() -> bool:
            client = self._far.transactions(self._job_id)
            try:
                known = client.read(self._job_id)
            finally:
                client.close()
            if known is None:
                return True
            self._reached(Continue())
            return self._closed_behind(generation, behind, PATIENCE_S)

        return patiently(action, PATIENCE_S, f"{self._place}: the recipe is read")

    @override
    def commit(self, checkpoint: int, files: Sequence[StagedFile]) -> None:
        return None

    @override
    def retract_after(self, checkpoint: int | None) -> None:
        trimmed = max([self._begun, *(stored.state.trimmed for stored in self._stored().values())])
        if trimmed > (checkpoint or 0):
            raise OutputTopicError(
                f"{self._place}: rows are visible that can be made again from checkpoint {trimmed} on only, so the job "
                f"cannot continue from {f'checkpoint {checkpoint}' if checkpoint else 'the start'}"
            )

    @override
    def finish(self) -> None:
        try:
            self._far.remove()
        except (OSError, FlinkPlusError) as error:
            log.warning("the recipe of a finished job stays in its topic: %s", error)

    @override
    def discard(self) -> None:
        """A slot may have ended within a transaction, for which readers of committed records would wait."""

        def end(index: int) -> None:
            partition = self._far.partition(index, time.monotonic() + PATIENCE_S)
            try:
                partition.open()
            finally:
                partition.close()

        try:
            self._beside_each_other(end, sorted(self._stored()))
        except (OSError, FlinkPlusError) as error:
            log.warning("transactions that slots have left open end when they time out: %s", error)

    @override
    def close(self) -> None:
        self._far.close()


class SharedReader:
    """What the writers of a sink read their partitions with: one connection for those of a process, which is there as
    long as one of them runs. So the writer of a promoted standby finds it open."""

    _topics: ClassVar[dict[str, tuple[RecipeTopic, int]]] = {}
    _changing: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, sink: KafkaAtOnceSink) -> None:
        self._sink = sink

    @property
    def topic(self) -> RecipeTopic:
        return self._topics[self._sink.recipe_topic][0]

    def __enter__(self) -> None:
        with self._changing:
            topic, users = self._topics.get(self._sink.recipe_topic) or (self._sink.recipes(), 0)
            self._topics[self._sink.recipe_topic] = topic, users + 1

    def __exit__(self, *_: object) -> None:
        with self._changing:
            topic, users = self._topics.pop(self._sink.recipe_topic)
            if users > 1:
                self._topics[self._sink.recipe_topic] = topic, users - 1
                return
        topic.close()
