"""``flinkplus status``: how a running job is, as tables or JSON, once or again and again."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.live import Live

from flinkplus.cli.arguments import add_job_arguments, job_of
from flinkplus.cli.tables import Table, console, text
from flinkplus.errors import ConfigurationError, NoRunningJob
from flinkplus.printable import escaped
from flinkplus.protocol.vocabulary.phases import DURATIONS
from flinkplus.runtime.coordinator.commands.operations import StatusCommand
from flinkplus.runtime.coordinator.record.status import ChainStatus, MemberStatus, SlotStatus, Status, SubtaskStatus
from flinkplus.runtime.operations.access_file import Access, call

RECOVERY_PHASES = (*DURATIONS, "recovery")
CHECKPOINT_PHASES = ("trigger_ms", "alignment_ms", "sync_ms", "async_ms", "durable_ms", "chain_ms", "duration_ms")
SHOWN = 10
"""Failovers and checkpoints in the tables; JSON has more."""


def add_status(commands: Any) -> None:
    command = commands.add_parser("status", help="slots, subtasks, chains, checkpoints and failovers of a running job")
    add_job_arguments(command)
    command.add_argument("--json", action="store_true", help="one JSON document on stdout (with --watch: one a line)")
    command.add_argument(
        "--watch", type=float, metavar="SECONDS", help="repeat every SECONDS seconds, until the job has ended"
    )
    command.set_defaults(run=run_status)


def run_status(arguments: argparse.Namespace) -> int:
    """The exit code. Raises as ``job_of`` and ``call``."""
    watch: float | None = arguments.watch
    if watch is not None and not 0.1 <= watch <= 3600:
        raise ConfigurationError(f"--watch must be from 0.1 to 3600 seconds, not {watch:g}")
    access = job_of(arguments)
    first = call(access, StatusCommand())
    if watch is None:
        _print(first, arguments.json)
        return 0
    with contextlib.suppress(KeyboardInterrupt):  # it ends watching, not the job
        _watch(access, first, watch, arguments.json)
    return 0


def _print(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(escaped(json.dumps(status, ensure_ascii=False)), flush=True)
    else:
        console().print(tables(Status.from_json(status)))


def _watch(access: Access, first: dict[str, Any], every_s: float, as_json: bool) -> None:
    try:
        if as_json:
            _print(first, True)
            while True:
                _print(_again(access, every_s), True)
        shown = console()
        with Live(tables(Status.from_json(first)), console=shown, screen=shown.is_terminal, auto_refresh=False) as live:
            while True:
                live.update(tables(Status.from_json(_again(access, every_s))), refresh=True)
    except NoRunningJob as error:  # which is how it ends
        print(error, file=sys.stderr)


def _again(access: Access, every_s: float) -> dict[str, Any]:
    time.sleep(every_s)
    return call(access, StatusCommand())


def tables(status: Status) -> Group:
    job, metrics = status.job, status.metrics
    heading = (
        f"{job.name} ({job.job_id}): {metrics['state']}, for {metrics['running_s']:,.1f} s; driver: process "
        f"{job.pid} on {job.host}; parallelism {job.parallelism}, {job.recovery}, {job.guarantee}, {job.replicas} "
        "copies"
    )
    parts: list[Any] = [text(heading)]
    if job.ui is not None:
        parts.append(text(f"page: {job.ui}"))
    if status.rescaling is not None:
        after, phase, left = status.rescaling.parallelism, status.rescaling.phase, ", ".join(status.rescaling.left)
        parts.append(text(f"on the way to parallelism {after}: {phase}; left: {left or 'nothing'}"))
    parts += [slot_table(status.slots), subtask_table(status.subtasks)]
    if status.chains:
        parts.append(chain_table(status.chains))
    parts.append(checkpoint_table(status.checkpoints, metrics))
    if status.savepoints:
        parts.append(savepoint_table(status.savepoints))
    moves = [*status.recoveries, *status.handovers, *status.rescales]
    if moves:
        parts.append(failover_table(sorted(moves, key=lambda move: move["begin_s"] or 0.0)[-SHOWN:]))
    counts = ("failovers", "handovers", "fallbacks", "slot_restarts", "refused_connections", "malformed_frames")
    parts.append(text(", ".join(f"{metrics[name]} {name.replace('_', ' ')}" for name in counts)))
    if metrics["zookeeper"] not in (None, "connected"):
        parts.append(text(f"ZooKeeper: {metrics['zookeeper']}"))
    if metrics["zookeeper_restarts"]:
        parts.append(text(f"the job's own ZooKeeper server was started again {metrics['zookeeper_restarts']} times"))
    return Group(*parts)


def slot_table(slots: Sequence[SlotStatus]) -> Table:
    numbers = ("restarts", "subtasks", "standbys", "heard ms ago")
    table = Table("Slots", ("slot",), ("state", "host"), ("pid", *numbers))
    for slot in slots:
        cells = (slot.restarts, slot.subtasks, slot.standbys, slot.heard_ms)
        pid = "-" if slot.pid is None else str(slot.pid)
        table.add_row(slot.slot, slot.state, _cell(slot.host), pid, *map(_cell, cells))
    return table


def subtask_table(subtasks: Sequence[SubtaskStatus]) -> Table:
    headings = ("generation", "rows in", "rows out", "rows behind", "messages waiting", "keys")
    blocked = any(one.blocked for one in subtasks)
    table = Table("Subtasks", ("subtask",), ("slot", "state"), headings, "blocked" if blocked else None)
    for one in subtasks:
        cells = (one.generation, one.rows_in, one.rows_out, one.behind_rows, one.waiting_messages, one.keys)
        table.add_row(one.subtask, one.slot, one.state, *map(_cell, cells), *[one.blocked] * blocked)
    return table


def chain_table(chains: Sequence[ChainStatus]) -> Table:
    """The version of each member, head first."""
    table = Table("Chains (version held, checkpoints behind)", ("subtask",), (), ("generation", "newest"), "members")
    for chain in chains:
        members = ", ".join(_member(member) for member in chain.members)
        table.add_row(chain.subtask, _cell(chain.generation), _cell(chain.newest), members)
    return table


def _member(member: MemberStatus) -> str:
    behind = f" -{member.lag}" if member.lag else ""
    joining = " catching up" if member.catching_up else ""
    return f"{member.slot}: {_cell(member.version)}{behind}{joining}"


def checkpoint_table(checkpoints: list[dict[str, Any]], metrics: dict[str, Any]) -> Table:
    """What is in flight, and the last ones, in milliseconds."""
    title = f"Checkpoints: {metrics['checkpoints_completed']} complete, the last is {_cell(metrics['last_checkpoint'])}"
    phases = [phase.removesuffix("_ms") for phase in CHECKPOINT_PHASES]
    last = checkpoints[-SHOWN:]
    reasons = any(checkpoint["reason"] for checkpoint in last)
    table = Table(f"{title} (ms)", ("id",), ("status", "mode"), phases, "reason" if reasons else None)
    for checkpoint in last:
        status = "in flight" if checkpoint["status"] == "pending" else checkpoint["status"]
        times = [_cell(checkpoint[phase]) for phase in CHECKPOINT_PHASES]
        table.add_row(
            str(checkpoint["id"]), status, checkpoint["mode"], *times, *[checkpoint["reason"] or ""] * reasons
        )
    return table


def savepoint_table(savepoints: list[dict[str, Any]]) -> Table:
    """The one under way, and the last ones."""
    last = savepoints[-SHOWN:]
    reasons = any(one["reason"] for one in last)
    headings = ("checkpoint", "files", "of files", "bytes", "of bytes")
    table = Table("Savepoints", ("target",), ("status",), headings, "reason" if reasons else None)
    for one in last:
        cells = [_cell(one[name]) for name in ("checkpoint", "files", "files_in_all", "bytes", "bytes_in_all")]
        status = f"{one['status']}, then stop" if one["stop"] else one["status"]
        table.add_row(one["target"], status, *cells, *[one["reason"]] * reasons)
    return table


def failover_table(moves: list[dict[str, Any]]) -> Table:
    """Failovers, rollbacks, handovers and rescales, in milliseconds, and why."""
    table = Table("Failovers (ms)", ("at", "mode"), ("failure",), RECOVERY_PHASES, "subtasks, reason")
    for move in moves:
        begun_s = move["begin_s"]
        at = "-" if begun_s is None else time.strftime("%H:%M:%S", time.localtime(begun_s))
        why = f"{', '.join(move['subtasks'])}: {move['reason']}"
        if move["fallback"]:
            why += f"; fell back: {move['fallback']}"
        table.add_row(
            at, move["mode"], move["failure"], *(_cell(move[f"{phase}_ms"]) for phase in RECOVERY_PHASES), why
        )
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
