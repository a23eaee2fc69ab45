"""Which files are begun, remembered and forgotten: the decisions alone, compared with a slow model."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from flinkplus.sources.base import MAX_CHOICE
from flinkplus.sources.files.backlog import FORGET_AFTER, Backlog, DirectoryListing
from flinkplus.sources.files.choices import (
    FINGERPRINT_BITS,
    MAX_RECORDS,
    FileChoice,
    decode,
    encode,
    fingerprint_of,
    lower_half,
    upper_half,
)
from flinkplus.sources.files.position import FilesPosition, OpenFile, pack, redealt, unpack
from flinkplus.sources.files.seen import SeenFile
from tests.examples import examples

DAY_NS = 86_400 * 10**9


def file(number: int, day: float = 0, size: int = 1) -> SeenFile:
    return SeenFile.of(f"f{number}", size, int(day * DAY_NS))


def backlog(at: FilesPosition | None = None, max_age_days: float | None = 1.0) -> Backlog:
    age_ns = None if max_age_days is None else int(max_age_days * DAY_NS)
    return Backlog(at or FilesPosition(), age_ns, lambda changed: None)


def listing(number: int, *files: SeenFile, gone: tuple[int, ...] = ()) -> DirectoryListing:
    return DirectoryListing(number, added=files, gone=gone, newest_ns=max((f.mtime_ns for f in files), default=0))


def read_all(one: Backlog) -> list[str]:
    found = []
    while (oldest := one.oldest()) is not None:
        one.begin(oldest)
        one.end()
        found.append(oldest.path)
    return found


@given(st.sampled_from(FileChoice), st.integers(0, MAX_RECORDS))
def test_a_choice_is_a_number_that_fits(kind: FileChoice, value: int) -> None:
    assert decode(encode(kind, value)) == (kind, value)
    assert 0 <= encode(kind, value) <= MAX_CHOICE


@given(st.integers(0, (1 << FINGERPRINT_BITS) - 1))
def test_a_fingerprint_is_two_halves(number: int) -> None:
    assert fingerprint_of(upper_half(number), lower_half(number)) == number
    assert max(upper_half(number), lower_half(number)) <= MAX_RECORDS


@given(st.dictionaries(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)))
def test_what_was_read_is_packed(read: dict[int, int]) -> None:
    assert unpack(pack(read)) == read


def test_a_position_is_json() -> None:
    at = FilesPosition(
        {5: 6, 2**64 - 1: 0},
        (OpenFile(file(1), 10, 2), OpenFile(file(2))),
        7,
        8,
        ((1, 2), (3,)),
        {"rows": 1, "invalid_rows": 2, "invalid_lines": 3},
    )
    assert FilesPosition.from_json(json.loads(json.dumps(at.to_json()))) == at


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", -1),
        ("half", 2**27),
        ("half", "1"),
        ("past", [[]]),
        ("open", [["a", 1, 2, 3]]),
        ("read", "AAAA"),
        ("horizon_ns", None),
    ],
)
def test_a_damaged_position_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="not a position"):
        FilesPosition.from_json({**FilesPosition().to_json(), name: value})


def test_the_numbers_of_files_stay_as_they_are() -> None:
    """Positions and choices depend on them."""
    found = SeenFile.of("day=1/a.json", 17, 1_700_000_000_000_000_000)
    assert (found.key, found.version, found.fingerprint) == (
        16332973186119656979,
        799880689,
        2433084790179042,
    )


def test_a_horizon_waits_for_what_is_to_be_read() -> None:
    one = backlog()
    one.apply(listing(1, file(1, 1), file(2, 2), file(9, 9)))
    assert one.position(None, {}).horizon_ns == 0 or one.position(None, {}).horizon_ns <= DAY_NS
    oldest = one.oldest()
    assert oldest is not None and oldest.path == "f1"
    one.begin(oldest)
    one.apply(listing(2))
    assert one.position(None, {}).horizon_ns == DAY_NS
    one.end()
    assert read_all(one) == ["f2", "f9"]
    one.apply(listing(3))
    assert one.position(None, {}).horizon_ns == 8 * DAY_NS and set(one.read) == {file(9, 9).key}
    assert [late.path for late in one.apply(listing(4, file(3, 7.9), file(4, 8)))] == ["f3"]
    assert read_all(one) == ["f4"]


def test_a_removed_file_is_forgotten_after_a_while_and_may_come_again() -> None:
    one = backlog()
    one.apply(listing(1, file(1)))
    assert read_all(one) == ["f1"]
    one.apply(listing(2, gone=(file(1).key,)))
    one.apply(listing(3, file(1)))  # a listing had missed it
    for number in range(4, 4 + 2 * FORGET_AFTER):
        one.apply(listing(number))
    assert one.read and one.oldest() is None
    one.apply(listing(40, gone=(file(1).key,)))
    one.apply(listing(40 + FORGET_AFTER))
    assert not one.read
    one.apply(listing(60, file(1)))
    assert read_all(one) == ["f1"]


def test_of_what_a_position_remembers_the_absent_is_forgotten() -> None:
    here, away = file(1), file(2)
    one = backlog(FilesPosition({here.key: here.version, away.key: away.version}))
    one.apply(listing(1, here))
    assert len(one.read) == 2
    one.apply(listing(FORGET_AFTER))
    assert set(one.read) == {here.key} and one.oldest() is None


SIZES = st.integers(1, 4)


@given(st.lists(st.tuples(st.integers(0, 30), SIZES, st.integers(0, 4)), min_size=1, max_size=12), st.integers(0, 3))
@settings(max_examples=examples(150), deadline=None)
def test_each_file_is_read_once_through_other_parallelisms(rounds: list[tuple[int, int, int]], age_days: int) -> None:
    """In each round a new file comes, some readers read some files, and the positions are dealt to others.

    No file that was read is read again, and none is lost that was there in the first listing of all readers.
    """
    positions = [FilesPosition()]
    files: list[SeenFile] = []
    seen: list[str] = []
    known: set[str] = set()
    for number, (day, parallelism, some) in enumerate(rounds):
        files.append(file(number, day))
        readers = [backlog(position, age_days) for position in redealt(positions, parallelism)]
        newest = max(f.mtime_ns for f in files)
        for index, one in enumerate(readers):
            mine = tuple(f for f in files if f.key % parallelism == index)
            one.apply(DirectoryListing(1, added=mine, newest_ns=newest))
            known |= {f.path for f in mine if one.find(f.fingerprint) is not None}
            for _ in range(some):
                if (oldest := one.oldest()) is not None:
                    one.begin(oldest)
                    one.end()
                    seen.append(oldest.path)
            one.apply(DirectoryListing(2, newest_ns=newest))
        positions = [one.position(None, dict(FilesPosition().metrics)) for one in readers]
    for index, position in enumerate(redealt(positions, 2)):
        one = backlog(position, age_days)
        one.apply(DirectoryListing(1, added=tuple(f for f in files if f.key % 2 == index), newest_ns=0))
        seen += read_all(one)
    assert len(seen) == len(set(seen))
    assert known <= set(seen)
