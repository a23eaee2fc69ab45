"""The model against what can be worked out by hand; summary, table and picture, from runs that never ran; and costs of
a small job's real subtasks.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from experiments.harness import console
from experiments.harness.running import RunError
from experiments.scaling.busy import crowding
from experiments.scaling.costs import Costs, VertexCosts, measure_costs
from experiments.scaling.experiment import EXPERIMENT, ScalingSettings, simulate, time_by_parallelism
from experiments.scaling.model import NETWORK_LATENCY_S, Setting, Simulation
from flinkplus.config import Options, options_from
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.keyed.keyed import Count
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator

FREE = Costs([], 0.0, 0.0, 10.0)
ROWS = 1_000.0


def vertex(name: str, row_s: float, **costs: Any) -> VertexCosts:
    nothing = VertexCosts(name, 0.0, row_s, 0.0, 0.0, 0.0, ROWS)
    return replace(nothing, **costs)


def seconds(costs: Costs, parallelism: int, rows: float, interval_s: float | None = None, **other: Any) -> float:
    return Simulation(costs, Setting(parallelism, rows, interval_s, 16, **other)).run()


def test_one_slot_takes_the_sum_of_all_steps() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6), vertex("count", 2e-6, step_s=1e-3, async_s=0.25)])
    work_s = 100_000 * 3e-6 + 100 * 1e-3
    assert seconds(costs, 1, 100_000) == pytest.approx(work_s + 0.25, abs=3 * NETWORK_LATENCY_S), "and the last one"


def test_two_slots_share_the_work_and_pay_for_what_crosses() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6), vertex("count", 2e-6)])
    alone = seconds(costs, 1, 400_000)
    assert seconds(costs, 2, 400_000) == pytest.approx(alone / 2, rel=0.02)
    frame_s = 1e-3
    crossing = 400_000 / ROWS  # each batch is one message to either slot, and one of the two crosses
    found = seconds(replace(costs, frame_s=frame_s), 2, 400_000)
    assert found == pytest.approx(alone / 2 + crossing * frame_s / 2, rel=0.02)


def test_slots_without_a_core_of_their_own_take_turns() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6), vertex("count", 2e-6)])
    alone = seconds(costs, 1, 400_000)
    assert seconds(costs, 4, 400_000, cores=1) == pytest.approx(alone, rel=0.02)
    assert seconds(costs, 4, 400_000, cores=2) == pytest.approx(alone / 2, rel=0.02)


def test_bundles_keep_small_messages_from_costing_a_step_each() -> None:
    """With three exchanges and n slots a batch ends as n ** 3 messages: as steps their cost outgrows what is shared."""
    stages = [vertex(name, 1e-6, message_s=1e-5) for name in ("lines", "words", "again")]
    costs = replace(FREE, vertices=[*stages, vertex("last", 1e-6)])
    alone = {n: seconds(costs, n, 100_000, bundle_rows=1.0) for n in (4, 8)}
    bundled = {n: seconds(costs, n, 100_000) for n in (4, 8)}
    assert alone[8] > alone[4] and bundled[8] < bundled[4]
    assert bundled[4] < alone[4]


def test_a_bundle_has_a_limit() -> None:
    """Each of eight producers sends each consumer 125 rows at a time: a step takes two of these messages, or more."""
    costs = replace(FREE, vertices=[vertex("lines", 0.0), vertex("count", 1e-9, step_s=1e-3)])
    assert seconds(costs, 8, 100_000, bundle_rows=250.0) > 1.5 * seconds(costs, 8, 100_000)


def test_checkpoints_come_when_they_are_due_and_cost_what_they_cost() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6), vertex("count", 2e-6, sync_s=0.01, async_s=0.1)])
    without = seconds(costs, 2, 1_000_000)
    simulation = Simulation(costs, Setting(2, 1_000_000, 0.4, 16))
    found = simulation.run()
    assert simulation.checkpoints == 5, "after 0.4, 0.8, 1.2 and 1.6 s, and the one that ends the job"
    assert found == pytest.approx(without + 4 * 0.11, rel=0.03), "what a slot does for a snapshot delays its work"


def test_there_may_be_any_number_of_checkpoints() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6), vertex("count", 2e-6, sync_s=0.01, async_s=0.01)])
    simulation = Simulation(costs, Setting(2, 1_000_000, 0.05, 16))
    simulation.run()
    assert simulation.checkpoints > 20


def test_a_back_pressured_source_waits_for_room() -> None:
    """The channel's window is all that a slow consumer leaves its producer."""
    costs = replace(FREE, vertices=[vertex("lines", 0.0), vertex("count", 1e-4)])
    simulation = Simulation(costs, Setting(2, 100_000, None, 4))
    most = 0
    for source in simulation._stages[0]:
        assert len(source.room) == 2
    waiting = [queue for subtask in simulation._stages[1] for queue in subtask.inputs]
    send = simulation._send

    def watched(*arguments: Any) -> None:
        nonlocal most
        send(*arguments)
        most = max(most, *(len(queue) for queue in waiting))

    simulation._send = watched  # type: ignore[assignment]
    assert simulation.run() == pytest.approx(100_000 * 1e-4 / 2, rel=0.05)
    assert most <= 4 + 4, "a window on its way, and as many as are kept unsent"


