"""Whether the check of three keyed sums finds what was lost or doubled, in the output or in a state alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from experiments.baselines.jobs import SUMS, keys_of
from experiments.recovery.sums import check_sums

ROWS = 60_000
"""Every user has a second row."""


def output(seed: int = 1, skip: tuple[str, int] | None = None, twice: tuple[str, int] | None = None) -> dict[str, Any]:
    """Rows that came to each stage in an order of its own. ``skip``, ``twice``: a stage, by its key, whose state a row
    did not reach, or twice."""
    generator = np.random.default_rng(seed)
    ids = np.arange(ROWS, dtype=np.int64)
    columns: dict[str, Any] = {**keys_of(ids), "value": ids}
    for key in SUMS:
        order = generator.permutation(ROWS)
        groups, added = columns[key][order], ids[order].copy()
        for fault, times in ((skip, 0), (twice, 2)):
            if fault is not None and fault[0] == key:
                added[order == fault[1]] *= times
        places = np.argsort(groups, kind="stable")
        sums = np.cumsum(added[places])
        begins = np.flatnonzero(np.append(True, groups[places][1:] != groups[places][:-1]))
        starts = np.repeat(sums[begins] - added[places][begins], np.diff(np.append(begins, ROWS)))
        found = np.empty(ROWS, np.int64)
        found[order[places]] = sums - starts
        columns[f"{key}_sum"] = found
    return columns


def check(columns: dict[str, Any]) -> Any:
    return check_sums(pa.table(columns), ROWS)


@pytest.mark.parametrize("seed", range(5))
def test_every_order_of_each_stage_is_right(seed: int) -> None:
    found = check(output(seed))
    assert found.exact and (found.rows, found.wrong, found.example) == (ROWS, 0, None)
    shuffled = np.random.default_rng(seed).permutation(ROWS)
    assert check({name: values[shuffled] for name, values in output(seed).items()}).exact


@pytest.mark.parametrize("row", [0, 1, 31_415, ROWS - 1])
def test_a_row_that_is_lost_or_doubled(row: int) -> None:
    columns = output()
    lost = check({name: np.delete(values, row) for name, values in columns.items()})
    assert not lost.exact and lost.rows == ROWS - 1 and lost.example == f"row {row}"
    doubled = check({name: np.append(values, values[row]) for name, values in columns.items()})
    assert not doubled.exact and doubled.rows == ROWS + 1 and doubled.example == f"row {row}"


@pytest.mark.parametrize("key", SUMS)
def test_a_row_that_a_state_has_never_or_twice(key: str) -> None:
    for fault in ("skip", "twice"):
        found = check(output(**{fault: (key, 31_415)}))  # type: ignore[arg-type]
        assert found.wrong == 1 and found.example == f"{key} {keys_of(np.array([31_415]))[key][0]}", fault


def test_a_row_that_was_counted_in_the_place_of_another() -> None:
    """The number of rows is right, and so is every total but two."""
    columns = output()
    columns["value"] = columns["value"].copy()
    columns["value"][10] = 11
    assert not check(columns).exact


def test_rows_that_cannot_be_and_keys_of_another_row() -> None:
    columns = output()
    for values in columns.values():
        values.flags.writeable = True
    columns["value"][7] = ROWS + 5
    assert check(columns).wrong >= 2
    columns = output()
    columns["page"][7] = 20_000
    found = check(columns)
    assert found.example == "row 7" and found.wrong >= 2


def test_no_output_at_all() -> None:
    empty = {name: values[:0] for name, values in output().items()}
    assert check(empty).wrong >= ROWS
