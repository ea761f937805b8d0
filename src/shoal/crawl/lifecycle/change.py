"""What of a crawl may be changed while it lives: its limits, its filters, and how hard it asks."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shoal.base.request_form import Check, Form, describe
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

    depth: Annotated[Depth | UnsetType, describe("How many links away from a seed a page may be.")] = UNSET
    max_pages: Annotated[Count | UnsetType | None, describe("Pages after which the crawl completes.")] = UNSET
    max_bytes: Annotated[Size | UnsetType | None, describe("Bytes after which the crawl completes.")] = UNSET
    max_seconds: Annotated[Seconds | UnsetType | None, describe("Time of work after which it completes.")] = UNSET
    max_pages_per_host: Annotated[Count | UnsetType | None, describe("Pages taken from one host.")] = UNSET
    include: Annotated[Patterns | UnsetType, describe("Only URLs that match one of these are crawled.")] = UNSET
    exclude: Annotated[Patterns | UnsetType, describe("URLs that match one of these are skipped.")] = UNSET
    speed: Annotated[Speed | UnsetType, describe("How hard one host is asked.")] = UNSET
    concurrency: Annotated[Fetches | UnsetType | None, describe("Fetches in flight; beats the speed profile.")] = UNSET
    delay_seconds: Annotated[Pause | UnsetType | None, describe("Pause between requests to one host.")] = UNSET
    priority: Annotated[Priority | UnsetType, describe("Higher first.")] = UNSET

    checks: ClassVar[Mapping[str, Check]] = {"include": check_patterns, "exclude": check_patterns}

    def applied(self, config: CrawlConfig) -> CrawlConfig:
        return replace(config, **self.plain())
