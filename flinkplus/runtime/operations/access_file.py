"""The *access file*, by which a shell finds a running job and proves that it may command it.

The file, ``COMMANDS.json``, is in the job's own directory on the driver's host; only the user of the job can read it
(mode 600). The checkpoint directory, which more users may read, only says where it is.

Rules: a file that other users can read or could have written is not used; a search for jobs ignores directories of
other users. The checkpoint directory can only name an access file, and only that of its own job. The file of a killed
driver is recognized: on the driver's host by its process, elsewhere because the connection fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from flinkplus.documents import Document, parse_document
from flinkplus.errors import ConfigurationError, CorruptCheckpoint, NoRunningJob, PeerProtocolError, PeerRefused
from flinkplus.local_files import open_regular
from flinkplus.path_names import checked_name
from flinkplus.printable import printable
from flinkplus.runtime.host.scratch import JOB_PREFIX, is_alive, is_own_directory
from flinkplus.runtime.operations.command_server import PROTOCOL, SHELL, SOCKET
from flinkplus.runtime.operations.commands import REPLY_BYTES, Body, decode_reply, encode_request
from flinkplus.runtime.transport.auth import tls
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.auth.handshake import Connecting
from flinkplus.runtime.transport.tcp.connections import parse_address
from flinkplus.runtime.transport.tcp.dialing import dial, receive_frame
from flinkplus.runtime.transport.wire.frames import framed
from flinkplus.runtime.transport.wire.ports import COORDINATOR
from flinkplus.state.durable.storage import CheckpointStorage

ACCESS_FORMAT = 1
"""Version of ``AccessFile`` and ``Whereabouts``."""
ACCESS_FILE = "COMMANDS.json"
ACCESS_BLOB = "commands"
MAX_BYTES = 1 << 20
MAX_PID = 1 << 31
CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 60.0
ELSEWHERE = "copy that file to a place of your own (mode 600) and give it as --access FILE"


@dataclass(frozen=True)
class Access:
    """The content of an access file.

    ``driver``: PID of the driver on ``host``, and when that process was created (seconds since the Unix epoch).
    ``local``: path of the socket next to the file, if it exists; other users cannot reach it.
    """

    job_id: str
    name: str
    address: str
    host: str
    driver: tuple[int, float]
    credentials: Credentials = field(repr=False)
    local: str | None = field(default=None, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the driver has ended; always ``False`` on another host, where that is unknown."""
        return self.host == socket.gethostname() and not is_alive(*self.driver)


@dataclass(frozen=True, kw_only=True)
class AccessFile(Document):
    """The JSON of the file.

    ``address``: ``host:port`` of the command server.
    ``host``, ``pid``, ``created_s``: the driver's process, and when it was created (seconds since the Unix epoch).
    ``key``: the secret of the command server, hexadecimal.
    ``tls``: PEM by name, or the directory of the user's own certificates.
    """

    FORMAT: ClassVar[int] = ACCESS_FORMAT

    job_id: str
    name: str
    address: str
    host: str
    pid: int
    created_s: float
    key: str
    tls: str | dict[str, str] | None

    def check_names(self) -> None:
        checked_name(self.job_id)


@dataclass(frozen=True, kw_only=True)
class Whereabouts(Document):
    """The entry of an access file in the checkpoint directory: ``file`` is its path on ``host``."""

    FORMAT: ClassVar[int] = ACCESS_FORMAT

    job_id: str
    host: str
    file: str

    def check_names(self) -> None:
        checked_name(self.job_id)
        folder, name = os.path.split(self.file)
        if checked_name(name) != ACCESS_FILE or not os.path.isabs(folder) or os.path.normpath(folder) != folder:
            raise ValueError(f"{self.file!r:.200} is not an access file")


