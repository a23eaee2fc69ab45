"""A PostgreSQL server of one's own: on loopback, with a data directory that goes with it, and real signals."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from flinkplus.errors import ConfigurationError

USER = "tester"
START_S = 60.0
DEBIAN = Path("/usr/lib/postgresql")
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "''"}


def binaries() -> Path | None:
    """The folder with ``initdb`` and ``pg_ctl``; ``None``: PostgreSQL is not installed."""
    found = [Path(path).parent for path in [shutil.which("initdb")] if path]
    found += sorted(DEBIAN.glob("*/bin"), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "pg_ctl").exists()), None)


def check_postgres() -> None:
    """Raises ``ConfigurationError`` where no server can be started, or none be written to."""
    if binaries() is None:
        raise ConfigurationError(
            f"PostgreSQL is not installed: no initdb on PATH or in {DEBIAN}/*/bin (Debian: apt-get install postgresql)"
        )
    from flinkplus.sinks.postgres.connecting import psycopg_module

    psycopg_module()


def _user() -> dict[str, Any]:
    """Whom the server runs as: PostgreSQL refuses root. Raises ``ConfigurationError``."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise ConfigurationError("no user but root to run PostgreSQL as")


class PostgresServer:
    """Runs from the beginning until ``close``, except between ``kill`` and ``start``. Its processes are no children of
    this one.

    ``folder``: where its own folder is made; the server's user must be able to enter it. ``None``: the system's.
    ``settings``: of the server, beside those of ``SETTINGS``; all others are PostgreSQL's defaults.
    ``sync_files``: whether ``initdb`` waits until its files are on disk.
    """

    def __init__(
        self,
        folder: Path | None,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        sync_files: bool = True,
    ) -> None:
        bins = binaries()
        if bins is None:
            raise ConfigurationError("PostgreSQL is not installed")
        self._bins = bins
        self._as = _user()
        self._settings = {**SETTINGS, **(settings or {})}
        self._password = secrets.token_hex(16) if password is None else password
        self.home = Path(tempfile.mkdtemp(prefix="flinkplus-postgres-", dir=folder))
        if self._as:
            os.chown(self.home, self._as["user"], self._as["group"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._data = self.home / "data"
        given = self.place("password", self._password.encode())
        synced = [] if sync_files else ["--no-sync"]
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "scram-sha-256", "--pwfile", given, "-N", *synced)
        self.start()

    def _run(self, *command: Any) -> None:
        path = [str(self._bins / command[0]), *map(str, command[1:])]
        done = subprocess.run(
            path, **self._as, cwd=self.home, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            log = self.home / "log"
            raise RuntimeError(f"{path}: {done.stderr}{log.read_text()[-2000:] if log.exists() else ''}")

    @property
    def dsn(self) -> str:
        return self.dsn_at("127.0.0.1", self.port)

    def dsn_at(self, host: str, port: int) -> str:
        """For clients that reach it by way of another address."""
        return f"postgresql://{USER}:{self._password}@{host}:{port}/postgres"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [f"-c {name}={value}" for name, value in self._settings.items()]
        options = " ".join([f"-p {self.port}", *settings])
        log = self.home / "log"
        self._run("pg_ctl", "-D", self._data, "-l", log, "-o", options, "-w", "-t", int(START_S), "start")

    def set_system(self, name: str, value: str) -> None:
        """Change a setting while the server runs."""
        import psycopg

        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = {value}".encode())
            connection.execute("SELECT pg_reload_conf()")

    def place(self, name: str, content: bytes) -> Path:
        """A file of the server's user beside its data, which others may not read."""
        path = self.home / name
        path.write_bytes(content)
        path.chmod(0o600)
        if self._as:
            os.chown(path, self._as["user"], self._as["group"])
        return path

    def kill(self) -> None:
        """SIGKILL for all its processes at once. Raises ``TimeoutError`` if one of them lives on."""
        main = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        everyone = [main, *main.children(recursive=True)]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        deadline = time.monotonic() + START_S
        while any(_lives(process) for process in everyone):
            if time.monotonic() > deadline:
                raise TimeoutError("a process of the server outlives SIGKILL")
            time.sleep(0.005)
        (self._data / "postmaster.pid").unlink()  # where no parent reaps the dead process, its number is still in use

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement."""
        import psycopg

        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """End the server and remove its files."""
        with contextlib.suppress(RuntimeError):
            self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.home, ignore_errors=True)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
