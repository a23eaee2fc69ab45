"""The streaming result against a Spark SQL batch job over the same input.

Words are counted by plain Python's ``line.lower().split()`` in a Spark batch job that shares no code with the streaming
operators. For every word that occurs n times, the output must hold (word, 1) ... (word, n) exactly once, and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F


@dataclass(frozen=True)
class BatchCheck:
    """``words`` and ``distinct`` of the batch count; ``wrong``: words whose rows differ; ``example``: one of them."""

    words: int
    distinct: int
    wrong: int
    example: str | None

    @property
    def matches(self) -> bool:
        return self.wrong == 0


def batch_counts(spark: SparkSession, files: list[str], repeat: int) -> DataFrame:
    """``word string, n long``: how often each word occurs in the files, ``repeat`` times over."""

    def words(rows: Iterable[Row]) -> Iterable[tuple[str, int]]:
        counter: Counter[str] = Counter()
        for (line,) in rows:
            counter.update(bytes(line).decode("utf-8", "replace").lower().split())
        return counter.items()

    lines = spark.read.text([_literal(file) for file in files]).select(F.col("value").cast("binary"))
    counted = spark.createDataFrame(lines.rdd.mapPartitions(words), "word string, n long").groupBy("word")
    return counted.agg((F.sum("n") * repeat).alias("n"))


def _literal(path: str) -> str:
    """The path with the characters that Spark takes for a pattern escaped."""
    return "".join("\\" + c if c in "*?[]{}\\," else c for c in path)


def check_output(spark: SparkSession, output: str, files: list[str], repeat: int) -> BatchCheck:
    """Compare the Parquet files in ``output`` with the batch count of ``files``."""
    expected = batch_counts(spark, files, repeat)
    rows = spark.read.parquet(output).groupBy("word")
    got = rows.agg(
        F.count("*").alias("rows"),
        F.min("count").alias("least"),
        F.max("count").alias("most"),
        F.count_distinct("count").alias("distinct"),
    )
    both = expected.join(got, "word", "full_outer")
    right = (
        F.col("n").eqNullSafe(F.col("rows"))
        & F.col("n").eqNullSafe(F.col("most"))
        & F.col("n").eqNullSafe(F.col("distinct"))
        & F.col("least").eqNullSafe(F.lit(1))
    )
    wrong = F.when(~right, 1).otherwise(0)
    summary = both.agg(
        F.coalesce(F.sum("n"), F.lit(0)).alias("words"),
        F.count("n").alias("distinct"),
        F.coalesce(F.sum(wrong), F.lit(0)).alias("wrong"),
        F.first(F.when(~right, F.col("word")), ignorenulls=True).alias("example"),
    ).first()
    assert summary is not None
    return BatchCheck(summary["words"], summary["distinct"], summary["wrong"], summary["example"])
