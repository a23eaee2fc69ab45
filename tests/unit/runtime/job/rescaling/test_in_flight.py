"""Rows that were in flight at a checkpoint reach the subtask that owns their key at another parallelism, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.base.canonical import canonical
from flinkplus.operators.base.keys import encode_values
from flinkplus.operators.base.routes import Route
from flinkplus.operators.keyed.keyed import Count
from flinkplus.operators.rows.union import Union
from flinkplus.protocol.snapshot.handle import OperatorPart, OperatorState, SnapshotHandle
from flinkplus.protocol.snapshot.manifest import Manifest
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.key_groups import groups_of
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.job.rescaling.in_flight import InFlight, records_of
from flinkplus.runtime.job.rescaling.rescale import Rescaling
from flinkplus.runtime.slot.subtasks.snapshots import pack
from flinkplus.sinks.discard import DiscardSink
from flinkplus.sources.generator import Generator
from flinkplus.state.hashing import group_numbers, hash_keys

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string())])


def graph_of(route: Route) -> JobGraph:
    graph = JobGraph()
    graph.add(Node("source", "source", Generator("source", str, SCHEMA), SCHEMA))
    body: Any = Union("op") if route == "forward" else Count("op", ("k",) if route == "hash" else ())
    graph.add(Node("op", "operator", body, SCHEMA))
    graph.link(0, 1, ("k",) if route == "hash" else (), route)
    graph.add(Node("out", "sink", DiscardSink("out"), SCHEMA), 1)
    return graph.fuse()


def message(channel: ChannelId, seq: int, rows: list[int]) -> str:
    batch = canonical(pa.RecordBatch.from_pylist([{"k": k, "t": f"t{k % 3}"} for k in rows], schema=SCHEMA))
    head = Message(
        MessageKind.RECORDS, channel, Generation(3), Seq(seq), CheckpointId(7), records=batch, rows=len(rows)
    )
    return pack(head, None)


def before(parallelism: int) -> list[OperatorState]:
    """Consumers with a record, an end of input and a round in flight on each channel."""
    states = []
    for consumer in range(parallelism):
        in_flight = {}
        for producer in range(parallelism):
            channel = ChannelId(0, producer, consumer)
            first = 1000 * producer + 100 * consumer
            end = Message(MessageKind.END_OF_INPUT, channel, Generation(3), Seq(9), CheckpointId(7))
            found = Message(MessageKind.ROUND, channel, Generation(3), Seq(8), CheckpointId(7), watermark_ms=5)
            records = [message(channel, 5, list(range(first, first + 30))), message(channel, 6, [first + 30])]
            in_flight[str(channel)] = [*records, pack(found, None), pack(end, None)]
        states.append(OperatorState(in_flight=in_flight))
    return states


@pytest.mark.parametrize("route", ["hash", "gather", "forward"])
@pytest.mark.parametrize(("old", "new"), [(2, 5), (3, 1), (3, 2)])
def test_each_row_reaches_its_owner_once_and_in_order(route: Route, old: int, new: int) -> None:
    in_flight = InFlight(graph_of(route), new, 20)
    in_flight.add(before(old))
    rows: Counter[int] = Counter()
    for index in range(new):
        for name, packed in in_flight.of([0], index).items():
            keys = []
            for at, (found, batch) in enumerate(records_of(packed)):
                assert str(found.channel) == name and found.channel.consumer == index and found.seq == at
                keys += batch.column("k").to_pylist()
                assert found.rows == batch.num_rows
            groups = group_numbers(hash_keys(encode_values(pa.array(keys))), 20)
            own = groups_of(index, new, 20)
            assert route != "hash" or (groups.min() in own and groups.max() in own)
            assert route != "gather" or index == 0
            assert in_flight.counts[found.channel] == len(packed)
            by_old_producer = [[k for k in keys if k // 1000 == p] for p in range(old)]
            assert route == "forward" or all(some == sorted(some) for some in by_old_producer)
            rows.update(keys)
    assert rows == Counter(1000 * p + 100 * c + n for p in range(old) for c in range(old) for n in range(31))


def test_an_unaligned_checkpoint_with_messages_in_flight_is_refused() -> None:
    graph = graph_of("hash")
    handles = {
        name: SnapshotHandle(
            subtask=name,
            generation=1,
            checkpoint=4,
            files=(),
            operator_state=OperatorState(),
            overtaken=name == "op+out[1]",
        )
        for name in ("source[0]", "source[1]", "op+out[0]", "op+out[1]")
    }
    manifest = Manifest(checkpoint=4, generation=1, subtasks=handles)
    place: Any = type("StatePlace", (), {"max_parallelism": 20})
    with pytest.raises(ConfigurationError, match=r"checkpoint 4 is unaligned.*op\+out\[1\].*higher aligned_timeout"):
        Rescaling(graph, manifest, 2, 3, place).handles()


def in_loops(old: int) -> Manifest:
    """A checkpoint in which each consumer has something in flight."""
    handles = {
        f"{vertex}[{index}]": SnapshotHandle(
            subtask=f"{vertex}[{index}]",
            generation=1,
            checkpoint=4,
            files=(),
            operator_state=replace(
                state if vertex == "op+out" else OperatorState(),
                operators={name: OperatorPart(rows_in=0, rows_out=0) for name in vertex.split("+")},
            ),
        )
        for index, state in enumerate(before(old))
        for vertex in ("source", "op+out")
    }
    return Manifest(checkpoint=4, generation=1, subtasks=handles)


def held(new: int) -> int:
    """Bytes in flight to the subtask that has the most."""
    in_flight = InFlight(graph_of("hash"), new, 20)
    in_flight.add(before(4))
    return max(sum(len(one) for found in in_flight.of([0], index).values() for one in found) for index in range(new))


def test_fewer_subtasks_do_not_hold_more_in_flight_than_a_snapshot_may() -> None:
    """It is found out before anything is read or stored, and before a running job is interrupted."""
    place: Any = type("StatePlace", (), {"max_parallelism": 20})
    fits = {new: Rescaling(graph_of("hash"), in_loops(4), 4, new, place, None, 2 * held(new)) for new in (1, 2, 3)}
    for new, rescaling in fits.items():
        rescaling._in_flight()
        few = replace(rescaling, in_flight_bytes=2 * held(new) - 1)
        for refuses in (few.check, few.handles):
            with pytest.raises(ConfigurationError, match=rf"checkpoint 4 .*at parallelism {new} {held(new):,} bytes"):
                refuses()
    with pytest.raises(ConfigurationError, match=r"in_flight_mb, or resume the job at parallelism 4 until fewer rows"):
        Rescaling(graph_of("hash"), in_loops(4), 4, 1, place, None, 10).check()
    Rescaling(graph_of("hash"), in_loops(4), 4, 4, place, None, 10)._in_flight()  # nobody holds more than before


def test_by_default_the_limit_is_that_of_the_options() -> None:
    assert Rescaling(graph_of("hash"), in_loops(1), 1, 2, None).in_flight_bytes == Options().in_flight_bytes  # type: ignore[arg-type]


def test_a_source_that_cannot_be_dealt_again_is_found_out_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise ConfigurationError("source 'source' does not say how its positions are dealt")

    monkeypatch.setattr(Generator, "redealt", refuses)
    place: Any = type("StatePlace", (), {"max_parallelism": 20})
    with pytest.raises(ConfigurationError, match="does not say how its positions are dealt"):
        Rescaling(graph_of("hash"), in_loops(2), 2, 3, place).check()
