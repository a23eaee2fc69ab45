"""The registry and the slots' sessions against the real server: its restarts, lost answers, expiry, other drivers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from chain_backup.failover.effects import ChainEntry
from chain_backup.zookeeper import supervisor
from chain_backup.zookeeper.embedded import MAIN_CLASS, EmbeddedZooKeeper
from chain_backup.zookeeper.errors import (
    BadRecord,
    CoordinatorElsewhere,
    RegistryUnavailable,
    StaleRecord,
    ZooKeeperStartError,
)
from chain_backup.zookeeper.records import (
    ChainRecord,
    RegistryLost,
    RegistryMoved,
    RegistryReconnected,
    SessionExpired,
    SessionOpened,
    SessionReconnected,
    SessionSuspended,
    SlotNodeGone,
    SlotNodeSeen,
    SlotRecord,
)
from chain_backup.zookeeper.registry import Registry
from chain_backup.zookeeper.session import SlotSession
from chain_backup.zookeeper.succession import follow
from experiments.harness.tcp_proxy import Proxy
from flinkplus.config import Options
from flinkplus.protocol.vocabulary.ids import Generation, SubtaskId
from flinkplus.runtime.coordinator.dispatch import registry as registry_module
from flinkplus.runtime.coordinator.dispatch.registry import URGENT_TIMEOUT_S, JobRegistry
from flinkplus.runtime.transport.auth.tls import context, made_for
from tests.integration.conftest import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

TIMEOUT_S = 10.0
"""Of sessions: longer than a busy machine pauses them."""
SHORT_S = 1.0
"""Of those that a test lets expire."""
CLOSE_BOUND_S = 15.0
"""Of calls that must not wait for a session that ends after 20 s or more."""

Closable = TypeVar("Closable", Registry, SlotSession, Proxy)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[EmbeddedZooKeeper]:
    """One that the test may kill."""
    with EmbeddedZooKeeper() as server:
        yield server


class Bench:
    """Makes what a test needs for one application, and closes it all."""

    def __init__(self, hosts: str, application: str) -> None:
        self.hosts = hosts
        self.application = application
        self.closing = contextlib.ExitStack()
        self.events: list[Any] = []  # of registries made here

    def registry(self, hosts: str | None = None, elect: bool = True, timeout_s: float = TIMEOUT_S) -> Registry:
        registry = self._keep(
            Registry(hosts or self.hosts, self.application, session_timeout_s=timeout_s, deliver=self.events.append)
        )
        if elect:
            registry.elect(60)
        return registry

    def slot(
        self, slot: int, incarnation: int = 1, hosts: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> tuple[SlotSession, list[Any]]:
        events: list[Any] = []
        record = slot_record(slot, incarnation)
        return self._keep(
            SlotSession(hosts or self.hosts, self.application, slot, record, timeout_s, events.append)
        ), events

    def proxy(self) -> Proxy:
        return self._keep(Proxy(self.hosts))

    def raw(self) -> KazooClient:
        """A plain client, to look and to meddle."""
        client = KazooClient(self.hosts, timeout=10)
        client.start()
        self.closing.callback(client.close)
        self.closing.callback(client.stop)
        return client

    def path(self, rest: str) -> str:
        return f"/flinkplus/{self.application}/{rest}"

    def _keep(self, made: Closable) -> Closable:
        self.closing.callback(made.close)
        return made


@pytest.fixture
def bench(server: EmbeddedZooKeeper, request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(server.hosts, request.node.name.replace("[", "-").replace("]", ""))
    with bench.closing:
        yield bench
    assert_no_threads()


@pytest.fixture
def own_bench(own_server: EmbeddedZooKeeper) -> Iterator[Bench]:
    bench = Bench(own_server.hosts, "own")
    with bench.closing:
        yield bench
    assert_no_threads()


def slot_record(slot: int, incarnation: int = 1) -> SlotRecord:
    return SlotRecord(f"127.0.0.1:{4000 + slot}", "localhost", os.getpid(), incarnation)


def chains(generation: int, subtasks: int = 4) -> list[ChainRecord]:
    return [ChainRecord(f"count+out[{i}]", generation, (i, i + 1, i + 2), generation - 1) for i in range(subtasks)]


def by_subtask(records: list[ChainRecord]) -> dict[str, ChainRecord]:
    return {record.subtask: record for record in records}


def assert_no_threads() -> None:
    """kazoo's threads are daemons, which the check for all tests lets pass."""
    assert [t.name for t in threading.enumerate() if "zookeeper" in t.name] == []


def expire(session: SlotSession | Registry, hosts: str) -> None:
    """Close somebody's session as its owner would, from elsewhere: to the owner it has expired."""
    other = KazooClient(hosts, client_id=session.client.kazoo.client_id)
    other.start()
    other.stop()
    other.close()


def until(events: list[Any], wanted: list[Any], timeout_s: float = PATIENCE_S) -> None:
    """The events are, at last, exactly these."""
    with contextlib.suppress(BaseException):
        wait_until(lambda: len(events) >= len(wanted), "events", timeout_s)
    assert events == wanted


# --- the server ---


