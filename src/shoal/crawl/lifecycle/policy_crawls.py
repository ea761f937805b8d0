"""Crawls of policies: looked up, started and stopped under an id that the scheduler chose."""

from contextlib import suppress
from typing import Any

from shoal.base.errors import AlreadyExists, NotFound, StateConflict
from shoal.base.ids import CrawlId
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.states import TERMINAL

OWN = frozenset(
    {"seeds", "project", "labels", "priority", "start"}
)  # set by the policy itself, not by its crawl options


class PolicyCrawls:
    """Implements `plan.site_scheduler.CrawlStarter`."""

    def __init__(self, crawls: Crawls) -> None:
        self._crawls = crawls

    def check(self, options: dict[str, Any]) -> None:
        self._crawls.check(_config(options))

    async def lives(self, crawl_id: str) -> bool:
        try:
            return (await self._crawls.get(crawl_id)).crawl.state not in TERMINAL
        except NotFound:
            return False

    async def begin(self, crawl_id: str, options: dict[str, Any]) -> None:
        with suppress(AlreadyExists):
            await self._crawls.submit(_config(options), crawl_id=CrawlId(crawl_id))

    async def stop(self, crawl_id: str) -> None:
        with suppress(StateConflict, NotFound):  # it has just ended, or was removed
            await self._crawls.stop(crawl_id, "replaced")


def _config(options: dict[str, Any]) -> CrawlConfig:
    return CrawlConfig.read(options, called=lambda name: name if name in OWN else f"crawl_config.{name}")
