"""The description of a program, as each manifest holds it: JSON, so that it is compared without loading the program.

Rules: operators are known by their names; a state belongs to one of them. Edges are numbered by their place in
``Program.edges``, as channels are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flinkplus.documents import Document

Kind = str
"""``source``, ``operator`` or ``sink``."""
StateForm = Literal["values", "tuples", "pages"]
FUSED = "+"
"""Between the names of operators in the name of a vertex."""
LOCATION = "location"
"""The setting of a sink that says where its output is."""


@dataclass(frozen=True, kw_only=True)
class Column(Document):
    """A column of rows. ``type``: as Arrow writes it (``int64``, ``decimal128(10, 2)``)."""

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.type}" + ("" if self.nullable else " not null")


def columns_text(columns: Sequence[Column]) -> str:
    """``columns`` as text for users."""
    return ", ".join(map(str, columns)) or "nothing"


@dataclass(frozen=True, kw_only=True)
class StateDescription(Document):
    """What an operator keeps.

    ``keys``: the types of the key columns, in order.
    ``settings``: what must be equal for the state to keep its meaning, such as the size of a window; JSON.
    ``rows``: the columns of what is kept, by what follows the operator's name in the name of a keyed state.
    ``form``: how rows are kept: ``values`` (plain values), ``tuples`` (a tuple for each row) or ``pages`` (Arrow).
    ``progress``: only how far the operator has come, which may go with the operator without being named.
    """

    keys: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, tuple[Column, ...]] = field(default_factory=dict)
    form: str = "values"
    progress: bool = False


@dataclass(frozen=True, kw_only=True)
class OperatorDescription(Document):
    """One source, operator or sink.

    ``body``: the name of its class.
    ``inputs``: the operators that its rows come from.
    ``columns``: of the rows that leave it; of a sink, of those that it writes.
    ``settings``: what a source's position depends on; where and how a sink writes.
    ``state``: ``None`` for an operator that keeps nothing, and for sources and sinks.
    ``split``: of a source, a digest of what the driver has planned (files, sizes, rows); ``""``: nothing.
    """

    kind: Kind
    body: str
    inputs: tuple[str, ...]
    columns: tuple[Column, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    state: StateDescription | None = None
    split: str = ""


@dataclass(frozen=True, kw_only=True)
class EdgeDescription(Document):
    """An exchange: rows of ``producer`` go to ``consumer``, the root of a vertex, by ``route`` of ``keys``."""

    producer: str
    consumer: str
    keys: tuple[str, ...]
    route: str


@dataclass(frozen=True, kw_only=True)
class Program(Document):
    """A program. ``operators``: by name. ``vertices``: their names, the operators' joined with ``+``."""

    max_parallelism: int
    operators: dict[str, OperatorDescription]
    edges: tuple[EdgeDescription, ...]
    vertices: tuple[str, ...]

    def vertex_of(self, operator: str) -> str:
        """The vertex that runs ``operator``. Raises ``KeyError``."""
        for vertex in self.vertices:
            if operator in vertex.split(FUSED):
                return vertex
        raise KeyError(operator)

    def inputs_of(self, vertex: str) -> list[int]:
        """The edges that lead to a vertex, in the order of its inputs."""
        root = vertex.split(FUSED, maxsplit=1)[0]
        return [number for number, edge in enumerate(self.edges) if edge.consumer == root]

    def is_gathered(self, vertex: str) -> bool:
        """Whether one subtask of a vertex gets all rows."""
        return any(self.edges[number].route == "gather" for number in self.inputs_of(vertex))

    def reached(self, first: Sequence[str]) -> set[str]:
        """The operators ``first``, and all that their rows reach."""
        found = set(first)
        while True:
            more = {name for name, known in self.operators.items() if found.intersection(known.inputs)} - found
            if not more:
                return found
            found |= more

    def restores_as(self, other: Program) -> bool:
        """Whether a checkpoint of this program is one of ``other`` as it stands: nothing that it holds has changed."""
        return self._held() == other._held()

    def _held(self) -> object:
        operators = {
            name: (known.kind, known.settings, known.state, known.state and known.body)
            for name, known in self.operators.items()
        }
        return self.max_parallelism, operators, self.edges, self.vertices