def test_a_server_is_up_soon_on_a_port_of_its_own_and_gone_at_once() -> None:
    first, second = EmbeddedZooKeeper(), EmbeddedZooKeeper()
    with first, second:
        assert first.hosts != second.hosts
        pids = [first.pid, second.pid]
        listening = [
            c.laddr.ip for pid in pids for c in psutil.net_connections("tcp") if c.pid == pid and c.status == "LISTEN"
        ]
        assert listening == ["127.0.0.1", "127.0.0.1"]
        directory = first._directory
        assert directory is not None and directory.exists()
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert first.pid is None and not first.alive and not directory.exists()


def test_a_server_restarts_on_its_port_with_its_data(own_server: EmbeddedZooKeeper, own_bench: Bench) -> None:
    client = own_bench.raw()
    client.create("/kept", b"yes")
    hosts, pid = own_server.hosts, own_server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not own_server.alive, "the server's end")
    assert own_server.restart() == hosts
    assert own_server.pid != pid
    assert client.retry(client.get, "/kept")[0] == b"yes"


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(directory=tmp_path / "zk"):
        pass
    assert (tmp_path / "zk" / "data" / "version-2").is_dir()


def test_a_server_dies_with_its_parent_and_its_data_goes_too() -> None:
    code = (
        "import os, threading\n"
        "from chain_backup.zookeeper.embedded import EmbeddedZooKeeper\n"
        "server = EmbeddedZooKeeper()\n"
        "thread = threading.Thread(target=server.start); thread.start(); thread.join()\n"
        "print(server.pid, server._directory, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
    finally:
        parent.kill()
        parent.communicate()
    wait_until(lambda: _dead(int(pid)), "the server's end")
    wait_until(lambda: not os.path.exists(directory), "the data's end")


def _dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperStartError, match="Cannot assign requested address"):
        EmbeddedZooKeeper(bind="203.0.113.7").start()  # an address for documentation: no machine has it
    with pytest.raises(ZooKeeperStartError, match="needs Java"):
        EmbeddedZooKeeper(java="no-such-java").start()
    with pytest.raises(ZooKeeperStartError, match="lacks the jars of zookeeper"):
        EmbeddedZooKeeper(jars=tmp_path).start()
    with pytest.raises(ZooKeeperStartError, match="IPv4"):
        EmbeddedZooKeeper(bind="::1").start()
    (tmp_path / "file").write_text("")
    with pytest.raises(ZooKeeperStartError, match="cannot be started"):
        EmbeddedZooKeeper(directory=tmp_path / "file" / "zk").start()


# --- slots ---


def test_a_slot_is_seen_and_gone(bench: Bench) -> None:
    registry = bench.registry()
    session, events = bench.slot(3)
    until(bench.events, [SlotNodeSeen(3, slot_record(3))])
    until(events, [SessionOpened()])
    session.close()
    until(bench.events, [SlotNodeSeen(3, slot_record(3)), SlotNodeGone(3, slot_record(3))])
    registry.close()
    assert events == [SessionOpened()]


def test_a_slot_may_come_before_its_coordinator(bench: Bench) -> None:
    _, events = bench.slot(0)
    client = bench.raw()
    assert client.exists(bench.path("slots")) is None
    bench.registry()
    until(bench.events, [SlotNodeSeen(0, slot_record(0))])
    until(events, [SessionOpened()])


def test_creating_a_session_does_not_wait_for_the_server(bench: Bench) -> None:
    started = time.monotonic()
    session = SlotSession("127.0.0.1:1", "nobody", 0, slot_record(0), 30.0, lambda event: None)
    session.close()
    assert time.monotonic() - started < CLOSE_BOUND_S


def test_an_expired_session_is_told_once_and_never_registers_again(bench: Bench) -> None:
    bench.registry()
    session, events = bench.slot(2)
    until(events, [SessionOpened()])
    expire(session, bench.hosts)
    wait_until(lambda: any(isinstance(event, SessionExpired) for event in events), "the expiry")
    until(bench.events, [SlotNodeSeen(2, slot_record(2)), SlotNodeGone(2, slot_record(2))])
    wait_until(lambda: not any("zookeeper" in t.name for t in session.client._handler._threads if t.is_alive()), "end")
    assert [type(event) for event in events][-1] is SessionExpired
    assert sum(isinstance(event, SessionExpired) for event in events) == 1
    assert bench.raw().exists(bench.path("slots/2")) is None


def test_a_hung_slot_expires_by_itself(bench: Bench) -> None:
    """Its connection stays, but nothing passes: the coordinator learns it after the session timeout."""
    bench.registry()
    proxy = bench.proxy()
    _, events = bench.slot(1, hosts=proxy.hosts, timeout_s=SHORT_S)
    until(events, [SessionOpened()])
    proxy.mode = "dead"
    until(bench.events, [SlotNodeSeen(1, slot_record(1)), SlotNodeGone(1, slot_record(1))])
    wait_until(lambda: SessionSuspended() in events, "the slot's own notice")
    proxy.mode = "pass"
    proxy.cut()
    wait_until(lambda: any(isinstance(event, SessionExpired) for event in events), "the expiry")