def test_a_number_of_slots_is_simulated_alike_each_time() -> None:
    costs = replace(FREE, vertices=[vertex("lines", 1e-6, message_s=1e-5), vertex("count", 2e-6, async_s=0.01)])
    setting = Setting(8, 100_000, 0.1, 16)
    first, second = simulate(costs, setting, None), simulate(costs, setting, None)
    assert {**first, "took_s": 0} == {**second, "took_s": 0}
    assert first["simulated"] and not first["as_this_machine"] and first["cores"] == 8
    assert simulate(costs, setting, 2)["cores"] == 2 and simulate(costs, setting, 2)["as_this_machine"]


def test_busy_cores_are_slower_on_this_machine_alone_and_every_job_begins_and_ends() -> None:
    vertices = [vertex("lines", 1e-6), vertex("count", 2e-6)]
    costs = replace(FREE, vertices=vertices, job_s=0.5, crowded=2.0)

    def found(parallelism: int, cores: int | None) -> float:
        return float(simulate(costs, Setting(parallelism, 400_000, None, 16), cores)["seconds"])

    assert found(1, 2) == found(1, None) == pytest.approx(0.5 + 400_000 * 3e-6, rel=0.01)
    assert found(2, None) == pytest.approx(0.5 + 400_000 * 3e-6 / 2, rel=0.01)
    assert found(2, 2) == pytest.approx(0.5 + 400_000 * 3e-6, rel=0.01)


def test_a_process_that_cannot_work_is_told(tmp_path: Path) -> None:
    (tmp_path / "alone").write_text("where its directory should be")
    with pytest.raises(RuntimeError, match="did not start"):
        crowding(*job(1), tmp_path, 2, 0.1, threading.Event())


ENDLESS = """
import signal, sys
from pathlib import Path

from experiments.harness.beside import beside
from experiments.harness.running import Context
from experiments.scaling.costs import Costs, VertexCosts
from experiments.scaling.experiment import ScalingSettings, simulated
from flinkplus.config import options_from

def interrupted(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupted)
settings = ScalingSettings(parallelism=(16,), measured=1, repeat=1_000_000)
costs = Costs([VertexCosts(name, 0.0, 1e-6, 0.0, 0.0, 0.0, 1.0) for name in ("lines", "count")], 0.0, 0.0, 10.0)
context = Context(None, settings, Path(), begin=lambda what: print(what, flush=True))
try:
    list(beside(simulated(context, costs, options_from({}, {})), context.end))
except KeyboardInterrupt:
    print("ended", flush=True)
"""
"""Simulates for hours, unless a signal ends it as it ends the command."""


def test_a_signal_ends_a_simulation() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "simulated: 16, none\n"
            process.terminate()
            assert process.communicate(timeout=30)[0] == "ended\n", "at once; it takes long where it does not work"
        finally:
            process.kill()


def test_busy_processes_end_with_the_experiment(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunError, match="interrupted"):
        crowding(*job(1), tmp_path, 2, 3_600, stop)
    assert [child for child in psutil.Process().children() if "experiments.scaling.busy" in child.cmdline()] == []


