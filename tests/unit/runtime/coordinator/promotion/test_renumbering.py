"""Consumers begin where their producers are, when messages have not the same numbers again."""

from __future__ import annotations

from chain_backup.failover.topology import Topology
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId
from flinkplus.runtime.coordinator.promotion.promotions import following, matched, output_cursor
from tests.handles import handle_of

TOPOLOGY = Topology(("lines", "count"), 2, ((0, "lines", "count"),))
COUNT = SubtaskId("count", 1)


def test_a_checkpoint_is_restored_with_consumers_where_their_producers_are() -> None:
    handles = {
        "lines[0]": handle_of(steps=3, outputs={"0:0->0": 5, "0:0->1": 7}),
        "lines[1]": handle_of(steps=3, outputs={"0:1->0": 9}),
        "count[0]": handle_of(steps=3, inputs={"0:0->0": 4, "0:1->0": 9}),
        "count[1]": handle_of(steps=3, inputs={"0:0->1": 8}),
    }
    found = matched(handles, TOPOLOGY)
    assert found["count[0]"] == handle_of(steps=3, inputs={"0:0->0": 5, "0:1->0": 9})
    assert found["count[1]"].operator_state.inputs == {"0:0->1": 7, "0:1->1": 0}
    assert found["lines[0]"] == handles["lines[0]"]
    assert handles["count[1]"].operator_state.inputs == {"0:0->1": 8}, "what is stored stays as it is"


def test_a_consumer_goes_on_from_where_each_channel_starts() -> None:
    starts = {ChannelId(0, 0, 1): 20, ChannelId(0, 1, 1): 30}
    asked = []

    def start(channel: ChannelId, known: int) -> int:
        asked.append((channel, known))
        return starts[channel]

    assert following(handle_of(steps=3, inputs={"0:1->1": 12}), COUNT, TOPOLOGY, start) == {"0:0->1": 20, "0:1->1": 30}
    assert asked == [(ChannelId(0, 0, 1), 0), (ChannelId(0, 1, 1), 12)]
    assert following(START, COUNT, TOPOLOGY, lambda channel, known: known) == {"0:0->1": 0, "0:1->1": 0}


def test_the_very_start_of_a_job_is_0() -> None:
    assert output_cursor(START, ChannelId(0, 0, 1)) == 0
