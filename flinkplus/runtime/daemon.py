"""PySpark's worker daemon with the slot's libraries loaded before it forks: a job then starts faster.

Used through ``spark.python.daemon.module=flinkplus.runtime.daemon``, which is in ``flinkplus.spark_settings()``.
Without it each slot's keeper loads them, once.

gRPC is left out: its library, which only ``transport="grpc"`` needs, must be loaded after the fork.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import sys
import zipfile
from pathlib import Path

from flinkplus.shadows import LIBRARIES, find_shadow

ARCHIVED = ("pyspark", "py4j")
MODULES = (
    "chain_backup.zookeeper.session",
    "flinkplus.operators.keyed.keyed",
    "flinkplus.operators.rows.tokenize",
    "flinkplus.runtime.job.launcher",
    "flinkplus.runtime.slot.process.slot_process",
    "flinkplus.runtime.transport.tcp.control",
    "flinkplus.runtime.transport.tcp.data",
    "flinkplus.sinks.discard",
    "flinkplus.sinks.parquet",
    "flinkplus.sources.text",
    "flinkplus.state.backend",
    "pyarrow.compute",
    "pyarrow.ipc",
    "pyarrow.parquet",
    "pyspark.worker",
    "rocksdict",
)


def without_archives(path: list[str]) -> list[str]:
    """``path`` without the archives of PySpark that Spark puts first, if the same is there unpacked.

    What is loaded from an archive is compiled anew in every process, and its directory is read anew whenever a worker
    adds to the path, as all do: together a quarter of a second of work for each process.
    """
    archives = [entry for entry in path if entry.endswith(".zip") and Path(entry).name.startswith(ARCHIVED)]
    rest = [entry for entry in path if entry not in archives]
    for archive in archives:
        package = next(name for name in ARCHIVED if Path(archive).name.startswith(name))
        if not _is_unpacked(package, archive, rest):
            return path
    return rest


def _is_unpacked(package: str, archive: str, path: list[str]) -> bool:
    """Whether ``package`` is on ``path`` in the version that ``archive`` has."""
    found = importlib.machinery.PathFinder.find_spec(package, path)
    if found is None or found.origin is None:
        return False
    try:
        with zipfile.ZipFile(archive) as packed:
            return Path(found.origin).with_name("version.py").read_bytes() == packed.read(f"{package}/version.py")
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def load() -> None:
    """Load what slots use, and keep the collector from touching it: what a process writes to it has to copy.

    Nothing is loaded where a module of the user's hides a part of it: the slots report that, and the daemon serves the
    user's other tasks.
    """
    if find_shadow(LIBRARIES) is not None:
        return
    for module in MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    load()
    from pyspark import daemon

    daemon.manager()
