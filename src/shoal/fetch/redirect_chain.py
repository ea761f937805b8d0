"""The redirect chain of one page: the requests so far, and the state needed to continue it later.

The fetch that receives a redirect does not follow it: the target is checked first and waits for a slot of its host.
"""

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.egress import HeaderPairs, Hop

MOST_COOKIES = 8_000  # characters of the cookies that a chain carries
Blob = bytes  # alias, because `RedirectChain` has a field named `bytes`


class RedirectStep(Struct, frozen=True):
    """A request that was answered with a redirect. `asked`: a hash of its headers, to distinguish a loop from a page
    that is requested again with the cookie it set."""

    url: str
    status: int
    asked: int


class RedirectChain(Struct, frozen=True, omit_defaults=True):
    """The redirects so far. `key` and `chk` identify the current target in the frontier. The other values describe the
    last response, in case its target is never fetched."""

    steps: tuple[RedirectStep, ...]
    key: int = 0
    chk: int = 0
    content_type: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    fetcher_id: int = 0  # id of the fetcher that got the last response; another one must store the cookies first
    cookies: tuple[tuple[str, str], ...] = ()  # URL and `Set-Cookie`
    members: Blob = b""  # the responses so far as WARC records, if bodies are kept

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(Hop(step.url, step.status) for step in self.steps)

    def has_asked(self, url: str, headers: HeaderPairs) -> bool:
        asked = headers_hash(headers)
        return any(step.url == url and step.asked == asked for step in self.steps)


def headers_hash(headers: HeaderPairs) -> int:
    """Return a hash that is the same for the same headers in every process."""
    return xxh3_64_intdigest(repr(headers).encode())
