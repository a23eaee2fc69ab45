"""Last words: what a slot notes of its step outlives its process, and reaches the coordinator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest

from flinkplus.errors import ProcessCrashed
from flinkplus.protocol.job.crashes import KEPT_CHECKPOINTS
from flinkplus.protocol.vocabulary import events
from flinkplus.protocol.vocabulary.ids import CheckpointId, Generation
from flinkplus.runtime.base.inbox import Inbox
from flinkplus.runtime.base.step_note import (
    EDGE,
    FIELDS,
    FIRST_ROW,
    NUMBERS,
    OPERATOR,
    PRODUCER,
    ROWS,
    SEQ,
    SIGNAL_FILE,
    SUBTASK,
    TEXT_AT,
    TEXT_BYTES,
    LastWords,
    StepNote,
    disown,
)
from flinkplus.runtime.coordinator.dispatch.dispatch import Deployment
from flinkplus.runtime.coordinator.membership.last_words import CrashReports
from flinkplus.runtime.liveness import pulse_process
from flinkplus.runtime.liveness.pulse import Pulses
from tests.unit.runtime.slot.slots_in_process import Cluster, graph_of

SECRET = b"secret of the job"
PATIENCE_S = 60.0

SLOT = """
import os, sys, time
from pathlib import Path
from flinkplus.runtime.liveness.pulse import Pulse
from flinkplus.runtime.base.step_note import StepNote, disown
note, pulse = StepNote(Path(sys.argv[2])), Pulse()
pulse.open(sys.argv[1], b"secret of the job", "1-name", 2.0, note, sys.argv[3] == "hide")
note.row("Row(i=7)")
note.numbers[:7].cast("B")  # a view, as operators hold one
for at, number in enumerate((4, 2, 1, 0, 17, 100, 10)):
    note.numbers[at] = number
if sys.argv[3] == "disown":
    disown()
print("noted", flush=True)
time.sleep(600)
"""


@pytest.fixture
def pulses() -> Iterator[tuple[Pulses, Inbox[Any]]]:
    inbox: Inbox[Any] = Inbox()
    made = Pulses("127.0.0.1", SECRET, 2.0, inbox, time)
    yield made, inbox
    made.close()
    inbox.close()


def ended(pulses: Pulses, directory: Path, how: signal.Signals, mode: str = "blame") -> subprocess.Popen[str]:
    """A slot's process that was in a step, and was ended."""
    command = [sys.executable, "-c", SLOT, pulses.address, str(directory), mode]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    assert process.stdout is not None and process.stdout.readline() == "noted\n"
    process.send_signal(how)
    process.wait(PATIENCE_S)
    process.stdout.close()
    return process


def next_of(inbox: Inbox[Any]) -> Any:
    """The next event. ``get`` ends sooner without one when it has served a socket, as of a pulse."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return inbox.get(timeout=PATIENCE_S)
        except Empty:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("how", "cause"), [(signal.SIGSEGV, "Segmentation fault"), (signal.SIGABRT, "Aborted"), (signal.SIGKILL, "")]
)
def test_a_process_that_ends_in_an_operator_has_last_words(
    pulses: tuple[Pulses, Inbox[Any]], tmp_path: Path, how: signal.Signals, cause: str
) -> None:
    ended(pulses[0], tmp_path, how)
    words = next_of(pulses[1])
    assert words == LastWords("1-name", (4, 2, 1, 0, 17, 100, 10, 8), "Row(i=7)", cause)
    with pytest.raises(Empty):  # they are sent more than once
        while True:
            pulses[1].get(timeout=0.2)


def note_of(subtask: int, operator: int, text: bytes = b"") -> bytes:
    numbers = [0] * FIELDS
    numbers[SUBTASK], numbers[OPERATOR], numbers[TEXT_BYTES] = subtask, operator, len(text)
    return NUMBERS.pack(*numbers).ljust(TEXT_AT, b"\0") + text


def test_between_two_steps_and_outside_of_operators_there_is_nothing_to_say() -> None:
    assert pulse_process.last_words(note_of(0, 3), b"") == b""
    assert pulse_process.last_words(note_of(3, 0), b"") == b""
    assert pulse_process.last_words(b"", b"") == b""
    assert pulse_process.last_words(note_of(3, 1), b"") != b""


def test_with_tls_a_row_is_known_by_its_digest_alone() -> None:
    """Datagrams are not encrypted."""
    one, again, other = (
        pulse_process.last_words(note_of(3, 1, row), b"", b"key") for row in (b"Row(i=7)", b"Row(i=7)", b"Row(i=8)")
    )
    assert one == again != other
    assert b"Row" not in one and b"not shown" in one
    assert b"not shown" not in pulse_process.last_words(note_of(3, 1), b"", b"key"), "no row is known"


def test_a_process_that_hides_rows_sends_none(pulses: tuple[Pulses, Inbox[Any]], tmp_path: Path) -> None:
    ended(pulses[0], tmp_path, signal.SIGKILL, "hide")
    words = next_of(pulses[1])
    assert isinstance(words, LastWords) and words.text.startswith("not shown") and "Row" not in words.text


def test_last_words_fit_into_a_datagram() -> None:
    words = pulse_process.last_words(note_of(3, 1, "\N{SNOWMAN}".encode() * 100), b"Fatal Python error: Aborted\n...")
    assert len(words) <= pulse_process.MAX_WORDS_BYTES and b"Aborted" in words


def test_a_process_that_ends_itself_on_purpose_blames_no_input(tmp_path: Path) -> None:
    note = StepNote(tmp_path)
    note.numbers[SUBTASK], note.numbers[OPERATOR] = 4, 2
    disown()
    assert note.numbers[SUBTASK] == 0
    note.close()
    disown()


class Reported:
    """The machine of a job that only listens, and the reports of crashes."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.graph = graph_of(10, 1)
        self.deployment = Deployment(Generation(1), 0, False, parallelism=3)
        self.reports = CrashReports(self.graph, self, self.deployment)  # type: ignore[arg-type]
        self.vertex = next(at for at, vertex in enumerate(self.graph.vertices) if vertex.inputs)

    def step_job(self, event: events.JobEvent) -> None:
        self.heard.append(event)

    def step_checkpoints(self, event: events.CheckpointingEvent) -> None:
        self.heard.append(event)

    def words(self, name: str, **changes: int) -> LastWords:
        numbers = [0] * FIELDS
        numbers[SUBTASK] = 1 + self.vertex * 3 + 2
        numbers[OPERATOR] = 1 + self.graph.vertices[self.vertex].nodes[0]
        numbers[EDGE], numbers[PRODUCER], numbers[SEQ], numbers[FIRST_ROW], numbers[ROWS] = 1, 1, 17, 40, 5
        for field, value in changes.items():
            numbers[{"seq": SEQ, "operator": OPERATOR, "edge": EDGE}[field]] = value
        return LastWords(name, tuple(numbers), "", "")


