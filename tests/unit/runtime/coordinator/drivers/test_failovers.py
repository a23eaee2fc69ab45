"""What the driver of local failover does with its machine's effects: what slots and the other machines are told."""

from __future__ import annotations

import pytest

from flinkplus.errors import ControlMessageTooLarge
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary import events as core
from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.ids import CheckpointId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.coordinator.dispatch.dispatch import Asked
from tests.handles import handle_of
from tests.unit.runtime.coordinator.failover_job import C0, C1, G1, G2, L0, L1, ONE, TOPOLOGY, TWO, Job

HANDLE = handle_of(inputs={"0:0->1": 4})


def test_everyone_is_told_who_follows_whom_when_the_job_starts() -> None:
    job = Job()
    chains = job.told(control.Chains)
    assert len(chains) == 3
    assert chains[0].chains["count[1]"] == [1, [1, 2]]
    assert job.records.written[0]["lines[0]"] == (0, 1)


def test_a_lost_slot_is_fenced_at_once_and_its_standbys_promoted_when_zookeeper_knows() -> None:
    job = Job()
    job.told(control.Chains)
    job.lose(1)
    assert job.heard == [
        core.FailureTakenOn("slot", G1, False, "slot 1 was lost: stream closed", None),
        core.SlotLeft(1, 1, "stream closed"),
        core.GenerationsUsed(G2),
    ]
    assert job.records.written[-1] == {"count[1]": (2,), "lines[1]": (2,)}
    (first, _) = (message for _, message in job.wires.sent if isinstance(message, control.Fence))
    assert (first.generation, first.failed) == (2, {"count[1]": 2, "lines[1]": 2})
    job.fence(
        slot0={
            "received": {"0:1->0": 3},
            "sent": {"0:0->1": 5},
            "determinants": {"lines[1]": [[0, [1, 2]]]},
            "digests": {"0:1->0": [[0, "of three"]], "0:9->0": [[0, "of none of theirs"]]},
        },
        slot2={"received": {"0:1->2": 4}, "sent": {"0:2->1": 6}, "determinants": {"lines[1]": [[0, [1, 2]], [7, [3]]]}},
    )
    assert job.told(control.Promote) == []
    job.work()
    assert job.told(control.Promote, 0) == []
    (order,) = (message for _, message in job.wires.sent if isinstance(message, control.Promote))
    assert (order.generation, order.run, order.draining) == (2, 0, False)
    assert order.subtasks["lines[1]"].to_json() == {
        "version": 0,
        "handle": START.to_json(),
        "given_up": [],
        "overtaking": [],
        "received": {"0:1->0": 3, "0:1->2": 4},
        "marks": {},
        "digests": {"0:1->0": [[0, "of three"]]},
        "determinants": [[0, [1, 2]], [7, [3]]],
        "ancestors": {},
        "inputs": {},
        "pass_over": 0,
        "mark": None,
        "recorded": 0,
    }
    assert order.subtasks["count[1]"].marks == {"0:0->1": 5, "0:2->1": 6}
    assert core.SubtasksReplaced(((C1, CheckpointId(0)), (L1, CheckpointId(0)))) in job.heard
    job.promoted()
    assert job.stamps.counts == {"failovers": 1, "handovers": 0, "fallbacks": 0}
    assert job.deployment.assignment[C1] == 2
    assert job.deployment.generations[C1] == G2
    (recovery,) = job.recoveries.as_dicts()
    assert recovery["failure"] == "slot"
    assert recovery["registry_ms"] is not None


def test_what_zookeeper_took_is_measured_from_the_order_to_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    clock_s = [10.0]
    monkeypatch.setattr("flinkplus.runtime.coordinator.dispatch.dispatch.time.monotonic", lambda: clock_s[0])
    job.lose(1)
    clock_s[0] = 10.25
    job.fence()
    assert job.recoveries.as_dicts()[0]["registry_ms"] is None
    job.work()
    clock_s[0] = 10.5
    job.promoted()
    assert job.recoveries.as_dicts()[0]["registry_ms"] == 250


def test_an_answer_for_an_older_attempt_is_not_measured() -> None:
    job = Job()
    job.fail(C0)
    older = job.inbox.get()
    job.lose(2)
    assert isinstance(older, Asked)
    older.action()
    assert job.recoveries.as_dicts()[0]["registry_ms"] is None
    job.work()
    assert job.recoveries.as_dicts()[0]["registry_ms"] is not None


