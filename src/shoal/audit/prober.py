"""Requests that analyzers make to the site: paths, targets of links, and slow pages that are measured again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final

import numpy as np

from shoal.audit.codes import is_timing
from shoal.audit.site import ProbeAnswer, Site
from shoal.audit.verdict import Outcome, Verdict
from shoal.base.clock import Clock
from shoal.base.url import Canonicalizer, Url, origin
from shoal.egress import PLAIN_URLS, REDIRECTS, Cancellable, Egress, Failure, Request, leads_to
from shoal.egress import Outcome as EgressOutcome
from shoal.egress.exchange import asked_wait
from shoal.hosts.throttle import THROTTLED
from shoal.web.page_fetcher import Fetched
from shoal.web.single_fetch import SingleFetches

LARGEST_BODY: Final = 100_000  # bytes that are kept
HOSTS_AT_ONCE: Final = 8
MOST_REDIRECTS: Final = 5
REFUSALS: Final = frozenset({401, 403, 407, 429, 503})  # statuses that do not show what other visitors get
_POLL_SECONDS: Final = 0.5

Progress = Callable[[], Awaitable[None]]
"""Called regularly; raises if the run has to end."""

_Ask = Callable[[Url], Awaitable[ProbeAnswer | None]]


class Probed(Fetched):
    """The outcome of one request: summarized for the fetch pool, and complete in `outcome`."""

    outcome: EgressOutcome | None = None


class Prober:
    """Requests single URLs."""

    def __init__(self, fetches: SingleFetches, egress: Egress, agent: str, clock: Clock) -> None:
        self._fetches = fetches
        self._egress = egress
        self._agent = agent
        self._clock = clock
        self._urls = Canonicalizer(PLAIN_URLS)

    async def probe(self, urls: Sequence[str], within: timedelta, progress: Progress) -> dict[str, ProbeAnswer]:
        """Return the responses by URL; `status` is None if robots.txt forbids the request or no response came.

        URLs that were not requested before the time ran out are left out. `progress` is called regularly; if it raises,
        everything is stopped.
        """
        return await self._ask_hosts(self._ask, urls, within, progress)

    async def check(self, urls: Sequence[str], within: timedelta, progress: Progress) -> dict[str, ProbeAnswer]:
        """Return the final responses by URL, after redirects. Requests use HEAD, then GET if HEAD fails.

        A URL is left out if the time ran out, if robots.txt or the address rule forbids the request, or if the server
        refuses us. `progress` is called regularly; if it raises, everything is stopped.
        """
        return await self._ask_hosts(self._check, urls, within, progress)

    async def _ask_hosts(
        self, ask: _Ask, urls: Sequence[str], within: timedelta, progress: Progress
    ) -> dict[str, ProbeAnswer]:
        """Ask several hosts at the same time, each for one URL after another, until the time is over."""
        answers: dict[str, ProbeAnswer] = {}
        hosts: dict[str, list[Url]] = {}
        for url in urls:
            hosts.setdefault(origin(Url(url)), []).append(Url(url))
        waiting = iter(hosts.values())
        ends_at = self._clock.monotonic() + within.total_seconds()

        async def ask_next() -> None:
            for urls_of_host in waiting:
                for url in urls_of_host:
                    if (answer := await ask(url)) is not None:
                        answers[url] = answer

        tasks = [asyncio.create_task(ask_next()) for _ in range(min(HOSTS_AT_ONCE, len(hosts)))]
        running = set(tasks)
        try:
            while running and (left := ends_at - self._clock.monotonic()) > 0:
                done, running = await asyncio.wait(running, timeout=min(left, _POLL_SECONDS))
                for task in done:
                    task.result()
                await progress()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return answers

    async def _check(self, url: Url) -> ProbeAnswer | None:
        answer = await self._follow(url, "HEAD")
        if answer is not None and answer.is_broken:  # some servers answer only GET
            answer = await self._follow(url, "GET")
        return None if answer is None or answer.status in REFUSALS else answer

    async def _follow(self, url: Url, method: str) -> ProbeAnswer | None:
        """Return the last response of a chain of redirects; None if one of its requests must not be sent."""
        target = url
        for hops in range(MOST_REDIRECTS + 1):
            response = await self._request(target, method)
            if response is None:
                return None
            if isinstance(response, Failure):
                return None if response.is_blocked else ProbeAnswer(url, None, error=response.code, moved=hops > 0)
            following = leads_to(response, self._urls) if response.status in REDIRECTS else None
            if isinstance(following, Failure):
                return ProbeAnswer(url, None, error=following.code, moved=True)
            if following is None:
                return ProbeAnswer(url, response.status, moved=hops > 0)
            target = following
        return ProbeAnswer(url, None, error="too_many_redirects", moved=True)

    def close(self) -> None:
        self._fetches.close()
        self._egress.close()

    async def _ask(self, url: Url) -> ProbeAnswer:
        response = await self._request(url, "GET")
        if response is None or isinstance(response, Failure):
            return ProbeAnswer(url, None)
        body = response.body(self._egress.limits)
        kept = b"" if isinstance(body, Failure) else body[:LARGEST_BODY]
        return ProbeAnswer(
            url, response.status, response.headers.get("content-type"), kept, round(response.seconds * 1000, 3)
        )

    async def _request(self, url: Url, method: str) -> EgressOutcome | None:
        """Request a URL in a slot of its host; return None if robots.txt forbids it, or no slot came in time."""

        def send(url: Url, send_by: float, done: Callable[[Fetched], None]) -> Cancellable:
            request = Request(
                url, method, headers=(("User-Agent", self._agent),), limits=self._egress.limits, send_by=send_by
            )
            return self._egress.submit(request, lambda outcome: done(_probed(url, outcome)))

        probed = await self._fetches.fetch(url, send)
        return probed.outcome if isinstance(probed, Probed) else None


def _probed(url: Url, outcome: EgressOutcome) -> Probed:
    if isinstance(outcome, Failure):
        return Probed(url, 0.0, failure=outcome, outcome=outcome)
    retry_after = asked_wait(outcome.headers.get) if outcome.status in THROTTLED else None
    return Probed(url, outcome.seconds, status=outcome.status, retry_after=retry_after, outcome=outcome)


LONGEST_MEASURING: Final = timedelta(minutes=2)


def needs_second_look(verdict: Verdict) -> bool:
    """Return whether a rule about response times fails the gate."""
    return any(
        rule.outcome is Outcome.FAILED and rule.severity == "error" and is_timing(rule.metric) for rule in verdict.rules
    )


async def measure_again(site: Site, prober: Prober, most: int, progress: Progress) -> int:
    """Request the slowest pages again and put the shorter time into the columns; return how many got faster."""
    times = site.pages["duration_ms"]
    known = np.flatnonzero(~np.isnan(times) & (site.pages["status"] > 0))
    slowest = known[np.argsort(-times[known], kind="stable")[:most]].tolist()
    urls = [site.pages.answered_at(page) for page in slowest]
    answers = await prober.probe(urls, LONGEST_MEASURING, progress)
    faster = 0
    for page, url in zip(slowest, urls, strict=True):
        answer = answers.get(url)
        if answer is not None and answer.duration_ms is not None and answer.duration_ms < times[page]:
            times[page] = answer.duration_ms
            faster += 1
    return faster
