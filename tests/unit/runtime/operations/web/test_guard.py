"""Who may read the page of a job, and who may command it: the pure part."""

from __future__ import annotations

import pytest

from flinkplus.runtime.operations.web.guard import Guard

TOKEN = "a1" * 32
LOCAL = Guard(TOKEN, is_loopback=True)
REMOTE = Guard(TOKEN, is_loopback=False)
HOST = {"host": "127.0.0.1:4040"}
RIGHT = {"authorization": f"Bearer {TOKEN}"}
JSON = {"content-type": "application/json"}


def refused(guard: Guard, headers: dict[str, str], *, command: bool) -> int | None:
    refusal = guard.refusal(headers, command=command)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (HOST, None),
        ({"host": "localhost"}, None),
        ({"host": "LOCALHOST:9"}, None),
        ({"host": "[::1]:4040"}, None),
        ({"host": "127.0.0.2:4040"}, None),
        (HOST | RIGHT, None),
        (HOST | {"authorization": f"bearer  {TOKEN} "}, None),
        (HOST | {"origin": "http://127.0.0.1:4040"}, None),
        ({}, 403),
        ({"host": ""}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example:4040"}, 403),
        ({"host": "127.0.0.1@evil.example"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": "10.0.0.7:4040"}, 403),
        (HOST | {"origin": "https://evil.example"}, 403),
        (HOST | {"origin": "http://127.0.0.1:4041"}, 403),
        (HOST | {"origin": "null"}, 403),
        (HOST | {"origin": "http://[bad"}, 403),
        (HOST | {"sec-fetch-site": "cross-site"}, 403),
        (HOST | {"authorization": "Bearer wrong"}, 401),
        (HOST | {"authorization": f"Basic {TOKEN}"}, 401),
        (HOST | {"authorization": "Bearer \N{SNOWMAN}"}, 401),
        (HOST | {"authorization": ""}, 401),
    ],
)
def test_reading_on_loopback(headers: dict[str, str], status: int | None) -> None:
    assert refused(LOCAL, headers, command=False) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (HOST | RIGHT | JSON, None),
        (HOST | RIGHT | {"content-type": "Application/JSON; charset=utf-8"}, None),
        (HOST | RIGHT | JSON | {"origin": "http://127.0.0.1:4040", "sec-fetch-site": "same-origin"}, None),
        (HOST | JSON, 401),
        (HOST | JSON | {"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        (HOST | RIGHT, 415),
        (HOST | RIGHT | {"content-type": "text/plain"}, 415),
        (HOST | RIGHT | JSON | {"origin": "http://localhost:4040"}, 403),
        ({"host": "evil.example"} | RIGHT | JSON, 403),
    ],
)
def test_commands_on_loopback(headers: dict[str, str], status: int | None) -> None:
    assert refused(LOCAL, headers, command=True) == status


def test_elsewhere_everything_needs_the_token_and_any_name_of_the_host_will_do() -> None:
    host = {"host": "driver.example:8443"}
    assert refused(REMOTE, host, command=False) == 401
    assert refused(REMOTE, host | RIGHT, command=False) is None
    assert refused(REMOTE, host | RIGHT | JSON, command=True) is None
    assert refused(REMOTE, host | RIGHT | {"origin": "https://evil.example"}, command=False) == 403
    assert REMOTE.of_host(host) is None and LOCAL.of_host(host) is not None


def test_neither_reasons_nor_texts_show_the_token() -> None:
    refusal = LOCAL.refusal(HOST | {"authorization": "Bearer wrong"}, command=True)
    assert refusal is not None and refusal.status == 415
    assert TOKEN not in repr(LOCAL)
    for command in (False, True):
        found = REMOTE.refusal(HOST | JSON, command=command)
        assert found is not None and TOKEN not in found.reason
