"""Flink: one process for everything (throughput and latency), or a cluster of processes (recovery). All on loopback.

Rules: a cluster has a JobManager, as many TaskManagers with one slot each as the parallelism, and one to spare, so that
a lost one is replaced at once; another one is started for each that was killed. Settings that are not Flink's
defaults are below, and printed with the table. A failure restarts the whole job from its last checkpoint, so every
partition is hit by it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.baselines.case import EXCEPTION, FLINK_ROCKSDB, Case, RunFailed
from experiments.baselines.java_tools import java
from experiments.baselines.notes import have_raised
from experiments.baselines.recovery import Struck
from experiments.baselines.trees import bound, end_all, kill_tree, tree

START_ALLOWANCE_MS = {True: 8_000, False: 6_000}
"""Between the start of a job and its first due row, by whether it runs in a cluster."""
BUFFER_TIMEOUT_MS = 20
LOCAL_HEAP_MB = 2_048
MANAGED_MB = 512
NETWORK_MB = 384
TASKMANAGER_MB = {"heap": 320, "managed": 160, "network": 64}
JOBMANAGER_HEAP_MB = 512
READY_S = 120.0
POLL_S = 0.1
HTTP_TIMEOUT_S = 10.0
STATUS_AGE_MS = 50
"""How old the status that the JobManager tells may be: when it took its last checkpoint, and what runs where."""
BACKENDS = {False: "hashmap", True: "rocksdb"}
OPENED = (
    *(f"java.base/java.{name}" for name in ("lang", "lang.invoke", "lang.reflect", "math", "net", "io", "nio", "text")),
    *(f"java.base/java.{name}" for name in ("time", "util", "util.concurrent", "util.concurrent.atomic")),
    "java.base/java.util.concurrent.locks",
)
"""Packages of Java that Flink must be let into."""
LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.err.ref = err
appender.err.name = err
appender.err.type = Console
appender.err.target = SYSTEM_ERR
appender.err.layout.type = PatternLayout
appender.err.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} %m%n%throwable{8}
logger.rest.name = org.apache.flink.runtime.dispatcher.DispatcherRestEndpoint
logger.rest.level = INFO
logger.rpc.name = org.apache.flink.runtime.rpc.pekko.PekkoRpcServiceUtils
logger.rpc.level = INFO
"""
MAIN = "baselines.flink.Jobs"
CLIENT_HEAP_MB = 128
REST_ADDRESS = re.compile(r"Rest endpoint listening at [^\s:]+:(\d+)")
RPC_ADDRESS = re.compile(r"Actor system started at pekko\S*://flink@[^\s:]+:(\d+)")


def settings_of(case: Case, directory: Path) -> dict[str, str]:
    """Of a job: what is not Flink's default."""
    return {
        "state.backend.type": BACKENDS[case.engine == FLINK_ROCKSDB],
        "execution.checkpointing.interval": f"{round(case.interval * 1e3)}ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": (directory / "checkpoints").as_uri(),
        "execution.buffer-timeout.interval": f"{BUFFER_TIMEOUT_MS}ms",
        "pipeline.object-reuse": "true",
        "pipeline.auto-watermark-interval": "10ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": "0s",
        "restart-strategy.fixed-delay.attempts": "1000000",
    }


def process_settings() -> dict[str, str]:
    """Of the cluster inside of one process."""
    return {
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": "0",
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.memory.network.min": f"{NETWORK_MB}m",
        "taskmanager.memory.network.max": f"{NETWORK_MB}m",
        "taskmanager.memory.managed.size": f"{MANAGED_MB}m",
    }


def cluster_settings() -> dict[str, str]:
    """Of JobManager and TaskManagers. A dead TaskManager is noticed when heartbeats fail, so these are frequent."""
    megabytes = TASKMANAGER_MB
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.rpc.port": "0",
        "jobmanager.memory.process.size": "1600m",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.bind-port": "0",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": "1",
        "taskmanager.cpu.cores": "1",
        "taskmanager.memory.framework.heap.size": "64m",
        "taskmanager.memory.task.heap.size": f"{megabytes['heap'] - 64}m",
        "taskmanager.memory.framework.off-heap.size": "64m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.network.min": f"{megabytes['network']}m",
        "taskmanager.memory.network.max": f"{megabytes['network']}m",
        "taskmanager.memory.managed.size": f"{megabytes['managed']}m",
        "taskmanager.memory.jvm-metaspace.size": "160m",
        "taskmanager.memory.jvm-overhead.min": "64m",
        "taskmanager.memory.jvm-overhead.max": "64m",
        "heartbeat.interval": "500ms",
        "heartbeat.timeout": "5s",
        "web.refresh-interval": f"{STATUS_AGE_MS}ms",
    }


