"""Jobs under drawn faults, watched by a checker that knows the input alone: ``flinkplus experiment black-box``.

A round is one job. Its faults follow each other until all have come, or its input is nearly read; then come the rest of
the input and the last look of the checker. The next round has another pipeline.

Rules: a round that fails is a round with an ``error``, and the next one follows. What a round leaves that is not exact
is kept, and a line says how to repeat it. The exit code is 0 when every round was exact; with ``--break``, when the
checker found the fault of the sink in some round.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from experiments.blackbox.broken import FAULTS as BROKEN
from experiments.blackbox.broken import LATE
from experiments.blackbox.faults import KINDS, OF_SERVERS, Round, drawn
from experiments.blackbox.pipelines import AT_ONCE, PIPELINES, TABLE_COLUMNS, Job, Place
from experiments.blackbox.processes import TEMPORARY, Checker, Driver
from experiments.blackbox.striking import Striking
from experiments.blackbox.tables import summarize, tables
from experiments.harness.arguments import choices, option
from experiments.harness.experiment import Experiment
from experiments.harness.postgres_server import PostgresServer, check_postgres
from experiments.harness.running import Context, JobSettings
from experiments.harness.tcp_proxy import Proxy
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.session import default_master
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

SECONDS_A_FAULT = 4.0
"""Of input."""
LEFT_S = 4.0
"""Of input that is left when the last fault comes, at least."""
SERVER_SETTINGS = {"fsync": "off", "max_connections": "60"}
"""What a process has written outlives SIGKILL; no host dies here."""
ENDLESS = 1_000_000
FUTILE = 3
"""After so many rounds in a row without a fault no other one begins."""
LOCAL_TABLES = ("flinkplus_steps", "flinkplus_progress")


@dataclass(frozen=True)
class BlackBoxSettings(JobSettings):
    """What to run."""

    faults: int = option(1_000, positive, metavar="N", help="in all (default: 1,000)")
    seed: int = option(1, int, metavar="S")
    pipeline: tuple[str, ...] = option(tuple(PIPELINES), choices(tuple(PIPELINES)), metavar=",".join(PIPELINES))
    kind: tuple[str, ...] = option(KINDS, choices(KINDS), metavar="KIND,...", help="faults that may come")
    per_round: int = option(25, positive, metavar="N", help="faults of one job at most (default: 25)")
    first: int = option(0, int, metavar="N", help="number of the first round (default: 0)")
    rounds: int | None = option(None, positive, metavar="N", help="at most (default: as many as the faults take)")
    parallelism: int = option(3, positive, metavar="N", help="slots (default: 3)")
    rate: float = option(500.0, positive_number, metavar="ROWS_PER_S", help="(default: 500)")
    interval: float = option(0.5, positive_number, metavar="S", help="between checkpoints (default: 0.5)")
    broken: str | None = option(
        None,
        flag="--break",
        choices=(*BROKEN, LATE),
        help=f"a deliberate fault in the sink of {AT_ONCE}, which must be found",
    )

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        options_from({}, self.options("standby"))
        if self.broken is not None and self.pipeline != (AT_ONCE,):
            raise ConfigurationError(f"--break is for --pipeline {AT_ONCE}")
        for name in self.pipeline:
            if not self.kinds(name):
                raise ConfigurationError(f"{name} meets none of the faults {', '.join(self.kind)}")
        if any(set(PIPELINES[name].kinds) & set(OF_SERVERS) for name in self.pipeline):
            check_postgres()

    def kinds(self, pipeline: str) -> tuple[str, ...]:
        return tuple(kind for kind in PIPELINES[pipeline].kinds if kind in self.kind)

    def options(self, recovery: str) -> dict[str, Any]:
        """The options of a job."""
        return {
            "parallelism": self.parallelism,
            "checkpoint_interval": self.interval,
            "recovery": recovery,
            "max_restarts": ENDLESS,
            "max_slot_losses": ENDLESS,
            **self.job_options(),
        }

    def round(self, number: int) -> Round:
        """One round, which depends on its number, the seed, and what may come."""
        name = self.pipeline[number % len(self.pipeline)]
        return drawn(number, self.seed, name, self.kinds(name), self.per_round)

    def repeated(self, one: Round) -> str:
        """The command that has this round again."""
        given = f"--seed {self.seed} --first {one.number} --rounds 1 --pipeline {','.join(self.pipeline)}"
        given += f" --parallelism {self.parallelism} --rate {self.rate:g} --interval {self.interval:g}"
        given += f" --per-round {self.per_round} --kind {','.join(self.kind)}"
        return f"flinkplus experiment black-box {given}{f' --break {self.broken}' if self.broken else ''}"


def runs(context: Context[BlackBoxSettings]) -> Generator[dict[str, Any], None, None]:
    """The figures of one round after the other."""
    settings = context.settings
    struck, number, futile = 0, settings.first, 0
    with _server(settings) as server:
        while struck < settings.faults and futile < FUTILE and number != settings.first + (settings.rounds or -1):
            one = settings.round(number)
            left = settings.faults - struck
            context.begin(f"round {number}: {one.pipeline}, {one.recovery}; {struck} faults so far")
            with context.run_directory(f"round-{number}") as directory:
                figures = _Round(context, one, directory, server, left).figures()
                if not figures["exact"] and not context.stop.is_set():
                    _keep(context, one, directory, figures)
            struck += len(figures["struck"])
            futile = 0 if figures["struck"] else futile + 1
            number += 1
            yield figures
            if context.stop.is_set():
                return


@contextlib.contextmanager
def _server(settings: BlackBoxSettings) -> Iterator[PostgresServer | None]:
    """A server for all rounds, if any of them needs one."""
    if not any(set(PIPELINES[name].kinds) & set(OF_SERVERS) for name in settings.pipeline):
        yield None
        return
    server = PostgresServer(None, SERVER_SETTINGS, sync_files=False)
    try:
        yield server
    finally:
        server.close()


def _keep(context: Context[BlackBoxSettings], one: Round, directory: Path, figures: dict[str, Any]) -> None:
    again = context.settings.repeated(one)
    found = figures["error"] or figures["found"]
    where = ""
    if context.out is not None:
        target = context.out / f"round-{one.number}"
        shutil.copytree(directory, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(TEMPORARY))
        where = f"; kept: {target}"
    context.say(f"round {one.number} is not exact: {found}{where}; again: {again}")


class _Round:
    """One round. ``left``: how many faults there are to be, of all rounds."""

    def __init__(
        self,
        context: Context[BlackBoxSettings],
        one: Round,
        directory: Path,
        server: PostgresServer | None,
        left: int,
    ) -> None:
        settings = context.settings
        self._context, self._one, self._directory = context, one, directory
        self._pipeline = PIPELINES[one.pipeline]
        self._draws = one.draws[:left]
        self._server = server if set(self._pipeline.kinds) & set(OF_SERVERS) else None
        self._table = f"black_box_{one.number}"
        each = round(settings.rate * (len(self._draws) * SECONDS_A_FAULT + LEFT_S) / settings.parallelism)
        self._rows = each * settings.parallelism

    def figures(self) -> dict[str, Any]:
        """Carry it out; what became of it, also when it failed."""
        begun_s = time.monotonic()
        known: dict[str, Any] = {
            "round": self._one.number,
            "pipeline": self._one.pipeline,
            "recovery": self._one.recovery,
            "input_seed": self._one.seed,
            "struck": [],
            "found": {},
            "examples": {},
            "error": None,
        }
        try:
            self._run(known)
        except Exception as problem:  # any error ends this round alone, and is in its figures
            known["error"] = f"{type(problem).__name__}: {problem}"
        known["exact"] = known["error"] is None and not any(known["found"].values())
        return {**known, "took_s": round(time.monotonic() - begun_s, 2)}

    def _run(self, known: dict[str, Any]) -> None:
        settings, server = self._context.settings, self._server
        with contextlib.ExitStack() as stack:
            proxy = None
            if server is not None:
                proxy = Proxy(f"127.0.0.1:{server.port}")
                stack.callback(proxy.close)
                self._make_table(server)
                stack.callback(server.execute, f"DROP TABLE {self._table}")
            job = self._job(proxy)
            self._pipeline.prepare(job)
            far_end = self._pipeline.far_end(job, "" if server is None else server.dsn)
            checker = Checker({"input": self._pipeline.input(job), **far_end}, self._directory)
            stack.callback(checker.close)
            driver = Driver({"job": job.to_json(), "master": default_master(settings.parallelism + 1)}, self._directory)
            stack.callback(driver.close)
            driver.start()
            striking = Striking(driver, checker, server, proxy, settings.parallelism, self._context.stop)
            self._strike(striking, checker, known)
            last = driver.status()
            known |= {"drivers": driver.started, **{name: last.get(name) for name in ("fallback_reasons", "rescales")}}
            if server is not None and any(known["found"].values()):
                self._dump(server)

    def _strike(self, striking: Striking, checker: Checker, known: dict[str, Any]) -> None:
        last = self._rows - self._context.settings.rate * LEFT_S
        known["struck"] = striking.struck
        finished = False
        try:
            for draw in self._draws:
                if checker.rows >= last:
                    break
                striking.strike(draw)
            striking.finish()
            finished = True
        finally:
            found = checker.end(finished)
            known |= {name: found[name] for name in ("rows", "looks", "examples")}
            known["found"] = {kind: times for kind, times in found["found"].items() if times}
            striking.note(known["found"])

    def _make_table(self, server: PostgresServer) -> None:
        server.execute(
            f"CREATE TABLE {self._table} ({TABLE_COLUMNS}, written_by xid8 NOT NULL DEFAULT pg_current_xact_id())"
        )
        server.execute(f"CREATE INDEX ON {self._table} (written_by)")

    def _job(self, proxy: Proxy | None) -> Job:
        settings, one = self._context.settings, self._one
        dsn = ""
        if proxy is not None and self._server is not None:
            host, _, port = proxy.hosts.rpartition(":")
            dsn = self._server.dsn_at(host, int(port))
        options = {**settings.options(one.recovery), "checkpoint_dir": str(self._directory / "checkpoints")}
        place = Place(str(self._directory), dsn, self._table)
        return Job(one.pipeline, self._rows, settings.rate, one.seed, place, options, settings.broken, one.rescales)

    def _dump(self, server: PostgresServer) -> None:
        """What the tables hold, for a person who looks for the cause."""
        with psycopg.connect(server.dsn) as connection:
            for table in (self._table, *LOCAL_TABLES):
                with (
                    contextlib.suppress(psycopg.Error),
                    (self._directory / f"{table}.csv").open("wb") as file,
                    connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT csv, HEADER)".encode()) as copy,
                ):
                    for piece in copy:
                        file.write(piece)
                connection.rollback()


def passed(settings: BlackBoxSettings, content: dict[str, Any]) -> bool:
    rounds: Sequence[dict[str, Any]] = content["runs"]
    if settings.broken in BROKEN:
        return any(any(one["found"].values()) for one in rounds)
    return all(one["exact"] for one in rounds)


EXPERIMENT = Experiment(
    "black-box",
    BlackBoxSettings,
    slots=lambda settings: settings.parallelism + 1,
    total=lambda settings: settings.rounds or -(-settings.faults // settings.per_round),
    runs=runs,
    derive=lambda runs, settings: summarize(runs),
    tables=tables,
    passed=passed,
    in_session=False,
    files="for files, and what is left of rounds that are not exact",
)