def test_a_new_incarnation_takes_the_node_of_a_dead_one_at_once(bench: Bench) -> None:
    bench.registry()
    proxy = bench.proxy()
    _, old = bench.slot(5, hosts=proxy.hosts)
    until(old, [SessionOpened()])
    proxy.mode = "dead"  # killed, say, but its session lives on
    started = time.monotonic()
    _, new = bench.slot(5, incarnation=2)
    until(new, [SessionOpened()])
    assert time.monotonic() - started < TIMEOUT_S
    seen = [SlotNodeSeen(5, slot_record(5)), SlotNodeGone(5, slot_record(5)), SlotNodeSeen(5, slot_record(5, 2))]
    until(bench.events, seen)


def test_a_replaced_slot_is_told(bench: Bench) -> None:
    bench.registry()
    _, old = bench.slot(5)
    until(old, [SessionOpened()])
    _, new = bench.slot(5, incarnation=2)
    until(new, [SessionOpened()])
    until(old, [SessionOpened(), SessionExpired("slot 5 was registered again by another process")])


def test_an_older_incarnation_does_not_take_the_node_of_a_newer_one(bench: Bench) -> None:
    bench.registry()
    _, new = bench.slot(5, incarnation=2)
    until(new, [SessionOpened()])
    _, old = bench.slot(5, incarnation=1)
    until(old, [SessionExpired("slot 5 was registered again by another process")])
    assert new == [SessionOpened()]


def test_a_slot_whose_node_was_removed_makes_it_again(bench: Bench) -> None:
    bench.registry()
    _, events = bench.slot(6)
    until(events, [SessionOpened()])
    until(bench.events, [SlotNodeSeen(6, slot_record(6))])
    client = bench.raw()
    for _ in range(3):
        before = len(bench.events)
        client.delete(bench.path("slots/6"))
        wait_until(lambda: len(bench.events) >= before + 2, "the node's return")  # noqa: B023
    assert events == [SessionOpened()]
    assert bench.events[-1] == SlotNodeSeen(6, slot_record(6))


def test_what_is_no_registration_is_ignored(bench: Bench) -> None:
    bench.registry()
    client = bench.raw()
    client.create(bench.path("slots/8"), b"nonsense")
    client.create(bench.path("slots/eight"), b"nonsense")
    _, events = bench.slot(9)
    until(bench.events, [SlotNodeSeen(9, slot_record(9))])
    until(events, [SessionOpened()])


# --- the coordinator ---


def test_one_coordinator_at_a_time(bench: Bench) -> None:
    first = bench.registry()
    second = bench.registry(elect=False)
    with pytest.raises(CoordinatorElsewhere, match=f"process {os.getpid()} on"):
        second.elect(0.3)
    with pytest.raises(CoordinatorElsewhere, match="not elected"):
        second.write(chains(1))
    with ThreadPoolExecutor(1) as pool:
        elected = pool.submit(second.elect, 10)
        first.write(chains(1))
        first.close()
        elected.result(timeout=60)
    assert second.read() == by_subtask(chains(1))
    second.write(chains(2))


def test_a_dead_coordinator_is_followed_after_its_session(bench: Bench) -> None:
    proxy = bench.proxy()
    bench.registry(hosts=proxy.hosts, timeout_s=SHORT_S)
    _, slot = bench.slot(0)
    until(slot, [SessionOpened()])
    proxy.mode = "dead"
    bench.events.clear()
    bench.registry()
    until(slot, [SessionOpened(), SessionExpired("another driver coordinates the application now")])


def test_a_coordinator_that_is_known_to_have_ended_is_followed_at_once(bench: Bench) -> None:
    """The session of the one before is alive, as far as ZooKeeper knows; only its mark makes the difference."""
    follow("first", [])
    try:
        first = bench.registry()
        follow("second", ["another"])
        with pytest.raises(CoordinatorElsewhere):
            bench.registry(elect=False).elect(0.3)
        follow("second", ["another", "first"])
        second = bench.registry(elect=False)
        second.elect(0.3)
        second.write(chains(2))
        with pytest.raises(CoordinatorElsewhere):
            first.write(chains(3))
        follow("third", [])
        with pytest.raises(CoordinatorElsewhere):
            bench.registry(elect=False).elect(0.3)
    finally:
        follow("", [])


def test_a_coordinator_whose_session_expired_takes_its_place_again(bench: Bench) -> None:
    registry = bench.registry()
    registry.write(chains(1))
    bench.slot(0)
    until(bench.events, [SlotNodeSeen(0, slot_record(0))])
    expire(registry, bench.hosts)
    wait_until(lambda: RegistryReconnected() in bench.events, "the coordinator's return")
    assert bench.raw().exists(bench.path("coordinator")).ephemeralOwner == registry.client.session
    registry.write(chains(2))
    assert registry.read() == by_subtask(chains(2))
    assert [event for event in bench.events if isinstance(event, SlotNodeGone)] == []


