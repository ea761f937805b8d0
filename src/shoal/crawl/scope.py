"""The scope of a crawl: its seeds, which URLs belong to the crawl, and the default sitemap URLs."""

import re
from collections.abc import Callable, Iterable

from shoal.base.errors import InvalidInput
from shoal.base.parsing import is_loopback
from shoal.base.settings import Speed
from shoal.base.text import redact_url
from shoal.base.url import Url, UrlRefusal, canonical, hostname, origin, registrable_domain
from shoal.crawl.crawl import MOST_SEEDS, CrawlConfig
from shoal.crawl.credentials import is_label
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, UrlKind, key_of
from shoal.crawl.url_patterns import UrlPatterns
from shoal.egress.address import AddressRule, Proxies, Proxy, literal

MOST_STARTS = 50  # maximum number of prefixes that are compared with each URL
MAX_SEGMENTS = 40
MAX_REPEATS = 3


class CrawlScope:
    """The scope of one crawl. Only redirects of seeds widen the scope."""

    def __init__(self, config: CrawlConfig, seeds: list[Url]) -> None:
        self._kind = config.scope
        self.change(config)
        self._starts: tuple[str, ...] = ()
        self._hosts: set[str] = set()  # replaces the starts if only hosts matter: there may be thousands
        self._domains: set[str] = set()
        for seed in seeds:
            self.widen(seed)

    def change(self, config: CrawlConfig) -> None:
        """Apply a new depth and new filters; the scope itself does not change."""
        self._depth = config.deepest
        self._include = UrlPatterns(config.include) if config.include else None
        self._exclude = UrlPatterns(config.exclude) if config.exclude else None

    def widen(self, url: Url) -> None:
        """Widen the scope as if this URL were a seed."""
        if self._kind == "domain":
            self._domains.add(registrable_domain(hostname(url)))
        elif self._kind == "host" and len(self._starts) >= MOST_STARTS:
            self._hosts = self._hosts or {start.rstrip("/") for start in self._starts}
            self._hosts.add(origin(url))
        else:
            self._starts = tuple(dict.fromkeys((*self._starts, _border(url, self._kind))))

    def inside(self, url: Url) -> bool:
        """Return whether the URL is in scope, regardless of depth and filters."""
        if self._kind == "domain":
            return registrable_domain(hostname(url)) in self._domains
        return origin(url) in self._hosts if self._hosts else url.startswith(self._starts)

    def inside_flags(self, urls: Iterable[Url]) -> list[bool]:
        """Return for each URL whether it is in scope. Batched because a page has about sixty links."""
        if self._kind == "domain" or self._hosts:
            return [self.inside(url) for url in urls]
        starts = self._starts
        return [url.startswith(starts) for url in urls]

    def deep_enough(self, depth: int) -> bool:
        return depth <= self._depth

    def judge(self, url: Url, depth: int) -> Fate:
        """Return the fate of a newly found URL: OPEN if the URL is to be fetched, otherwise the reason why it is
        skipped."""
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
    """Return the prefix that every URL in scope has in common."""
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


GUESS = "/sitemap.xml"
FIRST_DEPTH = 1  # depth of a sitemap: sitemaps are fetched after the seeds
PAGE_DEPTH = 1  # depth of the pages that a sitemap lists: smaller than the depth of the sitemaps in an index


def wants_sitemaps(config: CrawlConfig) -> bool:
    """Return whether the crawl could fetch any URL that a sitemap lists."""
    return config.sitemap != "off" and config.deepest >= PAGE_DEPTH and config.scope != "page"


def guesses(urls: Iterable[Url], key_seed: int) -> list[NewUrl]:
    """Return the default sitemap URLs of the hosts of these URLs."""
    return [
        new_sitemap(Url(host_origin + GUESS), FIRST_DEPTH, key_seed) for host_origin in dict.fromkeys(map(origin, urls))
    ]


def is_first_guess(sitemap: FrontierTask | NewUrl) -> bool:
    """Return whether this is the default sitemap of a host, even if a robots.txt or a sitemap index names it, too."""
    return sitemap.depth == FIRST_DEPTH and sitemap.url == origin(sitemap.url) + GUESS


_XML = re.compile(r"(?:text|application)/(?:xml|(?:rss|atom|rdf)\+xml)\b", re.IGNORECASE)
_SITEMAP_ENDS = (".xml", ".xml.gz", ".txt", ".txt.gz")


def may_be_sitemap(url: Url, content_type: str | None) -> bool:
    """Return whether a seed that is not HTML is worth reading as a sitemap."""
    path = url[len(origin(url)) :].partition("?")[0].lower()
    return bool(_XML.match(content_type or "")) or ("sitemap" in path and path.endswith(_SITEMAP_ENDS))


