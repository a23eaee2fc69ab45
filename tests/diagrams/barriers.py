"""One checkpoint at one subtask, for each algorithm of checkpointing.

What state a subtask is in is seen from outside, from what is ordered: so all algorithms have the same states, and what
differs is how they go through them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.barriers.cyclic import CyclicAlignment
from flinkplus.protocol.barriers.machine import BarrierMachine
from flinkplus.protocol.barriers.unaligned import UnalignedBarriers
from flinkplus.protocol.snapshot.handle import START
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, Generation, Seq, SubtaskId
from flinkplus.protocol.vocabulary.in_flight import Logs
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from tests.diagrams.explore import Diagram, Move, Subject, content, names_of
from tests.unit.protocol.subtask.test_replay import INPUTS, Folding, Ports

CHECKPOINTS = (CheckpointId(1), CheckpointId(2))
SUBTASK = SubtaskId("count", 0)
REGULAR = (ChannelId(0, 0, 0), ChannelId(0, 1, 0))
BACK = ChannelId(1, 0, 0)

STATES: dict[str, str] = {
    "not begun": "no barrier of the checkpoint has come",
    "aligning": "some barriers are there; the state is not copied yet",
    "recording": "the state is copied; what is still in flight on some inputs is added to the snapshot",
    "persisting": "the asynchronous part: the snapshot is on its way to the durable store",
    "persisting in vain": "the same, but the checkpoint was given up meanwhile",
    "acknowledged": "the coordinator has the handle",
    "declined": "the coordinator knows that there will be none",
    "given up": "aborted, or passed over for a newer one: nothing of it is done any more",
}
PAUSED = ", paused"
STATES |= {
    f"{state}{PAUSED}": "the same, and nothing is taken off any input"
    for state in ("persisting", "acknowledged", "declined")
}


@dataclass(frozen=True)
class CheckpointCompleted:
    """The subtask is told that a checkpoint is complete; no event of its barrier machine."""

    checkpoint: CheckpointId


def _nothing_else(machine: BarrierMachine) -> Iterable[Move]:
    return ()


class OneCheckpoint(Subject):
    """What becomes of the checkpoint ``watched`` (the older or the newer of two) at a subtask with ``inputs``.

    ``back``: those of them that are back edges, where a barrier comes once it was sent on. ``further``: events beside
    barriers, completions and aborts that the machine may be told of, by name.
    """

    def __init__(
        self,
        machine: BarrierMachine,
        watched: CheckpointId,
        inputs: tuple[ChannelId, ...],
        back: tuple[ChannelId, ...] = (),
        further: Callable[[Any], Iterable[Move]] = _nothing_else,
    ) -> None:
        self.machine = machine
        self._watched = watched
        self._inputs = inputs
        self._back = back
        self._further = further
        self._base = "not begun"
        self._newest = dict.fromkeys((*inputs, None), CheckpointId(0))  # by input; None: from the coordinator
        self._blocked: dict[ChannelId, CheckpointId] = {}
        self._persisting: list[CheckpointId] = []
        self._aborted: list[CheckpointId] = []
        self._forwarded: list[CheckpointId] = []

    @property
    def state(self) -> str:
        return self._base

    def key(self) -> Hashable:
        mine = {name: value for name, value in vars(self).items() if name not in ("machine", "_further")}
        return content(self.machine), content(mine)

    def moves(self) -> Iterable[Move]:
        for checkpoint in CHECKPOINTS:
            for channel in self._inputs or (None,):
                comes = channel not in self._back or checkpoint in self._forwarded  # round the loop
                if self._newest[channel] < checkpoint and comes and self._takes(channel):
                    yield Move(*self._barrier(channel, checkpoint))
            other = self._other(checkpoint)
            if checkpoint not in self._aborted:
                yield Move(f"checkpoint aborted{other}", events.CheckpointAborted(checkpoint))
            if checkpoint in self._persisting:
                yield Move(f"snapshot persisted{other}", events.SnapshotPersisted(checkpoint, "handle"))
                yield Move(f"snapshot failed{other}", events.SnapshotFailed(checkpoint, "reason"))
        yield from self._further(self.machine)

    def _other(self, checkpoint: CheckpointId) -> str:
        """What an event is called that is not of the checkpoint that is watched."""
        if checkpoint == self._watched:
            return ""
        return " (a newer one's)" if checkpoint > self._watched else " (an older one's)"

    def _barrier(self, channel: ChannelId | None, checkpoint: CheckpointId) -> tuple[str, events.BarrierEvent]:
        other = self._other(checkpoint)
        if channel is None:
            return f"trigger at a source{other}", events.CheckpointTriggered(checkpoint)
        event = events.BarrierTaken(channel, checkpoint)
        if other:
            return f"barrier{other}", event
        if channel in self._back:
            return "barrier on a back edge", event
        regular = [other for other in self._inputs if other not in self._back]
        there = sum(self._newest[other] >= checkpoint for other in regular)
        return "last barrier" if there == len(regular) - 1 else "first barrier", event

    def _takes(self, channel: ChannelId | None) -> bool:
        """Whether anything is taken off ``channel``."""
        return channel not in self._blocked

    def _tell(self, event: Any) -> list[effects.BarrierEffect]:
        return self.machine.step(0, event)

    def do(self, event: Any) -> list[str]:
        match event:
            case events.BarrierTaken(channel, checkpoint):
                self._newest[channel] = checkpoint
                self._on_barrier(checkpoint)
            case events.CheckpointTriggered(checkpoint):
                self._newest[None] = checkpoint
                self._on_barrier(checkpoint)
            case events.SnapshotPersisted(checkpoint) | events.SnapshotFailed(checkpoint):
                self._persisting.remove(checkpoint)
                if isinstance(event, events.SnapshotFailed) and checkpoint == self._watched:
                    self._base = "given up"  # unless it is declined
            case events.CheckpointAborted(checkpoint):
                self._aborted.append(checkpoint)
                if checkpoint == self._watched:
                    copied = self._base in ("recording", "persisting", "persisting in vain")
                    over = self._base in ("acknowledged", "declined")
                    self._base = self._base if over else "persisting in vain" if copied else "given up"
        return names_of(effect for effect in self._tell(event) if self._concerns(effect, event))

    def _on_barrier(self, checkpoint: CheckpointId) -> None:
        if self._base == "not begun" and checkpoint >= self._watched:
            self._base = "aligning" if checkpoint == self._watched else "given up"

    def _concerns(self, effect: Any, event: Any) -> bool:
        """Note what is ordered; whether the checkpoint that is watched has to do with it."""
        match effect:
            case effects.BlockChannel(channel):
                self._blocked[channel] = event.checkpoint
                return bool(event.checkpoint == self._watched)
            case effects.UnblockChannel(channel):
                return self._blocked.pop(channel) == self._watched
            case effects.PersistSnapshot(checkpoint):
                self._persisting.append(checkpoint)
            case effects.ForwardBarrier(checkpoint):
                self._forwarded.append(checkpoint)
        if effect.checkpoint != self._watched:
            return False
        match effect:
            case effects.TakeSnapshot():
                self._base = "recording"
            case effects.PersistSnapshot():
                self._base = "persisting in vain" if self._base in ("persisting in vain", "declined") else "persisting"
            case effects.AcknowledgeCheckpoint():
                self._base = "acknowledged"
            case effects.DeclineCheckpoint():
                self._base = "declined"
            case effects.DiscardSnapshot():
                self._base = "given up"
        return True


class OneUnalignedCheckpoint(OneCheckpoint):
    """The same where barriers may overtake: a barrier comes in on an input before it is taken off it, and the
    coordinator may say, once, that those of the watched checkpoint wait for nothing."""

    def __init__(self, watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> None:
        super().__init__(UnalignedBarriers(SUBTASK, inputs, CheckpointId(0)), watched, inputs)
        self._sighted = dict.fromkeys(inputs, CheckpointId(0))
        self._ordered = False

    def moves(self) -> Iterable[Move]:
        machine: Any = self.machine
        for checkpoint in CHECKPOINTS:
            for channel in [known for known in self._inputs if self._sighted[known] < checkpoint]:
                name = f"barrier in a queue{self._other(checkpoint)}"
                yield Move(name, events.BarrierArrived(channel, checkpoint))
        if not self._ordered:
            yield Move("barriers may overtake", events.OvertakingOrdered(self._watched))
        if machine.due is not None:
            yield Move("a barrier overtakes", events.BarrierOvertook(machine.due))
        for move in super().moves():
            taken = isinstance(move.event, events.BarrierTaken)
            if not taken or (machine.due is None and self._sighted[move.event.channel] >= move.event.checkpoint):
                yield move

    def do(self, event: Any) -> list[str]:
        match event:
            case events.BarrierArrived(channel, checkpoint):
                self._sighted[channel] = checkpoint
            case events.OvertakingOrdered():
                self._ordered = True
        return super().do(event)


class _PausingPorts(Ports):
    nothing_to_read = True

    def discard(self, checkpoint: CheckpointId) -> None:
        return None


class _Pausing(Folding):
    """A real subtask in synchronous mode, with two inputs or as a source; it notes what its machine orders."""

    def __init__(self, inputs: tuple[ChannelId, ...]) -> None:
        self.ordered: list[effects.BarrierEffect] = []
        known = [(channel, producer) for channel, producer in INPUTS if channel in inputs]
        super().__init__(1, iter(range(1000)), synchronous=True, inputs=known, ports=_PausingPorts)
        apply = self.checkpoints._apply

        def noted(effect: effects.BarrierEffect) -> None:
            self.ordered.append(effect)
            apply(effect)

        self.checkpoints._apply = noted  # type: ignore[method-assign]

    def work_off(self) -> list[effects.BarrierEffect]:
        """All steps that can be done are; returns what the machine has ordered."""
        while self.runnable(0.0):
            self.run()
        ordered, self.ordered = self.ordered, []
        return ordered

    @property
    def paused_by(self) -> CheckpointId | None:
        """The checkpoint whose end it waits for."""
        return self.checkpoints.paused_by

    def key(self) -> Hashable:
        return content(self.checkpoints._machine), self.paused_by, self.checkpoints._complete

    def take_snapshot(self, checkpoint: CheckpointId) -> None:
        return None

    def persist(self, checkpoint: CheckpointId, logs: Logs) -> None:
        return None

    def answer(self, checkpoint: CheckpointId, found: object) -> None:
        return None


class OneSynchronousCheckpoint(OneCheckpoint):
    """The same in synchronous mode, where a subtask waits for the end of what it has taken a snapshot for."""

    def __init__(self, watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> None:
        self._steps = _Pausing(inputs)
        super().__init__(self._steps.checkpoints._machine, watched, inputs)
        self._complete: list[CheckpointId] = []
        self._history: list[Any] = []

    def copy(self) -> OneSynchronousCheckpoint:
        """A subtask has generators, which cannot be copied: all is repeated."""
        again = OneSynchronousCheckpoint(self._watched, self._inputs)
        for event in self._history:
            again.do(event)
        return again

    def do(self, event: Any) -> list[str]:
        self._history.append(event)
        return super().do(event)

    @property
    def state(self) -> str:
        return self._base + (PAUSED if self._steps.paused_by == self._watched else "")

    def key(self) -> Hashable:
        hidden = ("machine", "_steps", "_further", "_history")
        return self._steps.key(), content({name: value for name, value in vars(self).items() if name not in hidden})

    def moves(self) -> Iterable[Move]:
        yield from super().moves()
        for checkpoint in CHECKPOINTS:
            if self._base == "acknowledged" and checkpoint == self._watched not in (*self._complete, *self._aborted):
                yield Move("checkpoint complete", CheckpointCompleted(checkpoint))

    def _takes(self, channel: ChannelId | None) -> bool:
        return self._steps.paused_by is None and super()._takes(channel)

    def _tell(self, event: Any) -> list[effects.BarrierEffect]:
        match event:
            case events.BarrierTaken(channel, checkpoint):
                end = self._steps.inputs.channels[channel]
                seq = Seq(end.cursor.consumed)
                self._steps.receive(
                    Message(MessageKind.BARRIER, channel, Generation(1), seq, checkpoint, None, 0), None
                )
            case events.CheckpointTriggered(checkpoint):
                self._steps.trigger(checkpoint)
            case events.CheckpointAborted(checkpoint):
                self._steps.abort(checkpoint)
            case events.SnapshotPersisted(checkpoint):
                self._steps.checkpoints.persisted(checkpoint, START, "")
            case events.SnapshotFailed(checkpoint, reason):
                self._steps.checkpoints.persisted(checkpoint, None, reason)
            case CheckpointCompleted(checkpoint):
                self._complete.append(checkpoint)
                self._steps.complete(checkpoint)
        return self._steps.work_off()


@dataclass(frozen=True)
class Algorithm:
    """``make``: one checkpoint at a subtask with these inputs, none for a source."""

    name: str
    source: str
    text: str
    make: Callable[[CheckpointId, tuple[ChannelId, ...]], OneCheckpoint]
    inputs: tuple[ChannelId, ...] = REGULAR
    synchronous: bool = False

    def diagram(self) -> Diagram:
        worlds = tuple(partial(self.make, watched, inputs) for inputs in (self.inputs, ()) for watched in CHECKPOINTS)
        return Diagram(self.name, self.source, self.text, "", STATES, worlds)


def _aligned(watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> OneCheckpoint:
    return OneCheckpoint(BarrierAlignment(SUBTASK, inputs), watched, inputs)


def _at_least_once(watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> OneCheckpoint:
    return OneCheckpoint(BarrierAlignment(SUBTASK, inputs, blocking=False), watched, inputs)


def _cyclic(watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> OneCheckpoint:
    back = (BACK,) if inputs else ()
    return OneCheckpoint(CyclicAlignment(SUBTASK, inputs, back), watched, inputs, back)


def _unaligned(watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> OneCheckpoint:
    return OneUnalignedCheckpoint(watched, inputs)


def _synchronous(watched: CheckpointId, inputs: tuple[ChannelId, ...]) -> OneCheckpoint:
    return OneSynchronousCheckpoint(watched, inputs)


ALGORITHMS = (
    Algorithm(
        "Aligned",
        "flinkplus/protocol/barriers/alignment.py",
        "An input waits once its barrier is there; when it is on all of them, the state is copied.",
        _aligned,
    ),
    Algorithm(
        "Aligned, at least once",
        "flinkplus/protocol/barriers/alignment.py",
        "The same, but no input waits: the copy holds some of what comes behind its barrier.",
        _at_least_once,
    ),
    Algorithm(
        "Cyclic",
        "flinkplus/protocol/barriers/cyclic.py",
        "Aligned on the inputs that are no back edges; what comes on a back edge from the copy on is recorded until "
        "the barrier has come round.",
        _cyclic,
        inputs=(*REGULAR, BACK),
    ),
    Algorithm(
        "Unaligned",
        "flinkplus/protocol/barriers/unaligned.py",
        "Aligned until the coordinator says that barriers may overtake; then the state is copied when the first is in "
        "a queue, and what comes before the others is recorded.",
        _unaligned,
    ),
    Algorithm(
        "Synchronous",
        "flinkplus/protocol/subtask/checkpoints.py",
        "Aligned, and then nothing at all is taken until the checkpoint is complete or aborted.",
        _synchronous,
        synchronous=True,
    ),
)
