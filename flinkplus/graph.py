"""The job graph: what the user drew, cut into vertices whose operators run fused in one subtask.

Rules: everything between two exchanges (``key_by``, ``union``) is one *vertex*, a tree of operators whose root is a
source or the consumer of exchanges. A vertex is named by its operators joined with ``+``; each of them addresses its
subtasks. Operator names are unique in a job. Nodes, and so vertices, are in topological order, except for the feedback
of ``iterate`` to the head of a loop. The graph is pickled for slots, and in the plan of the job.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from flinkplus.errors import ConfigurationError, UnsafeName
from flinkplus.near import did_you_mean
from flinkplus.operators.base.operator import Operator, described_columns
from flinkplus.operators.base.routes import Route
from flinkplus.operators.base.schema import united
from flinkplus.operators.rows.loop import LoopHead
from flinkplus.operators.rows.rejects import METHODS, SideOutput
from flinkplus.path_names import MAX_CHARACTERS, checked_name
from flinkplus.protocol.loops.cycles import Cycles
from flinkplus.protocol.program.description import EdgeDescription, OperatorDescription, Program
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.sinks.base import Sink
from flinkplus.sources.base import Source

NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-. ")


@dataclass
class Node:
    """One operator, source or sink of the logical graph, with the nodes and exchanges it feeds."""

    name: str
    kind: str  # "source" | "operator" | "sink"
    body: Source | Operator | Sink
    schema: pa.Schema
    rate: float | None = None  # records per second that may leave this node, over all subtasks (``throttle``)
    children: list[int] = field(default_factory=list)
    exchanges: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Exchange:
    """Rows of ``producer`` (node index) go to ``consumer`` by the hash of ``columns``, or by another ``route``."""

    edge: int
    producer: int
    consumer: int
    columns: tuple[str, ...]
    route: Route = "hash"


@dataclass(frozen=True)
class Vertex:
    """A fused run of nodes. ``nodes`` are indexes into the graph in topological order; the first is the root."""

    name: str
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]  # edges
    outputs: tuple[int, ...]  # edges
    is_source: bool


@dataclass
class JobGraph:
    nodes: list[Node] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    vertices: list[Vertex] = field(default_factory=list)

    def add(self, node: Node, parent: int | None = None) -> int:
        """Add a node, fused with ``parent``; ``None``: it is a source, or ``link`` gives it its inputs."""
        try:
            fine = NAME_CHARACTERS.issuperset(checked_name(node.name))
        except UnsafeName:
            fine = False
        if not fine:
            raise ConfigurationError(
                f"operator name {node.name!r:.300} must be letters, digits, space, '_', '-' or '.', not begin with "
                f"'.', and have {MAX_CHARACTERS} characters at most"
            )
        if any(other.name == node.name for other in self.nodes):
            raise ConfigurationError(f"two operators are called {node.name!r}; give one another name=...")
        index = len(self.nodes)
        self.nodes.append(node)
        if parent is not None:
            self.nodes[parent].children.append(index)
        return index

    def link(self, producer: int, consumer: int, columns: tuple[str, ...], route: Route = "hash") -> None:
        """Add an exchange between two nodes; ``consumer`` is the root of a vertex, and may be that of several."""
        edge = len(self.exchanges)
        self.exchanges.append(Exchange(edge, producer, consumer, columns, route))
        self.nodes[producer].exchanges.append(edge)

    def fuse(self) -> JobGraph:
        """Cut the graph into vertices; returns self. Raises ``ConfigurationError`` when there is nothing to run."""
        if not any(node.kind == "sink" for node in self.nodes):
            raise ConfigurationError(
                "the job has no sink: end a stream with to_parquet, to_text, to_postgres, collect or discard"
            )
        for head in self.loop_heads():
            if not any(self.nodes[index].kind == "sink" for index in self.reached([head])):
                raise ConfigurationError(
                    f"nothing that comes out of loop {self.nodes[head].name!r} is written anywhere: end the stream "
                    "that iterate returns with a sink"
                )
        self._check_side_outputs()
        self._check_clocks()
        self.vertices = self.fuse_draft()
        self._check_loops()
        return self

    def asking_vertices(self) -> tuple[str, ...]:
        """The names of the vertices whose rows wait for answers from outside."""
        return tuple(vertex.name for vertex in self.vertices if self._asks(vertex.nodes[0]))

    def _asks(self, index: int) -> bool:
        body = self.nodes[index].body
        return isinstance(body, Operator) and body.asks

    def _check_loops(self) -> None:
        """Raises ``ConfigurationError`` for what cannot be in a loop: rows that wait for answers, of which the loop
        does not know, and rows for all subtasks."""
        cycles = self.cycles()
        for vertex in self.asking_vertices():
            if cycles.head_of(vertex) is not None:
                name = self.nodes[self.vertex_of(vertex).nodes[0]].name
                raise ConfigurationError(
                    f"operator {name!r} asks something outside, and is in a loop, which would end while rows wait for "
                    "answers: call map_async before or after iterate"
                )
        for exchange in self.exchanges:
            if exchange.route == "broadcast" and cycles.head_of(self.consumer_vertex(exchange.edge).name) is not None:
                raise ConfigurationError(
                    f"operator {self.nodes[exchange.consumer].name!r} gets broadcast rows, and is in a loop: call "
                    "connect_broadcast before or after iterate"
                )

    def _check_side_outputs(self) -> None:
        """Raises ``ConfigurationError`` for a side output whose rows go nowhere."""
        for node in self.nodes:
            body = node.body
            if isinstance(body, SideOutput) and body.output is not None and not node.children and not node.exchanges:
                stream = METHODS.get(body.output, f"side_output({body.output!r})")
                raise ConfigurationError(
                    f"the rows of {node.name!r} go nowhere: end {stream} of what {body.operator!r} gives with a sink, "
                    "such as discard()"
                )

    def _check_clocks(self) -> None:
        """Raises ``ConfigurationError`` for timers of processing time in a loop: it ends when no row comes round any
        more, and such a timer could give one after that."""
        for index, node in enumerate(self.nodes):
            if isinstance(node.body, Operator) and node.body.has_clock:
                near = [*node.children, *(self.exchanges[edge].consumer for edge in node.exchanges)]
                if index in self.reached(near):
                    raise ConfigurationError(
                        f"operator {node.name!r} is in a loop, and has timers of processing time, which may give rows "
                        "when the loop has ended: use ctx.now(), or set the timers behind the loop"
                    )

    def fuse_draft(self) -> list[Vertex]:
        """The vertices of what is drawn so far, producers before consumers."""
        roots = {i for i, node in enumerate(self.nodes) if node.kind == "source"}
        roots |= {exchange.consumer for exchange in self.exchanges}
        return [self._vertex(root) for root in sorted(roots)]

    def _vertex(self, root: int) -> Vertex:
        order: list[int] = []
        pending = [root]
        while pending:
            index = pending.pop(0)
            order.append(index)
            pending.extend(self.nodes[index].children)
        return Vertex(
            name="+".join(self.nodes[i].name for i in order),
            nodes=tuple(order),
            inputs=tuple(x.edge for x in self.exchanges if x.consumer == root),
            outputs=tuple(x.edge for x in self.exchanges if x.producer in order),
            is_source=self.nodes[root].kind == "source",
        )

    def vertex_of(self, name: str) -> Vertex:
        """The vertex with this name, or this operator. Raises ``ConfigurationError``, which lists them."""
        for vertex in self.vertices:
            if vertex.name == name or any(self.nodes[i].name == name for i in vertex.nodes):
                return vertex
        known = [node.name for node in self.nodes]
        raise ConfigurationError(
            f"no operator is called {name!r}; the operators are: {', '.join(known)}{did_you_mean(name, known)}"
        )

    def consumer_vertex(self, edge: int) -> Vertex:
        consumer = self.exchanges[edge].consumer
        return next(vertex for vertex in self.vertices if vertex.nodes[0] == consumer)

    def producer_vertex(self, edge: int) -> Vertex:
        producer = self.exchanges[edge].producer
        return next(vertex for vertex in self.vertices if producer in vertex.nodes)

    def input_schemas(self, vertex: Vertex) -> dict[int, pa.Schema]:
        """The logical schema of the input of each node of a vertex."""
        parents = {child: node for node in vertex.nodes for child in self.nodes[node].children}
        return {
            at: self.nodes[parents[at]].schema if at in parents else self.root_schema(vertex) for at in vertex.nodes
        }

    def root_schema(self, vertex: Vertex) -> pa.Schema:
        """The schema of the rows that the root of a vertex receives, or, as a source, reads."""
        if vertex.is_source:
            return self.nodes[vertex.nodes[0]].schema
        body = self.nodes[vertex.nodes[0]].body
        if isinstance(body, Operator) and body.several_schemas:
            return self.nodes[self.exchanges[vertex.inputs[0]].producer].schema
        return united([self.nodes[self.exchanges[edge].producer].schema for edge in vertex.inputs])

    def has_keyed_state(self, vertex: Vertex) -> bool:
        bodies = [self.nodes[i].body for i in vertex.nodes]
        return any(isinstance(body, Operator) and body.has_state for body in bodies)

    def hears_watermarks(self, edge: int) -> bool:
        """Whether an operator behind an exchange reacts to its watermarks."""
        return self._hears(self.exchanges[edge].consumer)

    def _hears(self, index: int) -> bool:
        node = self.nodes[index]
        if isinstance(node.body, Operator):
            if node.body.hears_watermarks:
                return True
            if node.body.makes_watermarks or node.body.stops_watermarks:
                return False
        return any(map(self._hears, node.children)) or any(map(self.hears_watermarks, node.exchanges))

    def has_watermarks(self, index: int) -> bool:
        """Whether a node emits watermarks: it makes them, or nodes before it on every path from a source do."""
        body = self.nodes[index].body
        if isinstance(body, Operator) and (body.makes_watermarks or body.stops_watermarks):
            return body.makes_watermarks
        parents = [at for at, node in enumerate(self.nodes) if index in node.children]
        parents += [exchange.producer for exchange in self.exchanges if exchange.consumer == index]
        return bool(parents) and all(map(self.has_watermarks, parents))

    def sinks(self) -> dict[str, Sink]:
        """The sinks, by name."""
        return {node.name: node.body for node in self.nodes if isinstance(node.body, Sink)}

    def recipes(self) -> tuple[str, ...]:
        """The names of the vertices with a sink that keeps a recipe (``protocol.determinants.recipe``)."""
        return tuple(vertex.name for vertex in self.vertices if self.recipe_sinks(vertex))

    def recipe_sinks(self, vertex: Vertex) -> list[str]:
        """The names of the sinks of a vertex that keep a recipe."""
        nodes = [self.nodes[index] for index in vertex.nodes]
        return [node.name for node in nodes if isinstance(node.body, Sink) and node.body.keeps_recipe]

    def has_sink(self, vertex: Vertex) -> bool:
        return any(isinstance(self.nodes[i].body, Sink) for i in vertex.nodes)

    def inputs_of(self, subtask: SubtaskId, parallelism: int) -> list[tuple[ChannelId, SubtaskId]]:
        """The input channels of a subtask, each with its producer."""
        return [
            (ChannelId(edge, index, subtask.index), SubtaskId(self.producer_vertex(edge).name, index))
            for edge in self.vertex_of(subtask.vertex).inputs
            for index in range(parallelism)
        ]

    def loop_heads(self) -> list[int]:
        return [index for index, node in enumerate(self.nodes) if isinstance(node.body, LoopHead)]

    def reached(self, first: Sequence[int], *, backwards: bool = False) -> frozenset[int]:
        """The nodes ``first``, and all that their rows reach, or (``backwards``) whose rows reach them."""
        links = [(index, child) for index, node in enumerate(self.nodes) for child in node.children]
        links += [(exchange.producer, exchange.consumer) for exchange in self.exchanges]
        found = list(dict.fromkeys(first))
        for near in found:  # grows while it is walked
            for producer, consumer in links:
                start, end = (consumer, producer) if backwards else (producer, consumer)
                if start == near and end not in found:
                    found.append(end)
        return frozenset(found)

    def cycles(self) -> Cycles:
        """The loops, by the vertices as they are fused."""
        edges = [(x.edge, self.producer_vertex(x.edge).name, self.consumer_vertex(x.edge).name) for x in self.exchanges]
        heads = [vertex.name for vertex in reversed(self.vertices) if vertex.nodes[0] in self.loop_heads()]
        return Cycles(edges, (*heads, *(vertex.name for vertex in self.vertices)))

    def shape(self, max_parallelism: int) -> dict[str, str]:
        """The content of ``fingerprint`` as text: a description of each operator, and of its inputs."""
        shape = {"max_parallelism": str(max_parallelism)}
        for node in self.nodes:
            fields = ", ".join(f"{field.name} {field.type}" for field in node.schema)
            shape[f"{node.kind} {node.name!r}"] = f"{type(node.body).__name__} of ({fields})"
        links = [(self.nodes[child].name, node.name) for node in self.nodes for child in node.children]
        for exchange in self.exchanges:
            columns = f" of {', '.join(exchange.columns)}" if exchange.columns else ""
            way = f"{self.nodes[exchange.producer].name} by {exchange.route}{columns}"
            links.append((self.nodes[exchange.consumer].name, way))
        for consumer, way in links:
            name = f"input of {consumer!r}"
            shape[name] = f"{shape[name]} and {way}" if name in shape else way
        return shape

    def program(self, max_parallelism: int) -> Program:
        """The description of the program, by which checkpoints of it are compared with other programs."""
        schemas = {at: schema for vertex in self.vertices for at, schema in self.input_schemas(vertex).items()}
        names = [node.name for node in self.nodes]
        return Program(
            max_parallelism=max_parallelism,
            operators={node.name: self._described(at, schemas[at]) for at, node in enumerate(self.nodes)},
            edges=tuple(
                EdgeDescription(producer=names[x.producer], consumer=names[x.consumer], keys=x.columns, route=x.route)
                for x in self.exchanges
            ),
            vertices=tuple(vertex.name for vertex in self.vertices),
        )

    def _described(self, index: int, schema: pa.Schema) -> OperatorDescription:
        node = self.nodes[index]
        body = node.body
        inputs = [other.name for other in self.nodes if index in other.children]
        inputs += [self.nodes[x.producer].name for x in self.exchanges if x.consumer == index]
        return OperatorDescription(
            kind=node.kind,
            body=type(body).__name__,
            inputs=tuple(inputs),
            columns=described_columns(node.schema),
            settings={} if isinstance(body, Operator) else dict(body.settings()),
            state=body.described_state(schema) if isinstance(body, Operator) else None,
            split=digest_of_plan(body.split_plan()) if isinstance(body, Source) else "",
        )

    def fingerprint(self, max_parallelism: int) -> str:
        """A digest of names, kinds, schemas, exchanges and the number of key groups; state fits only an equal one."""
        shape = {
            "max_parallelism": max_parallelism,
            "nodes": [
                [n.name, n.kind, type(n.body).__name__, str(n.schema), n.children, n.exchanges] for n in self.nodes
            ],
            "exchanges": [[x.producer, x.consumer, list(x.columns), x.route] for x in self.exchanges],
        }
        return hashlib.blake2b(json.dumps(shape, sort_keys=True).encode(), digest_size=16).hexdigest()


def digest_of_plan(plan: object) -> str:
    """The name of what the driver has planned for a source (``Source.split_plan``); ``""`` for nothing."""
    if plan is None:
        return ""
    return hashlib.blake2b(json.dumps(plan, sort_keys=True).encode(), digest_size=16).hexdigest()
