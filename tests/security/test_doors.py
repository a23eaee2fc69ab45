"""The door of a job's own user: strangers at the port for commands keep nobody from it, and cannot come to it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flinkplus.errors import NoRunningJob
from flinkplus.runtime.operations.access_file import Access, call, read_access, write_access
from flinkplus.runtime.operations.command_server import SOCKET, CommandServer
from flinkplus.runtime.transport.auth import handshake
from flinkplus.runtime.transport.auth.credentials import Credentials
from flinkplus.runtime.transport.tcp.connections import parse_address
from tests.unit.runtime.operations.test_commands import CREDENTIALS, HOST, Add, Driver, wait_until

pytestmark = pytest.mark.security


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "flinkplus-job"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture
def driver(directory: Path) -> Iterator[Driver]:
    made = Driver(directory=directory)
    write_access(directory, made.access)
    yield made
    made.close()


def found(directory: Path) -> Access:
    return read_access(directory / "COMMANDS.json")


def test_a_crowd_at_the_port_keeps_no_shell_out(driver: Driver, directory: Path) -> None:
    """Nobody is taken at the port any more, and its queue is full: the shell does not stand in it."""
    driver.soon(driver.door._listener.hold)
    place = parse_address(driver.access.address)
    crowd = [socket.socket() for _ in range(2 * handshake.MAX_STRANGERS)]
    try:
        for stranger in crowd:
            stranger.setblocking(False)
            stranger.connect_ex(place)
        for number in range(3):
            assert call(found(directory), Add(number)) == {"sum": number + 1}
    finally:
        for stranger in crowd:
            stranger.close()


def test_only_who_may_enter_the_jobs_directory_comes_to_the_door(driver: Driver, directory: Path) -> None:
    access = found(directory)
    assert access.local == str(directory / SOCKET) and access == driver.access
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with pytest.raises(NoRunningJob):  # and the key is asked for there as well
        call(replace(access, credentials=Credentials(b"another")), Add(1))
    wait_until(lambda: driver.door.refusals.total == 1, "the refusal is counted")


def test_a_copy_of_the_access_file_goes_by_the_port(driver: Driver, directory: Path, tmp_path: Path) -> None:
    """As on another host; also where somebody has put a file, or a socket of their own, beside it."""
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    (elsewhere / SOCKET).write_text("")
    copy = write_access(elsewhere, driver.access)
    assert read_access(copy).local is None
    assert call(read_access(copy), Add(1)) == {"sum": 2}
    (elsewhere / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(elsewhere / SOCKET))
        if os.geteuid() == 0:
            os.chown(elsewhere / SOCKET, 1, 1)
            assert read_access(copy).local is None


def test_the_door_goes_with_the_job_and_is_not_needed(directory: Path, tmp_path: Path) -> None:
    driver = Driver(directory=directory)
    assert (directory / SOCKET).exists()
    driver.close()
    assert not (directory / SOCKET).exists()
    long = tmp_path / ("x" * 120)
    long.mkdir()
    driver = Driver(directory=long)
    try:
        assert not (long / SOCKET).exists() and isinstance(driver.door, CommandServer)
        assert call(driver.access, Add(1)) == {"sum": 2} and HOST in driver.access.address
        assert driver.access.credentials == CREDENTIALS
    finally:
        driver.close()
