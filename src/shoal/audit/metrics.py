"""The metrics of an analysis, which gates compare with thresholds. Pure.

Every finding code is a metric, too: the number of findings with that code.
"""

from collections.abc import Mapping
from typing import Final

from shoal.audit.codes import CODES

Metrics = dict[str, float]

NAMED: Final[Mapping[str, str]] = {
    "pages": "pages that got a response",
    "failed_pages": "pages that got no response",
    "errors": "findings with severity error",
    "warnings": "findings with severity warning",
    "notices": "findings with severity notice",
    "findings": "all findings",
    "broken_links": "linked URLs that answer with a 4xx status, or not at all",
    "server_errors": "pages that answer with a 5xx status",
    "redirects": "pages that redirect",
    "duplicate_titles": "pages that share their title with another page",
    "duplicate_descriptions": "pages that share their meta description with another page",
    "duplicate_pages": "pages that share their text with another page",
    "orphan_pages": "pages that only a sitemap lists",
    "avg_response_ms": "mean response time of all pages, in milliseconds",
    "p95_response_ms": "response time that 95 % of the pages stay below, in milliseconds",
    "max_response_ms": "longest response time, in milliseconds",
    "max_depth": "largest number of clicks from the nearest seed to a page that links lead to",
    "blocked_pages": "pages that refused the crawler (401, 403, 407, 429 or 503)",
    "quarantined_urls": "URLs that were held back as a crawler trap",
}
"""Metrics that are not the count of one finding code, each with what it measures."""

SUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "broken_links": ("broken_link", "link_to_unreachable"),
    "server_errors": ("server_error",),
    "duplicate_titles": ("title_duplicate",),
    "duplicate_descriptions": ("description_duplicate",),
    "duplicate_pages": ("content_duplicate", "content_near_duplicate"),
    "orphan_pages": ("orphan_page",),
}
"""Metrics that add up the findings of some codes."""

BY_SEVERITY: Final = {"errors": "error", "warnings": "warning", "notices": "notice"}
TIMING: Final = frozenset({"avg_response_ms", "p95_response_ms", "max_response_ms"})
"""Metrics that depend on how fast the server was."""


def is_timing(metric: str) -> bool:
    """Return whether a metric depends on how fast the server was at the time of the crawl."""
    return metric in TIMING or (metric in CODES and CODES[metric].timing)
