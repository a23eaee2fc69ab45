"""Keyed state in plain dicts, by the contract of ``flinkplus.operators.base.operator``, and a short way to run an
operator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkplus.operators.base.columns import plain
from flinkplus.operators.base.operator import KeyedState, Operator, OperatorContext, OperatorInstance


class FakeNumbers:
    def __init__(self, dtype: str) -> None:
        self.rows: dict[bytes, int] = {}
        self.given = 0
        self.values = np.zeros(1 << 12, dtype=dtype)

    def indices(self, keys: list[bytes]) -> npt.NDArray[np.int64]:
        for key in keys:
            assert type(key) is bytes
            if key not in self.rows:
                self.rows[key] = self.given
                self.given += 1
        return np.array([self.rows[key] for key in keys], dtype=np.int64)

    def indices_of(
        self, numbers: npt.NDArray[np.int64], encode: Callable[[npt.NDArray[np.int64]], list[bytes]]
    ) -> npt.NDArray[np.int64]:
        return self.indices(encode(numbers))

    def gather(self, idx: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self.values[idx]

    def scatter(self, idx: npt.NDArray[np.int64], values: npt.NDArray[Any]) -> None:
        assert len(set(idx.tolist())) == len(idx), "rows to be set must differ"
        assert values.dtype == self.values.dtype
        self.values[idx] = values

    def remove(self, idx: npt.NDArray[np.int64]) -> None:
        assert len(set(idx.tolist())) == len(idx), "rows to be removed must differ"
        gone = set(idx.tolist())
        self.values[idx] = 0
        self.rows = {key: row for key, row in self.rows.items() if row not in gone}

    def content(self) -> dict[bytes, Any]:
        return {key: self.values[row].item() for key, row in self.rows.items()}


class FakeObjects:
    def __init__(self) -> None:
        self.content: dict[bytes, object] = {}
        self.reads = 0

    def get_many(self, keys: list[bytes]) -> list[object | None]:
        self.reads += 1
        return [copy.deepcopy(self.content.get(key)) for key in keys]

    def put_many(self, keys: list[bytes], values: list[object]) -> None:
        assert len(set(keys)) == len(keys) == len(values)
        self.content.update(zip(keys, copy.deepcopy(values), strict=True))
        for key, value in zip(keys, values, strict=True):
            if value is None:
                del self.content[key]

    def delete_many(self, keys: list[bytes]) -> None:
        for key in keys:
            self.content.pop(key, None)


class FakeEntries(FakeObjects):
    def owner(self, key: bytes) -> bytes:
        return len(key).to_bytes(4, "big") + key

    def entries(self, owner: bytes) -> Iterator[tuple[bytes, object]]:
        found = sorted((name, value) for name, value in self.content.items() if name.startswith(owner))
        return iter([(name[len(owner) :], copy.deepcopy(value)) for name, value in found])


class FakeState:
    def __init__(self) -> None:
        self.numbers: dict[str, FakeNumbers] = {}
        self.objects: dict[str, FakeObjects] = {}
        self.forms: dict[str, str | None] = {}

    def number_state(self, name: str, dtype: str) -> FakeNumbers:
        return self.numbers.setdefault(name, FakeNumbers(dtype))

    def object_state(self, name: str, form: str | None = None) -> FakeObjects:
        assert self.forms.setdefault(name, form) == form
        return self.objects.setdefault(name, FakeObjects())

    def page_state(self, name: str) -> FakeObjects:
        return self.object_state(name)

    def entry_state(self, name: str, form: str | None = None) -> FakeEntries:
        assert self.forms.setdefault(name, form) == form
        found = self.objects.setdefault(name, FakeEntries())
        assert isinstance(found, FakeEntries)
        return found


def context(operator: Operator, schema: pa.Schema, state: KeyedState | None = None) -> OperatorContext:
    return OperatorContext(operator.name, f"{operator.name}[1]", 1, 2, schema, state)


def create(operator: Operator, schema: pa.Schema, state: KeyedState | None = None) -> OperatorInstance:
    return operator.create(context(operator, schema, state))


def run(
    operator: Operator, batches: Iterable[pa.RecordBatch], schema: pa.Schema, state: KeyedState | None = None
) -> list[dict[str, Any]]:
    """All output rows, by the operator's own output schema."""
    instance = create(operator, schema, state)
    output = operator.output_schema(schema)
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for out in instance.process(batch):
            assert out.num_rows > 0
            out.validate(full=True)
            rows += plain(out, output).to_pylist()
    for out in instance.end():
        rows += plain(out, output).to_pylist()
    instance.close()
    return rows
