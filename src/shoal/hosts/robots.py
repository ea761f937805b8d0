"""robots.txt by RFC 9309: what a file says, and what its absence means. Pure; asking for it is the desk's work."""

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from protego import Protego

from shoal.base.url import Url

MAX_BYTES = 500 * 1024
_TOKEN = re.compile(r"[A-Za-z_-]+")


class RobotsState(StrEnum):
    """What the last request for a robots.txt gave."""

    FOUND = "found"  # a file
    ABSENT = "absent"  # 4xx: everything is allowed
    UNREACHABLE = "unreachable"  # 5xx, or no answer: nothing is allowed until there is one


@dataclass(frozen=True, slots=True)
class RobotsRecord:
    """What is kept of one host's robots.txt."""

    state: RobotsState
    body: str
    fetched_at: int


class Rules:
    """What one agent may ask of one host."""

    def __init__(self, record: RobotsRecord, agent: str, longest_delay: timedelta) -> None:
        self._token = product_token(agent)
        self._file = Protego.parse(record.body) if record.state is RobotsState.FOUND else None
        self.reachable = record.state is not RobotsState.UNREACHABLE
        wished = self._file.crawl_delay(self._token) if self._file is not None else None
        self.delay, self.delay_was_cut = _delay(wished, longest_delay)
        self.sitemaps = list(self._file.sitemaps) if self._file is not None else []

    def allows(self, url: Url) -> bool:
        if self._file is None:
            return self.reachable
        return self._file.can_fetch(url, self._token)


def product_token(agent: str) -> str:
    """The name by which robots.txt knows us: the first word of the agent, without its version."""
    match = _TOKEN.match(agent)
    return match[0] if match else "shoal"


def readable(body: bytes) -> str:
    """The part of a file that is read: the first 500 KiB, as text whatever its bytes."""
    return body[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\x00", "")


def _delay(wished: float | None, longest: timedelta) -> tuple[timedelta, bool]:
    if wished is None or not 0 < wished < float("inf"):
        return timedelta(0), False
    if wished > longest.total_seconds():
        return longest, True
    return timedelta(seconds=wished), False
