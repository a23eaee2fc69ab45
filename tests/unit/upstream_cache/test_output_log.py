"""The output log against a plain list with six integers, and its errors one by one."""

from __future__ import annotations

import ast
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import upstream_cache
from tests.examples import examples
from upstream_cache import LogFull, OutputLog

MAX_MESSAGES, MAX_BYTES = 4, 100


def filled(count: int, size_bytes: int = 10, messages: int = 100) -> OutputLog[str]:
    log: OutputLog[str] = OutputLog("c", messages, 10_000)
    for i in range(count):
        assert log.append(f"m{i}", size_bytes) == i
    return log


class LogAgainstList(RuleBasedStateMachine):
    """Every legal call does to the log what it does to the model; every illegal one raises and changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.log: OutputLog[int] = OutputLog("c", MAX_MESSAGES, MAX_BYTES)
        self.sizes: list[int] = []
        self.trimmed = self.acknowledged = self.sent = self.sent_once = self.received = 0

    def unsent(self) -> list[int]:
        return self.sizes[self.sent :]

    def sent_to(self, seq: int) -> None:
        self.sent = seq
        self.sent_once = max(self.sent_once, seq)

    @rule(size=st.integers(0, 150))
    def append(self, size: int) -> None:
        seq = len(self.sizes)
        never_sent = self.sizes[self.sent_once :]
        if len(never_sent) < MAX_MESSAGES and sum(never_sent) < MAX_BYTES:
            assert self.log.has_room
            assert self.log.accepts
            assert self.log.append(seq, size) == seq
            self.sizes.append(size)
            if seq < self.received:
                self.sent_to(seq + 1)
                self.acknowledged = seq + 1
        else:
            assert not self.log.has_room
            assert not self.log.accepts
            with pytest.raises(LogFull):
                self.log.append(seq, size)

    @rule(ahead=st.integers(-1, 5))
    def send(self, ahead: int) -> None:
        limit = self.sent + ahead
        if self.sent < min(limit, len(self.sizes)):
            assert self.log.next_to_send(limit) == (self.sent, self.sent)
            self.sent_to(self.sent + 1)
        else:
            assert self.log.next_to_send(limit) is None

    @rule(ahead=st.integers(-1, 8), messages=st.integers(0, 5), size=st.integers(0, 200))
    def take(self, ahead: int, messages: int, size: int) -> None:
        expected: list[int] = []
        for seq in range(self.sent, min(self.sent + ahead, len(self.sizes))):
            total = sum(self.sizes[e] for e in [*expected, seq])
            if len(expected) == messages or (expected and total > size):
                break
            expected.append(seq)
        assert self.log.take_to_send(self.sent + ahead, messages, size) == [(e, e) for e in expected]
        self.sent_to(self.sent + len(expected))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.sent + 1))
        if seq > max(self.sent, self.received):
            with pytest.raises(ValueError, match="acknowledged"):
                self.log.acknowledge(seq)
        else:
            self.log.acknowledge(seq)
            self.acknowledged = max(self.acknowledged, min(seq, self.sent))

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(0, self.acknowledged + 1))
        if seq > self.acknowledged:
            with pytest.raises(ValueError, match="trim"):
                self.log.trim(seq)
        else:
            self.log.trim(seq)
            self.trimmed = max(self.trimmed, seq)

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        seq = data.draw(st.integers(max(self.trimmed - 1, 0), max(self.sent, self.received) + 1))
        if self.sent < seq <= self.received:
            self.log.rewind(seq)
            self.sent_to(min(seq, len(self.sizes)))
            self.acknowledged, self.received = self.sent, seq
        elif self.trimmed <= seq <= self.sent:
            self.log.rewind(seq)
            self.sent, self.acknowledged = seq, min(self.acknowledged, seq)
            self.received = min(self.received, seq)
        else:
            with pytest.raises(ValueError, match="rewind"):
                self.log.rewind(seq)

    @invariant()
    def same_as_model(self) -> None:
        log = self.log
        assert (log.trimmed, log.acknowledged, log.sent) == (self.trimmed, self.acknowledged, self.sent)
        assert log.sent_once == self.sent_once
        assert log.trimmed <= log.acknowledged <= log.sent <= log.appended == len(self.sizes)
        assert log.appended - log.sent == len(self.unsent())
        assert log.unsent_bytes == sum(self.unsent())
        assert log.in_flight_bytes == sum(self.sizes[self.acknowledged : self.sent])
        assert log.appended_at - log._position(log.trimmed) == sum(self.sizes[self.trimmed :])
        assert log.retained_messages == len(self.sizes) - self.trimmed


TestLogAgainstList = LogAgainstList.TestCase
TestLogAgainstList.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_messages_come_out_in_order_and_no_further_than_the_credit() -> None:
    log = filled(3)
    assert [log.next_to_send(2) for _ in range(3)] == [(0, "m0"), (1, "m1"), None]
    assert log.next_to_send(3) == (2, "m2")
    assert log.next_to_send(100) is None


def test_replay_gives_the_same_messages_under_the_same_numbers() -> None:
    log = filled(4)
    first = log.take_to_send(4, 10, 1000)
    log.acknowledge(3)
    log.trim(1)
    log.rewind(1)
    assert log.acknowledged == 1
    assert log.take_to_send(4, 10, 1000) == first[1:]


def test_a_message_larger_than_the_byte_limit_passes_alone() -> None:
    log: OutputLog[str] = OutputLog("c", 10, 100)
    log.append("big", 5000)
    assert not log.has_room
    assert log.take_to_send(10, 10, 100) == [(0, "big")]
    assert log.has_room


def test_trimming_frees_memory() -> None:
    log = filled(5)
    log.take_to_send(5, 10, 1000)
    log.acknowledge(5)
    log.trim(5)
    assert log.appended_at - log._position(log.trimmed) == 0
    assert log._messages == {}


def test_numbering_can_begin_where_a_version_left_off() -> None:
    log: OutputLog[str] = OutputLog("c", 10, 100, first=7)
    assert log.append("m", 1) == 7
    assert log.next_to_send(8) == (7, "m")


def test_a_replay_does_not_stop_the_producer_at_once() -> None:
    log: OutputLog[str] = OutputLog("c", 2, 100)
    for seq in range(6):
        log.append(f"m{seq}", 60)
        log.next_to_send(10)
    log.rewind(1)
    assert (log.appended - log.sent, log.unsent_bytes, log.sent_once) == (5, 300, 6)
    assert log.has_room
    log.append("m6", 60)
    log.append("m7", 60)
    with pytest.raises(LogFull):
        log.append("m8", 60)
    assert [seq for seq, _ in log.take_to_send(10, 10, 1000)] == [1, 2, 3, 4, 5, 6, 7]
    assert log.has_room


def test_a_promoted_producer_does_not_send_what_its_consumer_has() -> None:
    log: OutputLog[str] = OutputLog("c", 2, 100, first=3, received=6)
    log.acknowledge(6)
    for seq in range(3, 8):
        assert log.has_room
        assert log.append(f"m{seq}", 60) == seq
    assert (log.trimmed, log.acknowledged, log.sent) == (3, 6, 6)
    assert log.take_to_send(10, 10, 1000) == [(6, "m6"), (7, "m7")]
    log.rewind(4)
    assert log.next_to_send(10) == (4, "m4")


def test_a_consumer_that_lost_what_it_had_received_gets_it_although_it_is_appended_only_now() -> None:
    log: OutputLog[str] = OutputLog("c", 10, 100, first=3, received=6)
    log.append("m3", 1)
    log.rewind(4)
    log.append("m4", 1)
    assert log.next_to_send(10) == (4, "m4")


def test_a_consumer_that_lost_a_part_of_what_it_had_received_gets_that_part() -> None:
    log: OutputLog[str] = OutputLog("c", 10, 100, first=3, received=8)
    log.append("m3", 1)
    log.rewind(6)
    for seq in range(4, 8):
        log.append(f"m{seq}", 1)
    assert (log.trimmed, log.acknowledged) == (3, 6)
    assert log.take_to_send(10, 10, 1000) == [(6, "m6"), (7, "m7")]
    with pytest.raises(ValueError, match="only within 3 and 8"):
        log.rewind(9)


def test_a_closed_log_is_empty_and_takes_nothing() -> None:
    log = filled(5)
    log.take_to_send(2, 10, 100)
    log.close()
    assert (log.retained_messages, log.appended_at - log._position(log.trimmed), log.appended - log.sent) == (0, 0, 0)
    assert log.next_to_send(100) is None
    assert not log.has_room
    with pytest.raises(LogFull):
        log.append("m", 1)
    log.close()


def test_errors_name_the_channel() -> None:
    log: OutputLog[str] = OutputLog("tokenize[0]->count[1]", 1, 100)
    log.append("m", 1)
    with pytest.raises(LogFull, match=r"tokenize\[0\]->count\[1\]"):
        log.append("m", 1)
    with pytest.raises(ValueError, match="-1 bytes"):
        filled(0).append("m", -1)


@pytest.mark.parametrize("limits", [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_limits_must_make_sense(limits: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="limits"):
        OutputLog("c", *limits)


def test_a_log_cannot_begin_behind_what_the_consumer_needs() -> None:
    with pytest.raises(ValueError, match="received only to 2"):
        OutputLog("c", 1, 1, first=3, received=2)


def test_the_library_imports_nothing_of_the_project() -> None:
    for path in Path(upstream_cache.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.split(".")[0] in ("flinkplus", "chain_backup", "dedup")]
