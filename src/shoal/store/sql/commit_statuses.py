"""Commit statuses on SQL."""

from datetime import timedelta
from typing import Any

from shoal.audit.analysis import Analysis
from shoal.audit.commit_status.status import CommitState, CommitStatus
from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.forge_commit import ForgeCommit
from shoal.base.text import storable


class SqlCommitStatusStore:
    """Implements `audit.store.CommitStatusStore`."""

    async def want(self, tx: Tx, analysis: Analysis, state: CommitState, description: str) -> None:
        text = description.encode("utf-8", "replace").decode()
        await tx.execute("want_commit_status", analysis=analysis.number, state=state.value, description=text)

    async def take(self, tx: Tx, limit: int, taken_for: timedelta) -> list[CommitStatus]:
        rows = await tx.all("due_commit_statuses", limit=limit)
        for row in rows:
            await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return [_status(row) for row in rows]

    async def take_one(self, tx: Tx, analysis_id: str, taken_for: timedelta) -> CommitStatus | None:
        row = await tx.one("open_commit_status", id=analysis_id)
        if row is None:
            return None
        await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return _status(row)

    async def published(self, tx: Tx, status: CommitStatus) -> None:
        await tx.execute("publish_commit_status", **_sent(status))

    async def failed(self, tx: Tx, status: CommitStatus, error: str, again: timedelta | None) -> None:
        wait = None if again is None else span(again)
        await tx.execute("fail_commit_status", **_sent(status), error=storable(error), again=wait)

    async def get(self, tx: Tx, analysis_id: str) -> CommitStatus | None:
        row = await tx.one("commit_status_of", id=analysis_id)
        return None if row is None else _status(row)


def _sent(status: CommitStatus) -> dict[str, Any]:
    return {"analysis": status.analysis, "state": status.state.value, "description": status.description}


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
