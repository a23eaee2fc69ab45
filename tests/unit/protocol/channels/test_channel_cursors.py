"""A channel's cursor: decisions one by one, and with an output log over a lossy, reordering, doubling link."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkplus.errors import InvariantViolation, PeerProtocolError
from flinkplus.protocol.channels.channel import Accept, Duplicate, Gap, InputCursor, Stale, Window
from flinkplus.protocol.vocabulary.ids import ChannelId, Generation, Seq
from tests.examples import examples
from upstream_cache import OutputLog

CHANNEL = ChannelId(0, 1, 2)
NOW = Generation(3)


def receiver(window: int = 4) -> InputCursor:
    return InputCursor(CHANNEL, NOW, Window(window))


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
    cursor = InputCursor(CHANNEL, NOW, Window(4), Seq(10))
    assert cursor.accept(NOW, Seq(9)) == Duplicate()
    assert cursor.accept(NOW, Seq(10)) == Accept()


class Producer:
    """An output log of the numbers 0 to total - 1, sent as far as the consumer's reports allow."""

    def __init__(self, total: int, limit: int) -> None:
        self.log: OutputLog[int] = OutputLog(CHANNEL, total + 1, 1)
        self.limit = limit
        for number in range(total):
            self.log.append(number, 0)

    def send(self) -> list[Seq]:
        sent = []
        while (item := self.log.next_to_send(self.limit)) is not None:
            assert item[0] == item[1]
            sent.append(Seq(item[0]))
        return sent

    def report(self, consumed: int, limit: int) -> None:
        self.log.acknowledge(consumed)
        self.limit = max(self.limit, limit)

    def send_again(self) -> list[Seq]:
        """The link is a new one: whatever is not known to be consumed goes out again, at once."""
        self.log.rewind(self.log.acknowledged)
        return self.send()


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_every_message_arrives_once_and_in_order_over_a_link_that_loses_doubles_and_reorders(
    data: st.DataObject,
) -> None:
    window = data.draw(st.integers(1, 5))
    total = data.draw(st.integers(0, 12))
    producer, cursor = Producer(total, window), InputCursor(CHANNEL, NOW, Window(window))
    link: list[Seq] = []
    reports: list[tuple[Seq, Seq]] = []
    consumed: list[int] = []
    waiting: list[Seq] = []

    def take(seq: Seq) -> None:
        if cursor.accept(NOW, seq) == Accept():
            waiting.append(seq)

    def consume() -> None:
        consumed.append(waiting.pop(0))
        cursor.consume()

    for action in data.draw(st.lists(st.sampled_from("sdrclxtn"), max_size=80)):
        if action == "s":
            link += producer.send()
        elif action in "dt" and link:  # delivered and gone, or delivered and still on its way a second time
            position = data.draw(st.integers(0, len(link) - 1))
            take(link[position])
            if action == "d":
                link.pop(position)
        elif action == "x" and link:
            link.pop(data.draw(st.integers(0, len(link) - 1)))
        elif action == "c" and waiting:
            consume()
        elif action == "r":
            reports.append((cursor.consumed, cursor.limit))
        elif action == "l" and reports:
            producer.report(*reports.pop(data.draw(st.integers(0, len(reports) - 1))))
        elif action == "n":
            link += producer.send_again()
        assert cursor.consumed <= cursor.expected <= cursor.limit
        assert len(waiting) <= window
    for again in range(total + 2):  # a sound link now
        for seq in producer.send() if again else producer.send_again():
            take(seq)
        while waiting:
            consume()
        producer.report(cursor.consumed, cursor.limit)
    assert consumed == list(range(total))


def test_a_producer_that_was_promoted_after_its_consumer_is_granted_credit_in_time() -> None:
    """It may send one window from what was consumed, and knows nothing of the wider one that its predecessor had."""
    cursor = InputCursor(ChannelId(0, 0, 0), Generation(2), Window(2), Seq(4), replayed=True)
    cursor.replace_producer(Generation(3))
    limit = 4 + 2
    for seq in range(4, 40):
        assert seq < limit, "nobody would ever send anything again"
        assert cursor.accept(Generation(3), Seq(seq)) == Accept()
        cursor.consume()
        if cursor.announce() is not None:
            limit = cursor.consumed + 2
