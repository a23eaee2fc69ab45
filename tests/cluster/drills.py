"""Drills on the job's host of a cluster: a WordCount for each, in whose middle something happens to hosts or network;
what was seen, as JSON.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.cluster.control import Control
from experiments.cluster.place import Place
from flinkplus import StreamEnvironment
from flinkplus.api.job import JobHandle
from flinkplus.cli.session import open_session
from flinkplus.errors import RedundancyAtRisk
from tests.integration.cluster_job import RATE, REPEAT, WORKERS, until

AWAY_S = 3.0
DARK_S = 2.0
JOB = "job"
ZOOKEEPERS = ("zk-1", "zk-2", "zk-3")


class Drill:
    """One job with an accident. ``control``: orders to the harness. ``standbys``: whether the job has some."""

    def __init__(self, job: JobHandle, control: Control, standbys: bool = True) -> None:
        self.job = job
        self.standbys = standbys
        self.control = control
        self.struck_s = 0.0
        self.before = job.placement()
        self.hosts = list(dict.fromkeys(self.before[name] for name in sorted(self.before) if "count" in name))
        self.hurt: set[str] = set()

    def order(self, order: str, host: str, *peers: str) -> None:
        """The first order is when it begins."""
        for peer in peers or (None,):
            struck_s = self.control.order(order, host, peer)
            self.struck_s = self.struck_s or struck_s
        if order not in ("heal", "resume"):
            self.hurt.update((*host.split(","), *peers))

    def recovered(self, count: int = 1) -> None:
        """Wait for failovers, by standbys or by rollback."""
        until(self.job, lambda: len([one for one in self.job.recoveries() if _is_done(one)]) >= count)

    def ends(self, order: str, host: str) -> None:
        """It lasts longer than the recovery; where there are no standbys, that can only begin when it is over."""
        if self.standbys:
            self.recovered()
        time.sleep(AWAY_S)
        self.order(order, host)
        self.recovered()
        self.checkpoints()

    def checkpoints(self, count: int = 2) -> None:
        """Wait until the job has got somewhere."""
        before = self.job.metrics()["checkpoints_completed"]
        until(self.job, lambda: self.job.metrics()["checkpoints_completed"] >= before + count)

    def told(self, name: str) -> dict[str, Any]:
        recoveries = [one for one in self.job.recoveries() if one["mode"] != "handover"]
        return {
            "drill": name,
            "hosts": self.hosts,
            "struck_s": self.struck_s,
            "noticed_ms": [round((one["begin_s"] - self.struck_s) * 1e3) for one in recoveries],
            "recovered_ms": [
                None
                if one["recovery_ms"] is None
                else round((one["begin_s"] - self.struck_s) * 1e3 + one["recovery_ms"])
                for one in recoveries
            ],
            "recoveries": recoveries,
            "before": self.before,
            "after": self.job.placement(),
            "metrics": self.job.metrics(),
        }


def _is_done(recovery: dict[str, Any]) -> bool:
    return recovery["mode"] != "handover" and recovery["recovery_ms"] is not None


# --- what happens


def peers_cut(drill: Drill) -> None:
    """Two slots cannot reach each other, for good; the driver reaches both."""
    drill.order("cut", drill.hosts[1], drill.hosts[2])
    drill.recovered()


def peer_not_heard(drill: Drill) -> None:
    """What one slot sends to another is lost, for good."""
    drill.order("lose", drill.hosts[1], drill.hosts[2])
    drill.recovered()


def peers_cut_for_a_while(drill: Drill) -> None:
    drill.order("cut", drill.hosts[3], drill.hosts[0])
    drill.ends("heal", drill.hosts[3])


def all_peers_cut(drill: Drill) -> None:
    """A slot reaches the driver, and no other slot."""
    drill.order("cut", drill.hosts[1], *(host for host in drill.hosts if host != drill.hosts[1]))
    drill.recovered()


def driver_cut(drill: Drill) -> None:
    drill.order("cut", drill.hosts[1], JOB)
    drill.ends("heal", drill.hosts[1])


def driver_not_heard(drill: Drill) -> None:
    """What the driver sends to a slot is lost."""
    drill.order("lose", JOB, drill.hosts[1])
    drill.ends("heal", drill.hosts[1])


def driver_does_not_hear(drill: Drill) -> None:
    """What a slot sends to the driver is lost."""
    drill.order("lose", drill.hosts[1], JOB)
    drill.ends("heal", drill.hosts[1])


def zookeeper_cut(drill: Drill) -> None:
    """A slot reaches everybody but ZooKeeper: its session expires."""
    drill.order("cut", drill.hosts[1], *ZOOKEEPERS)
    drill.recovered()
    drill.order("heal", drill.hosts[1])
    drill.checkpoints()


def cut_off(drill: Drill) -> None:
    """A host is cut off from all, and comes back as a zombie."""
    drill.order("cut", drill.hosts[1])
    drill.ends("heal", drill.hosts[1])


def hangs(drill: Drill) -> None:
    drill.order("pause", drill.hosts[1])
    drill.ends("resume", drill.hosts[1])


def two_hosts(drill: Drill) -> None:
    """Two of four hosts die at once."""
    drill.order("kill", f"{drill.hosts[1]},{drill.hosts[3]}")
    drill.recovered()
    drill.checkpoints()


def two_hang(drill: Drill) -> None:
    """Two hosts hang at once, and come back as zombies."""
    hosts = drill.hosts[1], drill.hosts[-1]
    for host in hosts:
        drill.order("pause", host)
    drill.recovered()
    time.sleep(AWAY_S)
    for host in hosts:
        drill.order("resume", host)
    drill.checkpoints()


def driver_cut_off(drill: Drill) -> None:
    """The driver is cut off from all for a while: nothing is wrong with them."""
    drill.order("cut", JOB)
    time.sleep(DARK_S)
    drill.order("heal", JOB)
    drill.checkpoints(3)


def zookeeper_servers(drill: Drill) -> None:
    """A ZooKeeper server that follows dies and comes back; then the leader, and a host with it."""
    leader = next(server for server in ZOOKEEPERS if mode_of(server) == "leader")
    follower = next(server for server in ZOOKEEPERS if server != leader)
    drill.order("kill", follower)
    drill.checkpoints()
    drill.order("revive", follower)
    until(drill.job, lambda: mode_of(follower) == "follower")
    drill.struck_s = 0.0
    drill.order("kill", leader)
    drill.order("kill", drill.hosts[1])
    drill.recovered()
    drill.checkpoints()


def mode_of(server: str) -> str:
    """What a ZooKeeper server is in its ensemble; empty when it does not answer."""
    try:
        with socket.create_connection((server, 2181), 1.0) as connection:
            connection.sendall(b"srvr")
            with connection.makefile() as answer:
                return next((line.split()[1] for line in answer if line.startswith("Mode: ")), "")
    except OSError:
        return ""


def master(drill: Drill) -> None:
    """Spark's master dies; a failover after it works all the same."""
    drill.order("kill", "master")
    drill.checkpoints()
    drill.struck_s = 0.0
    drill.order("kill", drill.hosts[1])
    drill.recovered()


