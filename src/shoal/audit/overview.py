"""The metrics of an analysis, and distributions over all pages for reports. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from shoal.audit.analysis import Summary
from shoal.audit.codes import ALWAYS, BY_SEVERITY, CODES, NOT_CHECKED, SUMS, Metrics
from shoal.audit.finding import AnalyzerOutcome, FindingCount
from shoal.audit.site import LinkGraph, Site
from shoal.audit.verdict import GateInput
from shoal.extract.flags import names_of
from shoal.pages.links import LinkFlag
from shoal.pages.page import NOT_MODIFIED, UNCHANGED

BLOCKED: Final = (401, 403, 407, 429, 503)
RESPONSE_STEPS_MS: Final = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
MOST_KEYS: Final = 50  # keys of one distribution: servers send arbitrary content types
MOST_FOLDERS: Final = 200
LINKS_AT_ONCE: Final = 4_000_000
STATUS_CLASSES: Final = {2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}

REFERENCES: Final[Mapping[str, Sequence[str]]] = {
    "images": ["images"],
    "styles": ["stylesheet"],
    "scripts": ["script"],
    "frames": ["iframe"],
    "media": ["video", "audio", "source", "track", "embed", "object"],
}
"""Images, and the resources of each kind: see `extract.details.Resource`. Pages in a `<frame>` are crawled."""


def measure(site: Site, counts: Sequence[FindingCount], outcomes: Sequence[AnalyzerOutcome]) -> GateInput:
    """Return the metrics of a site and of what its analyzers found."""
    pages = site.pages
    answered = pages["status"] > 0
    times = pages["duration_ms"][answered]
    times = times[~np.isnan(times)]
    metrics: Metrics = {
        "pages": float(answered.sum()),
        "failed_pages": float((~answered).sum()),
        "redirects": float(pages.is_redirected.sum()),
        "avg_response_ms": round(float(times.mean()), 3) if len(times) else 0.0,
        "p95_response_ms": round(float(np.percentile(times, 95)), 3) if len(times) else 0.0,
        "max_response_ms": round(float(times.max()), 3) if len(times) else 0.0,
        "max_depth": float(site.clicks.max(initial=0)),
        "blocked_pages": float(np.isin(pages["status"], BLOCKED).sum()),
        "quarantined_urls": float(site.quarantined),
    }
    by_code = Counter({count.code: count.count for count in counts})
    metrics |= {code: float(by_code[code]) for code in CODES}
    metrics |= {code: float(number) for code, number in by_code.items() if code not in CODES}
    metrics |= {name: float(sum(by_code[code] for code in codes)) for name, codes in SUMS.items()}
    for name, severity in BY_SEVERITY.items():
        metrics[name] = float(sum(count.count for count in counts if count.severity == severity))
    metrics["findings"] = float(by_code.total())
    return GateInput(metrics, counts, outcomes)


def summarize(site: Site) -> Summary:
    """Return distributions over all pages: status by depth, response times, content types, errors, flags, folders."""
    pages = site.pages
    errors = Counter(code for code in pages.text("error_code") if code is not None)
    flags = Counter(name for value in pages["flags"][pages["flags"] != 0].tolist() for name in names_of(value))
    unanswered = {name: counts for name, counts in site.unanswered.items() if any(counts.values())}
    return {
        "status_by_depth": _status_by_depth(site),
        "response_ms": _response_times(site),
        "content_types": _content_types(site),
        "errors": dict(errors.most_common(MOST_KEYS)),
        "flags": dict(flags),
        "folders": _folders(site),
        "not_checked": _not_checked(site),
        **({"unanswered": unanswered} if unanswered else {}),
    }


def _status_by_depth(site: Site) -> list[dict[str, Any]]:
    """Count pages by clicks from the seeds, ascending. The last entry, with depth None, counts the pages that no links
    lead to."""
    clicks, statuses = site.clicks, site.pages["status"]
    levels = np.unique(clicks).tolist()
    rows = []
    for level in [*(level for level in levels if level >= 0), *(level for level in levels if level < 0)]:
        here = statuses[clicks == level]
        counts = {name: int((here // 100 == number).sum()) for number, name in STATUS_CLASSES.items()}
        counts[UNCHANGED] = int((here == NOT_MODIFIED).sum())
        counts["3xx"] -= counts[UNCHANGED]
        rows.append({"depth": level if level >= 0 else None, **counts, "error": int((here == 0).sum())})
    return rows


def _response_times(site: Site) -> list[dict[str, Any]]:
    times = site.pages["duration_ms"]
    times = times[~np.isnan(times) & (site.pages["status"] > 0)]
    counts = np.bincount(np.searchsorted(RESPONSE_STEPS_MS, times), minlength=len(RESPONSE_STEPS_MS) + 1)
    return [
        {"up_to_ms": limit, "pages": int(count)}
        for limit, count in zip([*RESPONSE_STEPS_MS, None], counts, strict=True)
    ]


def _content_types(site: Site) -> dict[str, int]:
    written = Counter(site.pages.text("content_type"))
    counts: Counter[str] = Counter()
    for value, count in written.items():
        if value is not None:
            counts[value.partition(";")[0].strip().lower()] += count
    return dict(counts.most_common(MOST_KEYS))


def _folders(site: Site) -> list[dict[str, Any]]:
    """Count pages by the first two segments of their path, for a picture of the site's structure."""
    counts: Counter[str] = Counter()
    for url in site.pages.text("url"):
        path = urlsplit(url or "").path
        counts["/".join(path.split("/")[:3][: max(1, path.count("/"))]) + "/"] += 1
    return [{"path": path, "pages": count} for path, count in sorted(counts.most_common(MOST_FOLDERS))]


def _not_checked(site: Site) -> dict[str, int | None]:
    """Return how many things of each kind were not checked; None for an unknown number."""
    counts: dict[str, int | None] = dict.fromkeys(ALWAYS)
    if site.links is not None:
        counts["external_links"], counts["uncrawled_links"] = _unknown_targets(site.links)
    if site.references is not None:
        counts |= {kind: sum(site.references[name] for name in names) for kind, names in REFERENCES.items()}
    counts["targets"] = sum(one["targets"] for one in site.unanswered.values())
    counts["probes"] = sum(one["probes"] for one in site.unanswered.values())
    counts["quarantined"] = site.quarantined
    counts["texts"] = int((site.pages.is_html & (site.pages["text_hash"] == 0)).sum())
    return {kind: counts[kind] for kind in NOT_CHECKED if counts.get(kind, 0) != 0}


def _unknown_targets(graph: LinkGraph) -> tuple[int, int]:
    """Return the number of links to URLs that were not fetched: outside of the crawl's scope, and within it."""
    is_unknown = np.append(graph.link_targets.page_of, np.int32(-1)) < 0  # the extra last entry is for target -1
    external = internal = 0
    for first in range(0, len(graph), LINKS_AT_ONCE):
        unknown = is_unknown[graph.targets[first : first + LINKS_AT_ONCE]]
        is_internal = graph.flags[first : first + LINKS_AT_ONCE] & LinkFlag.INTERNAL != 0
        external += int((unknown & ~is_internal).sum())
        internal += int((unknown & is_internal).sum())
    return external, internal