def test_costs_are_not_measured_to_the_end(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunError, match="interrupted"):
        list(measure_costs(job, (1, 3), 3_600, tmp_path, stop))


SETTINGS = ScalingSettings(parallelism=(1, 2, 16), measured=2, rounds=3)


def run(parallelism: int, found_s: float, simulated: bool, here: bool = False, variant: str = "none") -> dict[str, Any]:
    return {
        "simulated": simulated,
        "parallelism": parallelism,
        "variant": variant,
        "interval_s": None,
        "seconds": found_s,
        "checkpoints": 1,
        "cores": 2,
        "as_this_machine": here,
    }


def test_simulated_points_say_so_and_the_error_is_there_where_both_exist(tmp_path: Path) -> None:
    document = EXPERIMENT.document(SETTINGS, tmp_path / "scaling.json")
    for found_s in (4.0, 9.0, 5.0):
        document.add(run(2, found_s, False))
    document.add(run(2, 5.5, True, here=True))
    document.add(run(2, 5.25, True))
    document.add(run(16, 1.5, True))
    two, sixteen = document.content["summary"]
    assert (two["measured_s"], two["model_error_percent"], two["simulated"]) == (5.0, 10.0, False)
    assert (two["n"], two["measured_low_s"], two["measured_high_s"], two["checkpoints"]) == (3, 4.0, 9.0, 1.0)
    assert (sixteen["measured_s"], sixteen["simulated_s"], sixteen["simulated"]) == (None, 1.5, True)
    assert sixteen["model_error_percent"] is None and sixteen["n"] == 0 and sixteen["measured_low_s"] is None
    console.show(*EXPERIMENT.tables(document.content))
    assert time_by_parallelism(document.content, tmp_path / "out" / "scaling.png")
    assert (tmp_path / "out" / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_to_draw(tmp_path: Path) -> None:
    assert not time_by_parallelism({"summary": []}, tmp_path / "scaling.png")


def test_options() -> None:
    assert SETTINGS.to_measure == [1, 2] and SETTINGS.words == 6_600_000
    assert SETTINGS.steps == 4 + 2 * (3 * 2 + 3 + 2)
    assert "batch_rows" not in SETTINGS.options(1, None)
    assert replace(SETTINGS, batch_rows=7).options(2, 1.0)["batch_rows"] == 7
    SETTINGS.check()
    with pytest.raises(ConfigurationError, match="batch_rows"):
        replace(SETTINGS, batch_rows=0).check()


SCHEMA = pa.schema([("k", pa.int64())])


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"k": np.arange(start, start + count) % 1_000})


def job(parallelism: int) -> tuple[JobGraph, Options]:
    graph = JobGraph()
    source = Generator("numbers", numbers, SCHEMA, 2_000_000, batches=True)
    at = graph.add(Node("numbers", "source", source, SCHEMA))
    count = Count("count", ("k",), "n")
    schema = count.output_schema(SCHEMA)
    below = graph.add(Node("count", "operator", count, schema))
    graph.link(at, below, ("k",))
    at = below
    graph.add(Node("out", "sink", DiscardSink("out"), schema), at)
    options = {"parallelism": parallelism, "recovery": "rollback", "batch_rows": 1_024}
    return graph.fuse(), options_from({}, options)


def test_costs_of_real_subtasks(tmp_path: Path) -> None:
    *under_way, costs = measure_costs(job, (1, 3), 0.4, tmp_path, threading.Event())
    assert under_way == [None, None] and costs is not None
    source, count = costs.vertices
    assert source.rows == 1_024
    assert 0 <= count.row_s < 1e-4 and source.row_s >= 0 and count.step_s >= 0
    assert count.step_s + 1_024 * count.row_s > 0, "which part is of rows is an estimate, from times that vary"
    assert count.message_s == 0, "it sends none"
    assert 0 < count.sync_s < 0.1 and count.async_s > 0 and source.async_s == 0
    assert 0 < costs.frame_s < 1e-2 and costs.byte_s >= 0 and costs.row_bytes > 0
    assert Simulation(costs, Setting(4, 100_000, None, 16)).run() > 0
