"""From what a user gives for the files of a directory to how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.durations import Duration, duration_ms
from flinkplus.operators.base.schema import parse_schema
from flinkplus.sources.files.csv_format import CsvFormat
from flinkplus.sources.files.json_format import JsonFormat
from flinkplus.sources.files.parquet_format import ParquetFormat
from flinkplus.sources.files.records import FileFormat
from flinkplus.sources.files.text_format import TextFormat
from flinkplus.sources.splits import check_options

FormatName = Literal["text", "json", "csv", "parquet"]
_CSV_OPTIONS = {"header": True, "delimiter": ",", "quote": '"', "multiline": False}


def file_times(poll: Duration, max_file_age: Duration | None) -> tuple[float, int | None]:
    """``DirectoryFiles.poll_s`` and ``max_age_ns``. Raises ``ConfigurationError``."""
    poll_ms = duration_ms(poll, "poll", least=1)
    age_ns = None if max_file_age is None else duration_ms(max_file_age, "max_file_age", least=1) * 1_000_000
    return poll_ms / 1000, age_ns


def file_format(name: str, form: str, schema: Any, errors: str, on_error: str, csv: Mapping[str, Any]) -> FileFormat:
    """How the files of source ``name`` are read.

    ``form``: name of the format. ``errors``: of text that is not UTF-8. ``csv``: options of CSV.

    Raises ``ConfigurationError``.
    """
    check_options(name, 1, errors)
    if on_error not in ("fail", "skip"):
        raise ConfigurationError(f"source {name!r}: on_error must be 'fail' or 'skip', not {on_error!r}")
    try:
        return _format(form, schema, errors == "strict", on_error == "skip", csv)
    except ConfigurationError as error:
        raise ConfigurationError(f"source {name!r}: {error}") from None


def _format(form: str, schema: Any, strict: bool, skip: bool, csv: Mapping[str, Any]) -> FileFormat:
    if form not in ("text", "json", "csv", "parquet"):
        raise ConfigurationError(f"format must be 'text', 'json', 'csv' or 'parquet', not {form!r}")
    if form != "csv" and csv != _CSV_OPTIONS:
        given = next(option for option, value in csv.items() if value != _CSV_OPTIONS[option])
        raise ConfigurationError(f"{given} is an option of format='csv', not of {form!r}")
    if form == "text":
        if schema is not None:
            raise ConfigurationError("text has one column, 'value string', and takes no schema")
        return TextFormat(strict)
    if schema is None:
        raise ConfigurationError(f"format={form!r} needs a schema, such as 'id long, name string'")
    columns = parse_schema(schema)
    if form == "json":
        return JsonFormat(columns, skip)
    return CsvFormat(columns, skip=skip, **csv) if form == "csv" else ParquetFormat(columns, strict)
