"""A running job and a shell of its own: it says how it is, is hurt on order, and does as told by who has the key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from flinkplus import StreamEnvironment
from flinkplus.runtime.operations.access_file import ACCESS_FILE
from flinkplus.state.durable.storage import CheckpointStorage
from tests.integration.conftest import PATIENCE_S, wait_for_checkpoint, wait_until
from tests.typed import Command

pytestmark = pytest.mark.integration

WITHOUT_END = 10_000


def assert_exact_so_far(output: Path, words: int) -> None:
    """(word, 1) ... (word, n) for every word, each once, of as many words as were read."""
    table = pq.read_table(output)
    counts = Counter(table.column("word").to_pylist())
    pairs = set(zip(table.column("word").to_pylist(), table.column("count").to_pylist(), strict=True))
    assert len(pairs) == table.num_rows == words
    assert all(1 <= count <= counts[word] for word, count in pairs)


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    """``flinkplus`` in a process of its own."""
    command = [sys.executable, "-m", "flinkplus.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def assert_the_page_says_so(address: str, status: dict[str, Any], command: Command, kept: Path) -> None:
    """The page has the same status, its token gives commands, and metrics have every subtask."""
    assert status["job"]["ui"] == address

    def fetch(path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address + path, data, {"Content-Type": "application/json", **headers})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.read()

    shown = json.loads(fetch("api/status"))
    assert shown["job"] == status["job"] and shown.keys() == status.keys()
    assert [one["subtask"] for one in shown["subtasks"]] == [one["subtask"] for one in status["subtasks"]]
    assert all(one["busy_s"] > 0 for one in shown["subtasks"])
    assert fetch("metrics").count(b"flinkplus_rows_total{") == 2 * len(shown["subtasks"])
    graph = json.loads(fetch("api/graph"))
    assert {vertex["name"] for vertex in graph["vertices"]} == {one["vertex"] for one in shown["subtasks"]}
    code, token, _ = command("ui", "--checkpoint-dir", kept, "--token")
    assert code == 0
    assert command("ui", "--checkpoint-dir", kept)[1] == f"{address}#token={token}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fetch("api/commands/undrain-host", {"host": "here"})
    with pytest.raises(urllib.error.HTTPError, match="409") as refused:
        fetch("api/commands/undrain-host", {"host": "here"}, Authorization=f"Bearer {token.strip()}")
    assert "here" in json.loads(refused.value.read())["error"]


@pytest.mark.timeout(240)
def test_a_job_is_looked_at_and_hurt_from_a_shell(
    spark: SparkSession, corpus: Path, tmp_path: Path, command: Command
) -> None:
    kept, work = tmp_path / "kept", tmp_path / "work"
    work.mkdir()
    env = StreamEnvironment(
        spark,
        parallelism=3,
        checkpoint_interval=0.3,
        checkpoint_dir=str(kept),
        work_dir=str(work),
        max_restarts=10,
        ui=True,
    )
    words = env.read_text(str(corpus), repeat=WITHOUT_END, name="lines").tokenize(name="tokenize").throttle(20_000.0)
    words.key_by("word").count(name="count").to_parquet(str(tmp_path / "out"), name="out")
    with env.execute("watched") as job:
        wait_for_checkpoint(job, 2)
        code, _, err = command("ui", "--checkpoint-dir", kept)
        assert (code, err) == (0, f"job watched: {job.ui}\n"), "the address, as the job has printed it"

        def status() -> dict[str, Any]:
            code, out, err = command("status", "--checkpoint-dir", kept, "--json")
            assert (code, err) == (0, "")
            found: dict[str, Any] = json.loads(out)
            return found

        told = shell("status", "--checkpoint-dir", kept)
        assert told.returncode == 0, told.stderr
        for word in ("watched", "slot-2", "count+out[1]", "Chains", "complete", "running"):
            assert word in told.stdout
        found = status()
        assert [slot["state"] for slot in found["slots"]] == ["working"] * 3
        assert {slot["slot"]: slot["pid"] for slot in found["slots"]} == {
            f"slot-{slot}": pid for slot, pid in job.slot_pids().items()
        }
        assert [one["subtask"] for one in found["subtasks"]] == sorted(job.placement())
        assert all(one["rows_out"] > 0 and one["state"] == "running" for one in found["subtasks"])
        assert [one["behind_rows"] is None for one in found["subtasks"]] == [True] * 3 + [False] * 3
        assert all(len(chain["members"]) == 3 and chain["newest"] >= 1 for chain in found["chains"])
        assert found["job"]["checkpoint_dir"] == job.checkpoint_dir and found["recoveries"] == []

        assert_the_page_says_so(str(job.ui), found, command, kept)

        listed = shell("checkpoints", kept, "--json")
        assert listed.returncode == 0, listed.stderr
        newest = json.loads(listed.stdout)["checkpoints"][-1]
        assert (newest["status"], newest["kind"], newest["parallelism"]) == ("readable", "aligned", 3)
        assert newest["bytes"] > 0 and {"lines", "count", "out"} < {one["name"] for one in newest["operators"]}

        access = next(work.rglob(ACCESS_FILE))
        forged = tmp_path / "forged.json"
        forged.write_text(json.dumps({**json.loads(access.read_text()), "key": "00" * 32}))
        forged.chmod(0o600)
        refused = shell("inject", "kill", "count:1", "--access", forged)
        assert refused.returncode == 1 and "refused this shell" in refused.stderr
        code, _, err = command("inject", "exception", "count:1", "--access", forged)
        assert code == 1 and "refused this shell" in err
        for wrong, why in (("nobody:1", "nobody"), ("slot-3", "slot-0 to slot-2"), ("worker-9", "hosts with slots")):
            code, _, err = command("inject", "kill", wrong, "--access", access)
            assert code == 1 and why in err
        assert job.metrics()["refused_connections"] == 2 and job.recoveries() == []

        hurt = shell("inject", "exception", "count:1", "--access", access)
        assert (hurt.returncode, hurt.stdout) == (0, "an exception in count+out[1]\n"), hurt.stderr
        wait_until(lambda: job.metrics()["failovers"] == 1, "a failover after an exception")
        assert "InjectedFailure" in job.recoveries()[0]["reason"]
        wait_until(lambda: job.recoveries()[0]["caught_up_ms"] is not None, "it is over")
        assert status()["recoveries"][0] == job.recoveries()[0]

        killed = job.slot_pids()[0]
        hurt = shell("inject", "kill", "slot-0", "--checkpoint-dir", kept, "--json")
        assert hurt.returncode == 0 and json.loads(hurt.stdout)["slots"] == [0], hurt.stderr
        wait_until(lambda: job.metrics()["failovers"] == 2, "a failover after a kill")
        assert status()["recoveries"][1]["detect_ms"] is not None, "measured from the signal"
        wait_until(lambda: job.slot_pids().get(0, killed) != killed, "the slot is back")

        code, out, _ = command("inject", "slow", "count:2", "--access", access, "--for", "0.5", "--delay", "0.02")
        assert code == 0 and "slowed down for 0.5 s" in out
        code, out, _ = command("inject", "cut", "slot-1", "--access", access, "--for", "0.15")
        assert (code, out) == (0, "slot-1 cut off for 0.15 s\n")
        last = job.metrics()["last_checkpoint"]
        wait_until(lambda: job.metrics()["last_checkpoint"] > last, "it goes on")
        code, out, _ = command("inject", "pause", "slot-1", "--access", access, "--for", "8")  # longer than it may hang
        assert (code, out) == (0, "slot-1 stopped for 8 s\n")
        wait_until(lambda: job.metrics()["failovers"] == 3, "a slot that hangs is given up")
        job.drain()
        job.await_finish(PATIENCE_S)
        assert not access.exists()
    assert_exact_so_far(tmp_path / "out", job.metrics()["operators"]["tokenize"]["rows_out"])
    assert [recovery["mode"] for recovery in job.recoveries()] == ["standby"] * 3
    assert CheckpointStorage(kept).retention.unnamed() == [], (
        "dead heads, and checkpoints that were given up, leave nothing"
    )
    code, out, _ = command("checkpoints", kept, "--verify", "--json")
    assert code == 0 and json.loads(out)["checkpoints"][-1]["kind"] == "final", out
    code, _, err = command("status", "--checkpoint-dir", kept)
    assert code == 1 and "no job runs on the checkpoint directory" in err
    assert os.listdir(work) == []
