"""The cursors of a channel: decisions one by one, and both ends against a lossy, reordering, doubling link."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.channel import Accept, Duplicate, Gap, InputCursor, OutputCursor, Stale
from flinkplus.protocol.ids import ChannelId, Generation, Seq

CHANNEL = ChannelId(0, 1, 2)
NOW = Generation(3)


def receiver(window: int = 4) -> InputCursor:
    return InputCursor(CHANNEL, NOW, window)


def test_messages_in_order_are_accepted() -> None:
    cursor = receiver()
    assert [cursor.accept(NOW, Seq(n)) for n in range(3)] == [Accept()] * 3
    assert cursor.expected == 3


def test_what_was_received_is_a_duplicate_whether_consumed_or_not() -> None:
    cursor = receiver()
    cursor.accept(NOW, Seq(0))
    cursor.accept(NOW, Seq(1))
    cursor.consume()
    assert [cursor.accept(NOW, Seq(n)) for n in (0, 1)] == [Duplicate(), Duplicate()]
    assert cursor.expected == 2


def test_a_gap_is_never_accepted_and_says_what_is_expected() -> None:
    cursor = receiver()
    cursor.accept(NOW, Seq(0))
    assert cursor.accept(NOW, Seq(2)) == Gap(Seq(1))
    assert cursor.accept(NOW, Seq(1)) == Accept()


def test_an_older_generation_is_stale_whatever_its_seq() -> None:
    cursor = receiver()
    assert [cursor.accept(Generation(2), Seq(n)) for n in (0, 7)] == [Stale(), Stale()]
    assert cursor.expected == 0


def test_a_newer_generation_means_that_this_end_is_outdated() -> None:
    cursor = receiver()
    with pytest.raises(PeerProtocolError, match="replaced"):
        cursor.accept(Generation(4), Seq(0))
    assert cursor.expected == 0


def test_credit_ignored_by_the_producer() -> None:
    cursor = receiver(window=2)
    cursor.accept(NOW, Seq(0))
    cursor.accept(NOW, Seq(1))
    with pytest.raises(PeerProtocolError, match="beyond the limit 2"):
        cursor.accept(NOW, Seq(2))
    cursor.consume()
    assert cursor.accept(NOW, Seq(2)) == Accept()


def test_limit_follows_what_is_consumed() -> None:
    cursor = receiver(window=4)
    assert cursor.limit == 4
    cursor.accept(NOW, Seq(0))
    assert cursor.limit == 4
    cursor.consume()
    assert cursor.limit == 5


def test_reports_come_by_half_windows_and_at_once_at_first() -> None:
    cursor = receiver(window=4)
    assert cursor.announce() == 4
    assert cursor.announce() is None
    for n in range(2):
        cursor.accept(NOW, Seq(n))
    cursor.consume()
    assert cursor.announce() is None
    cursor.consume()
    assert cursor.announce() == 6


def test_consuming_what_was_not_received() -> None:
    cursor = receiver()
    cursor.accept(NOW, Seq(0))
    for count in (2, 0, -1):
        with pytest.raises(InvariantViolation, match="not received"):
            cursor.consume(count)
    assert cursor.consumed == 0


def test_a_channel_can_begin_at_a_cursor() -> None:
    cursor = InputCursor(CHANNEL, NOW, 4, Seq(10))
    assert cursor.accept(NOW, Seq(9)) == Duplicate()
    assert cursor.accept(NOW, Seq(10)) == Accept()
    sender = OutputCursor(CHANNEL, NOW, Seq(10), credit=1)
    assert (sender.append(), sender.send()) == (10, 10)


def test_nothing_is_sent_without_credit_or_without_a_message() -> None:
    sender = OutputCursor(CHANNEL, NOW)
    assert not sender.may_send()
    sender.append()
    assert not sender.may_send()
    with pytest.raises(InvariantViolation, match="nothing may be sent"):
        sender.send()
    assert sender.credit(NOW, Seq(0), Seq(1))
    assert sender.send() == 0
    assert not sender.may_send()


def test_late_and_doubled_reports_do_no_harm() -> None:
    sender = OutputCursor(CHANNEL, NOW, credit=4)
    for _ in range(4):
        sender.append()
        sender.send()
    assert sender.credit(NOW, Seq(3), Seq(7))
    assert not sender.credit(NOW, Seq(3), Seq(7))
    assert not sender.credit(NOW, Seq(1), Seq(5))
    assert not sender.credit(Generation(2), Seq(4), Seq(99))
    assert (sender.acknowledged, sender.limit) == (3, 7)


@pytest.mark.parametrize(("acknowledged", "limit"), [(2, 9), (1, 0)])
def test_an_impossible_report_is_refused(acknowledged: int, limit: int) -> None:
    sender = OutputCursor(CHANNEL, NOW, credit=4)
    sender.append()
    sender.send()
    with pytest.raises(PeerProtocolError, match="reported"):
        sender.credit(NOW, Seq(acknowledged), Seq(limit))
    with pytest.raises(PeerProtocolError, match="replaced"):
        sender.credit(Generation(4), Seq(0), Seq(9))
    assert (sender.acknowledged, sender.limit) == (0, 4)


def test_rewind_sends_again_what_is_not_consumed() -> None:
    sender = OutputCursor(CHANNEL, NOW, credit=4)
    for _ in range(3):
        sender.append()
        sender.send()
    sender.credit(NOW, Seq(1), Seq(5))
    sender.rewind(Seq(1))
    assert sender.unsent == 2
    assert sender.send() == 1
    for seq in (0, 4):
        with pytest.raises(PeerProtocolError, match="send again"):
            sender.rewind(Seq(seq))


def test_a_report_that_overtakes_a_rewind_makes_it_needless() -> None:
    sender = OutputCursor(CHANNEL, NOW, credit=4)
    for _ in range(3):
        sender.append()
        sender.send()
    sender.rewind(Seq(0))
    assert sender.credit(NOW, Seq(2), Seq(6))
    assert (sender.acknowledged, sender.sent) == (2, 2)
    assert sender.send() == 2


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_message_arrives_once_and_in_order_over_a_link_that_loses_doubles_and_reorders(
    data: st.DataObject,
) -> None:
    window = data.draw(st.integers(1, 5))
    total = data.draw(st.integers(0, 12))
    sender, cursor = OutputCursor(CHANNEL, NOW), InputCursor(CHANNEL, NOW, window)
    link: list[Seq] = []
    reports: list[tuple[Seq, Seq]] = []
    consumed: list[int] = []
    waiting: list[Seq] = []

    def deliver(position: int) -> None:
        seq = link[position]
        match cursor.accept(NOW, seq):
            case Accept():
                waiting.append(seq)
            case Gap(expected):
                sender.rewind(expected)
            case _:
                pass

    def check() -> None:
        assert sender.acknowledged <= sender.sent <= sender.appended
        assert cursor.consumed <= cursor.expected <= cursor.limit
        assert len(waiting) <= window

    for action in data.draw(st.lists(st.sampled_from("asdrclxt"), max_size=80)):
        if action == "a" and sender.appended < total:
            sender.append()
        elif action == "s" and sender.may_send():
            link.append(sender.send())
        elif action in "dt" and link:  # delivered and gone, or delivered and still on its way a second time
            position = data.draw(st.integers(0, len(link) - 1))
            deliver(position)
            if action == "d":
                link.pop(position)
        elif action == "x" and link:
            link.pop(data.draw(st.integers(0, len(link) - 1)))
        elif action == "c" and waiting:
            consumed.append(waiting.pop(0))
            cursor.consume()
        elif action == "r":
            reports.append((cursor.consumed, cursor.limit))
        elif action == "l" and reports:
            sender.credit(NOW, *reports.pop(data.draw(st.integers(0, len(reports) - 1))))
        check()
    heal(sender, cursor, total, consumed, waiting)
    assert consumed == list(range(total))


def heal(sender: OutputCursor, cursor: InputCursor, total: int, consumed: list[int], waiting: list[Seq]) -> None:
    """A new, sound connection: send again from what is expected, and report everything."""
    sender.rewind(cursor.expected)
    while sender.appended < total:
        sender.append()
    while len(consumed) < total:
        while waiting:
            consumed.append(waiting.pop(0))
            cursor.consume()
        sender.credit(NOW, cursor.consumed, cursor.limit)
        while sender.may_send():
            seq = sender.send()
            assert cursor.accept(NOW, seq) == Accept()
            waiting.append(seq)
