"""Rows divided among folders by the values of some columns, as Hive and Spark name them: ``day=2026-11-27/hour=3``.

The columns are in the names of the folders, and not in the files. A value is written as Spark's ``cast`` to a string
writes it. What a file system or a reader could take for something else is percent-encoded, as Spark does it
(``ExternalCatalogUtils.escapePathName``). A null, and an empty string, is ``__HIVE_DEFAULT_PARTITION__``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError, InputError, UnsafeName
from flinkplus.path_names import checked_partition

NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = {chr(code) for code in (*range(0x20), 0x7F)} | set("\"#%'*/:=?\\{[]^")


def checked_columns(given: object, sink: str) -> tuple[str, ...]:
    """``partition_by`` of a user: one name or several. Raises ``ConfigurationError``."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else given
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise ConfigurationError(
            f"sink {sink!r}: partition_by {given!r} must be a column's name or a list of such names"
        )
    if len(set(names)) < len(names):
        raise ConfigurationError(f"sink {sink!r}: partition_by {given!r} names a column twice")
    return names


def check_partitions(schema: pa.Schema, columns: Sequence[str], sink: str) -> None:
    """Raises ``ConfigurationError`` for columns by which rows of ``schema`` cannot be divided."""
    for name in columns:
        if schema.names.count(name) != 1:
            raise ConfigurationError(
                f"sink {sink!r}: partition_by column {name!r} is not in the stream; it has {', '.join(schema.names)}"
            )
        if not _has_folder_form(dtype := schema.field(name).type):
            raise ConfigurationError(
                f"sink {sink!r}: column {name!r} of type {dtype} cannot name a folder; take strings, whole numbers, "
                "booleans or dates, for example a timestamp cast to a date"
            )
        if name.startswith("."):
            raise ConfigurationError(f"sink {sink!r}: readers skip folders that begin with a dot: rename {name!r}")
    if columns and len(columns) == len(schema):
        raise ConfigurationError(f"sink {sink!r}: partition_by leaves no column for the files")


def _has_folder_form(dtype: pa.DataType) -> bool:
    types = pa.types
    kinds = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_date)
    return any(is_kind(dtype) for is_kind in kinds)


def without_partitions(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The schema of the files."""
    return pa.schema([field for field in schema if field.name not in columns])


def divided(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each folder, in their order, without ``columns``. Raises ``InputError`` for a value that is too long
    for a folder's name."""
    texts = [_texts(batch.column(name)).dictionary_encode("encode") for name in columns]
    code = np.zeros(batch.num_rows, dtype=np.int64)
    for text in texts:
        combined = code * len(text.dictionary) + text.indices.to_numpy()
        code = np.unique(combined, return_inverse=True)[1]
    others = batch.select([name for name in batch.schema.names if name not in columns])
    order = np.argsort(code, kind="stable")
    begins = np.flatnonzero(np.diff(code[order], prepend=-1))
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        rows = order[begin:end]
        values = [text.dictionary[int(text.indices[int(rows[0])].as_py())].as_py() for text in texts]
        part = others if len(rows) == batch.num_rows else others.take(pa.array(rows))
        yield folder_name(columns, values), part


def _texts(column: pa.Array) -> pa.Array:
    text = column.cast(pa.large_string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.large_string()), text)


def folder_name(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """The folder for these values, as text. Raises ``InputError`` if it would be too long."""
    folder = "/".join(
        f"{_escaped(name)}={_escaped(value or NULL)}" for name, value in zip(columns, values, strict=True)
    )
    try:
        return checked_partition(folder)
    except UnsafeName:
        raise InputError(
            f"the folder of partitions {folder!r:.300} is too long for a file system; filter such rows out before"
        ) from None


def _escaped(text: str) -> str:
    return "".join(f"%{ord(one):02X}" if one in _ESCAPED else one for one in text)


def values_of(folder: str) -> dict[str, str | None]:
    """The columns and values of ``folder``, as text; nothing for an empty one. Raises ``ValueError``."""
    found: dict[str, str | None] = {}
    for part in folder.split("/") if folder else ():
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is no folder of a partition")
        found[unquote(name)] = None if value == NULL else unquote(value)
    return found
