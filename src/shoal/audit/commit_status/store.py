"""The store of commit statuses."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from shoal.audit.analysis import Analysis
from shoal.audit.commit_status.status import CommitState, CommitStatus
from shoal.base.clock import span
from shoal.base.database import Tx
from shoal.base.forge_commit import ForgeCommit
from shoal.base.text import storable
from shoal.queue.job import attempts_made
from shoal.queue.states import JobState


class CommitStatusStore:
    """The commit status of each analysis that has one: what a forge should show, and what it shows."""

    async def want(self, tx: Tx, analysis: Analysis, state: CommitState, description: str) -> None:
        """Store the status that the commit of an analysis should show, due at once, in place of an earlier one."""
        text = description.encode("utf-8", "replace").decode()
        await tx.execute("want_commit_status", analysis=analysis.number, state=state.value, description=text)

    async def take(self, tx: Tx, limit: int, taken_for: timedelta) -> list[CommitStatus]:
        """Return statuses that are due, and keep others from taking them for a while."""
        rows = await tx.all("due_commit_statuses", limit=limit)
        for row in rows:
            await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return [await _with_attempt(tx, _status(row)) for row in rows]

    async def take_one(self, tx: Tx, analysis_id: str, taken_for: timedelta) -> CommitStatus | None:
        """Take the status of one analysis, even if it is not due yet; None if it is already published, or taken."""
        row = await tx.one("open_commit_status", id=analysis_id)
        if row is None:
            return None
        await tx.execute("take_commit_status", analysis=row["analysis"], taken_for=span(taken_for))
        return await _with_attempt(tx, _status(row))

    async def published(self, tx: Tx, status: CommitStatus) -> None:
        """Record that the forge shows a status that was taken. If another one is wanted by now, that is due at once."""
        await tx.execute("publish_commit_status", **_sent(status))

    async def failed(self, tx: Tx, status: CommitStatus, error: str, again: timedelta | None) -> None:
        """Record that a status that was taken could not be published, and when to try again (None: never). If another
        one is wanted by now, that is due at once."""
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
