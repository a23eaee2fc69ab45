"""Settings of Spark for a program whose Spark mainly runs slots. Sessions of ``flinkplus`` commands have them too."""

from __future__ import annotations

QUICK_JIT = "-XX:TieredStopAtLevel=1"
"""Java compiles quickly rather than well, which leaves the processors to the slots."""


def spark_settings() -> dict[str, str]:
    """Settings that make jobs start and recover faster: ``SparkSession.builder.config(map=spark_settings())``.

    They have an effect only where they are given before Spark starts, which is why ``StreamEnvironment`` cannot set
    them. Jobs run without them as well, with the same result.

    - ``spark.python.daemon.module``: Spark loads the libraries of slots once and not in each slot. FlinkPlus has to be
      installed in the Python environment of the executors.
    - ``spark.driver.extraJavaOptions``, ``spark.executor.extraJavaOptions``: Java compiles quickly rather than well.
      Leave them out in a program with large queries of its own.
    """
    return {
        "spark.python.daemon.module": "flinkplus.runtime.daemon",
        "spark.driver.extraJavaOptions": QUICK_JIT,
        "spark.executor.extraJavaOptions": QUICK_JIT,
    }
