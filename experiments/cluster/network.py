"""Network namespaces: one for each host, and a switch between them that loses packets on request.

Each host has one address and a cable (``veth``) to the switch, which forwards from cable to cable. A packet that is not
to arrive is dropped in the switch, without notice to either end, as by a broken cable: no connection breaks,
it falls silent.

Rules: a namespace lives as long as an open file here, or a process in it: when this process is gone, for whatever
signal, so is the network. Nothing of it is seen in the machine's own network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
from collections.abc import Sequence

from flinkplus.errors import FlinkPlusError

CLONE_NEWNET = 0x40000000
SUBNET = "10.77.0"
COMMAND_TIMEOUT_S = 10.0
FIRST_RULE = 100


class ClusterError(FlinkPlusError):
    """A cluster of namespaces cannot be made, or does not work."""


class Namespace:
    """A network namespace, held open."""

    def __init__(self) -> None:
        """Raises ``ClusterError`` where that is not allowed."""
        found: list[int] = []
        reason: list[OSError] = []

        def make() -> None:  # in a thread of its own: it stays in the new namespace
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                reason.append(OSError(number, os.strerror(number)))
                return
            found.append(os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY))

        thread = threading.Thread(target=make, name="make-namespace")
        thread.start()
        thread.join()
        if not found:
            raise ClusterError(f"network namespaces cannot be made here: {reason[0].strerror}; that takes root")
        self.file = found[0]
        try:
            run(self, ["link", "set", "lo", "up"])
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """Its file, for a child process that was given ``file``."""
        return f"/proc/self/fd/{self.file}"

    def command(self, command: Sequence[str]) -> list[str]:
        """``command`` in the namespace; to be run with ``file`` among the files that are passed on."""
        return ["nsenter", f"--net={self.path}", *command]

    def close(self) -> None:
        """Release it; its processes may keep it for a while."""
        with contextlib.suppress(OSError):
            os.close(self.file)


def run(namespace: Namespace, *commands: Sequence[str], pass_files: Sequence[int] = ()) -> None:
    """``ip`` with each of ``commands``, in ``namespace``. Raises ``ClusterError``."""
    script = "".join(f"{' '.join(command)}\n" for command in commands)
    try:
        done = subprocess.run(
            namespace.command(["ip", "-batch", "-"]),
            input=script,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            pass_fds=(namespace.file, *pass_files),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"the network cannot be set up: {error}") from error
    if done.returncode != 0:
        raise ClusterError(f"the network cannot be set up: {done.stderr.strip() or done.returncode}: {script!r}")


class Network:
    """The switch and its hosts, which are addressed by name."""

    def __init__(self) -> None:
        self._switch = Namespace()
        self._hosts: dict[str, Namespace] = {}
        self._rules: dict[tuple[str | None, str | None], int] = {}
        try:
            self._forward()
        except BaseException:
            self.close()
            raise

    def _forward(self) -> None:
        run(self._switch, ["addr", "add", f"{SUBNET}.1/32", "dev", "lo"])
        script = "echo 1 >/proc/sys/net/ipv4/ip_forward"
        done = subprocess.run(
            self._switch.command(["sh", "-c", script]),
            pass_fds=(self._switch.file,),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"the switch cannot forward: {done.stderr.strip()}")

    def add(self, name: str) -> Namespace:
        """A host with a cable to the switch."""
        namespace = Namespace()
        self._hosts[name] = namespace
        cable, address = f"host{len(self._hosts)}", self.address(name)
        pair = ["link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace.path]
        run(
            self._switch,
            pair,
            ["link", "set", cable, "up"],
            ["route", "add", f"{address}/32", "dev", cable],
            pass_files=(namespace.file,),
        )
        run(
            namespace,
            ["addr", "add", f"{address}/32", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["route", "add", "default", "via", f"{SUBNET}.1", "dev", "eth0", "onlink"],
        )
        return namespace

    def address(self, name: str) -> str:
        """The address of a host."""
        return f"{SUBNET}.{10 + list(self._hosts).index(name)}"

    def hosts_file(self) -> str:
        """What ``/etc/hosts`` says on every host."""
        names = "".join(f"{self.address(name)}\t{name}\n" for name in self._hosts)
        return f"127.0.0.1\tlocalhost\n{names}"

    def lose(self, source: str | None, target: str | None) -> None:
        """Drop what ``source`` sends to ``target`` from now on (``None``: any host)."""
        key = (source, target)
        if key in self._rules:
            return
        number = next(n for n in range(FIRST_RULE, FIRST_RULE + 10_000) if n not in self._rules.values())
        run(self._switch, ["rule", "add", *self._rule(key, number)])
        self._rules[key] = number

    def _rule(self, key: tuple[str | None, str | None], number: int) -> list[str]:
        source, target = key
        sides = [] if source is None else ["from", self.address(source)]
        sides += [] if target is None else ["to", self.address(target)]
        return ["pref", str(number), "blackhole", *sides]

    def cut(self, name: str, peer: str | None = None) -> None:
        """Drop what goes between a host and ``peer`` (``None``: all others), in both directions."""
        self.lose(name, peer)
        self.lose(peer, name)

    def heal(self, name: str | None = None) -> None:
        """Drop nothing any more of what is from or to a host (``None``: any)."""
        for key in [key for key in self._rules if name is None or name in key]:
            run(self._switch, ["rule", "del", *self._rule(key, self._rules[key])])
            del self._rules[key]

    def close(self) -> None:
        """Release all namespaces."""
        for namespace in (*self._hosts.values(), self._switch):
            namespace.close()
