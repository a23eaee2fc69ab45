"""The examples without Spark: graphs, sequential results, what is drawn, and the command line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from flinkplus.cli import session
from flinkplus.cli.main import main
from flinkplus.errors import InputError
from flinkplus.examples import components, pagerank, running
from flinkplus.examples.graphs import Adjacency, GraphFile, RandomGraph, rows_of
from flinkplus.examples.running import Run
from tests.unit.api.drawing import environment

GRAPH = RandomGraph(vertices=300, degree=3, seed=5)


class Context:
    """As much of a ``ProcessContext`` as the examples need."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, str], object] = {}
        self.key = 0

    def state(self, name: str) -> Value:
        return Value(self, name)


class Value:
    def __init__(self, ctx: Context, name: str) -> None:
        self._values, self._key = ctx.values, (ctx.key, name)

    def get(self, default: object = None) -> object:
        return self._values.get(self._key, default)

    def put(self, value: object) -> None:
        self._values[self._key] = value


def in_any_order(graph: Adjacency, seed: int, name: str) -> list[tuple[int, int]]:
    """The output of an example, whose rows are taken in an order that nobody would choose."""
    rng, ctx = random.Random(seed), Context()
    waiting: list[components.Heard | pagerank.Page] = []
    output: list[tuple[int, int]] = []
    for vertex, neighbours in graph.items():
        if name == "components":
            waiting += components.both_ways(components.Heard(vertex, list(neighbours), None))
        else:
            waiting.append(pagerank.Page(vertex, list(neighbours), pagerank.MASS))
    while waiting:
        row = waiting.pop(rng.randrange(len(waiting)))
        ctx.key = row.vertex
        if isinstance(row, components.Heard):
            for heard in components.lowest(row.vertex, row, ctx):
                waiting += [components.Heard(other, None, heard.label) for other in heard.targets]
                output += [(heard.vertex, heard.label)] if heard.fell else []
        else:
            for step in pagerank.fire(row.vertex, row, ctx):
                waiting += [pagerank.Page(other, None, step.share) for other in step.targets]
                output.append((step.vertex, step.rank))
    return output


@pytest.mark.parametrize("seed", range(5))
def test_the_order_does_not_matter(seed: int) -> None:
    graph = GRAPH.adjacency()
    for example, name in ((components, "components"), (pagerank, "pagerank")):
        assert example.result(in_any_order(graph, seed, name)) == example.sequential(graph)


def test_ranks_are_those_of_page_rank() -> None:
    """By power iteration; what is left as residual at each vertex may be missing, and what it would have become."""
    graph = {0: (1, 2), 1: (2,), 2: (0,), 3: (2, 0)}
    ranks = dict.fromkeys(graph, 0.0)
    moving = dict.fromkeys(graph, 1.0)
    for _ in range(300):
        arriving = dict.fromkeys(graph, 0.0)
        for vertex, mass in moving.items():
            ranks[vertex] += 0.15 * mass
            for other in graph[vertex]:
                arriving[other] += 0.85 * mass / len(graph[vertex])
        moving = arriving
    found = pagerank.sequential(graph)
    assert all(abs(found[vertex] / pagerank.MASS - rank) < 0.02 for vertex, rank in ranks.items())


def test_a_row_that_is_there_twice_is_noticed() -> None:
    with pytest.raises(ValueError, match="the label of vertex 1 falls to 0 twice"):
        components.result([(1, 1), (1, 0), (1, 0)])
    with pytest.raises(ValueError, match="the rank of vertex 1 rises to 30 twice"):
        pagerank.result([(1, 30), (1, 60), (1, 30)])


def test_a_vertex_has_one_line() -> None:
    ctx = Context()
    pagerank.fire(1, pagerank.Page(1, [2], 5), ctx)
    with pytest.raises(ValueError, match="vertex 1 has two lines"):
        pagerank.fire(1, pagerank.Page(1, [2], 5), ctx)


@pytest.mark.parametrize("draw", [components.labels, pagerank.ranks])
def test_what_is_drawn_is_a_loop(draw: object) -> None:
    assert callable(draw)
    env = environment()
    draw(rows_of(env, GRAPH, 100.0)).discard(name="out")
    assert len(env.graph.fuse().cycles().loop_heads) == 1


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("0 1 2\n\n1\n2 0\n")
    assert GraphFile(str(path)).adjacency() == {0: (1, 2), 1: (), 2: (0,)}
    assert components.sequential(GraphFile(str(path)).adjacency()) == {0: 0, 1: 0, 2: 0}
    for text, problem in (
        ("0 1\n0 2\n", "vertex 0 has two lines"),
        ("a b\n", "line 1: 'a b'"),
        ("-1\n", "line 1: '-1'"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=problem):
            GraphFile(str(path)).adjacency()
    with pytest.raises(InputError, match="cannot be read"):
        GraphFile(str(tmp_path / "none")).adjacency()


def test_kills_follow_from_the_seed() -> None:
    run = Run("components", GRAPH, rate=100.0, kills=4, seed=3)
    assert run.schedule(300, 3) == run.schedule(300, 3) == sorted(run.schedule(300, 3))
    assert all(0.3 * 3 <= at_s <= 0.9 * 3 and slot < 3 for at_s, slot in run.schedule(300, 3))


def test_bad_usage_is_said_before_spark_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "components", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["example", "pagerank", "--kills", "-1"]) == 2
    assert "--kills must not be negative" in capsys.readouterr().err


class NoSession:
    def stop(self) -> None:
        return None


@pytest.mark.parametrize("equal", [True, False])
def test_the_command_says_whether_the_result_is_right(
    equal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []

    def run_example(_spark: object, run: Run) -> dict[str, object]:
        runs.append(run)
        counts = {
            "vertices": 2_000,
            "results": 1_999,
            "went_round": 12_345,
            "killed": 1,
            "failovers": 0,
            "fallbacks": 1,
        }
        return {"example": run.name, "equal": equal, "running_s": 2.5, "fallback_reasons": ["all died"], **counts}

    monkeypatch.setattr(session, "open_session", lambda *_: NoSession())
    monkeypatch.setattr(running, "run_example", run_example)
    json_path = tmp_path / "figures.json"
    arguments = [
        "example",
        "pagerank",
        "--kills",
        "1",
        "--seed",
        "4",
        "--recovery",
        "rollback",
        "--json",
        str(json_path),
    ]
    assert main(arguments) == (0 if equal else 1)
    assert runs[0].kills == 1 and runs[0].options["recovery"] == "rollback"
    assert runs[0].graph == RandomGraph(2_000, 2, 4)
    told = capsys.readouterr().out
    assert "pagerank: 2,000 vertices in 2.50 s; 12,345 rows went into the loop, or round it" in told
    assert f"the result is {'equal to' if equal else 'DIFFERENT from'} that of the sequential computation" in told
    assert "slots killed: 1; failovers by standbys: 0; fallbacks to a rollback: 1\nfell back: all died" in told
    assert json.loads(json_path.read_text())["equal"] is equal
