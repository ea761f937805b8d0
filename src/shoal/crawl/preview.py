"""A preview of a crawl: the robots.txt rules of its hosts, and the sitemap URLs that the crawl would fetch.

A preview sends only a few requests, one after another. It shows only a sample of the crawl's URLs, because links are
found only by crawling.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from msgspec.structs import replace

from shoal.base.url import Canonicalizer, Url, UrlRefusal, origin
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.scope import GUESS, PAGE_DEPTH, CrawlScope, seeds_of, wants_sitemaps
from shoal.egress import Egress, Failure, Request
from shoal.hosts.robots import Rules
from shoal.hosts.robots_cache import fetch_robots

MOST_HOSTS: Final = 3
MOST_SITEMAPS: Final = 5
MOST_URLS: Final = 20_000
MOST_BYTES: Final = 5_000_000  # size limit of one sitemap
SAMPLES: Final = 8  # URLs shown for each fate
TIMEOUT: Final = timedelta(seconds=10)  # time limit of each request


@dataclass(frozen=True, slots=True)
class HostPreview:
    """The robots.txt of one host, and whether it allows the seed."""

    origin: str
    rules: Rules
    seed: Url
    allowed: bool


@dataclass(frozen=True, slots=True)
class SitemapPreview:
    """One sitemap of the preview; `problem` is None if the sitemap could be read."""

    url: str
    listed: int = 0
    problem: str | None = None


@dataclass(slots=True)
class ScopePreview:
    """A preview of the URLs that a crawl would find."""

    hosts: list[HostPreview] = field(default_factory=list)
    sitemaps: list[SitemapPreview] = field(default_factory=list)
    fates: Counter[Fate] = field(default_factory=Counter)  # fates of the listed URLs
    samples: dict[Fate, list[str]] = field(default_factory=dict)
    is_cut: bool = False  # True if the preview left out hosts, sitemaps or URLs

    def count(self, url: str, fate: Fate) -> None:
        self.fates[fate] += 1
        samples = self.samples.setdefault(fate, [])
        if len(samples) < SAMPLES:
            samples.append(url)


class ScopePreviewer:
    """Makes previews. `connect` opens an egress for each preview, which is closed afterwards."""

    def __init__(self, connect: Callable[[], Egress], agent: str, longest_delay: timedelta) -> None:
        self._connect = connect
        self._agent = agent
        self._longest_delay = longest_delay

    async def preview(self, config: CrawlConfig) -> ScopePreview:
        """Request the robots.txt files and the sitemaps of the first hosts, and judge the URLs in the sitemaps."""
        seeds = seeds_of(config)
        agent = config.user_agent or self._agent
        found, rules = ScopePreview(), dict[str, Rules]()
        origins = list(dict.fromkeys(map(origin, seeds)))
        found.is_cut = len(origins) > MOST_HOSTS
        egress = self._connect()
        try:
            for host in origins[:MOST_HOSTS]:
                record = await fetch_robots(egress, host, agent)
                rules[host] = Rules(record, agent, self._longest_delay)
                seed = next(url for url in seeds if origin(url) == host)
                allowed = config.robots == "ignore" or rules[host].allows(seed)
                found.hosts.append(HostPreview(host, rules[host], seed, allowed))
            if wants_sitemaps(config):
                await self._sitemaps(egress, config, seeds, rules, found, agent)
        finally:
            egress.close()
        return found

    async def _sitemaps(
        self,
        egress: Egress,
        config: CrawlConfig,
        seeds: list[Url],
        rules: dict[str, Rules],
        found: ScopePreview,
        agent: str,
    ) -> None:
        scope, urls = CrawlScope(config, seeds), Canonicalizer(config.url_rules())
        waiting = [url for host, one in rules.items() for url, _ in one.sitemaps_at(host)]
        waiting = list(dict.fromkeys(waiting or [host + GUESS for host in rules]))
        seen = set(seeds)
        while waiting and len(found.sitemaps) < MOST_SITEMAPS and sum(found.fates.values()) < MOST_URLS:
            address = waiting.pop(0)
            listed, kind, about = await self._sitemap(egress, address, agent)
            found.sitemaps.append(about)
            if kind == "index":
                waiting += [url for url in listed if url not in waiting]
                continue
            # Judging thousands of URLs takes a while, so it runs in a thread and other requests are served meanwhile.
            await asyncio.to_thread(self._judge, urls.resolve(Url(address), listed), scope, rules, config, seen, found)
        found.is_cut = found.is_cut or bool(waiting)

    @staticmethod
    def _judge(
        listed: list[Url | UrlRefusal],
        scope: CrawlScope,
        rules: dict[str, Rules],
        config: CrawlConfig,
        seen: set[Url],
        found: ScopePreview,
    ) -> None:
        for url in listed:
            if isinstance(url, UrlRefusal) or url in seen:
                continue
            if sum(found.fates.values()) >= MOST_URLS:
                found.is_cut = True
                return
            seen.add(url)
            fate = scope.judge(url, PAGE_DEPTH)
            host = rules.get(origin(url))
            if fate is Fate.OPEN and config.robots == "obey" and host is not None and not host.allows(url):
                fate = Fate.SKIPPED_ROBOTS
            found.count(url, fate)

    @staticmethod
    async def _sitemap(egress: Egress, address: str, agent: str) -> tuple[list[str], str | None, SitemapPreview]:
        from shoal.extract.sitemap import read_sitemap  # only previews and sitemap fetches need the parser

        limits = replace(
            egress.limits, max_body_bytes=MOST_BYTES, max_decoded_bytes=MOST_BYTES, cut_body=True, total_timeout=TIMEOUT
        )
        request = Request(address, headers=(("User-Agent", agent),), limits=limits)
        outcome = await egress.fetch(request, redirects=True)
        if isinstance(outcome, Failure):
            return [], None, SitemapPreview(address, problem=outcome.message)
        if outcome.status != 200:
            return [], None, SitemapPreview(address, problem=f"The server answered {outcome.status}.")
        body = outcome.body(limits)
        if isinstance(body, Failure):
            return [], None, SitemapPreview(address, problem=body.message)
        sitemap = await asyncio.to_thread(read_sitemap, body)
        listed = [entry.url for entry in sitemap.entries]
        problem = None if sitemap.kind else f"The sitemap {sitemap.problem or 'has no sitemap format'}."
        return listed, sitemap.kind, SitemapPreview(address, len(listed), problem)
