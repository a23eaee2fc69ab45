"""Lines to words, column-wise, and exactly as Python does it: ``line.lower().split()``.

Arrow lowers and splits ASCII text at blank, tab, LF, VT, FF and CR. Rows that need more (other letters and blanks, and
the control characters 1C to 1F, which Python takes for blanks) are split by Python and go back into the column as words
joined by blanks, which the ASCII split takes apart again. Python alone splits a few lines: that costs less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.columns import cut, plain_array
from flinkplus.operators.base.operator import Operator, OperatorContext, OperatorInstance
from flinkplus.operators.base.schema import check_column

FEW_LINES = 32
FEW_BYTES = 4096
_FIRST_OTHER_BLANK, _OTHER_BLANKS = np.uint8(0x1C), np.uint8(4)
_STRING = pa.string()
_FIRST_NON_ASCII = np.uint8(0x80)


def tokenize(lines: pa.Array, lower: bool = True) -> pa.StringArray:
    """The words of all lines in order: ``line.lower().split()``, or ``line.split()``. A null line has no words."""
    lines = plain_array(lines, pa.string())
    if len(lines) <= FEW_LINES and _text_bytes(lines) <= FEW_BYTES:
        texts = [line for line in lines.to_pylist() if line is not None]
        return pa.array([word for text in texts for word in (text.lower() if lower else text).split()], _STRING)
    lines = _prepared(lines, lower)
    words = pc.ascii_split_whitespace(pc.ascii_lower(lines) if lower else lines).flatten()
    if isinstance(words, pa.ChunkedArray):
        words = words.combine_chunks()
    lengths = pc.binary_length(words).to_numpy()
    return words if lengths.all() else words.filter(pa.array(lengths > 0))


def _text_bytes(lines: pa.StringArray) -> int:
    offsets = lines.buffers()[1]
    if offsets is None or not len(lines):
        return 0
    positions = memoryview(offsets).cast("i")
    return positions[lines.offset + len(lines)] - positions[lines.offset]


def _prepared(lines: pa.StringArray, lower: bool) -> pa.StringArray:
    """The lines with each that ASCII rules would get wrong replaced by its words, joined by blanks."""
    rows = _rows_for_python(lines)
    if not len(rows):
        return lines
    texts = lines.take(pa.array(rows)).to_pylist()
    joined = [None if t is None else " ".join((t.lower() if lower else t).split()) for t in texts]
    mask = np.zeros(len(lines), dtype=np.bool_)
    mask[rows] = True
    return pc.replace_with_mask(lines, pa.array(mask), pa.array(joined, type=pa.string()))


def _rows_for_python(lines: pa.StringArray) -> npt.NDArray[np.int64]:
    """Positions of the rows that hold a byte beyond ASCII or a control character that Python takes for a blank."""
    _, offset_buffer, data_buffer = lines.buffers()
    if not len(lines) or data_buffer is None:
        return np.zeros(0, dtype=np.int64)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[lines.offset : lines.offset + len(lines) + 1]
    data = np.frombuffer(data_buffer, dtype=np.uint8)[offsets[0] : offsets[-1]]
    special = (data - _FIRST_OTHER_BLANK) < _OTHER_BLANKS  # unsigned: smaller bytes wrap round to large ones
    if len(data) and data.max() >= _FIRST_NON_ASCII:
        special |= data >= _FIRST_NON_ASCII
    elif not special.any():
        return np.zeros(0, dtype=np.int64)
    positions = np.flatnonzero(special) + offsets[0]
    return np.unique(np.searchsorted(offsets, positions, side="right") - 1)


@dataclass(frozen=True)
class Tokenize(Operator):
    """Gives one row for each word of ``column``, in a single column ``output``; other columns are dropped."""

    name: str
    column: str = "value"
    output: str = "word"
    lower: bool = True

    @override
    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        check_column(self.name, schema, self.column)
        dtype = schema.field(self.column).type
        if not (pa.types.is_string(dtype) or pa.types.is_large_string(dtype)):
            raise ConfigurationError(f"operator {self.name!r}: column {self.column!r} is {dtype}, not a string")
        return pa.schema([pa.field(self.output, pa.string())])

    @override
    def create(self, ctx: OperatorContext) -> OperatorInstance:
        return _TokenizeInstance(self)


class _TokenizeInstance(OperatorInstance):
    joins_steps = True

    def __init__(self, descriptor: Tokenize) -> None:
        self._descriptor = descriptor

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        words = tokenize(batch.column(self._descriptor.column), self._descriptor.lower)
        return cut(pa.RecordBatch.from_arrays([words], names=[self._descriptor.output]))
