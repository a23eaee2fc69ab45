"""The web server over real sockets: what it answers, and that no client keeps it from answering others."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from flinkplus.runtime.operations.commands import REQUEST_BYTES
from flinkplus.runtime.operations.web import app, requests, server
from flinkplus.runtime.transport.auth.tls import made_for
from tests.unit.runtime.operations.web.page_of_a_job import TOKEN, FakeJob, a_job, ask, command


@pytest.fixture(scope="module")
def job() -> Iterator[FakeJob]:
    with a_job() as made:
        yield made


def test_reading(job: FakeJob) -> None:
    status, headers, body = ask(job.port, "GET", "/api/status")
    assert (status, json.loads(body)) == (200, job.status)
    assert headers["content-type"] == "application/json" and headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers and "server" not in headers
    status, headers, body = ask(job.port, "GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=")
    assert b'flinkplus_job_state{state="running"} 1.0' in body
    status, _, body = ask(job.port, "GET", "/api/graph")
    assert [vertex["name"] for vertex in json.loads(body)["vertices"]] == ["numbers+gone"]
    status, _, body = ask(job.port, "GET", "/api/openapi.json")
    assert (
        "/api/commands/rescale" in json.loads(body)["paths"] and "/api/commands/status" not in json.loads(body)["paths"]
    )


def test_the_page_and_its_parts(job: FakeJob) -> None:
    status, headers, page = ask(job.port, "GET", "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert (
        "script-src 'self'" in headers["content-security-policy"]
        and "frame-ancestors 'none'" in headers["content-security-policy"]
    )
    assert b"://" not in page.replace(b"http://www.w3.org", b""), "everything comes from the driver"
    for name, kind in app.ASSETS.items():
        status, headers, body = ask(job.port, "GET", f"/assets/{name}")
        assert (status, headers["content-type"]) == (200, kind) and len(body) > 100
    for missing in ("/assets/none.js", "/assets/..%2Fapp.py", "/assets/", "/nothing", "/api/commands"):
        status, _, body = ask(job.port, "GET", missing)
        assert status == 404 and "error" in json.loads(body), missing


def test_many_readers_cost_the_coordinator_one_status(job: FakeJob) -> None:
    time.sleep(0.3)
    before = job.asked
    readers = [threading.Thread(target=ask, args=(job.port, "GET", "/api/status")) for _ in range(20)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert job.asked - before <= 4, "a status is reused for a quarter of a second"


def test_commands(job: FakeJob) -> None:
    assert command(job.port, "rescale", {"parallelism": 4}) == (200, {"number": 1})
    assert job.rescaled_to[-1] == 4
    status, found = command(job.port, "rescale", {"parallelism": 9})
    assert (status, found) == (409, {"error": "the job can have a parallelism from 1 to 8"})
    for wrong in ({}, {"parallelism": "4"}, {"parallelism": 4, "more": 1}):
        status, found = command(job.port, "rescale", wrong)
        assert status == 409 and "error" in found, wrong
    assert command(job.port, "rescale", [4])[0] == 400
    status, found = command(job.port, "no-such", {})
    assert status == 404 and "rescale" in found["error"]
    assert command(job.port, "status", {})[0] == 404
    assert job.rescaled_to[-1] == 4


def test_commands_that_are_refused_change_nothing(job: FakeJob) -> None:
    before = list(job.rescaled_to)
    assert command(job.port, "rescale", {"parallelism": 5}, token="0" * 64)[0] == 401
    assert command(job.port, "rescale", {"parallelism": 5}, Origin="https://evil.example")[0] == 403
    assert command(job.port, "rescale", {"parallelism": 5}, Host="evil.example")[0] == 403
    assert command(job.port, "rescale", {"parallelism": 5}, Content_Type="text/plain")[0] == 415
    for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
        status, headers, _ = ask(
            job.port, method, "/api/commands/rescale?parallelism=5", Authorization=f"Bearer {TOKEN}"
        )
        assert status == 405 and "access-control-allow-methods" not in headers, method
    long = json.dumps({"parallelism": 5, "x": "y" * REQUEST_BYTES}).encode()
    headers = {"Authorization": f"Bearer {TOKEN}", "Content_Type": "application/json"}
    with contextlib.suppress(OSError):  # the server may close before all is sent
        assert ask(job.port, "POST", "/api/commands/rescale", long, **headers)[0] == 413
    for broken in (b"{", b"\xff", b"[" * 5000, b"NaN", b"null"):
        assert ask(job.port, "POST", "/api/commands/rescale", broken, **headers)[0] == 400, broken
    assert job.rescaled_to == before


def test_what_is_not_http_is_dropped_and_others_are_answered(job: FakeJob) -> None:
    for data in (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"b" * (64 << 10)):
        client = socket.create_connection(("127.0.0.1", job.port), timeout=5)
        with client, contextlib.suppress(OSError):
            client.sendall(data + b"\r\n\r\n")
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass
    assert ask(job.port, "GET", "/api/status")[0] == 200


def test_clients_that_send_nothing_do_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server, "MAX_CLIENTS", 8)
    with a_job() as job, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", job.port))) for _ in range(8)]
        silent[0].sendall(b"GET /api/status HTTP/1.1\r\nHo")
        for client in silent:
            client.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        assert ask(job.port, "GET", "/api/status")[0] == 200


@pytest.mark.long
def test_connections_in_a_tls_handshake_are_few_and_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(server, "MAX_CLIENTS", 8)
    with a_job(host="0.0.0.0", tls=made_for("words")) as job, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", job.port))) for _ in range(20)]
        for client in silent:
            client.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""


def test_connections_beyond_the_limit_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENTS", 4)
    with a_job() as job, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", job.port))) for _ in range(9)]
        for client in clients[4:]:
            client.settimeout(5)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
        clients[0].settimeout(0.05)
        with pytest.raises(TimeoutError):
            clients[0].recv(1)
        clients[1].close()
        deadline = time.monotonic() + 5
        status = 0
        while status != 200 and time.monotonic() < deadline:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, _, _ = ask(job.port, "GET", "/api/status")
        assert status == 200


def test_a_request_that_was_given_up_is_not_carried_out(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "COMMAND_TIMEOUT_S", 0.05)
    before, hangs = list(job.rescaled_to), threading.Event()
    job.soon(lambda: assert_set(hangs))
    try:
        assert command(job.port, "rescale", {"parallelism": 7})[0] == 503
    finally:
        hangs.set()
    monkeypatch.undo()
    assert command(job.port, "rescale", {"parallelism": 6})[0] == 200
    assert job.rescaled_to == [*before, 6]


def assert_set(event: threading.Event) -> None:
    assert event.wait(10)


def test_an_error_of_the_page_is_an_answer(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_status: object) -> bytes:
        raise KeyError("private")

    monkeypatch.setattr(app, "exposition", broken)
    status, headers, body = ask(job.port, "GET", "/metrics")
    assert status == 500 and "error" in json.loads(body) and b"private" not in body
    assert headers["x-content-type-options"] == "nosniff"


def test_no_response_leads_elsewhere(job: FakeJob) -> None:
    for path in ("/api/status/", "/metrics/", "/api/commands/rescale/"):
        status, headers, _ = ask(job.port, "GET", path, Host="evil.example")
        assert status == 404 and "location" not in headers and headers["cache-control"] == "no-store"


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_TIMEOUT_S", 0.1)
    with a_job() as job, socket.create_connection(("127.0.0.1", job.port), timeout=5) as client:
        client.sendall(
            b"POST /api/commands/rescale HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 100\r\n\r\n{"
        )
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


def threads_of_pages() -> int:
    return sum(thread.name == "flinkplus-ui" for thread in threading.enumerate())


def test_the_server_ends_with_the_job_although_clients_wait() -> None:
    before = threads_of_pages()
    with a_job() as job, contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_connection(("127.0.0.1", job.port)))
        waiting = stack.enter_context(socket.create_connection(("127.0.0.1", job.port)))
        waiting.sendall(
            b"POST /api/commands/stuck HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer " + TOKEN.encode() + b"\r\nContent-Length: 2\r\n\r\n{}"
        )
        deadline = time.monotonic() + 5
        while not job.stuck and time.monotonic() < deadline:
            time.sleep(0.01)
        assert job.stuck
        begun = time.monotonic()
        job.page.end(None)
        assert time.monotonic() - begun < server.STOP_S
        answer = waiting.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 409 ") and b"the job has ended" in answer
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", job.port), timeout=1)
    assert threads_of_pages() == before


def test_a_command_that_the_end_has_carried_out_is_answered_so() -> None:
    with a_job() as job:
        found: list[tuple[int, object]] = []
        client = threading.Thread(target=lambda: found.append(command(job.port, "stuck", {})))
        client.start()
        deadline = time.monotonic() + 5
        while not job.stuck and time.monotonic() < deadline:
            time.sleep(0.01)
        job.taken = True
        job.page.end(job.status)
        client.join()
        assert found == [(200, {"taken": True})]


def test_a_page_that_lingers_shows_the_end() -> None:
    with a_job(linger_s=0.4) as job:
        job.page.end(job.status | {"drained_hosts": ["the end"]})
        asked = job.asked
        assert json.loads(ask(job.port, "GET", "/api/status")[2])["drained_hosts"] == ["the end"]
        assert job.asked == asked
        assert command(job.port, "rescale", {"parallelism": 4}) == (409, {"error": "the job has ended"})
        deadline = time.monotonic() + 5
        with pytest.raises(ConnectionRefusedError):
            while time.monotonic() < deadline:
                ask(job.port, "GET", "/api/status")
                time.sleep(0.05)


def test_elsewhere_the_page_is_encrypted_and_all_of_the_job_needs_the_token() -> None:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    def get(port: int, path: str, **headers: str) -> int:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusting)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status

    with a_job(host="0.0.0.0", tls=made_for("words")) as job:
        assert job.page.address == f"https://driver.example:{job.port}/"
        right = {"Authorization": f"Bearer {TOKEN}", "Host": "driver.example"}
        assert [get(job.port, path) for path in ("/", "/api/status", "/api/graph", "/metrics")] == [200, 401, 401, 401]
        assert [get(job.port, path, **right) for path in ("/api/status", "/metrics")] == [200, 200]
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(job.port, "GET", "/api/status")
    with a_job(tls=made_for("words")) as job:
        assert job.page.address.startswith("http://127.0.0.1:") and ask(job.port, "GET", "/api/status")[0] == 200
