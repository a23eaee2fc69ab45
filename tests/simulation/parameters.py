"""What one seed draws: the job, its settings, the temper of its network and disks, and the schedule of faults.

Every subsystem has a generator of its own, drawn from the seed, so that a further kind of fault does not reshuffle the
network.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from flinkplus.errors import InvariantViolation
from flinkplus.protocol.loops.cycles import Cycles
from flinkplus.protocol.vocabulary.lineage import Lineage

SLOT_FAULTS = (
    "crash",
    "crash_at_point",
    "throw",
    "pause",
    "expire",
    "cut_control",
    "break_at_join",
    "refuse_promotion",
    "corrupt_segment",
)
TIMED_FAULTS = (
    "cut",
    "slow",
    "duplicate",
    "zookeeper_away",
    "zookeeper_unsure",
    "disk_full",
    "disk_fails",
    "no_upload",
    "frames_wrong",
    "reads_wrong",
)
OTHER_FAULTS = ("crash_host", "crash_driver", "no_manifest", "no_commit", "watch_late")
DRAWN_FAULTS = (*SLOT_FAULTS, *TIMED_FAULTS, *OTHER_FAULTS)
SILENCES = ("silence", "silence_one_way", "silence_around")
"""The network loses what goes between two slots, or in one direction, or between one slot and all others; nobody's
stream breaks."""
REFUSALS = ("refuse", "refuse", "cut")
"""A slot refuses connections of all others, or of one."""
HANGS = 0.04
"""Share of the jobs in which the driver's storage hangs, in the midst of a write or between two."""
HANGS_MS = (700, 20_000, 130_000, 350_000)
"""The last two: the job ends meanwhile, if it waits for a manifest; with the last one, also if a rollback waits for a
commit."""
OUTAGES = ("outage", "throw_together")
"""A service that all subtasks call is away for a while; or each subtask throws once, all in one instant."""
DEADLY = 0.03
"""Share of the jobs in which a record ends the process that works on it."""
FAULTS = (*DRAWN_FAULTS, *SILENCES, *OUTAGES, "refuse", "garble", "forge", "hang_storage", "deadly", "no_table")
COMMANDS = ("migrate", "migrate", "drain", "rehost")
"""What a user asks for, and a slot that comes back on another host; among the faults."""
SCALINGS = ("scale", "scale", "scale", "crash_spare", "pause_spare", "migrate_to_spare", "drain", "crash", "throw")
"""What a user asks for about spare slots, and what happens to them and to others meanwhile."""
SCALED = 0.06
"""Share of the jobs whose spare slots come and go, of those that recover beside the stream."""
LITTLE_BYTES = 20
"""Less than one state file, most often."""
RESCALED = 0.03
"""Share of the jobs whose parallelism changes while they run."""
RESCALINGS = (
    *("rescale",) * 3,
    *("at_rescale",) * 5,
    "rescale_back",
    "crash_spare",
    "pause_spare",
    "crash",
    "scale",
    "drain",
    "migrate",
)
"""What a user asks for in such a job, and what happens to it meanwhile."""
SAVED = 0.03
"""Share of the jobs of which savepoints are taken."""
SAVINGS = (
    *("savepoint",) * 6,
    *("crash", "crash", "crash_driver", "no_manifest", "no_upload", "no_commit", "hang_storage", "throw"),
)
"""What a user asks for in such a job, and what happens to it meanwhile."""
TO_BARRIER = 0.06
"""Share of the jobs whose subtasks hold rows back until their barrier."""
LIVE = 0.06
"""Share of the jobs whose records arrive while they run."""
ASKING = 0.03
"""Share of the jobs with rows that wait for answers from outside."""
FAULTS_LIVE = (*("crash",) * 5, "crash_host", "crash_driver", "throw", "throw_together", "pause", "migrate", "expire")
"""What happens to such a job."""
AT_ONCE = 0.05
"""Share of the jobs whose rows are visible at once."""
TICKED = 0.03
"""Share of the jobs with steps by the time of day."""
FAULTS_AT_ONCE = (
    *("crash",) * 6,
    *("crash_host", "crash_driver", "crash_driver", "throw", "throw_together", "throw_together", "pause", "expire"),
    *("no_table", "no_table", "crash_at_point", "migrate", "cut"),
)
"""What happens to such a job."""
CHANGED_AT_ONCE = 0.4
"""Share of these jobs whose parallelism changes, or that may be stopped with savepoints."""
MOST_SUBTASKS, KEY_GROUPS = 5, 8
"""What jobs are rescaled to at most, of each vertex; and the key groups of such jobs."""
MOVES = 0.1
"""Share of the jobs that are given commands, of those that recover beside the stream."""
LOCAL_FAULTS = ("refuse_promotion", "expire")
"""Of recoveries beside the stream only."""
STANDBY_FAULTS = ("frames_wrong", "reads_wrong")
WEIGHTS = {
    "crash": 6,
    "crash_at_point": 5,
    "throw": 4,
    "pause": 3,
    "cut": 6,
    "crash_host": 2,
    "expire": 2,
    "crash_driver": 1,
    "slow": 3,
    "frames_wrong": 2,
    "reads_wrong": 2,
}
DURATIONS_MS = (5, 30, 150, 700, 2_500)
SLOW_MS = 150
SILENCES_MS = (30, 150, 700, 2_500, 20_000)
"""The last: for good, unless there is a rollback."""
OUTAGE = 0.06
"""Share of the jobs in which there is an outage, or exceptions in one instant."""
SILENT = 0.06
"""Share of the jobs in which there is a silence."""
REFUSED = 0.06
"""Share of the jobs in which connections are refused, as a rule repeatedly."""
FRAMED = 0.12
"""Share of the jobs whose messages travel as frames."""
FRAME_BYTES = (0, 60, 150, 1_000)
GARBLED = 0.25
"""Share of those of them in which some frames cannot be read."""
FORGED = 0.06
"""Share of the jobs in which a slot sends what is not its to send."""
FORGED_MS = (0, 0, 150, 2_500)
IN_FLIGHT_BYTES = (None, 1_000, 2_000, 4_000)
IN_FLIGHT_BYTES_OF_LOOPS = (None, 3_000, 6_000, 12_000)
LOOPS = 0.09
"""Share of the jobs that have loops, of those that can have some."""
OVERTAKING = 0.13
"""Share of the jobs whose checkpoints are unaligned, of those that can have them."""
IN_FLIGHT_DEATHS = 0.6
"""Share of jobs with unaligned checkpoints only in which a process is to die while messages in flight are recorded, or
put back."""
RECORDING, RECORDED, TAKEN_UP = (4 + 8 * number for number in (0, 1, 6))
"""Targets of ``crash_at_point``, and any up to three more, so that the slot is drawn; see ``faults.POINTS``."""
NEXT_TIME = 8 * 9
"""And so much more for each time that the point is to be reached before."""


