"""An object store on loopback that speaks enough of S3: put, get (whole or a range), list, delete. It checks every
signature."""

import hashlib
import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

ACCESS_KEY = "shoal-test"
SECRET_KEY = "not/much+of=a-secret"
REGION = "eu-test-1"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/(?P<scope>[^,]+), ?SignedHeaders=(?P<names>[^,]+), ?"
    r"Signature=(?P<signature>[0-9a-f]{64})"
)


def signature(secret: str, method: str, path: str, query: str, fields: dict[str, str], names: str, scope: str) -> str:
    """Signature 4, from its description, so that a signer is checked by somebody else's reading of it."""
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, True))
    canonical = "\n".join(
        [
            method,
            quote(unquote(path), safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in pairs),
            *[f"{name}:{' '.join(fields[name].split())}" for name in names.split(";")],
            "",
            names,
            fields["x-amz-content-sha256"],
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", fields["x-amz-date"], scope, digest])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, text.encode(), "sha256").hexdigest()


class ObjectStore:
    """A bucket with its objects and the faults it simulates. `failing`: that many requests get a 503 first; `refusing`:
    what requests of a method get."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.objects: dict[str, bytes] = {}
        self.failing = 0
        self.refusing: dict[str, int] = {}
        self.heard: list[dict[str, str]] = []  # the fields of each request
        self.requests = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, target: str, fields: dict[str, str], body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        if self.failing:
            self.failing -= 1
            return 503, b"<Code>SlowDown</Code>"
        self.heard.append(fields)
        if method in self.refusing:
            return self.refusing[method], b"<Code>No</Code>"
        parts = urlsplit(target)
        if not self._is_signed(method, parts.path, parts.query, fields, body):
            return 403, b"<Code>SignatureDoesNotMatch</Code>"
        bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
        if bucket != self.bucket:
            return 404, b"<Code>NoSuchBucket</Code>"
        return self._act(method, key, dict(parse_qsl(parts.query)), fields, body)

    def _act(
        self, method: str, key: str, query: dict[str, str], fields: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        if method == "PUT":
            self.objects[key] = body
            return 200, b""
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, b""
        if not key:
            found = sorted(name for name in self.objects if name.startswith(query["prefix"]))[:2]
            return 200, "".join(f"<Contents><Key>{name}</Key></Contents>" for name in found).encode()
        if key not in self.objects:
            return 404, b"<Code>NoSuchKey</Code>"
        if "range" not in fields:
            return 200, self.objects[key]
        first, _, last = fields["range"].removeprefix("bytes=").partition("-")
        piece = self.objects[key][int(first) : int(last) + 1]
        return (206, piece) if piece else (416, b"")

    def _is_signed(self, method: str, path: str, query: str, fields: dict[str, str], body: bytes) -> bool:
        told = _SIGNED.fullmatch(fields.get("authorization", ""))
        if told is None or told["key"] != ACCESS_KEY or not told["scope"].endswith(f"/{REGION}/s3/aws4_request"):
            return False
        if fields.get("x-amz-content-sha256") != hashlib.sha256(body).hexdigest():
            return False
        wanted = signature(SECRET_KEY, method, path, query, fields, told["names"], told["scope"])
        return "host" in told["names"].split(";") and hmac.compare_digest(wanted, told["signature"])


@contextmanager
def object_store(bucket: str = "pages") -> Iterator[ObjectStore]:
    store = ObjectStore(bucket)

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            fields = {name.lower(): value for name, value in self.headers.items()}
            status, data = store.answer(self.command, self.path, fields, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_DELETE = _any  # noqa: N815 - the names that the library calls

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    store.port = server.server_address[1]
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
