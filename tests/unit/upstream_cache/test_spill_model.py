"""Logs that share a small memory budget and a disk that is full at times, against lists that keep everything."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.examples import examples
from tests.unit.upstream_cache.disks import Clock, InParts, LimitedDisk, body, on_disk
from upstream_cache import OutputLog, Retention, retention, segments
from upstream_cache.retention import MESSAGE_OVERHEAD_BYTES

LOGS = 3
MAX_MESSAGES, MAX_BYTES = 3, 400
WITHOUT_LIMITS = LOGS - 1
LOG = st.integers(0, LOGS - 1)
PLENTY = 1 << 40


class Model:
    """One log: every message it was ever given, and its cursors."""

    def __init__(self, received: int) -> None:
        self.messages: list[bytes] = []
        self.trimmed = self.acknowledged = self.sent = self.sent_once = 0
        self.received = received

    def sent_to(self, seq: int) -> None:
        self.sent = seq
        self.sent_once = max(self.sent_once, seq)


class SpillAgainstLists(RuleBasedStateMachine):
    """Whatever is in memory or on disk, the logs hand out what the lists hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="flinkplus-test-")
        self.disk = LimitedDisk(PLENTY)
        self.patches: list[Any] = [
            mock.patch.object(os, "pwritev", self.disk.pwritev),
            mock.patch.object(segments, "READ_AHEAD_BYTES", 300),
            mock.patch.object(retention, "PIECE_BYTES", 700),
        ]
        for patch in self.patches:
            patch.start()
        self.clock = Clock()

    @initialize(
        budget=st.sampled_from([0, 1500, 6000]),
        segment=st.sampled_from([1, 400, 3000]),
        received=st.lists(st.integers(0, 6), min_size=LOGS, max_size=LOGS),
        at_once=st.sampled_from([100, PLENTY]),
    )
    def begin(self, budget: int, segment: int, received: list[int], at_once: int) -> None:
        self.disk.at_once = at_once
        self.retention: Retention[bytes] = Retention(
            Path(self.folder.name) / "spill", InParts(), budget, segment, self.clock
        )
        self.models = [Model(to) for to in received]
        self.logs: list[OutputLog[bytes]] = [
            OutputLog(i, MAX_MESSAGES, MAX_BYTES, received=to, retention=self.retention)
            for i, to in enumerate(received)
        ]
        self.logs[WITHOUT_LIMITS].lift_limits()

    @rule(at=LOG, size=st.integers(0, 300), send=st.sampled_from([True, True, False]), count=st.integers(1, 20))
    def append(self, at: int, size: int, send: bool, count: int) -> None:
        log, model = self.logs[at], self.models[at]
        for _ in range(count):
            never_sent = model.messages[model.sent_once :]
            fits = len(never_sent) < MAX_MESSAGES and sum(map(len, never_sent)) < MAX_BYTES
            accepts = fits or at == WITHOUT_LIMITS
            assert log.accepts == accepts
            if not log.has_room:
                assert not accepts or self.over_budget()
                assert not accepts or self.retention.blocked
                return
            seq = len(model.messages)
            assert log.append(body(seq, size), size) == seq
            model.messages.append(body(seq, size))
            if seq < model.received:
                model.sent_to(seq + 1)
                model.acknowledged = seq + 1
            if send:
                self.take(at, 5, 5, 1000)

    @rule(at=LOG, ahead=st.integers(-1, 20), count=st.integers(0, 20), size=st.integers(0, 900))
    def take(self, at: int, ahead: int, count: int, size: int) -> None:
        log, model = self.logs[at], self.models[at]
        limit = min(model.sent + ahead, len(model.messages))
        expected: list[tuple[int, bytes]] = []
        for seq in range(model.sent, limit):
            if len(expected) == count or (
                expected and sum(len(m) for _, m in expected) + len(model.messages[seq]) > size
            ):
                break
            expected.append((seq, model.messages[seq]))
        assert log.take_to_send(model.sent + ahead, count, size) == expected
        model.sent_to(model.sent + len(expected))

    @rule(at=LOG, count=st.integers(1, 30))
    def send(self, at: int, count: int) -> None:
        log, model = self.logs[at], self.models[at]
        for _ in range(min(count, len(model.messages) - model.sent)):
            assert log.next_to_send(len(model.messages)) == (model.sent, model.messages[model.sent])
            model.sent_to(model.sent + 1)

    @rule(at=LOG, back=st.integers(0, 3))
    def acknowledge(self, at: int, back: int) -> None:
        log, model = self.logs[at], self.models[at]
        seq = max(0, model.sent - back)
        log.acknowledge(seq)
        model.acknowledged = max(model.acknowledged, seq)

    @rule(at=LOG, share=st.floats(0, 1))
    def trim(self, at: int, share: float) -> None:
        log, model = self.logs[at], self.models[at]
        seq = model.trimmed + round(share * (model.acknowledged - model.trimmed))
        log.trim(seq)
        model.trimmed = seq

    @rule(at=LOG, share=st.floats(0, 1))
    def rewind(self, at: int, share: float) -> None:
        log, model = self.logs[at], self.models[at]
        seq = model.trimmed + round(share * (model.sent - model.trimmed))
        log.rewind(seq)
        model.sent, model.acknowledged = seq, min(model.acknowledged, seq)
        model.received = min(model.received, seq)

    @rule(at=LOG, share=st.floats(0, 1), count=st.integers(1, 5), size=st.integers(0, 900))
    def replay(self, at: int, share: float, count: int, size: int) -> None:
        self.rewind(at, share)
        while self.models[at].sent < len(self.models[at].messages):
            self.take(at, 100, count, size)

    @rule(at=LOG)
    def replace(self, at: int) -> None:
        self.logs[at].close()
        self.models[at] = Model(0)
        self.logs[at] = OutputLog(at, MAX_MESSAGES, MAX_BYTES, retention=self.retention)
        if at == WITHOUT_LIMITS:
            self.logs[at].lift_limits()

    @rule(left=st.sampled_from([0, 50, 2000, PLENTY]), at_once=st.sampled_from([100, 500, PLENTY]))
    def fill_disk(self, left: int, at_once: int) -> None:
        self.disk.left, self.disk.at_once = left, at_once

    @rule(seconds=st.sampled_from([0.01, 0.2]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def over_budget(self) -> bool:
        return self.retention.memory_bytes > self.retention.budget_bytes

    @invariant()
    def same_as_model(self) -> None:
        if not hasattr(self, "logs"):
            return
        for log, model in zip(self.logs, self.models, strict=True):
            assert log.trimmed <= log.acknowledged <= log.sent <= log.sent_once <= log.appended == len(model.messages)
            cursors = (model.trimmed, model.acknowledged, model.sent, model.sent_once)
            assert (log.trimmed, log.acknowledged, log.sent, log.sent_once) == cursors
            assert log.unsent_bytes == sum(map(len, model.messages[model.sent :]))
            assert log.in_flight_bytes == sum(map(len, model.messages[model.acknowledged : model.sent]))
            assert log.appended_at - log._position(log.trimmed) == sum(map(len, model.messages[model.trimmed :]))
            assert log.retained_messages == len(model.messages) - model.trimmed

    @invariant()
    def what_is_counted_is_there(self) -> None:
        if not hasattr(self, "logs"):
            return
        held = sum(size + MESSAGE_OVERHEAD_BYTES for log in self.logs for _, size, _ in log._messages.values())
        for log in self.logs:
            block = log._spilled._block if log._spilled is not None else None
            held += len(block.data) if block is not None else 0
            assert block is None or log.sent < block.end
            assert log._spilled is None or log._spilled._reading is None or log.sent < log.kept
            if log is not self.logs[WITHOUT_LIMITS]:
                assert set(log._messages) >= set(range(log.sent_once, log.appended))
        assert self.retention.memory_bytes == held
        there = {path.name for path in self.retention.directory.glob("*")}
        waiting = {path.name for path in self.retention._to_remove}
        assert len(there - waiting) == len(on_disk(self.retention))
        assert self.retention.blocked is None or self.disk.failures

    def teardown(self) -> None:
        try:
            if hasattr(self, "logs"):
                self.everything_once_more()
                self.retention.close()
                assert self.retention.memory_bytes == 0
                assert not self.retention.directory.exists()
        finally:
            for patch in self.patches:
                patch.stop()
            self.folder.cleanup()

    def everything_once_more(self) -> None:
        for at, model in enumerate(self.models):
            self.rewind(at, 0.0)
            self.send(at, len(model.messages))


TestSpillAgainstLists = SpillAgainstLists.TestCase
TestSpillAgainstLists.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
