"""Analyses and findings on SQL."""

from collections.abc import Sequence
from typing import Any

import orjson

from shoal.audit.analysis import Analysis, Finding
from shoal.audit.states import AnalysisMove, AnalysisState
from shoal.audit.store import NewAnalysis
from shoal.base.database import Tx
from shoal.base.ids import AnalysisId
from shoal.base.text import encodable

_NEWEST = (1 << 62) - 1


class SqlAnalysisStore:
    """Implements `audit.store.AnalysisStore`."""

    async def insert(self, tx: Tx, analysis: NewAnalysis) -> None:
        await tx.execute("insert_analysis", **{name: getattr(analysis, name) for name in NewAnalysis.__slots__})

    async def get(self, tx: Tx, analysis_id: str) -> Analysis | None:
        row = await tx.one("analysis_by_id", id=analysis_id)
        return None if row is None else _analysis(row)

    async def page_of(
        self, tx: Tx, after: int | None, limit: int, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        values: dict[str, Any] = {each.value: state or each.value for each in AnalysisState}
        values |= {"before": _NEWEST if after is None else after, "limit": limit}
        if crawl_id is None:
            rows = await tx.all("analyses_before", **values)
        else:
            rows = await tx.all("analyses_of_crawl_before", crawl_id=crawl_id, **values)
        return [_analysis(row) for row in rows]

    async def lock(self, tx: Tx, analysis_id: str) -> Analysis | None:
        row = await tx.one("lock_analysis", id=analysis_id)
        return None if row is None else _analysis(row)

    async def move(self, tx: Tx, analysis_id: str, move: AnalysisMove) -> bool:
        if move.to is AnalysisState.RUNNING:
            return await tx.execute("begin_analysis", id=analysis_id) == 1
        values = {"state": move.to, "reason": move.reason, "error": move.error}
        return await tx.execute("end_analysis", id=analysis_id, **values) == 1

    async def keep(self, tx: Tx, analysis: Analysis, findings: Sequence[Finding]) -> None:
        await tx.execute("drop_findings", analysis=analysis.number)
        await tx.many("insert_findings", [_row(analysis.number, finding) for finding in findings])
        await tx.execute("count_findings", number=analysis.number, findings=len(findings))

    async def findings(self, tx: Tx, analysis: Analysis) -> list[Finding]:
        rows = await tx.all("findings_of_analysis", analysis=analysis.number)
        return [_finding(row) for row in rows]


def _analysis(row: Any) -> Analysis:
    values = {name: row[name] for name in Analysis.__slots__}
    return Analysis(**(values | {"id": AnalysisId(row["id"]), "state": AnalysisState(row["state"])}))


def _row(number: int, finding: Finding) -> dict[str, Any]:
    return {
        "analysis": number,
        "analyzer": finding.analyzer,
        "key": _text(finding.key),
        "severity": finding.severity,
        "message": _text(finding.message),
        "facts": orjson.dumps(encodable(finding.facts)).decode(),
    }


def _text(text: str) -> str:
    """Remove NUL, which PostgreSQL rejects in text, and replace lone surrogates, which cannot be encoded."""
    return str(encodable(text)).replace("\x00", "")


def _finding(row: Any) -> Finding:
    return Finding(row["analyzer"], row["key"], row["message"], row["severity"], orjson.loads(row["facts"]))
