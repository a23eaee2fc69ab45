"""A promoted consumer takes several windows at first, and one window from then on."""

from __future__ import annotations

import pytest

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.channel import REPLAY_WINDOWS, Accept, InputCursor
from flinkplus.protocol.ids import ChannelId, Generation, Seq

CHANNEL, NOW = ChannelId(0, 1, 2), Generation(3)


def test_a_promoted_consumer_takes_several_windows_and_then_one() -> None:
    cursor = InputCursor(CHANNEL, NOW, 4, Seq(10), replayed=True)
    first = 10 + 4 * REPLAY_WINDOWS
    assert cursor.limit == first
    for seq in range(10, first):
        assert isinstance(cursor.accept(NOW, Seq(seq)), Accept)
    with pytest.raises(PeerProtocolError, match="beyond the limit"):
        cursor.accept(NOW, Seq(first))
    assert cursor.announce() == first
    cursor.consume(4 * (REPLAY_WINDOWS - 1))
    assert cursor.limit == first and cursor.announce() is None, "what was granted stays"
    cursor.consume(2)
    assert cursor.limit == first + 2 == cursor.announce()
    cursor.consume(2)
    assert cursor.limit == first + 4


def test_any_other_takes_one() -> None:
    assert InputCursor(CHANNEL, NOW, 4, Seq(10)).limit == 14