UNLIMITED = 100_000
"""Restarts that no history comes to."""


@dataclass(frozen=True)
class Fault:
    """``kind`` happens at ``at_ms``, to slot (or host, or whatever the kind says) ``target``, for ``duration_ms``."""

    at_ms: int
    kind: str
    target: int
    duration_ms: int

    def __str__(self) -> str:
        return f"{self.at_ms} {self.kind} {self.target} {self.duration_ms}"


@dataclass(frozen=True)
class Parameters:
    """Everything that a run depends on. ``hosts``: slots per host. ``budget_bytes``: memory for the output logs of a
    slot. ``records``: of each source subtask. ``window_bytes``: of a channel. ``bundle_rows``: maximum that one step
    takes of several messages. ``patience_ms``: how long a small bundle waits for more. ``joins``: several steps may be
    repeated together. ``read_bytes``: maximum that one read of a state file gives.
    ``keeps_disks``: a slot's next process on the host finds the state files of the dead one, a share ``left_damaged``
    of them torn or altered.
    ``synchronous``: the job stands still for each checkpoint. ``aligned_timeout_ms``: from when on checkpoints are
    unaligned (``None``: never). ``in_flight_bytes``: of what was in flight, that the snapshots of a slot may hold
    (``None``: more than there ever is). ``quick_barriers``: to take one that had overtaken takes no time; else as long
    as a step does. ``watermarks``: sources send them, and every other stage
    holds rows back until they are old enough. ``loops``: edges that lead back (producer, consumer); rows go round.
    ``clock_keys``: records of so many keys make those who count them read the clock. ``error_rate``: of the Bloom
    filters. ``whims``: subtasks are not deterministic. ``frame_bytes``: messages travel as frames, joined up to this
    size (``None``: as they are). ``fence_values``: determinants and digests in one message of an answer to a fence
    (``None``: as many as in the product). ``without``: parts of the protocol that the job lacks
    (``flinkplus.runtime.slot.subtasks.ablation``). ``max_restarts``: the option. ``groups``: of keys, where the
    parallelism may change (0: it does not). ``little_bytes``: of state files, that a slot may lack when the parallelism
    changes (``None``: as in the product). ``at_once``: rows are visible at once. ``live``: records of sources arrive
    while the job runs, in so many places of each reader (0: they are all there). ``idle_ms``: for how long a source may
    have nothing to read before event time advances without it (``None``: it waits). ``ticks_ms``: every other stage
    holds rows back for so long, by the time of day (``None``: it does not).
    ``asking``: vertices whose rows wait for answers from outside, ``ask_capacity`` rows at a time, ``ask_in_order`` or
    not. ``to_barrier``: every other stage holds rows back until its subtask sends a barrier."""

    seed: int = 0
    stages: int = 2
    edges: tuple[tuple[int, int], ...] = ((0, 1),)
    parallelism: int = 2
    records: int = 12
    keys: int = 5
    guarantee: str = "exactly-once"
    recovery: str = "standby"
    replicas: int = 2
    failback: str = "auto"
    placement: str = "spread"
    sharing_depth: int | None = None
    hosts: int = 1
    window: int = 4
    bundle_rows: int = 1000
    patience_ms: int = 0
    joins: bool = False
    window_bytes: int = 1 << 20
    budget_bytes: int = 1 << 20
    interval_ms: int = 40
    min_pause_ms: int = 0
    max_concurrent: int = 1
    rows: int = 3
    pending_versions: bool = False
    watermarks: bool = False
    synchronous: bool = False
    aligned_timeout_ms: int | None = None
    quick_barriers: bool = False
    in_flight_bytes: int | None = None
    latency_ms: int = 2
    read_ms: int = 4
    work_ms: int = 2
    read_bytes: int = 1 << 16
    keeps_disks: bool = False
    left_damaged: float = 0.0
    clock_keys: int = 0
    error_rate: float = 0.01
    whims: bool = False
    frame_bytes: int | None = None
    fence_values: int | None = None
    max_restarts: int = UNLIMITED
    loops: tuple[tuple[int, int], ...] = ()
    groups: int = 0
    little_bytes: int | None = None
    at_once: bool = False
    live: int = 0
    idle_ms: int | None = None
    ticks_ms: int | None = None
    asking: tuple[int, ...] = ()
    ask_capacity: int = 4
    ask_in_order: bool = True
    to_barrier: bool = False
    without: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def story(self) -> str:
        """As one line for each setting that is not the default one."""
        plain = Parameters()
        lines = []
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name == "faults":
                lines += [f"fault {fault}" for fault in value]
            elif value != getattr(plain, setting.name) or setting.name == "seed":
                lines.append(f"{setting.name} {value}")
        return "\n".join(lines)

    def with_changes(self, **changes: Any) -> Parameters:
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


