"""How each kind of fault strikes, and how all of them end."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flinkplus.protocol.vocabulary.ids import Seq
from flinkplus.protocol.vocabulary.messages import Message, MessageKind
from flinkplus.runtime.slot.control.routing import NO_EPOCH
from tests.simulation.parameters import MOST_SUBTASKS, Fault, pair

if TYPE_CHECKING:
    from tests.simulation.slot import SimSlot
    from tests.simulation.world import World

POINTS = ("snapshot", "alignment", "upload", "uploaded", "end", "promotion", "promoted", "staged", "replicated")
"""As in ``flinkplus.runtime.faults.points``; and when a standby has a version, seen from there and from whom it has
it.
"""
WHERE_BARRIERS_OVERTAKE = {"snapshot": "recording", "alignment": "recorded", "promoted": "taken_up"}
"""What comes in the place of these, half of the time."""
FORGE_MS = 40


def forged_ends(victim: SimSlot, liar: int) -> list[Message]:
    """The end of input on a channel that slot ``liar`` does not send on, by several numbers: one may be the next."""
    for subtask in victim.active:
        for end in subtask.inputs.channels.values():
            if end.peer != liar and not end.ended:
                first, generation = end.cursor.expected, end.cursor.generation
                return [
                    Message(MessageKind.END_OF_INPUT, end.channel, generation, Seq(first + more), NO_EPOCH)
                    for more in range(3)
                ]
    return []


def forged_credit(victim: SimSlot, liar: int) -> list[Message]:
    """Credit for all that was sent on a channel whose consumer is not on slot ``liar``."""
    for subtask in victim.active:
        for end in subtask.outputs.channels.values():
            if end.peer != liar and not end.resuming and end.log.acknowledged < end.log.sent:
                return [Message(MessageKind.CREDIT, end.channel, end.consumer_generation, Seq(end.log.sent), NO_EPOCH)]
    return []


class Faults:
    """The faults of one world; each kind is a method."""

    def __init__(self, world: World) -> None:
        self._world = world

    def strike(self, fault: Fault) -> None:
        """``fault`` happens, if there is anything for it to happen to."""
        world = self._world
        if world.ended is not None:
            return
        world.note("fault: %s", fault)
        world.counts[fault.kind] += 1
        world.deadlines.struck(fault.kind, fault.duration_ms)
        getattr(self, f"_{fault.kind}")(fault)

    def _until(self, fault: Fault, end: str, *arguments: object) -> None:
        self._world.at(self._world.now_ms + fault.duration_ms, getattr(self, end), *arguments)

    def _slot(self, fault: Fault) -> int:
        slots = self._world.own
        return slots[fault.target % len(slots)]

    def _process(self, fault: Fault) -> SimSlot | None:
        found = [process for process in self._world.on_slot(self._slot(fault)) if not process.paused]
        return found[-1] if found else None

    def _pair(self, fault: Fault) -> tuple[int, int]:
        slots = self._world.own
        start, end = pair(fault.target, len(slots))
        return slots[start], slots[end]

    # --- slots

    def _crash(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            process.end("it is killed")

    def _crash_at_point(self, fault: Fault) -> None:
        """The process is killed when it next reaches a certain point, for the first time or a later one, at once or a
        little later."""
        process = self._process(fault)
        if process is not None:
            point, count = fault.target // 8, 1 + fault.target // 8 // len(POINTS)
            name = POINTS[point % len(POINTS)]
            if self._world.parameters.aligned_timeout_ms is not None and fault.target // 4 % 2:
                name = WHERE_BARRIERS_OVERTAKE.get(name, name)
            process.doom = name, self._world.rng_network.choice((0, 0, 1, 3, 8)), count

    def _crash_host(self, fault: Fault) -> None:
        host = self._world.host_of(self._slot(fault))
        for process in list(self._world.processes.values()):
            if process.host == host:
                process.paused = False
                process.end("its host is gone")

    def _throw(self, fault: Fault) -> None:
        """In its work, or with the next message that comes in."""
        process = self._process(fault)
        subtasks = [] if process is None else list(process.active)
        if not subtasks:
            return
        subtask: Any = subtasks[fault.target % len(subtasks)]
        if fault.target // 16 % 2 and subtask.inputs.channels:
            subtask.poisoned_receipt = True
        else:
            subtask.poisoned = True

    def _throw_together(self, fault: Fault) -> None:
        """All subtasks, or all of one slot, throw once: each when it next has something to do."""
        slots = list(self._world.processes.values()) if fault.target % 4 else [self._process(fault)]
        for slot in [slot for slot in slots if slot is not None]:
            for subtask in slot.active:
                found: Any = subtask
                found.poisoned = True

    def _deadly(self, fault: Fault) -> None:
        """From now on a certain record ends the process that counts it behind the first exchange."""
        self._world.deadly = (0, 0, fault.target % max(1, self._world.parameters.records))

    def _outage(self, fault: Fault) -> None:
        """A service that every subtask calls is away."""
        self._world.outages += 1
        self._until(fault, "_less", "outages")

    def _pause(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            self._pause_process(fault, process)

    def _pause_process(self, fault: Fault, process: SimSlot) -> None:
        process.pause()
        self._world.beat()
        self._until(fault, "_resume", process)
        self._world.at(self._world.now_ms + 400, self._expire_if_paused, process)

    def _resume(self, process: SimSlot) -> None:
        process.resume()

    def _expire_if_paused(self, process: SimSlot) -> None:
        if process.paused and process.alive:
            self._world.expire_session(process)

    def _expire(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            self._world.expire_session(process)

    def _cut_control(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            self._world.lose_control(process)

    def _refuse_promotion(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None:
            process.standbys.refuse_next = True

    def _corrupt_segment(self, fault: Fault) -> None:
        process = self._process(fault)
        if process is not None and process.volume.corrupt(self._world.rng_storage):
            self._world.counts["corrupted"] += 1

    # --- wires

    def _cut(self, fault: Fault) -> None:
        start, end = self._pair(fault)
        self._world.cut(start, end, 1)
        self._until(fault, "_mend", start, end)

    def _refuse(self, fault: Fault) -> None:
        """A slot takes no connections, and those that others had to it break."""
        end = self._slot(fault)
        starts = [slot for slot in self._world.own if slot != end]
        for start in starts:
            self._world.cut(start, end, 1)
        self._until(fault, "_take_connections", starts, end)

    def _take_connections(self, starts: list[int], end: int) -> None:
        for start in starts:
            self._world.cut(start, end, -1)

    def _garble(self, fault: Fault) -> None:
        """Frames that one slot sends to another cannot be read."""
        start, end = self._pair(fault)
        self._world.garble(start, end, 1)
        self._until(fault, "_speak_clearly", start, end)

    def _speak_clearly(self, start: int, end: int) -> None:
        self._world.garble(start, end, -1)

    def _forge(self, fault: Fault) -> None:
        """A slot sends another one, time and again, what is a third one's to send, or that one's own."""
        liar, victim = self._pair(fault)
        until_ms = self._world.now_ms + fault.duration_ms
        for process in self._world.on_slot(liar):
            stream = process.data.streams.get(victim)
            if stream is not None and stream.connected:
                forge = forged_credit if fault.target // 8 % 2 else forged_ends
                for message in forge(stream.target, liar):
                    self._world.forge(process, victim, message)
        if self._world.now_ms + FORGE_MS <= until_ms:
            again = replace(fault, duration_ms=fault.duration_ms - FORGE_MS)
            self._world.at(self._world.now_ms + FORGE_MS, self._forge, again)

    def _break_at_join(self, fault: Fault) -> None:
        """Streams break when slots are told of a newcomer."""
        self._world.breaks_at_join += 1
        self._until(fault, "_less", "breaks_at_join")

    def _silence(self, fault: Fault) -> None:
        start, end = self._pair(fault)
        self._silent_for(fault, [(start, end), (end, start)])

    def _silence_one_way(self, fault: Fault) -> None:
        self._silent_for(fault, [self._pair(fault)])

    def _silence_around(self, fault: Fault) -> None:
        start, _ = self._pair(fault)
        others = [slot for slot in self._world.own if slot != start]
        self._silent_for(fault, [way for other in others for way in ((start, other), (other, start))])

    def _silent_for(self, fault: Fault, ways: list[tuple[int, int]]) -> None:
        """Nothing arrives that way, and no stream breaks."""
        self._world.silence(ways, 1)
        self._until(fault, "_hear_again", ways)

    def _hear_again(self, ways: list[tuple[int, int]]) -> None:
        self._world.silence(ways, -1)

    def _mend(self, start: int, end: int) -> None:
        self._world.cut(start, end, -1)

    def _slow(self, fault: Fault) -> None:
        start, end = self._pair(fault)
        self._world.slow(start, end, 1)
        self._until(fault, "_hasten", start, end)

    def _hasten(self, start: int, end: int) -> None:
        self._world.slow(start, end, -1)

    def _frames_wrong(self, fault: Fault) -> None:
        self._world.frames_wrong += 1
        self._until(fault, "_less", "frames_wrong")

    def _reads_wrong(self, fault: Fault) -> None:
        self._world.reads_wrong += 1
        self._until(fault, "_less", "reads_wrong")

    def _duplicate(self, fault: Fault) -> None:
        self._world.duplicates += 1
        self._until(fault, "_less", "duplicates")

    def _less(self, what: str) -> None:
        setattr(self._world, what, getattr(self._world, what) - 1)

    # --- ZooKeeper, disks, storage, driver

    def _zookeeper_away(self, fault: Fault) -> None:
        self._world.registry.is_away = True
        self._until(fault, "_zookeeper_back")

    def _zookeeper_unsure(self, fault: Fault) -> None:
        self._world.registry.is_unsure = True
        self._until(fault, "_zookeeper_back")

    def _zookeeper_back(self) -> None:
        self._world.registry.is_away = self._world.registry.is_unsure = False

    def _disk_full(self, fault: Fault, error: int = errno.ENOSPC) -> None:
        process = self._process(fault)
        if process is not None:
            process.volume.fails_with = error
            self._until(fault, "_disk_works", process)

    def _disk_fails(self, fault: Fault) -> None:
        self._disk_full(fault, errno.EIO)

    def _disk_works(self, process: SimSlot) -> None:
        process.volume.fails_with = None
        process.event(process.wake)

    def _no_upload(self, fault: Fault) -> None:
        self._world.uploads_fail += 1
        self._until(fault, "_less", "uploads_fail")

    def _no_manifest(self, fault: Fault) -> None:
        self._world.storage_fails += 1
        self._until(fault, "_less", "storage_fails")

    def _hang_storage(self, fault: Fault) -> None:
        self._world.storage_hangs += 1
        self._until(fault, "_less", "storage_hangs")

    def _no_commit(self, fault: Fault) -> None:
        self._world.commits_fail += 1
        self._until(fault, "_less", "commits_fail")

    def _no_table(self, fault: Fault) -> None:
        """The database is away."""
        self._world.table_away += 1
        self._until(fault, "_less", "table_away")

    def _watch_late(self, fault: Fault) -> None:
        self._world.watches_late += 1
        self._until(fault, "_less", "watches_late")

    def _crash_driver(self, fault: Fault) -> None:
        self._world.crash_driver()

    # --- commands, and where slots come back

    def _migrate(self, fault: Fault) -> None:
        subtasks = self._world.graph.subtasks(self._world.parallelism)
        self._world.migrate(subtasks[fault.target // 8 % len(subtasks)], self._slot(fault))

    def _drain(self, fault: Fault) -> None:
        host = self._world.host_of(self._slot(fault))
        self._world.drain(host, force=fault.target >= 32)
        if fault.duration_ms:
            self._until(fault, "_undrain", host)

    def _undrain(self, host: str) -> None:
        self._world.undrain(host)

    def _scale(self, fault: Fault) -> None:
        self._world.scale(fault.target % 4, force=fault.target >= 48)

    def _rescale(self, fault: Fault) -> None:
        self._world.rescale(1 + fault.target % MOST_SUBTASKS)

    def _savepoint(self, fault: Fault) -> None:
        """A user wants a savepoint; in half of the cases the job is to stop with it."""
        self._world.savepoints.request(stop=bool(fault.target % 2))

    def _rescale_back(self, fault: Fault) -> None:
        """A user wants the parallelism that the job has."""
        self._world.rescale(self._world.parallelism)

    def _at_rescale(self, fault: Fault) -> None:
        """Something happens when a rescale comes to one of its phases; see ``phases.phase_and_kind``."""
        self._world.rescale_faults.append(fault)

    def _spare(self, fault: Fault) -> SimSlot | None:
        """A process of one of the spare slots, also of those that a rescale has started or ends."""
        own = self._world.own
        found = [one for one in self._world.processes.values() if one.index not in own and not one.paused]
        return found[fault.target % len(found)] if found else None

    def _crash_spare(self, fault: Fault) -> None:
        process = self._spare(fault)
        if process is not None:
            process.end("it is killed")

    def _pause_spare(self, fault: Fault) -> None:
        process = self._spare(fault)
        if process is not None:
            self._pause_process(fault, process)

    def _migrate_to_spare(self, fault: Fault) -> None:
        subtasks, process = self._world.graph.subtasks(self._world.parallelism), self._spare(fault)
        if process is not None:
            self._world.migrate(subtasks[fault.target // 8 % len(subtasks)], process.index)

    def _crowd(self, fault: Fault) -> None:
        """The cluster has no room for further slots."""
        self._world.crowded += 1
        self._until(fault, "_less", "crowded")

    def _rehost(self, fault: Fault) -> None:
        """The process is killed, and the next one of its slot is on the host of another slot."""
        self._world.rehost(self._slot(fault), fault.target // 8)
        self._crash(fault)

    # --- the end

    def heal(self) -> None:
        """No more faults, and none that lasts."""
        world = self._world
        if world.ended is None:
            world.note("all is healed")
        world.healed = True
        self._zookeeper_back()
        for process in list(world.processes.values()):
            process.volume.fails_with = None
            process.resume()
            process.event(process.wake)
