"""One long job under faults: ``flinkplus experiment soak``.

WordCount at a steady rate over one text that is read again and again, so that state stops growing early. After each
fault the run waits until the job runs with every chain full. The end of the input ends it; the output is compared with
a Spark SQL batch count.

The document has the faults as ``runs``, ``output`` and ``usage`` over time, ``final``, ``flat`` (first against last
quarter, with limits) and ``problems``: what failed the soak, empty when nothing did.

Rules: faults and their targets come from the seed; how long each holds, too. The next fault waits until redundancy is
back, so the number of faults depends on the machine, their order does not. A problem ends the run and is reported; what
was found until then is kept. The exit code is 0 when there is no problem.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cluster.usage import KINDS
from experiments.harness.arguments import choices, option
from experiments.harness.console import number, plain_table
from experiments.harness.experiment import HERE, LOCAL, NAMESPACES, Experiment
from experiments.harness.pictures import picture
from experiments.harness.running import Context, RunError, TextSettings, run_until
from experiments.harness.statistics import grouped, median
from experiments.harness.workload import PROBE, Probe, Trigger, draw
from experiments.soak.faults import CLUSTER_FAULTS, LOCAL_FAULTS, RESCALE, Striker, drawn
from experiments.soak.usage import Sampler, cluster_usage, flatness, local_usage
from flinkplus.api.environment import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.wordcount import TOKENIZE
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError, FlinkPlusError, InsufficientSlots
from flinkplus.runtime.job.launcher import room_of
from flinkplus.state.durable.storage import CheckpointStorage

TEXT_WORDS, VOCABULARY = 50_000, 20_000
SETTLE_S = 5.0
POLL_S = 0.05
LAST_FAULT_S = 20.0
"""Before the end of the input: the job recovers from the last fault while it still has input."""
RESTORE_LIMIT_S = 90.0
"""From the end of a fault until every chain is full again."""
FAULTS = tuple(dict.fromkeys((*LOCAL_FAULTS, *CLUSTER_FAULTS)))
NOTED = ("running_s", "checkpoints_completed", "failovers", "handovers", "fallbacks", "fallback_reasons")
COLOURS = {
    "sigkill": "#c0504d",
    "exception": "#f0ad4e",
    "pause": "#8064a2",
    "host": "#7f0000",
    "hang": "#8064a2",
    "cut": "#1f77b4",
    "zookeeper": "#5cb85c",
    "rescale": "#2f4f4f",
}


@dataclass(frozen=True)
class Settings(TextSettings):
    """``hosts``: workers of the cluster, ``None`` without one. ``every``: least seconds from one fault to the next."""

    minutes: float = option(30.0, positive_number, metavar="M", help="of input (default: 30)")
    every: float = option(10.0, positive_number, metavar="S", help="between faults (default: 10)")
    seed: int = option(1, int, metavar="S")
    rate: float = option(5_000.0, positive_number, metavar="WORDS_PER_S", help="default: 5000")
    parallelism: int = option(4, positive, metavar="N", help="slots (default: 4)")
    replicas: int = option(3, positive, metavar="N", help="of each subtask (default: 3)")
    interval: float = option(1.0, positive_number, metavar="S", help="between checkpoints")
    hosts: int | None = None
    faults: tuple[str, ...] = option(
        (), choices(FAULTS), flag="--fault", metavar=",".join(FAULTS), help="default: all that can be"
    )

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what could not be run."""
        known = LOCAL_FAULTS if self.hosts is None else CLUSTER_FAULTS
        strange = sorted(set(self.faults) - set(known))
        if strange:
            where = "one machine" if self.hosts is None else "a cluster"
            raise ConfigurationError(f"on {where} the faults are {', '.join(known)}, not {strange[0]}")
        options = options_from({}, self.options())
        if not options.standbys or options.parallelism < 2:
            raise ConfigurationError("a soak waits for standbys after each fault: take 2 slots and replicas at least")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of the faults that come."""
        return self.faults or (LOCAL_FAULTS if self.hosts is None else CLUSTER_FAULTS)

    def kinds_on(self, master: str, cores: int | None = None) -> tuple[str, ...]:
        """As ``kinds``; without rescales where ``master`` has no room for one slot more, unless they are asked for.
        ``cores``: of a cluster.

        Raises ``InsufficientSlots`` where they are.
        """
        room, slots = cores or room_of(master, 1), self.parallelism + 1
        if RESCALE not in self.kinds or room is None or room >= slots:
            return self.kinds
        if self.faults:
            raise InsufficientSlots(f"rescales need room for {slots} slots, and {master} runs {room} tasks at once")
        return tuple(kind for kind in self.kinds if kind != RESCALE)

    @property
    def parallelisms(self) -> tuple[int, ...]:
        """Those that a rescale draws from. On a cluster every chain keeps its length, so that no host has all of it."""
        least = 2 if self.hosts is None else min(self.replicas, self.parallelism)
        return tuple(range(least, self.parallelism + 2))

    def options(self) -> dict[str, Any]:
        """The options of the job."""
        return {
            "parallelism": self.parallelism,
            "replicas": self.replicas,
            "checkpoint_interval": self.interval,
            "recovery": "standby",
            **self.job_options(),
            "max_restarts": 1_000_000,  # a soak throws more exceptions than a job should
        }

    @property
    def words(self) -> int:
        """How many must be read until the time is over."""
        return round(self.rate * self.minutes * 60)


class _Soak:
    """One run."""

    def __init__(self, context: Context[Settings]) -> None:
        self._context = context
        self._problems: list[str] = context.content["problems"]

    def faults(self) -> Generator[dict[str, Any], None, None]:
        """Run it; the figures of each fault when it is over. The rest is in the document."""
        try:
            yield from self._run()
        except (RunError, FlinkPlusError, OSError) as error:
            self._problems.append(f"{type(error).__name__}: {error}")

    def _run(self) -> Generator[dict[str, Any], None, None]:
        context, settings, place = self._context, self._context.settings, self._context.place
        cores = None if place is None else place.cores(settings.hosts or 0)
        kinds = settings.kinds_on(str(context.spark.sparkContext.master), cores)
        directory = context.directory
        output, checkpoints, work = directory / "out", directory / "checkpoints", directory / "work"
        text = context.text(TEXT_WORDS, VOCABULARY)
        repeat = max(1, round(settings.words / TEXT_WORDS))
        if place is None:
            work.mkdir()
            where: dict[str, Any] = {"checkpoint_dir": str(checkpoints), "work_dir": str(work)}
            usage, control, ensemble = local_usage(checkpoints, work), None, ""
        else:
            where, control, ensemble = place.options(directory), place.control, place.zookeeper
            assert control is not None
            hosts = [f"worker-{number + 1}" for number in range(settings.hosts or 0)]
            usage = cluster_usage(control, [*hosts, "job"], checkpoints)
        env = StreamEnvironment(context.spark, **settings.options(), **where)
        trigger = Trigger(directory)
        draw(env, str(text), str(output), settings.rate, Probe(PROBE, trigger), repeat)
        context.begin("running")
        with env.execute("soak") as job:
            run_until(job, SETTLE_S, context.stop)
            striker = Striker(job, settings.parallelisms, trigger, context.stop, control, ensemble)
            with Sampler(job, usage) as sampler:
                try:
                    yield from self._strike(job, striker, kinds, sampler)
                    self._finish(job)
                finally:
                    context.content |= {"output": sampler.output, "usage": sampler.usage}
                    if sampler.failed is not None:
                        self._problems.append(f"a sample of memory and disk failed: {sampler.failed}")
            final = context.content["final"] = self._final(job)
            job.await_finish()
        check = context.batch_check(output, text, repeat)
        final |= {"exact": check.matches and check.words == final["words"], "batch_words": check.words}
        if not final["exact"]:
            example = f", such as {check.example!r}" if check.example is not None else ""
            self._problems.append(f"{check.wrong} words differ from the batch count{example}")

    def _strike(
        self, job: JobHandle, striker: Striker, kinds: Sequence[str], sampler: Sampler
    ) -> Generator[dict[str, Any], None, None]:
        context, settings = self._context, self._context.settings
        end_s = time.monotonic() + settings.minutes * 60 - LAST_FAULT_S
        self._restored(job)
        for one in drawn(kinds, settings.seed):
            next_s = time.monotonic() + settings.every
            if next_s > end_s:
                return
            while time.monotonic() < next_s and not job.done:
                if context.stop.wait(POLL_S):
                    raise RunError("interrupted")
            context.begin(one.kind)
            before, at_s, chains = job.metrics(), sampler.since_begin_s(), job.chain_hosts()
            rescaled = len(job.rescales())
            struck = striker.strike(one)
            taken_back_s = time.monotonic()
            restored_s = self._restored(job)
            metrics = job.metrics()
            recoveries = job.recoveries()[before["recoveries"] :]
            changes = job.rescales()[rescaled:]
            yield {
                "at_s": at_s,
                "kind": one.kind,
                "struck": struck,
                "hold_s": one.hold_s,
                "failovers": metrics["failovers"] - before["failovers"],
                "fallbacks": metrics["fallbacks"] - before["fallbacks"],
                "together": sum(len(set(hosts)) == 1 for hosts in chains.values()),
                "doomed": sum(set(hosts) == {struck} for hosts in chains.values()),
                "recovery_ms": max((r["recovery_ms"] or 0.0 for r in (*recoveries, *changes)), default=0.0) or None,
                "rescales": len(changes),
                "restored_s": round(restored_s - taken_back_s, 3),
                "reasons": [r["reason"] for r in recoveries],
            }
            context.begin("running")

    def _restored(self, job: JobHandle) -> float:
        """When the job ran with all standbys in step; waits for that, and for a complete checkpoint since.

        Raises ``RunError`` when it takes too long.
        """
        deadline = time.monotonic() + RESTORE_LIMIT_S
        complete = job.metrics()["checkpoints_completed"]
        since: float | None = None
        while True:
            if job.done:
                job.await_finish()
                raise RunError("the job was over before redundancy was back")
            if self._context.stop.wait(POLL_S):
                raise RunError("interrupted")
            full = job.state == "running" and job.missing_standbys() == 0
            since = (since or time.monotonic()) if full else None
            if since is not None and job.metrics()["checkpoints_completed"] > complete:
                return since
            if time.monotonic() > deadline:
                missing = f"{job.missing_standbys()} standbys missing, the job is {job.state}"
                raise RunError(f"redundancy was not back within {RESTORE_LIMIT_S:.0f} s: {missing}")

    def _finish(self, job: JobHandle) -> None:
        deadline = time.monotonic() + 60 + self._context.settings.minutes * 60
        while not job.wait(POLL_S):
            if self._context.stop.is_set():
                raise RunError("interrupted")
            if time.monotonic() > deadline:
                raise RunError(f"the job did not end in time; it is {job.state}")

    def _final(self, job: JobHandle) -> dict[str, Any]:
        metrics = job.metrics()
        return {
            "words": metrics["operators"][TOKENIZE]["rows_out"],
            **{name: metrics[name] for name in (*NOTED, "slot_restarts", "state_bytes")},
            "unnamed_state_files": len(CheckpointStorage(job.checkpoint_dir).retention.unnamed()),
            "exact": False,
        }


def summarize(faults: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each kind of fault, and one for all."""
    groups = [(kind, group) for (kind,), group in sorted(grouped(faults, "kind").items())]
    return [
        {
            "kind": kind,
            "faults": len(group),
            "failovers": sum(fault["failovers"] for fault in group),
            "fallbacks": sum(fault["fallbacks"] for fault in group),
            "rescales": sum(fault["rescales"] for fault in group),
            "recovery_median_ms": median(fault["recovery_ms"] for fault in group),
            "restored_median_s": median(fault["restored_s"] for fault in group),
            "restored_longest_s": max(fault["restored_s"] for fault in group),
        }
        for kind, group in [*groups, ("all", list(faults))]
        if group
    ]


