"""The parts that a subtask's steps are composed of. The runtime or the simulator makes them and passes them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flinkplus.protocol.channels.inputs import InputGate
from flinkplus.protocol.channels.outputs import OutputChannels
from flinkplus.protocol.snapshot.handle import OperatorState
from flinkplus.protocol.subtask.admission import Admission
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.identity import SubtaskIdentity
from flinkplus.protocol.subtask.ports import AnswersPort, SnapshotPort, SubtaskReports, SubtaskWork
from flinkplus.protocol.subtask.replay import Replay, StepTime
from flinkplus.protocol.vocabulary.ids import ChannelId, SubtaskId


@dataclass(kw_only=True)
class SubtaskParts:
    """The parts of one subtask.

    ``local``: whether other subtasks keep running when one fails.
    ``inputs``: without channels; the steps add them.
    ``outputs``: with the channels to all consumers.
    ``answers``: of a subtask whose rows wait for answers from outside.
    """

    is_source: bool
    local: bool
    inputs: InputGate
    outputs: OutputChannels
    history: StepHistory
    replay: Replay
    time: StepTime
    admission: Admission
    work: SubtaskWork
    snapshots: SnapshotPort
    reports: SubtaskReports
    answers: AnswersPort | None = None


def add_inputs(
    parts: SubtaskParts,
    identity: SubtaskIdentity,
    saved: OperatorState,
    producers: Sequence[tuple[ChannelId, SubtaskId]],
) -> None:
    """Add the input channels, as they were when the version was saved, or as a predecessor left them.

    ``producers``: every input channel, with its producer.
    """
    promotion = identity.promotion
    ended, first = frozenset(saved.ended_channels), dict(saved.inputs)
    if promotion is not None:
        first.update(promotion.inputs)
    for channel, producer in producers:
        name = str(channel)
        seq, is_again = first.get(name, 0), promotion is not None
        again = [parts.snapshots.unpack(message) for message in saved.in_flight.get(name, ())]
        slot, generation = identity.slot_of(producer), identity.generations[producer]
        parts.inputs.add(channel, producer, slot, generation, seq, name in ended, is_again, again)
        parts.admission.begin(channel, seq)
