"""The contents of the store: how long each kind of data is kept, and how large it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shoal.base.settings import Settings
from shoal.base.text import message
from shoal.observe.stats import StoreSize, TableSize
from shoal.serve.cached import Cached

WITH_CRAWL: Final = message("until their crawl is removed")
UNTIL_REMOVED: Final = message("until they are removed")
FOR_EVER: Final = message("for ever")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data, its tables (the first one holds a row for each), and how long it is kept: a setting or words."""

    name: str
    tables: tuple[str, ...]
    kept: str


KINDS: Final = (
    Kind(message("Crawls"), ("crawl", "crawl_counter", "crawl_skip", "crawl_line", "trap"), UNTIL_REMOVED),
    Kind(message("Pages"), ("page", "page_detail", "redirect_target", "sitemap"), WITH_CRAWL),
    Kind(message("URLs"), ("fate", "frontier", "frontier_touched", "frontier_host"), WITH_CRAWL),
    Kind(message("Analyses"), ("analysis", "finding", "finding_count"), WITH_CRAWL),
    Kind(message("Jobs"), ("job", "job_host", "job_grant", "job_seat"), "SHOAL_JOB_RETENTION"),
    Kind(message("Dead letters"), (), "SHOAL_DEAD_RETENTION"),
    Kind(message("Results of policies"), ("result",), "SHOAL_RESULT_RETENTION"),
    Kind(message("Events"), ("outbox",), "SHOAL_EVENTS_KEEP"),
    Kind(message("Deliveries"), ("delivery",), "SHOAL_EVENTS_KEEP"),
    Kind(message("Hourly statistics"), ("job_hour", "bot_hour"), "SHOAL_STATS_RETENTION"),
    Kind(message("Priority signals"), (), "SHOAL_SIGNAL_RETENTION"),
    Kind(message("Lost nodes"), (), "SHOAL_NODES_KEEP"),
    Kind(message("Policies"), ("policy",), UNTIL_REMOVED),
    Kind(message("Audit log"), ("audit_entry",), FOR_EVER),
)


@dataclass(frozen=True, slots=True)
class StorageRow:
    """A kind of data. `keep`: how long, if a setting says so; otherwise `words` do."""

    name: str
    rows: int | None
    bytes: int | None
    keep: timedelta | None
    words: str
    setting: str

    @property
    def is_kept_for_ever(self) -> bool:
        return self.keep == timedelta.max


class Storage:
    """The rows of the section, and the size of the whole store."""

    def __init__(self, sizes: Cached[StoreSize], settings: Settings) -> None:
        self._sizes = sizes
        self._keep = {
            "SHOAL_JOB_RETENTION": settings.queue.keep_finished,
            "SHOAL_DEAD_RETENTION": settings.queue.keep_dead,
            "SHOAL_RESULT_RETENTION": settings.pages.keep_results,
            "SHOAL_EVENTS_KEEP": settings.events.keep,
            "SHOAL_STATS_RETENTION": settings.queue.keep_hours,
            "SHOAL_SIGNAL_RETENTION": settings.plan.keep_signals,
            "SHOAL_NODES_KEEP": settings.fleet.keep_lost,
        }

    async def read(self) -> tuple[StoreSize, list[StorageRow]]:
        size = await self._sizes.get()
        tables = {table.name: table for table in size.tables}
        return size, [self._row(kind, tables) for kind in KINDS]

    def _row(self, kind: Kind, tables: Mapping[str, TableSize]) -> StorageRow:
        found = [tables[name] for name in kind.tables if name in tables]
        keep = self._keep.get(kind.kept)
        sizes = [table.bytes for table in found if table.bytes is not None]
        return StorageRow(
            kind.name,
            found[0].rows if found else None,
            sum(sizes) if sizes else None,
            keep,
            kind.kept if keep is None else "",
            kind.kept if keep is not None else "",
        )
