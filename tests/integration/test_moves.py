"""Work is moved while the job runs, through the handle and from a shell; nothing stops, and the output is exact."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, MoveCancelled, MoveRefused
from flinkplus.runtime.access import ACCESS_FILE
from tests.integration.failover_jobs import Victim
from tests.typed import Command

pytestmark = pytest.mark.integration


def test_subtasks_are_moved_back_and_forth(spark: SparkSession, tmp_path: Path, command: Command) -> None:
    with Victim(spark, tmp_path, replicas=2) as victim:
        job = victim.job
        access = next(victim.work.rglob(ACCESS_FILE))

        def shell(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
            code, out, err = command(*arguments, "--access", access, "--json")
            return code, [json.loads(line) for line in out.splitlines()], err

        assert victim.chain("count[0]") == (0, 1)
        job.migrate("count:0", 2).await_done(30)  # it has nothing of it
        assert victim.chain("count[0]")[0] == 2
        assert victim.chain("numbers[0]")[0] == 0
        assert (job.handovers()[0]["reason"], job.handovers()[0]["failure"]) == (
            "count+out[0] moves to slot 2, as asked",
            "handover",
        )
        code, news, err = shell("migrate", "numbers:1", "--to", "slot-2")  # its standby
        assert (code, err, news[-1]["status"]) == (0, "", "done")
        code, news, err = shell("migrate", "count:0", "--to", "slot-0", "--wait", "0")
        assert (code, news[0]["status"], news[0]["left"]) == (0, "under_way", ["count+out[0]"])
        victim.wait(lambda: victim.metrics["handovers"] == 3, "it is back")
        assert victim.chain("count[0]")[0] == 0

        with pytest.raises(MoveRefused, match="there is no slot 3"):
            job.migrate("count:0", 3)
        with pytest.raises(ConfigurationError, match="nobody"):
            job.migrate("nobody:0", 1)
        with pytest.raises(MoveRefused, match="no slot that could work in place of those on host"):
            job.drain_host(socket.gethostname(), force=True)
        with pytest.raises(MoveRefused, match="is not drained"):
            job.undrain_host(socket.gethostname())
        assert shell("migrate", "count:0", "--to", "2nd")[0] == 2
        code, _, err = shell("drain", "elsewhere")
        assert code == 1 and "no slot is on host elsewhere" in err

        lost = job.migrate("count:1", 0)
        victim.kill_slot(0)
        with pytest.raises(MoveCancelled, match="slot 0 was lost"):
            lost.await_done(30)
        victim.wait_for_failovers(1)
        victim.wait(lambda: victim.strong, "full strength")
        last = job.migrate("count:2", 1)
        victim.finish()
        with pytest.raises((MoveCancelled, MoveRefused), match="over"):
            job.migrate("count:1", 2)
        assert last.status in ("done", "cancelled")
    assert victim.metrics["fallbacks"] == 0
