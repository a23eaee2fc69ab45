"""Tokenize against ``line.lower().split()``, for whatever text there is."""

from __future__ import annotations

import pickle
from unittest import mock

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given, settings

from flinkplus.errors import ConfigurationError
from flinkplus.operators.base.operator import MAX_OUTPUT_ROWS
from flinkplus.operators.rows import tokenize as tokenizing
from flinkplus.operators.rows.tokenize import Tokenize, tokenize
from tests.examples import examples
from tests.unit.operators.operator_fakes import create, run

LINES = pa.schema([("value", pa.string())])
BLANKS = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
text = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(BLANKS + "AbC  \x1c\x1b\u03a3\u03c3\u0130\u00df\u01c5"),
    )
)


@given(st.lists(st.one_of(st.none(), text)), st.booleans(), st.booleans())
@example(
    lines=[
        "",
        " ",
        "\x1c",
        "A\x1fB",
        "\u0391\u03a3 \u0391\u03a3\u0391",
        "\u0130",
        "\u2003x\u2003",
        "\x00",
        "a\u0085b\u180eC",
    ],
    lower=True,
    few=False,
)
@settings(max_examples=examples(600), deadline=None)
def test_as_python_does_it(lines: list[str | None], lower: bool, few: bool) -> None:
    expected = [w for line in lines if line is not None for w in (line.lower() if lower else line).split()]
    with mock.patch.object(tokenizing, "FEW_LINES", tokenizing.FEW_LINES if few else 0):
        words = tokenize(pa.array(lines, type=pa.string()), lower)
    words.validate(full=True)
    assert words.to_pylist() == expected


@pytest.mark.parametrize("start", range(0, 0x110000, 0x11000))
def test_every_character(start: int) -> None:
    points = [c for c in range(start, start + 0x11000) if not 0xD800 <= c < 0xE000]
    lines = [f"Ab{chr(c)}Cd {chr(c)}" for c in points]
    assert tokenize(pa.array(lines)).to_pylist() == [word for line in lines for word in line.lower().split()]


@given(st.lists(text, min_size=1), st.data(), st.booleans())
@settings(deadline=None)
def test_slices_of_a_column(lines: list[str], data: st.DataObject, few: bool) -> None:
    start = data.draw(st.integers(0, len(lines)))
    part = pa.array(lines).slice(start, data.draw(st.integers(0, 5)))
    with mock.patch.object(tokenizing, "FEW_LINES", tokenizing.FEW_LINES if few else 0):
        words = tokenize(part)
    assert words.to_pylist() == [w for line in part.to_pylist() for w in line.lower().split()]


def test_a_few_long_lines_are_a_lot() -> None:
    lines = pa.array(["a B " * 10_000] * 2)
    with mock.patch.object(tokenizing, "_prepared", wraps=tokenizing._prepared) as prepared:
        assert tokenize(lines).to_pylist() == ["a", "b"] * 20_000
        assert tokenize(lines.slice(0, 0)).to_pylist() == []
    assert prepared.call_count == 1


@pytest.mark.parametrize("few_lines", [0, 32])
def test_bytes_under_a_null_are_not_text(few_lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizing, "FEW_LINES", few_lines)
    whole = pa.array(["one", "tw\u00f6 B", "three"])
    mask = pa.py_buffer(b"\x05")
    holed = pa.Array.from_buffers(pa.string(), 3, [mask, *whole.buffers()[1:]])
    assert tokenize(holed).to_pylist() == ["one", "three"]


@pytest.mark.parametrize("dtype", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_other_string_types(dtype: pa.DataType) -> None:
    assert tokenize(pa.array(["B a", None, "c"]).cast(dtype)).to_pylist() == ["b", "a", "c"]


def test_operator_gives_one_row_for_each_word() -> None:
    batch = pa.record_batch({"id": [1, 2], "value": ["To be, or", "not to BE"]})
    rows = run(Tokenize("tokenize"), [batch], batch.schema)
    assert rows == [{"word": w} for w in ["to", "be,", "or", "not", "to", "be"]]
    assert run(Tokenize("t", output="w", lower=False), [batch.slice(0, 1)], batch.schema)[0] == {"w": "To"}


def test_no_words_no_batch_and_many_words_several_batches() -> None:
    instance = create(Tokenize("tokenize"), LINES)
    assert list(instance.process(pa.record_batch([["", " "]], schema=LINES))) == []
    many = list(instance.process(pa.record_batch([["a " * (MAX_OUTPUT_ROWS + 1)]], schema=LINES)))
    assert [b.num_rows for b in many] == [MAX_OUTPUT_ROWS, 1]


def test_what_it_cannot_work_on_is_said_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="'value'"):
        Tokenize("tokenize").output_schema(pa.schema([("line", pa.string())]))
    with pytest.raises(ConfigurationError, match="int64"):
        Tokenize("tokenize").output_schema(pa.schema([("value", pa.int64())]))
    assert pickle.loads(pickle.dumps(Tokenize("tokenize"))) == Tokenize("tokenize")
