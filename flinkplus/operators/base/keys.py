"""Keys of record batches: their bytes, and how a batch is split by key.

Rules:

- A batch's rows are coded: ``codes[row]`` is the number of the row's key among the batch's distinct keys. The costly
  work (bytes, hash, state look-up) is done once for each distinct key; all work for each row is an array operation.
- The bytes of a key are part of the state's format on disk, so they never change:

  - one string column: its UTF-8; null is ``FF`` (never valid UTF-8);
  - one binary column: its bytes, with a further ``FF`` in front where it begins with ``FF``; null is ``FF``;
  - one boolean, number, date or time: 8 bytes, big endian, in the order of the values; null is empty;
  - one decimal: the same in 16 bytes;
  - several columns: for each ``00`` when null, otherwise ``01``, four bytes of length, and the bytes above;
  - no column: empty, the one key of all rows.

- As keys ``-0.0 == 0.0`` and ``NaN == NaN``. A null is a key of its own.
- A key's hash, and so its group and its subtask, depends on its bytes only (``flinkplus.state.hashing``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkplus.errors import ConfigurationError
from flinkplus.near import did_you_mean
from flinkplus.operators.base import decimals
from flinkplus.operators.base.columns import SMALL_ROWS, compact, cut_at, decoded, dictionary_array
from flinkplus.protocol.vocabulary.key_groups import DEFAULT_MAX_PARALLELISM, MAX_GROUPS
from flinkplus.state.hashing import (
    group_numbers,
    hash_keys,
    hash_numbers,
    offsets_and_data,
    owners,
    small_unsigned,
)

_NULL_TEXT = b"\xff"
_SIGN = np.uint64(1 << 63)
_BINARY = pa.binary()
_TAG_BYTES = 5
_PLAIN_NUMBERS: dict[pa.DataType, type[np.signedinteger]] = {
    **dict.fromkeys((pa.int8(),), np.int8),
    **dict.fromkeys((pa.int16(),), np.int16),
    **dict.fromkeys((pa.int32(), pa.date32()), np.int32),
    **dict.fromkeys((pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC")), np.int64),
}
"""Types whose values are stored as signed integers."""
_TEXT_TYPES = frozenset(dtype.id for dtype in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))


@dataclass(frozen=True, slots=True)
class KeyCodes:
    """The keys of one batch.

    ``codes``: int32 per row.
    ``encoded``: binary array, the bytes of each code's key; every code is used by some row.
    ``column``: the key column with these codes, if it is a single one; otherwise ``None``.
    ``distinct``: whether no two codes have the same key for sure (dictionaries from elsewhere are not searched for
    repetitions; see ``made_distinct``).
    """

    codes: npt.NDArray[np.int32]
    encoded: pa.BinaryArray
    column: pa.DictionaryArray | None
    distinct: bool

    @property
    def keys(self) -> list[bytes]:
        return _as_list(self.encoded)

    @property
    def is_text(self) -> bool:
        """Whether this is a single string or binary column."""
        return self.column is not None and _is_text(self.column.dictionary.type)

    def made_distinct(self) -> KeyCodes:
        """The same rows with one code for each key."""
        if self.distinct:
            return self
        again = self.encoded.dictionary_encode()
        merged = again.indices.to_numpy()
        first = _first_positions(merged, len(again.dictionary))
        codes = merged[self.codes].astype(np.int32)
        column = None if self.column is None else dictionary_array(codes, self.column.dictionary.take(pa.array(first)))
        return KeyCodes(codes, again.dictionary, column, True)

    def first_rows(self) -> npt.NDArray[np.int64]:
        """The first row of each code."""
        return _first_positions(self.codes, len(self.encoded))


class NumberCodes:
    """As ``KeyCodes``, for a column of plain numbers; makes the bytes of the keys only when they are asked for.

    ``codes``: int per row. ``numbers``: the number of each code. ``first``: the first row of each code.
    """

    def __init__(
        self, codes: npt.NDArray[np.signedinteger], numbers: npt.NDArray[np.int64], first: npt.NDArray[np.int64]
    ) -> None:
        self.codes = codes
        self._numbers = numbers
        self._first = first

    @property
    def encoded(self) -> pa.BinaryArray:
        """The bytes of each code's key."""
        return number_keys(self._numbers)

    @property
    def keys(self) -> list[bytes]:
        """The same, as a list."""
        return keys_of(self._numbers)

    def first_rows(self) -> npt.NDArray[np.int64]:
        """The first row of each code."""
        return self._first


