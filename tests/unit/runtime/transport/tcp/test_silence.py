"""Silence on a connection: what counts as a sign of the other end, and real sockets that nobody reads."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

import pytest

from flinkplus.runtime.transport.tcp.silence import Silence, waits_for

LIMIT_S = 0.3


def info(unacked: int = 0, acked: int = 0, delivered: int = 0, probes: int = 0, segments_in: int = 0) -> bytes:
    """As the kernel says it."""
    data = bytearray(232)
    struct.pack_into("=B", data, 3, probes)
    struct.pack_into("=I", data, 24, unacked)
    struct.pack_into("=Q", data, 120, acked)
    struct.pack_into("=I", data, 140, segments_in)
    struct.pack_into("=I", data, 192, delivered)
    return bytes(data)


def looks(*marks: tuple[int, ...] | None, every_s: float = 0.1) -> list[float]:
    silence = Silence()
    return [round(silence.after(mark, at * every_s, LIMIT_S), 3) for at, mark in enumerate(marks, 1)]


def test_who_is_owed_nothing_is_not_silent() -> None:
    assert waits_for(info(acked=9, segments_in=9)) is None
    assert looks(None, None, None) == [0, 0, 0]


def test_nothing_comes_back_of_what_was_sent() -> None:
    mark = waits_for(info(unacked=1, acked=7))
    assert looks(mark, mark, mark, mark) == [0, 0.1, 0.2, 0.3]


@pytest.mark.parametrize("sign", [info(unacked=1, acked=8), info(unacked=1, acked=7, delivered=1), info()])
def test_any_sign_ends_the_silence(sign: bytes) -> None:
    mark = waits_for(info(unacked=1, acked=7))
    assert looks(mark, mark, waits_for(sign), mark, mark) == [0, 0.1, 0, 0, 0.1]


def test_whoever_takes_no_more_is_silent_only_when_it_does_not_answer_probes() -> None:
    assert waits_for(info(probes=1, segments_in=5)) is None, "its answer may be on its way"
    first, second = waits_for(info(probes=2, segments_in=5)), waits_for(info(probes=2, segments_in=6))
    assert looks(first, second, None, second) == [0, 0, 0, 0]
    assert looks(first, first, first) == [0, 0.1, 0.2]


def test_time_in_which_nobody_looked_counts_little() -> None:
    """This host was frozen, or the loop busy: the other end had no say."""
    mark = waits_for(info(unacked=1))
    assert looks(mark, mark, mark, every_s=60.0) == [0, LIMIT_S / 2, LIMIT_S]


def test_a_system_that_says_less_is_understood_as_far_as_that_goes() -> None:
    assert waits_for(b"") is None and waits_for(info(unacked=1)[:104]) is None
    assert waits_for(info(unacked=1, acked=7)[:160]) == (7,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells")
def test_a_peer_that_reads_nothing_is_not_silent() -> None:
    """Back-pressure: its system answers, also that there is no room. The system here asks it ever less often, after
    0.2, 0.4, 0.8 s."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
        with sender, reader:
            sender.setblocking(False)
            while True:
                try:
                    sender.send(bytes(1 << 16))
                except BlockingIOError:
                    break
            silence, until_s = Silence(), time.monotonic() + 6 * LIMIT_S
            longest = 0.0
            while time.monotonic() < until_s:
                longest = max(longest, silence.lasts_s(sender, time.monotonic(), LIMIT_S))
                time.sleep(0.05)
            assert longest < LIMIT_S / 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells")
def test_who_does_not_answer_the_first_segment_is_silent() -> None:
    """Linux drops it without a word when too many connections wait to be accepted."""
    with socket.socket() as server, contextlib.ExitStack() as senders:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        silences = []
        for _ in range(4):
            sender = senders.enter_context(socket.socket())
            sender.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sender.connect(server.getsockname())
            silences.append((sender, Silence()))
        until_s, longest = time.monotonic() + 20 * LIMIT_S, [0.0] * len(silences)
        while time.monotonic() < until_s and max(longest) < LIMIT_S:
            longest = [silence.lasts_s(sender, time.monotonic(), LIMIT_S) for sender, silence in silences]
            time.sleep(0.05)
        assert longest[0] == 0 and longest[-1] >= LIMIT_S