def test_a_replaced_coordinator_writes_nothing_and_is_told(bench: Bench) -> None:
    proxy = bench.proxy()
    old = bench.registry(hosts=proxy.hosts, timeout_s=SHORT_S)
    old.write(chains(1))
    proxy.mode = "dead"
    events, bench.events = bench.events, []
    new = bench.registry()
    new.write(chains(7))
    _answer_again(proxy)
    with pytest.raises(CoordinatorElsewhere):
        old.write(chains(3), timeout_s=10)
    wait_until(lambda: any(isinstance(event, RegistryLost) and event.final for event in events), "the news")
    assert isinstance(events[-1], RegistryLost) and f"process {os.getpid()}" in events[-1].reason
    assert new.read() == by_subtask(chains(7))
    old.close(clean=True)  # it is not its own any more
    assert new.read() == by_subtask(chains(7))


def test_two_applications_do_not_meet(bench: Bench, server: EmbeddedZooKeeper) -> None:
    other = Bench(server.hosts, "an other/one")
    with other.closing:
        mine, theirs = bench.registry(), other.registry()
        bench.slot(0)
        other.slot(1)
        mine.write(chains(1))
        theirs.write(chains(5))
        until(bench.events, [SlotNodeSeen(0, slot_record(0))])
        until(other.events, [SlotNodeSeen(1, slot_record(1))])
        theirs.close(clean=True)
        assert mine.read() == by_subtask(chains(1))
        assert bench.raw().exists("/flinkplus/an%20other%2Fone") is None
    assert bench.events == [SlotNodeSeen(0, slot_record(0))]


def test_a_clean_end_leaves_nothing_even_when_slots_are_slow_to_go(bench: Bench) -> None:
    registry = bench.registry()
    _, events = bench.slot(0)
    until(events, [SessionOpened()])
    registry.write(chains(1))
    registry.close(clean=True)
    client = bench.raw()
    assert client.get_children("/flinkplus").count(bench.application) == 0
    assert events == [SessionOpened()]  # it does not come back by itself, and was not told anything wrong


def test_a_namespace_of_the_ensemble_may_be_given(bench: Bench) -> None:
    spaced = Bench(f"{bench.hosts}/some/team", "job")
    with spaced.closing:
        spaced.registry().write(chains(1))
        assert bench.raw().exists("/some/team/flinkplus/job/subtasks/count+out[0]") is not None


# --- chain records ---


def test_records_are_written_together_and_read_back(bench: Bench) -> None:
    registry = bench.registry()
    assert registry.read() == {}
    registry.write(chains(1))
    registry.write(chains(2)[:2])
    registry.write([])
    assert registry.read() == by_subtask(chains(2)[:2] + chains(1)[2:])


def test_a_record_that_another_changed_stops_the_whole_write(bench: Bench) -> None:
    registry = bench.registry()
    registry.write(chains(1))
    client = bench.raw()
    client.set(bench.path("subtasks/count+out[2]"), chains(9)[2].encode())
    with pytest.raises(StaleRecord, match=r"count\+out\[2\]"):
        registry.write(chains(2))
    assert registry.read() == by_subtask([*chains(1)[:2], chains(9)[2], chains(1)[3]])
    registry.write(chains(10))  # read, so known
    client.delete(bench.path("subtasks/count+out[0]"))
    with pytest.raises(StaleRecord, match=r"count\+out\[0\]"):
        registry.write(chains(11))
    client.create(bench.path("subtasks/new[0]"), b"?")
    with pytest.raises(StaleRecord, match=r"new\[0\]"):
        registry.write([ChainRecord("new[0]", 1, (0,), 0)])
    with pytest.raises(BadRecord, match=r"new\[0\]"):
        registry.read()


def test_records_of_chains_that_are_no_more_are_removed_with_the_write_of_all(bench: Bench) -> None:
    registry = bench.registry()
    registry.write(chains(1, subtasks=6))
    registry.write(chains(2)[:1])
    assert len(registry.read()) == 6, "others stay, unless a write is of all there are"
    client = bench.raw()
    client.delete(bench.path("subtasks/count+out[5]"))
    client.set(bench.path("subtasks/count+out[4]"), b"?")
    registry.write(chains(3), whole=True)
    assert registry.read() == by_subtask(chains(3))
    registry.write(chains(4, subtasks=5), whole=True)
    assert registry.read() == by_subtask(chains(4, subtasks=5))


def test_a_driver_that_was_replaced_removes_no_record(bench: Bench) -> None:
    registry = bench.registry()
    registry.write(chains(1))
    bench.raw().set(bench.path("epoch"), b"")
    with pytest.raises(CoordinatorElsewhere):
        registry.write(chains(2)[:1], whole=True)
    assert registry.read() == by_subtask(chains(1))


def test_the_next_driver_removes_the_records_of_the_one_before(bench: Bench) -> None:
    first = bench.registry()
    first.write(chains(1, subtasks=8))
    first.close()
    second = bench.registry()
    second.write(chains(2, subtasks=2), whole=True)
    assert second.read() == by_subtask(chains(2, subtasks=2))


def test_writes_from_many_threads_all_count(bench: Bench) -> None:
    registry = bench.registry()
    registry.write(chains(1))
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(registry.write, chains(generation)) for generation in range(2, 42)]:
            done.result()
    _, stat = bench.raw().get(bench.path("subtasks/count+out[0]"))
    assert stat.version == 40


