"""How long a fixed input takes on more slots than the machine has cores: a simulation of discrete events.

A slot is a thread on a core of its own (or, to compare with this machine, ``cores`` take turns). It does one step after
the other, of the subtask that is furthest downstream and can do one, as the engine does: a source reads a batch, others
take a bundle of what waits on all channels; a step sends a part of its rows to each consumer, and begins only where
each channel has room. Who waits for which barrier, and when the state is copied, is decided by the engine's
own machine (``BarrierAlignment``). Times are the measured ones (``costs``), except for the network, which is assumed.

A plain heap, and no library for simulations: slots choose their work by rules of their own, which fits no queue or
resource of such a library; what is left of it is the heap.

Not in the model: skew of keys, credit messages' own cost, windows in bytes, small bundles that wait for a tick, the
loop around the steps, the time to deploy.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from experiments.harness.running import RunError
from experiments.scaling.costs import Costs, VertexCosts
from flinkplus.protocol.barriers.alignment import BarrierAlignment
from flinkplus.protocol.channels.inputs import MAX_BUNDLE_BYTES
from flinkplus.protocol.channels.outputs import MAX_UNSENT_MESSAGES
from flinkplus.protocol.vocabulary import effects, events
from flinkplus.protocol.vocabulary.ids import ChannelId, CheckpointId, SubtaskId

NETWORK_LATENCY_S = 0.0002
"""Assumed, one way, between any two slots."""


@dataclass(frozen=True)
class Setting:
    """What is simulated. ``cores``: ``None`` for one for each slot. ``interval_s``: between checkpoints, ``None`` for
    none but the one that ends the job. ``spread_s``: slots take turns in writing their snapshots for so long.
    ``slower``: how much longer each step takes than measured. ``bundle_rows``: maximum that a step takes of several
    messages."""

    parallelism: int
    rows: float
    interval_s: float | None
    window: int
    spread_s: float = 0.0
    cores: int | None = None
    slower: float = 1.0
    bundle_rows: float = math.inf


class _Message(NamedTuple):
    """``checkpoint``: of a barrier; then there are no rows."""

    arrives_s: float
    rows: float
    remote: bool
    checkpoint: CheckpointId | None = None


@dataclass
class _Subtask:
    """One subtask. ``inputs``: by producer; ``room``: messages that may still be made, by consumer."""

    index: int
    costs: VertexCosts
    depth: int
    machine: BarrierAlignment
    inputs: list[deque[_Message]]
    room: list[int]
    downstream: list[_Subtask] = field(default_factory=list)
    upstream: list[_Subtask] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)  # since credit was granted, by producer
    rows_left: float = 0.0  # of a source
    triggers: deque[CheckpointId] = field(default_factory=deque)
    turn: int = 0
    next_target: int = 0
    owed_s: float = 0.0  # work that snapshots have added to the next step


class Simulation:
    """One run; ``run`` gives the seconds until the last checkpoint is complete."""

    def __init__(self, costs: Costs, setting: Setting) -> None:
        self._costs, self._setting = costs, setting
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._idle = [True] * setting.parallelism
        self._waiting: deque[int] = deque()  # slots with something to do and no core
        self._free_cores = setting.cores or setting.parallelism
        self._checkpoint = CheckpointId(0)
        self._missing: set[SubtaskId] = set()
        self._final = self._is_due = False
        self.checkpoints = 0
        self._stages = self._make_subtasks()

    def _make_subtasks(self) -> list[list[_Subtask]]:
        setting, n = self._setting, self._setting.parallelism
        stages: list[list[_Subtask]] = []
        for depth, costs in enumerate(self._costs.vertices):
            channels = range(n) if depth else range(0)
            last = depth == len(self._costs.vertices) - 1
            stage = [
                _Subtask(
                    index,
                    costs,
                    depth,
                    BarrierAlignment(
                        SubtaskId(costs.name, index), tuple(ChannelId(depth, producer, index) for producer in channels)
                    ),
                    [deque() for _ in channels],
                    [] if last else [setting.window + MAX_UNSENT_MESSAGES] * n,
                    taken=[0] * len(channels),
                    rows_left=0.0 if depth else setting.rows / n,
                )
                for index in range(n)
            ]
            for subtask in stage if stages else []:
                subtask.upstream = stages[-1]
            for subtask in stages[-1] if stages else []:
                subtask.downstream = stage
            stages.append(stage)
        return stages

    def run(self, stop: threading.Event | None = None) -> float:
        """Raises ``RunError`` when ``stop`` is set, ``RuntimeError`` in a deadlock."""
        if self._setting.interval_s is not None:
            self._at(self._setting.interval_s, self._trigger_due)
        for slot in range(self._setting.parallelism):
            self._wake(slot)
        while self._events:
            if stop is not None and stop.is_set():
                raise RunError("interrupted")
            self._now_s, _, action = heapq.heappop(self._events)
            action()
            if self._final and not self._missing:
                return self._now_s + self._costs.job_s
        raise RuntimeError("the model is in a deadlock")

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, action))

    # ---------------------------------------------------------------------------------------------- checkpoints

    def _trigger_due(self) -> None:
        """The interval is over; one checkpoint at a time."""
        if self._final or self._exhausted:
            return
        assert self._setting.interval_s is not None
        if self._missing:
            self._is_due = True
            return
        self._trigger()
        self._at(self._now_s + self._setting.interval_s, self._trigger_due)

    @property
    def _exhausted(self) -> bool:
        return all(source.rows_left <= 0 for source in self._stages[0])

    def _end(self) -> None:
        """All sources are at their end: the last checkpoint, once there is none under way."""
        if self._final:
            return
        if self._missing:
            return  # ``_persisted`` comes back to it
        self._trigger()
        self._final = True

    def _trigger(self) -> None:
        self._checkpoint = CheckpointId(self._checkpoint + 1)
        self._missing = {SubtaskId(s.costs.name, s.index) for stage in self._stages for s in stage}
        for source in self._stages[0]:
            source.triggers.append(self._checkpoint)
            self._at(self._now_s + NETWORK_LATENCY_S, partial(self._wake, source.index))

    def _persisted(self, subtask: _Subtask, checkpoint: CheckpointId) -> None:
        """The snapshot is stored: the subtask acknowledges it, and may have one more under way."""
        self._obey(subtask, events.SnapshotPersisted(checkpoint, {}))
        self._missing.discard(SubtaskId(subtask.costs.name, subtask.index))
        if self._missing:
            return
        self.checkpoints += 1
        if self._exhausted:
            self._end()
        elif self._is_due:
            self._is_due = False
            self._trigger_due()

    def _obey(self, subtask: _Subtask, event: events.BarrierEvent) -> float:
        """What the machine orders; returns what that costs the subtask at once."""
        seconds = 0.0
        for effect in subtask.machine.step(0, event):
            match effect:
                case effects.BlockChannel(channel):
                    subtask.blocked.add(channel.producer)
                case effects.UnblockChannel(channel):
                    subtask.blocked.discard(channel.producer)
                case effects.TakeSnapshot():
                    seconds += subtask.costs.sync_s
                case effects.ForwardBarrier(checkpoint):
                    for target in range(len(subtask.downstream)):
                        self._send(subtask, target, 0.0, self._now_s + seconds, checkpoint)
                    seconds += subtask.costs.message_s * len(subtask.downstream)
                case effects.PersistSnapshot(checkpoint):
                    subtask.owed_s += subtask.costs.async_s
                    turn_s = self._setting.spread_s * subtask.index / self._setting.parallelism
                    stored_s = self._now_s + seconds + turn_s + subtask.costs.async_s + NETWORK_LATENCY_S
                    self._at(stored_s, partial(self._persisted, subtask, checkpoint))
        return seconds

    # ---------------------------------------------------------------------------------------------- slots

    def _wake(self, slot: int) -> None:
        """There may be something to do."""
        if not self._idle[slot]:
            return
        self._idle[slot] = False
        if self._free_cores:
            self._free_cores -= 1
            self._work(slot)
        else:
            self._waiting.append(slot)

    def _work(self, slot: int) -> None:
        """One step, on a core that is this slot's until the end of it."""
        seconds = self._step(slot)
        if seconds is not None:
            self._at(self._now_s + seconds, partial(self._go_on, slot))
            return
        self._idle[slot] = True
        self._give_core_back()

    def _go_on(self, slot: int) -> None:
        if not self._waiting:
            self._work(slot)
            return
        self._waiting.append(slot)
        self._give_core_back()

    def _give_core_back(self) -> None:
        if self._waiting:
            self._work(self._waiting.popleft())
        else:
            self._free_cores += 1

    def _step(self, slot: int) -> float | None:
        """Consumers first; ``None``: nothing can be done."""
        for stage in reversed(self._stages):
            subtask = stage[slot]
            if any(room <= 0 for room in subtask.room):
                continue
            seconds = self._read(subtask) if subtask.depth == 0 else self._take(subtask)
            if seconds is not None:
                seconds, subtask.owed_s = seconds + subtask.owed_s, 0.0
                return seconds * self._setting.slower
        return None

    def _read(self, source: _Subtask) -> float | None:
        if source.triggers:
            return self._obey(source, events.CheckpointTriggered(source.triggers.popleft()))
        if source.rows_left <= 0:
            return None
        rows = min(source.costs.rows, source.rows_left)
        source.rows_left -= rows
        if self._exhausted:
            self._end()
        return self._emit(source, rows, 0.0)

    def _take(self, subtask: _Subtask) -> float | None:
        """A barrier at the head of a channel, or a bundle: the rows that wait on all channels that are not blocked."""
        n = len(subtask.inputs)
        order = [(subtask.turn + offset) % n for offset in range(n)]
        subtask.turn += 1
        ready = [producer for producer in order if producer not in subtask.blocked and self._head(subtask, producer)]
        for producer in ready:
            checkpoint = subtask.inputs[producer][0].checkpoint
            if checkpoint is not None:
                subtask.inputs[producer].popleft()
                self._consumed(subtask, producer)
                channel = ChannelId(subtask.depth, producer, subtask.index)
                return self._obey(subtask, events.BarrierTaken(channel, checkpoint))
        return self._take_bundle(subtask, ready) if ready else None

    def _head(self, subtask: _Subtask, producer: int) -> _Message | None:
        """The message that waits at the head of a channel."""
        queue = subtask.inputs[producer]
        return queue[0] if queue and queue[0].arrives_s <= self._now_s else None

    def _take_bundle(self, subtask: _Subtask, ready: list[int]) -> float:
        """One message at least, and no more than the limits of the engine."""
        rows, received_s, messages = 0.0, 0.0, 0
        row_bytes = self._costs.row_bytes
        most = min(self._setting.bundle_rows, MAX_BUNDLE_BYTES / row_bytes if row_bytes else math.inf)
        for producer in ready:
            for _ in range(self._setting.window):
                message = self._head(subtask, producer)
                if message is None or message.checkpoint is not None:
                    break
                if messages and rows + message.rows > most:
                    return self._emit(subtask, rows, received_s)
                subtask.inputs[producer].popleft()
                self._consumed(subtask, producer)
                rows, messages = rows + message.rows, messages + 1
                if message.remote:
                    received_s += self._costs.frame_s + message.rows * row_bytes * self._costs.byte_s
        return self._emit(subtask, rows, received_s)

    def _emit(self, subtask: _Subtask, rows: float, seconds: float) -> float:
        """A step that took ``rows``: what it takes, with its messages sent at its end."""
        targets = min(len(subtask.downstream), max(1, math.ceil(rows))) if subtask.downstream else 0
        costs = subtask.costs
        seconds += costs.step_s + costs.row_s * rows + costs.message_s * targets
        for _ in range(targets):
            target = subtask.next_target % len(subtask.downstream)
            subtask.next_target += 1
            self._send(subtask, target, rows / targets, self._now_s + seconds, None)
        return seconds

    def _send(
        self, subtask: _Subtask, target: int, rows: float, sent_s: float, checkpoint: CheckpointId | None
    ) -> None:
        remote = target != subtask.index
        arrives_s = sent_s + (NETWORK_LATENCY_S if remote else 0.0)
        subtask.room[target] -= 1
        subtask.downstream[target].inputs[subtask.index].append(_Message(arrives_s, rows, remote, checkpoint))
        self._at(arrives_s, partial(self._wake, target))

    def _consumed(self, subtask: _Subtask, producer: int) -> None:
        """Credit goes back every half window."""
        subtask.taken[producer] += 1
        if subtask.taken[producer] < max(1, self._setting.window // 2):
            return
        granted, subtask.taken[producer] = subtask.taken[producer], 0
        upstream = subtask.upstream[producer]
        delay_s = NETWORK_LATENCY_S if producer != subtask.index else 0.0

        def grant() -> None:
            upstream.room[subtask.index] += granted
            self._wake(producer)

        self._at(self._now_s + delay_s, grant)
