"""Run one analyzer over a site: count its findings exactly, and choose those to store."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from shoal.audit.analyzer import Analyzer, Found
from shoal.audit.finding import NO_DETAILS, AnalyzerOutcome, Finding, FindingCode, FindingCount
from shoal.audit.site import Site
from shoal.base.text import json_of

MOST_CODES: Final = 200  # codes that one analyzer may report in one analysis
_SIGN = 1 << 63


Candidate = tuple[int, Found, int, str | None]
"""A finding that may be stored: key, batch, index in the batch, and URL."""


class AnalyzerError(Exception):
    """An analyzer could not run, or broke its contract. The message is a sentence for people."""


class AnalyzerSkipped(Exception):
    """An analyzer does not apply to this crawl. The message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class AnalyzerResult:
    """The result of one analyzer: how it ended, how many findings of each code, and those to store."""

    outcome: AnalyzerOutcome
    counts: Sequence[FindingCount] = ()
    findings: Sequence[Finding] = ()

    def but(self, **changes: Any) -> "AnalyzerResult":
        """Return the result with changed values in its outcome."""
        return replace(self, outcome=replace(self.outcome, **changes))


def failed(analyzer: str, error: str) -> AnalyzerResult:
    """Return the result of an analyzer that failed."""
    return AnalyzerResult(AnalyzerOutcome(analyzer, error[:2_000], 0, 0.0))


def skipped(analyzer: str, reason: str) -> AnalyzerResult:
    """Return the result of an analyzer that does not apply to the crawl."""
    return AnalyzerResult(AnalyzerOutcome(analyzer, None, 0, 0.0, skipped=reason[:2_000]))


def run_analyzer(analyzer: Analyzer, site: Site, most_stored: int) -> AnalyzerResult:
    """Run an analyzer to completion. If a code has more findings than may be stored, the findings with the smallest
    keys are stored. Every analysis of an unchanged site chooses the same findings, so two analyses can still be
    compared."""
    if analyzer.needs.details and not site.has_details:
        raise AnalyzerSkipped(NO_DETAILS)
    if analyzer.name in site.load_errors:
        raise AnalyzerError(site.load_errors[analyzer.name])
    codes: dict[str, FindingCode] = {}
    counts: dict[str, int] = {}
    chosen: dict[str, list[Candidate]] = {}
    for found in _analyze(analyzer, site):
        if found.code not in codes:
            codes = {code.code: code for code in analyzer.codes}
        if found.code not in codes:
            raise AnalyzerError(f'It reported the code "{found.code}", which it does not declare.')
        if found.code not in counts and len(counts) == MOST_CODES:
            raise AnalyzerError(f"It reported more than {MOST_CODES} codes.")
        counts[found.code] = counts.get(found.code, 0) + len(found)
        chosen[found.code] = _smallest(chosen.get(found.code, []), _keyed(found, site), most_stored)
    totals, findings = [], []
    for name, count in counts.items():
        if count:
            code = codes[name]
            stored = _stored(analyzer.name, code, chosen[name])
            findings += stored
            totals.append(FindingCount(analyzer.name, name, code.severity, code.title, code.fix, count, len(stored)))
    return AnalyzerResult(AnalyzerOutcome(analyzer.name, None, sum(counts.values()), 0.0), totals, findings)


def _analyze(analyzer: Analyzer, site: Site) -> Iterator[Found]:
    """Yield the findings of an analyzer. If an analyzer exits, it must not end this process, which also has to run the
    other analyzers."""
    try:
        yield from analyzer.analyze(site)
    except SystemExit as error:
        raise AnalyzerError(f"It ended its process with exit code {error.code}.") from None


def key_of(code: str, page: str | None, identity: str) -> int:
    """Return the key of a finding: the same for the same problem in every analysis."""
    return xxh3_64_intdigest(f"{code}\n{page or ''}\n{identity}".encode(errors="replace")) - _SIGN


def _keyed(found: Found, site: Site) -> Iterator[Candidate]:
    for place in range(len(found)):
        url = found.urls[place] if found.pages is None else site.pages.answered_at(int(found.pages[place]))
        yield key_of(found.code, url, found.identity(place)), found, place, url


def _smallest(kept: list[Candidate], new: Iterator[Candidate], most: int) -> list[Candidate]:
    kept = [*kept, *new]
    return kept if len(kept) <= most else heapq.nsmallest(most, kept, key=lambda one: one[0])


def _stored(analyzer: str, code: FindingCode, chosen: list[Candidate]) -> list[Finding]:
    findings = []
    for key, found, place, url in chosen:
        evidence = found.evidence(place)
        try:
            json_of(evidence)
        except TypeError as error:  # only this analyzer fails; in the store, the error would fail all of them
            raise AnalyzerError(
                f"The evidence of {code.code} is not JSON ({error}): use texts, numbers, lists and dictionaries."
            ) from None
        findings.append(Finding(analyzer, code.code, code.severity, url, key, evidence))
    return sorted(findings, key=lambda finding: (finding.page or "", finding.key))
