"""A promoted consumer takes several windows of what is sent again; what it reports is one window, as ever."""

from __future__ import annotations

import pytest

from flinkplus.errors import PeerProtocolError
from flinkplus.protocol.channels.channel import REPLAY_WINDOWS, Accept, InputCursor, Window
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, Seq

CHANNEL, NOW = ChannelId(0, 1, 2), Generation(3)


def test_a_promoted_consumer_takes_several_windows() -> None:
    cursor = InputCursor(CHANNEL, NOW, Window(4), Seq(10), replayed=True)
    most = 10 + 4 * REPLAY_WINDOWS
    for seq in range(10, most):
        assert isinstance(cursor.accept(NOW, Seq(seq)), Accept)
    with pytest.raises(PeerProtocolError, match="beyond the limit"):
        cursor.accept(NOW, Seq(most))


def test_it_reports_every_half_window_whoever_its_producer_is() -> None:
    """A producer that takes over in the middle knows of one window only, and waits for the next report."""
    cursor = InputCursor(CHANNEL, NOW, Window(4), Seq(10), replayed=True)
    assert cursor.announce() == 14, "the first call reports"
    for seq in range(10, 20):
        cursor.accept(NOW, Seq(seq))
    reports = []
    for _ in range(10):
        cursor.consume()
        reports.append(cursor.announce())
    assert reports == [None, 16, None, 18, None, 20, None, 22, None, 24]


def test_any_other_takes_one_window() -> None:
    cursor = InputCursor(CHANNEL, NOW, Window(4), Seq(10))
    for seq in range(10, 14):
        cursor.accept(NOW, Seq(seq))
    with pytest.raises(PeerProtocolError, match="beyond the limit 14"):
        cursor.accept(NOW, Seq(14))