@dataclass(frozen=True)
class Flink:
    """Where Flink is. ``jars``: of Flink; ``classes``: of this project's programs."""

    jars: tuple[Path, ...]
    classes: Path

    def command(self, heap_mb: int, directory: Path, main: str, arguments: Sequence[str] = ()) -> list[str]:
        """A Java process with so much heap."""
        logging = directory / "log4j2.properties"
        logging.write_text(LOGGING)
        path = os.pathsep.join([str(self.classes), *map(str, self.jars)])
        opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
        exported = ["--add-exports=java.base/sun.net.util=ALL-UNNAMED"]
        own = [f"-Xmx{heap_mb}m", f"-Dlog4j.configurationFile={logging.as_uri()}", f"-Djava.io.tmpdir={directory}"]
        return [java(), *own, *opened, *exported, "-cp", path, main, *arguments]


class JavaProcesses:
    """Java processes of this program, by name; their output goes to files in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        log = self._directory / f"{name}.log"
        with log.open("ab") as out:
            self.processes[name] = subprocess.Popen(
                bound(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def check(self, name: str) -> None:
        """Raises ``RunFailed`` when it has ended."""
        if (code := self.processes[name].poll()) is not None:
            raise RunFailed(f"{name} has ended with {code}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """The last line of what it wrote that says what is wrong."""
        text = (self._directory / f"{name}.log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if "Exception" in line or "Error" in line or "ERROR" in line]
        return (lines or text.splitlines() or ["it wrote nothing"])[-1][:500]

    def close(self) -> None:
        """End them all."""
        processes = tree(process.pid for process in self.processes.values() if process.poll() is None)
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end_all(processes)
        for process in self.processes.values():
            process.wait()


class FlinkProcess:
    """A job in one process; see ``measure.RunningJob``."""

    def __init__(self, flink: Flink, case: Case, directory: Path, text: Path) -> None:
        self.notes = directory / "notes"
        self._java = JavaProcesses(directory)
        self._origin_ms = int(time.time() * 1e3) + START_ALLOWANCE_MS[False]
        conf = {**settings_of(case, directory), **process_settings(), "io.tmp.dirs": str(directory)}
        arguments = [*job_arguments(case, self.notes, self._origin_ms, text), *configured(conf)]
        self._java.start("flink", flink.command(LOCAL_HEAP_MB, directory, MAIN, arguments))

    def roots(self) -> list[int]:
        return [process.pid for process in self._java.processes.values()]

    def origin_ms(self) -> float:
        return 0.0

    def check(self) -> None:
        self._java.check("flink")

    def close(self) -> None:
        self._java.close()


class FlinkCluster:
    """A job on a JobManager and TaskManagers; see ``recovery.BreakableJob``."""

    def __init__(self, flink: Flink, case: Case, directory: Path, text: Path, stop: threading.Event) -> None:
        self.notes = directory / "notes"
        self._stop = stop
        self._flink, self._case, self._directory = flink, case, directory
        self._java = JavaProcesses(directory)
        self._started = 0
        try:
            self._start(text)
        except BaseException:
            self.close()
            raise

    def _start(self, text: Path) -> None:
        self._write_configuration({})
        heap, main = JOBMANAGER_HEAP_MB, "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        folder = ["--configDir", str(self._directory)]
        self._java.start("jobmanager", self._flink.command(heap, self._directory, main, folder))
        self._rest_port = int(self._logged("jobmanager", REST_ADDRESS))
        self._write_configuration({"jobmanager.rpc.port": self._logged("jobmanager", RPC_ADDRESS)})
        for _ in range(self._case.parallelism + 1):
            self._start_taskmanager()
        self._until(lambda: len(self._get("/taskmanagers")["taskmanagers"]) > self._case.parallelism, "TaskManagers")
        origin_ms = int(time.time() * 1e3) + START_ALLOWANCE_MS[True]
        jar = self._directory / "job.jar"
        with zipfile.ZipFile(jar, "w") as archive:
            for path in sorted(self._flink.classes.rglob("*.class")):
                archive.write(path, path.relative_to(self._flink.classes))
        arguments = [
            *job_arguments(self._case, self.notes, origin_ms, text),
            *("--port", str(self._rest_port), "--jar", str(jar)),
            *configured(settings_of(self._case, self._directory)),
        ]
        self._java.start("client", self._flink.command(CLIENT_HEAP_MB, self._directory, MAIN, arguments))

    def _write_configuration(self, further: Mapping[str, str]) -> None:
        settings = {**cluster_settings(), "io.tmp.dirs": str(self._directory), **further}
        (self._directory / "config.yaml").write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))

    def _start_taskmanager(self) -> None:
        name = f"taskmanager-{self._started}"
        self._started += 1
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        own = ["--configDir", str(self._directory), "-D", f"taskmanager.resource-id={name}"]
        heap = TASKMANAGER_MB["heap"]
        self._java.start(name, self._flink.command(heap, self._directory, main, own))

    def _logged(self, name: str, pattern: re.Pattern[str]) -> str:
        """What a process has logged of itself."""
        deadline_s = time.monotonic() + READY_S
        while True:
            found = pattern.search((self._directory / f"{name}.log").read_text(errors="replace"))
            if found is not None:
                return found[1]
            self._java.check(name)
            self._wait(deadline_s, f"{name} is not ready")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + READY_S
        while not condition():
            self.check()
            self._wait(deadline_s, f"not all {what} are there")

    def _wait(self, deadline_s: float, what: str) -> None:
        if time.monotonic() > deadline_s:
            raise RunFailed(f"{what} after {READY_S:g} s")
        if self._stop.wait(POLL_S):
            raise RunFailed("interrupted")

    def _get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._rest_port}{path}", timeout=HTTP_TIMEOUT_S) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise RunFailed(f"the JobManager does not answer: {error}") from error

    def roots(self) -> list[int]:
        return [process.pid for process in self._java.processes.values()]

    def origin_ms(self) -> float:
        return 0.0

    def check(self) -> None:
        for name in self._java.processes:
            self._java.check(name)

    def strike(self, failure: str, index: int) -> Struck:
        everything = tuple(range(self._case.parallelism))
        if failure == EXCEPTION:
            raised_ms = have_raised(self.notes, index, self.check)
            return Struck(raised_ms, everything, f"an exception in partition {index}")
        name = self._taskmanager_of(index)
        process = self._java.processes.pop(name)
        now_ms = time.time() * 1e3
        kill_tree(process.pid)
        process.wait()
        return Struck(now_ms, everything, f"SIGKILL of the TaskManager of partition {index}")

    def _job(self) -> str:
        """The ID of the job."""
        return next(str(job["id"]) for job in self._get("/jobs")["jobs"] if job["status"] == "RUNNING")

    def _taskmanager_of(self, index: int) -> str:
        job = self._job()
        last = self._get(f"/jobs/{job}")["vertices"][-1]["id"]
        subtasks = self._get(f"/jobs/{job}/vertices/{last}")["subtasks"]
        return next(str(subtask["taskmanager-id"]) for subtask in subtasks if subtask["subtask"] == index)

    def checkpoint_ms(self) -> float | None:
        taken = self._get(f"/jobs/{self._job()}/checkpoints")["history"]
        return max((float(checkpoint["trigger_timestamp"]) for checkpoint in taken), default=None)

    def mend(self) -> None:
        """A TaskManager to spare again, for each that was killed."""
        alive = sum(name.startswith("taskmanager") for name in self._java.processes)
        for _ in range(self._case.parallelism + 1 - alive):
            self._start_taskmanager()
        self._until(lambda: self._there() > self._case.parallelism, "TaskManagers")

    def _there(self) -> int:
        return sum(one["id"] in self._java.processes for one in self._get("/taskmanagers")["taskmanagers"])

    def close(self) -> None:
        self._java.close()


def configured(settings: Mapping[str, str]) -> list[str]:
    """The arguments that say so."""
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def job_arguments(case: Case, notes: Path, origin_ms: int, text: Path) -> list[str]:
    """Of ``Jobs.java``, for Flink and for Spark."""
    return [
        *("--job", case.job),
        *("--notes", str(notes)),
        *("--rate", str(case.paced or 0)),
        *("--origin", str(origin_ms)),
        *("--text", str(text)),
        *("--parallelism", str(case.parallelism)),
    ]
