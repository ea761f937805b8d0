"""The metrics of an analysis, and distributions over all pages for reports. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from shoal.audit.analysis import Summary
from shoal.audit.analyzer_run import AnalyzerResult
from shoal.audit.codes import CODES
from shoal.audit.metrics import BY_SEVERITY, SUMS, Metrics
from shoal.audit.site import Site
from shoal.audit.verdict import GateInput
from shoal.extract.flags import names_of

BLOCKED: Final = (401, 403, 407, 429, 503)
RESPONSE_STEPS_MS: Final = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
MOST_KEYS: Final = 50  # keys of one distribution: servers send arbitrary content types
MOST_FOLDERS: Final = 200
STATUS_CLASSES: Final = {2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}


def measure(site: Site, results: Sequence[AnalyzerResult]) -> GateInput:
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
        "max_depth": float(pages["depth"].max()) if len(pages) else 0.0,
        "blocked_pages": float(np.isin(pages["status"], BLOCKED).sum()),
        "quarantined_urls": float(site.quarantined),
    }
    counts = [count for result in results for count in result.counts]
    by_code = Counter({count.code: count.count for count in counts})
    metrics |= {code: float(by_code[code]) for code in CODES}
    metrics |= {code: float(number) for code, number in by_code.items() if code not in CODES}
    metrics |= {name: float(sum(by_code[code] for code in codes)) for name, codes in SUMS.items()}
    for name, severity in BY_SEVERITY.items():
        metrics[name] = float(sum(count.count for count in counts if count.severity == severity))
    metrics["findings"] = float(by_code.total())
    return GateInput(metrics, counts, {result.outcome.analyzer: result.outcome.error for result in results})


def summarize(site: Site) -> Summary:
    """Return distributions over all pages: status by depth, response times, content types, errors, flags, folders."""
    pages = site.pages
    errors = Counter(code for code in pages.text("error_code") if code is not None)
    flags = Counter(name for value in pages["flags"][pages["flags"] != 0].tolist() for name in names_of(value))
    return {
        "status_by_depth": _status_by_depth(site),
        "response_ms": _response_times(site),
        "content_types": _content_types(site),
        "errors": dict(errors.most_common(MOST_KEYS)),
        "flags": dict(flags),
        "folders": _folders(site),
    }


def _status_by_depth(site: Site) -> list[dict[str, Any]]:
    depths, classes = site.pages["depth"], site.pages["status"] // 100
    rows = []
    for depth in np.unique(depths).tolist():
        here = classes[depths == depth]
        counts = {name: int((here == number).sum()) for number, name in STATUS_CLASSES.items()}
        rows.append({"depth": depth, **counts, "error": int((here == 0).sum())})
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