def write_access(directory: Path, access: Access) -> Path:
    """Write the access file into the job's own directory, atomically."""
    certificates: Any = access.credentials.tls
    if isinstance(certificates, tls.Certificates):
        certificates = {name: value.decode("ascii") for name, value in vars(certificates).items()}
    document = AccessFile(
        job_id=access.job_id,
        name=access.name,
        address=access.address,
        host=access.host,
        pid=access.driver[0],
        created_s=access.driver[1],
        key=access.credentials.secret.hex(),
        tls=certificates,
    )
    path, made = directory / ACCESS_FILE, directory / f".{ACCESS_FILE}.tmp"
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(document.to_json(), file)
    made.rename(path)
    return path


def publish(storage: CheckpointStorage, path: Path, access: Access) -> None:
    """Write the path of the job's access file into the checkpoint directory."""
    whereabouts = Whereabouts(job_id=access.job_id, host=access.host, file=str(path))
    storage.blobs.put(ACCESS_BLOB, json.dumps(whereabouts.to_json()).encode())


def withdraw(storage: CheckpointStorage, path: Path) -> None:
    """Remove that entry, unless another run of the job has replaced it."""
    with contextlib.suppress(CorruptCheckpoint):  # it does not exist
        if parse_document(storage.blobs.get(ACCESS_BLOB)).get("file") == str(path):
            storage.blobs.drop(ACCESS_BLOB)


