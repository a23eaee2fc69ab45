"""The streams of a slot, and when what was sent on one is to be sent again."""

from __future__ import annotations

from flinkplus.runtime.peers import Peers


class Streams:
    def connect(self, peers: dict[int, tuple[int, str]], /) -> None:
        return None


def peers() -> Peers:
    found = Peers(0, Streams())
    found.connect({"0": [1, "here"], "1": [1, "there"], "2": [1, "elsewhere"]})
    for peer in (1, 2):
        assert not found.connected(peer, 1)
    return found


def test_a_stream_that_replaces_a_broken_one_is_told_apart() -> None:
    found = peers()
    assert found.broken(1, 1, True) == 1
    assert not found.complete
    assert found.connected(1, 1)
    assert found.complete


def test_it_is_still_a_replacement_when_another_slot_joined_meanwhile() -> None:
    found = peers()
    found.broken(1, 1, True)
    found.connect({"0": [1, "here"], "1": [1, "there"], "2": [2, "anew"]})
    assert found.connected(1, 1)
    assert not found.connected(2, 2)


def test_what_another_process_was_sent_is_not_sent_to_its_successor() -> None:
    found = peers()
    found.broken(1, 1, True)
    found.connect({"0": [1, "here"], "1": [2, "anew"], "2": [1, "elsewhere"]})
    assert not found.connected(1, 2)


def test_a_deployment_begins_anew() -> None:
    found = peers()
    found.broken(1, 1, True)
    found.forget()
    assert not found.connected(1, 1)


def test_a_stream_to_a_slot_without_work_is_opened_again_and_its_tries_do_not_count() -> None:
    found = peers()
    for _ in range(5):
        assert found.broken(1, 1, False) == 1
    assert found.next_reconnect is not None
    assert found.broken(1, 1, True) == 2, "it was missing before there was work"
    assert found.connected(1, 1)
