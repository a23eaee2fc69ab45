"""The tables of figures in the documents, from the summaries of the files in docs/results.

Each maker takes the documents of one or more experiments and returns rows of cells, the first row being the headings.
Numbers are medians, with the 95 % interval in brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from experiments.harness.console import number

Content: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Sequence[str]]
PHASES = ("detect", "fence", "registry", "promote", "restore", "replay")
USAGE = ("before", "during", "after")


def _median(row: Content, middle: str, low: str, high: str, digits: int = 0) -> str:
    """``low`` and ``high``: names of the ends of the interval."""
    if row.get(low) is None:
        return number(row[middle], digits)
    return f"{number(row[middle], digits)} ({number(row[low], digits)} to {number(row[high], digits)})"


def _with_interval(row: Content, name: str, unit: str, digits: int = 0) -> str:
    return _median(row, f"{name}_{unit}", f"{name}_low_{unit}", f"{name}_high_{unit}", digits)


def _recovery_of(row: Content | None) -> str:
    """Of the comparison of both modes: without what a rollback waits for a host."""
    names = ("without_pause_median_ms", "without_pause_low_ms", "without_pause_high_ms")
    return "-" if row is None else _median(row, *names)


def _summaries(contents: Iterable[Content]) -> list[Content]:
    """The rows of all documents, each with the experiment's parameters."""
    return [{**row, "of": content["parameters"]} for content in contents for row in content["summary"]]


def _beside(given: Content) -> str:
    return f"{given['beside']} busy processes" if given["beside"] else "nothing"


def recovery(content: Content) -> Rows:
    """Both modes by failure and parallelism."""
    rows = {(row["failure"], row["parallelism"], row["recovery"]): row for row in content["summary"]}
    found: Rows = [("failure", "parallelism", "rollback, ms", "standby, ms", "p95", "reduction", "kills", "exact")]
    for case in sorted(content["comparison"], key=lambda case: (case["failure"], case["parallelism"])):
        key, less = (case["failure"], case["parallelism"]), case["reduction_percent"]
        rollback, standby = (rows.get((*key, mode)) for mode in ("rollback", "standby"))
        both = [row for row in (rollback, standby) if row is not None]
        found.append(
            (
                case["failure"],
                str(case["parallelism"]),
                _recovery_of(rollback),
                _recovery_of(standby),
                "-" if standby is None else number(standby["p95_ms"], 0),
                "-" if less is None else f"{less:.1f} %",
                " and ".join(str(row["runs"]) for row in both),
                f"{sum(row['exact_runs'] for row in both)} of {sum(row['runs'] for row in both)}",
            )
        )
    return found


def kills(*contents: Content) -> Rows:
    """One row for each kind of kill: the recovery, and the gaps in the output."""
    head = ("job", "parallelism", "rows/s", "beside", "kills", "recovery, ms", "p95", "gap of others, ms", "before it")
    found: Rows = [(*head, "gap of the hand-back, ms", "p95")]
    for row in _summaries(contents):
        given = row["of"]
        found.append(
            (
                given["job"],
                str(row["parallelism"]),
                number(given["rate"], 0),
                _beside(given),
                str(row["runs"]) + (f", {row['unmeasured']} not measured" if row["unmeasured"] else ""),
                _median(row, "median_ms", "median_low_ms", "median_high_ms"),
                number(row["p95_ms"], 0),
                number(row["output_gap_others_median_ms"], 0),
                number(row["output_gap_before_median_ms"], 0),
                number(row["output_gap_handback_median_ms"], 0),
                number(row["output_gap_handback_p95_ms"], 0),
            )
        )
    return found


def phases(*contents: Content) -> Rows:
    """Where the time goes: medians of the phases."""
    found: Rows = [("job", "failure, recovery, parallelism", *PHASES[:2], "of fence: ZooKeeper", *PHASES[3:], "all")]
    for row in _summaries(contents):
        what = f"{row['failure']}, {row['recovery']}, {row['parallelism']}"
        times = [number(row[f"{phase}_median_ms"], 1) for phase in PHASES]
        found.append((row["of"]["job"], what, *times, number(row["median_ms"], 0)))
    return found


def moments(*contents: Content) -> Rows:
    """Recovery by the moment of the kill."""
    rows = _summaries(contents)
    names = list(dict.fromkeys(part["moment"] for row in rows for part in row["by_moment"]))
    found: Rows = [("job", "parallelism", "beside", *(f"{name}, ms" for name in names))]
    for row in rows:
        parts = {part["moment"]: part for part in row["by_moment"]}
        cells = [
            f"{number(parts[n]['median_ms'], 0)}, p95 {number(parts[n]['p95_ms'], 0)} ({parts[n]['runs']})"
            for n in names
        ]
        found.append((row["of"]["job"], str(row["parallelism"]), _beside(row["of"]), *cells))
    return found


