"""A WordCount on the job's host of a cluster: one worker is killed, another hangs; what happened, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient

from chain_backup.zookeeper.records import ChainRecord, Paths, SlotRecord, unquote
from experiments.cluster.place import Place
from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.session import open_session
from tests.integration.conftest import PATIENCE_S

WORKERS = 4
REPEAT = 4
RATE = 20_000.0


def main(corpus: str) -> None:
    place = Place.here()
    assert place.control is not None
    spark = open_session(place.master, place.session_settings(WORKERS))
    try:
        env = StreamEnvironment(spark, parallelism=WORKERS, checkpoint_interval=0.3, **place.options(place.shared))
        words = env.read_text(corpus, repeat=REPEAT, name="lines").tokenize(name="tokenize").throttle(RATE)
        words.key_by("word").count(name="count").to_parquet(str(place.shared / "out"), name="out")
        with env.execute("on-a-cluster") as job:
            until(job, lambda: job.metrics()["checkpoints_completed"] >= 2)
            before = job.placement()
            chains = chains_in(place.zookeeper, job.job_id)
            place.control.order("kill", before["count+out[1]"])
            until(job, lambda: job.metrics()["failovers"] == 1)
            after = job.placement()
            hung = after["count+out[2]"]
            hung_s = place.control.order("pause", hung)
            until(job, lambda: job.metrics()["failovers"] == 2)
            time.sleep(1.0)  # as a zombie it finds that everything has gone on
            place.control.order("resume", hung)
            job.await_finish(PATIENCE_S)
        told: dict[str, Any] = {"before": before, "after": after, "chains": chains, "hung": hung, "hung_s": hung_s}
        told |= {"metrics": job.metrics(), "recoveries": job.recoveries()}
        (place.shared / "told.json").write_text(json.dumps(told))
    finally:
        spark.stop()


def until(job: JobHandle, condition: Callable[[], bool]) -> None:
    """Wait for a condition while the job runs."""
    deadline = time.monotonic() + 60
    while not condition():
        if job.done or time.monotonic() > deadline:
            job.await_finish(0)
            raise TimeoutError("the job was over first")
        time.sleep(0.01)


def chains_in(zookeeper: str, application: str) -> dict[str, list[str]]:
    """The hosts of every subtask's chain, as ZooKeeper has them."""
    paths = Paths(application)
    client = KazooClient(zookeeper)
    client.start()
    try:
        slots = {slot: client.get(paths.slot(int(slot)))[0] for slot in client.get_children(paths.slots)}
        hosts = {int(slot): SlotRecord.decode(int(slot), data)[0].host for slot, data in slots.items()}
        chains = {}
        for step in client.get_children(paths.subtasks):
            record = ChainRecord.decode(unquote(step), client.get(f"{paths.subtasks}/{step}")[0])
            chains[record.subtask] = [hosts[slot] for slot in record.members]
        return chains
    finally:
        client.stop()
        client.close()


if __name__ == "__main__":
    main(sys.argv[1])
