"""A command of ``flinkplus`` that is to run on the job's host of a cluster: start the cluster, and run it there."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import psutil

from experiments.cluster.control import CONTROL_FILE, ControlServer
from experiments.cluster.namespaces import Cluster
from experiments.cluster.place import SHARED

CLI = ("-m", "flinkplus.cli.main")
END_S = 30.0


def run_inside(hosts: int) -> int:
    """Run this very command, with ``--cluster here``, on the job's host of a cluster with so many workers; returns
    its exit code. Raises ``ClusterError`` where there can be no cluster.
    """
    arguments = [*sys.argv[1:], "--cluster", "here"]  # the last one counts
    with Cluster(workers=hosts) as cluster:
        control = cluster.shared(cluster.environment[SHARED]) / CONTROL_FILE
        with ControlServer(cluster, control):
            process = subprocess.Popen(cluster.job_command([sys.executable, *CLI, *arguments], _terminal()))
            try:
                return process.wait()
            except KeyboardInterrupt:
                with contextlib.suppress(psutil.NoSuchProcess):  # Ctrl-C may have reached it, and ended it, before
                    for child in psutil.Process(process.pid).children():
                        child.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
                raise


def _terminal() -> dict[str, str]:
    """What programs want to know of the user's terminal."""
    return {name: os.environ[name] for name in ("TERM", "COLUMNS", "LINES") if name in os.environ}
