"""Has Spark find ``spark.read.format("flinkplus-state")``.

PySpark imports every top-level package whose name begins with ``pyspark_``, and registers its ``DefaultSource``. So
this package imports nothing but that.
"""

from flinkplus.api.state_source import StateDataSource as DefaultSource

__all__ = ["DefaultSource"]
