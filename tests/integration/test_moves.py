"""Work is moved, and slots come and go, while the job runs, through the handle and from a shell; nothing stops, and the
output is exact.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flinkplus.errors import ConfigurationError, InsufficientSlots, MoveCancelled, MoveRefused
from flinkplus.runtime.operations.access_file import ACCESS_FILE
from tests.integration.conftest import running_job
from tests.integration.failover_jobs import Victim
from tests.typed import Command

pytestmark = pytest.mark.integration


@pytest.mark.long
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
            "count+out[0] moves to slot 2, as requested",
            "handover",
        )
        code, news, err = shell("migrate", "numbers:1", "--to", "slot-2")  # its standby
        assert (code, err, news[-1]["status"]) == (0, "", "done")
        code, news, err = shell("migrate", "count:0", "--to", "slot-0", "--wait", "0")
        assert (code, news[0]["status"], news[0]["left"]) == (0, "under_way", ["count+out[0]"])
        victim.wait(lambda: victim.metrics["handovers"] == 3, "it is back")
        assert victim.chain("count[0]")[0] == 0

        with pytest.raises(MoveRefused, match="slot 3 does not exist"):
            job.migrate("count:0", 3)
        with pytest.raises(ConfigurationError, match="nobody"):
            job.migrate("nobody:0", 1)
        with pytest.raises(MoveRefused, match="no slot could take over from the slots on host"):
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


@pytest.mark.long
@pytest.mark.timeout(240)
def test_spare_slots_come_and_go(
    spark: SparkSession, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Victim(spark, tmp_path, replicas=2) as victim:
        job, running = victim.job, running_job(victim.job)

        def scale(count: int) -> list[dict[str, Any]]:
            access = next(victim.work.rglob(ACCESS_FILE))
            code, out, err = command("scale", str(count), "--access", access, "--json")
            assert (code, err) == (0, "")
            return [json.loads(line) for line in out.splitlines()]

        def whole() -> bool:
            return len(job.slot_pids()) == 6 and job.missing_standbys() == 0 and victim.protocol.all_have(1)

        assert scale(3)[-1]["status"] == "done"
        assert {slot for slots in job.chains().values() for slot in slots} == {0, 1, 2, 3, 4, 5}
        status = running.coordinator.calls.answer(running._status, None)
        assert status is not None
        assert [(slot.slot, slot.spare, slot.state) for slot in status.slots[2:]] == [
            ("slot-2", False, "working"),
            *((f"slot-{number}", True, "standby") for number in (3, 4, 5)),
        ]
        with pytest.raises(InsufficientSlots, match="runs 6 tasks at once"):
            job.scale_spares(4)
        spares = running.coordinator.parts.spares
        assert spares is not None
        with monkeypatch.context() as patched:  # as on a cluster, of which only Spark knows what it has room for
            patched.setattr(running._slots, "_room", None)
            patched.setattr(spares, "_timeout_s", 1.0)
            with pytest.raises(
                InsufficientSlots, match=r"slot-6 had not been started by Spark.* the job now has 3 spare slots"
            ):
                job.scale_spares(4).await_done(30)

        job.migrate("count:0", 4).await_done(30)
        victim.kill_slot(4)
        victim.wait_for_failovers(1)
        victim.wait(whole, "full strength")
        assert victim.metrics["fallbacks"] == 0
        for slot in victim.chain("count[1]"):
            victim.kill_slot(slot)
        victim.wait(lambda: victim.metrics["fallbacks"] == 1 and whole(), "full strength after a rollback")

        restarts, failovers = victim.metrics["slot_restarts"], victim.metrics["failovers"]
        last = scale(0)[-1]
        assert (last["status"], last["left"]) == ("done", [])
        assert sorted(job.slot_pids()) == [0, 1, 2]
        assert {slot for slots in job.chains().values() for slot in slots} == {0, 1, 2}
        metrics = victim.metrics
        assert (metrics["slot_restarts"], metrics["failovers"], metrics["fallbacks"]) == (restarts, failovers, 1)
        tracker = spark.sparkContext.statusTracker()
        for slot in (3, 4, 5):
            for number in tracker.getJobIdsForGroup(f"flinkplus-{running._run}-{slot}"):
                told = tracker.getJobInfo(number)
                assert told is not None and told.status == "SUCCEEDED", "it was not cancelled, nor did it fail"
        victim.finish()
