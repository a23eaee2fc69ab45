"""The key that signs plans and manifests: a file of the user's, never in a checkpoint directory.

Its path: the option ``signing_key``; otherwise ``FLINKPLUS_KEY_FILE``; otherwise ``flinkplus/key`` in the user's
configuration directory (``~/.config``, or ``XDG_CONFIG_HOME``), which is created when a job first needs it.

Rules: a file is refused if other users could have written or replaced it, by its mode or that of a directory on its
path (links included), or if every user may read it. A named key is never created: a wrong path must not become another
key. The key stays in the driver: slots neither sign nor check.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from flinkplus.errors import ConfigurationError, without_secrets
from flinkplus.local_files import open_regular
from flinkplus.state.durable.seals import KEY_BYTES, SigningKey
from flinkplus.state.file_system import filesystem_of, is_uri, sync_path

KEY_VARIABLE = "FLINKPLUS_KEY_FILE"
HOW_TO_MAKE = "make one with: (umask 077; openssl rand -hex 32 > FILE)"
MAX_BYTES = 4096
MAX_LINKS = 40  # the limit of Linux for one path
OTHERS = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
"""Permissions that only the owner may have. A group may read the file, as with secrets that Kubernetes mounts."""
_KEY = re.compile(rf"[0-9a-fA-F]{{{2 * KEY_BYTES}}}\Z")

log = logging.getLogger("flinkplus")


def find_key(option: str | None, checkpoint_dir: str | None, make: bool) -> SigningKey:
    """The key for the checkpoints in ``checkpoint_dir`` (``None``: both are removed with the job).

    ``make``: create a missing key of the user; otherwise a key is returned that has signed nothing.
    Raises ``ConfigurationError`` for a file that cannot be used.
    """
    if checkpoint_dir is None:
        return SigningKey.made("one of this run's own")
    named = option or os.environ.get(KEY_VARIABLE)
    if named and is_uri(named):
        raise ConfigurationError(f"the key {without_secrets(named)!r} is a URI; give the path of a local file")
    path = Path(named).expanduser().absolute() if named else default_path()
    _check_place(path, checkpoint_dir)
    try:
        _check_way(path)
        return read_key(path)
    except FileNotFoundError:
        if named:
            what = "signing_key" if option else KEY_VARIABLE
            raise ConfigurationError(f"{what}: {str(path)!r} does not exist; {HOW_TO_MAKE}") from None
    if not make:
        return SigningKey.made(f"{str(path)!r}, which does not exist yet")
    make_key(path)
    _check_way(path)
    return read_key(path)


def existing_key(option: str | None, checkpoint_dir: str) -> SigningKey | None:
    """The key for the checkpoints in ``checkpoint_dir``; ``None``: no key is named, and this user has none.

    Raises as ``find_key``.
    """
    if not option and not os.environ.get(KEY_VARIABLE):
        try:
            if not default_path().exists():
                return None
        except (ConfigurationError, OSError):  # a user without a home, or whose home cannot be read
            return None
    return find_key(option, checkpoint_dir, make=False)


def default_path() -> Path:
    """The user's own key file. Raises ``ConfigurationError`` for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base and os.path.isabs(base) else Path.home() / ".config") / "flinkplus" / "key"
    except RuntimeError as error:
        raise ConfigurationError(
            f"this user has no home directory for the key that signs checkpoints ({error}); name a file with "
            f"{KEY_VARIABLE}, or with the option signing_key; {HOW_TO_MAKE}"
        ) from error


def _check_place(path: Path, checkpoint_dir: str) -> None:
    """Raises ``ConfigurationError`` if a process that can write the checkpoints could also write the key."""
    if is_uri(checkpoint_dir) and not checkpoint_dir.startswith("file:"):
        return
    with contextlib.suppress(OSError, ValueError):  # an unusable directory is reported later
        inside = Path(filesystem_of(checkpoint_dir)[1]).expanduser().resolve()
        if any(inside in (folder, *folder.parents) for folder, _ in _way_to(path)):
            raise ConfigurationError(
                f"the key {str(path)!r} is in the checkpoint directory {checkpoint_dir!r}, or a link there leads to "
                "it: a process that can write checkpoints could replace it; keep it elsewhere"
            )


