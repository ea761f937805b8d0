"""The renderer of each process, chosen by the settings: a render service, or browsers of its own."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from shoal.app.address_rule import address_rule_of
from shoal.base.clock import Clock
from shoal.base.signals import Signals
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.render_stage import pages_at_once
from shoal.egress import AddressRule, Egress, Limits, Proxies, Proxy, listening
from shoal.egress.pinning_proxy import PinningProxy, ProxyLimits
from shoal.hosts.robots_cache import RobotsCache, RobotsReader
from shoal.render.chromium import find_chromium
from shoal.render.network import PinnedNetwork
from shoal.render.pool import BrowserPool
from shoal.render.renderer import Renderer
from shoal.render.subrequests import RobotsRules
from shoal.settings import Settings

if TYPE_CHECKING:
    from shoal.app.app import App


def check_browser(settings: Settings) -> None:
    """Raise `BadConfig`, with the fix, if this machine has no browser and no render service is named."""
    if not settings.render.url:
        find_chromium(settings.render)


def crawl_renderer(app: "App", crawl: Crawl, rule: AddressRule, egress: Egress, proxy: Proxy | None) -> Renderer:
    """Return the renderer of one walker, which reaches the network by the same rule and proxy as its fetches."""
    settings, config = app.settings, crawl.config
    if settings.render.url:
        return remote_renderer(app)
    if config.render == "always":
        check_browser(settings)
    agent = config.user_agent or settings.egress.user_agent
    cache = RobotsCache(app.database, app.stores.hosts, egress, agent, settings.hosts, app.clock, app.signals)
    return BrowserPool(
        settings.render,
        PinnedNetwork(PinningProxy(ProxyLimits.of(settings.egress), clock=app.clock), rule, upstream=proxy),
        RobotsRules(cache, app.clock),
        agent,
        settings.egress.max_decoded_bytes,
        app.clock,
        app.signals,
        pages_at_once(settings.crawl, config.workers),
    )


def service_pool(settings: Settings, clock: Clock, signals: Signals) -> BrowserPool:
    """Return the pool of the render service, which has no store: it reads robots.txt itself."""
    rule = address_rule_of(settings)
    rule = replace(rule, own=rule.own | listening([settings.render.listen]))
    egress = Egress(rule, Limits.of(settings.egress), clock=clock)
    agent = settings.egress.user_agent
    return BrowserPool(
        settings.render,
        PinnedNetwork(
            PinningProxy(ProxyLimits.of(settings.egress), clock=clock),
            rule,
            Proxies(settings.egress.proxies).find,
        ),
        RobotsRules(RobotsReader(egress, agent, settings.hosts.longest_crawl_delay), clock),
        agent,
        settings.egress.max_decoded_bytes,
        clock,
        signals,
    )


def remote_renderer(app: "App") -> Renderer:
    from shoal.render.remote_renderer import RemoteRenderer

    return RemoteRenderer(app.settings.render, app.clock)
