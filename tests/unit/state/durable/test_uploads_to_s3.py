"""What is asked of an S3 server when a file is stored: an upload that a killed process began must leave nothing."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from flinkplus.sinks.files import OutputFiles
from flinkplus.state.durable import uploads
from flinkplus.state.durable.storage import CheckpointStorage
from flinkplus.state.s3 import bucket

MULTIPART = (
    b'<?xml version="1.0"?><InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId>'
    b"</InitiateMultipartUploadResult>"
)
EMPTY = b'<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><KeyCount>0</KeyCount></ListBucketResult>'
LISTED = """<?xml version="1.0"?><ListMultipartUploadsResult><Bucket>bucket</Bucket><IsTruncated>false</IsTruncated>
{uploads}</ListMultipartUploadsResult>"""
UPLOAD = "<Upload><Key>{key}</Key><UploadId>{number}</UploadId><Initiated>{began}</Initiated></Upload>"
COMPLETED = (
    b'<?xml version="1.0"?><CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>e</ETag>'
    b"</CompleteMultipartUploadResult>"
)


class S3(BaseHTTPRequestHandler):
    """Takes every object, has none, and notes what it was asked.

    ``unfinished``: multipart uploads, key -> when it began (seconds since 1970).
    """

    protocol_version = "HTTP/1.1"
    asked: list[str]
    unfinished: dict[str, float]

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

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        if "uploads" not in query:
            return self._answer(200, EMPTY) if "list-type" in query else self._answer(404)
        (prefix,) = query["prefix"]
        found = [
            UPLOAD.format(key=key, number=number, began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began_s)))
            for number, (key, began_s) in enumerate(self.unfinished.items())
            if key.startswith(prefix)
        ]
        return self._answer(200, LISTED.format(uploads="".join(found)).encode())

    def do_DELETE(self) -> None:
        parts = urlsplit(self.path)
        if "uploadId" in parts.query:
            del self.unfinished[unquote(parts.path).removeprefix("/bucket/")]
        self._answer(204)

    def do_POST(self) -> None:
        self._answer(200, COMPLETED if "uploadId" in self.path else MULTIPART)

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def handler() -> type[S3]:
    return type("Handler", (S3,), {"asked": [], "unfinished": {}})


@pytest.fixture
def server(handler: type[S3]) -> Iterator[tuple[str, list[str]]]:
    """The URI of a folder on it, and what it was asked."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        options = f"region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{http.server_address[1]}"
        try:
            yield f"s3://key:secret@bucket/folder?{options}", handler.asked
        finally:
            http.shutdown()
            thread.join()


def stored(asked: list[str], name: str) -> list[str]:
    return [request.partition("?")[0] for request in asked if f"/{name}" in request and not request.startswith("HEAD")]


def test_a_state_file_is_stored_by_one_request(server: tuple[str, list[str]], tmp_path: Path) -> None:
    uri, asked = server
    local = tmp_path / "state"
    local.write_bytes(bytes(3 << 20))
    CheckpointStorage(uri).state_files.upload(local, "count/1-1-1.sst")
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


NOW, OLD = 0.0, 2 * uploads.LONGEST_UPLOAD_S


def begun(handler: type[S3], **ages_s: float) -> None:
    for key, age_s in ages_s.items():
        handler.unfinished[key.replace("__", "/")] = time.time() - age_s - 1


def test_a_new_run_aborts_what_an_earlier_one_has_left(
    server: tuple[str, list[str]], handler: type[S3], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(handler, folder__state__count__1=NOW, folder__blobs__plan=OLD, folder2__state__x=OLD, other=OLD)
    storage = CheckpointStorage(server[0])
    monkeypatch.setattr(storage.runs, "check", lambda: None)  # the server forgets the claim, too
    storage.begin()
    assert list(handler.unfinished) == ["folder2/state/x", "other"], "what is not below the directory stays"


def test_while_a_job_runs_only_old_uploads_are_aborted(
    server: tuple[str, list[str]], handler: type[S3], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = CheckpointStorage(server[0])
    monkeypatch.setattr(storage.state_files, "listed", dict)
    monkeypatch.setattr(storage.manifests, "checkpoints", list)
    monkeypatch.setattr(storage.manifests, "remove_void", lambda: None)
    begun(handler, folder__state__a=NOW, folder__state__b=OLD)
    storage.retention.sweep(1, 1)
    assert len(handler.unfinished) == 2, "it looks now and then, not each time"
    monkeypatch.setattr(uploads, "LOOK_EVERY_S", 0.0)
    storage.retention.sweep(2, 2)
    assert list(handler.unfinished) == ["folder/state/a"]
    storage.retention.sweep_all()
    assert not handler.unfinished


def test_without_botocore_or_permission_there_is_one_warning(
    server: tuple[str, list[str]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bucket, "_warned", set())
    found = uploads.Uploads(bucket.S3Bucket.of(server[0]))
    with caplog.at_level(logging.WARNING, "flinkplus"):
        monkeypatch.setattr(S3, "do_GET", lambda self: self._answer(403))
        assert [found.abort(), found.abort()] == [0, 0]
        monkeypatch.setitem(sys.modules, "botocore.session", None)
        fresh = uploads.Uploads(bucket.S3Bucket.of(server[0]))
        assert [fresh.abort(), fresh.abort()] == [0, 0]
    denied, absent = (record.getMessage() for record in caplog.records)
    assert denied.startswith("multipart uploads below s3://bucket/folder cannot be aborted: ") and "403" in denied
    assert "pip install 'flinkplus[s3]'" in absent and "secret" not in denied


@pytest.mark.parametrize("location", ["/tmp/x", "gs://b/x", ""])
def test_elsewhere_there_are_no_uploads(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(bucket.S3Bucket, "_connect", lambda self: pytest.fail("nothing is asked"))
    elsewhere = uploads.Uploads(bucket.S3Bucket.of(location))
    elsewhere.abort_old()
    assert elsewhere.abort() == 0
