"""The process of a driver, started before it is needed: its imports are done, and Spark's Java process may run.

It waits for orders of the supervisor, one JSON document a line: ``{"spark": SETTINGS}`` (start Java with what the
driver before gave it), ``{"go": MARK, "ended": [MARK, ...]}`` (run the program as this driver, after those that have
ended: ``chain_backup.zookeeper.succession``), or the end of the pipe (end). It reports ``{"ready": true}``
when it is prepared, and ``{"spark": SETTINGS}`` when the program starts Spark.

Rules: a Java process that was started in advance is used only if the program asks for one with the same configuration,
environment and working directory. Otherwise it is ended, and another one is started, as without a supervisor.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import signal
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from chain_backup.zookeeper.succession import follow
from flinkplus.cli.supervise.processes import end_with_parent

NOTHING, PYTHON, SPARK = PREPARED = ("nothing", "python", "spark")
AHEAD = "ahead"
GATEWAY_ELSEWHERE = "PYSPARK_GATEWAY_PORT"
"""With this variable PySpark starts no Java process: it uses one that runs."""
EXIT_INTERRUPTED = 130
PROGRAM_SUFFIX, COMMAND = ".py", "flinkplus"
LIBRARIES = (
    "flinkplus.runtime.daemon",
    "flinkplus.api.environment",
    "flinkplus.api.spark_settings",
    "pyspark.sql",
    "pyspark.sql.session",
)


def runs_here(program: str) -> bool:
    """Whether a program can be run in a prepared process: a file of Python, or the ``flinkplus`` command."""
    return program.endswith(PROGRAM_SUFFIX) or program == COMMAND


class Gateway:
    """Spark's Java process: started in advance, or when the program asks for one. ``report``: called with settings."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report
        self._ready: tuple[dict[str, Any], Any] | None = None
        self._launch: Any = None

    def install(self) -> None:
        """Have PySpark ask this object for its Java process."""
        context, java_gateway = map(importlib.import_module, ("pyspark.core.context", "pyspark.java_gateway"))
        self._launch = java_gateway.launch_gateway
        for module in (context, java_gateway):
            module.launch_gateway = self._asked  # type: ignore[attr-defined]

    def start(self, settings: dict[str, Any]) -> None:
        """Start Java with these settings, as PySpark would; a failure is left to the program to find."""
        from pyspark import SparkConf

        if GATEWAY_ELSEWHERE in settings["environment"]:
            return

        conf = SparkConf(loadDefaults=False, _jconf=None).setAll([tuple(pair) for pair in settings["conf"]])
        with contextlib.suppress(Exception), _as_before(settings):
            gateway = self._launch(conf)
            self._ready = (settings, gateway)
            _load_classes(gateway)

    def _asked(self, conf: Any = None, popen_kwargs: dict[str, Any] | None = None) -> Any:
        settings = {
            "conf": sorted(map(list, conf.getAll())) if conf else [],
            "environment": dict(os.environ),
            "directory": os.getcwd(),
        }
        self._report({"spark": settings})
        ready, self._ready = self._ready, None
        if ready is not None and ready[0] == settings and ready[1].proc.poll() is None:
            return ready[1]
        if ready is not None:
            _end(ready[1])
        return self._launch(conf, popen_kwargs)

    def close(self) -> None:
        """End a Java process that was not asked for."""
        if self._ready is not None:
            _end(self._ready[1])


def _end(gateway: Any) -> None:
    with contextlib.suppress(Exception):
        gateway.shutdown()
    gateway.proc.stdin.close()  # at which it ends
    gateway.proc.terminate()
    gateway.proc.wait()


def _load_classes(gateway: Any) -> None:
    """Start and stop Spark once in this Java process, with settings of its own: the classes are loaded then."""
    conf = gateway.jvm.org.apache.spark.SparkConf(False)
    for name, value in (
        ("spark.master", "local[1]"),
        ("spark.app.name", "flinkplus-prepares"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.bindAddress", "127.0.0.1"),
    ):
        conf.set(name, value)
    from pyspark.sql import SparkSession

    context = gateway.jvm.org.apache.spark.api.java.JavaSparkContext(conf)
    try:
        SparkSession._get_j_spark_session_class(gateway.jvm)(context.sc(), {})
        context.parallelize([1], 1).count()
    finally:
        context.stop()
        sessions = SparkSession._get_j_spark_session_module(gateway.jvm)
        sessions.clearDefaultSession()
        sessions.clearActiveSession()


@contextlib.contextmanager
def _as_before(settings: dict[str, Any]) -> Iterator[None]:
    """The environment and the working directory that the program had when it started Spark."""
    environment, directory = dict(os.environ), os.getcwd()
    try:
        os.environ.clear()
        os.environ.update(settings["environment"])
        os.chdir(settings["directory"])
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)


def load_libraries() -> None:
    """Import what a driver uses, and keep the collector from it."""
    from flinkplus.runtime.daemon import MODULES

    for module in (*LIBRARIES, *MODULES):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def run(command: list[str]) -> None:
    """Run the program as Python would, in this process."""
    sys.argv[:] = command
    if command[0] == COMMAND:
        runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)
        return
    path = os.path.abspath(command[0])
    sys.path[0] = os.path.dirname(path)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=command[0], __builtins__=__builtins__)
    sys.modules["__main__"] = module
    with io.open_code(path) as source:
        code = compile(source.read(), command[0], "exec")
    exec(code, module.__dict__)


def _interrupted(_number: int, _frame: object) -> None:
    """SIGTERM: end the job as Ctrl-C does. Another signal must not interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _not_needed(_number: int, _frame: object) -> None:
    """SIGTERM before the order to go: end, and leave no file of a start that was under way. That is no success: the
    program has not run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """``orders`` and ``reports``: open files. ``prepare``: one of ``PREPARED``; ``ahead``: whether to do so now."""
    orders, reports, parent, prepare, ahead, *command = sys.argv[1:]
    end_with_parent()
    if os.getppid() != int(parent):
        return
    signal.signal(signal.SIGTERM, _not_needed)

    def report(document: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            os.write(int(reports), json.dumps(document).encode() + b"\n")

    gateway = Gateway(report)
    if ahead == AHEAD:
        load_libraries()
    if prepare == SPARK:
        gateway.install()
    with open(int(orders), encoding="utf-8") as lines:
        for line in lines:
            order = json.loads(line)
            if "go" in order:
                follow(order["go"], order["ended"])
                break
            if order["spark"] is not None:
                gateway.start(order["spark"])
            report({"ready": True})
        else:
            gateway.close()
            return
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        run(command)
    except KeyboardInterrupt:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            raise
        sys.exit(EXIT_INTERRUPTED)
    finally:
        gateway.close()


if __name__ == "__main__":
    main()
