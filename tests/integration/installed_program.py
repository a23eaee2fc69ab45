"""What a user submits to Spark: a word count, one of whose slots is killed. Run by ``test_installed.py``.

What it has found is in ``found.json`` in the working directory.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from flinkplus import JobFailed, StreamEnvironment

PACKAGES = ("chain_backup", "dedup", "experiments", "flinkplus", "pyspark_flinkplus", "upstream_cache")
WORDS = 20


def places():
    """The directories that the packages of FlinkPlus were imported from in this process."""
    files = [module.__file__ or "" for name, module in list(sys.modules.items()) if name in PACKAGES]
    return ",".join(sorted({str(Path(file).parents[1]) for file in files}))


def draw(spark):
    env = StreamEnvironment(spark, parallelism=2, checkpoint_interval=0.2)
    words = env.generate(lambda i: (f"word-{i % WORDS}",), schema="word string", rate=2_000.0, name="words")
    counts = words.key_by("word").count(name="count")
    counts.map(
        lambda row: (row.word, row["count"], places()), schema="word string, n long, place string", name="place"
    ).collect(name="out")
    return env


def shadowed(spark):
    """What a job says whose slots find ``dedup.py`` in the working directory; it is removed after that."""
    try:
        with draw(spark).execute("shadowed") as job:
            job.await_finish(120)
    except JobFailed as error:
        return str(error)
    finally:
        os.remove("dedup.py")
    return "nothing"


def main():
    spark = SparkSession.builder.getOrCreate()
    found = {"shadowed": shadowed(spark), "words": WORDS}
    with draw(spark).execute("words") as job:
        while job.metrics()["checkpoints_completed"] < 1:
            time.sleep(0.01)
        before = job.slot_pids()
        job.kill("count:1")
        while not job.recoveries() or job.state != "running" or len(job.slot_pids()) < 2:
            time.sleep(0.01)
        after = job.slot_pids()
        job.drain()
        job.await_finish(120)
    rows = job.collected("out").to_pylist()
    found["killed"] = sum(before[slot] != after[slot] for slot in before)
    found["recoveries"] = job.recoveries()
    found["driver"] = places().split(",")
    found["slots"] = sorted({place for row in rows for place in row["place"].split(",")})
    found["counts"] = {}
    for row in rows:
        found["counts"].setdefault(row["word"], []).append(row["n"])
    Path("found.json").write_text(json.dumps(found))


main()
