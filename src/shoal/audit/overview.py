"""The overview analyzer: counts the pages of a crawl by status class, depth, content type, flag and error. Pure."""

from collections import Counter
from typing import Final

from shoal.audit.analysis import Finding, Severity
from shoal.base.text import plural
from shoal.extract.flags import names_of
from shoal.pages.page import Page
from shoal.pages.page_signals import status_class

MOST_KEYS: Final = 1_000  # of one kind, because servers send arbitrary content types

SEVERITIES: Final[dict[str, Severity]] = {"error": "warning", "5xx": "warning", "4xx": "warning"}


class Overview:
    """Counts pages one by one."""

    name = "overview"

    def __init__(self) -> None:
        self._pages = 0
        self._counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("status", "depth", "content_type")}
        self._errors: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._samples: dict[str, str] = {}

    def see(self, page: Page) -> None:
        self._pages += 1
        self._counts["status"][status_class(page.status)] += 1
        self._counts["depth"][str(page.depth)] += 1
        if page.content_type is not None:
            self._count("content_type", page.content_type.partition(";")[0].strip().lower())
        if page.flags:
            self._flags.update(names_of(page.flags))
        if page.error_code is not None:
            self._errors[page.error_code] += 1
            self._samples.setdefault(page.error_code, page.url)

    def findings(self) -> list[Finding]:
        found = [Finding(self.name, "pages", plural(self._pages, "page"), facts={"count": self._pages})]
        for kind, counts in self._counts.items():
            found += [self._finding(kind, value, count) for value, count in sorted(counts.items())]
        found += [self._flag(name, count) for name, count in sorted(self._flags.items())]
        found += [self._error(code, count) for code, count in sorted(self._errors.items())]
        return found

    def _count(self, kind: str, value: str) -> None:
        counts = self._counts[kind]
        counts[value if value in counts or len(counts) < MOST_KEYS else "other"] += 1

    def _finding(self, kind: str, value: str, count: int) -> Finding:
        message = f"{plural(count, 'page')} with {kind.replace('_', ' ')} {value}"
        severity = SEVERITIES.get(value, "info") if kind == "status" else "info"
        return Finding(self.name, f"{kind}:{value}", message, severity, {"count": count, kind: value})

    def _flag(self, name: str, count: int) -> Finding:
        facts = {"count": count, "flag": name}
        return Finding(self.name, f"flag:{name}", f"{plural(count, 'page')} with {name.replace('_', ' ')}", facts=facts)

    def _error(self, code: str, count: int) -> Finding:
        facts = {"count": count, "error": code, "sample": self._samples[code]}
        return Finding(self.name, f"error:{code}", f"{count} pages failed with {code}", "warning", facts)