def test_a_new_head_gets_the_handle_of_its_version() -> None:
    job = Job()
    for subtask in TOPOLOGY.subtasks:
        job.acknowledge(subtask, ONE, HANDLE if subtask == C1 else handle_of())
    job.driver.completed(ONE)
    job.lose(1)
    job.work()
    job.fence()
    (order,) = (message for _, message in job.wires.sent if isinstance(message, control.Promote))
    assert order.subtasks["count[1]"].version == 1
    assert order.subtasks["count[1]"].handle == HANDLE


def test_a_long_answer_comes_in_parts() -> None:
    job = Job()
    job.lose(1)
    job.work()
    part = control.FencedPart(1, {"lines[1]": [[0, [1, 2]]]}, {"0:1->0": [[0, "one"]]})
    job.say(0, part)
    job.say(0, control.FencedPart(1, {"lines[1]": [[2, [3]]]}, {"0:1->0": [[1, "two"]]}))
    job.say(0, control.FencedPart(9, {"lines[1]": [[7, [7]]]}, {}))
    job.fence(slot0={"determinants": {"lines[1]": [[3, [4]]]}, "digests": {"0:1->0": [[2, "three"]]}})
    (order,) = (message for _, message in job.wires.sent if isinstance(message, control.Promote))
    assert order.subtasks["lines[1]"].determinants == [[0, [1, 2, 3, 4]]]
    assert order.subtasks["lines[1]"].digests == {"0:1->0": [[0, "one"], [1, "two"], [2, "three"]]}


def test_answers_to_an_older_attempt_are_not_mixed_in() -> None:
    job = Job()
    job.fail(C0)
    job.work()
    job.say(1, control.Fenced(1, {}, {"0:0->0": 99}, {}))
    job.lose(2)
    job.work()
    job.say(0, control.Fenced(1, {}, {"0:2->0": 99}, {}))
    job.told(control.Fence)
    job.say(0, control.Fenced(2, {}, {"0:0->0": 1}, {}))
    job.say(1, control.Fenced(2, {}, {"0:1->0": 2}, {}))
    orders = {name: told for order in job.told(control.Promote) for name, told in order.subtasks.items()}
    assert orders["count[0]"].marks == {"0:0->0": 1, "0:1->0": 2}


def test_a_source_on_its_way_gets_its_triggers_when_it_has_arrived() -> None:
    job = Job()
    job.triggers.send(ONE, [L0, L1], G1)
    assert job.told(control.Trigger) == [control.Trigger(1, 1, ["lines[0]"]), control.Trigger(1, 1, ["lines[1]"])]
    job.lose(1)
    for checkpoint in (ONE, TWO, TWO):
        job.triggers.send(checkpoint, [L1], G1)
    assert job.told(control.Trigger) == []
    job.triggers.send(ONE, [L0], G1)
    assert job.told(control.Trigger, 0) == [control.Trigger(1, 1, ["lines[0]"])]
    job.work()
    job.fence()
    job.listening.pending.remove(ONE)
    assert job.told(control.Trigger) == []
    job.promoted()
    assert job.told(control.Trigger) == [control.Trigger(1, 2, ["lines[1]"])]
    job.triggers.send(TWO, [L1], G1)
    assert job.told(control.Trigger, 2) == [control.Trigger(1, 2, ["lines[1]"])]


def test_an_input_that_is_being_ended_is_ended_again_after_a_failover() -> None:
    job = Job()
    job.deployment.draining = True
    job.lose(1)
    job.work()
    job.fence()
    job.promoted()
    assert len(job.told(control.Drain)) == 2


def test_what_zookeeper_refuses_rolls_back() -> None:
    job = Job()
    job.records.refuses = True
    job.lose(1)
    job.work()
    refused = job.heard[-1]
    assert isinstance(refused, core.FailoverFellBack)
    assert (refused.kind, refused.subtasks, refused.counted) == ("slot", (C1, L1), True)
    assert "nobody answers" in refused.reason
    assert job.stamps.counts["fallbacks"] == 1
    assert list(job.stamps.fallback_reasons) == [refused.reason]
    assert job.deployment.on(1) == []  # as before: nothing is known that is better