def drained(drill: Drill) -> None:
    """A host is drained, and then shut down; the others have its work and its standbys."""
    host = drill.hosts[1]
    drill.job.drain_host(host).await_done(60)
    drill.order("kill", host)
    drill.checkpoints(3)


def scaled(drill: Drill) -> None:
    """Three slots, each with a copy on each of the three hosts, cannot do without one of these, but with a spare slot
    on the fourth. That host dies as well; then the spare slot is none any more."""
    job, host = drill.job, drill.hosts[1]
    try:
        job.drain_host(host)
        raise AssertionError("three copies are on two hosts")
    except RedundancyAtRisk:
        pass
    scaling = job.scale_spares(1)
    scaling.await_done(60)
    job.drain_host(host).await_done(60)
    hosts = job.chain_hosts()
    assert all(len(set(held)) == 3 and host not in held for held in hosts.values()), hosts
    (spare,) = {held for chain in hosts.values() for held in chain}.difference(drill.hosts)
    job.undrain_host(host)
    drill.order("kill", spare)
    drill.recovered()
    until(job, lambda: job.missing_standbys() == 0)
    hosts = job.chain_hosts()
    assert all(len(set(held)) == 3 for held in hosts.values()), hosts
    job.scale_spares(0).await_done(60)
    hosts = job.chain_hosts()
    assert sorted(job.slot_pids()) == [0, 1, 2] and all(len(set(held)) == 3 for held in hosts.values()), hosts
    drill.checkpoints()


DRILLS: dict[str, Callable[[Drill], None]] = {
    drill.__name__: drill
    for drill in (
        peers_cut,
        peer_not_heard,
        peers_cut_for_a_while,
        all_peers_cut,
        driver_cut,
        driver_not_heard,
        driver_does_not_hear,
        zookeeper_cut,
        cut_off,
        hangs,
        two_hosts,
        two_hang,
        driver_cut_off,
        zookeeper_servers,
        master,
        drained,
        scaled,
    )
}


LONGER = {"scaled": 2.0}
"""How much more time a drill takes than others."""


def run(name: str, corpus: str, place: Place, directory: Path, given: dict[str, Any], session: Any) -> dict[str, Any]:
    """One drill, in a job of its own, with the options ``given``."""
    assert place.control is not None
    settings = {"parallelism": WORKERS, "checkpoint_interval": 0.3, **place.options(directory), **given}
    env = StreamEnvironment(session, **settings)
    rate = RATE / LONGER.get(name, 1.0)
    words = env.read_text(corpus, repeat=REPEAT, name="lines").tokenize(name="tokenize").throttle(rate)
    words.key_by("word").count(name="count").to_parquet(str(directory / "out"), name="out")
    with env.execute(name) as job:
        until(job, lambda: job.metrics()["checkpoints_completed"] >= 2)
        drill = Drill(job, place.control, "recovery" not in given)
        DRILLS[name](drill)
        job.await_finish(90 * LONGER.get(name, 1.0))
        told = drill.told(name)
    for host in sorted(drill.hurt):
        place.control.order("revive", host)
    return told


def main(corpus: str) -> None:
    """A line of input (drill, directory below the shared one, options as JSON) is a line of output."""
    place = Place.here()
    session = open_session(place.master, place.session_settings(WORKERS))
    try:
        for line in sys.stdin:
            name, directory, options = line.split(maxsplit=2)
            place.await_executors(session, WORKERS)
            told = run(name, corpus, place, place.shared / directory, json.loads(options), session)
            print(json.dumps(told), flush=True)
    finally:
        session.stop()


if __name__ == "__main__":
    main(sys.argv[1])
