"""What is left out on purpose is left out, and nothing else."""

from __future__ import annotations

import pytest

from flinkplus.errors import InvariantViolation
from flinkplus.protocol.channel import ACCEPT, STALE, Gap, InputCursor
from flinkplus.protocol.ids import ChannelId, Generation, Seq
from flinkplus.protocol.incarnation import Promotion
from flinkplus.runtime.faults import DETERMINANTS, FILTER
from flinkplus.runtime.omissions import UnfilteredCursor, without

CHANNEL, NOW = ChannelId(0, 0, 0), Generation(2)


def test_an_unfiltered_cursor_takes_duplicates_and_does_not_count_them() -> None:
    cursor = UnfilteredCursor(CHANNEL, NOW, 4, Seq(10))
    taken = [cursor.accept(NOW, Seq(seq)) for seq in (10, 11, 9, 10, 12)]
    assert taken == [ACCEPT] * 5 and cursor.expected == 13
    consumed = []
    for _ in range(5):
        cursor.consume()
        consumed.append(cursor.consumed)
    assert consumed == [11, 12, 12, 12, 13]


def test_an_unfiltered_cursor_is_fenced_and_sees_gaps_as_any_other() -> None:
    cursor = UnfilteredCursor(CHANNEL, NOW, 4, Seq(0))
    assert cursor.accept(Generation(1), Seq(0)) == STALE
    assert cursor.accept(NOW, Seq(2)) == Gap(Seq(0))
    cursor.accept(NOW, Seq(0))
    cursor.consume()
    with pytest.raises((InvariantViolation, IndexError)):
        cursor.consume()
    filtered = InputCursor(CHANNEL, NOW, 4, Seq(1))
    assert filtered.accept(NOW, Seq(0)) != ACCEPT


def test_a_promotion_without_a_part_knows_all_the_rest() -> None:
    had = {"0:0>1": {8: 123}}
    promotion = Promotion({"0:0>1": 7}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None, had)
    assert without([FILTER], promotion) == Promotion({}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None)
    assert without([DETERMINANTS], promotion) == Promotion({"0:0>1": 7}, (3, 11), {}, {"0:0>1": 9}, frozenset(), None)
    assert promotion.had == had
    assert without([FILTER], None) is None
