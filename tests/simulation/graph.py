"""What a simulated job is made of, and what must come of it by a plain sequential reckoning.

A vertex counts: each record that passes it gets the number of records of its key so far. So a row tells the order in
which every keyed subtask on its way worked, and a history in which two of them disagree about the past shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flinkplus.graph import Vertex
from flinkplus.protocol.loops.cycles import Cycles
from flinkplus.protocol.vocabulary import key_groups
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId

MOST_LAPS = 4
"""A record goes round a loop fewer times than this, by its number."""
RecordId = tuple[int, int, int]
"""Source vertex, source subtask, number."""
Passage = tuple[int, int, int]
"""Vertex, key, and the number of this record among those of the key."""
Row = tuple[RecordId, tuple[Passage, ...]]
"""A record, and the vertices that it has passed."""
Channels = list[tuple[ChannelId, SubtaskId, SubtaskId]]
"""Each with its producer and its consumer."""


@dataclass(frozen=True)
class Exchange:
    """All subtasks of ``producer`` are linked to all of ``consumer`` (positions of vertices)."""

    edge: int
    producer: int
    consumer: int


@dataclass
class SimGraph:
    """Stands for ``flinkplus.graph.JobGraph``. ``edges``: (producer, consumer) by position; a vertex without inputs is
    a source, one without outputs has a sink. ``loops``: edges that lead back, from the end of a loop to its head; the
    end sends every row out as well as round, so that all that was counted shows. ``parallelism``: at the start; a
    source has so many streams of ``records`` each, whatever it becomes. ``groups``: of keys, of which each subtask owns
    a range (0: keys are dealt by number). ``at_once``: rows of sinks are visible at once.
    ``asking``: vertices whose rows wait for answers from outside."""

    stages: int
    edges: tuple[tuple[int, int], ...]
    parallelism: int
    records: int
    keys: int
    loops: tuple[tuple[int, int], ...] = ()
    groups: int = 0
    at_once: bool = False
    asking: tuple[int, ...] = ()
    nodes: tuple[Any, ...] = ()
    vertices: list[Vertex] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.exchanges = [Exchange(edge, start, end) for edge, (start, end) in enumerate((*self.edges, *self.loops))]
        for at in range(self.stages):
            inputs = tuple(x.edge for x in self.exchanges if x.consumer == at)
            outputs = tuple(x.edge for x in self.exchanges if x.producer == at)
            self.vertices.append(Vertex(f"v{at}", (at,), inputs, outputs, not inputs))
        self.nodes = tuple(SimpleNamespace(name=vertex.name, body=None) for vertex in self.vertices)
        self._consumers: dict[ChannelId, SubtaskId] = {}
        self._inputs: dict[tuple[SubtaskId, int], list[tuple[ChannelId, SubtaskId]]] = {}
        self._channels: dict[int, Channels] = {}
        self._by_name = {vertex.name: vertex for vertex in self.vertices}
        heads = [f"v{head}" for _, head in self.loops]
        edges = [(x.edge, f"v{x.producer}", f"v{x.consumer}") for x in self.exchanges]
        self._cycles = Cycles(edges, (*reversed(heads), *(vertex.name for vertex in self.vertices)))

    def cycles(self) -> Cycles:
        return self._cycles

    def asking_vertices(self) -> tuple[str, ...]:
        return tuple(f"v{at}" for at in self.asking)

    def goes_on(self, row: Row, edge: int) -> bool:
        """Whether a row goes along an edge: round a loop for as often as its record has laps."""
        record, passages = row
        return edge < len(self.edges) or self._goes_round(record, [at for at, _, _ in passages], edge)

    def _goes_round(self, record: RecordId, route: Sequence[int], edge: int) -> bool:
        return route.count(self.exchanges[edge].consumer) <= record[2] % MOST_LAPS

    def vertex_of(self, name: str) -> Vertex:
        return self._by_name[name]

    def producer_vertex(self, edge: int) -> Vertex:
        return self.vertices[self.exchanges[edge].producer]

    def consumer_vertex(self, edge: int) -> Vertex:
        return self.vertices[self.exchanges[edge].consumer]

    def has_keyed_state(self, vertex: Vertex) -> bool:
        return not vertex.is_source

    def has_sink(self, vertex: Vertex) -> bool:
        return not vertex.outputs

    def recipes(self) -> tuple[str, ...]:
        return tuple(vertex.name for vertex in self.vertices if self.recipe_sinks(vertex))

    def recipe_sinks(self, vertex: Vertex) -> list[str]:
        return [vertex.name] if self.at_once and not vertex.outputs else []

    def inputs_of(self, subtask: SubtaskId, parallelism: int) -> list[tuple[ChannelId, SubtaskId]]:
        found = self._inputs.get((subtask, parallelism))
        if found is None:
            found = self._inputs[subtask, parallelism] = [
                (ChannelId(edge, index, subtask.index), SubtaskId(self.producer_vertex(edge).name, index))
                for edge in self.vertex_of(subtask.vertex).inputs
                for index in range(parallelism)
            ]
        return found

    def consumer_of(self, channel: ChannelId) -> SubtaskId:
        found = self._consumers.get(channel)
        if found is None:
            found = SubtaskId(self.consumer_vertex(channel.edge).name, channel.consumer)
            self._consumers[channel] = found
        return found

    def subtasks(self, parallelism: int) -> list[SubtaskId]:
        return [SubtaskId(vertex.name, index) for vertex in self.vertices for index in range(parallelism)]

    def channels(self, parallelism: int) -> Channels:
        """All channels of the job."""
        found = self._channels.get(parallelism)
        if found is None:
            found = self._channels[parallelism] = [
                (channel, producer, subtask)
                for subtask in self.subtasks(parallelism)
                for channel, producer in self.inputs_of(subtask, parallelism)
            ]
        return found

    @property
    def blocks(self) -> int:
        """Records of a source: they are dealt by number, that of a stream after that of the one before."""
        return self.records * self.parallelism

    def record(self, source: int, block: int) -> RecordId:
        return source, block % self.parallelism, block // self.parallelism

    def group(self, key: int) -> int:
        """The group of a key; the keys of a job are spread over all groups."""
        return key * 3 % self.groups

    def owner(self, key: int, parallelism: int) -> int:
        """The index of the subtask that a key belongs to."""
        if not self.groups:
            return key % parallelism
        return key_groups.owner_of(self.group(key), parallelism, self.groups)

    def key(self, record: RecordId, vertex: int) -> int:
        """The key that a vertex counts a record by."""
        source, subtask, number = record
        return (number * 7 + subtask * 3 + source + vertex * 5) % self.keys

    def expected(self) -> Expectation:
        """What a run without failures puts out."""
        lineages: set[tuple[RecordId, tuple[int, ...]]] = set()
        for laps in range(min(MOST_LAPS, self.records)):
            for route in self._routes(laps):
                lineages |= {
                    ((route[0], index, number), route[1:])
                    for index in range(self.parallelism)
                    for number in range(laps, self.records, MOST_LAPS)
                }
        return Expectation(self, lineages)

    def _routes(self, laps: int) -> list[tuple[int, ...]]:
        """All ways from a source to a sink for records with so many laps."""
        routes: list[tuple[int, ...]] = []
        pending: list[tuple[int, ...]] = [(at,) for at, vertex in enumerate(self.vertices) if vertex.is_source]
        while pending:
            route = pending.pop()
            following = [x for x in self.exchanges if x.producer == route[-1]]
            if not following:
                routes.append(route)
            pending.extend(
                (*route, x.consumer)
                for x in following
                if x.edge < len(self.edges) or self._goes_round((0, 0, laps), route, x.edge)
            )
        return routes


class Expectation:
    """The rows that a job must put out: every record once on every route, numbered without gap or repetition."""

    def __init__(self, graph: SimGraph, lineages: set[tuple[RecordId, tuple[int, ...]]]) -> None:
        self._graph = graph
        self._lineages = lineages
        self._seen: set[tuple[RecordId, tuple[int, ...]]] = set()  # never iterated in an order that shows
        self._numbers: dict[Passage, tuple[RecordId, tuple[int, ...]]] = {}

    def take(self, rows: Iterable[Row]) -> str | None:
        """Further rows are visible; says what is wrong with them, if anything is."""
        for record, passages in rows:
            lineage = (record, tuple(vertex for vertex, _, _ in passages))
            if lineage not in self._lineages:
                return f"{lineage} is not in the input"
            if lineage in self._seen:
                return f"{lineage} was put out twice"
            self._seen.add(lineage)
            for at, passage in enumerate(passages):
                vertex, key, number = passage
                prefix = (record, lineage[1][: at + 1])
                if key != self._graph.key(record, vertex):
                    return f"{lineage} was counted as key {key} at v{vertex}"
                other = self._numbers.setdefault(passage, prefix)
                if other != prefix:
                    return f"{prefix} and {other} are both number {number} of key {key} at v{vertex}"
        return None

    def take_loosely(self, rows: Iterable[Row], again: bool) -> str | None:
        """The same, where rows may be lost, or (``again``) put out repeatedly; so numbers tell nothing."""
        for record, passages in rows:
            lineage = (record, tuple(vertex for vertex, _, _ in passages))
            if lineage not in self._lineages:
                return f"{lineage} is not in the input"
            if lineage in self._seen and not again:
                return f"{lineage} was put out twice"
            self._seen.add(lineage)
        return None

    def lost(self) -> str | None:
        """The job says that this was all; which rows were never put out."""
        left = self._lineages - self._seen
        return f"{len(left)} rows were never put out, the first {min(left)}" if left else None

    def missing(self) -> str | None:
        """The job says that this was all; says what is not there, if anything."""
        left = self._lineages - self._seen
        if left:
            return f"{len(left)} rows were never put out, the first {min(left)}"
        highest: dict[tuple[int, int], int] = {}
        count: Counter[tuple[int, int]] = Counter()
        for vertex, key, number in self._numbers:
            highest[vertex, key] = max(highest.get((vertex, key), 0), number)
            count[vertex, key] += 1
        for (vertex, key), number in sorted(highest.items()):
            if number != count[vertex, key]:
                return f"key {key} at v{vertex} was counted up to {number}, but {count[vertex, key]} records passed"
        return None