def conclude(content: dict[str, Any]) -> None:
    """What is flat, and what fails the soak beside the problems of the run itself."""
    content["flat"] = flatness(content["usage"])
    content["problems"] += verdict(content)


def verdict(content: dict[str, Any]) -> list[str]:
    problems = [
        f"{row['of']} grew from {row['first_mb']} to {row['last_mb']} MB, more than to {row['limit_mb']}"
        for row in content["flat"]
        if not row["flat"]
    ]
    uncalled = [fault for fault in content["runs"] if fault["fallbacks"] and not fault["doomed"]]
    final = content["final"]
    if uncalled:
        reasons = [] if final is None else final["fallback_reasons"]
        problems.append(f"{len(uncalled)} rollbacks that the fault did not call for: {reasons}")
    if final is not None and final["unnamed_state_files"]:
        problems.append(f"{final['unnamed_state_files']} state files were left that no checkpoint names")
    doomed = [fault for fault in content["runs"] if fault["doomed"]]
    if doomed:
        problems.append(f"{len(doomed)} times a host was struck that had all members of a chain")
    return problems


def tables(content: dict[str, Any]) -> list[object]:
    """Faults by kind; memory and disk; the output; the problems."""
    counts, times = ("faults", "failovers", "fallbacks", "rescales"), ("recovery_median_ms", "restored_median_s")
    faults = (
        (
            row["kind"],
            *(str(row[name]) for name in counts),
            *(number(row[name]) for name in (*times, "restored_longest_s")),
        )
        for row in content["summary"]
    )
    flat = (
        (
            row["of"],
            *(number(row[name]) for name in ("first_mb", "last_mb", "limit_mb")),
            "-" if row["limit_mb"] is None else "yes" if row["flat"] else "NO",
        )
        for row in content["flat"]
    )
    headings = ("faults", "failovers", "rollbacks", "rescales", "recovery ms", "full again s", "longest s")
    lines = []
    final = content["final"]
    if final is not None:
        exact = "equal to the batch count" if final["exact"] else "NOT equal to the batch count, or not compared"
        lines.append(f"{final['words']:,} words in {final['running_s']:,.0f} s, output {exact}")
    return [
        plain_table("Faults: medians", ("fault",), headings, faults),
        plain_table("Medians of the first and the last quarter, MB", ("",), ("first", "last", "limit", "flat"), flat),
        *lines,
        *(f"failed: {problem}" for problem in content["problems"]),
    ]


