"""What Spark lets others reach of a job that runs on this machine alone.

With a ``local`` master everything of FlinkPlus's own listens on loopback. Spark's driver, its block manager and its web
UI listen where the user's session has them listen, which by default is everywhere. Who reaches them may read what the
job's tasks are sent, the job's secret among it, unless Spark asks for a secret of its own; the UI asks for none.

Rules: the warning names the ports that the Java process listens on, not those that settings promise. One warning for
each session. Ports that cannot be seen are left out.
"""

from __future__ import annotations

import ipaddress
import logging
from urllib.parse import urlsplit

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from flinkplus.runtime.job.local_masters import local_master

ADVICE = (
    "before the session is made, set SPARK_LOCAL_IP=127.0.0.1 in the environment, or spark.ui.enabled=false with "
    "spark.driver.bindAddress and spark.driver.host=127.0.0.1; or let Spark ask who connects: spark.authenticate=true "
    "(docs/security.md)"
)

log = logging.getLogger("flinkplus.security")
_warned: set[str] = set()
"""Sessions, by the id of their Spark application."""


def warn_of_open_ports(spark: SparkSession) -> None:
    """Log a warning when the session's master is on this machine and its ports can be reached from others."""
    context = spark.sparkContext
    master, application = context.master or "", context.applicationId
    if application in _warned or (local_master(master) is None and not master.startswith("local-cluster")):
        return
    try:
        found = open_ports(context)
    except (psutil.Error, Py4JError, OSError) as error:
        log.debug("cannot list the ports that Spark listens on: %s", error)
        return
    if found:
        _warned.add(application)
        log.warning(
            "the master is %s, and yet Spark listens for other machines: %s; %s", master, ", ".join(found), ADVICE
        )


def open_ports(context: SparkContext) -> list[str]:
    """What the Java process of a session lets others reach without asking who they are: ``the web UI at [::]:4040``."""
    conf = context.getConf()
    asks = conf.get("spark.authenticate", "false") == "true"
    ui = urlsplit(context.uiWebUrl).port if context.uiWebUrl else None
    names = {ui: "the web UI", int(conf.get("spark.driver.port", "0") or 0): "the driver"}
    jvm = context._jvm
    assert jvm is not None
    process = psutil.Process(int(jvm.java.lang.ProcessHandle.current().pid()))
    found = []
    for connection in process.net_connections("inet"):
        if connection.status != psutil.CONN_LISTEN or _is_loopback(connection.laddr.ip):
            continue
        port = connection.laddr.port
        if port == ui or not asks:
            found.append(
                f"{names.get(port, 'its block manager, or another server,')} at {_shown(*connection.laddr[:2])}"
            )
    return sorted(found, reverse=True)


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(host: str) -> bool:
    return _plain(host).is_loopback


def _shown(host: str, port: int) -> str:
    address = _plain(host)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