def test_records_of_many_subtasks_are_one_transaction(bench: Bench) -> None:
    registry = bench.registry()
    for generation in (1, 2):
        records = chains(generation, subtasks=16)
        registry.write(records)
        paths = [bench.path(f"subtasks/{record.subtask}") for record in records]
        assert len({bench.raw().get(path)[1].mzxid for path in paths}) == 1, "one transaction has one number"


# --- no server, lost answers ---


def test_an_outage_in_mid_job_longer_than_the_sessions(own_server: EmbeddedZooKeeper, own_bench: Bench) -> None:
    bench = own_bench
    registry = bench.registry(timeout_s=2 * SHORT_S)
    registry.write(chains(1))
    _, slot = bench.slot(0, timeout_s=2 * SHORT_S)
    until(slot, [SessionOpened()])
    until(bench.events, [SlotNodeSeen(0, slot_record(0))])
    owner = registry.client.session
    own_server.kill()
    until(slot, [SessionOpened(), SessionSuspended()])
    with pytest.raises(RegistryUnavailable, match="no connection"):
        registry.write(chains(2), timeout_s=2.5 * SHORT_S)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(registry.write, chains(3), 20)
        own_server.restart()
        writing.result(timeout=60)
    until(slot, [SessionOpened(), SessionSuspended(), SessionReconnected()])
    until(bench.events, [SlotNodeSeen(0, slot_record(0)), RegistryLost("connection lost"), RegistryReconnected()])
    assert registry.read() == by_subtask(chains(3))
    assert registry.client.session == owner


def test_a_slot_that_dies_during_an_outage_is_missed_afterwards(
    own_server: EmbeddedZooKeeper, own_bench: Bench
) -> None:
    bench = own_bench
    bench.registry()
    dying, _ = bench.slot(0, timeout_s=SHORT_S)
    until(bench.events, [SlotNodeSeen(0, slot_record(0))])
    own_server.kill()
    wait_until(lambda: bench.events[-1] == RegistryLost("connection lost"), "the loss")
    dying.close()
    bench.slot(1)
    own_server.restart()
    wait_until(lambda: SlotNodeGone(0, slot_record(0)) in bench.events, "the dead slot's expiry")
    wait_until(lambda: SlotNodeSeen(1, slot_record(1)) in bench.events, "the new slot")


def test_a_connection_that_is_never_answered_does_not_cost_the_session(bench: Bench) -> None:
    """As by a server that is just starting: it has accepted the connection before it can close it."""
    proxy = bench.proxy()
    bench.registry()
    _, slot = bench.slot(0, hosts=proxy.hosts)
    until(slot, [SessionOpened()])
    until(bench.events, [SlotNodeSeen(0, slot_record(0))])
    proxy.ignored = 1
    proxy.cut()
    until(slot, [SessionOpened(), SessionSuspended(), SessionReconnected()])
    assert bench.events == [SlotNodeSeen(0, slot_record(0))] and proxy.ignored == 0


@pytest.mark.parametrize("first", [True, False], ids=["created", "changed"])
def test_a_write_whose_answer_is_lost_is_not_done_twice(bench: Bench, first: bool) -> None:
    proxy = bench.proxy()
    registry = bench.registry(hosts=proxy.hosts, timeout_s=3.0)
    if not first:
        registry.write(chains(1, subtasks=6))
    client = bench.raw()
    path = bench.path("subtasks/count+out[3]")
    versions = 0 if first else 1
    proxy.mode = "deaf"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(registry.write, chains(2), whole=True)
        wait_until(lambda: _version(client, path) == versions, "the write")
        _answer_again(proxy)
        writing.result(timeout=60)
    assert _version(client, path) == versions
    registry.write(chains(3))
    assert registry.read() == by_subtask(chains(3))


@pytest.mark.parametrize("mode", ["deaf", "dead"])
def test_a_removal_given_up_is_made_good_by_the_next_write(bench: Bench, mode: str) -> None:
    """Whether the server has done it or not."""
    proxy = bench.proxy()
    registry = bench.registry(hosts=proxy.hosts, timeout_s=10.0)
    registry.write(chains(1, subtasks=6))
    proxy.mode = mode
    with pytest.raises(RegistryUnavailable):
        registry.write(chains(2), timeout_s=0.5, whole=True)
    proxy.mode = "pass"
    proxy.cut()
    registry.write(chains(3)[:1])
    assert registry.read() == by_subtask(chains(3)[:1] + chains(2 if mode == "deaf" else 1)[1:])
    registry.write(chains(4, subtasks=5), whole=True)
    assert registry.read() == by_subtask(chains(4, subtasks=5))


def _version(client: KazooClient, path: str) -> int | None:
    stat = client.exists(path)
    return None if stat is None else int(stat.version)


@pytest.mark.parametrize("mode", ["deaf", "dead"])
def test_what_became_of_a_write_given_up_is_found_out_by_the_next(bench: Bench, mode: str) -> None:
    proxy = bench.proxy()
    registry = bench.registry(hosts=proxy.hosts, timeout_s=10.0)
    registry.write(chains(1))
    proxy.mode = mode
    with pytest.raises(RegistryUnavailable):
        registry.write(chains(2), timeout_s=0.5)
    proxy.mode = "pass"
    proxy.cut()
    registry.write(chains(3)[:2])
    expected = chains(2 if mode == "deaf" else 1)
    assert registry.read() == by_subtask(chains(3)[:2] + expected[2:])


