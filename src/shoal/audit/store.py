"""The store of analyses, findings, gates and commit statuses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import orjson
from msgspec import to_builtins

from shoal.audit.analysis import Analysis, AnalysisOptions, CommitState, CommitStatus, Summary
from shoal.audit.artifacts import Artifact
from shoal.audit.codes import Metrics
from shoal.audit.finding import AnalyzerOutcome, Finding, FindingCount, Severity
from shoal.audit.gate import Gate, read_gate
from shoal.audit.states import AnalysisMove, AnalysisState
from shoal.audit.verdict import Verdict
from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.forge_commit import ForgeCommit
from shoal.base.ids import AnalysisId
from shoal.base.text import json_of, storable
from shoal.queue.job import attempts_made
from shoal.queue.states import JobState

_NEWEST = (1 << 62) - 1
_PLAIN = (
    *("number", "crawl", "crawl_id", "project", "site", "state_reason", "error", "findings"),
    *("created_at", "started_at", "finished_at"),
)


@dataclass(frozen=True, slots=True)
class NewAnalysis:
    """An analysis to be stored."""

    id: AnalysisId
    crawl: int
    crawl_id: str
    project: str
    site: str
    options: AnalysisOptions


@dataclass(frozen=True, slots=True)
class FindingPlace:
    """The position of a finding in the list of an analysis, from which to continue reading."""

    code: str
    number: int


@dataclass(frozen=True, slots=True)
class StoredGate:
    """A gate with its name."""

    name: str
    gate: Gate
    created_at: int
    changed_at: int


class GateStore:
    """Gates under their names."""

    async def put(self, tx: Tx, name: str, gate: Gate) -> bool:
        """Store a gate under a name, replacing any gate of that name; return whether the name is new."""
        is_new = await self.get(tx, name) is None
        await tx.execute("put_gate", name=name, rules=written_gate(gate))
        return is_new

    async def get(self, tx: Tx, name: str) -> StoredGate | None:
        row = await tx.one("gate_by_name", name=name)
        return None if row is None else _gate(row)

    async def all(self, tx: Tx) -> list[StoredGate]:
        """Return all gates, ordered by name."""
        return [_gate(row) for row in await tx.all("all_gates")]

    async def count(self, tx: Tx) -> int:
        return int(await tx.value("count_gates"))

    async def delete(self, tx: Tx, name: str) -> bool:
        """Delete a gate; return False if there is none. Analyses keep the rules they were created with."""
        return await tx.execute("delete_gate", name=name) == 1


class AnalysisStore:
    """Analyses, how their analyzers ended, and the findings."""

    async def insert(self, tx: Tx, analysis: NewAnalysis) -> None:
        """Store a pending analysis of a crawl; it is deleted with the crawl."""
        options = analysis.options
        await tx.execute(
            "insert_analysis",
            id=analysis.id,
            crawl=analysis.crawl,
            crawl_id=analysis.crawl_id,
            project=analysis.project,
            site=storable(analysis.site),
            gate=None if options.gate is None else written_gate(options.gate),
            gate_name=options.gate_name,
            baseline=options.baseline,
            commit_ref=None if options.commit is None else options.commit.text(),
        )

    async def get(self, tx: Tx, analysis_id: str) -> Analysis | None:
        row = await tx.one("analysis_by_id", id=analysis_id)
        return None if row is None else _analysis(row)

    async def page_of(
        self, tx: Tx, after: int | None, limit: int, state: str | None = None, crawl_id: str | None = None
    ) -> list[Analysis]:
        """Return analyses, newest first, older than number `after`; only those of a state or a crawl, if given."""
        values: dict[str, Any] = {each.value: state or each.value for each in AnalysisState}
        values |= {"before": _NEWEST if after is None else after, "limit": limit}
        if crawl_id is None:
            rows = await tx.all("analyses_before", **values)
        else:
            rows = await tx.all("analyses_of_crawl_before", crawl_id=crawl_id, **values)
        return [_analysis(row) for row in rows]

    async def newest_success(self, tx: Tx, project: str, site: str) -> Analysis | None:
        """Return the newest successful analysis of a site in a project; None if there is none."""
        row = await tx.one("newest_success_of_site", project=project, site=storable(site))
        return None if row is None else _analysis(row)

    async def lock(self, tx: Tx, analysis_id: str) -> Analysis | None:
        """Return the analysis, locked against any other change; the lock order is analysis, then job."""
        row = await tx.one("lock_analysis", id=analysis_id)
        return None if row is None else _analysis(row)

    async def move(self, tx: Tx, analysis_id: str, move: AnalysisMove) -> bool:
        """Change the state by compare-and-set; return False if the current state does not allow it."""
        if move.to is AnalysisState.RUNNING:
            return await tx.execute("begin_analysis", id=analysis_id) == 1
        values = {"state": move.to, "reason": move.reason, "error": _text_or_none(move.error)}
        return await tx.execute("end_analysis", id=analysis_id, **values) == 1

    async def summarize(self, tx: Tx, analysis: Analysis, summary: Summary) -> None:
        """Store the summary of the crawl, before the first findings of an attempt. May be repeated."""
        await tx.execute("summarize_analysis", number=analysis.number, summary=_json(summary))

    async def keep(
        self,
        tx: Tx,
        analysis: Analysis,
        outcome: AnalyzerOutcome,
        counts: Sequence[FindingCount],
        findings: Sequence[Finding],
    ) -> None:
        """Store how an analyzer ended, and its findings. They replace what an earlier attempt stored. May be repeated.

        Findings of one code are later listed in the order in which they are passed here.
        """
        number, analyzer = analysis.number, outcome.analyzer
        await tx.execute("drop_outcome", analysis=number, analyzer=analyzer)
        await tx.execute("drop_findings", analysis=number, analyzer=analyzer)
        values = {name: getattr(outcome, name) for name in AnalyzerOutcome.__slots__}
        values |= {"error": _text_or_none(outcome.error), "skipped": _text_or_none(outcome.skipped)}
        values |= {"artifacts": _json(to_builtins(list(outcome.artifacts)))}
        await tx.execute("insert_outcome", analysis=number, **values)
        for count in counts:
            values = {name: getattr(count, name) for name in FindingCount.__slots__}
            values |= {"severity": count.severity.value, "title": storable(count.title), "fix": storable(count.fix)}
            await tx.execute("insert_finding_count", analysis=number, **values)
        await tx.many("insert_findings", _rows(number, findings))

    async def conclude(
        self, tx: Tx, analysis: Analysis, metrics: Metrics, summary: Summary, verdict: Verdict | None
    ) -> None:
        """Store the metrics, the summary, the verdict and the number of all findings. May be repeated.

        Outcomes and findings of earlier attempts stay, except those that `keep` has replaced since.
        """
        judged = None if verdict is None else _json(verdict.to_dict())
        values = {"metrics": _json(metrics), "summary": _json(summary), "verdict": judged}
        await tx.execute("conclude_analysis", number=analysis.number, **values)

    async def outcomes(self, tx: Tx, analysis: Analysis) -> list[AnalyzerOutcome]:
        """Return how each analyzer ended, ordered by name; empty before the first analyzer has ended."""
        rows = await tx.all("outcomes_of_analysis", analysis=analysis.number)
        return [_outcome(row) for row in rows]

    async def counts(self, tx: Tx, analysis: Analysis) -> list[FindingCount]:
        """Return the codes with at least one finding, ordered by code."""
        rows = await tx.all("counts_of_analysis", analysis=analysis.number)
        return [_count(row) for row in rows]

    async def findings(
        self,
        tx: Tx,
        analysis: Analysis,
        after: FindingPlace | None,
        limit: int,
        code: str | None = None,
        severity: str | None = None,
    ) -> list[tuple[FindingPlace, Finding]]:
        """Return stored findings after a position, ordered by code and number; only those of a code or a severity, if
        given. The number of stored findings may be lower than the number in `counts`."""
        found: list[tuple[FindingPlace, Finding]] = []
        for count in await self.counts(tx, analysis):
            wanted = code in (None, count.code) and severity in (None, count.severity)
            if not wanted or (after is not None and count.code < after.code):
                continue
            number = after.number if after is not None and after.code == count.code else 0
            values = {"code": count.code, "number": number, "limit": limit - len(found)}
            rows = await tx.all("findings_of_code", analysis=analysis.number, **values)
            found += [(FindingPlace(count.code, row["number"]), _finding(row, count)) for row in rows]
            if len(found) >= limit:
                break
        return found

    async def findings_of_page(self, tx: Tx, analysis: Analysis, page: str, limit: int) -> list[Finding]:
        """Return stored findings about one page, ordered by code and number, at most `limit` of each code. An empty
        list does not mean that nothing was found: not all findings are stored (see `counts`)."""
        found: list[Finding] = []
        for count in await self.counts(tx, analysis):
            values = {"code": count.code, "page": storable(page), "limit": limit}
            rows = await tx.all("findings_of_page", analysis=analysis.number, **values)
            found += [_finding(row, count) for row in rows]
        return found


def written_gate(gate: Gate) -> str:
    """Return a gate as it is stored."""
    return _json(to_builtins(gate))


def _outcome(row: Any) -> AnalyzerOutcome:
    values = {name: row[name] for name in AnalyzerOutcome.__slots__}
    values |= {"artifacts": tuple(Artifact(**one) for one in orjson.loads(row["artifacts"]))}
    return AnalyzerOutcome(**values | {"optional": bool(row["optional"])})


def _analysis(row: Any) -> Analysis:
    options = AnalysisOptions(
        None if row["gate"] is None else read_gate(orjson.loads(row["gate"])),
        row["gate_name"],
        None if row["baseline"] is None else AnalysisId(row["baseline"]),
        None if row["commit_ref"] is None else ForgeCommit.stored(row["commit_ref"]),
    )
    verdict = _loaded(row["verdict"])
    return Analysis(
        id=AnalysisId(row["id"]),
        state=AnalysisState(row["state"]),
        options=options,
        metrics=_loaded(row["metrics"]),
        summary=_loaded(row["summary"]),
        verdict=None if verdict is None else Verdict.of(verdict),
        **{name: row[name] for name in _PLAIN},
    )


def _count(row: Any) -> FindingCount:
    values = {name: row[name] for name in FindingCount.__slots__}
    return FindingCount(**values | {"severity": Severity(row["severity"])})


def _finding(row: Any, count: FindingCount) -> Finding:
    evidence = orjson.loads(row["evidence"])
    return Finding(count.analyzer, count.code, count.severity, row["page"], row["key"], evidence)


def _rows(number: int, findings: Sequence[Finding]) -> list[dict[str, Any]]:
    places: dict[str, int] = {}
    rows = []
    for finding in findings:
        place = places[finding.code] = places.get(finding.code, 0) + 1
        rows.append(
            {
                "analysis": number,
                "code": finding.code,
                "number": place,
                "key": finding.key,
                "page": _text_or_none(finding.page),
                "evidence": _json(finding.evidence),
            }
        )
    return rows


def _json(value: Any) -> str:
    return json_of(value).decode()


def _loaded(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _text_or_none(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _gate(row: Any) -> StoredGate:
    return StoredGate(row["name"], read_gate(orjson.loads(row["rules"])), row["created_at"], row["changed_at"])


class CommitStatusStore:
    """The commit status of each analysis that has one: what a forge should show, and what it shows."""

    async def want(self, tx: Tx, analysis: Analysis, state: CommitState, description: str) -> None:
        """Store the status that the commit of an analysis should show, due immediately, replacing any earlier
        status."""
        text = description.encode("utf-8", "replace").decode()
        await tx.execute("want_commit_status", analysis=analysis.number, state=state.value, description=text)

    async def take(self, tx: Tx, limit: int, taken_for: timedelta) -> list[CommitStatus]:
        """Return statuses that are due, and keep other publishers from taking them for a while."""
        rows = await tx.all("due_commit_statuses", limit=limit)
        for row in rows:
            await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return [await _with_attempt(tx, _status(row)) for row in rows]

    async def take_one(self, tx: Tx, analysis_id: str, taken_for: timedelta) -> CommitStatus | None:
        """Take the status of one analysis, even if it is not due yet; return None if it is already published or
        taken."""
        row = await tx.one("open_commit_status", id=analysis_id)
        if row is None:
            return None
        await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return await _with_attempt(tx, _status(row))

    async def published(self, tx: Tx, status: CommitStatus) -> None:
        """Record that the forge shows a status that was taken. If a different status is wanted by now, that status is
        due immediately."""
        await tx.execute("publish_commit_status", **_sent(status))

    async def failed(self, tx: Tx, status: CommitStatus, error: str, again: timedelta | None) -> None:
        """Record that a status that was taken could not be published, and when to try again (None: never). If a
        different status is wanted by now, that status is due immediately."""
        wait = None if again is None else span(again)
        await tx.execute("fail_commit_status", **_sent(status), error=storable(error), again=wait)

    async def get(self, tx: Tx, analysis_id: str) -> CommitStatus | None:
        """Return the status of an analysis; None if it has none, or has not started."""
        row = await tx.one("commit_status_of", id=analysis_id)
        return None if row is None else _status(row)


def _sent(status: CommitStatus) -> dict[str, Any]:
    return {"analysis": status.analysis, "state": status.state.value, "description": status.description}


async def _with_attempt(tx: Tx, status: CommitStatus) -> CommitStatus:
    job = await tx.one("attempt_of_analysis", id=status.analysis_id)
    if job is None:
        return status
    attempt = attempts_made(JobState(job["state"]), job["attempts"], job["lease_epoch"])
    return replace(status, attempt=attempt, max_attempts=job["max_attempts"])


def _status(row: Any) -> CommitStatus:
    return CommitStatus(
        analysis=row["analysis"],
        analysis_id=row["id"],
        commit=ForgeCommit.stored(row["commit_ref"]),
        state=CommitState(row["state"]),
        description=row["description"],
        attempts=row["attempts"],
        shown=None if row["shown"] is None else CommitState(row["shown"]),
        is_due=row["next_at"] is not None,
        error=row["error"],
    )
