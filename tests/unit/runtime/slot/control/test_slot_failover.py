"""Local failover on the side of the slots: whoever dies, and whenever, the output is that of a run without failure."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkplus.protocol.determinants.determinants import Span, unite
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.spans import digests_from_json, spans_from_json
from flinkplus.runtime.coordinator.setup.configs import topology_of
from flinkplus.runtime.slot.control.failover import in_parts
from flinkplus.runtime.transport.wire.ports import PeerBroken, PeerConnected
from tests.unit.runtime.slot.slots_in_process import Cluster, graph_of, numbers

ROWS = 2000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Cluster] = []

    def cluster(stages: int, parallelism: int, seed: int, **options: Any) -> Cluster:
        settings = {"batch_rows": 50, **options}
        made.append(Cluster(tmp_path / str(len(made)), graph_of(ROWS, stages), parallelism, seed, **settings))
        made[-1].deploy()
        return made[-1]

    yield cluster
    for each in made:
        each.close()


def check(table: pa.Table) -> None:
    """Each row of the input once, and the counts of each key are 1, 2, 3 ..."""
    expected = numbers(0, ROWS)
    rows = sorted(zip(table["k"].to_pylist(), table["v"].to_pylist(), strict=True))
    assert rows == sorted(zip(expected["k"].to_pylist(), expected["v"].to_pylist(), strict=True))
    counts = defaultdict(list)
    for key, count in zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True):
        counts[key].append(count)
    for key, found in counts.items():
        assert sorted(found) == list(range(1, len(found) + 1)), key
    if "s" in table.column_names:
        assert table["s"].to_pylist() == table["n"].to_pylist()


def test_without_failure(make):
    cluster = make(1, 3, 0)
    cluster.turns(10)
    cluster.finish_checkpoint(cluster.trigger())
    check(cluster.finish())


def test_a_peer_that_refuses_connections_fails_no_subtask_of_the_slots_that_it_refuses(make):
    cluster = make(1, 3, 0)
    slot = cluster.slots[0]
    slot._peers._refused_s = 0.0
    for _ in range(100):
        cluster.put(0, PeerBroken(1, 1, "connection refused"))
        cluster.turn()
    cluster.until(lambda: (0, control.PeersUnreached({"1": 1}, {"1": 1})) in cluster.answers)
    cluster.put(0, PeerConnected(1, 1))
    cluster.until(lambda: (0, control.PeersUnreached({}, {})) in cluster.answers)
    check(cluster.finish())


def span(first_and_count: tuple[int, int]) -> Span:
    """A part of one truth: spans that overlap agree."""
    first, count = first_and_count
    return first, tuple(step * step % 11 for step in range(first, first + count))


spans_of = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12)).map(span), max_size=3)


@given(st.dictionaries(st.sampled_from("abc"), spans_of), st.dictionaries(st.sampled_from("xyz"), spans_of), st.data())
def test_an_answer_to_a_fence_of_any_size_goes_in_small_messages(
    known: dict[str, list[Span]], told: dict[str, list[Span]], data: st.DataObject
) -> None:
    most = data.draw(st.integers(1, 15))
    digests = {name: [(first, array("Q", values)) for first, values in spans] for name, spans in told.items()}
    *parts, last = in_parts(control.Fenced(1, {"c": 2}, {}, {}), known.items(), digests.items(), most)
    assert isinstance(last, control.Fenced) and last.received == {"c": 2}
    assert all(isinstance(part, control.FencedPart) for part in parts)
    steps: dict[str, list[Span]] = {}
    came: dict[str, dict[int, int]] = {}
    for message in [*parts, last]:
        assert control.decode(control.encode(message)) == message
        values = 0
        for name, spans in message.determinants.items():
            pieces = spans_from_json(spans)
            values += sum(len(piece) for _, piece in pieces)
            steps.setdefault(name, []).extend(pieces)
        for name, spans in message.digests.items():
            values += sum(len(digests_from_json([one])) for one in spans)
            came.setdefault(name, {}).update(digests_from_json(spans))
        assert values <= most
    assert {name: unite(spans) for name, spans in steps.items()} == {
        name: unite(spans) for name, spans in known.items()
    }
    assert came == {n: {first + at: v for first, vs in spans for at, v in enumerate(vs)} for n, spans in told.items()}


def test_a_failover_with_answers_in_many_parts(make):
    cluster = make(2, 3, 0)
    for slot in cluster.slots.values():
        slot._failover._part_values = 1
    cluster.turns(12)
    cluster.kill(1)
    cluster.fail_over(cluster.hosted(1))
    assert sum(isinstance(answer, control.FencedPart) for _, answer in cluster.answers) > 3
    check(cluster.finish())


def test_a_slot_outlives_frames_that_it_cannot_read_and_names_who_keeps_sending_them(make):
    cluster = make(1, 3, 0)
    slot = cluster.slots[0]
    now_s = [0.0]
    slot._peers._clock = SimpleNamespace(monotonic=lambda: now_s[0])
    for _ in range(100):
        now_s[0] += 0.2
        slot._take_frame(2, b"nonsense")
        slot._inbox.poll()
        cluster.turn()
    assert slot.malformed_frames == 100
    assert (0, control.PeersUnreached({"2": 1}, {"2": 1})) in cluster.answers
    assert not slot._peers.complete, "its streams are made anew"
    slot._peers.reconnect(now_s[0] + 1)
    cluster.until(lambda: slot._peers.complete)
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(4))
def test_a_slot_dies(make, seed):
    cluster = make(1, 3, seed)
    cluster.lose(1)
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(6))
def test_a_slot_dies_in_the_middle_of_a_checkpoint(make, seed):
    cluster = make(1, 3, seed)
    cluster.finish_checkpoint(cluster.trigger())
    cluster.turns(cluster.random.randint(0, 8))
    pending = cluster.trigger()
    cluster.turns(cluster.random.randint(0, 3))
    cluster.kill(2)
    cluster.fail_over(cluster.hosted(2))
    cluster.finish_checkpoint(pending)
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(2))
def test_before_the_first_checkpoint(make, seed):
    cluster = make(1, 3, seed)
    cluster.turns(cluster.random.randint(0, 10))
    cluster.kill(0)
    cluster.fail_over(cluster.hosted(0))
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(3))
def test_one_slot_after_the_other_and_back_again(make, seed):
    cluster = make(1, 4, seed)
    cluster.finish_checkpoint(cluster.trigger())
    for victim in (1, 2, 1):
        cluster.turns(cluster.random.randint(0, 6))
        hosted = cluster.hosted(victim)
        cluster.kill(victim)
        if hosted:
            cluster.fail_over(hosted)
        cluster.turns(cluster.random.randint(0, 3))
        cluster.join(victim)
        cluster.finish_checkpoint(cluster.trigger())
        home = [s for s in cluster.subtasks if s.index == victim and cluster.assignment[s] != victim]
        cluster.fail_over(home, moves=dict.fromkeys(home, victim))  # the work is handed back
    check(cluster.finish())


def retained(cluster: Cluster) -> int:
    """Messages in output logs that their consumers have consumed."""
    ends = [
        end for slot in cluster.slots.values() for subtask in slot.active for end in subtask.outputs.channels.values()
    ]
    return sum(end.log.acknowledged - end.log.trimmed for end in ends)


@pytest.mark.parametrize("seed", range(4))
def test_without_standbys_upstreams_begin_anew_where_they_are(make, seed):
    """Twice, the second time soon after the first; survivors keep what they are."""
    cluster = make(2, 3, seed, recovery="partial")
    cluster.finish_checkpoint(cluster.trigger())
    survivors = [s for s in cluster.slots[0].active if s.id.vertex.startswith("total")]
    for failed in (SubtaskId("count", 1), SubtaskId("count", 0)):
        cluster.turns(cluster.random.randint(1, 10))
        back = topology_of(cluster.graph, 3).with_upstreams([failed])
        assert len(back) == 4
        cluster.fail_over(back, moves={s: s.index for s in back})
        assert retained(cluster) == 0
    assert [s for s in cluster.slots[0].active if s.id.vertex.startswith("total")] == survivors != []
    cluster.finish_checkpoint(cluster.trigger())
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(4))
def test_without_standbys_a_lost_slots_work_begins_elsewhere(make, seed):
    """With what is in durable storage; and goes home when the slot is back."""
    cluster = make(2, 3, seed, recovery="partial")
    cluster.finish_checkpoint(cluster.trigger())
    cluster.turns(cluster.random.randint(0, 10))
    pending = cluster.trigger()
    cluster.turns(cluster.random.randint(0, 3))
    topology = topology_of(cluster.graph, 3)
    lost = cluster.hosted(1)
    cluster.kill(1)
    back = topology.with_upstreams(lost)
    cluster.fail_over(back, moves={s: 2 if s.index == 1 else s.index for s in back})
    cluster.finish_checkpoint(pending)
    cluster.join(1)
    cluster.finish_checkpoint(cluster.trigger())
    cluster.fail_over(back, moves={s: s.index for s in back})
    assert retained(cluster) == 0
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(4))
def test_a_subtask_in_the_middle_fails(make, seed):
    """Its consumers have seen its messages: it must repeat its steps in the order it had chosen."""
    cluster = make(2, 3, seed)
    cluster.finish_checkpoint(cluster.trigger())
    cluster.turns(cluster.random.randint(1, 10))
    cluster.fail_over([SubtaskId("count", 1)])
    cluster.turns(cluster.random.randint(0, 10))
    pending = cluster.trigger()
    cluster.turns(cluster.random.randint(0, 3))
    cluster.fail_over([SubtaskId("numbers", 0)])
    cluster.finish_checkpoint(pending)
    cluster.turns(cluster.random.randint(0, 10))
    cluster.fail_over([SubtaskId("count", 1), SubtaskId("count", 2)])
    check(cluster.finish())


@pytest.mark.parametrize("seed", range(2))
def test_logs_that_spill(make, seed):
    cluster = make(1, 3, seed, cache_memory_mb=0)
    cluster.finish_checkpoint(cluster.trigger())
    cluster.turns(20)
    cluster.kill(1)
    cluster.fail_over(cluster.hosted(1))
    check(cluster.finish())


def test_a_slot_that_joins_after_a_rollback_leaves_behind_what_it_did_before(make):
    slot = make(1, 3, 0).slots[1]
    join = control.Join(1, {}, {})
    slot._obey(join)  # of the deployment that it is in
    assert list(slot.active) and slot._peers.complete
    slot._obey(control.Join(2, join.assignment, join.generations))
    assert not list(slot.active) and not slot._peers.complete