GUARANTEES = ("exactly-once", "at-least-once", "at-most-once")


class Rng(random.Random):
    """Draws what ``random.Random`` draws, in fewer calls."""

    def randint(self, a: int, b: int) -> int:
        n = b - a + 1
        bits = n.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= n:
            drawn = self.getrandbits(bits)
        return a + drawn


def child(seed: int, name: str) -> Rng:
    """The generator of one subsystem."""
    return Rng(f"{seed}/{name}")


def draw(
    seed: int,
    looped: bool = False,
    overtaking: bool = False,
    scaled: bool = False,
    joined: bool = False,
    rescaled: bool = False,
    saved: bool = False,
    at_once: bool = False,
    live: bool = False,
    ticked: bool = False,
    asking: bool = False,
    to_barrier: bool = False,
) -> Parameters:
    """The parameters of a seed. ``looped``: there is a loop wherever there can be one. ``overtaking``: checkpoints are
    unaligned, and processes die when messages are in flight in them. ``scaled``: spare slots come and go. ``joined``:
    steps may be repeated together, and are small, so that there are often several to repeat. ``rescaled``: the
    parallelism changes while the job runs. ``saved``: savepoints are taken, and the job stopped with some of them.
    ``at_once``: rows are visible at once. ``live``: records arrive while the job runs. ``ticked``: subtasks have steps
    by the time of day. ``asking``: rows wait for answers from outside.
    ``to_barrier``: rows are held back until a barrier is sent. A job has several of the last three only if they are
    asked for here."""
    rng = child(seed, "job")
    stages = rng.choices((1, 2, 3, 4), (2, 25, 15, 3))[0]
    parallelism = rng.choices((1, 2, 3, 4, 5, 8), (8, 75, 30, 5, 2, 1))[0]
    if stages * parallelism > 16:
        parallelism = 4
    recovery = "standby" if rng.random() < 0.8 else "rollback"
    if child(seed, "partial").random() < 0.08:
        recovery = "partial"
    records = rng.choices((0, 4, 8, 16, 40), (2, 16, 14, 3, 1))[0]
    parameters = Parameters(
        seed=seed,
        stages=stages,
        edges=draw_edges(rng, stages),
        parallelism=parallelism,
        records=records if parallelism <= 3 else min(records, 4),
        keys=rng.choice((1, 3, 8)),
        guarantee=child(seed, "guarantee").choices(GUARANTEES, (8, 1, 1))[0],
        recovery=recovery,
        replicas=rng.choice((2, 2, 2, 3, 3, 4)),
        failback=rng.choice(("auto", "auto", "never")),
        placement=rng.choice(("spread", "near")),
        sharing_depth=child(seed, "sharing").choice((None, None, None, 1, 2)),
        hosts=rng.choice((1, 1, 2)),
        window=rng.choice((2, 2, 4, 16)),
        window_bytes=child(seed, "window bytes").choice((1 << 20, 1 << 20, 150, 450)),
        patience_ms=child(seed, "patience").choice((0, 0, 3, 20)),
        bundle_rows=child(seed, "bundles").choice((1, 4, 4, 1000)),
        budget_bytes=rng.choice((0, 2_000, 1 << 20, 1 << 20)),
        interval_ms=rng.choice((20, 40, 40, 100)),
        max_concurrent=rng.choice((1, 1, 1, 2)),
        rows=rng.choice((1, 2, 2, 4)),
        pending_versions=rng.random() < 0.5,
        watermarks=child(seed, "watermarks").random() < 0.2,
        synchronous=child(seed, "synchronous").random() < 0.05,
        latency_ms=rng.choice((1, 2, 2, 6)),
        read_ms=rng.choice((2, 6, 12)),
        work_ms=rng.choice((1, 2, 2, 8)),
        read_bytes=rng.choice((20, 1 << 16, 1 << 16, 1 << 16)),
        keeps_disks=child(seed, "disks").random() < 0.9,
        left_damaged=child(seed, "left").choice((0.0, 0.0, 0.1, 0.5)),
        error_rate=child(seed, "filter").choice((0.01, 0.01, 0.3, 0.999999)),
        clock_keys=child(seed, "clock").choice((0, 0, 1, 3)),
        frame_bytes=draw_frame_bytes(child(seed, "frames")),
        fence_values=child(seed, "fence").choice((None, None, None, 1, 3, 10)),
    )
    if recovery != "rollback" and child(seed, "whims").random() < 0.1:
        # So that whims show: rows of equal keys in one message, and consumers elsewhere.
        parameters = replace(parameters, whims=True, keys=parallelism, rows=8)
    if parameters.synchronous:
        parameters = replace(parameters, max_concurrent=1, interval_ms=100, records=min(records, 12))
    if parameters.guarantee == "at-most-once":
        parameters = replace(parameters, watermarks=False)  # such a job, if it holds rows back, recovers by rollback
    if looped or overtaking:
        parameters = replace(parameters, guarantee="exactly-once", synchronous=False)
    may_loop = parameters.guarantee == "exactly-once" and not parameters.synchronous and not overtaking
    if may_loop and child(seed, "loops").random() < (1 if looped else LOOPS):
        parameters = with_loops(parameters, child(seed, "loop"))
    if not looped:
        parameters = with_overtaking(parameters, child(seed, "unaligned"), 1 if overtaking else OVERTAKING)
    if parameters.loops or parameters.aligned_timeout_ms is not None:
        budgets = IN_FLIGHT_BYTES_OF_LOOPS if parameters.loops else IN_FLIGHT_BYTES
        parameters = replace(parameters, in_flight_bytes=child(seed, "in flight").choice(budgets))
    faults = draw_faults(seed, parameters)
    if any(fault.kind == "break_at_join" for fault in faults) and parallelism <= 3:
        parameters = replace(parameters, records=max(records, 16), parallelism=3 if stages <= 3 else parallelism)
    if any(fault.kind == "no_upload" for fault in faults) and parallelism <= 3:  # and the stream is held up
        parameters = replace(parameters, records=max(records, 16), rows=1, read_bytes=20, read_ms=6)
    parameters = replace(parameters, faults=faults)
    if overtaking and parameters.aligned_timeout_ms is not None:
        parameters = with_deaths_in_flight(parameters, child(seed, "in flight deaths"))
    parameters = with_scaling(
        with_moves(parameters, child(seed, "moves")), child(seed, "scaling"), 1 if scaled else SCALED
    )
    parameters = with_joins(parameters, child(seed, "joins")) if joined else parameters
    parameters = with_rescales(parameters, child(seed, "rescales"), 1 if rescaled else RESCALED)
    parameters = with_savepoints(parameters, child(seed, "savepoints"), 1 if saved else SAVED)
    parameters = with_rows_at_once(parameters, child(seed, "at once"), 1 if at_once else AT_ONCE)
    parameters = with_changes_at_once(parameters, child(seed, "changes at once"))
    parameters = with_live_sources(parameters, child(seed, "live"), 1 if live else LIVE)
    asks = 1 if asking else 0 if ticked or to_barrier else ASKING
    parameters = with_asking(parameters, child(seed, "asking"), asks)
    ticks = 1 if ticked else 0 if to_barrier else TICKED
    parameters = with_ticks(parameters, child(seed, "ticks"), ticks, asking)
    share = 1 if to_barrier else TO_BARRIER
    if child(seed, "to barrier").random() >= share:
        return parameters
    return with_rows_to_barrier(parameters, asking and to_barrier, ticked and to_barrier)


