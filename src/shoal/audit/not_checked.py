"""The parts of pages that an analysis did not check, because no analyzer requests or compares them yet. Every report
names them."""

from collections.abc import Mapping
from typing import Final

from shoal.audit.analysis import Analysis

NOT_CHECKED: Final[Mapping[str, str]] = {
    "external_links": "links to other sites",
    "uncrawled_links": "links to pages that were not crawled",
    "targets": "canonical and hreflang targets",
    "probes": "paths that analyzers request from each host, such as /llms.txt",
    "quarantined": "pages in quarantine as a crawler trap",
    "fragments": "#fragments of links",
    "images": "images",
    "styles": "stylesheets",
    "scripts": "scripts",
    "frames": "frames",
    "media": "videos, audio and embedded files",
    "texts": "texts that were stored without a hash",
}
"""The kinds of things that may be left unchecked, in the order in which they are named."""

ALWAYS: Final = ("external_links", "fragments", "images", "styles", "scripts", "frames", "media")
"""The parts that no analysis checks. Links, images and so on are counted once for each page that has them."""


def not_checked_by(analysis: Analysis) -> dict[str, int | None]:
    """Return how many things of each kind an analysis did not check; None for an unknown number. Analyses that ended
    before this was recorded know only the URLs in quarantine, from their metrics."""
    counts: dict[str, int | None] = dict.fromkeys(ALWAYS)
    if held := round((analysis.metrics or {}).get("quarantined_urls", 0)):
        counts["quarantined"] = held
    counts = (analysis.summary or {}).get("not_checked", counts)
    return {kind: counts[kind] for kind in NOT_CHECKED if kind in counts}


def in_words(counts: Mapping[str, int | None]) -> str:
    """Return the list as text: `images (3), scripts (1), #fragments of links`."""
    return ", ".join(
        name if counts[kind] is None else f"{name} ({counts[kind]:,})"
        for kind, name in NOT_CHECKED.items()
        if kind in counts
    )
