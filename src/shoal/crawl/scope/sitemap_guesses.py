"""Where the sitemaps of a crawl are looked for. What they list is read by `sitemap_reader`.

Each host of a seed, and each that a seed redirects to, is asked for `/sitemap.xml`; with it come those that its
robots.txt names. They are URLs of the frontier as pages are, of another kind, so that a kill loses none of them. Those
of an index wait behind the pages that are known already, so that a large one is read as far as the crawl gets.
"""

from collections.abc import Iterable

from shoal.base.url import Url, origin
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import FrontierTask, NewUrl, UrlKind, key_of

GUESS = "/sitemap.xml"
FIRST_DEPTH = 1  # of a sitemap: after the seeds
PAGE_DEPTH = 1  # of what sitemaps list: less than that of the sitemaps of an index


def wants_sitemaps(config: CrawlConfig) -> bool:
    """Whether anything that a sitemap lists could be fetched."""
    return config.sitemap != "off" and config.depth >= PAGE_DEPTH and config.scope != "page"


def guesses(urls: Iterable[Url], key_seed: int) -> list[NewUrl]:
    """Where the hosts of these URLs have their sitemaps if nobody says otherwise."""
    return [new_sitemap(Url(home + GUESS), FIRST_DEPTH, key_seed) for home in dict.fromkeys(map(origin, urls))]


def is_first_guess(sitemap: FrontierTask | NewUrl) -> bool:
    """Whether it is where we look for the sitemap of a host, whoever else may name it."""
    return sitemap.depth == FIRST_DEPTH and sitemap.url == origin(sitemap.url) + GUESS


def new_sitemap(url: Url, depth: int, key_seed: int, parent: int | None = None) -> NewUrl:
    return NewUrl(*key_of(url, key_seed, UrlKind.SITEMAP), url, depth, Fate.OPEN, parent, UrlKind.SITEMAP)
