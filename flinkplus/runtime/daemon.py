"""PySpark's worker daemon with the slot's libraries loaded before it forks: a slot then starts in half the time.

Used through ``spark.python.daemon.module=flinkplus.runtime.daemon``, which the command line sets; any program may.
gRPC is left out: its library, which only ``transport="grpc"`` needs, must be loaded after the fork.
"""

from __future__ import annotations

import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet  # noqa: F401
import rocksdict  # noqa: F401
from pyspark import daemon

import flinkplus.operators.keyed
import flinkplus.runtime.launcher
import flinkplus.runtime.tcp_control
import flinkplus.runtime.tcp_data
import flinkplus.sinks.parquet
import flinkplus.sources.text
import flinkplus.state.backend  # noqa: F401

if __name__ == "__main__":
    daemon.manager()
