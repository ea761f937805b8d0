"""The counters of a crawl on SQL: what was opened, settled, skipped and held in traps, one row for each who counts."""

from collections import Counter
from collections.abc import Mapping

from shoal.base.database import Tx
from shoal.base.url import Url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import pattern_of
from shoal.pages.response_counts import CLASSES, ResponseClass

OUTSIDE = ""  # the counter of what no walker brought
RESPONSES: dict[ResponseClass, str] = {kind: f"responses_{kind}" for kind in CLASSES}
"""The column of each class."""
NOTHING = dict.fromkeys(
    (
        *("opened", "settled", "pages", "errors", "bytes", "not_modified", "bytes_saved", "depth", "walked"),
        *RESPONSES.values(),
    ),
    0,
)


def response_columns(responses: Mapping[ResponseClass, int]) -> dict[str, int]:
    return {RESPONSES[kind]: count for kind, count in responses.items()}


async def count(tx: Tx, crawl: int, holder: str, skips: Counter[Fate] | None = None, **counts: int) -> None:
    words = sorted((fate.word, more) for fate, more in (skips or {}).items() if more)
    await tx.many("add_skips", [(crawl, holder, word, more) for word, more in words])
    if any(counts.values()):
        await tx.execute("add_counts", crawl=crawl, holder=holder, **(NOTHING | counts))


async def count_traps(tx: Tx, crawl: int, urls: list[Url]) -> None:
    for pattern, more in sorted(Counter(map(pattern_of, urls)).items()):
        await tx.execute("count_trap", crawl=crawl, pattern=pattern, count=more)
