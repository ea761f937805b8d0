"""The renderer of each process, chosen by the settings: a render service, or browsers that the process starts."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.app.address_rule import address_rule_of
from shoal.base.clock import Clock
from shoal.base.settings import Settings
from shoal.base.signals import Signals
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.render_options import pages_at_once
from shoal.egress import Egress, Limits, Proxies, listening
from shoal.egress.pinning_proxy import PinningProxy, ProxyLimits
from shoal.hosts.robots_cache import RobotsCache, RobotsReader, RobotsRules
from shoal.web.browser import find_chromium
from shoal.web.network import PinnedNetwork
from shoal.web.pool import BrowserPool
from shoal.web.renderer import RemoteRenderer, Renderer

if TYPE_CHECKING:
    from shoal.app.app import App


def check_browser(settings: Settings) -> None:
    """Raise `BadConfig`, with the fix, if this machine has no browser and the settings name no render service."""
    if not settings.render.url:
        find_chromium(settings.render)


def crawl_renderer(app: "App", crawl: Crawl, egress: Egress) -> Renderer:
    """Return the renderer of one walker. It uses the same address rule and proxy as the walker's fetches."""
    settings, config = app.settings, crawl.config
    if settings.render.url:
        return RemoteRenderer(settings.render, app.clock)
    if config.render == "always":
        check_browser(settings)
    agent = config.user_agent or settings.egress.user_agent
    cache = RobotsCache(app.database, egress, agent, settings.hosts, app.clock, app.signals)
    pool = BrowserPool(
        settings.render.but(pages=pages_at_once(settings.crawl, config.workers)),
        PinnedNetwork(
            PinningProxy(ProxyLimits.of(settings.egress), clock=app.clock),
            egress.rule,
            upstream=egress.proxy,
            robots=RobotsRules(cache),
        ),
        agent,
        settings.egress.max_decoded_bytes,
        app.clock,
        app.signals,
    )
    app.browsers.add(pool)
    return pool


def service_pool(settings: Settings, clock: Clock, signals: Signals, pages: int | None = None) -> BrowserPool:
    """Return a pool for a process without a store, such as the render service. The pool fetches robots.txt itself."""
    rule = address_rule_of(settings)
    rule = replace(rule, own=rule.own | listening([settings.render.listen]))
    egress = Egress(rule, Limits.of(settings.egress), clock=clock)
    agent = settings.egress.user_agent
    return BrowserPool(
        settings.render if pages is None else settings.render.but(pages=pages),
        PinnedNetwork(
            PinningProxy(ProxyLimits.of(settings.egress), clock=clock),
            rule,
            Proxies(settings.egress.proxies).find,
            robots=RobotsRules(RobotsReader(egress, agent, settings.hosts.longest_crawl_delay, clock)),
        ),
        agent,
        settings.egress.max_decoded_bytes,
        clock,
        signals,
    )


def standalone_renderer(settings: Settings, clock: Clock, signals: Signals) -> Renderer:
    """Return the renderer of a process that renders without a store (a bot or a page child), with the operator's
    address rule."""
    if settings.render.url:
        return RemoteRenderer(settings.render, clock)
    return service_pool(settings, clock, signals, settings.crawl.max_concurrent_chrome)
