"""What is asked of an S3 server when a file is stored: an upload that a killed process began must leave nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flinkplus.sinks.files import OutputFiles
from flinkplus.state.storage import CheckpointStorage

MULTIPART = (
    b'<?xml version="1.0"?><InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>'
    b"</InitiateMultipartUploadResult>"
)
COMPLETED = (
    b'<?xml version="1.0"?><CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>e</ETag>'
    b"</CompleteMultipartUploadResult>"
)


class S3(BaseHTTPRequestHandler):
    """Takes every object, has none, and notes what it was asked."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def _take_body(self) -> None:
        """All of it: what is left unread is taken for the next request, and the client tries again."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + len(b"\r\n"))
        while self.rfile.readline().strip():
            pass

    def _answer(self, status: int, body: bytes = b"") -> None:
        self._take_body()
        type(self).asked.append(f"{self.command} {self.path}")
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_HEAD(self) -> None:
        self._answer(200 if self.path.rstrip("/") == "/bucket" else 404)

    def do_PUT(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        self._answer(200, COMPLETED if "uploadId" in self.path else MULTIPART)

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """The URI of a folder on it, and what it was asked."""
    handler = type("Handler", (S3,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{http.server_address[1]}"
        try:
            yield f"s3://key:secret@bucket/folder?{options}", handler.asked  # type: ignore[attr-defined]
        finally:
            http.shutdown()
            thread.join()


def stored(asked: list[str], name: str) -> list[str]:
    return [request.partition("?")[0] for request in asked if f"/{name}" in request and not request.startswith("HEAD")]


def test_a_state_file_is_stored_by_one_request(server: tuple[str, list[str]], tmp_path: Path) -> None:
    uri, asked = server
    local = tmp_path / "state"
    local.write_bytes(bytes(3 << 20))
    CheckpointStorage(uri).upload(local, "count/1-1-1.sst")
    assert stored(asked, "1-1-1.sst") == ["PUT /bucket/folder/state/count/1-1-1.sst"]
    assert not [request for request in asked if request.startswith("POST")]


def test_a_process_that_is_killed_while_it_writes_leaves_nothing(server: tuple[str, list[str]]) -> None:
    """Nothing is asked of the server before the file is closed."""
    uri, asked = server
    stream = OutputFiles(uri).open_output("_staging/job/open-s0-g1-0.parquet")
    stream.write(b"rows")
    assert asked == []
    stream.close()
    assert stored(asked, "open-s0-g1-0.parquet") == ["PUT /bucket/folder/_staging/job/open-s0-g1-0.parquet"]


def test_an_option_that_the_user_gives_stays(server: tuple[str, list[str]]) -> None:
    uri, asked = server
    OutputFiles(f"{uri}&allow_delayed_open=false").open_output("file").close()
    assert [request.partition("?")[0] for request in asked if "uploads" in request] == ["POST /bucket/folder/file"]
