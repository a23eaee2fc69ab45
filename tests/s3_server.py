"""An S3 server that keeps objects in memory: as much of S3 as Arrow and botocore ask of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
DATE = "Wed, 01 Jan 2025 00:00:00 GMT"
ISO_DATE = "2025-01-01T00:00:00.000Z"


@dataclass
class Bucket:
    """``objects``: key -> content. ``parts``: upload -> number -> content. ``full``: nothing more is taken.

    ``knows_conditions``: whether ``If-None-Match`` and ``If-Match`` of a write have an effect. ``before_put``: called
    with the key before a write has its effect; ``after_put``: afterwards, and may return another status to answer with.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    full: bool = False
    port: int = 0
    knows_conditions: bool = True
    before_put: Callable[[str], None] = field(default=lambda key: None)
    after_put: Callable[[str], int | None] = field(default=lambda key: None)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def uri(self, folder: str) -> str:
        """Of a folder in it, for checkpoints and savepoints."""
        return f"s3://key:secret@{BUCKET}/{folder}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{self.port}"

    def below(self, folder: str) -> set[str]:
        """The names of the objects in a folder, without markers of folders."""
        prefix = f"{folder}/"
        return {key.removeprefix(prefix) for key in self.objects if key.startswith(prefix) and not key.endswith("/")}


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    bucket: Bucket

    @property
    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}").removeprefix("/")

    @property
    def query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def body(self) -> bytes:
        """Of the request; also one that is sent in chunks, by HTTP or by S3's own coding."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = self._chunks()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return _decoded(data) if "aws-chunked" in self.headers.get("Content-Encoding", "") else data

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def xml(self, root: str, content: str) -> None:
        text = f'<?xml version="1.0"?><{root}>{content}</{root}>'
        self.answer(200, text.encode(), Content_Type="application/xml")

    def do_HEAD(self) -> None:
        found = self.bucket.objects.get(self.key)
        if not self.key:
            self.answer(200)
        elif found is None:
            self.answer(404)
        else:
            self.answer(200, found, ETag=_tag(found), Last_Modified=DATE)

    def do_GET(self) -> None:
        if not self.key:
            return self._list()
        found = self.bucket.objects.get(self.key)
        if found is None:
            error = b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>'
            return self.answer(404, error, Content_Type="application/xml")
        wanted = self.headers.get("Range")
        if wanted is None:
            return self.answer(200, found, ETag=_tag(found), Last_Modified=DATE)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = found[int(first) : int(last) + 1 if last else None]
        where = f"bytes {first}-{int(first) + len(part) - 1}/{len(found)}"
        return self.answer(206, part, ETag=_tag(found), Last_Modified=DATE, Content_Range=where)

    def _list(self) -> None:
        query = self.query
        if "uploads" in query:
            return self.xml("ListMultipartUploadsResult", f"<Bucket>{BUCKET}</Bucket><IsTruncated>false</IsTruncated>")
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("start-after", "")
        keys, folders = [], set()
        for key in sorted(key for key in self.bucket.objects if key.startswith(prefix) and key > after):
            inner, found, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else (key, "", "")
            if found:
                folders.add(f"{prefix}{inner}{delimiter}")
            else:
                keys.append(key)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.bucket.objects[key])}</Size>"
            f"<LastModified>{ISO_DATE}</LastModified><ETag>e</ETag></Contents>"
            for key in keys
        )
        contents += "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)
        )
        count = len(keys) + len(folders)
        return self.xml("ListBucketResult", f"<KeyCount>{count}</KeyCount><IsTruncated>false</IsTruncated>{contents}")

    def do_PUT(self) -> None:
        data = self.body()
        if self.bucket.full:
            error = b'<?xml version="1.0"?><Error><Code>QuotaExceeded</Code><Message>bucket is full</Message></Error>'
            return self.answer(403, error, Content_Type="application/xml")
        query = self.query
        if "uploadId" in query:
            self.bucket.parts[query["uploadId"]][int(query["partNumber"])] = data
            return self.answer(200, ETag=_tag(data))
        source = self.headers.get("x-amz-copy-source")
        if source is not None:
            return self._copy(unquote(source).removeprefix("/").removeprefix(f"{BUCKET}/"))
        self.bucket.before_put(self.key)
        with self.bucket.lock:
            refused = self._condition_is_false()
            if not refused:
                self.bucket.objects[self.key] = data
        if refused:
            error = b'<?xml version="1.0"?><Error><Code>PreconditionFailed</Code><Message>it is false</Message></Error>'
            return self.answer(412, error, Content_Type="application/xml")
        status = self.bucket.after_put(self.key)
        return self.answer(200, ETag=_tag(data)) if status is None else self.answer(status)

    def _copy(self, source: str) -> None:
        found = self.bucket.objects.get(source)
        if found is None:
            error = b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>'
            return self.answer(404, error, Content_Type="application/xml")
        self.bucket.objects[self.key] = found
        return self.xml("CopyObjectResult", f"<ETag>{_tag(found)}</ETag><LastModified>{ISO_DATE}</LastModified>")

    def _condition_is_false(self) -> bool:
        found = self.bucket.objects.get(self.key)
        if not self.bucket.knows_conditions:
            return False
        if self.headers.get("If-None-Match") == "*":
            return found is not None
        wanted = self.headers.get("If-Match")
        return wanted is not None and (found is None or wanted != _tag(found))

    def do_POST(self) -> None:
        data, query = self.body(), self.query
        if "uploads" in query:
            upload = f"upload-{len(self.bucket.parts)}"
            self.bucket.parts[upload] = {}
            content = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key><UploadId>{upload}</UploadId>"
            return self.xml("InitiateMultipartUploadResult", content)
        if "uploadId" in query:
            self.bucket.objects[self.key] = b"".join(
                part for _, part in sorted(self.bucket.parts[query["uploadId"]].items())
            )
            content = f"<Bucket>{BUCKET}</Bucket><Key>{escape(self.key)}</Key><ETag>e</ETag>"
            return self.xml("CompleteMultipartUploadResult", content)
        raise AssertionError(f"nothing is known of {self.path} with {data!r:.100}")

    def do_DELETE(self) -> None:
        self.bucket.objects.pop(self.key, None)
        self.answer(204)

    def log_message(self, *_: object) -> None:
        return None


def _decoded(data: bytes) -> bytes:
    """Content in S3's own chunks: each has its size in hexadecimal digits before it, the last one is empty."""
    found = b""
    while data:
        head, _, data = data.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            break
        found, data = found + data[:size], data[size + 2 :]
    return found


def _error(code: str) -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()


def _tag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


@contextmanager
def s3_server() -> Iterator[Bucket]:
    """A bucket that is served on this machine."""
    bucket = Bucket()
    handler = type("BucketHandler", (Handler,), {"bucket": bucket})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        bucket.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield bucket
        finally:
            http.shutdown()
            thread.join()