def _check_way(path: Path) -> None:
    """Raises ``ConfigurationError`` if other users could replace the key or a directory on its path, and
    ``FileNotFoundError`` for a missing one."""
    try:
        way = [(folder, entry, folder.stat()) for folder, entry in _way_to(path)]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"the key {str(path)!r} cannot be read: {error}") from error
    # In a container without a mapping of root, the owner of / stands for root.
    trusted = {os.geteuid(), 0, os.stat("/").st_uid}
    for folder, entry, found in way:
        if found.st_uid not in trusted or _others_can_replace(found, folder / entry):
            raise ConfigurationError(
                f"the key {str(path)!r} can be replaced by other users, who may write the directory {str(folder)!r} "
                f"(owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):03o}): chmod go-w {folder}, or keep the "
                "key in a directory of yours alone"
            )


def _others_can_replace(found: os.stat_result, entry: Path) -> bool:
    """Whether users other than this one and root can replace ``entry``. ``found``: the status of its folder."""
    writable = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid))
    if writable and found.st_mode & stat.S_ISVTX:  # only the owner of an entry can replace it
        with contextlib.suppress(FileNotFoundError):
            return entry.lstat().st_uid not in (os.geteuid(), 0)
        return False
    return bool(writable)


def _is_private(group: int) -> bool:
    """Whether a group is root's or has the name of this user, so that by custom it has no other member."""
    with contextlib.suppress(KeyError):
        return group == 0 or grp.getgrgid(group).gr_name == pwd.getpwuid(os.geteuid()).pw_name
    return False


def _way_to(path: Path) -> Iterator[tuple[Path, str]]:
    """The folders on the way to ``path``, links resolved, each with the name looked up in it. Raises ``OSError``."""
    folder, left, links = Path("/"), [*reversed(path.absolute().parts[1:])], 0
    while left:
        name = left.pop()
        if name == "..":
            folder = folder.parent
            continue
        yield folder, name
        entry = folder / name
        if not entry.is_symlink():
            folder = entry
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, "too many symbolic links", str(path))
        target = Path(os.readlink(entry))
        if target.is_absolute():
            folder = Path("/")
        left += reversed(target.parts[target.is_absolute() :])


def read_key(path: Path) -> SigningKey:
    """Read a key. Raises ``FileNotFoundError``, and ``ConfigurationError`` for a file that cannot be used."""
    try:
        with open(open_regular(path, follow=True), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid not in (os.geteuid(), 0) or found.st_mode & OTHERS:
                raise ConfigurationError(
                    f"the key {str(path)!r} is not yours alone (mode {stat.S_IMODE(found.st_mode):03o}): with it, "
                    "others could sign checkpoints that run code in your jobs; if no other user has read it, "
                    f"chmod 600 {path}"
                )
            text = file.read(MAX_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(f"the key {str(path)!r} cannot be read: {error}") from error
    line = text.decode("ascii", "replace").strip()
    if not _KEY.match(line):
        raise ConfigurationError(
            f"{str(path)!r} is not a key, which has {2 * KEY_BYTES} hexadecimal digits; {HOW_TO_MAKE}"
        )
    return SigningKey(bytes.fromhex(line), str(path))


def make_key(path: Path) -> None:
    """Create the user's key atomically, unless another process has done so. Raises ``ConfigurationError``."""
    made = SigningKey.made(str(path))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".key-", dir=path.parent)  # of mode 600
        try:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(made.secret.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
                sync_path(path.parent)
                log.warning(
                    "created %s, the key that signs checkpoints: keep it; jobs whose checkpoints it has signed can be "
                    "resumed only with it (docs/security.md)",
                    path,
                )
        finally:
            os.unlink(temporary)
    except OSError as error:
        raise ConfigurationError(
            f"the key that signs checkpoints cannot be written to {str(path)!r}: {error}; name a file with "
            f"{KEY_VARIABLE}, or with the option signing_key; {HOW_TO_MAKE}"
        ) from error
