"""Locations at which to look for the sitemaps of a crawl. `sitemap_reader` reads them.

`/sitemap.xml` and the sitemaps that robots.txt names are requested from each host of a seed, and from each host that a
seed redirects to. Sitemaps are URLs of the frontier, of their own kind, so a crash loses none of them. Those of an
index wait behind the pages already known, so a large index is read only as far as the crawl gets.
"""

from collections.abc import Iterable

from shoal.base.url import Url, origin
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, UrlKind, key_of

GUESS = "/sitemap.xml"
FIRST_DEPTH = 1  # depth of a sitemap: after the seeds
PAGE_DEPTH = 1  # depth of listed pages: lower than that of the sitemaps in an index


def wants_sitemaps(config: CrawlConfig) -> bool:
    """Return whether any URL a sitemap lists could be fetched."""
    return config.sitemap != "off" and config.depth >= PAGE_DEPTH and config.scope != "page"


def guesses(urls: Iterable[Url], key_seed: int) -> list[NewUrl]:
    """Return the default sitemap URLs of the hosts of these URLs."""
    return [
        new_sitemap(Url(host_origin + GUESS), FIRST_DEPTH, key_seed) for host_origin in dict.fromkeys(map(origin, urls))
    ]


def is_first_guess(sitemap: FrontierTask | NewUrl) -> bool:
    """Return whether this is the default sitemap of a host, even if something else names it too."""
    return sitemap.depth == FIRST_DEPTH and sitemap.url == origin(sitemap.url) + GUESS


def new_sitemap(url: Url, depth: int, key_seed: int, parent: int | None = None) -> NewUrl:
    return NewUrl(*key_of(url, key_seed, UrlKind.SITEMAP), url, depth, Fate.OPEN, parent, UrlKind.SITEMAP)
