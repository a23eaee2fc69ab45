"""A quiet SparkSession for the command line, and a clear error when Java is missing or too old.

Rules: a ``local`` master listens on loopback only. All ``SPARK_*`` and ``PYSPARK_*`` variables of the user are kept.
After Ctrl-C, or the loss of Spark's Java process, the command prints one line and leaves no Java process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from flinkplus.api.spark_settings import spark_settings
from flinkplus.errors import ConfigurationError, FlinkPlusError, JavaError, JobFailed, described, first_line
from flinkplus.runtime.job.homes import local_master
from flinkplus.runtime.job.launcher import LOCAL_CLUSTER, LOOPBACK, check_slots

JAVA_MINIMUM = 17
JAVA_TIMEOUT_S = 30
JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
INSTALL_HINT = "install it with: sudo apt-get install openjdk-17-jre-headless (or set JAVA_HOME)"
REMOTE_MASTER = re.compile(r"(spark://.|k8s://.|yarn$)")
DRIVER_JAVA = "spark.driver.extraJavaOptions"
SPARE_THREADS = 2  # for the user's own queries beside the slots
JAVA_STOP_S = 10.0
JAVA_ENDS_S = 2.0
ADDRESSES = ("spark.driver.bindAddress", "spark.driver.host")
PY4J_LOGGERS = (None, "py4j.java_gateway", "py4j.clientserver")  # the first is the root
log = logging.getLogger("flinkplus.session")


def check_java() -> int:
    """The major version of the Java that Spark will use. Raises ``JavaError`` saying how to get one."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    if shutil.which(java) is None:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no java on the PATH"
        raise JavaError(f"Spark needs Java {JAVA_MINIMUM} or newer, but there is {where}; {INSTALL_HINT}")
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} -version failed: {error}; {INSTALL_HINT}") from error
    match = JAVA_VERSION.search(done.stderr + done.stdout)
    if match is None:
        raise JavaError(f"{java} -version does not report its version: {done.stderr.strip()[:200]!r}; {INSTALL_HINT}")
    version = int(match[1])
    if version < JAVA_MINIMUM:
        raise JavaError(f"Spark needs Java {JAVA_MINIMUM} or newer, {java} is {version}; {INSTALL_HINT}")
    return version


def default_master(parallelism: int) -> str:
    """A local master with a thread for each slot, and some to spare."""
    return f"local[{parallelism + SPARE_THREADS}]"


def check_master(asked: str | None, slots: int) -> str:
    """The master URL ``asked``, or the default. Raises ``ConfigurationError`` for a malformed one,
    ``InsufficientSlots`` for one with too little room."""
    master = asked or default_master(slots)
    known = local_master(master) is not None or LOCAL_CLUSTER.match(master) or REMOTE_MASTER.match(master)
    if not known:
        raise ConfigurationError(
            f"{master!r} is not a master URL; use local[N], local[*], local-cluster[N,CORES,MB], spark://HOST:PORT, "
            "yarn or k8s://..."
        )
    check_slots(master, slots)
    return master


def open_session(master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session on ``master``, with further ``settings``. Raises ``JavaError`` or ``ConfigurationError``.

    What makes jobs faster is in ``spark_settings``, which any program may use. The rest keeps Spark quiet and local.
    """
    check_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log4j = Path(__file__).with_name("log4j2.properties")
    public = spark_settings()
    conf = {
        **public,
        "spark.master": master,
        "spark.app.name": "flinkplus",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "8",
        DRIVER_JAVA: f"{public[DRIVER_JAVA]} -Dlog4j2.configurationFile={log4j.as_uri()}",
        **(settings or {}),
    }
    if os.environ.get("SPARK_LOCAL_IP", LOOPBACK) == LOOPBACK:
        if local_master(master) is not None:  # wins over what spark-defaults.conf has for a cluster
            conf = {**dict.fromkeys(ADDRESSES, LOOPBACK), **conf}
        if local_master(master) is not None or master.startswith("local-cluster"):
            os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    _quieten()
    on_interrupt = signal.getsignal(signal.SIGINT)
    children = set(psutil.Process().children(recursive=True))
    try:
        _start_java(conf)
        spark = SparkSession.builder.config(map=dict(conf)).getOrCreate()
        _quieten_accumulators(spark)
        return spark
    except KeyboardInterrupt:
        on_interrupt = signal.getsignal(signal.SIGINT)  # another Ctrl-C must not interrupt the end
        _end_others(children)
        raise
    except Exception as error:  # py4j and pyspark raise many kinds here; to the user they are one
        _end_others(children)
        reason = first_line(error)
        raise ConfigurationError(f"Spark could not be started on master {master!r}: {reason}") from error
    finally:
        signal.signal(signal.SIGINT, on_interrupt)  # PySpark's own handler would cancel the slots' job under ours


def _start_java(conf: Mapping[str, str]) -> None:
    """Start Spark's Java process, unless one runs, with its stderr passed on by ``java_messages``."""
    if SparkContext._gateway is not None:
        return
    text = pkgutil.get_data(__package__ or "", "java_messages.py")
    assert text is not None
    command = [sys.executable, "-I", "-S", "-c", text.decode()]
    relay = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # Ctrl-C is not for it
    assert relay.stdin is not None
    _relays.append(relay)
    with relay.stdin:
        gateway = launch_gateway(SparkConf().setAll(list(conf.items())), {"stderr": relay.stdin})
    SparkContext._ensure_initialized(gateway=gateway)


_relays: list[subprocess.Popen[bytes]] = []
"""They end by themselves, some time after Java."""


def _end_others(before: set[psutil.Process]) -> None:
    """End the children that were not there ``before``: Java without a connection would not notice that it is alone."""
    processes = [child for child in psutil.Process().children(recursive=True) if child not in before]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(processes, JAVA_STOP_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def session(master: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """``open_session`` for a block, after which the session is stopped. Raises as ``open_session``, and ``JobFailed``
    for what fails in the block because Spark's Java process has ended."""
    spark = open_session(master, settings)
    try:
        yield spark
    except FlinkPlusError:
        raise
    except Exception as error:
        if not (isinstance(error, OSError | Py4JError) and _has_ended(spark)):
            raise
        raise JobFailed("Spark's Java process has ended, and the command with it; see what killed it") from error
    finally:
        _stop(spark)


def _has_ended(spark: SparkSession) -> bool:
    """Whether the session's Java process, a child of this one, is gone; its connections break a moment before."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is None:
        return False
    try:
        process.wait(JAVA_ENDS_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stop(spark: SparkSession) -> None:
    try:
        spark.stop()
    except Exception as error:  # its Java process has ended
        log.info("Spark was not stopped: %s", described(error))


def _is_useful(record: logging.LogRecord) -> bool:
    """``False`` for tracebacks that py4j logs of failed calls: these also raise errors, which their callers handle."""
    return not record.exc_info or "py4j" not in Path(record.pathname).parts


def _quieten_accumulators(spark: SparkSession) -> None:
    """Let PySpark's server for accumulators print no traceback when the Java process has ended."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is None:
        return
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            report(request, address)

    server.handle_error = handle_error


def _quieten() -> None:
    for name in PY4J_LOGGERS:
        logging.getLogger(name).addFilter(_is_useful)