def _first_positions(codes: npt.NDArray[np.int32], count: int) -> npt.NDArray[np.int64]:
    first = np.empty(count, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first


def check_key_columns(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises ``ConfigurationError`` when a column is missing, repeated, or of a type that cannot be a key."""
    if len(set(columns)) != len(columns):
        raise ConfigurationError(f"key columns {list(columns)} name a column twice")
    for column in columns:
        if schema.names.count(column) != 1:
            near = did_you_mean(column, schema.names)
            raise ConfigurationError(f"key column {column!r} is not among the columns {schema.names}{near}")
        dtype = schema.field(column).type
        if not (_is_text(dtype) or _is_fixed(dtype)):
            raise ConfigurationError(
                f"key column {column!r} has the type {dtype}, which cannot be a key; keys are texts, "
                "binaries, booleans, numbers, decimals, dates and times: map the column to one of these"
            )


def _is_text(dtype: pa.DataType) -> bool:
    return dtype.id in _TEXT_TYPES


def _is_fixed(dtype: pa.DataType) -> bool:
    kinds = (
        pa.types.is_boolean,
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_temporal,
        decimals.is_decimal,
    )
    return any(is_kind(dtype) for is_kind in kinds) and not pa.types.is_interval(dtype)


def encode_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> KeyCodes:
    """The keys of a batch. A dictionary-encoded key column is used without encoding it again.

    Raises ``ConfigurationError`` as ``check_key_columns`` does for a type that cannot be a key.
    """
    if len(columns) == 1:
        return _encode_column(batch.column(columns[0]))
    if not columns:
        only = pa.array([b""] if batch.num_rows else [], pa.binary())
        return KeyCodes(np.zeros(batch.num_rows, dtype=np.int32), only, None, True)
    parts = [_encode_column(batch.column(column)).made_distinct() for column in columns]
    combined = parts[0].codes.astype(np.int64)
    for part in parts[
        1:
    ]:  # coded again each time: a product of all dictionary sizes could overflow, that of two cannot
        coded = pa.array(combined * len(part.encoded) + part.codes).dictionary_encode()
        combined = coded.indices.to_numpy().astype(np.int64)
    codes = combined.astype(np.int32)
    first = _first_positions(codes, int(codes.max()) + 1 if len(codes) else 0)
    pieces = []
    for part in parts:
        assert part.column is not None
        pieces.append(_tagged_all(part.encoded, part.column.dictionary.is_null()).take(pa.array(part.codes[first])))
    return KeyCodes(codes, pc.binary_join_element_wise(*pieces, pa.scalar(b"", _BINARY)), None, True)


def row_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.BinaryArray:
    """The bytes of each row's key, as ``encode_keys`` has them; cheaper for a small batch than finding its distinct
    keys.
    """
    parts = [_decoded_column(batch.column(column)) for column in columns]
    if not parts:
        return pa.array([b""] * batch.num_rows, pa.binary())
    if len(parts) == 1:
        return encode_values(parts[0])
    pieces = []
    for part in parts:
        nulls = part.is_null().to_pylist()
        pieces.append([_tagged(k, null) for k, null in zip(encode_values(part).to_pylist(), nulls, strict=True)])
    return pa.array([b"".join(key) for key in zip(*pieces, strict=True)], type=pa.binary())


def _decoded_column(array: pa.Array) -> pa.Array:
    return array.dictionary.take(array.indices) if isinstance(array, pa.DictionaryArray) else array


def _tagged_all(keys: pa.BinaryArray, nulls: pa.BooleanArray) -> pa.BinaryArray:
    """``_tagged`` for each of ``keys``, none of which is null as bytes."""
    lengths = np.diff(offsets_and_data(keys)[0])
    tags = np.ones((len(keys), _TAG_BYTES), np.uint8)
    tags[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(len(keys), _TAG_BYTES - 1)
    offsets = np.arange(len(keys) + 1, dtype=np.int32) * np.int32(_TAG_BYTES)
    tag = pa.Array.from_buffers(_BINARY, len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(tags)])
    tagged = pc.binary_join_element_wise(tag, keys, pa.scalar(b"", _BINARY))
    return pc.if_else(nulls, pa.scalar(b"\x00", _BINARY), tagged)


def _tagged(key: bytes, null: bool) -> bytes:
    """A column's part in a key of several columns."""
    return b"\x00" if null else b"\x01" + struct.pack(">I", len(key)) + key


def _encode_column(array: pa.Array) -> KeyCodes:
    distinct = not isinstance(array, pa.DictionaryArray)
    if distinct:
        if pa.types.is_floating(array.type):
            array = pc.add(array.cast(pa.float64()), 0.0)  # -0.0 becomes 0.0
        array = array.dictionary_encode(null_encoding="encode")
    else:
        array = compact(array)
    return KeyCodes(array.indices.to_numpy(), encode_values(array.dictionary), array, distinct)


def plain_numbers(values: pa.Array) -> npt.NDArray[np.int64] | None:
    """The values of a column of whole numbers, dates or times without nulls; ``None`` for any other column."""
    plain = None if values.null_count else _PLAIN_NUMBERS.get(values.type)
    if plain is None:
        return None
    at = values.offset
    return np.frombuffer(values.buffers()[1], plain, at + len(values))[at:].astype(np.int64, copy=False)


def number_keys(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """``encode_values`` of ``plain_numbers``."""
    data = pa.py_buffer((numbers.view(np.uint64) ^ _SIGN).astype(">u8"))
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * np.int32(8)
    return pa.Array.from_buffers(_BINARY, len(numbers), [None, pa.py_buffer(offsets), data])


def keys_of(numbers: npt.NDArray[np.int64]) -> list[bytes]:
    """``number_keys`` as a list."""
    return _as_list(number_keys(numbers))


def _as_list(encoded: pa.BinaryArray) -> list[bytes]:
    keys: list[bytes] = encoded.to_numpy(zero_copy_only=False).tolist()  # much faster than slicing in Python
    return keys


def encode_values(values: pa.Array) -> pa.BinaryArray:
    """The bytes of single-column keys, one for each value; see the module's rules."""
    dtype = values.type
    if _is_text(dtype):
        return _encode_text(values)
    if not _is_fixed(dtype):
        raise ConfigurationError(f"a column of type {dtype} cannot be a key")
    numbers = plain_numbers(values)
    if numbers is not None:
        return number_keys(numbers)
    nulls = values.is_null().to_numpy(zero_copy_only=False)
    is_decimal = decimals.is_decimal(dtype)
    ordered = decimals.ordered_bytes(values) if is_decimal else _ordered_numbers(values).astype(">u8")
    lengths = np.where(nulls, 0, decimals.WIDTH if is_decimal else 8)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(ordered[~nulls].tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _encode_text(values: pa.Array) -> pa.BinaryArray:
    if pa.types.is_string(values.type) and not values.null_count:
        return values.view(_BINARY)
    binary = values.view(_BINARY) if pa.types.is_string(values.type) else values.cast(_BINARY)
    if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        offsets, data = offsets_and_data(binary.fill_null(b"") if binary.null_count else binary)
        filled = np.flatnonzero(np.diff(offsets))
        if (data[offsets[filled]] == _NULL_TEXT[0]).any():
            escaped = [_NULL_TEXT + v if v is not None and v[:1] == _NULL_TEXT else v for v in binary.to_pylist()]
            binary = pa.array(escaped, type=pa.binary())
    return binary.fill_null(_NULL_TEXT) if binary.null_count else binary


def _ordered_numbers(values: pa.Array) -> npt.NDArray[np.uint64]:
    """Unsigned 64-bit numbers in the order of the values; arbitrary for a null."""
    dtype = values.type
    if pa.types.is_floating(dtype):
        numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        bits = np.ascontiguousarray(numbers).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN)
    if pa.types.is_temporal(dtype):
        values = values.view(pa.int32() if dtype.bit_width == 32 else pa.int64())
    if pa.types.is_uint64(dtype):
        return np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.uint64)
    signed = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(signed.view(np.uint64) ^ _SIGN, dtype=np.uint64)


class HashPartitioner:
    """Splits batches by key among ``targets`` consumers: each key goes to the one that owns its group.

    Raises ``ConfigurationError`` for fewer than 1 or more than ``max_parallelism`` targets.
    """

    def __init__(self, columns: Sequence[str], targets: int, max_parallelism: int = DEFAULT_MAX_PARALLELISM) -> None:
        if not 1 <= targets <= max_parallelism <= MAX_GROUPS:
            raise ConfigurationError(
                f"cannot split the keys among {targets} subtasks; between 1 and max_parallelism, which is "
                f"{max_parallelism}, can be"
            )
        self.columns = tuple(columns)
        self.targets = targets
        self._max_parallelism = max_parallelism
        self._owners = owners(targets, max_parallelism)

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """``(target, rows)`` for each target with rows, ascending; rows keep their order.

        Small batches become plain. In a large one a single string or binary key column becomes dictionary-encoded, each
        part with only its own keys.
        """
        if self.targets == 1 or not batch.num_rows:
            return [(0, batch)] if batch.num_rows else []
        if batch.num_rows <= SMALL_ROWS and (small := decoded(batch)) is not None:
            return self._split_small(small)
        return self._split_large(batch)

    def split_steps(self, batch: pa.RecordBatch, ends: list[int]) -> list[list[tuple[int, pa.RecordBatch]]]:
        """``split`` for each of the small batches that ``batch``, of plain columns, consists of; ``ends``: the row
        after each."""
        if self.targets == 1:
            return [self.split(piece) for piece in cut_at(batch, ends)]
        target_of_row = self._small_targets(batch)
        step_of_row = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        places = (step_of_row * self.targets + target_of_row).astype(small_unsigned(len(ends) * self.targets))
        parts: list[list[tuple[int, pa.RecordBatch]]] = [[] for _ in ends]
        for place, part in self._slices(batch, places, len(ends) * self.targets):
            step, target = divmod(place, self.targets)
            parts[step].append((target, part))
        return parts

    def _split_small(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return self._slices(batch, self._small_targets(batch), self.targets)

    def _small_targets(self, batch: pa.RecordBatch) -> npt.NDArray[np.unsignedinteger]:
        """The target of each row of a batch of plain columns."""
        numbers = self._numbers(batch)
        return self._targets_of(hash_keys(row_keys(batch, self.columns)) if numbers is None else hash_numbers(numbers))

    def _split_large(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        numbers = self._numbers(batch)
        if numbers is not None:
            return _compacted(self._slices(batch, self._targets_of(hash_numbers(numbers)), self.targets))
        key = encode_keys(batch, self.columns)
        target_of_key = self._targets_of(hash_keys(key.encoded))
        target_of_row = target_of_key[key.codes]
        if len(self.columns) != 1 or not key.is_text:
            return _compacted(self._slices(batch, target_of_row, self.targets))
        at = batch.schema.get_field_index(self.columns[0])
        order = np.argsort(target_of_row, kind="stable")
        text = _SplitDictionary(key, target_of_key, self.targets, order)
        indices = pa.array(order)
        columns = [None if i == at else batch.column(i).take(indices) for i in range(batch.num_columns)]
        parts = []
        for target, (start, end) in enumerate(pairwise(_bounds(target_of_row, self.targets))):
            if start == end:
                continue
            part = [None if column is None else compact(column.slice(start, end - start)) for column in columns]
            part[at] = text.part(target, start, end)
            parts.append((target, pa.RecordBatch.from_arrays(part, names=batch.schema.names)))
        return parts

    def _numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        """The keys of the rows, when they are plain numbers."""
        return plain_numbers(batch.column(self.columns[0])) if len(self.columns) == 1 else None

    def _targets_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.unsignedinteger]:
        targets: npt.NDArray[np.unsignedinteger] = self._owners.take(group_numbers(hashes, self._max_parallelism))
        return targets

    @staticmethod
    def _slices(
        batch: pa.RecordBatch, target_of_row: npt.NDArray[np.unsignedinteger], targets: int
    ) -> list[tuple[int, pa.RecordBatch]]:
        """The rows of each target that has any."""
        ordered = batch.take(pa.array(np.argsort(target_of_row, kind="stable")))
        bounds = pairwise(_bounds(target_of_row, targets))
        return [(target, ordered.slice(at, end - at)) for target, (at, end) in enumerate(bounds) if at < end]


def _compacted(parts: list[tuple[int, pa.RecordBatch]]) -> list[tuple[int, pa.RecordBatch]]:
    """The same, each with only its own dictionary entries."""
    if not any(isinstance(column, pa.DictionaryArray) for column in parts[0][1].columns):
        return parts
    names = parts[0][1].schema.names
    return [
        (target, pa.RecordBatch.from_arrays([compact(c) for c in part.columns], names=names)) for target, part in parts
    ]


def _bounds(targets: npt.NDArray[np.unsignedinteger], count: int) -> list[int]:
    """Where each of ``count`` targets begins in sorted ``targets``, and where the last one ends."""
    return [0, *accumulate(np.bincount(targets, minlength=count).tolist())]


class _SplitDictionary:
    """A key column sorted by target: codes and dictionary of each target are slices of two shared arrays."""

    def __init__(
        self, key: KeyCodes, target_of_key: npt.NDArray[np.unsignedinteger], targets: int, order: npt.NDArray[np.int64]
    ) -> None:
        sorted_keys = np.argsort(target_of_key, kind="stable")
        self._bounds = _bounds(target_of_key, targets)
        starts = np.asarray(self._bounds[:-1], dtype=np.int64)
        new_code = np.empty(len(sorted_keys), dtype=np.int32)
        new_code[sorted_keys] = np.arange(len(sorted_keys)) - starts[target_of_key[sorted_keys]]
        assert key.column is not None
        self._dictionary = key.column.dictionary.take(pa.array(sorted_keys))
        self._codes = pa.array(new_code[key.codes[order]])

    def part(self, target: int, start: int, end: int) -> pa.DictionaryArray:
        first, last = self._bounds[target], self._bounds[target + 1]
        codes = self._codes.slice(start, end - start)
        return pa.DictionaryArray.from_arrays(codes, self._dictionary.slice(first, last - first), safe=False)
