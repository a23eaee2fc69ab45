"""``flinkplus demo``: a WordCount over English prose in which one slot is killed and everything comes out right."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flinkplus.cli import session
from flinkplus.cli.wordcount import Kill, WordCount, milliseconds, print_summary, run_wordcount, verdict

PARALLELISM = 4
RATE = 100_000.0
REPEAT = 10
KILL_AT_S = 4.0


def run_demo() -> dict[str, Any]:
    """Run the demo and print its story; returns its figures."""
    print("WordCount over the English prose that comes with Python, on Spark, 4 slots, a checkpoint every second.")
    print(f"After {KILL_AT_S:.0f} seconds the process that hosts count[1] is killed with SIGKILL.")
    spark = session.open_session(session.default_master(PARALLELISM))
    try:
        with tempfile.TemporaryDirectory(prefix="flinkplus-demo-") as directory:
            run = WordCount(
                output=str(Path(directory) / "counts"),
                rate=RATE,
                repeat=REPEAT,
                kills=(Kill("count:1", KILL_AT_S),),
                options={"parallelism": PARALLELISM},
            )
            result = run_wordcount(spark, run)
    finally:
        spark.stop()
    print_summary(result)
    for recovery in result["recoveries"]:
        took, back = milliseconds(recovery["recovery_ms"]), recovery["checkpoint"]
        print(f"The killed slot's words were counted on {took} after the kill (rollback to checkpoint {back}).")
    print(f"The result is {verdict(result)}.")
    return result
