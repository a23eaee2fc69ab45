"""Jobs of two subtasks that write to a table of PostgreSQL, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flinkplus.sinks.postgres.sink import postgres_sink
from tests.postgres_server import PostgresServer
from tests.unit.sinks.harness import Job


def job(postgres: PostgresServer, home: Path, resume: bool = False, **options: Any) -> Job:
    """Two subtasks that write ``(r<checkpoint>, subtask)``. ``job_id``, ``table``, ``mode``, ``key``, ``name``."""
    job_id = options.pop("job_id", "job-1")
    given = {"table": "counts", "mode": "append", "key": (), "visibility": "checkpoint", "dsn": postgres.dsn, **options}
    return Job(postgres_sink(given.pop("name", "out"), **given).staged_in(str(home)), job_id, resume)


def taken_over(postgres: PostgresServer, home: Path, **options: Any) -> Job:
    """The same job by a driver that knows nothing of the one before."""
    found = job(postgres, home, resume=True, **options)
    found.committer.prepare(resume=True)
    found.generation = 100
    found.deploy()
    return found


def content(postgres: PostgresServer, table: str = "counts") -> list[tuple[Any, ...]]:
    return postgres.execute(f"SELECT * FROM {table} ORDER BY 1, 2")


def expected(*checkpoints: int) -> list[tuple[str, int]]:
    return [(f"r{checkpoint:04d}", index) for checkpoint in checkpoints for index in range(2)]


def staged_files(home: Path) -> list[str]:
    return sorted(path.name for path in home.rglob("*") if path.is_file())


def committed_through(postgres: PostgresServer) -> int:
    ((found,),) = postgres.execute("SELECT checkpoint FROM flinkplus_progress")
    return int(found)
