"""A request for a local crawl: a new crawl, or an existing one to resume."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from shoal.app import App
from shoal.base.errors import InvalidInput
from shoal.base.extras import require
from shoal.base.ids import CrawlId
from shoal.base.text import shorten
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.scope import seeds_of
from shoal.crawl.states import CrawlState

ID = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}")  # no path traversal


@dataclass(frozen=True, slots=True)
class CrawlRequest:
    """A request for a local crawl. `trusted` means that the user chose the seeds, so seeds at private addresses are
    allowed."""

    config: CrawlConfig | None = None
    crawl_id: CrawlId | None = None
    resume: str | None = None
    trusted: bool = True
    more: Iterator[list[str]] | None = None  # further seeds, in batches, which are added before the crawl starts
    change: CrawlChange | None = None  # changed options of the crawl to resume
    reads_completed: bool = False  # a completed crawl is only read, so the changes are ignored instead of refused

    async def find(self, app: App) -> Crawl:
        """Store the new crawl, or look up the crawl to resume."""
        if self.config is None:
            found = (await app.crawls.get(await app.crawls.whole_id(self.resume or ""))).crawl
            if self.change is not None and not (self.reads_completed and found.state is CrawlState.COMPLETED):
                found = (await app.crawls.change(found.id, self.change)).crawl
            check_rendering(app, found.config)
            return found
        config = self.config
        check_rendering(app, config)
        if config.recrawl_of is not None:
            config = replace(config, recrawl_of=await app.crawls.whole_id(config.recrawl_of))
        named = list(seeds_of(config)) if self.trusted else None
        if self.more is None:
            return await app.crawls.submit(config, crawl_id=self.crawl_id, named=named, local=True)
        config = replace(config, start=False)
        crawl = await app.crawls.submit(config, crawl_id=self.crawl_id, named=named, local=True)
        try:
            for seeds in self.more:
                crawl = await app.crawls.add_seeds(crawl.id, seeds, is_named=self.trusted)
            await app.crawls.start(crawl.id, local=True)
        except BaseException:
            await app.crawls.stop(crawl.id, "interrupted")  # the crawl is incomplete without the remaining seeds
            raise
        return (await app.crawls.get(crawl.id)).crawl


def check_rendering(app: App, config: CrawlConfig) -> None:
    """Raise if pages are to be rendered but the required packages are missing. Raise `BadConfig` if every page has to
    be rendered but this machine has no browser."""
    if config.render != "never":
        require("render", "Rendering")
    if config.render == "always":
        from shoal.app.render import check_browser  # imported here because few crawls render pages

        check_browser(app.settings)


def read_id(text: str, called: str) -> CrawlId:
    if not ID.fullmatch(text):
        raise InvalidInput(
            called, f"{shorten(text)!r} is not a valid id", "use 1 to 64 letters, digits, `_`, `.` and `-`"
        )
    return CrawlId(text)


def read_config(values: Mapping[str, Any], called: Callable[[str], str] = str) -> CrawlConfig:
    """Return the options of a crawl. Raise for the first invalid option; `called` returns the caller's name for it."""
    config = CrawlConfig.read(values, strict=False, called=called)
    seeds_of(config, called)
    return config
