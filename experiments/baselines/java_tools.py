"""Flink's jars, and this project's Java programs compiled: fetched and made once, when they are first needed.

Rules: everything is in one directory of the user's cache, or in the one of ``--flink-home``; what is there is whole,
since it gets its name last. A missing part raises ``BaselineMissing``, which says what to do.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flinkplus.errors import ConfigurationError

FLINK_VERSION = "2.3.0"
FLINK_PACKAGE = f"apache-flink-libraries=={FLINK_VERSION}"
SOURCES = Path(__file__).with_name("java")
COMMON = "common"
WITHOUT = "or leave it out: --engines"
FETCH_TIMEOUT_S = 900
COMPILE_TIMEOUT_S = 180
JAVA_TIMEOUT_S = 30
Say = Callable[[str], None]


class BaselineMissing(ConfigurationError):
    """Something that an engine needs is not on this machine and could not be had. The message says what to do."""


def default_home() -> Path:
    """``XDG_CACHE_HOME``, else ``~/.cache``, and in it a folder for this version of Flink."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "flinkplus" / f"flink-{FLINK_VERSION}"


def java(name: str = "java") -> str:
    """``java`` or ``javac``, of ``JAVA_HOME`` or of the ``PATH``. Raises ``BaselineMissing``."""
    home = os.environ.get("JAVA_HOME")
    if home and (found := shutil.which(str(Path(home) / "bin" / name))) is not None:
        return found
    if (found := shutil.which(name)) is not None:
        return found
    raise BaselineMissing(
        f"Flink's and Spark's programs must be compiled, and there is no {name} in JAVA_HOME or on the PATH: install a "
        f"JDK (sudo apt-get install openjdk-17-jdk-headless), {WITHOUT} flinkplus"
    )


def java_version() -> str | None:
    """What ``java`` says of itself; ``None`` where there is none."""
    with contextlib.suppress(BaselineMissing, OSError, subprocess.TimeoutExpired):
        command = [java(), "-version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
        return next(iter(done.stderr.splitlines()), None)
    return None


def flink_jars(home: Path, say: Say) -> list[Path]:
    """The jars that a Flink process needs, fetched from PyPI when they are not in ``home``. Raises
    ``BaselineMissing``."""
    lib = home / "lib"
    if not lib.is_dir():
        say(f"fetching {FLINK_PACKAGE} from PyPI, once, into {home}")
        with _appearing(lib) as partial:
            _fetch(partial)
    jars = sorted((*lib.glob("flink-dist-*.jar"), *lib.glob("log4j-*.jar")))
    if not any(jar.name.startswith("flink-dist-") for jar in jars):
        raise BaselineMissing(f"{lib} holds no flink-dist-*.jar: remove it, and it is fetched again, or give another")
    return jars


def _fetch(lib: Path) -> None:
    """Install the package in an environment of its own beside ``lib``, and keep its jars."""
    with tempfile.TemporaryDirectory(prefix=".env-", dir=lib.parent) as environment:
        _run([sys.executable, "-m", "venv", environment], "no environment could be made for Flink's jars")
        pip = [str(Path(environment) / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", FLINK_PACKAGE]
        _run(pip, f"{FLINK_PACKAGE} could not be fetched from PyPI")
        found = next(Path(environment).glob("lib/python*/site-packages/pyflink/lib"), None)
        if found is None:
            raise BaselineMissing(f"{FLINK_PACKAGE} holds no pyflink/lib; give its jars with --flink-home DIR")
        for jar in found.glob("*.jar"):
            shutil.move(jar, lib / jar.name)


def _run(command: Sequence[str], failure: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BaselineMissing(f"{failure} ({error}); {_instead()}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise BaselineMissing(f"{failure} ({lines[-1] if lines else 'no reason given'}); {_instead()}")


def _instead() -> str:
    return (
        f"connect to the network, give a directory whose lib/ has Flink's jars (--flink-home DIR), {WITHOUT} "
        "flinkplus,spark"
    )


def compiled(folders: Sequence[str], jars: Sequence[Path], home: Path, say: Say) -> Path:
    """The directory with the classes of a program, and of what all programs share.

    ``folders``: below ``java``; the first one names the program.

    Compiled again when the source has changed. Raises ``BaselineMissing``.
    """
    program = folders[0]
    sources = sorted(path for folder in (COMMON, *folders) for path in (SOURCES / folder).glob("*.java"))
    text = b"\0".join([*(source.read_bytes() for source in sources), *(jar.name.encode() for jar in jars)])
    classes = home / f"{program}-{hashlib.blake2b(text, digest_size=8).hexdigest()}"
    if not classes.is_dir():
        say(f"compiling the programs for {program}")
        path = os.pathsep.join(map(str, jars))
        with _appearing(classes) as partial:
            command = [java("javac"), "-nowarn", "-proc:none", "-d", str(partial), "-cp", path, *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
            if done.returncode != 0:
                raise BaselineMissing(f"javac failed on {SOURCES / program}: {done.stderr.strip()[-2000:]}")
    return classes


@contextlib.contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A directory to be filled in the block, which then appears as ``target``. Raises ``BaselineMissing``."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise BaselineMissing(
            f"{target.parent} cannot be written: {error.strerror}; give another --flink-home"
        ) from error
    try:
        yield partial
        with contextlib.suppress(FileExistsError, OSError):  # another process may have been first
            partial.rename(target)
        if not target.is_dir():
            raise BaselineMissing(f"{target} could not be made; give another --flink-home")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