def cost(content: Content) -> Rows:
    """What standbys cost, unlimited and at a steady rate."""
    head = (
        "variant",
        "words/s, unlimited",
        "throughput lost",
        "cores at the steady rate",
        "more processor time",
        "pairs",
    )
    found: Rows = [head]
    for row in content["summary"]:
        unlimited, steady = row["unlimited"], row["steady"]
        compared = row["variant"] != row["base"]
        found.append(
            (
                row["variant"],
                number(unlimited["words_per_s"], 0),
                _share(unlimited, "throughput_loss_percent") if compared else "-",
                number(steady["cores"], 2),
                _share(steady, "more_cpu_percent") if compared else "-",
                str(unlimited["n"]),
            )
        )
    return found


def _share(row: Content, name: str) -> str:
    low, high = row["intervals"][name]
    return f"{row[name]:.1f} % ({low:.1f} to {high:.1f})"


def throughput(content: Content) -> Rows:
    """Engines side by side, at unlimited rate."""
    found: Rows = [("job", "parallelism", "engine", "state in", "rows/s", "processor s per million", "memory, MB", "n")]
    for row in _of_measure(content, "throughput"):
        cells = (_interval(row, "rows_per_s"), _interval(row, "cpu_s_per_million", 2), number(row["rss_mb"], 0))
        found.append((row["job"], str(row["parallelism"]), row["engine"], row["state_in"], *cells, str(row["n"])))
    return found


def steady(content: Content) -> Rows:
    """Engines side by side, at a steady rate."""
    found: Rows = [("job", "parallelism", "engine", "latency, median, ms", "99th percentile", "cores", "n")]
    for row in _of_measure(content, "steady"):
        cells = (_interval(row, "latency_p50_ms"), _interval(row, "latency_p99_ms"), _interval(row, "cores", 2))
        found.append((row["job"], str(row["parallelism"]), row["engine"], *cells, str(row["n"])))
    return found


def recovery_of_engines(content: Content) -> Rows:
    """Engines side by side, after failures."""
    head = ("failure", "parallelism", "engine", "first output, ms", "recovery, ms", "p95", "caught up, ms", "n")
    found: Rows = [head]
    for row in _of_measure(content, "recovery"):
        cells = [_interval(row, f"{name}_median_ms") for name in ("first_output", "recovery", "caught_up")]
        cells.insert(2, number(row["recovery_p95_ms"], 0))
        found.append((row["failure"], str(row["parallelism"]), row["engine"], *cells, str(row["n"])))
    return found


def _of_measure(content: Content, measure: str) -> list[Content]:
    return [row for row in content["summary"] if row["measure"] == measure]


def _interval(row: Content, name: str, digits: int = 0) -> str:
    low, high = row["intervals"].get(name) or (None, None)
    return _median({**row, "low": low, "high": high}, name, "low", "high", digits)


def overhead(content: Content) -> Rows:
    """Running time by interval and mode of checkpoints."""
    found: Rows = [("checkpoints", "running time, s", "more than without", "checkpoints in a run", "n")]
    for row in content["summary"]:
        loss = "-" if row["mode"] is None else f"{_with_interval(row, 'loss', 'percent', 1)} %"
        found.append(
            (row["variant"], _with_interval(row, "running", "s", 2), loss, number(row["checkpoints"], 0), str(row["n"]))
        )
    return found


def scaling(content: Content) -> Rows:
    """Running time by parallelism."""
    variants = list(dict.fromkeys(row["variant"] for row in content["summary"]))
    rows = {(row["parallelism"], row["variant"]): row for row in content["summary"]}
    found: Rows = [
        ("parallelism", *(f"measured, s: {name}" for name in variants), *(f"simulated: {v}" for v in variants), "n")
    ]
    for parallelism in sorted({key[0] for key in rows}):
        mine = [rows[parallelism, variant] for variant in variants]
        measured = [_with_interval(row, "measured", "s", 2) for row in mine]
        simulated = [number(row["simulated_s"], 2) for row in mine]
        found.append((str(parallelism), *measured, *simulated, str(mine[0]["n"])))
    return found


def usage(content: Content) -> Rows:
    """Processors and memory before, during and after a failure."""
    head = [f"{name} {phase}" for phase in USAGE for name in ("cores", "MB")]
    found: Rows = [("recovery", *head, "during: s", "kills")]
    for row in content["summary"]:
        cells = []
        for phase in USAGE:
            cells += [_with_interval(row, phase, "cores", 2), _with_interval(row, phase, "rss_mb")]
        found.append((row["recovery"], *cells, number(row["during_seconds"], 2), str(row["n"])))
    return found


def snapshots(content: Content) -> Rows:
    """Incremental and full snapshots."""
    rows = {(row["state_mb"], row["changed"], row["kind"]): row for row in content["summary"]}
    found: Rows = [("state, MB", "changed", "written, MB: incremental", "full", "time, ms: incremental", "full", "n")]
    for state_mb, changed in dict.fromkeys(key[:2] for key in rows):
        both = [rows[state_mb, changed, kind] for kind in ("incremental", "full")]
        written = [number(row["new_mb"], 2) for row in both]
        times = [_with_interval(row, "async", "ms", 1) for row in both]
        found.append((f"{state_mb:,}", f"{100 * changed:g} %", *written, *times, str(both[0]["n"])))
    return found


