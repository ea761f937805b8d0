"""The redirects of one page: what was asked on the way, and what has to be known to go on from there later.

A redirect is not followed by the fetch that meets it: its target is judged first, and waits for the slot of its host.
"""

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from shoal.egress import HeaderPairs, Hop

MOST_COOKIES = 8_000  # characters of the cookies that a chain carries
Blob = bytes  # by another name: a chain has a field `bytes`


class RedirectStep(Struct, frozen=True):
    """A request on the way that was answered with a redirect. `asked`: a hash of its headers, to tell a loop from a
    page that is asked for again with the cookie it set."""

    url: str
    status: int
    asked: int


class RedirectChain(Struct, frozen=True, omit_defaults=True):
    """The redirects so far. `key` and `chk`: what the crawl knows the current target by. The other values are of the
    last answer, in case its target is never fetched."""

    steps: tuple[RedirectStep, ...]
    key: int = 0
    chk: int = 0
    content_type: str | None = None
    bytes: int = 0
    seconds: float = 0.0
    heard_by: int = 0  # the fetcher that heard the last answer: another one learns its cookies first
    cookies: tuple[tuple[str, str], ...] = ()  # URL and `Set-Cookie`
    members: Blob = b""  # the answers so far as WARC records, if bodies are kept

    @property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(Hop(step.url, step.status) for step in self.steps)

    def has_asked(self, url: str, headers: HeaderPairs) -> bool:
        asked = headers_hash(headers)
        return any(step.url == url and step.asked == asked for step in self.steps)


def headers_hash(headers: HeaderPairs) -> int:
    """Return a hash that is the same for the same headers in every process."""
    return xxh3_64_intdigest(repr(headers).encode())