def new_sitemap(url: Url, depth: int, key_seed: int, parent: int | None = None) -> NewUrl:
    return NewUrl(*key_of(url, key_seed, UrlKind.SITEMAP), url, depth, Fate.OPEN, parent, UrlKind.SITEMAP)


OWN_FIX = "use another site; a user on this machine can crawl it with `shoal crawl`"
ADDRESS_FIX = "use a public one, or ask the operator to allow its network with SHOAL_ALLOW_NETWORKS"
SEED_FIX = "write it as http://host/path or https://host/path"


def seeds_of(config: CrawlConfig, called: Callable[[str], str] = str) -> list[Url]:
    """Return the seeds in canonical form. Raise for the first seed that cannot be crawled. `called` translates the
    field name in the error to the name that the caller uses."""
    found, rules = [], config.url_rules()
    for place, seed in enumerate(config.seeds):
        url = canonical(seed, rules)
        if isinstance(url, UrlRefusal):
            what = f"{redact_url(seed[:2000])[:200]!r} {url.problem}"
            raise InvalidInput(called(f"seeds[{place}]"), what, SEED_FIX)
        found.append(url)
    return found


def default_speed(config: CrawlConfig, seeds: list[Url]) -> Speed:
    """Return the speed of a crawl that was requested without a speed. The speed is stored with the crawl, so that the
    crawl's rate does not change when a default changes."""
    if all(is_loopback(hostname(seed)) for seed in seeds):
        return "max"
    return "max" if config.concurrency is not None and config.delay_seconds is None else "normal"


def first_urls(seeds: list[Url], key_seed: int, config: CrawlConfig) -> list[NewUrl]:
    """Return the first URLs of the frontier: the seeds, and the default sitemaps of their hosts."""
    found = [NewUrl(*key_of(url, key_seed), url, 0, Fate.OPEN) for url in seeds]
    return found + guesses(seeds, key_seed) if wants_sitemaps(config) else found


def widening(config: CrawlConfig, more: list[Url]) -> list[Url]:
    """Return those added seeds that have to be stored in the crawl's options: the first seed of each host, domain or
    prefix that is new to the scope; if headers or cookies are sent to seeds, the first seed of each new origin. Raise
    if there are too many."""
    secrets = bool(config.headers or config.cookies)
    if not secrets and (config.depth == 0 or config.scope in ("page", "any")):
        return []  # the targets of redirected seeds are always in scope, and nothing else depends on the seeds

    def border(url: Url) -> str:
        if config.scope == "domain" and not secrets:
            return registrable_domain(hostname(url))
        return _border(url, "prefix" if config.scope == "prefix" else "host")

    known = {border(url) for url in seeds_of(config)}
    found: list[Url] = []
    for url in more:
        if (its := border(url)) not in known:
            known.add(its)
            found.append(url)
    if found and len(config.seeds) + len(found) > MOST_SEEDS:
        what = "folders" if config.scope == "prefix" else "hosts"
        problem = (
            f"are on more than {MOST_SEEDS:,} {what}, which is the limit of a crawl that follows links within them"
        )
        raise InvalidInput("seeds", problem, "use depth 0 or the scope any, or several crawls")
    return found


def check_addresses(rule: AddressRule, seeds: list[Url]) -> None:
    """Raise if a seed has a blocked address; host names are checked when they are resolved."""
    for place, seed in enumerate(seeds):
        refusal = rule.judge_url(seed)
        if refusal is not None:
            is_ours = refusal.code == "self_connection"
            problem = (
                "is this controller itself"
                if is_ours
                else "has an address or port that is not allowed (SSRF protection)"
            )
            raise InvalidInput(f"seeds[{place}]", problem, OWN_FIX if is_ours else ADDRESS_FIX)


def check_label(proxies: Proxies, config: CrawlConfig) -> None:
    if config.proxy is not None and is_label(config.proxy):
        proxies.check(config.proxy, "proxy")


def check_walkers(config: CrawlConfig, most: int) -> None:
    """Raise if a rendering crawl has more walkers than pages that may be rendered at the same time, because each walker
    renders at least one page."""
    if config.render != "never" and config.workers > most:
        problem = f"is {config.workers}, but a crawl that renders has at most MAX_CONCURRENT_CHROME ({most}) walkers"
        raise InvalidInput("workers", problem, "use fewer walkers, or raise MAX_CONCURRENT_CHROME")


def check_proxy(rule: AddressRule, config: CrawlConfig) -> None:
    """Raise if the proxy has a blocked address. A proxy label is always allowed, because the operator configured it."""
    if config.proxy is None or is_label(config.proxy):
        return
    proxy = Proxy.parse(config.proxy, rule)
    address = literal(proxy.host)
    if address is not None and rule.judge(address, proxy.port, proxy.host) is not None:
        raise InvalidInput("proxy", "has an address or port that is not allowed (SSRF protection)", ADDRESS_FIX)