def test_another_ones_change_while_an_answer_is_lost_is_not_taken_for_ours(bench: Bench) -> None:
    proxy = bench.proxy()
    registry = bench.registry(hosts=proxy.hosts, timeout_s=3.0)
    registry.write(chains(1))
    proxy.mode = "dead"
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(registry.write, chains(2))
        wait_until(lambda: bool(registry._chains._open), "the write being sent")
        bench.raw().set(bench.path("subtasks/count+out[1]"), chains(8)[1].encode())
        _answer_again(proxy)
        with pytest.raises(StaleRecord, match=r"count\+out\[1\]"):
            writing.result(timeout=60)
    assert registry.read()["count+out[0]"] == chains(1)[0]


def test_without_a_server_an_election_ends_in_time(bench: Bench) -> None:
    registry = bench.registry(hosts="127.0.0.1:1", elect=False)
    started = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="becoming coordinator"):
        registry.elect(0.5)
    assert time.monotonic() - started < CLOSE_BOUND_S


def test_an_election_whose_answers_are_lost_is_won_all_the_same(bench: Bench) -> None:
    for delay_ms in range(0, 24, 3):
        bench.application = f"cut-after-{delay_ms}"
        proxy = bench.proxy()
        registry = bench.registry(hosts=proxy.hosts, elect=False, timeout_s=5.0)
        wait_until(lambda: registry.client.session is not None, "a session")  # noqa: B023
        proxy.mode = "deaf"
        cut = threading.Timer(delay_ms / 1000, _answer_again, [proxy])
        cut.start()
        registry.elect(10)
        cut.join()
        registry.write(chains(1))
        registry.close()


def _answer_again(proxy: Proxy) -> None:
    proxy.mode = "pass"
    proxy.cut()


def test_a_restart_on_a_port_that_is_taken_gets_another_port_and_keeps_the_data(
    own_server: EmbeddedZooKeeper, own_bench: Bench
) -> None:
    own_bench.raw().create("/kept", b"yes")
    own_server.kill()
    before = own_server.hosts
    host, _, port = before.rpartition(":")
    with socket.create_server((host, int(port))):
        own_bench.hosts = own_server.restart()
        assert own_bench.hosts == own_server.hosts != before
    assert own_bench.raw().get("/kept")[0] == b"yes"


