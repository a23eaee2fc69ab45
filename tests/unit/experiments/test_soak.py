"""The soak: which faults come, what counts as flat, what fails it; what is counted as memory and disk of a job."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from experiments.cluster import usage
from experiments.cluster.control import Control, ControlServer
from experiments.cluster.namespaces import Cluster
from experiments.cluster.network import ClusterError
from experiments.harness.running import RunError
from experiments.harness.workload import Trigger
from experiments.soak import experiment, faults
from experiments.soak.experiment import EXPERIMENT, Settings
from experiments.soak.faults import CLUSTER_FAULTS, HOLD_S, LOCAL_FAULTS, Draw
from experiments.soak.usage import flatness
from flinkplus.api.job import JobHandle
from flinkplus.cli.main import parser
from flinkplus.errors import ConfigurationError, FlinkPlusError, InsufficientSlots, MoveRefused
from flinkplus.runtime.coordinator.membership.moves import PlannedMove, ScaleReported
from tests.unit.experiments.orders import Orders


def some(settings: Settings, count: int) -> list[Draw]:
    return list(itertools.islice(faults.drawn(settings.kinds, settings.seed), count))


def test_faults_come_from_the_seed_and_none_is_left_out() -> None:
    assert some(Settings(seed=3), 50) == some(Settings(seed=3), 50) != some(Settings(seed=4), 50)
    on_a_cluster = some(Settings(hosts=4), len(CLUSTER_FAULTS) * 3)
    for at in range(0, len(on_a_cluster), len(CLUSTER_FAULTS)):
        assert {draw.kind for draw in on_a_cluster[at : at + len(CLUSTER_FAULTS)]} == set(CLUSTER_FAULTS)
    assert {draw.kind for draw in some(Settings(), 12)} == set(LOCAL_FAULTS)
    assert all(HOLD_S[0] <= draw.hold_s <= HOLD_S[1] for draw in on_a_cluster)
    assert {draw.kind for draw in some(Settings(hosts=4, faults=("host",)), 5)} == {"host"}


def test_what_no_soak_can_be() -> None:
    with pytest.raises(
        ConfigurationError, match="on one machine the faults are sigkill, exception, pause, rescale, not host"
    ):
        Settings(faults=("host",)).check()
    with pytest.raises(ConfigurationError, match="2 slots and replicas at least"):
        Settings(parallelism=1).check()
    Settings(hosts=4).check()


def test_rescales_are_among_the_faults_where_one_more_slot_has_room() -> None:
    assert Settings().kinds_on("local[5]") == LOCAL_FAULTS
    assert Settings().kinds_on("local[4]") == ("sigkill", "exception", "pause")
    assert Settings(hosts=4).kinds_on("spark://somewhere:7077", 8) == CLUSTER_FAULTS
    assert Settings(hosts=4).kinds_on("spark://somewhere:7077", 4) == CLUSTER_FAULTS[:-1]
    assert Settings(faults=("pause",)).kinds_on("local[4]") == ("pause",)
    with pytest.raises(InsufficientSlots, match="room for 5 slots"):
        Settings(faults=("rescale",)).kinds_on("local[4]")
    assert Settings().parallelisms == (2, 3, 4, 5)
    assert Settings(hosts=4).parallelisms == (3, 4, 5), "every chain keeps its length"


def test_the_command_line() -> None:
    given = parser().parse_args(["experiment", "soak", "--minutes", "2", "--cluster", "namespaces", "--fault", "cut"])
    assert (given.minutes, given.cluster, given.faults, given.every) == (2.0, "namespaces", ("cut",), 10.0)


def samples(slots: list[float], disk: float = 5.0) -> list[dict[str, float]]:
    return [{"at_s": 5.0 * at, "slots": size, "driver": 100.0, "disk": disk} for at, size in enumerate(slots)]


def row(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [row for row in rows if row["of"] == name]
    return found


def test_memory_is_flat_or_it_is_not() -> None:
    level = flatness(samples([20.0] * 4 + [300.0] * 36))
    assert row(level, "slots") == {"of": "slots", "first_mb": 300.0, "last_mb": 300.0, "limit_mb": 360.0, "flat": True}
    growing = flatness(samples([300.0 + 5 * at for at in range(40)]))
    assert not row(growing, "slots")["flat"] and row(growing, "driver")["flat"] and row(growing, "disk")["flat"]
    dips = flatness(samples([300.0 if at % 4 else 100.0 for at in range(40)]))
    assert all(row["flat"] for row in dips)
    assert row(dips, "zookeeper")["limit_mb"] is None
    assert flatness(samples([1.0] * 5)) == flatness([]) == []


def test_memory_of_slots_is_compared_where_there_are_equally_many() -> None:
    def of(growth: float) -> list[dict[str, float]]:
        counts = [4] * 10 + [2] * 10 + [4] * 10 + [6] * 10
        sizes = [200.0 + 45 * count + growth * at for at, count in enumerate(counts)]
        return [{**sample, "slot_count": count} for sample, count in zip(samples(sizes), counts, strict=True)]

    level = row(flatness(of(0.0)), "slots")
    assert (level["first_mb"], level["last_mb"], level["flat"]) == (380.0, 380.0, True)
    assert not row(flatness(of(5.0)), "slots")["flat"]


def test_what_fails_a_soak() -> None:
    growing = flatness(samples([300.0 + 5 * at for at in range(40)]))
    found = [fault("host", 1.0), fault("sigkill", 1.0, fallbacks=1), fault("host", 1.0, fallbacks=1, doomed=2)]
    content: dict[str, Any] = {
        "runs": found,
        "flat": growing,
        "final": {"fallback_reasons": ["no member left"], "unnamed_state_files": 2},
    }
    grew, back, left, doomed = experiment.verdict(content)
    assert left == "2 state files were left that no checkpoint names"
    assert grew.startswith("slots grew from")
    assert back == "1 rollbacks that the fault did not call for: ['no member left']"
    assert doomed == "1 times a host was struck that had all members of a chain"
    assert experiment.verdict({"runs": found[:1], "flat": [], "final": None}) == []


def fault(kind: str, restored_s: float, **figures: Any) -> dict[str, Any]:
    usual = {"at_s": 20.0, "failovers": 1, "fallbacks": 0, "recovery_ms": 100.0, "doomed": 0, "rescales": 0}
    return {"kind": kind, "restored_s": restored_s, **usual, **figures}


def test_the_summary_and_the_picture(tmp_path: Path) -> None:
    found = [fault("sigkill", 2.0), fault("sigkill", 4.0), fault("exception", 0.5, recovery_ms=None)]
    found += [fault("rescale", 0.1, failovers=0, rescales=1), fault("rescale", 0.1, failovers=0)]
    exception, rescale, sigkill, whole = experiment.summarize(found)
    assert (rescale["faults"], rescale["rescales"], rescale["failovers"], whole["rescales"]) == (2, 1, 0, 1)
    assert (sigkill["faults"], sigkill["restored_median_s"], sigkill["restored_longest_s"]) == (2, 3.0, 4.0)
    assert (exception["recovery_median_ms"], whole["kind"], whole["faults"]) == (None, "all", 5)
    document = EXPERIMENT.document(Settings(), tmp_path / "soak.json")
    for one in found:
        document.add(one)
    picture = tmp_path / "soak.png"
    assert not experiment.output_and_usage(document.content, picture)
    document.content |= {
        "output": [{"at_s": float(at), "rows": 5000.0 * at} for at in range(60)],
        "usage": samples([300.0] * 12),
    }
    assert (
        experiment.output_and_usage(document.content, tmp_path / "soak.png")
        and (tmp_path / "soak.png").stat().st_size > 10_000
    )
    assert len(EXPERIMENT.tables(document.content)) == 2


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Answers the way a server of ZooKeeper does, once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4)
                connection.sendall(request.param)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("server", "mode"),
    [
        (b"Zookeeper version: 3.9\nMode: leader\nNode count: 5\n", "leader"),
        (b"Zookeeper version: 3.9\nMode: follower\n", "follower"),
        (b"This ZooKeeper instance is not currently serving requests\n", None),
    ],
    indirect=["server"],
)
def test_whether_a_server_of_zookeeper_serves(server: str, mode: str | None) -> None:
    assert faults.serves(server) == mode


def test_a_server_that_is_not_there_serves_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert faults.serves(f"127.0.0.1:{port}") is None


class Job:
    """A job whose slot 0 is ``pid``."""

    done = False

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def slot_pids(self) -> dict[int, int]:
        return {0: self._pid}

    def placement(self) -> dict[str, str]:
        return {"count[0]": "worker-2", "count[1]": "worker-1"}

    def chains(self) -> dict[str, list[int]]:
        return {"count+out[0]": [0, 1], "count+out[1]": [1, 0]}


def striker(pid: int, directory: Path, stop: threading.Event, control: Control | None = None) -> faults.Striker:
    return faults.Striker(cast(JobHandle, Job(pid)), (2,), Trigger(directory), stop, control)


class Rescaled(Job):
    """A job of two subtasks that answers a request as a test says."""

    def __init__(self, answer: ScaleReported | FlinkPlusError) -> None:
        super().__init__(0)
        self._answer = answer
        self.asked: list[int] = []

    def rescale(self, parallelism: int) -> PlannedMove:
        self.asked.append(parallelism)
        if isinstance(self._answer, FlinkPlusError):
            raise self._answer
        move = PlannedMove("rescale", 1)
        move.report(ScaleReported(1, "under_way"))
        threading.Timer(0.05, lambda: move.report(cast(ScaleReported, self._answer))).start()
        return move


@pytest.mark.parametrize(
    ("answer", "struck"),
    [
        (ScaleReported(1, "done"), "2 to 4"),
        (ScaleReported(1, "cancelled", "the job is over"), "2 to 4: not done (rescale: the job is over)"),
        (MoveRefused("try again"), "2 to 4: not done (try again)"),
    ],
)
def test_a_rescale_takes_another_parallelism_and_says_how_it_ended(
    tmp_path: Path, answer: ScaleReported | FlinkPlusError, struck: str
) -> None:
    job = Rescaled(answer)
    one = faults.Striker(cast(JobHandle, job), (2, 3, 4), Trigger(tmp_path), threading.Event())
    assert one.strike(Draw("rescale", 5, 1.0)) == struck
    assert job.asked == [4]
    with pytest.raises(RunError, match="no parallelism is there but 2"):
        striker(0, tmp_path, threading.Event()).strike(Draw("rescale", 5, 1.0))


def test_a_slot_stands_still_and_goes_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        assert striker(process.pid, tmp_path, threading.Event()).strike(Draw("pause", 5, 0.05)) == "slot 0"
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
        stop = threading.Event()
        stop.set()
        with pytest.raises(RunError, match="interrupted"):
            striker(process.pid, tmp_path, stop).strike(Draw("pause", 5, 60.0))
        assert psutil.Process(process.pid).status() != psutil.STATUS_STOPPED
        process.communicate()


@pytest.mark.parametrize(("kind", "order"), [("host", "kill"), ("hang", "pause"), ("cut", "cut")])
def test_what_is_done_to_a_host_is_taken_back(tmp_path: Path, kind: str, order: str) -> None:
    control = Orders()
    assert striker(0, tmp_path, threading.Event(), control).strike(Draw(kind, 3, 0.01)) == "worker-2"
    assert control.given == [(order, "worker-2"), ("revive", "worker-2")]


def test_memory_is_told_by_kind_of_process() -> None:
    own = psutil.Process()
    total = usage.add_up([own], own.pid)
    assert total["driver"] > 5 and total["slots"] == total["java"] == 0
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "flinkplus.runtime.x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as slot:
        assert slot.stdout is not None and slot.stdout.readline() == b"up\n"
        assert usage.kind_of(psutil.Process(slot.pid)) == "slots"
        slot.communicate()
    assert usage.add_up([own])["other"] > 5


def test_room_on_disk_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file").write_bytes(os.urandom(3_000_000))
    os.link(tmp_path / "a/file", tmp_path / "link")
    assert 2.9 < usage.directory_mb(tmp_path) < 3.3
    assert usage.directory_mb(tmp_path / "nowhere") == 0


class Hosts:
    """A cluster that knows one host."""

    def usage(self, name: str) -> dict[str, float]:
        if name != "worker-1":
            raise ClusterError(f"there is no host {name!r}")
        return {"slots": 12.5, "disk": 1.0}


def test_the_harness_tells_what_a_host_takes(tmp_path: Path) -> None:
    path = tmp_path / "control"
    with ControlServer(cast(Cluster, Hosts()), path):
        assert Control(str(path)).usage("worker-1") == {"slots": 12.5, "disk": 1.0}
        with pytest.raises(ClusterError, match="no host 'worker-9'"):
            Control(str(path)).usage("worker-9")
        with subprocess.Popen([sys.executable, "-c", "input()", "flinkplus.runtime.x"], stdin=subprocess.PIPE) as slot:
            found = {reading.name: reading for reading in Control(str(path)).processes()}
            assert found["slots"].process.startswith(f"{slot.pid}/")
            assert not any(reading.process.startswith(f"{os.getpid()}/") for reading in found.values())
            slot.communicate(b"\n")
