"""Lines of a TCP server: in order, to its end; a step cannot be repeated."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from flinkplus.errors import InputError, InputLost
from flinkplus.sources.python import lines
from flinkplus.sources.python.lines import BUFFER_LINES, END, SocketLines, SocketReader
from tests.unit.sources.python.stock import Woken

PATIENCE_S = 10.0


class Client(Woken):
    """A reader of a server that the test plays."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.server.settimeout(PATIENCE_S)
        self.source = SocketLines("lines", "127.0.0.1", self.server.getsockname()[1])
        self.reader = SocketReader(self.source, index)
        self.reader.open(None)

    def begin(self) -> socket.socket:
        self.reader.begin(self.wake)
        return self.server.accept()[0]

    def read(self, max_rows: int = 100) -> list[str] | None:
        self.wait(lambda: self.reader.choose(max_rows) is not None)
        choice = self.reader.choose(max_rows)
        assert choice is not None
        batch = self.reader.read(choice)
        return None if batch is None else batch.column(0).to_pylist()


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.reader.close()
    made.server.close()


def test_lines_come_in_order_to_the_end(client: Client) -> None:
    with client.begin() as connection:
        assert client.reader.choose(10) is None
        connection.sendall("a\r\nü\nbr".encode())
        client.wait(lambda: client.reader.gauges() == {"lag_rows": 2})
        assert client.read(1) == ["a"] and client.read() == ["ü"]
        connection.sendall(b"oken \xff\n\nlast")
    found: list[Any] = []
    while (some := client.read()) is not None:
        found += some
    assert found == ["broken \N{REPLACEMENT CHARACTER}", "", "last"]
    assert client.reader.position() == 5 == client.reader.metrics["rows"]


def test_nothing_can_be_repeated_but_the_end(client: Client) -> None:
    with client.begin() as connection:
        connection.sendall(b"a\nb\n")
        client.wait(lambda: client.reader.choose(2) == 2)
        with pytest.raises(
            InputLost, match=r"source 'lines': 2 lines of 127\.0\.0\.1:.* a socket cannot be read again"
        ):
            client.reader.can_read(2)
        assert client.reader.can_read(END)


def test_another_subtask_ends_at_once() -> None:
    client = Client(index=1)
    client.reader.begin(lambda error: None)
    assert client.reader.choose(5) == END and client.reader.read(END) is None
    client.server.close()


def test_lines_that_are_not_read_stay_with_the_server(client: Client) -> None:
    with client.begin() as connection:
        connection.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1 << 30:
                sent += connection.send(b"x\n" * 8192)
        assert client.reader.gauges()["lag_rows"] <= BUFFER_LINES + lines.RECEIVED_BYTES


def test_a_line_that_never_ends_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    with client.begin() as connection:
        connection.sendall(b"x" * 2000)
        with pytest.raises(InputError, match="source 'lines': a line has more than 1000 bytes"):
            client.wait(lambda: False)


def test_a_server_that_is_not_there_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CONNECT_S", 0.2)
    client.server.close()
    client.reader.begin(client.wake)
    with pytest.raises(InputError, match=r"source 'lines': cannot connect to 127\.0\.0\.1:"):
        client.wait(lambda: False)


def test_what_is_no_position_is_an_error(client: Client) -> None:
    with pytest.raises(InputError, match="not a position"):
        client.reader.open({"rows": 3})


def test_a_position_stays_with_the_first_subtask(client: Client) -> None:
    assert client.source.redealt([7, None], 3) == [7, None, None]
