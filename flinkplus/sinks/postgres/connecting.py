"""Connections to PostgreSQL: the address without its secrets, errors of our own, a limited time of attempts.

Rules: a password is in no pickle, ``repr``, log or error. Psycopg is imported only here, and only when it is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from flinkplus.errors import HIDDEN, ConfigurationError, OutputTableError, OutputUnavailable, without_secrets
from flinkplus.printable import printable

SCHEME = "postgresql://"
SECRET_WORDS = ("password", "secret", "scram_")
DEFAULTS = {
    "application_name": "flinkplus",
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""So that a server whose host has gone is noticed within half a minute. What the user gives counts."""
ENCODING = {"client_encoding": "utf8"}
"""Rows are sent as UTF-8, whatever the database has; neither the DSN nor ``PGCLIENTENCODING`` may say otherwise."""
SESSION = "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET idle_in_transaction_session_timeout = '60s'"
"""The last one: a driver that hangs in the middle of a commit must not keep the next driver waiting."""
CONFIRM = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
SYNCHRONOUS = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
"""As ``CONFIRM``, for all transactions of a connection."""
PATIENCE_S = 8.0
"""How long one call tries to reach a server; the coordinator repeats a failed commit several times."""
READ_ONLY = "25006"
"""The server is a standby, or has become one: another host may be the primary."""
FATAL = ("FATAL", "PANIC")
"""The server has ended the connection, for example because this process stood still in a transaction."""

log = logging.getLogger("flinkplus")


def psycopg_module() -> Any:
    """Psycopg. Raises ``ConfigurationError`` if it is not installed."""
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg.sql
    except ImportError as error:
        raise ConfigurationError(
            f"to_postgres needs psycopg ({printable(error)}): pip install 'flinkplus[postgres]'"
        ) from error
    return psycopg


@dataclass(frozen=True)
class Address:
    """Where a database is. ``parameters``: of libpq, without secrets. ``secrets``: only in the process that was given
    them; a pickle has none, and libpq then looks in ``PGPASSWORD`` and in the user's password file."""

    parameters: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"parameters": dict(self.parameters), "secrets": {}}

    @classmethod
    def parse(cls, dsn: str) -> Address:
        """From a URI (``postgresql://user@host/database``) or from ``host=... dbname=...``.

        Raises ``ConfigurationError``, which does not quote ``dsn``: it may hold a password.
        """
        psycopg = psycopg_module()
        try:
            found = psycopg.conninfo.conninfo_to_dict(dsn)
        except Exception:
            raise ConfigurationError(
                "the dsn of to_postgres cannot be read: give 'postgresql://user@host:port/database', with special "
                "characters percent-encoded, or 'host=... port=... dbname=... user=...'"
            ) from None
        texts = {name: str(value) for name, value in found.items() if value is not None}
        secret = {name for name in texts if any(word in name for word in SECRET_WORDS)}
        return cls(
            {name: text for name, text in texts.items() if name not in secret},
            {name: texts[name] for name in secret},
        )

    @property
    def database(self) -> str:
        """``host:port/database``, as far as they are given, for users and for descriptions of the program."""
        host = self.parameters.get("host") or self.parameters.get("hostaddr") or "localhost"
        port = self.parameters.get("port", "")
        name = self.parameters.get("dbname") or self.parameters.get("service") or self.parameters.get("user", "")
        return f"{host}{':' if port else ''}{port}/{name}"

    def shown(self, text: str) -> str:
        """``text`` of a server or a library, in one line without secrets."""
        for secret in self.secrets.values():
            text = text.replace(secret, HIDDEN) if secret else text
        return printable(without_secrets(" ".join(text.split())), 1_000)


@contextmanager
def transaction(address: Address, what: str) -> Iterator[Any]:
    """A connection of its own for one transaction, committed at the end of the block. ``what``: for errors.

    Raises as ``translated``. An error at the end leaves open whether the transaction was committed.
    """
    with translated(address, what):
        opened = connect(address)
        with closing(opened), opened as connection:  # also when the commit fails
            # A role or database may have switched this off; then a crash of the server loses what it has confirmed.
            connection.execute(CONFIRM)
            yield connection


def connect(address: Address, *, lasting: bool = False, **defaults: str) -> Any:
    """A new connection, with the settings that rows are written with. Raises the errors of psycopg.

    ``lasting``: for many transactions, each of which is begun by itself (``connection.transaction``).
    ``defaults``: parameters of libpq instead of those in ``DEFAULTS``.
    """
    connection = psycopg_module().connect(
        **{**DEFAULTS, **defaults, **address.parameters, **address.secrets, **ENCODING}, autocommit=lasting
    )
    try:
        connection.execute(SESSION)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def together(connection: Any) -> Iterator[None]:
    """Statements in the block are sent together, where libpq can do that; results are read behind it. A statement that
    fails ends the block with its error, and those after it are not carried out."""
    with connection.pipeline() if psycopg_module().Pipeline.is_supported() else nullcontext():
        yield


@contextmanager
def translated(address: Address, what: str) -> Iterator[None]:
    """Raises ``OutputUnavailable`` for errors of psycopg that may be better at the next attempt, ``OutputTableError``
    for those that will not. ``what``: for errors."""
    psycopg = psycopg_module()
    try:
        yield
    except psycopg.Error as error:
        text = address.shown(str(error)) or type(error).__name__
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        if is_lost or error.sqlstate == READ_ONLY or error.diag.severity_nonlocalized in FATAL:
            advice = (
                ""
                if address.secrets or "no password supplied" not in text
                else ("; the password of a dsn is not stored with a job: set PGPASSWORD, or write a password file")
            )
            raise OutputUnavailable(f"{what}: {text}{advice}") from None
        raise OutputTableError(f"{what}: {text}") from None
