"""Metrics for Prometheus, from the status of a job.

Rules: names and units follow Prometheus's conventions: the prefix ``flinkplus_``, base units (seconds, bytes),
``_total`` for what only counts up. Counters of rows are part of the job's state: a rollback takes them back, which
Prometheus treats as a restart of the counter. docs/ui.md lists them; a test compares the list with the families here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from flinkplus.protocol.vocabulary.effects import JobState
from flinkplus.protocol.vocabulary.phases import DURATIONS

CONTENT_TYPE = CONTENT_TYPE_LATEST
SUBTASK = ("vertex", "subtask", "slot")
JOB_COUNTERS = {
    "failovers": "Failovers to standbys",
    "handovers": "Planned moves of subtasks",
    "fallbacks": "Failovers that ended in a rollback",
    "recoveries": "Failovers, partial recoveries and rollbacks",
    "slot_restarts": "Restarts of slot processes",
    "refused_connections": "Connections of peers that could not authenticate",
    "malformed_frames": "Frames that were dropped unread",
    "fenced_messages": "Ignored messages of replaced slots or subtasks",
    "savepoints_completed": "Complete savepoints",
    "payload_bytes": "Bytes of records between subtasks, since they last started",
    "determinant_bytes": "Bytes of determinants between subtasks, since they last started",
}
SUBTASK_GAUGES = {
    "state_keys": ("keys", "Keys of the state"),
    "state_bytes": ("state_bytes", "Size of the state"),
    "waiting_messages": ("waiting_messages", "Messages received and not processed yet"),
    "behind_rows": ("behind_rows", "Rows that a source could have read and has not"),
}
CHECKPOINT_PHASES = ("trigger", "alignment", "sync", "async", "durable", "chain", "duration")


def exposition(status: Mapping[str, Any]) -> bytes:
    """The metrics of one status, in Prometheus's text format (``CONTENT_TYPE``)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(families(status)))
    return generate_latest(registry)


class _Once(Collector):
    """Gives families that are there already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


def families(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The metric families of a status (``/api/status``)."""
    yield from _of_job(status["job"], status["metrics"])
    yield from _of_operators(status["metrics"])
    yield from _of_subtasks(status["subtasks"])
    yield from _of_slots(status["slots"])
    yield from _of_chains(status["chains"])
    yield from _of_checkpoints(status["checkpoints"], status["metrics"])
    yield from _of_recoveries(status["recoveries"])


def _gauge(name: str, text: str, labels: Iterable[str] = (), value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"flinkplus_{name}", text, value, labels=None if value is not None else list(labels))


def _counter(name: str, text: str, labels: Iterable[str] = (), value: float | None = None) -> CounterMetricFamily:
    return CounterMetricFamily(f"flinkplus_{name}", text, value, labels=None if value is not None else list(labels))


def _of_job(job: Mapping[str, Any], metrics: Mapping[str, Any]) -> Iterator[Metric]:
    named = {name: str(job[name]) for name in ("job_id", "name", "recovery", "guarantee")}
    yield InfoMetricFamily("flinkplus_job", "Which job it is", value=named)
    states = _gauge("job_state", "1 for the state of the job, 0 for all others", ["state"])
    for state in JobState:
        states.add_metric([state.value], float(metrics["state"] == state.value))
    yield states
    yield _gauge("running_seconds", "Time since the subtasks first started", value=metrics["running_s"])
    yield _gauge("parallelism", "Subtasks of each vertex", value=job["parallelism"])
    for name, text in JOB_COUNTERS.items():
        yield _counter(name, text, value=metrics[name])
    copied = _counter("copied_bytes", "Bytes of state files that standbys have taken in", ["origin"])
    for origin, count in metrics["copied_bytes"].items():
        copied.add_metric([origin], count)
    yield copied


def _of_operators(metrics: Mapping[str, Any]) -> Iterator[Metric]:
    rows = _counter("operator_rows", "Rows into and out of an operator", ["operator", "direction"])
    for name, counters in metrics["operators"].items():
        rows.add_metric([name, "in"], counters["rows_in"])
        rows.add_metric([name, "out"], counters["rows_out"])
    yield rows
    committed = _counter("committed_rows", "Rows of committed output", ["sink"])
    for name, count in metrics["committed_rows"].items():
        committed.add_metric([name], count)
    yield committed


