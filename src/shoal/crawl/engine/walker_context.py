"""The context of a walker, provided by the process that runs it: stores, settings and callbacks."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from shoal.base.clock import Clock
from shoal.base.database import Database
from shoal.base.settings import Settings
from shoal.base.signals import Signals
from shoal.crawl.frontier.values import Settled
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.store import ByDriver, FrontierStore
from shoal.egress import Egress
from shoal.pages.bodies import BodyStore
from shoal.queue.queue import Queue

if TYPE_CHECKING:  # few crawls render
    from shoal.web.renderer import Renderer


class WalkerStores(Struct, frozen=True, kw_only=True):
    """The stores that a walker reads and writes."""

    database: Database
    crawls: Crawls
    frontiers: ByDriver[FrontierStore]
    queue: Queue
    bodies: BodyStore


class WalkerRuntime(Struct, frozen=True, kw_only=True):
    """The services of its process that a walker uses. The egress and the renderer belong to the walker and are closed
    with it."""

    egress: Egress
    settings: Settings
    clock: Clock
    signals: Signals
    renderer: "Renderer | None" = None  # if the crawl renders


async def never() -> bool:
    """Refuse to renew a lease: the process that holds the lease for the walker renews it, or has given it up."""
    return False


class WalkerCallbacks(Struct, frozen=True, kw_only=True):
    """Callbacks through which a walker queries and notifies the code that runs it."""

    alive: Callable[[], bool]  # False once the lease may have expired
    renew: Callable[[], Awaitable[bool]] = never  # renews the lease; returns whether it is still ours
    settled: Callable[[list[Settled]], None] = lambda settled: None  # receives what each commit made durable
    has_capacity: Callable[[], bool] = lambda: True  # False while the consumer of the results is too slow
