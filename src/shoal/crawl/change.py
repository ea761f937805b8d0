"""What of a crawl may be changed while it lives: its limits, its filters, and how hard it asks."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shoal.base.form import Check, Form, says
from shoal.crawl.crawl import (
    Count,
    CrawlConfig,
    Depth,
    Fetches,
    Patterns,
    Pause,
    Priority,
    Seconds,
    Size,
)
from shoal.crawl.url_patterns import check_patterns
from shoal.settings import Speed


class CrawlChange(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall be different from now on; what is not named stays. `null` takes a limit away."""

    depth: Annotated[Depth | UnsetType, says("How many links away from a seed a page may be.")] = UNSET
    max_pages: Annotated[Count | UnsetType | None, says("Pages after which the crawl completes.")] = UNSET
    max_bytes: Annotated[Size | UnsetType | None, says("Bytes after which the crawl completes.")] = UNSET
    max_seconds: Annotated[Seconds | UnsetType | None, says("Time of work after which it completes.")] = UNSET
    max_pages_per_host: Annotated[Count | UnsetType | None, says("Pages taken from one host.")] = UNSET
    include: Annotated[Patterns | UnsetType, says("Only URLs that match one of these are crawled.")] = UNSET
    exclude: Annotated[Patterns | UnsetType, says("URLs that match one of these are skipped.")] = UNSET
    speed: Annotated[Speed | UnsetType, says("How hard one host is asked.")] = UNSET
    concurrency: Annotated[Fetches | UnsetType | None, says("Fetches in flight; beats the speed profile.")] = UNSET
    delay_seconds: Annotated[Pause | UnsetType | None, says("Pause between requests to one host.")] = UNSET
    priority: Annotated[Priority | UnsetType, says("Higher first.")] = UNSET

    checks: ClassVar[Mapping[str, Check]] = {"include": check_patterns, "exclude": check_patterns}

    def applied(self, config: CrawlConfig) -> CrawlConfig:
        return replace(config, **self.plain())