def _of_subtasks(subtasks: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    rows = _counter("rows", "Rows into and out of a subtask", [*SUBTASK, "direction"])
    busy = _counter("busy_seconds", "Time that a subtask has processed, since it last started", SUBTASK)
    up = _gauge("subtask_running", "1 for a subtask that runs, 0 for one that moves or is away", SUBTASK)
    blocked = _gauge("source_blocked", "1 for a source that stands still", SUBTASK)
    watermark = _gauge("watermark_timestamp_seconds", "Lowest watermark of a subtask's operators", SUBTASK)
    gauges = {field: _gauge(name, text, SUBTASK) for name, (field, text) in SUBTASK_GAUGES.items()}
    for one in subtasks:
        labels = [one[name] for name in SUBTASK]
        for direction in ("in", "out"):
            _add(rows, [*labels, direction], one[f"rows_{direction}"])
        _add(busy, labels, one["busy_s"])
        _add(up, labels, one["state"] == "running")
        _add(blocked, labels, bool(one["blocked"]))
        _add(watermark, labels, one["watermark_ms"], 1e-3)
        for field, family in gauges.items():
            _add(family, labels, one[field])
    yield from (rows, busy, up, blocked, watermark, *gauges.values())


def _of_slots(slots: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    up = _gauge("slot_registered", "1 for a slot with a registered process", ["slot", "host"])
    silence = _gauge("slot_silence_seconds", "Time since the last message of a slot", ["slot", "host"])
    for one in slots:
        labels = [one["slot"], one["host"] or ""]
        _add(up, labels, one["pid"] is not None)
        _add(silence, labels, one["heard_ms"], 1e-3)
    yield from (up, silence)


def _of_chains(chains: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    members = _gauge("chain_members", "Members of a subtask's chain that are up to date", ["subtask"])
    lag = _gauge("chain_lag_checkpoints", "Checkpoints that a member is behind its head", ["subtask", "slot", "role"])
    for one in chains:
        _add(members, [one["subtask"]], sum(not member["catching_up"] for member in one["members"]))
        for member in one["members"]:
            _add(lag, [one["subtask"], member["slot"], member["role"]], member["lag"])
    yield from (members, lag)


def _of_checkpoints(checkpoints: Iterable[Mapping[str, Any]], metrics: Mapping[str, Any]) -> Iterator[Metric]:
    total = _counter("checkpoints", "Checkpoints that have ended", ["status"])
    total.add_metric(["complete"], metrics["checkpoints_completed"])
    total.add_metric(["aborted"], metrics["checkpoints_aborted"])
    yield total
    phases = _gauge("last_checkpoint_phase_seconds", "Phases of the last complete checkpoint", ["phase"])
    sizes = _gauge("last_checkpoint_bytes", "Size of the last complete checkpoint", ["part"])
    begun = _gauge("last_checkpoint_timestamp_seconds", "When the last complete checkpoint was triggered")
    last = next((one for one in reversed(list(checkpoints)) if one["status"] == "complete"), None)
    if last is not None:
        for phase in CHECKPOINT_PHASES:
            _add(phases, [phase], last[f"{phase}_ms"], 1e-3)
        sizes.add_metric(["new"], last["bytes_new"])
        sizes.add_metric(["total"], last["bytes_total"])
        begun.add_metric([], last["triggered_s"])
    yield from (phases, sizes, begun)


def _of_recoveries(recoveries: Iterable[Mapping[str, Any]]) -> Iterator[Metric]:
    phases = _gauge("last_recovery_phase_seconds", "Phases of the last recovery", ["mode", "phase"])
    begun = _gauge("last_recovery_timestamp_seconds", "When the last recovery began", ["mode"])
    last = next(reversed(list(recoveries)), None)
    if last is not None:
        for phase in (*DURATIONS, "recovery", "caught_up"):
            _add(phases, [last["mode"], phase], last[f"{phase}_ms"], 1e-3)
        _add(begun, [last["mode"]], last["begin_s"])
    yield from (phases, begun)


def _add(
    family: GaugeMetricFamily | CounterMetricFamily, labels: list[str], value: float | None, unit: float = 1.0
) -> None:
    """Add a sample, unless the value is unknown."""
    if value is not None:
        family.add_metric(labels, value * unit if unit != 1.0 else float(value))
