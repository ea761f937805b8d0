"""The options that can be changed while a crawl runs: limits, filters and request rate."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from shoal.base.request_form import Check, Form, describe
from shoal.base.settings import Speed
from shoal.crawl.crawl import Count, CrawlConfig, Depth, Fetches, Patterns, Pause, Priority, Seconds, Size
from shoal.crawl.url_patterns import check_patterns


class CrawlChange(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changed options of a crawl. Options that are not given stay as they are; `null` removes a limit."""

    depth: Annotated[Depth | UnsetType | None, describe("Maximum number of links between a seed and a page.")] = UNSET
    max_pages: Annotated[Count | UnsetType | None, describe("Complete after this many pages.")] = UNSET
    max_bytes: Annotated[Size | UnsetType | None, describe("Complete after this many bytes.")] = UNSET
    max_seconds: Annotated[Seconds | UnsetType | None, describe("Complete after this much crawling time.")] = UNSET
    max_pages_per_host: Annotated[Count | UnsetType | None, describe("Maximum number of pages per host.")] = UNSET
    include: Annotated[Patterns | UnsetType, describe("Crawl only URLs that match one of these patterns.")] = UNSET
    exclude: Annotated[Patterns | UnsetType, describe("Skip URLs that match one of these patterns.")] = UNSET
    speed: Annotated[Speed | UnsetType, describe("Request rate per host.")] = UNSET
    concurrency: Annotated[
        Fetches | UnsetType | None, describe("Concurrent requests; overrides the speed profile.")
    ] = UNSET
    delay_seconds: Annotated[
        Pause | UnsetType | None, describe("Minimum delay between requests to one host; overrides the speed profile.")
    ] = UNSET
    priority: Annotated[Priority | UnsetType, describe("Priority from 0 to 100; higher runs first.")] = UNSET

    other_names: ClassVar = {
        name: other for name, other in CrawlConfig.other_names.items() if name in ("max_time", "delay")
    }
    checks: ClassVar[Mapping[str, Check]] = {"include": check_patterns, "exclude": check_patterns}

    def applied(self, config: CrawlConfig) -> CrawlConfig:
        return replace(config, **self.plain())
