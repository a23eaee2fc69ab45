"""What Spark lets others reach: said of a session that the user made, and nothing in one that FlinkPlus made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.security]

USERS = """
import logging
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
from pyspark.sql import SparkSession
from flinkplus import StreamEnvironment
spark = SparkSession.builder.master("local[3]").config("spark.log.level", "OFF").getOrCreate()
for number in range(2):
    env = StreamEnvironment(spark, parallelism=1)
    env.generate(lambda i: {"n": i}, schema="n long", count=10).discard()
    with env.execute(f"job {number}") as job:
        job.await_finish(60)
print("done", job.state)
spark.stop()
"""
OURS = """
import sys
from flinkplus.cli.session import session
from flinkplus.runtime.job.open_ports import open_ports
with session(sys.argv[1]) as spark:
    print("open", open_ports(spark.sparkContext))
"""


def run(program: str, *arguments: str, **settings: str) -> tuple[str, str]:
    """In a process of its own, whose environment says nothing of addresses."""
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_LOCAL_IP"} | settings
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return done.stdout, done.stderr


@pytest.mark.long
def test_a_session_of_the_users_is_warned_about_once() -> None:
    out, err = run(USERS)
    assert "done finished" in out
    (warning,) = re.findall(r"WARNING flinkplus.security (the master is local\[3\], but .*)", err)
    assert "the web UI at [::]:" in warning or "the web UI at 0.0.0.0:" in warning
    for setting in ("SPARK_LOCAL_IP", "spark.ui.enabled", "spark.driver.bindAddress", "spark.authenticate"):
        assert setting in warning


@pytest.mark.long
def test_of_a_session_that_asks_for_a_secret_only_the_ui_is_told() -> None:
    authenticated = USERS.replace(".getOrCreate()", '.config("spark.authenticate", "true").getOrCreate()')
    out, err = run(authenticated)
    assert "done finished" in out
    (warning,) = re.findall(r"can connect to Spark: (.*); before", err)
    assert re.fullmatch(r"the web UI at \S+", warning)


@pytest.mark.long
def test_a_session_on_loopback_is_not_warned_about() -> None:
    out, err = run(USERS, SPARK_LOCAL_IP="127.0.0.1")
    assert "done finished" in out and "flinkplus.security" not in err


@pytest.mark.long
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[1,1,1024]"])
def test_a_session_of_flinkplus_is_on_loopback(tmp_path: Path, master: str) -> None:
    """Also where the machine is otherwise used with a cluster."""
    settings = {}
    if master.startswith("local["):
        (tmp_path / "spark-defaults.conf").write_text("spark.driver.bindAddress 0.0.0.0\nspark.ui.enabled true\n")
        settings["SPARK_CONF_DIR"] = str(tmp_path)
    out, _ = run(OURS, master, **settings)
    assert "open []" in out