def test_a_job_whose_servers_port_is_taken_goes_on_with_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger takes the port in the moment the server dies, takes connections, and says nothing."""
    monkeypatch.setattr(registry_module, "URGENT_TIMEOUT_S", 120.0)  # for a machine that is busy
    others = servers()
    certificates = made_for("job")
    tls = context(certificates, False)
    options = Options(parallelism=2, session_timeout=TIMEOUT_S)
    told: list[object] = []
    given_up: list[str] = []
    registry = JobRegistry(
        options, "job", tmp_path / "zk", "127.0.0.1", "127.0.0.1", told.append, given_up.append, None, certificates
    )
    session_events: list[object] = []
    with contextlib.ExitStack() as closing:
        closing.callback(registry.close)
        registry.begin()
        registry.write([record_of(1, 0, 1)], urgent=True)
        before = registry.hosts()
        session = SlotSession(before, "job", 0, slot_record(0), TIMEOUT_S, session_events.append, tls=tls)
        closing.callback(session.close)
        wait_until(lambda: session_events == [SessionOpened()], "the session")
        (server,) = servers(others)
        restart = EmbeddedZooKeeper.restart

        def restart_beside_a_thief(embedded: EmbeddedZooKeeper) -> str:
            closing.enter_context(socket.create_server(("127.0.0.1", int(before.rpartition(":")[2]))))
            return restart(embedded)

        monkeypatch.setattr(EmbeddedZooKeeper, "restart", restart_beside_a_thief)
        server.kill()
        registry.write([record_of(2, 1, 0)], urgent=True)
        wait_until(lambda: RegistryMoved(registry.hosts()) in told, "the news")
        assert registry.hosts() != before
        session.client.move_to(registry.hosts())  # as the slot does
        wait_until(lambda: session_events[-1] == SessionReconnected(), "the session is as it was")
        assert not [event for event in told if isinstance(event, SlotNodeGone)] and given_up == []
        assert registry.server_restarts == 1
    assert servers(others) == []


@pytest.mark.parametrize("fails", [False, True], ids=["starts", "fails"])
def test_the_server_of_a_job_of_one_slot_starts_with_its_first_standby(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """If it does not start, the job is not ended: it only has no ZooKeeper."""
    others = servers()
    events: list[object] = []
    given_up: list[str] = []
    options = Options(parallelism=1, session_timeout=TIMEOUT_S)
    registry = JobRegistry(options, "job", tmp_path / "zk", "127.0.0.1", "127.0.0.1", events.append, given_up.append)
    if fails:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with contextlib.closing(registry):
        registry.begin()
        registry.write([record_of(1, 0)], urgent=True, whole=True)
        assert (registry.begun, registry.moved, servers(others)) == (False, None, [])
        if fails:
            for _ in range(2):
                with pytest.raises(ZooKeeperStartError):
                    registry.write([record_of(2, 0, 1)], urgent=True, whole=True)
            wait_until(lambda: len(events) == 1, "the loss of the server")
            assert isinstance(events[0], RegistryLost) and not events[0].final
        else:
            registry.write([record_of(2, 0, 1)], urgent=True, whole=True)
            assert RegistryMoved(registry.hosts()) in events and str(registry.moved) == registry.hosts()
            assert len(servers(others)) == 1
            registry.write([record_of(3, 0)], urgent=True, whole=True)
        assert (registry.begun, given_up) == (True, [])
    assert servers(others) == []


def servers(others: Sequence[psutil.Process] = ()) -> list[psutil.Process]:
    """The servers that this process has started, but for ``others``."""
    children = [child for child in psutil.Process().children() if child not in others]
    return [child for child in children if child.status() != psutil.STATUS_ZOMBIE and MAIN_CLASS in child.cmdline()]


def record_of(generation: int, *members: int) -> ChainEntry:
    return ChainEntry(SubtaskId("count", 0), Generation(generation), members)


def test_a_server_that_cannot_be_started_again_is_not_waited_for_and_none_is_started_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = servers()
    told: list[object] = []
    given_up: list[str] = []
    registry = JobRegistry(
        Options(parallelism=2), "job", tmp_path / "zk", "127.0.0.1", "127.0.0.1", told.append, given_up.append
    )
    registry.begin()
    try:
        registry.write([record_of(1, 0, 1)], urgent=True)

        def refuse(server: EmbeddedZooKeeper) -> str:
            raise ZooKeeperStartError("no memory")

        with monkeypatch.context() as patch:
            patch.setattr(EmbeddedZooKeeper, "restart", refuse)
            (server,) = servers(others)
            server.kill()
            began_s = time.monotonic()
            with pytest.raises(
                RegistryUnavailable, match=r"count\[0\]: its server is down: ZooKeeperStartError: no mem"
            ):
                registry.write([record_of(2, 1, 0)], urgent=True)
            assert time.monotonic() - began_s < URGENT_TIMEOUT_S, "a rollback waits for it"
        wait_until(lambda: told[-1] == RegistryReconnected(), "the server is back")
        registry.write([record_of(2, 1, 0)], urgent=True)
        assert RegistryLost("its server is down: ZooKeeperStartError: no memory") in told
        wait_until(lambda: registry._down is None, "the supervisor knows that it serves; clients may know it before")
        (server,) = servers(others)
        server.kill()
        wait_until(lambda: [one for one in servers(others) if one.pid != server.pid] != [], "it is being started")
    finally:
        registry.close()
    assert servers(others) == [] and given_up == [] and registry.server_restarts == 2


def test_a_server_that_hangs_is_started_again_and_a_failover_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "URGENT_TIMEOUT_S", 120.0)  # for a machine that is busy
    monkeypatch.setattr(supervisor, "HANG_S", 2.0)
    others = servers()
    options = Options(parallelism=2, session_timeout=1.0)
    told: list[object] = []
    registry = JobRegistry(options, "job", tmp_path / "zk", "127.0.0.1", "127.0.0.1", told.append, lambda reason: None)
    registry.begin()
    try:
        registry.write([record_of(1, 0, 1)], urgent=True)
        session_events: list[object] = []
        with contextlib.closing(
            SlotSession(registry.hosts(), "job", 0, slot_record(0), TIMEOUT_S, session_events.append)
        ):
            wait_until(lambda: session_events == [SessionOpened()], "the session")
            (server,) = servers(others)
            before = registry.server_restarts  # on a busy machine it may have seemed to hang before
            server.suspend()
            registry.write([record_of(2, 1, 0)], urgent=True)
            wait_until(lambda: registry.server_restarts > before, "it is counted")
            assert not server.is_running()
            wait_until(lambda: session_events[-1] == SessionReconnected(), "the session is as it was")
            assert not [event for event in told if isinstance(event, SlotNodeGone)], "no session has ended meanwhile"
        (server,) = servers(others)
        server.suspend()
        _assert_soon(registry.close)
    finally:
        registry.close()
    assert servers(others) == []


@pytest.mark.long
def test_close_is_bounded_whatever_the_server_does(own_server: EmbeddedZooKeeper, own_bench: Bench) -> None:
    bench = own_bench
    pid = own_server.pid
    assert pid is not None

    def hang() -> None:
        os.kill(pid, signal.SIGSTOP)

    def silence() -> None:
        proxy.mode = "dead"

    proxy = bench.proxy()
    for fault, hosts in (
        (lambda: None, bench.hosts),
        (silence, proxy.hosts),
        (hang, bench.hosts),
        (own_server.kill, ""),
    ):
        bench.application = f"before {fault}"  # what a fault lets stand is not in the way of the next
        registry = bench.registry(hosts=hosts, timeout_s=20.0)
        session, events = bench.slot(0, hosts=hosts)
        until(events, [SessionOpened()])
        fault()
        _assert_soon(lambda: registry.close(clean=True))  # noqa: B023
        _assert_soon(session.close)
        if fault is hang:
            os.kill(pid, signal.SIGCONT)
        assert_no_threads()


def _assert_soon(call: Callable[[], None]) -> None:
    started = time.monotonic()
    call()
    assert time.monotonic() - started < CLOSE_BOUND_S


def test_slots_come_and_go_at_random_and_the_last_state_is_told(bench: Bench) -> None:
    """Sessions end in all ways while the coordinator's connection is cut: what was told adds up to what is."""
    import random

    rng = random.Random(11)
    proxy = bench.proxy()
    bench.registry(hosts=proxy.hosts, timeout_s=5.0)
    living: dict[int, SlotSession] = {}
    incarnations: dict[int, int] = dict.fromkeys(range(4), 0)
    for _ in range(40):
        slot = rng.randrange(4)
        if slot in living and rng.random() < 0.5:
            living.pop(slot).close()
        else:
            if slot in living:
                living.pop(slot).close()
            incarnations[slot] += 1
            session, events = bench.slot(slot, incarnations[slot])
            living[slot] = session
            wait_until(lambda: SessionOpened() in events, "registration")  # noqa: B023
        if rng.random() < 0.15:
            proxy.cut()

    def told() -> dict[int, int]:
        state: dict[int, int] = {}
        for event in list(bench.events):
            if isinstance(event, SlotNodeSeen):
                assert event.slot not in state
                state[event.slot] = event.record.incarnation
            elif isinstance(event, SlotNodeGone):
                assert state.pop(event.slot) == event.record.incarnation
        return state

    wait_until(lambda: told() == {slot: incarnations[slot] for slot in living}, "the last state")


