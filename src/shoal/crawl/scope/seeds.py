"""The seeds of a crawl: their canonical form, and whether they and its proxy are allowed addresses."""

from collections.abc import Callable

from shoal.base.errors import InvalidInput
from shoal.base.text import redact_url
from shoal.base.url import Url, UrlRefusal, canonical
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.credentials import is_label
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, key_of
from shoal.crawl.scope.sitemap_guesses import guesses, wants_sitemaps
from shoal.egress.address import AddressRule, Proxies, Proxy, literal

OWN_FIX = "use another site; a user on this machine can crawl it with `shoal crawl`"
ADDRESS_FIX = "use a public one, or ask the operator to allow its network with SHOAL_ALLOW_NETWORKS"
SEED_FIX = "write it as http://host/path or https://host/path"


def seeds_of(config: CrawlConfig, called: Callable[[str], str] = str) -> list[Url]:
    """Return the seeds in canonical form. Raise for the first that cannot be crawled, named as the caller calls it."""
    found, rules = [], config.url_rules()
    for place, seed in enumerate(config.seeds):
        url = canonical(seed, rules)
        if isinstance(url, UrlRefusal):
            what = f"{redact_url(seed[:2000])[:200]!r} {url.problem}"
            raise InvalidInput(called(f"seeds[{place}]"), what, SEED_FIX)
        found.append(url)
    return found


def first_urls(seeds: list[Url], key_seed: int, config: CrawlConfig) -> list[NewUrl]:
    """Return the first URLs of the frontier: the seeds, and the default sitemaps of their hosts."""
    found = [NewUrl(*key_of(url, key_seed), url, 0, Fate.OPEN) for url in seeds]
    return found + guesses(seeds, key_seed) if wants_sitemaps(config) else found


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
    """Raise if a crawl that renders has more walkers than pages that may be rendered at once: each renders at least
    one."""
    if config.render != "never" and config.workers > most:
        problem = f"is {config.workers}, but a crawl that renders has at most MAX_CONCURRENT_CHROME ({most}) walkers"
        raise InvalidInput("workers", problem, "use fewer walkers, or raise MAX_CONCURRENT_CHROME")


def check_proxy(rule: AddressRule, config: CrawlConfig) -> None:
    """Raise if the proxy has a blocked address; a proxy label was set up by the operator and is allowed."""
    if config.proxy is None or is_label(config.proxy):
        return
    proxy = Proxy.parse(config.proxy, rule)
    address = literal(proxy.host)
    if address is not None and rule.judge(address, proxy.port, proxy.host) is not None:
        raise InvalidInput("proxy", "has an address or port that is not allowed (SSRF protection)", ADDRESS_FIX)
