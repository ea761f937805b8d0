"""The counters of a crawl on SQL: one row per walker, so that walkers do not wait for each other."""

from collections import Counter

from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.crawl import Counts
from shoal.crawl.frontier.traps import pattern_of
from shoal.pages.response_counts import CLASSES, ResponseClass

RESPONSES: dict[ResponseClass, str] = {kind: f"responses_{kind}" for kind in CLASSES}
"""The column of each response class."""


async def add_counts(tx: Tx, crawl: int, counter: str, counts: Counts) -> None:
    skips = [(crawl, counter, word, more) for word, more in sorted(counts.skipped.items()) if more]
    await tx.many("add_skips", skips)
    sums = {
        "opened": counts.opened,
        "settled": counts.settled,
        "pages": counts.pages,
        "errors": counts.errors,
        "bytes": counts.bytes,
        "not_modified": counts.not_modified,
        "bytes_saved": counts.bytes_saved,
        "depth": counts.depth_reached,
        "walked": span(counts.walked),
        **{RESPONSES[kind]: more for kind, more in counts.responses.items()},
    }
    if any(sums.values()):
        await tx.execute("add_counts", crawl=crawl, holder=counter, **sums)


async def count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    for pattern, more in sorted(Counter(map(pattern_of, urls)).items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=more)
