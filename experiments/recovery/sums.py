"""Whether an output of ``three-sums`` is exact: each row once, each key's running sums those of one order of its rows.

Rules: pure. Each stage is checked by itself, for every order in which rows may have come to it. Of a key, sorted by
running sum, each sum is the one before and the row's own value; so a row that was added twice or never to a state
shows, also where the row itself came out once. The largest is the total of the key, as the input has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from experiments.baselines.jobs import KEYS, SUMS, keys_of

VALUE = "value"


@dataclass(frozen=True)
class Check:
    """``rows`` of the output; ``wrong``: row IDs and keys that are not right; ``example``: one of them, in words."""

    rows: int
    wrong: int
    example: str | None

    @property
    def exact(self) -> bool:
        return self.wrong == 0


def check_sums(output: pa.Table, rows: int) -> Check:
    """``rows``: of the input."""
    columns = {name: output.column(name).to_numpy() for name in output.column_names}
    found = [_wrong_rows(columns, rows)]
    found += [_wrong_keys(columns, key, keys, rows) for key, keys in zip(SUMS, KEYS, strict=True)]
    wrong = sum(len(which) for _, which in found)
    example = next((f"{what} {which[0]}" for what, which in found if len(which)), None)
    return Check(output.num_rows, wrong, example)


def _wrong_rows(columns: dict[str, np.ndarray], rows: int) -> tuple[str, np.ndarray]:
    """Row IDs that are not there once, or not with the keys that they have in the input."""
    values = columns[VALUE]
    made_up = np.unique(values[(values < 0) | (values >= rows)])
    times = np.bincount(values[(values >= 0) & (values < rows)], minlength=rows)
    lost_or_doubled = np.flatnonzero(times != 1)
    changed = np.zeros(len(values), bool)
    for key, expected in keys_of(values).items():
        changed |= columns[key] != expected
    return "row", np.unique(np.concatenate([lost_or_doubled, made_up, values[changed]]))


def _wrong_keys(columns: dict[str, np.ndarray], key: str, keys: int, rows: int) -> tuple[str, np.ndarray]:
    """Keys whose running sums are those of no order of the input's rows."""
    groups, values, sums = columns[key], columns[VALUE], columns[f"{key}_sum"]
    order = np.lexsort((-values, sums, groups))  # behind the rows of the same sum: a row whose value is 0
    groups, values, sums = groups[order], values[order], sums[order]
    begins = np.append(True, groups[1:] != groups[:-1])[: len(groups)]
    before = np.where(begins, 0, np.append(0, sums[:-1])[: len(sums)])
    broken = groups[sums - before != values]
    ids = np.arange(rows, dtype=np.int64)
    totals = np.zeros(keys, np.int64)
    np.add.at(totals, keys_of(ids)[key], ids)
    highest = np.zeros(keys, np.int64)
    known = (groups >= 0) & (groups < keys)
    np.maximum.at(highest, groups[known], sums[known])
    return key, np.unique(np.concatenate([broken, groups[~known], np.flatnonzero(highest != totals)]))
