"""Columns of a stream as a Delta table has them, and whether an existing table can take them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flinkplus.errors import ConfigurationError, OutputTableError
from flinkplus.printable import printable

JsonType = str | Mapping[str, Any]
"""A type as Delta's log writes it: ``"long"``, ``{"type": "array", "elementType": "long", "containsNull": true}``."""
CHECKED = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
"""Metadata of columns whose values every writer must check, or make."""


def delta_type(dtype: pa.DataType) -> pa.DataType | None:
    """The type that a table has for it; ``None``: there is none. Timestamps are in microseconds."""
    types = pa.types
    if types.is_timestamp(dtype):
        return pa.timestamp("us") if dtype.tz is None else pa.timestamp("us", "UTC")
    if types.is_list(dtype) or types.is_large_list(dtype):
        item = delta_type(dtype.value_type)
        return None if item is None else pa.list_(pa.field("element", item, dtype.value_field.nullable))
    if types.is_map(dtype):
        key, item = delta_type(dtype.key_type), delta_type(dtype.item_type)
        return None if key is None or item is None else pa.map_(key, pa.field("value", item, dtype.item_field.nullable))
    if types.is_struct(dtype):
        inner = [(field, delta_type(field.type)) for field in dtype]
        if any(found is None for _, found in inner):
            return None
        return pa.struct([pa.field(field.name, found, field.nullable) for field, found in inner])
    if types.is_large_string(dtype):
        return pa.string()
    if types.is_large_binary(dtype):
        return pa.binary()
    numbers = (types.is_boolean, types.is_signed_integer, types.is_float32, types.is_float64, types.is_decimal128)
    others = (types.is_date32, types.is_string, types.is_binary)
    return dtype if any(is_kind(dtype) for is_kind in (*numbers, *others)) else None


def delta_schema(schema: pa.Schema, sink: str, partition_by: Sequence[str] = ()) -> pa.Schema:
    """The columns of a table for rows of ``schema``. A text by which it is partitioned may be null, since an empty one
    is. Raises ``ConfigurationError``."""
    fields = []
    for field in schema:
        found = delta_type(field.type)
        if found is None:
            raise ConfigurationError(
                f"sink {sink!r}: a Delta table has no type for column {field.name!r} of type {field.type}; cast it "
                "before, for example to a long or a string"
            )
        is_text = field.name in partition_by and pa.types.is_string(found)
        fields.append(pa.field(field.name, found, field.nullable or is_text))
    return pa.schema(fields)


@dataclass(frozen=True)
class TableColumns:
    """The columns of an existing table. ``fields``: as its log writes them. ``configuration``: its properties."""

    fields: Sequence[Mapping[str, Any]]
    partition_by: Sequence[str]
    configuration: Mapping[str, Any]

    @classmethod
    def of(cls, table: Any) -> TableColumns:
        """The columns of a ``DeltaTable``."""
        metadata = table.metadata()
        fields = json.loads(table.schema().to_json())["fields"]
        return cls(fields, tuple(metadata.partition_columns), metadata.configuration)

    def missing(self, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
        """The columns that the table lacks."""
        known = {field["name"] for field in self.fields}
        return [field["name"] for field in wanted if field["name"] not in known]

    def check(self, wanted: Sequence[Mapping[str, Any]], partition_by: Sequence[str], where: str) -> None:
        """Raises ``OutputTableError`` unless rows with the columns ``wanted`` fit. Columns of the table that they lack
        are null."""
        why = self._why_unfit(wanted) or self._why_unsupported()
        if not why and tuple(self.partition_by) != tuple(partition_by):
            why = (
                f"it is partitioned by {', '.join(self.partition_by) or 'nothing'}, and the sink by "
                f"{', '.join(partition_by) or 'nothing'}: give partition_by={list(self.partition_by)!r}"
            )
        if why:
            raise OutputTableError(f"{where} cannot take the rows: {printable(why, 500)}")

    def _why_unfit(self, wanted: Sequence[Mapping[str, Any]]) -> str:
        known = {field["name"]: field for field in self.fields}
        for field in wanted:
            name, there = field["name"], known.get(field["name"])
            if there is None:
                return f"it has no column {name!r}; schema_mode='merge' adds it"
            if _plain(there["type"]) != _plain(field["type"]):
                return f"its column {name!r} is {_text(there['type'])}, and in the stream {_text(field['type'])}"
            if field["nullable"] and not there["nullable"]:
                return f"its column {name!r} must not be null, and in the stream it may be"
        given = {field["name"] for field in wanted}
        lacking = [name for name, field in known.items() if name not in given and not field["nullable"]]
        return f"its column {lacking[0]!r} must not be null, and the stream has none" if lacking else ""

    def _why_unsupported(self) -> str:
        mapped = str(self.configuration.get("delta.columnMapping.mode") or "none")
        if mapped != "none":
            return "its columns are mapped (delta.columnMapping.mode), which is not supported"
        if any(name.startswith("delta.constraints.") for name in self.configuration):
            return "it has constraints (delta.constraints), which are not checked here"
        for field in self.fields:
            found = [name for name in field.get("metadata") or {} if name in CHECKED]
            if found:
                return f"its column {field['name']!r} has {found[0]}, which is not supported"
        return ""


def _plain(kind: JsonType) -> Any:
    """A type without what does not change its files: whether parts of it may be null."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            return [(field["name"], _plain(field["type"])) for field in kind["fields"]]
        case "array":
            return ("array", _plain(kind["elementType"]))
        case _:
            return ("map", _plain(kind["keyType"]), _plain(kind["valueType"]))


def _text(kind: JsonType) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
