"""Last words of slots: if the same input crashes two processes, the job fails with an error that names the input.

Rules: only the coordinator's thread calls this. Last words of a process that FlinkPlus itself has ended are ignored.
"""

from __future__ import annotations

import logging

from flinkplus.errors import ProcessCrashed
from flinkplus.graph import JobGraph
from flinkplus.protocol.job.crashes import Crashes, Place
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId
from flinkplus.runtime.base.logs import about
from flinkplus.runtime.base.step_note import EDGE, FIRST_ROW, OPERATOR, PRODUCER, ROWS, SEQ, SUBTASK, LastWords
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment
from flinkplus.runtime.coordinator.dispatch.machines import JobMachines

MAX_ENDED = 1000  # remembered processes that were ended on purpose
log = logging.getLogger("flinkplus.coordinator")


class CrashReports:
    """Passes last words to the machine ``Crashes``, and its verdicts to the machine of the job."""

    def __init__(self, graph: JobGraph, machines: JobMachines, deployment: Deployment) -> None:
        self._graph = graph
        self._machines, self._deployment = machines, deployment
        self._crashes = Crashes()
        self._ended: list[str] = []

    def ended_on_purpose(self, name: str) -> None:
        """The coordinator is about to end the process whose pulse has this name."""
        self._ended = [*self._ended, name][-MAX_ENDED:]

    def completed(self, checkpoint: CheckpointId) -> None:
        self._crashes.on_progress(checkpoint)

    def take(self, words: LastWords) -> None:
        """A process has ended inside an operator."""
        place = self._place_of(words)
        if place is None or words.name in self._ended:
            return
        fields = about(subtask=str(place.subtask), phase="detect")
        cause = place.signal or "no fatal signal reported; perhaps killed, or out of memory"
        log.warning(
            "the process of %s ended in operator %r (%s), %s", place.subtask, place.operator, cause, place, extra=fields
        )
        blamed = self._crashes.ended(place, self._deployment.triggered)
        if blamed is not None:
            subtask = f"{blamed.operator}[{blamed.subtask.index}]"
            error = ProcessCrashed(blamed.operator, subtask, blamed.where, blamed.row, place.signal)
            self._machines.step_job(events.InputBlamed(str(error), error))

    def _place_of(self, words: LastWords) -> Place | None:
        numbers = words.numbers
        vertex, index = divmod(numbers[SUBTASK] - 1, self._deployment.parallelism)
        node = numbers[OPERATOR] - 1
        if not (0 <= vertex < len(self._graph.vertices) and 0 <= node < len(self._graph.nodes)):
            return None
        subtask = SubtaskId(self._graph.vertices[vertex].name, index)
        message = ""
        if numbers[EDGE]:
            message = f"{ChannelId(numbers[EDGE] - 1, numbers[PRODUCER], index)}#{numbers[SEQ]}"
        rows = numbers[FIRST_ROW], numbers[FIRST_ROW] + numbers[ROWS]
        return Place(subtask, self._graph.nodes[node].name, message, rows, words.text, words.signal)
