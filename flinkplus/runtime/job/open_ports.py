"""A warning of Spark's ports that other machines can reach although the job runs on this machine alone.

With a ``local`` master all ports of FlinkPlus listen on loopback, but those of Spark's driver, block manager and web UI
by default at all addresses. A process that can connect to them may read what Spark sends to the job's tasks, including
the job's secret, unless Spark itself authenticates connections; the UI never does.

Rules: one warning per session; it names the ports on which the Java process listens, as far as the system lists them.
"""

from __future__ import annotations

import ipaddress
import logging
from urllib.parse import urlsplit

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from flinkplus.runtime.job.homes import local_master

ADVICE = (
    "before the session is created, set SPARK_LOCAL_IP=127.0.0.1 in the environment, or spark.ui.enabled=false with "
    "spark.driver.bindAddress and spark.driver.host=127.0.0.1; or have Spark authenticate connections: "
    "spark.authenticate=true (docs/security.md)"
)

log = logging.getLogger("flinkplus.security")
_warned: set[str] = set()
"""Sessions, by the id of their Spark application."""


def warn_of_open_ports(spark: SparkSession) -> None:
    """Log a warning when the session's master is on this machine and other machines can reach its ports."""
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
            "the master is %s, but other machines can connect to Spark: %s; %s", master, ", ".join(found), ADVICE
        )


def open_ports(context: SparkContext) -> list[str]:
    """The ports that accept unauthenticated remote connections, such as ``the web UI at [::]:4040``."""
    conf = context.getConf()
    asks = conf.get("spark.authenticate", "false") == "true"
    ui = urlsplit(context.uiWebUrl).port if context.uiWebUrl else None
    names = {ui: "the web UI", int(conf.get("spark.driver.port", "0") or 0): "the driver"}
    jvm = context._jvm
    assert jvm is not None
    process = psutil.Process(int(jvm.java.lang.ProcessHandle.current().pid()))
    found = []
    for connection in process.net_connections("inet"):
        if connection.status != psutil.CONN_LISTEN:
            continue
        host, port = _plain(connection.laddr.ip), connection.laddr.port
        if not host.is_loopback and (port == ui or not asks):
            at = f"[{host}]:{port}" if host.version == 6 else f"{host}:{port}"
            found.append(f"{names.get(port, 'its block manager, or another server,')} at {at}")
    return sorted(found, reverse=True)


def _plain(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address