def test_the_second_end_at_the_same_message_ends_the_job_with_all_that_is_known() -> None:
    job = Reported()
    job.reports.take(job.words("1-a"))
    assert job.heard == []
    job.reports.take(job.words("2-b"))
    (told,) = job.heard
    assert isinstance(told, events.InputBlamed) and isinstance(told.error, ProcessCrashed)
    assert told.error.message == "message 0:1->2#17" and told.error.subtask.endswith("[2]")
    assert told.error.operator in told.reason


def test_of_a_source_the_rows_are_named_as_in_the_log() -> None:
    job = Reported()
    for name in ("1-a", "2-b"):
        job.reports.take(job.words(name, edge=0))
    (told,) = job.heard
    assert told.error.message == "rows 40 to 44"


def test_processes_that_are_ended_from_here_blame_no_input() -> None:
    job = Reported()
    for name in ("1-a", "2-b", "3-c"):
        job.reports.ended_on_purpose(name)
        job.reports.take(job.words(name))
    assert job.heard == []


def test_other_messages_and_losses_of_long_ago_do_not_count() -> None:
    job = Reported()
    job.reports.take(job.words("1-a"))
    job.reports.take(job.words("2-b", seq=18))
    job.reports.completed(CheckpointId(1 + KEPT_CHECKPOINTS))
    job.reports.take(job.words("3-c"))
    assert job.heard == []


def test_words_that_name_nothing_of_the_job_have_no_effect() -> None:
    job = Reported()
    for name in ("1-a", "2-b"):
        job.reports.take(job.words(name, operator=1_000))
    assert job.heard == []


FORKS = """
import os, signal, sys
from pathlib import Path
from flinkplus.runtime.base.step_note import StepNote
note = StepNote(Path(sys.argv[1]))
child = os.fork()
if not child:
    os.kill(os.getpid(), signal.SIGSEGV)
assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV
print(note.signal_path.read_bytes().decode(), flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_what_a_forked_child_dies_of_is_not_the_slots(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path)]
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    assert process.stdout == "\n" and process.returncode == -signal.SIGSEGV
    assert (tmp_path / SIGNAL_FILE).read_bytes().startswith(b"Fatal Python error: Segmentation fault")


def test_a_step_that_failed_is_noted_no_more(tmp_path: Path) -> None:
    """The process may be idle then, and be ended by something else."""

    def fail(_: Any) -> Any:
        noted.append(tuple(slot._note.numbers[:EDGE]))
        raise ValueError("this row")

    def guard(*work: Any) -> None:
        guarded(*work)
        noted.append(tuple(slot._note.numbers[:EDGE]))

    noted: list[tuple[int, ...]] = []
    cluster = Cluster(tmp_path, graph_of(100, 1), 2, seed=1)
    cluster.deploy()
    slot = cluster.slots[0]
    guarded, slot.guard = slot.guard, guard  # type: ignore[method-assign]
    (count,) = [subtask for subtask in slot.active if subtask.inputs.channels]
    assert count.operators is not None
    for fused in count.operators.nodes.values():
        fused.instance = SimpleNamespace(process=fail)  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="this row"):
        cluster.until(lambda: False)
    at = next(at for at, note in enumerate(noted) if note[OPERATOR])
    assert noted[at][SUBTASK] and noted[at + 1] == (0, 0)
    for each in cluster.slots.values():
        each.close()
