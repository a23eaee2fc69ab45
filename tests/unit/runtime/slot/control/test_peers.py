"""The streams of a slot: when what was sent on one is to be sent again, and which peers are not reached."""

from __future__ import annotations

from flinkplus.runtime.slot.control.peers import MALFORMED_FRAMES, MALFORMED_SPAN_S, Peers

REFUSED_S = 0.3


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic


def peers(clock: Clock | None = None) -> Peers:
    found = Peers(0, lambda _targets: None, clock or Clock(), REFUSED_S)
    found.connect({"0": [1, "here"], "1": [1, "there"], "2": [1, "elsewhere"]})
    for peer in (1, 2):
        assert not found.connected(peer, 1)
    return found


def test_a_stream_that_replaces_a_broken_one_is_told_apart() -> None:
    found = peers()
    found.broken(1, 1)
    assert not found.complete
    assert found.connected(1, 1)
    assert found.complete


def test_it_is_still_a_replacement_when_another_slot_joined_meanwhile() -> None:
    found = peers()
    found.broken(1, 1)
    found.connect({"0": [1, "here"], "1": [1, "there"], "2": [2, "anew"]})
    assert found.connected(1, 1)
    assert not found.connected(2, 2)


def test_what_another_process_was_sent_is_not_sent_to_its_successor() -> None:
    found = peers()
    found.broken(1, 1)
    found.connect({"0": [1, "here"], "1": [2, "anew"], "2": [1, "elsewhere"]})
    assert not found.connected(1, 2)


def test_a_deployment_begins_anew() -> None:
    found = peers()
    found.broken(1, 1)
    found.forget()
    assert not found.connected(1, 1)


def test_a_stream_is_opened_again_as_often_as_it_takes() -> None:
    clock = Clock()
    found = peers(clock)
    for _ in range(100):
        found.broken(1, 1)
        assert found.next_reconnect is not None and found.next_reconnect > clock.now_s
        clock.now_s = found.next_reconnect
        found.reconnect(clock.now_s)
    assert found.connected(1, 1)


def test_a_peer_that_refuses_every_connection_for_a_while_is_not_reached_until_it_takes_one() -> None:
    clock = Clock()
    found = peers(clock)
    for after_s in (0.0, 0.1, 0.1):
        clock.now_s += after_s
        found.broken(1, 1)
        assert found.to_blame == {}, "that may be over soon"
    clock.now_s += 0.2
    found.broken(1, 1)
    assert found.to_blame == {1: 1}
    found.connect({"0": [1, "here"], "1": [1, "there"], "2": [2, "anew"]})
    assert found.to_blame == {1: 1}, "another slot has come"
    found.connected(1, 1)
    assert found.to_blame == {}


def test_a_stream_that_breaks_now_and_then_is_reached() -> None:
    clock = Clock()
    found = peers(clock)
    for _ in range(20):
        clock.now_s += 1.0
        found.broken(1, 1)
        assert found.connected(1, 1) and found.to_blame == {}


def test_what_a_process_refused_is_not_its_successors_fault() -> None:
    clock = Clock()
    found = peers(clock)
    found.broken(1, 1)
    clock.now_s += 1.0
    found.broken(1, 1)
    for _ in range(MALFORMED_FRAMES):
        clock.now_s += 0.2
        found.malformed(2)
    assert found.to_blame == {1: 1, 2: 1}
    found.connect({"0": [1, "here"], "1": [2, "anew"], "2": [2, "anew"]})
    found.broken(1, 1)
    assert found.to_blame == {}


def test_malformed_frames_are_forgotten() -> None:
    """A slot that runs for a year may see some, now and then, and neither it nor its peer ends for that."""
    clock = Clock()
    found = peers(clock)
    for _ in range(1_000):
        clock.now_s += MALFORMED_SPAN_S / (MALFORMED_FRAMES - 1)
        found.malformed(1)
        assert found.to_blame == {}
    for _ in range(100):
        found.malformed(1)
        assert found.to_blame == {}, "these may have been on the same stream"
    for _ in range(MALFORMED_FRAMES):
        clock.now_s += 0.2
        found.malformed(1)
    assert found.to_blame == {1: 1}
    clock.now_s += MALFORMED_SPAN_S
    assert found.to_blame == {}