def with_ticks(parameters: Parameters, rng: random.Random, share: float, beside_asking: bool) -> Parameters:
    """A job whose subtasks hold rows back until the clock releases them, a ``share`` of all that can have such;
    with more faults. ``beside_asking``: also one with rows that wait for answers."""
    if rng.random() >= share or parameters.loops or parameters.watermarks or parameters.guarantee == "at-most-once":
        return parameters
    if parameters.asking and not beside_asking:
        return parameters
    faults, at_ms = list(parameters.faults), 0
    for _ in range(rng.choice((0, 1, 2, 3))):
        at_ms += rng.choice((5, 15, 30, 60))
        faults.append(Fault(at_ms, rng.choice(("crash", "crash", "throw", "pause")), rng.randrange(64), 40))
    if not parameters.at_once and not parameters.groups:  # what holds rows back is to have consumers
        parameters = replace(parameters, stages=3, edges=((0, 1), (1, 2)), parallelism=min(parameters.parallelism, 3))
    return replace(
        parameters,
        asking=tuple(at for at in parameters.asking if at < parameters.stages),
        ticks_ms=rng.choice((1, 3, 7, 20)),
        joins=False,
        records=max(parameters.records, 16) if parameters.parallelism <= 3 else parameters.records,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def with_asking(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job with rows that wait for answers from outside, a ``share`` of all that may have some; with more faults."""
    if rng.random() >= share or parameters.guarantee == "at-most-once" or parameters.loops or not parameters.edges:
        return parameters
    if parameters.stages == 2:  # answers are logged where something is sent on
        parameters = replace(parameters, stages=3, edges=((0, 1), (1, 2)), parallelism=min(parameters.parallelism, 3))
        depth = None if parameters.at_once else parameters.sharing_depth
        parameters = replace(parameters, sharing_depth=depth)
    asking = sorted({end for _, end in parameters.edges})
    faults, at_ms = list(parameters.faults), 0
    for _ in range(rng.choice((0, 1, 2, 3))):
        at_ms += rng.choice((5, 15, 30, 60, 120))
        faults.append(Fault(at_ms, rng.choice(FAULTS_LIVE), rng.randrange(64), rng.choice(DURATIONS_MS)))
    return replace(
        parameters,
        asking=tuple(at for at in asking if rng.random() < 0.6) or (rng.choice(asking),),
        ask_capacity=rng.choice((2, 4, 100)),
        ask_in_order=rng.random() < 0.5,
        records=max(parameters.records, 16) if parameters.parallelism <= 3 else parameters.records,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def with_rows_to_barrier(parameters: Parameters, beside_asking: bool, beside_ticks: bool) -> Parameters:
    """A job that holds rows back until a barrier is sent, if it can: barriers do not overtake, and it has no loops.
    Such a job that runs at most once recovers by rollback. ``beside_asking``, ``beside_ticks``: also one with such
    steps."""
    if parameters.loops or parameters.aligned_timeout_ms is not None or parameters.guarantee == "at-most-once":
        return parameters
    if (parameters.asking and not beside_asking) or (parameters.ticks_ms is not None and not beside_ticks):
        return parameters
    return replace(parameters, to_barrier=True, watermarks=False, idle_ms=None)


def with_live_sources(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job whose records arrive while it runs, a ``share`` of all that can have such sources; with more faults."""
    if rng.random() >= share or parameters.guarantee == "at-most-once" or not parameters.records:
        return parameters
    faults, at_ms = list(parameters.faults), 0
    for _ in range(rng.choice((0, 1, 2, 3))):
        at_ms += rng.choice((5, 15, 30, 60, 120))
        faults.append(Fault(at_ms, rng.choice(FAULTS_LIVE), rng.randrange(64), rng.choice(DURATIONS_MS)))
    return replace(
        parameters,
        live=rng.choice((1, 2, 2, 3)),
        idle_ms=rng.choice((None, 3, 15, 60)) if parameters.watermarks else None,
        records=max(parameters.records, 16) if parameters.parallelism <= 3 else parameters.records,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def with_rows_at_once(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job whose rows are visible at once, a ``share`` of all that may be so; with more faults, long enough for
    them."""
    if rng.random() >= share or parameters.loops or not parameters.records or parameters.stages < 2:
        return parameters
    faults, at_ms = list(parameters.faults), 0
    for _ in range(rng.choice((1, 2, 3, 5))):
        at_ms += rng.choice((2, 10, 25, 40, 60))
        kind = rng.choice(FAULTS_AT_ONCE)
        faults.append(Fault(at_ms, kind, rng.randrange(6 * 64), rng.choice(DURATIONS_MS)))
    parameters = replace(
        parameters,
        at_once=True,
        guarantee="exactly-once",
        aligned_timeout_ms=None,
        in_flight_bytes=None,
        quick_barriers=False,
        whims=False,
        records=max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records,
        rows=min(parameters.rows, 2),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )
    depth = parameters.sharing_depth
    edges = [(f"v{start}", f"v{end}") for start, end in parameters.edges]
    lineage = Lineage([f"v{at}" for at in range(parameters.stages)], edges, depth)
    reached = all(lineage.has_all_of(f"v{at}") for at in range(parameters.stages))
    return parameters if reached else replace(parameters, sharing_depth=None)


def with_changes_at_once(parameters: Parameters, rng: random.Random) -> Parameters:
    """Some of the jobs whose rows are visible at once are rescaled, or stopped with savepoints; their driver may die
    when they have a checkpoint."""
    if not parameters.at_once or rng.random() >= CHANGED_AT_ONCE:
        return parameters
    kinds = rng.choice((with_rescales, with_rescales, with_savepoints))
    parameters = kinds(parameters, rng, 1)
    deaths = [Fault(rng.randrange(50, 250), "crash_driver", 0, 0) for _ in range(rng.choice((0, 0, 1, 2)))]
    return replace(parameters, faults=tuple(sorted((*parameters.faults, *deaths), key=lambda fault: fault.at_ms)))


def with_rescales(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job whose parallelism changes, a ``share`` of all; long enough for it."""
    if rng.random() >= share or parameters.whims or not parameters.records:
        return parameters
    at_ms = rng.randrange(15, 60)
    happens = [Fault(at_ms, "rescale", rng.randrange(64), 0)]
    for _ in range(rng.choice((0, 1, 2, 3, 5))):
        at_ms += rng.choice((-3, 0, 1, 5, 20, 50, 100, 200))
        kind = rng.choice(RESCALINGS)
        happens.append(Fault(max(1, at_ms), kind, rng.randrange(6 * 64), rng.choice(DURATIONS_MS)))
    if rng.random() < 0.1:
        happens.append(Fault(happens[0].at_ms - 1, "crowd", 0, rng.choice((300, 700, 2_500))))
    records = max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records
    faults = sorted((*parameters.faults, *happens), key=lambda fault: fault.at_ms)
    parallelism = min(parameters.parallelism, MOST_SUBTASKS)
    return replace(
        parameters,
        records=records,
        faults=tuple(faults),
        groups=KEY_GROUPS,
        parallelism=parallelism,
        little_bytes=rng.choice((None, LITTLE_BYTES)),
    )


def with_savepoints(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job of which savepoints are taken, a ``share`` of all; long enough for it. Most can go on at another
    parallelism."""
    if rng.random() >= share or parameters.whims or not parameters.records:
        return parameters
    at_ms = rng.randrange(10, 80)
    happens = [Fault(at_ms, "savepoint", rng.randrange(64), 0)]
    for _ in range(rng.choice((0, 1, 2, 4))):
        at_ms += rng.choice((-3, 0, 1, 5, 20, 50, 100, 200))
        kind = rng.choice(SAVINGS if not parameters.groups else (*SAVINGS, "rescale", "rescale"))
        duration_ms = rng.choice(HANGS_MS if kind == "hang_storage" else DURATIONS_MS)
        happens.append(Fault(max(1, at_ms), kind, rng.randrange(6 * 64), duration_ms))
    records = max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records
    if rng.random() < 0.7:
        parallelism = min(parameters.parallelism, MOST_SUBTASKS)
        parameters = replace(parameters, groups=KEY_GROUPS, parallelism=parallelism)
    faults = sorted((*parameters.faults, *happens), key=lambda fault: fault.at_ms)
    return replace(parameters, records=records, faults=tuple(faults))


def with_joins(parameters: Parameters, rng: random.Random) -> Parameters:
    """A job in which several steps may be repeated together."""
    records = max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records
    if not parameters.loops:
        parameters = replace(parameters, stages=3, edges=((0, 1), (1, 2)), parallelism=min(parameters.parallelism, 3))
    return replace(
        parameters,
        joins=True,
        recovery="rollback" if parameters.recovery == "rollback" else "standby",
        records=records,
        rows=1,
        clock_keys=0,
        window=16,
        patience_ms=0,
        bundle_rows=1000,
        interval_ms=max(parameters.interval_ms, 100),
        work_ms=1,
        read_ms=rng.choice((3, 6)),
    )


def lacking(parameters: Parameters, parts: tuple[str, ...]) -> Parameters:
    """The same job without ``parts`` of the protocol; it promises exactly-once, since weaker guarantees lack some."""
    return replace(parameters, guarantee="exactly-once", without=parts)


def with_scaling(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job whose spare slots come and go, a ``share`` of those that can have some; long enough for it."""
    if parameters.recovery == "rollback" or rng.random() >= share:
        return parameters
    at_ms = rng.randrange(5, 60)
    happens = [Fault(at_ms, "scale", rng.choice((1, 2, 3)), 0)]
    if rng.random() < 0.1:
        happens.append(Fault(at_ms - 1, "crowd", 0, rng.choice((700, 2_500, 90_000))))
    for _ in range(rng.choice((1, 2, 3, 5))):
        at_ms += rng.choice((1, 5, 20, 50, 100, 200))
        happens.append(Fault(at_ms, rng.choice(SCALINGS), rng.randrange(64), rng.choice(DURATIONS_MS)))
    records = max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records
    faults = sorted((*parameters.faults, *happens), key=lambda fault: fault.at_ms)
    return replace(parameters, records=records, faults=tuple(faults))


def with_moves(parameters: Parameters, rng: random.Random) -> Parameters:
    """A job that is given commands while it runs, long enough for some of them to be carried out."""
    local = parameters.recovery != "rollback" and parameters.parallelism > 1
    if not local or rng.random() >= MOVES:
        return parameters
    at_ms, commands = rng.randrange(10, 120), []
    for _ in range(rng.choice((1, 1, 2, 3))):
        commands.append(Fault(at_ms, rng.choice(COMMANDS), rng.randrange(64), rng.choice((*DURATIONS_MS, 0))))
        at_ms += rng.choice((1, 5, 20, 100))
    records = max(parameters.records, 24) if parameters.parallelism <= 3 else parameters.records
    faults = sorted((*parameters.faults, *commands), key=lambda fault: fault.at_ms)
    return replace(parameters, records=records, faults=tuple(faults))


def draw_edges(rng: random.Random, stages: int) -> tuple[tuple[int, int], ...]:
    """Each vertex but the first has an input from an earlier one; some have two, and some are further sources."""
    edges: list[tuple[int, int]] = []
    for end in range(1, stages):
        if end < stages - 1 and rng.random() < 0.1:
            continue
        start = end - 1 if rng.random() < 0.75 else rng.randrange(end)
        edges.append((start, end))
        if end > 1 and rng.random() < 0.25:
            other = rng.randrange(end)
            if other != start:
                edges.append((other, end))
    return tuple(edges)


def with_loops(parameters: Parameters, rng: random.Random) -> Parameters:
    """A job of at least three stages with an edge that leads back, or two, if there is a place for one."""
    stages = max(3, parameters.stages)
    edges = parameters.edges if stages == parameters.stages else draw_edges(rng, stages)
    parallelism = min(parameters.parallelism, rng.choice((2, 3)))
    reached = {at: {at} for at in range(stages)}
    for start, end in sorted(edges, reverse=True):
        reached[start] |= reached[end]
    inner = [at for at in range(stages) if at in {end for _, end in edges} and at in {start for start, _ in edges}]
    places = [(tail, head) for head in inner for tail in inner if tail in reached[head]]
    loops: tuple[tuple[int, int], ...] = ()
    for _ in range(1 if rng.random() < 0.7 else 2):
        free = [place for place in places if _fits((*edges, *loops, place), (*loops, place), stages)]
        if free:
            loops = (*loops, rng.choice(free))
    if not loops:
        return parameters
    depth = None if rng.random() < 0.8 else parameters.sharing_depth  # with any other, all failures end in a rollback
    return replace(
        parameters,
        stages=stages,
        edges=edges,
        parallelism=parallelism,
        loops=loops,
        watermarks=False,
        sharing_depth=depth,
        recovery="rollback" if parameters.recovery == "partial" else parameters.recovery,
        records=max(8, min(parameters.records, 16)),
        work_ms=rng.choice((2, 8, 8)),  # who is slow has rows waiting when the barrier comes
        interval_ms=rng.choice((15, 40)),
        latency_ms=rng.choice((2, 6)),
        keys=rng.choice((3, 8)),
    )


def _fits(edges: tuple[tuple[int, int], ...], loops: tuple[tuple[int, int], ...], stages: int) -> bool:
    """Whether these edges, ``loops`` among them, make a graph that can be run."""
    if len(set(edges)) < len(edges):
        return False
    named = [(number, str(start), str(end)) for number, (start, end) in enumerate(edges)]
    try:
        Cycles(named, [*(str(head) for _, head in reversed(loops)), *map(str, range(stages))])
    except InvariantViolation:
        return False
    return True


def with_overtaking(parameters: Parameters, rng: random.Random, share: float) -> Parameters:
    """A job whose checkpoints are unaligned, a ``share`` of those that can have them; often of slow consumers."""
    if rng.random() >= share or parameters.guarantee != "exactly-once" or parameters.synchronous or parameters.loops:
        return parameters
    work_ms = rng.choice((1, 2, 8, 20))
    parameters = replace(
        parameters,
        aligned_timeout_ms=rng.choice((0, 0, 10, 30)),
        max_concurrent=rng.choice((1, 1, 2, 3)),
        read_ms=rng.choice((0, 2, parameters.read_ms)),
        work_ms=work_ms,
    )
    if rng.random() < 0.5:
        return replace(parameters, quick_barriers=True)
    return replace(parameters, interval_ms=max(parameters.interval_ms, 8 * work_ms))  # checkpoints go first


def with_deaths_in_flight(parameters: Parameters, rng: random.Random) -> Parameters:
    """A job with unaligned checkpoints, in most cases with one process more that dies while messages in flight are
    recorded; or that dies somewhat later, and then another one with those that are put back, of which there are many.
    """
    if rng.random() >= IN_FLIGHT_DEATHS:
        return parameters
    at_ms, slot, slots = rng.randrange(5, 60), rng.randrange(4), min(4, parameters.parallelism)
    if rng.random() < 0.5:
        point = rng.choice((RECORDING, RECORDING, RECORDED)) + NEXT_TIME * rng.choice((0, 0, 1, 2, 4))
        found = [Fault(at_ms, "crash_at_point", point + slot, 0)]
    else:
        if parameters.parallelism <= 3:
            parameters = replace(parameters, records=max(parameters.records, 24))
        parameters = replace(parameters, in_flight_bytes=None, aligned_timeout_ms=0, quick_barriers=True)
        other = next(at for at in range(4) if (at - slot) % slots == 1 % slots)
        later = Fault(at_ms + rng.choice((40, 80, 120, 200)), "crash", slot, 0)
        found = [Fault(at_ms, "crash_at_point", TAKEN_UP + other, 0), later]
    faults = sorted((*parameters.faults, *found), key=lambda fault: fault.at_ms)
    return replace(parameters, faults=tuple(faults))


def pair(target: int, parallelism: int) -> tuple[int, int]:
    """The two slots whose stream a fault with that target strikes."""
    start = target % parallelism
    return start, (start + 1 + target // parallelism % max(1, parallelism - 1)) % parallelism


def draw_faults(seed: int, parameters: Parameters) -> tuple[Fault, ...]:
    """A few; a fault likes to come while another one is being dealt with."""
    rng = child(seed, "faults")
    horizon_ms = 20 + parameters.records * parameters.read_ms // (parameters.rows + 1) * 2
    count = rng.choices((0, 1, 2, 3, 6), (2, 7, 7, 4, 1))[0]
    needless = {"standby": (), "partial": STANDBY_FAULTS}.get(parameters.recovery, (*LOCAL_FAULTS, *STANDBY_FAULTS))
    kinds = [kind for kind in DRAWN_FAULTS if kind not in needless]
    weights = [WEIGHTS.get(kind, 1) for kind in kinds]
    faults = []
    at_ms = 0
    for number in range(count):
        if number and rng.random() < 0.4:
            at_ms += rng.choice((0, 1, 2, 3, 5, 8, 20))
        else:
            at_ms = rng.randrange(10, 10 + horizon_ms)
        kind = rng.choices(kinds, weights)[0]
        target, duration_ms = rng.randrange(64), rng.choice(DURATIONS_MS)
        faults += _company(rng, parameters, Fault(at_ms, kind, target, duration_ms))
    faults += _silences(child(seed, "silence"), parameters, horizon_ms)
    faults += _refusals(child(seed, "refusal"), parameters, horizon_ms)
    if parameters.frame_bytes is not None:
        faults += _garbles(child(seed, "garble"), parameters, horizon_ms)
    faults += _forgeries(child(seed, "forge"), parameters, horizon_ms)
    hangs = child(seed, "hangs")
    if hangs.random() < HANGS:
        faults.append(Fault(hangs.randrange(10, 10 + horizon_ms), "hang_storage", 0, hangs.choice(HANGS_MS)))
    faults += _outages(child(seed, "outage"), horizon_ms)
    deadly = child(seed, "deadly")
    if deadly.random() < DEADLY:
        faults.append(Fault(deadly.randrange(5, 10 + horizon_ms), "deadly", deadly.randrange(64), 0))
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def _silences(rng: random.Random, parameters: Parameters, horizon_ms: int) -> list[Fault]:
    """None as a rule; sometimes one, rarely another one while the first is being dealt with."""
    if rng.random() >= SILENT or parameters.parallelism < 2:
        return []
    at_ms = rng.randrange(10, 10 + horizon_ms)
    faults = []
    for _ in range(rng.choice((1, 1, 2))):
        faults.append(Fault(at_ms, rng.choice(SILENCES), rng.randrange(64), rng.choice(SILENCES_MS)))
        at_ms += rng.choice((0, 20, 100, 300))
    return faults


def draw_frame_bytes(rng: random.Random) -> int | None:
    """Up to what size messages are joined into frames, if they travel in frames."""
    return rng.choice(FRAME_BYTES) if rng.random() < FRAMED else None


def _refusals(rng: random.Random, parameters: Parameters, horizon_ms: int) -> list[Fault]:
    """None as a rule; sometimes a slot refuses connections, and then again and again."""
    if rng.random() >= REFUSED or parameters.parallelism < 2:
        return []
    at_ms, target = rng.randrange(10, 10 + horizon_ms), rng.randrange(64)
    faults = []
    for _ in range(rng.choice((1, 2, 3, 6))):
        faults.append(Fault(at_ms, rng.choice(REFUSALS), target, rng.choice(SILENCES_MS)))
        at_ms += rng.choice((20, 100, 300, 900))
        target = rng.randrange(64) if rng.random() < 0.3 else target
    return faults


def _garbles(rng: random.Random, parameters: Parameters, horizon_ms: int) -> list[Fault]:
    """None as a rule; sometimes what one slot sends to another cannot be read for a while."""
    if rng.random() >= GARBLED or parameters.parallelism < 2:
        return []
    return [Fault(rng.randrange(10, 10 + horizon_ms), "garble", rng.randrange(64), rng.choice(SILENCES_MS))]


def _forgeries(rng: random.Random, parameters: Parameters, horizon_ms: int) -> list[Fault]:
    """None as a rule; sometimes one or two slots lie, once or for a while."""
    if rng.random() >= FORGED or parameters.parallelism < 2:
        return []
    ats_ms = [rng.randrange(10, 10 + horizon_ms) for _ in range(rng.choice((1, 2, 3)))]
    return [Fault(at_ms, "forge", rng.randrange(64), rng.choice(FORGED_MS)) for at_ms in ats_ms]


def _outages(rng: random.Random, horizon_ms: int) -> list[Fault]:
    """None as a rule; sometimes one, or two close together."""
    if rng.random() >= OUTAGE:
        return []
    at_ms = rng.randrange(10, 10 + horizon_ms)
    faults = []
    for _ in range(rng.choice((1, 1, 2))):
        faults.append(Fault(at_ms, rng.choice(OUTAGES), rng.randrange(64), rng.choice(DURATIONS_MS)))
        at_ms += rng.choice((0, 3, 10, 40, 150))
    return faults


def _company(rng: random.Random, parameters: Parameters, fault: Fault) -> list[Fault]:
    """A fault, and perhaps another one in whose company it does most harm."""
    slots, at_ms = parameters.parallelism, fault.at_ms
    start, end = pair(fault.target, slots)
    how = rng.random()
    if fault.kind == "break_at_join":  # while a slot dies and joins again
        at_ms = rng.randrange(15, 40)  # early: there must be something to be sent when the newcomer is there
        return [Fault(at_ms, "crash", end, 0), replace(fault, at_ms=at_ms, duration_ms=SLOW_MS)]
    if fault.kind == "crash" and slots > 1 and how < 0.15:  # it is back, and has no work yet
        others = [target for target in range(64) if pair(target, slots)[1] == fault.target % slots]
        cut = Fault(at_ms + rng.randrange(50, 130), "cut", rng.choice(others), DURATIONS_MS[0])
        return [fault, cut]
    if fault.kind == "no_upload":  # checkpoints are given up, and somebody dies who knew of one
        fault = replace(fault, at_ms=rng.randrange(90, 120), duration_ms=SLOW_MS)
        return [fault, Fault(fault.at_ms + rng.randrange(80, 200), "crash", rng.randrange(slots), 0)]
    if fault.kind == "cut" and how < 0.4:  # a short one, and a third slot dies and joins again
        fault = replace(fault, duration_ms=DURATIONS_MS[0])
        others = [slot for slot in range(slots) if slot not in (start, end)]
        return [Fault(max(10, at_ms + rng.choice((-25, 0, 3, 10))), "crash", rng.choice(others or [end]), 0), fault]
    if fault.kind == "slow" and how < 0.6:  # whoever is not heard of in time dies when its standby has all
        target = slots + fault.target % slots  # not the stream to the slot that comes next, which has the standby
        first = 64 + 72 * rng.randrange(3)  # the point, and how often it is to be reached; see ``faults.POINTS``
        replicated = next(at for at in range(first, first + 8) if (at - target) % slots == 0)
        fault = replace(fault, target=target, duration_ms=max(fault.duration_ms, SLOW_MS))
        return [Fault(at_ms, "crash_at_point", replicated, 0), fault]
    if fault.kind == "slow" and how < 0.8:  # or at once, and what it said is on its way
        return [fault, Fault(at_ms + rng.choice((2, 5, 10, 20)), "crash", rng.choice((start, end)), 0)]
    return [fault]
