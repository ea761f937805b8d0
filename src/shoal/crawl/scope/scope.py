"""The scope of a crawl: decides which URLs belong to it. Pure functions from a URL and its depth to a fate."""

from collections.abc import Iterable

from shoal.base.url import Url, hostname, origin, registrable_domain
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.url_patterns import UrlPatterns

MAX_SEGMENTS = 40
MAX_REPEATS = 3


class CrawlScope:
    """The scope of one crawl. Only redirects of its seeds widen it."""

    def __init__(self, config: CrawlConfig, seeds: list[Url]) -> None:
        self._kind = config.scope
        self.change(config)
        self._starts: tuple[str, ...] = ()
        self._domains: set[str] = set()
        for seed in seeds:
            self.widen(seed)

    def change(self, config: CrawlConfig) -> None:
        """Apply a new depth and new filters; the scope itself does not change."""
        self._depth = config.depth
        self._include = UrlPatterns(config.include) if config.include else None
        self._exclude = UrlPatterns(config.exclude) if config.exclude else None

    def widen(self, url: Url) -> None:
        """Widen the scope as if this URL were a seed."""
        if self._kind == "domain":
            self._domains.add(registrable_domain(hostname(url)))
        else:
            self._starts = tuple(dict.fromkeys((*self._starts, _border(url, self._kind))))

    def inside(self, url: Url) -> bool:
        """Return whether the URL is in scope, regardless of depth and filters."""
        if self._kind == "domain":
            return registrable_domain(hostname(url)) in self._domains
        return url.startswith(self._starts)

    def inside_flags(self, urls: Iterable[Url]) -> list[bool]:
        """Return for each URL whether it is in scope. Batched because a page has about sixty links."""
        if self._kind == "domain":
            return [self.inside(url) for url in urls]
        starts = self._starts
        return [url.startswith(starts) for url in urls]

    def deep_enough(self, depth: int) -> bool:
        return depth <= self._depth

    def judge(self, url: Url, depth: int) -> Fate:
        """Return the fate of a URL that was just found: OPEN if it is to be fetched, else why not."""
        return self.judge_inside(url, depth) if self.inside(url) else Fate.SKIPPED_SCOPE

    def judge_inside(self, url: Url, depth: int) -> Fate:
        """Return the fate of a URL that is known to be in scope."""
        if not self.deep_enough(depth):
            return Fate.SKIPPED_DEPTH
        if self._exclude is not None and self._exclude.match(url):
            return Fate.SKIPPED_EXCLUDED
        if self._include is not None and not self._include.match(url):
            return Fate.SKIPPED_NOT_INCLUDED
        return _trap(url)


def _border(url: Url, kind: str) -> str:
    """Return the prefix of every URL in scope."""
    match kind:
        case "any":
            return "http"
        case "page":
            return url
        case "prefix":
            return url.partition("?")[0].rpartition("/")[0] + "/"
        case _:
            return origin(url) + "/"


def _trap(url: Url) -> Fate:
    """Detect endlessly generated paths: one segment repeated too often, or too many segments."""
    path = url.partition("?")[0]
    if path.count("/") < MAX_REPEATS + 4:
        return Fate.OPEN
    segments = [segment for segment in path.split("/")[3:] if segment]
    if len(segments) > MAX_SEGMENTS:
        return Fate.SKIPPED_TOO_MANY_SEGMENTS
    repeated = max(map(segments.count, set(segments)), default=0)
    return Fate.SKIPPED_REPEATING_PATH if repeated > MAX_REPEATS else Fate.OPEN
