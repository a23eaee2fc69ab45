"""A host: a set of namespaces (network, processes, name, mounts) with a process that keeps it up.

That process is the first of its process namespace, a ``cat``: with its end the kernel kills all others, at once and
without exception. It reads from a pipe that only the harness holds open, so a host ends with the harness.
What belongs to a dead harness all the same (a host that was paused cannot see the end of the pipe) is found by the
next one, in the directory of the cluster.

Rules: everything that runs on a host is started through ``start`` or ``command``. A host that was killed can be started
again, with its name and address and an empty disk.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from experiments.cluster.network import ClusterError, Namespace

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.005
WAKE_S = 0.05
STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
FIRST_PROCESS = "first-process"
UNSHARE = ("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
BOOT = """\
set -eu
echo "$1" >/proc/sys/kernel/hostname; mount --bind "$2" /etc/hosts; shift 2
if [ $# != 0 ]; then mount -t tmpfs -o size=1m tmpfs /mnt; fi
while [ $# != 0 ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done
trap '' CHLD
exec cat
"""
"""$1: name, $2: file of names; then pairs of a directory and where it is mounted. Orphans are not waited for."""


class Host:
    """One host. ``directory``: its own, on the real machine; ``volumes``: (directory, where it is mounted)."""

    def __init__(
        self,
        name: str,
        namespace: Namespace,
        directory: Path,
        names: Path,
        volumes: Sequence[tuple[Path, str]],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.directory = directory
        self.scratch = directory / "tmp"
        self._namespace = namespace
        self._names = names
        self._volumes = volumes
        self._environment = {**environment, "TMPDIR": str(self.scratch)}
        self._keeper: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    # --- up and down

    @property
    def up(self) -> bool:
        """Whether the host runs, or is paused."""
        return self._keeper is not None and self._keeper.poll() is None

    def boot(self) -> None:
        """Start the host, with nothing on it yet. Raises ``ClusterError``."""
        if self.up:
            raise ClusterError(f"host {self.name} is up already")
        self.scratch.mkdir(parents=True, exist_ok=True)
        mounts = [str(part) for volume in self._volumes for part in volume]
        boot = ["sh", "-c", BOOT, "sh", self.name, str(self._names), *mounts]
        with open(self.directory / "boot.log", "wb") as log:
            keeper = self._keeper = subprocess.Popen(
                self._namespace.command([*UNSHARE, *boot]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(self._namespace.file,),
                start_new_session=True,
            )
        assert keeper.stdin is not None and keeper.stdout is not None
        try:
            keeper.stdin.write(b"up\n")
            keeper.stdin.flush()
            answer = keeper.stdout.readline()
        except OSError:
            answer = b""
        if answer != b"up\n":
            reason = (self.directory / "boot.log").read_text(errors="replace").strip()
            self.kill()
            raise ClusterError(f"host {self.name} cannot be started: {reason or 'no reason given'}")
        self._pid = int(Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()[0])
        note_process(self.directory, self._pid)

    def kill(self) -> None:
        """SIGKILL to all that runs on it, at once; returns when nothing does any more."""
        pid, self._pid = self._pid, None
        keeper, self._keeper = self._keeper, None
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if keeper is not None:
            if pid is None:
                keeper.kill()
            for pipe in (keeper.stdin, keeper.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            _await_end([*self._processes, keeper])
        self._processes.clear()

    def wipe(self) -> None:
        """Empty the disk of a host that is down."""
        shutil.rmtree(self.scratch, ignore_errors=True)

    # --- what runs on it

    def command(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs ``command`` on the host, with the host's environment and ``environment``.

        Raises ``ClusterError`` when the host is down.
        """
        if self._pid is None:
            raise ClusterError(f"host {self.name} is down")
        variables = {**self._environment, **(environment or {})}
        settings = [f"{key}={value}" for key, value in variables.items()]
        enter = ["nsenter", f"--target={self._pid}", "--net", "--uts", "--mount", "--pid", f"--wd={Path.cwd()}"]
        return [*enter, "env", "-i", *settings, *command]

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes into the file ``log``, which begins with its command."""
        with open(self.log, "ab") as log:
            log.write(f"$ {shlex.join(command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                self.command(command, environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    @property
    def log(self) -> Path:
        """What the processes of this host have said."""
        return self.directory / "log"

    # --- failures

    def pause(self) -> None:
        """SIGSTOP to all that runs on it; returns when all stand still. Raises ``ClusterError``."""
        self._signal_all(signal.SIGSTOP, lambda process: process.status() in STILL)

    def resume(self) -> None:
        """Continue everything after a ``pause``."""
        self._signal_all(signal.SIGCONT, lambda process: process.status() != psutil.STATUS_STOPPED)
        for process in (*self._processes, self._keeper):
            if process is not None:
                process.send_signal(signal.SIGCONT)  # see _await_end

    def _signal_all(self, number: signal.Signals, obeyed: Callable[[psutil.Process], bool]) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while True:
            waiting = False
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if not obeyed(process):
                        process.send_signal(number)
                        waiting = True
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise ClusterError(f"not all processes of host {self.name} have obeyed {number.name}")
            time.sleep(POLL_S)

    def processes(self) -> Iterator[psutil.Process]:
        """All that runs on it, by numbers of this process's own namespace."""
        if self._pid is None:
            return
        try:
            own = os.readlink(f"/proc/{self._pid}/ns/pid")
        except OSError:
            return
        for pid in psutil.pids():
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                if os.readlink(f"/proc/{pid}/ns/pid") == own:
                    yield psutil.Process(pid)


def _await_end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for the end of what a host was entered with, when its first process is dead.

    ``nsenter`` stops itself when its child is stopped, and has to be woken up; until it has seen the end of that child,
    the first process stays as well.
    """
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in processes:
        while process.poll() is None:
            for other in processes:
                other.send_signal(signal.SIGCONT if time.monotonic() < deadline else signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WAKE_S)


def end_abandoned(directory: Path) -> None:
    """End the host of this directory, whose harness is dead."""
    first = noted_process(directory)
    if first is None:
        return
    for process in psutil.process_iter(["cmdline"]):
        if f"--target={first.pid}" in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    for process in (first.parent(), first):
        if process is not None and (process == first or process.name() == UNSHARE[0]):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    psutil.wait_procs([first], STOP_TIMEOUT_S)


def note_process(directory: Path, pid: int) -> None:
    """Write down in ``directory`` which process keeps it in use."""
    with contextlib.suppress(psutil.NoSuchProcess):
        created_s = psutil.Process(pid).create_time()
        (directory / FIRST_PROCESS).write_text(f"{pid} {created_s!r}\n")


def noted_process(directory: Path) -> psutil.Process | None:
    """The process that was noted in ``directory``, if it is still there."""
    try:
        pid, created_s = (directory / FIRST_PROCESS).read_text().split()
        process = psutil.Process(int(pid))
        return process if process.create_time() == float(created_s) else None
    except (OSError, ValueError, psutil.NoSuchProcess):
        return None
