"""In a synchronous checkpoint a subtask stands still from its snapshot until the checkpoint has ended, also when it was
promoted meanwhile; it never waits for one that has ended already.
"""

from __future__ import annotations

from flinkplus.protocol.determinants.determinants import Choice, InputPart, pack
from flinkplus.protocol.subtask.identity import Promotion
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation, Seq
from flinkplus.protocol.vocabulary.in_flight import Logs
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.unit.protocol.subtask.test_replay import INPUTS, Folding, message

ONE, TWO = CheckpointId(1), CheckpointId(2)


class Halting(Folding):
    """Counts its snapshots."""

    bundle_rows = 1

    def __init__(self, promotion: Promotion | None = None) -> None:
        self.snapshots: list[int] = []
        super().__init__(2 if promotion else 1, iter(range(1000)), promotion, synchronous=True)

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        self.snapshots.append(checkpoint)

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        return None

    def work_off(self) -> int:
        """Steps done until nothing can be done."""
        steps = 0
        while self.runnable(0.0):
            self.run()
            steps += 1
        return steps


def fill(subtask: Halting) -> None:
    """On each input a message, the barriers of checkpoints 1 and 2 with a message between, and a last message."""
    for channel, _ in INPUTS:
        subtask.receive(message(channel, 0, 3), None)
        subtask.receive(barrier(channel, 1, ONE), None)
        subtask.receive(message(channel, 2, 3), None)
        subtask.receive(barrier(channel, 3, TWO), None)
        subtask.receive(message(channel, 4, 3), None)


def barrier(channel: object, seq: int, checkpoint: CheckpointId) -> Message:
    return Message(MessageKind.BARRIER, channel, Generation(1), Seq(seq), checkpoint, None, 0)  # type: ignore[arg-type]


def successor(determinants: tuple[int, ...] = ()) -> Halting:
    return Halting(Promotion({}, determinants, {}, {}, frozenset(), None))


def test_it_stands_still_until_the_checkpoint_is_complete() -> None:
    subtask = Halting()
    fill(subtask)
    assert subtask.work_off() == 6, "three messages, three barriers"
    assert subtask.snapshots == [1]
    subtask.complete(ONE)
    assert subtask.work_off() == 6
    assert subtask.snapshots == [1, 2]


def test_it_stands_still_until_the_checkpoint_is_given_up() -> None:
    subtask = Halting()
    fill(subtask)
    subtask.work_off()
    subtask.abort(TWO)
    assert subtask.work_off() == 0, "it waits for the end of another one"
    subtask.abort(ONE)
    assert subtask.work_off() == 9, "the second is given up before its barriers come: nothing is to be waited for"
    assert subtask.snapshots == [1]


def test_a_successor_does_not_wait_for_what_was_complete_before() -> None:
    subtask = successor()
    subtask.checkpoints.resume_after(ONE)
    fill(subtask)
    assert subtask.work_off() == 12
    assert subtask.snapshots == [1, 2]


def test_a_successor_repeats_what_came_behind_a_checkpoint_without_waiting() -> None:
    taken = [pack(Choice.INPUT, InputPart(channel, 1, more=False).value(3)) for _ in range(2) for channel in range(3)]
    subtask = successor((*taken, pack(Choice.INPUT, 0)))
    fill(subtask)
    assert subtask.work_off() == 12, "one step behind checkpoint 1 was seen: it had ended"
    assert subtask.snapshots == [1, 2]


def test_an_order_that_was_put_off_ends_the_waiting() -> None:
    taken = tuple(
        pack(Choice.INPUT, InputPart(channel, 1, more=False).value(3)) for _ in range(2) for channel in range(3)
    )
    subtask = successor(taken)
    subtask.abort(ONE)  # before what is to be repeated, and the snapshot in it
    fill(subtask)
    assert subtask.work_off() == 12
    assert subtask.snapshots == [1, 2]
