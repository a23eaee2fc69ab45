"""Which tables are asked about rows that are visible behind the checkpoint, before a job begins with other subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.protocol.program.comparison import compare
from flinkplus.protocol.snapshot.handle import OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, SubtaskId
from flinkplus.runtime.job.plan import Plan
from flinkplus.runtime.job.upgrading.visible_rows import RunBefore, close_output
from tests.unit.api.drawing import environment, numbers

pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'flinkplus[postgres]'")


def plan_of(table: str, parallelism: int = 2) -> Plan:
    env = environment()
    numbers(env, "rows", "word string, n long").to_postgres(
        "postgresql://shop@here/db", table, name="out", visibility="at_once"
    )
    return Plan("words", "job-1", env.graph.fuse(), Options(parallelism=parallelism))


class Asked:
    """Instead of ``Commits``: the sinks that were asked, and what they answer."""

    def __init__(self, closed: bool = True) -> None:
        self.closed, self.sinks = closed, []  # type: ignore[var-annotated]

    def close_output(self, sink: str, generation: Generation, behind: CheckpointId) -> bool:
        self.sinks.append((sink, generation, behind))
        return self.closed


def begun(asked: Asked, before: Plan, after: Plan, written: Sequence[str]) -> Plan:
    """The plan with which ``after`` begins from checkpoint 4 of ``before``, in a job that has written to tables."""
    old = before.graph.program(128)
    names = [SubtaskId(vertex, index) for vertex in old.vertices for index in range(before.options.parallelism)]
    handles = {
        str(name): SnapshotHandle(
            subtask=str(name), generation=1, checkpoint=4, files=(), operator_state=OperatorState()
        )
        for name in names
    }
    manifest = Manifest(checkpoint=4, generation=1, final=False, time_s=0.0, subtasks=handles, commits={}, program=old)
    by = RunBefore(before.options, frozenset(f"postgresql://here/db/{table}" for table in written))
    change = compare(old, after.graph.program(128))
    commits: Any = asked
    return close_output(after, commits, manifest, change, by, Generation(9))


def test_the_table_of_the_job_is_asked_and_decides() -> None:
    asked = Asked()
    assert begun(asked, plan_of("counts"), plan_of("counts", 3), ["counts"]).options.parallelism == 3
    assert asked.sinks == [("out", 9, 4)]
    with pytest.warns(RuntimeWarning, match="begins at parallelism 2"):
        assert begun(Asked(False), plan_of("counts"), plan_of("counts", 3), ["counts"]).options.parallelism == 2
    with pytest.raises(ConfigurationError, match="sink 'out' is gone"):
        begun(Asked(), plan_of("counts"), plan_of("others"), ["counts"])


@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_job_that_starts_from_a_savepoint_does_not_ask_the_table_of_another_job(parallelism: int) -> None:
    asked = Asked()
    plan = begun(asked, plan_of("counts"), plan_of("others", parallelism), ["others"])
    assert plan.options.parallelism == parallelism
    assert asked.sinks == []
