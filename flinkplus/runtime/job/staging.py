"""Batch DataFrames as replayable input: Spark writes their rows to Parquet files, which slots read from any position.

Rules: staged files live in the checkpoint directory, as long as checkpoints that refer to them. The partitions of the
DataFrame are kept: others would change the order of the rows. The source splits the files into contiguous ranges.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from flinkplus.errors import LONGEST_DESCRIPTION, ConfigurationError, InputError, first_line
from flinkplus.printable import printable
from flinkplus.sources.parquet import StagedParquet

STAGED = "staged"


def check_dataframe(df: DataFrame) -> None:
    """Raises ``ConfigurationError`` unless ``df`` is a DataFrame."""
    if not isinstance(df, DataFrame):
        raise ConfigurationError(f"from_spark takes a DataFrame, such as spark.read.parquet(...), not {df!r:.100}")


def stage(df: DataFrame, source: StagedParquet, directory: str, folder: str | None = None) -> StagedParquet:
    """Let Spark write ``df`` below ``directory``; returns the source that reads it, in the order of ``df``. Raises
    ``InputError`` when Spark cannot read the input. ``folder``: the name of its folder, if not that of the source."""
    target = f"{directory.rstrip('/')}/{STAGED}/{folder or source.name}"
    try:
        df.write.mode("overwrite").parquet(target)
    except Exception as error:  # errors of pyspark and py4j
        why = f"Spark could not stage the DataFrame: {spark_reason(error)}"
        raise InputError(f"source {source.name!r}: {why}") from error
    return source.staged_at(target)


def moved(plan: Any, directory: str) -> list[Any]:
    """What was planned for staged input (``StagedParquet.split_plan``), whose files were copied below ``directory``.

    Raises ``TypeError`` or ``ValueError`` for what is no such plan.
    """
    staged = f"{directory.rstrip('/')}/{STAGED}"
    return [["/".join((staged, *str(file).rsplit("/", 2)[-2:])), groups] for file, groups in plan]


def spark_reason(error: Exception) -> str:
    """The error in one line; for an error in the JVM, its innermost cause."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return first_line(error)
    while cause.getCause() is not None:
        cause = cause.getCause()
    message = printable((str(cause.getMessage() or "").splitlines() or [""])[0], LONGEST_DESCRIPTION)
    return f"{cause.getClass().getSimpleName()}: {message}"