def test_strangers_cannot_take_all_of_a_servers_memory(server: EmbeddedZooKeeper) -> None:
    """Each announces the largest request, for which the server has room before it comes: a busy server accepts more
    connections than it should, perhaps all of them. A larger one ends the connection."""
    assert 400 * server.request_bytes < 128 << 20, "less than half of its memory"
    host, _, port = server.hosts.rpartition(":")
    with contextlib.ExitStack() as held:
        strangers: list[socket.socket] = []
        refused = 0
        for _ in range(400):
            try:
                strangers.append(held.enter_context(socket.create_connection((host, int(port)), 5.0)))
                strangers[-1].sendall((server.request_bytes - 1).to_bytes(4, "big") + b"x")
            except OSError:
                refused += 1
        wait_until(lambda: refused > 0 or bool(select.select(strangers, [], [], 0)[0]), "there are too many")
        assert server.alive, server.end
    with contextlib.closing(KazooClient(server.hosts)) as client:
        client.start(20)
        assert client.exists("/zookeeper")
        client.stop()
    for size, ends in ((server.request_bytes - 1, False), (server.request_bytes + 1, True)):
        with socket.create_connection((host, int(port)), 5.0) as stranger:
            stranger.sendall(size.to_bytes(4, "big") + b"x")
            assert bool(select.select([stranger], [], [], 5.0 if ends else 0.5)[0]) == ends


def test_what_an_access_list_closes_is_closed_to_strangers(server: EmbeddedZooKeeper) -> None:
    events: list[Any] = []
    slot_events: list[Any] = []
    registry = Registry(server.hosts, "closed", session_timeout_s=10.0, deliver=events.append, auth="me:secret:x")
    registry.elect(10)
    registry.write([ChainRecord("count[0]", 1, (0, 1), 0)])
    session = SlotSession(server.hosts, "closed", 0, slot_record(0), 10.0, slot_events.append, "me:secret:x")
    wait_until(lambda: events == [SlotNodeSeen(0, slot_record(0))], "the slot is seen")
    base = "/flinkplus/closed"
    attempts: list[Callable[[KazooClient], object]] = [
        lambda client: client.get(f"{base}/subtasks/count[0]"),
        lambda client: client.set(f"{base}/subtasks/count[0]", b"{}"),
        lambda client: client.set(f"{base}/epoch", b""),
        lambda client: client.delete(f"{base}/coordinator"),
        lambda client: client.delete(f"{base}/slots/0"),
        lambda client: client.create(f"{base}/slots/1", b"{}"),
        lambda client: client.get_children(f"{base}/slots"),
        lambda client: client.set_acls(f"{base}/slots", OPEN_ACL_UNSAFE),
    ]
    for stranger in (KazooClient(server.hosts), KazooClient(server.hosts, auth_data=[("digest", "me:guessed")])):
        stranger.start(10)
        for attempt in attempts:
            with pytest.raises(NoAuthError):
                attempt(stranger)
        stranger.stop()
        stranger.close()
    assert registry.read() == {"count[0]": ChainRecord("count[0]", 1, (0, 1), 0)}
    session.close()
    registry.close(clean=True)
    assert slot_events == [SessionOpened()]
    with contextlib.closing(KazooClient(server.hosts)) as client:
        client.start(10)
        assert not client.exists("/flinkplus/closed")
        client.stop()
