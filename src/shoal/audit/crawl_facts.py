"""The facts about a crawl that its analysis needs. `shoal.crawl` and this package do not import each other, so the
composition root connects them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.base.database import Tx


@dataclass(frozen=True, slots=True)
class CrawlFacts:
    """The facts of a crawl. `options`: those that concern the analysis (`gate`, `baseline`, `commit`)."""

    number: int
    id: str
    project: str
    priority: int
    site: str  # its first seed
    state: str
    has_ended: bool
    pages: int
    has_details: bool
    options: Mapping[str, Any]


class CrawlUrls(Protocol):
    """URLs as the crawl sees them."""

    def resolve(self, base: str, written: Sequence[str]) -> list[str | None]:
        """Return the canonical form of links as a page wrote them; None for those that are not valid."""
        ...

    def key(self, url: str) -> int:
        """Return the key of a canonical URL."""
        ...


class CrawlSource(Protocol):
    """Looks crawls up."""

    async def facts(self, tx: Tx, crawl_id: str) -> CrawlFacts | None: ...

    async def quarantined(self, tx: Tx, crawl: int) -> int:
        """Return how many URLs were held back as a trap."""
        ...

    async def urls(self, tx: Tx, crawl_id: str) -> CrawlUrls:
        """Return the URLs of a crawl that exists."""
        ...