def rescale(*contents: Content) -> Rows:
    """A resume at the same and at another parallelism, and the division alone."""
    found: Rows = [("state, MB", "keys", "parallelism", "division alone, ms", "running, s", "first output, s", "n")]
    for content in contents:
        alone = {row["after"]: row["median_ms"] for row in content["division"]}
        for run in content["runs"]:
            after = run["parallelism"]
            found.append(
                (
                    number(content["state"]["state_mb"], 0),
                    number(content["state"]["state_keys"], 0),
                    str(after) if after == content["before"] else f"{content['before']} to {after}",
                    "-" if after == content["before"] else number(alone[after], 0),
                    number(run["running_s"], 2),
                    number(run["first_output_s"], 2),
                    "1",
                )
            )
    return found


def restart(*contents: Content) -> Rows:
    """A driver that is killed: from the kill to new output, and the phases of that time."""
    names = tuple(contents[0]["summary"][0]["restart_phases"])
    head = ("ZooKeeper", "parallelism", "kills", "exact", "new output after, ms", "p95")
    found: Rows = [(*head, *(name.removesuffix("_ms") for name in names))]
    for one, row in [(content, row) for content in contents for row in content["summary"]]:
        zookeeper = one["parameters"].get("zookeeper", "own")
        whole = _median(row, "median_ms", "median_low_ms", "median_high_ms")
        exact = f"{row['exact_runs']} of {row['runs']}"
        kills = str(row["runs"] - row["unmeasured"])
        phases = [number(row["restart_phases"][name], 0) for name in names]
        found.append((zookeeper, str(row["parallelism"]), kills, exact, whole, number(row["p95_ms"], 0), *phases))
    return found


def _change(row: Content) -> str:
    before, after = row["before"], row["after"]
    return str(after) if before == after else f"{before} to {after}"


def rescale_live(*contents: Content) -> Rows:
    """Another parallelism of a running job."""
    found: Rows = [
        (
            "state, MB",
            "parallelism",
            "longest gap, ms",
            "p95",
            "gap without a change, ms",
            "moved after, s",
            "exact",
            "n",
        )
    ]
    for row in (row for content in contents for row in content["summary"]):
        moved = [row[f"moved_{part}ms"] for part in ("", "low_", "high_")]
        found.append(
            (
                number(row["state_mb"], 0),
                _change(row),
                _with_interval(row, "gap", "ms"),
                number(row["gap_p95_ms"], 0),
                _with_interval(row, "without_gap", "ms"),
                "{} ({} to {})".format(*(number(value / 1000, 1) for value in moved)),
                f"{row['exact_runs']} of {row['runs']}",
                str(row["runs"] - row["unmeasured"]),
            )
        )
    return found


def rescale_restored(*contents: Content) -> Rows:
    """A job that is resumed, at the same and at another parallelism."""
    found: Rows = [
        ("state, MB", "recovery", "parallelism", "running after, s", "p95", "of it: slots start, s", "restore, s", "n")
    ]
    for row in (row for content in contents for row in content["summary"]):
        running = [row[f"running_{part}ms"] for part in ("", "low_", "high_", "p95_")]
        median, low, high, p95 = (number(value / 1000, 2) for value in running)
        found.append(
            (
                number(row["state_mb"], 0),
                row["recovery"],
                _change(row),
                f"{median} ({low} to {high})",
                p95,
                number(row["slots_ms"] / 1000, 2),
                number(row["subtasks_ms"] / 1000, 2),
                str(row["runs"] - row["unmeasured"]),
            )
        )
    return found


def visibility(*contents: Content) -> Rows:
    """When rows can be read in PostgreSQL, from when they were due."""
    found: Rows = [
        (
            "visible",
            "median, ms",
            "99th percentile, ms",
            "longest around the kill, ms",
            "highest of all runs",
            "rows/s, unlimited",
            "`COPY`, rows/s",
            "exact",
            "n",
        )
    ]
    for row in (row for content in contents for row in content["summary"]):
        copied = [row["rows_per_s"], row["copy_rows_per_s"]]
        found.append(
            (
                row["visibility"].replace("_", " "),
                *(_with_interval(row, name, "ms") for name in ("p50", "p99", "around_kill")),
                number(row["around_kill_highest_ms"], 0),
                *("-" if value is None else number(value, 0) for value in copied),
                "all" if row["exact"] else "not all",
                str(row["n"]),
            )
        )
    return found


MAKERS: dict[str, Callable[..., Rows]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        recovery,
        kills,
        phases,
        moments,
        cost,
        throughput,
        steady,
        recovery_of_engines,
        overhead,
        scaling,
        usage,
        snapshots,
        rescale,
        restart,
        rescale_live,
        rescale_restored,
        visibility,
    )
}


def markdown(rows: Rows) -> str:
    """A table; numbers are on the right."""
    head, *body = rows
    right = [all(row[at][:1].isdigit() or row[at] in ("-", "") for row in body) for at in range(len(head))]
    marks = ["---:" if column else "---" for column in right]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, marks, *body))
