"""The filter of message IDs against a dict, whatever its Bloom filters say, and through drops and successors."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup.digests import pack_digests, unpack_digests
from dedup.filter import CHUNK, FORGOTTEN, Channel, MessageFilter
from dedup.store import DedupStoreError, RocksStore
from tests.examples import examples
from tests.memory_store import MemoryStore

CHANNELS: list[Channel] = [(0, 0, 1), (0, 1, 1), (3, 0, 1)]
USELESS = 0.999999
"""A rate of false positives with which a Bloom filter has one bit, and rules nothing out but the very first."""


class Model:
    """What should be known, and a filter that should know it."""

    def __init__(self, error_rate: float) -> None:
        self.store = MemoryStore()
        self.error_rate = error_rate
        self.filter = MessageFilter(self.store, 1, error_rate)
        self.digests: dict[tuple[int, Channel, int], int] = {}
        self.ends = dict.fromkeys(CHANNELS, 0)
        self.floors = dict.fromkeys(CHANNELS, 0)
        self.epochs = dict.fromkeys(CHANNELS, 0)

    def new(self, channel: Channel, digest: int) -> None:
        epoch, seq = self.epochs[channel], self.ends[channel]
        assert self.filter.add(epoch, channel, seq, digest) is None
        self.digests[epoch, channel, seq] = digest
        self.ends[channel] += 1

    def many(self, channel: Channel, digest: int) -> None:
        for more in range(CHUNK - 3):
            self.new(channel, digest ^ more)

    def again(self, at: int, digest: int) -> None:
        if self.digests:
            (epoch, channel, seq), had = list(self.digests.items())[at % len(self.digests)]
            assert self.filter.add(epoch, channel, seq, digest) == had

    def next_epoch(self, channel: Channel) -> None:
        self.epochs[channel] += 1

    def drop(self) -> None:
        before = min(self.epochs.values())
        self.filter.drop(before)
        for epoch, channel, seq in self.digests:
            if epoch < before:
                self.floors[channel] = max(self.floors[channel], seq + 1)
        self.digests = {key: digest for key, digest in self.digests.items() if key[0] >= before}

    def succeed(self) -> None:
        """All channels are at a barrier, and a successor starts from there: it has received nothing yet."""
        before = max(self.epochs.values())
        self.epochs = dict.fromkeys(CHANNELS, before)
        kept = {key: digest for key, digest in self.digests.items() if key[0] < before}
        self.ends = {c: max([s for _, d, s in kept if d == c], default=self.floors[c] - 1) + 1 for c in CHANNELS}
        self.filter.close()
        assert not len(self.store)
        self.filter = MessageFilter(self.store, 2, self.error_rate)
        self.digests = {}
        self.floors = dict(self.ends)
        for channel, first in self.ends.items():
            self.filter.begin(channel, first)

    def check(self) -> None:
        for channel in CHANNELS:
            known = {seq: digest for (_, c, seq), digest in self.digests.items() if c == channel}
            spans = self.filter.spans(channel)
            assert {first + i: d for first, digests in spans for i, d in enumerate(digests)} == known
            for seq in range(self.floors[channel]):
                assert self.filter.add(self.epochs[channel], channel, seq, 0) == FORGOTTEN
        for (epoch, channel, seq), digest in self.digests.items():
            assert self.filter.add(epoch, channel, seq, 0) == digest
        for channel in CHANNELS:
            assert self.filter.add(self.epochs[channel], channel, self.ends[channel], 1) is None


channels = st.sampled_from(CHANNELS)
digest_values = st.integers(0, 2**64 - 1)
actions = st.one_of(
    st.tuples(st.just("new"), channels, digest_values),
    st.tuples(st.just("new"), channels, digest_values),
    st.tuples(st.just("many"), channels, digest_values),
    st.tuples(st.just("again"), st.integers(0, 1000), digest_values),
    st.tuples(st.just("next_epoch"), channels),
    st.tuples(st.just("drop")),
    st.tuples(st.just("succeed")),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(actions, max_size=60), st.sampled_from([1e-6, 0.01, USELESS]))
def test_against_a_dict(history: list[tuple[Any, ...]], error_rate: float) -> None:
    model = Model(error_rate)
    for action, *arguments in history:
        getattr(model, action)(*arguments)
    model.check()


@pytest.fixture(params=["memory", "rocksdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryStore()
        return
    rocks = RocksStore(tmp_path / "ids")
    yield rocks
    rocks.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error_rate", [0.01, USELESS])
def test_many_messages_of_a_channel(store: Any, error_rate: float) -> None:
    """More than memory is to hold of them; two filters in one store know nothing of each other."""
    count = 5 * CHUNK + 7
    one, other = MessageFilter(store, 1, error_rate), MessageFilter(store, 2, error_rate)
    for seq in range(count):
        assert one.add(4, CHANNELS[0], seq, seq * seq) is None
        assert other.add(4, CHANNELS[0], seq, seq + 1) is None
    assert one.counts.stored == 5
    for seq in range(count):
        assert one.add(4, CHANNELS[0], seq, 0) == seq * seq
    assert one.spans(CHANNELS[0]) == [(0, array("Q", [seq * seq for seq in range(count)]))]
    assert one.counts.known == count and one.counts.fetched > 0
    if error_rate == USELESS:
        assert one.counts.maybe >= one.counts.chunks - 1
    one.drop(5)
    assert one.add(4, CHANNELS[0], count - 1, 0) == FORGOTTEN and one.spans(CHANNELS[0]) == []
    assert one.add(5, CHANNELS[0], count, 0) is None
    assert other.add(4, CHANNELS[0], 3, 0) == 4
    one.close()
    other.close()


def test_the_store_is_asked_where_the_bloom_filter_says_maybe(store: Any) -> None:
    """A chunk that is not in memory, and that the filter does not rule out: the store says whether it was received."""
    found = MessageFilter(store, 1, USELESS)
    for seq in range(3 * CHUNK):
        assert found.add(0, CHANNELS[0], seq, seq) is None
    assert (found.counts.fetched, found.counts.known) == (2, 0)
    assert found.add(0, CHANNELS[0], 5, 0) == 5, "the store alone says that it is a duplicate"
    assert (found.counts.fetched, found.counts.known) == (3, 1)


def test_an_epoch_that_ended_leaves_memory() -> None:
    """Few messages between two barriers, as in most jobs, are in the store all the same."""
    store = MemoryStore()
    found = MessageFilter(store, 1)
    for epoch in range(4):
        for seq in range(3 * epoch, 3 * epoch + 3):
            assert found.add(epoch, CHANNELS[0], seq, seq) is None
    assert len(store) == found.counts.stored == 3
    assert sorted(found._blooms) == [0, 1, 2, 3]
    assert found.spans(CHANNELS[0]) == [(0, array("Q", range(12)))]
    found.drop(3)
    assert len(store) == 0 and sorted(found._blooms) == [3]
    assert found.spans(CHANNELS[0]) == [(9, array("Q", [9, 10, 11]))]


def test_what_a_version_holds_is_old_and_what_is_behind_it_is_new() -> None:
    found = MessageFilter(MemoryStore(), 1)
    found.begin(CHANNELS[0], 7)
    assert [found.add(2, CHANNELS[0], seq, 1) for seq in (0, 6, 7, 7)] == [FORGOTTEN, FORGOTTEN, None, 1]
    assert found.add(2, CHANNELS[1], 0, 1) is None, "another channel"


def test_numbers_may_have_gaps_and_come_in_any_order(store: Any) -> None:
    """As where a change of plan cuts up the messages of a channel."""
    found = MessageFilter(store, 1)
    order = [3, 2 * CHUNK, 1, 5 * CHUNK + 1, 2 * CHUNK + 1, 0, 1_000]
    assert [found.add(0, CHANNELS[0], seq, seq) for seq in order] == [None] * len(order)
    assert [found.add(0, CHANNELS[0], seq, 0) for seq in order] == order
    assert found.add(0, CHANNELS[0], 2, 0) is None
    first_of_spans = [(first, len(digests)) for first, digests in found.spans(CHANNELS[0])]
    assert first_of_spans == [(0, 4), (2 * CHUNK, 2), (5 * CHUNK + 1, 1), (1_000, 1)]


def test_what_the_store_has_lost_is_not_known() -> None:
    """The cursor of the channel then disagrees (``flinkplus.protocol.subtask.admission``)."""
    store = MemoryStore()
    found = MessageFilter(store, 1)
    for seq in range(CHUNK + 1):
        found.add(0, CHANNELS[0], seq, seq)
    ((key, content),) = store._content.items()
    store.put(key, content[:-1])
    with pytest.raises(DedupStoreError, match=r"chunk 0, are 519 bytes"):
        found.add(0, CHANNELS[0], 0, 0)
    store.delete([key])
    assert found.spans(CHANNELS[0]) == [(CHUNK, array("Q", [CHUNK]))]
    assert found.add(0, CHANNELS[0], 0, 0) is None


def test_the_rate_of_false_positives_is_about_what_was_asked_for() -> None:
    found = MessageFilter(MemoryStore(), 1, 0.05)
    for chunk in range(20_000):
        found.add(0, CHANNELS[chunk % 3], chunk // 3 * CHUNK, chunk)
    assert found.counts.chunks == 20_000 and found.counts.held == 0
    assert 0.001 < found.counts.false_positive_rate < 0.05


@pytest.mark.parametrize("rate", [0, 1, -0.5, 7])
def test_a_rate_that_is_none(rate: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        MessageFilter(MemoryStore(), 1, rate)


@given(st.lists(digest_values))
def test_digests_survive_packing(digests: list[int]) -> None:
    assert unpack_digests(pack_digests(array("Q", digests))).tolist() == digests


def test_errors_of_the_store_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DedupStoreError, match="cannot be opened"):
        RocksStore(tmp_path / "file" / "ids")
    store = RocksStore(tmp_path / "ids")
    store.close()
    for call in (lambda: store.put(b"a", b"b"), lambda: store.get(b"a"), lambda: store.delete([b"a"])):
        with pytest.raises(DedupStoreError, match="was closed"):
            call()
