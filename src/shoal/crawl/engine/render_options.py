"""The rendering options of a crawl."""

from collections.abc import Callable

from shoal.base.settings import CrawlSettings, Settings
from shoal.base.url import Url
from shoal.crawl.crawl import CrawlConfig, split_wait_for
from shoal.crawl.credentials import is_label
from shoal.crawl.url_patterns import UrlPatterns
from shoal.web.rendering import RenderOptions, Screenshots


def render_options(
    config: CrawlConfig, settings: Settings, *, connections: int, screenshots: Screenshots | None
) -> RenderOptions:
    """Return the rendering options of a crawl."""
    return RenderOptions(
        mode=config.render,
        pages=pages_at_once(settings.crawl, config.workers),
        wait_for=selector_by_url(config.wait_for),
        scroll=config.scroll,
        click=config.click,
        obeys_robots=config.robots == "obey",
        connections=connections,
        user_agent=config.user_agent or settings.egress.user_agent,
        proxy=config.proxy if config.proxy is not None and settings.render.url and is_label(config.proxy) else None,
        screenshots=screenshots,
    )


def selector_by_url(wait_for: str | None) -> Callable[[Url], str | None]:
    """Return a function that returns the selector to wait for at a URL, or None if there is none."""
    if wait_for is None:
        return lambda url: None
    pattern, selector = split_wait_for(wait_for)
    if pattern is None:
        return lambda url: selector
    patterns = UrlPatterns([pattern])
    return lambda url: selector if patterns.match(url) else None


def pages_at_once(settings: CrawlSettings, walkers: int) -> int:
    """Return how many pages one walker may render at the same time, so that all walkers together stay within
    `MAX_CONCURRENT_CHROME`. A crawl that renders has at most `MAX_CONCURRENT_CHROME` walkers."""
    return max(1, settings.max_concurrent_chrome // walkers)