def test_a_failure_of_a_job_that_does_not_run_is_not_for_this_machine() -> None:
    job = Job()
    job.state = JobState.STOPPING
    assert job.machines.local_failover is None
    job.lose(1)
    assert job.records.written[1:] == []
    assert job.stamps.counts["fallbacks"] == 0


def test_an_interruption_ends_what_was_under_way() -> None:
    job = Job()
    job.lose(1)
    job.triggers.send(ONE, [L1], G1)
    job.driver.interrupted()
    job.work()
    job.fence()
    assert job.told(control.Promote) == []
    assert job.recoveries.as_dicts()[0]["registry_ms"] is None
    assert job.triggers.moving == []
    job.promoted()
    assert job.told(control.Trigger) == []


def test_a_slot_that_does_not_fence_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    job.lose(1)
    job.work()
    deadline = job.machines.next_deadline_ms()
    assert deadline is not None
    monkeypatch.setattr(job.dispatch, "now_ms", lambda: deadline)
    job.machines.advance_time()
    assert job.processes.all() == [] and sorted(job.wires.dropped) == [10, 20, 30]


def test_a_slot_that_comes_back_joins_when_all_are_connected() -> None:
    job = Job()
    job.lose(1)
    job.work()
    job.fence()
    job.promoted()
    job.wires.sent.clear()
    process = job.register(1)
    job.joining.begin(process)
    (join,) = job.told(control.Join)
    assert join.generations["count[1]"] == 2
    assert join.assignment["count[1]"] == 2
    peers = job.told(control.Connect)
    assert [sorted(message.addresses) for message in peers] == [["0", "1", "2"]] * 3
    assert peers[0].addresses["1"] == [2, "here:1"]
    for slot in (0, 1):
        job.say(slot, control.Connected(peers[0].serial))
        job.say(slot, control.Connected(peers[0].serial - 1))
    assert job.told(control.Chains) == []
    job.say(2, control.Connected(peers[0].serial))
    assert job.told(control.Chains)[0].chains["count[1]"] == [2, [2, 1]]
    assert len(job.told(control.Join, 1)) == 1  # once more: it may have changed meanwhile


def test_a_slot_lost_while_another_joins_is_not_waited_for() -> None:
    job = Job()
    job.lose(1)
    job.work()
    job.fence()
    job.promoted()
    job.joining.begin(job.register(1))
    (first, *_) = job.told(control.Connect)
    job.lose(0)
    (second, third) = job.told(control.Connect)
    assert second.serial == third.serial > first.serial
    assert sorted(second.addresses) == ["1", "2"]
    job.say(1, control.Connected(second.serial))
    assert job.told(control.Join, 1)
    job.say(2, control.Connected(second.serial))
    assert job.told(control.Join, 1)


def test_messages_for_others_are_not_taken() -> None:
    job = Job()
    process = job.processes.get(0)
    assert process is not None
    assert not job.driver.take(process, control.Stopped())


def test_of_a_version_whose_checkpoint_was_given_up_no_handle_is_kept_when_there_is_a_newer_one() -> None:
    """A job that completes none for long would fill the driver's memory with them."""
    job = Job()
    for number in range(1, 50):
        job.acknowledge(C1, CheckpointId(number), HANDLE)
        job.driver.aborted(CheckpointId(number))
    assert list(job.promotions.handles._handles[C1]) == [49]
    job.acknowledge(C1, CheckpointId(50), HANDLE)
    job.acknowledge(C1, CheckpointId(51), HANDLE)
    assert list(job.promotions.handles._handles[C1]) == [50, 51], "these may become complete"


def test_an_order_that_nobody_would_take_is_no_promotion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot would break the connection. The next in the chain is asked, and then all roll back."""
    job = Job()

    def send(connection: int, message: control.ControlMessage) -> None:
        if isinstance(message, control.Promote):
            raise ControlMessageTooLarge("Promote would take 9 bytes; the maximum is 8")
        job.wires.sent.append((connection, message))

    monkeypatch.setattr(job.wires, "send", send)
    job.lose(1)
    job.work()
    job.fence()
    (refused,) = [event for event in job.heard if isinstance(event, core.FailoverFellBack)]
    assert "not promoted on slot 2: Promote would take 9 bytes; the maximum is 8; no standby of" in refused.reason
