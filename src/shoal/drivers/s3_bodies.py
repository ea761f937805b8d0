"""Stored bodies in a bucket of an S3-compatible store: one object per batch, removed with its crawl.

Requests use a separate egress that can reach only the endpoint that the operator configured.
"""

import re
import secrets
from datetime import timedelta
from html import unescape
from urllib.parse import quote

from shoal.base.clock import Clock
from shoal.base.errors import BadConfig, BodiesUnavailable, NotFound, StorageFull
from shoal.base.settings import BodySettings
from shoal.base.signals import Signals
from shoal.base.url import UrlRefusal, canonical
from shoal.drivers.folder_bodies import folder_of, is_safe, new_file, opening
from shoal.egress import AddressRule, Egress, Failure, HeaderPairs, Limits, Request, Response, Signer, endpoint
from shoal.pages.bodies import BodyLocation, BodyStoreFailed

TRIES = 6
FIRST_PAUSE_SECONDS = 0.5  # doubled each time; after half a minute in total, the writer gets the error
LIMITS = Limits(total_timeout=timedelta(minutes=5), max_body_bytes=1 << 31)
WARC: HeaderPairs = (("Content-Type", "application/warc"),)
_KEY = re.compile(r"<Key>([^<]+)</Key>")
_REFUSED = (401, 403)
_NOT_THERE = (404, 416)
_FULL = 507
_REMOVED = (200, 204, 404)


class S3Bodies:
    """Implements `pages.bodies.BodyStore`. `called`: the setting that names the bucket."""

    def __init__(self, settings: BodySettings, clock: Clock, signals: Signals, called: str = "SHOAL_BODIES") -> None:
        self._called = called
        self._bucket, _, self._prefix = settings.place.removeprefix("s3://").partition("/")
        self._base = settings.endpoint.rstrip("/") or f"https://s3.{settings.region}.amazonaws.com"
        self._signer = Signer(settings.region, settings.access_key, settings.secret_key)
        self._clock = clock
        self._signals = signals
        self._egress: Egress | None = None

    def writer(self, crawl_id: str) -> "S3Writer":
        return S3Writer(self, crawl_id, self._clock)

    async def read(self, place: BodyLocation) -> bytes:
        if is_safe(place):
            piece = (("Range", f"bytes={place.offset}-{place.offset + place.length - 1}"),)
            answer = await self._ask("GET", self._key(place.file), headers=piece)
            kept = answer.raw if answer.status == 206 else answer.raw[place.offset :][: place.length]
            if answer.status in (200, 206) and len(kept) == place.length:
                return kept
            self._expect(answer, 200, 206, *_NOT_THERE)
        raise NotFound("stored body", place.file, f"it is not in bucket {self._bucket}; check {self._called}")

    async def forget(self, crawl_id: str) -> None:
        await self.remove_folder(folder_of(crawl_id))

    async def remove_folder(self, name: str) -> None:
        """Remove all objects whose names begin with `name` and a slash."""
        prefix = quote(self._key(name) + "/", safe="")
        while keys := await self._list(prefix):
            for key in keys:
                self._expect(await self._ask("DELETE", key), *_REMOVED)

    async def check_space(self) -> None:
        probe = f".room-{secrets.token_hex(8)}"
        await self.put(probe, b"room")
        self._expect(await self._ask("DELETE", self._key(probe)), *_REMOVED)

    def close(self) -> None:
        if self._egress is not None:
            self._egress.close()

    async def put(self, file: str, data: bytes) -> None:
        """Store an object under this name. The object is stored completely when this method returns."""
        answer = await self._ask("PUT", self._key(file), headers=WARC, body=data)
        if answer.status == 404:
            raise BadConfig(self._called, f"names the bucket {self._bucket}, which does not exist", "create it first")
        self._expect(answer, 200, 201, 204)

    async def get(self, file: str) -> bytes | None:
        """Return an object; None if there is none with this name."""
        answer = await self._ask("GET", self._key(file))
        self._expect(answer, 200, 404)
        return answer.raw if answer.status == 200 else None

    async def _list(self, prefix: str) -> list[str]:
        """Return some of the keys with this prefix; empty when none is left."""
        answer = await self._ask("GET", "", query=f"?list-type=2&prefix={prefix}")
        self._expect(answer, 200)
        return [unescape(key) for key in _KEY.findall(answer.raw.decode("utf-8", "replace"))]

    def _expect(self, answer: Response, *statuses: int) -> None:
        if answer.status not in statuses:
            raise self._unavailable(f"it returned {answer.status}")

    def _key(self, file: str) -> str:
        return f"{self._prefix}/{file}" if self._prefix else file

    async def _ask(
        self, method: str, key: str, *, query: str = "", headers: HeaderPairs = (), body: bytes = b""
    ) -> Response:
        url = f"{self._base}/{self._bucket}/{quote(key)}{query}"
        request = Request(url, method, headers, body, LIMITS, self._signer)
        pause_seconds = FIRST_PAUSE_SECONDS
        for left in reversed(range(TRIES)):
            outcome = await self._way_out().fetch(request)
            if isinstance(outcome, Response) and outcome.status < 500 and outcome.status != 429:
                return self._admitted(outcome)
            if isinstance(outcome, Response) and outcome.status == _FULL:
                raise StorageFull(f"the body store {self._base}", "bodies")
            why = outcome.message.rstrip(".") if isinstance(outcome, Failure) else f"it returned {outcome.status}"
            if not left or (isinstance(outcome, Failure) and not outcome.retryable):
                raise self._unavailable(why)
            self._signals.emit(BodyStoreFailed(store=self._base, error=why, retry_in_seconds=pause_seconds))
            await self._clock.sleep(pause_seconds)
            pause_seconds *= 2
        raise AssertionError("unreachable")

    def _admitted(self, answer: Response) -> Response:
        if answer.status in _REFUSED:
            fix = "check SHOAL_S3_ACCESS_KEY, SHOAL_S3_SECRET_KEY, SHOAL_S3_REGION and the permissions of the key"
            raise BadConfig(self._called, f"names the bucket {self._bucket}, which rejects the access key", fix)
        return answer

    def _way_out(self) -> Egress:
        if self._egress is None:
            url = canonical(self._base)
            if isinstance(url, UrlRefusal):
                raise BadConfig("SHOAL_S3_ENDPOINT", url.problem, "write it as https://host")
            rule = AddressRule(named=frozenset([endpoint(url)]))
            self._egress = Egress(rule, LIMITS, clock=self._clock)
        return self._egress

    def _unavailable(self, why: str) -> BodiesUnavailable:
        return BodiesUnavailable(self._base, why, "check SHOAL_S3_ENDPOINT and the object store, and try again")


class S3Writer:
    """Implements `pages.bodies.BodyWriter`."""

    def __init__(self, store: S3Bodies, crawl_id: str, clock: Clock) -> None:
        self._store = store
        self._crawl_id = crawl_id
        self._clock = clock

    async def append(self, data: bytes) -> BodyLocation:
        file = new_file(self._crawl_id)
        start = opening(file, self._crawl_id, self._clock.micros())
        await self._store.put(file, start + data)
        return BodyLocation(file, len(start), len(data))

    async def close(self) -> None: ...
