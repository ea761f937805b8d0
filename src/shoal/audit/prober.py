"""Requests of an analysis: well-known files of a host, and slow pages that are measured again.

Polite like any fetch: robots.txt is obeyed, and each request waits for a slot of its host.
"""

from collections.abc import Sequence
from typing import Final

from shoal.audit.site import ProbeAnswer
from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.url import Url, origin
from shoal.egress import Egress, Failure, Request
from shoal.hosts.rate_limiter import RateLimiter
from shoal.hosts.robots import RobotsSource

LONGEST_TEXT: Final = 100_000  # characters of a body
LONGEST_WAIT_SECONDS: Final = 60.0  # for a slot


class Prober:
    """Requests single URLs, one after another. The caller owns the egress."""

    def __init__(
        self, database: Database, limiter: RateLimiter, robots: RobotsSource, egress: Egress, agent: str, clock: Clock
    ) -> None:
        self._database = database
        self._limiter = limiter
        self._robots = robots
        self._egress = egress
        self._agent = agent
        self._clock = clock

    async def probe(self, urls: Sequence[str]) -> list[ProbeAnswer]:
        """Return an answer for each URL; `status` is None where robots.txt forbids it or no response came."""
        return [await self._ask(Url(url)) for url in urls]

    def close(self) -> None:
        self._egress.close()

    async def _ask(self, url: Url) -> ProbeAnswer:
        rules = await self._robots.rules_of(origin(url))
        if not rules.reachable or not rules.allows(url) or not await self._slot(url):
            return ProbeAnswer(url, None)
        request = Request(url, headers=(("User-Agent", self._agent),), limits=self._egress.limits)
        response = await self._egress.fetch(request)
        if isinstance(response, Failure):
            return ProbeAnswer(url, None)
        body = response.body(self._egress.limits)
        text = "" if isinstance(body, Failure) else body[:LONGEST_TEXT].decode("utf-8", "replace")
        return ProbeAnswer(
            url, response.status, response.headers.get("content-type"), text, round(response.seconds * 1000, 3)
        )

    async def _slot(self, url: Url) -> bool:
        """Wait for a slot of the host; return False if none came in time."""
        waited = 0.0
        while waited < LONGEST_WAIT_SECONDS:
            [grant] = await self._database.run(lambda tx: self._limiter.give(tx, [origin(url)]))
            await self._clock.sleep(grant.wait_seconds)
            if grant.granted:
                return True
            waited += max(grant.wait_seconds, 0.1)
        return False
