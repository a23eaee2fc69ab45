"""State is read in batches that are bounded in entries and bytes, and no further than it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from flinkplus.state.reading.stored import BATCH_BYTES, BATCH_ENTRIES, _in_batches


def endless(size: int) -> Iterator[tuple[bytes, bytes]]:
    return ((b"%d" % number, bytes(size)) for number in count())


@pytest.mark.parametrize(("size", "entries"), [(8, BATCH_ENTRIES), (BATCH_BYTES // 4, 4), (BATCH_BYTES * 2, 1)])
def test_batches_are_bounded(size: int, entries: int) -> None:
    batches = _in_batches(endless(size))
    found = [next(batches), next(batches)]
    assert [len(batch) for batch in found] == [entries, entries]
    assert [key for batch in found for key, _ in batch] == [b"%d" % number for number in range(2 * entries)]


def test_the_last_batch_is_what_is_left() -> None:
    entries = [(b"a", b"1"), (b"b", b"2")]
    assert list(_in_batches(entries)) == [entries] and list(_in_batches([])) == []