def read_access(path: str | Path) -> Access:
    """Raises ``NoRunningJob`` if the file is missing or the job is over, ``ConfigurationError`` if it is unusable."""
    try:
        with open(open_regular(path, follow=True), "rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            data = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise NoRunningJob(f"{str(path)!r} does not exist: the job is over, or runs on another host") from None
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be read: {error}") from error
    access = parse_access(data, str(path))
    if access.is_over:
        raise NoRunningJob(f"job {access.name!r} ({access.job_id}) is over: its driver ended unexpectedly")
    return replace(access, local=_socket_beside(Path(path)))


def _socket_beside(path: Path) -> str | None:
    """The socket for shells on this host, if the access file is still where the job has written it."""
    with contextlib.suppress(OSError):
        found = path.resolve().with_name(SOCKET)
        if stat.S_ISSOCK(found.lstat().st_mode) and found.lstat().st_uid == path.stat().st_uid:
            return str(found)
    return None


def _check_owner(path: str | Path, found: os.stat_result) -> None:
    if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigurationError(
            f"{str(path)!r} is not yours alone (mode {stat.S_IMODE(found.st_mode):03o}): others may have read or "
            "written it; use the file that the job has created, as the user of the job"
        )


def parse_access(data: bytes, where: str) -> Access:
    """The content of an access file. Raises ``ConfigurationError``."""
    try:
        file = AccessFile.from_json(parse_document(data))
        host, port = parse_address(file.address)
        if not 0 < file.pid < MAX_PID:
            raise ValueError(f"{file.pid!r:.100} is not a process")
        if not 0 < port < 1 << 16:
            raise ValueError(f"{port!r:.100} is not a port")
        if not host or not host.isprintable():
            raise ValueError(f"{host!r:.100} is not a host")
        host.encode("idna")
        if not file.key:
            raise ValueError("the key is empty")
        driver = (file.pid, float(file.created_s))
        certificates: tls.Certificates | dict[str, str] | str | None = file.tls
        if isinstance(certificates, dict):
            certificates = tls.Certificates(**{name: text.encode("ascii") for name, text in certificates.items()})
        credentials = Credentials(bytes.fromhex(file.key), tls=certificates)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigurationError(f"{where!r} is not an access file of this version: {error!r:.200}") from error
    return Access(file.job_id, printable(file.name), file.address, printable(file.host), driver, credentials)


def access_of(checkpoint_dir: str) -> Access:
    """The running job of ``checkpoint_dir``. Raises as ``read_access``; ``CheckpointDirectoryError`` without a job."""
    storage = CheckpointStorage(checkpoint_dir)
    storage.ownership.job()
    try:
        found = Whereabouts.from_json(parse_document(storage.blobs.get(ACCESS_BLOB)))
    except OSError as error:
        raise ConfigurationError(f"the checkpoint directory {checkpoint_dir!r} cannot be read: {error}") from error
    except (CorruptCheckpoint, ValueError):
        raise NoRunningJob(f"no job runs on the checkpoint directory {checkpoint_dir!r}") from None
    file = found.file
    if found.host != socket.gethostname() and not os.path.exists(file):
        raise NoRunningJob(
            f"the job's driver is on {printable(found.host)}, with {file!r:.300}: run this there, or {ELSEWHERE}"
        )
    try:
        access = read_access(file)
    except NoRunningJob as error:
        raise NoRunningJob(f"the job on the checkpoint directory {checkpoint_dir!r} has ended: {error}") from None
    if access.job_id != found.job_id:
        raise ConfigurationError(
            f"the checkpoint directory {checkpoint_dir!r} names {file!r:.300} as the access file of job "
            f"{found.job_id!r}, but it is that of job {access.job_id!r}: another process changed the directory"
        )
    return access


def running_jobs() -> list[tuple[Path, Access]]:
    """The usable access files in the system's temporary space; other users' directories, and links, are ignored."""
    found = []
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{JOB_PREFIX}*")):
        path = folder / ACCESS_FILE
        with contextlib.suppress(ConfigurationError, NoRunningJob):  # the file is unusable, or the job is over
            if is_own_directory(folder):
                found.append((path, read_access(path)))
    return found


def the_running_job() -> Access:
    """The only running job of this user on this host. Raises ``NoRunningJob``, ``ConfigurationError`` for several."""
    found = running_jobs()
    if not found:
        raise NoRunningJob("no running job of yours was found on this host; give --checkpoint-dir or --access")
    if len(found) > 1:
        jobs = "".join(f"\n  {access.name}: --access {path}" for path, access in found)
        raise ConfigurationError(f"there are {len(found)} running jobs; choose one:{jobs}")
    return found[0][1]


def call(access: Access, request: Any, timeout_s: float = REPLY_TIMEOUT_S) -> Body:
    """Send ``request`` to the job, and return its reply. Raises as ``connected``."""
    with connected(access) as ask:
        return ask(request, timeout_s)


@contextlib.contextmanager
def connected(access: Access) -> Iterator[Callable[..., Body]]:
    """A connection to the job: ``ask(request, timeout_s=REPLY_TIMEOUT_S)`` sends a request, and returns its reply.

    A shell that asks again about what it has requested must do so on one connection: the end of the job waits for it.
    Raises ``CommandRefused`` if the job refuses the request, ``NoRunningJob`` without a reply within ``timeout_s``.
    """
    job = f"job {access.name!r} ({access.job_id}) at {access.address}"
    certificates = access.credentials.certificates
    try:
        connection = dial(
            access.local or access.address,
            Connecting(access.credentials.secret, PROTOCOL, SHELL, COORDINATOR),
            None if certificates is None else tls.context(certificates, False),
            CONNECT_TIMEOUT_S,
        )
    except (OSError, PeerRefused) as error:
        raise NoRunningJob(f"{job} refused this shell, or has ended: {error}") from error

    def ask(request: Any, timeout_s: float = REPLY_TIMEOUT_S) -> Body:
        try:
            connection.sendall(framed(encode_request(request)))
            reply = receive_frame(connection, time.monotonic() + timeout_s, REPLY_BYTES)
        except TimeoutError:
            raise NoRunningJob(f"{job} has not answered within {timeout_s:g} s") from None
        except OSError as error:
            raise NoRunningJob(f"{job} ended before it answered: {error}") from error
        try:
            return decode_reply(reply)
        except PeerProtocolError as error:
            raise NoRunningJob(f"{job}: {error}") from error

    with connection:
        yield ask