def output_and_usage(content: dict[str, Any], target: Path) -> bool:
    """Output per second with the faults; memory; disk. ``False``: nothing to draw."""
    output, usage = content["output"], content["usage"]
    if len(output) < 2 or not usage:
        return False
    with picture(target, (11, 8), nrows=3, sharex=True, height_ratios=(2, 1.2, 0.8)) as (_, (rows, memory, disk)):
        pairs = list(itertools.pairwise(output))
        times = [after["at_s"] / 60 for _, after in pairs]
        rates = [max(0.0, (b["rows"] - a["rows"]) / max(1e-3, b["at_s"] - a["at_s"])) for a, b in pairs]
        rows.plot(times, rates, color="#7f7f7f", linewidth=0.8)
        kinds = grouped(content["runs"], "kind")
        for (kind,), faults in kinds.items():
            for at, fault in enumerate(faults):
                label = None if at else kind
                rows.axvline(
                    fault["at_s"] / 60, color=COLOURS.get(kind, "black"), linewidth=0.8, alpha=0.8, label=label
                )
        rows.set_ylim(0, max(1.0, 3 * statistics.median(rates)))
        rows.set_ylabel("words counted per second")
        exact = content["final"] is not None and content["final"]["exact"]
        rows.set_title(
            f"{len(content['runs'])} faults, {'output exact' if exact else 'output not checked or not exact'}; "
            f"every {content['parameters']['every']:g} s, parallelism {content['parameters']['parallelism']}",
            fontsize=10,
        )
        if kinds:
            rows.legend(fontsize=7, loc="upper right", ncols=len(kinds))
        minutes = [sample["at_s"] / 60 for sample in usage]
        for kind in KINDS:
            sizes = [sample.get(kind, 0.0) for sample in usage]
            if max(sizes) > 0:
                memory.plot(minutes, sizes, linewidth=1.0, label=kind)
        memory.set_ylabel("memory (PSS), MB")
        memory.set_ylim(bottom=0)
        memory.legend(fontsize=7, loc="upper right", ncols=len(KINDS))
        disk.plot(minutes, [sample["disk"] for sample in usage], color="#8c564b", linewidth=1.0)
        disk.set_ylabel("disk, MB")
        disk.set_ylim(bottom=0)
        disk.set_xlabel("minutes")
    return True


EXPERIMENT = Experiment(
    "soak",
    Settings,
    slots=lambda settings: settings.parallelism,
    total=lambda settings: max(1, round(settings.minutes * 60 / settings.every)),
    runs=lambda context: _Soak(context).faults(),
    derive=lambda runs, settings: {"summary": summarize(runs)},
    tables=tables,
    pictures=(("soak.png", output_and_usage),),
    more=lambda settings: {"output": [], "usage": [], "final": None, "flat": [], "problems": []},
    conclude=conclude,
    found_any=lambda content: any(content[name] for name in ("runs", "output", "problems")),
    passed=lambda settings, content: not content["problems"],
    clusters=(LOCAL, NAMESPACES, HERE),
    ordered=lambda settings: "a fault of a cluster",
)
