"""Real slots in one process: their loops stepped by the test, wired without sockets, ordered about by the test.

State, replicas, output logs, determinants, snapshots and their threads are the real ones, which ``tests/simulation``
replaces by its own. What is not here: Spark, sockets, the coordinator.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from flinkplus.config import Options
from flinkplus.graph import JobGraph, Node
from flinkplus.operators.keyed.keyed import Count, Sum
from flinkplus.protocol.determinants.determinants import Span
from flinkplus.protocol.snapshot.handle import START, SnapshotHandle
from flinkplus.protocol.vocabulary.ids import SubtaskId
from flinkplus.runtime.control import messages as control
from flinkplus.runtime.control.promotion_order import PromotionOrder
from flinkplus.runtime.control.spans import spans_to_json
from flinkplus.runtime.slot.control.peers import Peers
from flinkplus.runtime.slot.process.config import SlotConfig
from flinkplus.runtime.slot.process.slot import Slot
from flinkplus.runtime.slot.subtasks.operator_tree import NOTHING
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Refusals
from flinkplus.runtime.transport.wire.ports import FrameArrived, PeerAttached, PeerBroken, PeerConnected
from flinkplus.sinks.collect import CollectSink
from flinkplus.sources.generator import Generator
from flinkplus.state.durable.storage import CheckpointStorage

WAIT_S = 60.0


def numbers(start: int, count: int) -> pa.RecordBatch:
    """Rows ``(k, v)``: 37 keys."""
    rows = range(start, start + count)
    return pa.record_batch({"k": [f"key-{i * i % 37}" for i in rows], "v": list(rows)})


SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def graph_of(rows: int, stages: int) -> JobGraph:
    """numbers | key_by(k) | count [| key_by(v) | sum] | collect."""
    graph = JobGraph()
    source = Generator("numbers", numbers, SCHEMA, rows, batches=True)
    at = graph.add(Node("numbers", "source", source, SCHEMA))
    count = Count("count", ("k",), "n")
    schema = count.output_schema(SCHEMA)
    below = graph.add(Node("count", "operator", count, schema))
    graph.link(at, below, ("k",))
    at = below
    if stages == 2:
        total = Sum("total", ("v",), "n", "s")
        schema = total.output_schema(schema)
        below = graph.add(Node("total", "operator", total, schema))
        graph.link(at, below, ("v",))
        at = below
    sink = CollectSink("out").bind(schema, "job")
    graph.add(Node("out", "sink", sink, schema), at)
    return graph.fuse()


class Wires:
    """The data plane of one slot."""

    incarnation = 0
    refusals = Refusals()

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self._cluster = cluster
        self._slot = slot

    def start(self) -> str:
        return f"slot-{self._slot}"

    def connect(self, peers: dict[int, tuple[int, str]]) -> None:
        for peer, (incarnation, _) in peers.items():
            self._cluster.put(self._slot, PeerConnected(peer, incarnation))
            self._cluster.put(peer, PeerAttached(self._slot))

    def send(self, peer: int, buffers: Sequence[Any]) -> None:
        self._cluster.put(peer, FrameArrived(self._slot, b"".join(buffers)))

    send_back = send_beside = send

    def renew(self, peer: int, reason: str) -> None:
        self._cluster.put(self._slot, PeerBroken(peer, self._cluster.incarnations[peer], reason))

    def flush(self) -> None:
        return None

    def close(self) -> None:
        return None


class Link:
    """The control stream of one slot."""

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self._cluster = cluster
        self._slot = slot
        self.heartbeat: control.Heartbeat | None = None

    def send(self, message: control.ControlMessage) -> None:
        self._cluster.heard.append((self._slot, control.decode(control.encode(message))))

    def close(self) -> None:
        return None


class Cluster:
    """``parallelism`` slots and a coordinator that does what the test says."""

    def __init__(self, directory: Path, graph: JobGraph, parallelism: int, seed: int, **options: Any) -> None:
        self.random = random.Random(seed)
        self.graph = graph
        self.parallelism = parallelism
        self.directory = directory
        self.options = Options(parallelism=parallelism, **{"recovery": "standby", **options})
        self.storage = CheckpointStorage(str(directory / "checkpoints"))
        self.storage.ownership.prepare({"name": "test", "fingerprint": "x"}, False)
        self.heard: deque[tuple[int, control.ControlMessage]] = deque()
        self.answers: list[tuple[int, control.ControlMessage]] = []
        self.slots: dict[int, Slot] = {}
        self.incarnations: dict[int, int] = {}
        self.subtasks = [SubtaskId(v.name, i) for v in graph.vertices for i in range(parallelism)]
        self.assignment = {subtask: subtask.index for subtask in self.subtasks}
        self.generations = dict.fromkeys(self.subtasks, 1)
        self.members = {
            s: tuple((s.index + k) % parallelism for k in range(min(3, parallelism) if self.options.standbys else 1))
            for s in self.subtasks
        }
        self.generation = self.attempt = 1
        self.checkpoint = self.complete = 0
        self.acks: dict[int, dict[str, SnapshotHandle]] = {0: {}}
        self.staged: dict[tuple[str, int], set[int]] = {}
        self.exhausted: set[str] = set()
        self.failures: list[control.Failed] = []

    # --- wiring

    def put(self, slot: int, event: Any) -> None:
        if slot in self.slots:
            self.slots[slot]._inbox.put(event)

    def start_slot(self, index: int) -> Slot:
        """A new process for a slot."""
        incarnation = self.incarnations[index] = self.incarnations.get(index, 0) + 1
        scratch = self.directory / f"scratch-{index}-{incarnation}"
        scratch.mkdir(parents=True)
        config = SlotConfig(
            "job", "test", self.parallelism, 1, "127.0.0.1:1", "", Credentials(b"secret"),
            cloudpickle.dumps(self.graph), self.options, str(self.directory / "checkpoints"),
            None, None, (1, 0.0), True,
        )  # fmt: skip
        slot = Slot(index, config, scratch)
        self.slots[index] = slot
        slot._data = Wires(self, index)  # type: ignore[assignment]
        slot._peers = Peers(index, slot._data.connect)
        slot._link = Link(self, index)  # type: ignore[assignment]
        assert slot._failover is not None
        slot._failover.standbys._send = slot._data.send  # type: ignore[attr-defined]
        return slot

    def addresses(self) -> dict[str, list[Any]]:
        return {str(slot): [self.incarnations[slot], f"slot-{slot}"] for slot in self.slots}

    # --- the coordinator

    def deploy(self) -> None:
        for index in range(self.parallelism):
            self.start_slot(index)
        names = {str(s): slot for s, slot in self.assignment.items()}
        for slot in self.slots.values():
            slot._obey(control.Deploy(1, None, names, self.addresses()))
        self.until(lambda: sum(isinstance(m, control.Deployed) for _, m in self.answers) == self.parallelism)
        for slot in self.slots.values():
            slot._obey(control.Start(1, 0, 0.0))
        self.form_chains()

    def form_chains(self) -> None:
        order = control.Chains({str(s): [self.generations[s], list(self.members[s])] for s in self.subtasks})
        for slot in self.slots.values():
            slot._obey(order)

    def turn(self) -> None:
        """Every slot does a little, in random order."""
        order = list(self.slots)
        self.random.shuffle(order)
        for index in order:
            slot = self.slots.get(index)
            if slot is None:
                continue
            slot._inbox.poll()  # for what it does when it is its turn
            for _ in range(self.random.randint(1, 30)):
                if slot._inbox.empty():
                    break
                slot._handle(slot._inbox.get_nowait())
            if self.random.random() < 0.8:
                slot._turns.take(time.monotonic())
        self._hear()

    def _hear(self) -> None:
        heard = []
        while self.heard:  # other threads add to it
            heard.append(self.heard.popleft())
        for slot, message in heard:
            match message:
                case control.Acknowledged(generation, checkpoint, subtask, handle):
                    if generation == self.generations[_id(subtask)]:
                        self.acks.setdefault(checkpoint, {})[subtask] = handle
                case control.Staged(_, subtask, version):
                    self.staged.setdefault((subtask, slot), set()).add(version)
                case control.Exhausted(_, subtask):
                    self.exhausted.add(subtask)
                case control.Failed():
                    self.failures.append(message)
                case _:
                    pass
        self.answers.extend(heard)
        assert not self.failures, self.failures

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"nothing comes of it:\n{self.story()}"
            self.turn()

    def story(self) -> str:
        """Where everyone is."""
        lines = [f"not staged: {self.not_staged(self.checkpoint)}, acks: {sorted(self.acks.get(self.checkpoint, {}))}"]
        for index, slot in self.slots.items():
            for subtask in slot.active:
                steps = subtask.steps
                lines.append(
                    f"slot {index}: {subtask.id} generation {subtask.generation} ended {steps.ended} replay "
                    f"{len(steps.replay.determinants)} triggers {list(steps._triggers)} step {steps._step} "
                    f"aligning {steps.checkpoints._machine.waiting_for}"
                )
                for channel, end in subtask.inputs.channels.items():
                    cursor = end.cursor
                    lines.append(
                        f"    in {channel} of {end.peer}: consumed {cursor.consumed} of {cursor.expected}, "
                        f"{'blocked' if end.blocked else ''}"
                    )
                for channel, out in subtask.outputs.channels.items():
                    log = out.log
                    lines.append(
                        f"    out {channel} to {out.peer}: trimmed {log.trimmed} acknowledged {log.acknowledged} "
                        f"sent {log.sent} of {log.appended}, limit {out.limit}{' resuming' if out.resuming else ''}"
                    )
        return "\n".join(lines)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    def trigger(self) -> int:
        """Begin a checkpoint."""
        self.checkpoint += 1
        for slot in self.slots.values():
            names = [str(s) for s in self.subtasks if self.graph.vertex_of(s.vertex).is_source]
            slot._obey(control.Trigger(1, self.checkpoint, names))
        return self.checkpoint

    def acked(self, checkpoint: int) -> bool:
        return len(self.acks.get(checkpoint, {})) == len(self.subtasks)

    def finish_checkpoint(self, checkpoint: int) -> None:
        """Wait for it, and for the chains; then it is complete."""
        self.until(lambda: self.acked(checkpoint))
        self.complete = checkpoint
        for slot in self.slots.values():
            slot._obey(control.Complete(1, checkpoint))
        self.until(lambda: not self.not_staged(checkpoint))
        for slot in self.slots.values():
            slot._obey(control.Trim(checkpoint))

    def not_staged(self, checkpoint: int) -> list[tuple[str, int]]:
        """Standbys that do not have a version."""
        return [
            (str(s), member)
            for s in self.subtasks
            for member in self.members[s][1:]
            if member in self.slots and checkpoint not in self.staged.get((str(s), member), set())
        ]

    def kill(self, index: int) -> None:
        """The process of a slot is gone, and all it had in memory and on its disk."""
        slot = self.slots.pop(index)
        slot.active.retire_all()
        slot.close()
        shutil.rmtree(self.directory / f"scratch-{index}-{self.incarnations[index]}")
        self.staged = {key: found for key, found in self.staged.items() if key[1] != index}
        self.members = {s: tuple(m for m in members if m != index) for s, members in self.members.items()}

    def fail_over(self, failed: Sequence[SubtaskId], version: int | None = None, moves: Any = None) -> None:
        """Fence, ask, promote: all of ``failed`` go to their next living member (or as ``moves`` says)."""
        version = self.complete if version is None else version
        self.attempt += 1
        self.generation += 1
        for subtask in failed:
            living = [m for m in self.members[subtask] if m in self.slots and m != self.assignment[subtask]]
            target = moves[subtask] if moves else living[0]
            self.assignment[subtask] = target
            self.generations[subtask] = self.generation
            rest = [m for m in self.members[subtask] if m in self.slots and m != target]
            self.members[subtask] = (target, *rest)
        fence = control.Fence(self.attempt, self.generation, {str(s): self.assignment[s] for s in failed})
        self.answers = []
        for slot in self.slots.values():
            slot._obey(fence)
        self.until(lambda: len(self._fenced()) == len(self.slots))
        received, sent, runs = self._merge()
        for number in range(version + 1, self.checkpoint + 1):
            for subtask in failed:
                self.acks.get(number, {}).pop(str(subtask), None)
        for target in sorted({self.assignment[s] for s in failed}):
            told = {
                str(s): PromotionOrder(
                    version=version,
                    handle=self.acks[version].get(str(s), START),
                    received=received,
                    determinants=spans_to_json(runs.get(str(s), [])),
                    ancestors={
                        name: spans_to_json(found)
                        for name, found in runs.items()
                        if _id(name).vertex in self.slots[target].lineage.asked_of([s])
                    },
                    marks=sent,
                    digests=self._known("digests"),
                )
                for s in failed
                if self.assignment[s] == target
            }
            self.slots[target]._obey(control.Promote(self.attempt, self.generation, 0, 0.0, False, self.complete, told))
        self.form_chains()
        targets = {self.assignment[s] for s in failed}
        self.until(lambda: {slot for slot, m in self.answers if isinstance(m, control.Promoted)} == targets)
        for number in range(version + 1, self.checkpoint + 1):
            for slot in self.slots.values():
                names = [str(s) for s in failed if self.graph.vertex_of(s.vertex).is_source]
                slot._obey(control.Trigger(1, number, names))

    def _fenced(self) -> list[control.Fenced]:
        return [m for _, m in self.answers if isinstance(m, control.Fenced) and m.attempt == self.attempt]

    def _merge(self) -> tuple[dict[str, int], dict[str, int], dict[str, list[Span]]]:
        received: dict[str, int] = {}
        sent: dict[str, int] = {}
        for answer in self._fenced():
            received |= answer.received
            sent |= answer.sent
        return received, sent, self._known("determinants")

    def _known(self, what: str) -> dict[str, list[Any]]:
        """All the runs of the answers to the present fence, with those of their parts."""
        found: dict[str, list[Any]] = {}
        for _, message in self.answers:
            if isinstance(message, control.Fenced | control.FencedPart) and message.attempt == self.attempt:
                for name, runs in getattr(message, what).items():
                    found.setdefault(name, []).extend(runs)
        return found

    def join(self, index: int) -> None:
        """Spark has started the slot again."""
        slot = self.start_slot(index)
        names = {str(s): at for s, at in self.assignment.items()}
        slot._obey(control.Join(1, names, {str(s): g for s, g in self.generations.items()}))
        for other in self.slots.values():
            other._obey(control.Connect(1, self.addresses()))
        for subtask in self.subtasks:
            if index not in self.members[subtask] and len(self.members[subtask]) < 3:
                self.members[subtask] = (*self.members[subtask], index)
        self.form_chains()

    def hosted(self, index: int) -> list[SubtaskId]:
        return [s for s in self.subtasks if self.assignment[s] == index]

    def lose(self, slot: int) -> None:
        """``slot`` dies, sometime behind a checkpoint, and its standbys take over."""
        self.turns(self.random.randint(0, 15))
        self.finish_checkpoint(self.trigger())
        self.turns(self.random.randint(0, 15))
        self.kill(slot)
        self.fail_over(self.hosted(slot))
        self.turns(self.random.randint(0, 5))

    # --- the end

    def finish(self) -> pa.Table:
        """Run to the end of the input, take a last checkpoint, and give what was put out."""
        heads = {*self.graph.cycles().loop_heads, *self.graph.asking_vertices()}
        ending = {str(s) for s in self.subtasks if self.graph.vertex_of(s.vertex).is_source or s.vertex in heads}
        self.until(lambda: self.exhausted >= ending)
        last = self.trigger()
        self.until(lambda: self.acked(last))
        node = next(node for node in self.graph.nodes if node.kind == "sink")
        committer = node.body.committer()  # type: ignore[union-attr]
        committer.prepare(False)
        for checkpoint in range(1, last + 1):
            if not self.acked(checkpoint):
                continue
            files = [
                file
                for handle in self.acks[checkpoint].values()
                for file in handle.operator_state.operators.get("out", NOTHING).staged
            ]
            committer.commit(checkpoint, files)
        table: pa.Table = committer.table()  # type: ignore[union-attr]
        return table

    def close(self) -> None:
        for index in list(self.slots):
            self.slots.pop(index).close()


def _id(text: str) -> SubtaskId:
    name, _, rest = text.rpartition("[")
    return SubtaskId(name, int(rest[:-1]))
