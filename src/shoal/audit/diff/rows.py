"""The results of a diff: its rows, and its numbers."""

from dataclasses import dataclass, field
from enum import StrEnum

from shoal.audit.finding import Severity


class Change(StrEnum):
    """The kind of change in a row of a diff."""

    ADDED = "added"  # the page is only in the later crawl
    REMOVED = "removed"  # the page is only in the earlier crawl
    CHANGED = "changed"  # a field of the page has another value; one row per field
    NEW = "finding_new"  # the finding is only in the later analysis
    FIXED = "finding_fixed"  # the finding is only in the earlier analysis
    OPEN = "finding_open"  # the finding is in both


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One difference. `url`: the page, or None for a finding about the whole site."""

    change: Change
    url: str | None
    field: str | None = None
    before: str | int | None = None
    after: str | int | None = None
    code: str | None = None
    severity: str | None = None


@dataclass(slots=True)
class CodeDiff:
    """The findings of one code. `complete`: all findings were compared; if a code has very many, not all of them are
    stored."""

    code: str
    severity: Severity
    new: int = 0
    fixed: int = 0
    open: int = 0
    complete: bool = True


@dataclass(frozen=True, slots=True)
class FindingDiff:
    """The analyses that were compared, and what became of their findings."""

    before: str
    after: str
    codes: list[CodeDiff]

    def total(self, name: str) -> int:
        return sum(getattr(code, name) for code in self.codes)


@dataclass(slots=True)
class DiffSummary:
    """All differences in numbers. `fields`: pages that differ in a field. `findings`: None unless both have some."""

    before: str
    after: str
    pages_before: int
    pages_after: int
    added: int
    removed: int
    changed: int
    unchanged: int
    fields: dict[str, int] = field(default_factory=dict)
    findings: FindingDiff | None = None
