"""What lets a process take part in a job: made by the driver, shipped to every slot with Spark's own task.

Rules: it is never sent over FlinkPlus's own connections, never written to a file of FlinkPlus, never on a command line,
and its ``repr`` does not show it. Only the credentials for commands are written, for the owner of the job
(``operations.access_file``): a key that reveals nothing of the secret, and certificates of another authority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flinkplus.config import Options
from flinkplus.errors import ConfigurationError
from flinkplus.runtime.transport.auth.handshake import derived, make_secret
from flinkplus.runtime.transport.auth.tls import Certificates, context, made_for, read_from

JOB, OPEN = "job", "open"
"""Values of ``zookeeper_acl``."""


@dataclass(frozen=True)
class Credentials:
    """The credentials of one run of a job.

    ``secret``: the handshake proves that both ends know it.
    ``zookeeper``: ``user:password`` required to read and change the job's nodes in ZooKeeper; ``None``: no restriction.
    ``tls``: certificates, or a directory of certificates on each host; ``None``: connections are not encrypted.
    ``connectors``: source or sink -> what its slots need to read or write, such as a password.
    ``registry``: the same for the job's own ZooKeeper server, always encrypted; ``None``: the job has no such server.
    """

    secret: bytes = field(repr=False)
    zookeeper: str | None = field(default=None, repr=False)
    tls: Certificates | str | None = field(default=None, repr=False)
    registry: Certificates | str | None = field(default=None, repr=False)
    connectors: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @classmethod
    def made(cls, options: Options, job_id: str, lasting: bytes | None = None) -> Credentials:
        """New ones. ``lasting``: a secret that all runs of the job have, for what stays in an ensemble longer than a
        run. Raises ``ConfigurationError`` for files that cannot be used."""
        secret = make_secret()
        tls = made_for(job_id) if options.tls is True else options.tls or None
        own_server = options.local and not options.zookeeper
        made = cls(
            secret,
            _zookeeper(options.zookeeper_acl or (OPEN if options.zookeeper else JOB), job_id, lasting or secret),
            tls,
            made_for(job_id) if own_server else None,  # also beside given ones, whose authority may sign for others
        )
        certificates = made.certificates
        if certificates is not None:
            context(certificates, True)  # raises here, and not in every slot
        return made

    def for_commands(self, job_id: str) -> Credentials:
        """What lets a shell give the job commands, and do nothing else."""
        return Credentials(
            derived(self.secret, "commands"),
            tls=made_for(f"{job_id} commands") if isinstance(self.tls, Certificates) else self.tls,
        )

    @property
    def certificates(self) -> Certificates | None:
        """Those of this host. Raises ``ConfigurationError``."""
        return _of_this_host(self.tls)

    @property
    def registry_certificates(self) -> Certificates | None:
        """Those of this host for the job's own ZooKeeper server. Raises ``ConfigurationError``."""
        return _of_this_host(self.registry)


def _of_this_host(tls: Certificates | str | None) -> Certificates | None:
    return read_from(tls) if isinstance(tls, str) else tls


def _zookeeper(acl: str, job_id: str, secret: bytes) -> str | None:
    if acl == OPEN:
        return None
    if acl == JOB:
        return f"flinkplus-{job_id}:{derived(secret, 'zookeeper').hex()}"
    try:
        text = Path(acl).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"zookeeper_acl: {acl!r} cannot be read: {error}") from error
    user, colon, password = text.partition(":")
    if not (user and colon and password) or "\n" in text:
        raise ConfigurationError(f"zookeeper_acl: the file {acl!r} must hold one line, USER:PASSWORD")
    return text
