"""How the frontier stores URLs in Redis: entries of queues for new ones, records for those that were taken once.

Both are opaque to the scripts, except that a record begins with the 12 bytes of the URL's key and one byte of flags.
"""

import struct
from collections.abc import Sequence

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from shoal.base.url import Url, origin
from shoal.crawl.frontier.values import SUSPECT_FROM, FrontierTask, NewUrl, UrlKind, key_of
from shoal.web.page_fetcher import RedirectChain

DEPTH_BITS = 40  # bits of a position in the queue that are below the depth
DEEPEST = 32_767
KINDS = tuple(UrlKind)
_KEY = struct.Struct("<qi")
_PARENT = struct.Struct("<q")
_HAS_PARENT = 2  # beside the kind, in the first byte of an entry

pack_key = _KEY.pack


def unpack_key(packed: bytes) -> tuple[int, int]:
    key, chk = _KEY.unpack(packed)
    return key, chk


def pack_keys(urls: Sequence[NewUrl]) -> list[bytes]:
    return list(map(_KEY.pack, [url.key for url in urls], [url.chk for url in urls]))


def depth_word(depth: int) -> str:
    return f"{min(depth, DEEPEST):04x}"


def seq_word(seq: int) -> str:
    """Return a position as the scripts write it: as text that sorts like the number."""
    return f"{seq:014x}"


def depth_at(seq: int) -> int:
    return seq >> DEPTH_BITS


def entry_of(path: str, kind: int, parent: int | None) -> bytes:
    """Return a new URL as it waits in the queue of its host and depth."""
    if parent is None:
        return bytes((kind,)) + path.encode()
    return bytes((kind | _HAS_PARENT,)) + _PARENT.pack(parent) + path.encode()


class WaitingUrl(Struct, array_like=True):
    """A URL with all that is known about it, as in a record. `host` and `path` say where it is requested next; `start`
    is its own URL if redirects have led it there."""

    host: int
    path: str
    kind: int = 0
    parent: int | None = None
    attempts: int = 0
    crashes: int = 0
    start: str | None = None
    chain: RedirectChain | None = None

    def url(self, host_origin: str) -> Url:
        return Url(self.start or host_origin + self.path)

    def key(self, host_origin: str, key_seed: int) -> tuple[int, int]:
        return key_of(self.url(host_origin), key_seed, KINDS[self.kind])

    def task(self, host_origin: str, key_seed: int, seq: int) -> FrontierTask:
        key, chk = self.key(host_origin, key_seed)
        task = FrontierTask(
            key,
            chk,
            self.host,
            depth_at(seq),
            seq,
            self.url(host_origin),
            None,
            self.attempts,
            self.crashes,
            KINDS[self.kind],
        )
        if self.start is not None:
            task.target, task.chain = Url(host_origin + self.path), self.chain
        return task


_encode = Encoder().encode
_decode = Decoder(WaitingUrl).decode


def read_entry(host: int, entry: bytes) -> WaitingUrl:
    first = entry[0]
    if first & _HAS_PARENT:
        return WaitingUrl(host, entry[9:].decode(), first & 1, _PARENT.unpack_from(entry, 1)[0])
    return WaitingUrl(host, entry[1:].decode(), first & 1)


def record_of(key: bytes, waiting: WaitingUrl) -> bytes:
    flags = (waiting.start is not None) + 2 * (waiting.crashes >= SUSPECT_FROM)
    return key + b"%d" % flags + _encode(waiting)


def read_record(record: bytes) -> WaitingUrl:
    return _decode(record[13:])


def waiting_of(task: FrontierTask, parent: int | None, *, attempts: int, target: Url | None = None) -> WaitingUrl:
    """Return a taken URL as it waits again; `target`: where a redirect has just led it."""
    at = target or task.at
    redirected = task.url if target is not None or task.target is not None else None
    return WaitingUrl(
        task.host,
        at[len(origin(at)) :],
        int(task.kind),
        parent,
        attempts,
        task.crashes,
        redirected,
        task.chain,
    )
