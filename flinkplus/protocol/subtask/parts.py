"""The parts that a subtask's steps are composed of. The runtime or the simulator makes them and passes them in."""

from __future__ import annotations

from dataclasses import dataclass

from flinkplus.protocol.channels.inputs import InputGate
from flinkplus.protocol.channels.outputs import OutputChannels
from flinkplus.protocol.subtask.admission import Admission
from flinkplus.protocol.subtask.history import StepHistory
from flinkplus.protocol.subtask.ports import AnswersPort, SnapshotPort, SubtaskReports, SubtaskWork
from flinkplus.protocol.subtask.replay import Replay, StepTime


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
