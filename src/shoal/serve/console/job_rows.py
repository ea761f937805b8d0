"""A job as lists show it."""

from dataclasses import dataclass
from typing import Final

from shoal.base.text import message
from shoal.queue.job import RUN_KINDS, Grant, Job, attempts_made, bot_of, node_of
from shoal.queue.job_admin_store import DEAD
from shoal.queue.states import TERMINAL
from shoal.serve.console.format import Formats

PRIORITY_PARTS: Final = {
    "importance": message("importance"),
    "staleness": message("staleness"),
    "error_rate": message("errors"),
    "signal": message("signal"),
    "overdue": message("overdue"),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the texts of one row."""

    job: Job
    title: str  # its URL, or what it belongs to
    node: str

    @property
    def attempts(self) -> int:
        return attempts_made(self.job.state, self.job.attempts, self.job.lease_epoch)

    @property
    def is_dead(self) -> bool:
        return self.job.state in DEAD

    @property
    def is_run(self) -> bool:
        """True if it belongs to a crawl or an analysis, which then has the actions."""
        return self.job.kind in RUN_KINDS

    @property
    def is_live(self) -> bool:
        return self.job.state not in TERMINAL


def row_of(job: Job, formats: Formats) -> JobRow:
    return JobRow(
        job=job,
        title=formats.text(job.url or job.run_id or job.id),
        node=formats.text(node_of(job.lease_holder), 80) if job.lease_holder else "",
    )


def held_by(grant: Grant) -> tuple[str, int | None]:
    """Return the node and the process that had a job. Page jobs are leased in batches, so only their holder tells."""
    if grant.node is not None:
        return grant.node, grant.pid
    if (bot := bot_of(grant.holder)) is not None:
        return bot[1] or bot[0], None
    node, _, rest = grant.holder.partition("/")
    last = rest.rpartition("/")[2]
    return node, int(last) if last.isascii() and last.isdecimal() and len(last) < 12 else None
