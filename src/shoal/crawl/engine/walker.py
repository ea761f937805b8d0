"""One walker: the run of a crawl job in this process."""

from typing import TYPE_CHECKING

from shoal.base.database import Tx
from shoal.crawl.crawl import Crawl
from shoal.crawl.engine.engine import Engine
from shoal.crawl.engine.engine_factory import build_engine
from shoal.crawl.engine.known_urls import PreviousCrawl, is_whole
from shoal.crawl.engine.walker_context import (
    WalkerCallbacks,
    WalkerRequests,
    WalkerRuntime,
    WalkerSignals,
    WalkerStores,
)
from shoal.hosts.rate import FetchRate, changed
from shoal.queue.job import Fence

if TYPE_CHECKING:  # few crawls store bodies or read more than facts
    from shoal.extract.optional_facts import OptionalFactsReader
    from shoal.pages.warc import BodyRecorder


class Walker:
    """The run of one crawl job in this process."""

    def __init__(
        self, stores: WalkerStores, runtime: WalkerRuntime, crawl: Crawl, fence: Fence, callbacks: WalkerCallbacks
    ) -> None:
        self._stores = stores
        self._runtime = runtime
        self._crawl = crawl
        self._fence = fence
        self._callbacks = callbacks
        self._control = WalkerRequests()
        self._signals = WalkerSignals(runtime.signals, crawl.id)
        self._engine: Engine | None = None
        self._rate: FetchRate | None = None

    async def run(self) -> str:
        """Crawl until this walker no longer holds the job; return how it ended."""
        bodies: BodyRecorder | None = None
        optional_facts: OptionalFactsReader | None = None
        try:
            bodies = self._body_recorder()
            previous = await self._previous_crawl()
            optional_facts = self._optional_facts()
            self._engine = build_engine(
                self._stores,
                self._runtime,
                self._crawl,
                self._fence,
                self._callbacks,
                control=self._control,
                signals=self._signals,
                previous=previous,
                bodies=bodies,
                optional_facts=optional_facts,
            )
            self._engine.limit_rate(self._rate)
            return (await self._engine.run()).value
        finally:
            if self._runtime.renderer is not None:
                await self._runtime.renderer.close()
            self._runtime.egress.close()
            if optional_facts is not None:
                self._signals.hooks_ran(optional_facts.hooks)
            if bodies is not None:
                await bodies.close()

    def leave(self, reason: str) -> None:
        """Settle what finished and hand the job back."""
        self._control.hand_back(reason)

    def limit_rate(self, per_second: float | None) -> None:
        """Start at most this many fetches per second; None: unlimited."""
        self._rate = changed(self._rate, per_second, self._runtime.clock)
        if self._engine is not None:
            self._engine.limit_rate(self._rate)

    def nudge(self) -> None:
        """Make a commit soon, because something about the crawl changed."""
        self._control.nudge()

    @property
    def waits_for(self) -> str | None:
        """Return what the next fetch waits for; None if for a response, or before the first one."""
        return None if self._engine is None else self._engine.waits_for

    def stalled_seconds(self) -> float:
        """Return the time in which nothing was settled although work was due."""
        return 0.0 if self._engine is None else self._engine.stalled_seconds()

    async def _previous_crawl(self) -> PreviousCrawl | None:
        """Load the crawl that this one follows. If it was deleted meanwhile, no request is conditional."""
        stores, config = self._stores, self._crawl.config
        if config.recrawl_of is None:
            return None

        async def look(tx: Tx) -> tuple[Crawl, bool] | None:
            previous = await stores.crawls.store.get(tx, config.recrawl_of or "")
            if previous is None or previous.key_seed != self._crawl.key_seed:
                return None
            counts = await stores.crawls.store.counts(tx, previous.number)
            return previous, is_whole(previous, counts, await stores.frontiers.of(previous).traps(tx, previous.number))

        found = await stores.database.read(look)
        if found is None:
            return None
        previous, whole = found
        return PreviousCrawl(stores.database, previous, config, is_whole=whole)

    def _body_recorder(self) -> "BodyRecorder | None":
        if not self._crawl.config.keep_bodies:
            return None
        from shoal.pages.warc import BodyRecorder  # only crawls that store bodies pay for it

        return BodyRecorder(self._stores.bodies, self._crawl.bodies)

    def _optional_facts(self) -> "OptionalFactsReader | None":
        config = self._crawl.config
        if not (config.analyze or config.links) and config.rules is None and not config.hooks:
            return None
        from shoal.extract.optional_facts import OptionalFactsReader, find_hooks
        from shoal.extract.rules import read_rules

        rules = None if config.rules is None else read_rules(config.rules)
        hooks = find_hooks(config.hooks)
        return OptionalFactsReader(
            self._runtime.clock.monotonic, analyze=config.analyze, links=config.links, rules=rules, hooks=hooks
        )
