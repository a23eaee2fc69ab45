"""Files of new subtasks, without files: names, order, clips, numbers of keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkplus.errors import CorruptState
from flinkplus.protocol.snapshot.clips import Clip
from flinkplus.protocol.snapshot.division import Estate, divided_files, divided_states
from flinkplus.protocol.snapshot.files import StateFile
from flinkplus.protocol.snapshot.handle import KeyedPart
from flinkplus.protocol.vocabulary.key_groups import groups_of

STATES = {"n": KeyedPart(kind="number", keys=100, dtype="int64")}


def file(name: str, clip: Clip | None = None, stored_as: str = "") -> StateFile:
    return StateFile(name, "base", 5, 50, "ab", (file_replaced(),) if clip is None else (), stored_as, clip)


def file_replaced() -> StateFile:
    return StateFile("a[0]/1-0-1.sst", "delta", 0, 5, "cd")


def named(number: int) -> str:
    return f"new/9-9-{number}.sst"


def clip(*groups: tuple[int, int]) -> Clip:
    return Clip(groups, ("n",))


def divided(estates: list[Estate], mine: range, has_pages: bool = False) -> list[tuple[str, str, Clip | None]]:
    files = divided_files(estates, mine, STATES, has_pages, named)
    assert [each.name for each in files] == [named(at) for at in range(len(files))]
    assert [each.kind for each in files] == ["delta" if at else "base" for at in range(len(files))]
    assert not any(each.replaces for each in files)
    return [(each.stored, each.checksum, each.clip) for each in files]


def test_what_is_owned_whole_has_no_clip() -> None:
    estates = [Estate((file(f"a[{at}]/1-1-1.sst"),), STATES, groups_of(at, 4, 16)) for at in range(4)]
    assert divided(estates, range(8)) == [("a[0]/1-1-1.sst", "ab", None), ("a[1]/1-1-1.sst", "ab", None)]
    assert divided(estates, range(16))[3] == ("a[3]/1-1-1.sst", "ab", None)
    assert [clip for _, _, clip in divided(estates, range(6))] == [clip((0, 4)), clip((4, 6))]
    assert [clip for _, _, clip in divided(estates, range(8), True)] == [clip((0, 4)), clip((4, 8))]


def test_files_that_come_together_again_come_once_and_before_what_is_newer() -> None:
    old = [file(f"a[{at}]/5-2-1000000.sst", clip((at * 4, at * 4 + 4)), "x[0]/1-1-1.sst") for at in range(4)]
    new = file("a[1]/5-3-1.sst")
    estates = [Estate((file("a[0]/5-9-1.sst"),), STATES, groups_of(0, 4, 16))]
    estates += [Estate((old[1], new), STATES, groups_of(1, 4, 16)), Estate((), STATES, groups_of(2, 4, 16))]
    estates += [Estate((old[3],), STATES, groups_of(3, 4, 16))]
    assert divided(estates, range(16)) == [
        ("x[0]/1-1-1.sst", "ab", clip((4, 8), (12, 16))),
        ("a[0]/5-9-1.sst", "ab", clip((0, 4))),
        ("a[1]/5-3-1.sst", "ab", clip((4, 8))),
    ]
    assert divided(estates, range(6, 8)) == [
        ("x[0]/1-1-1.sst", "ab", clip((6, 8))),
        ("a[1]/5-3-1.sst", "ab", clip((6, 8))),
    ]
    assert divided(estates, range(8, 12)) == []


def test_files_of_which_nothing_counts_are_left_out() -> None:
    assert divided_files([Estate((file("a[0]/1-1-1.sst"),), {}, range(16))], range(4), {}, True, named) == ()
    gone = file("a[0]/2-1-1.sst", Clip(((0, 16),), ("gone",)), "x[0]/1-1-1.sst")
    assert divided([Estate((gone,), STATES, range(16))], range(4)) == []


def test_a_file_without_a_generation_is_refused() -> None:
    with pytest.raises(CorruptState, match="has no generation"):
        divided([Estate((file("a[0]/x.sst"),), STATES, range(16))], range(4))


@pytest.mark.parametrize(("before", "after"), [(1, 8), (3, 5), (7, 2), (16, 1), (5, 16)])
def test_estimates_add_up(before: int, after: int) -> None:
    parts = [{"n": replace(STATES["n"], keys=37 * at + 1)} for at in range(before)]
    estates = [Estate((), parts[at], groups_of(at, before, 16)) for at in range(before)]
    found = [divided_states(estates, groups_of(at, after, 16), STATES)["n"] for at in range(after)]
    assert sum(part.keys for part in found) == sum(part["n"].keys for part in parts)
    whole = [all(e.within(groups_of(at, after, 16)) for e in estates if e.overlaps(groups_of(at, after, 16)))
             for at in range(after)]  # fmt: skip
    assert [part.counted for part in found] == whole


def test_an_estimate_stays_one() -> None:
    estates = [Estate((), {"n": replace(STATES["n"], counted=False)}, range(16))]
    assert not divided_states(estates, range(16), STATES)["n"].counted
    assert divided_states([], range(16), STATES)["n"] == replace(STATES["n"], keys=0)
