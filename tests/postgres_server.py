"""The PostgreSQL server of the tests: fast, since nothing here tests power failures."""

from __future__ import annotations

from pathlib import Path

from experiments.harness import postgres_server
from experiments.harness.postgres_server import binaries

__all__ = ["PASSWORD", "USER", "PostgresServer", "binaries"]

PASSWORD = "pass-word-of-the-tests"
USER = postgres_server.USER
SETTINGS = {
    "fsync": "off",  # what a process has written outlives SIGKILL
    "shared_buffers": "16MB",
    "max_connections": "30",
    "autovacuum": "off",
}


class PostgresServer(postgres_server.PostgresServer):
    """A server whose files need not survive the host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SETTINGS, PASSWORD, sync_files=False)
