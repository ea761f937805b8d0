"""A job as lists show it, and why it is in its state, in the reader's language."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.queue.explain import JobExplanation
from shoal.queue.job import RUN_KINDS, Grant, Job, bot_of, node_of
from shoal.queue.job_admin_store import DEAD
from shoal.queue.states import TERMINAL, JobState
from shoal.serve.console.format import Formats
from shoal.serve.console.messages import Language, message

PRIORITY_PARTS: Final = {
    "importance": message("importance"),
    "staleness": message("staleness"),
    "error_rate": message("errors"),
    "signal": message("signal"),
    "overdue": message("overdue"),
}
BADGES: Final = {
    JobState.PENDING: message("Waiting"),
    JobState.LOCKED: message("In progress"),
    JobState.DONE: message("Done"),
    JobState.FAILED: message("Failed"),
    JobState.EXPIRED: message("Expired"),
    JobState.CANCELLED: message("Cancelled"),
}
COLOURS: Final = {
    JobState.PENDING: "queued",
    JobState.LOCKED: "running",
    JobState.DONE: "completed",
    JobState.FAILED: "failed",
    JobState.EXPIRED: "failed",
}
REASONS: Final = {
    "quota": message("{scope} is limited to {most} running jobs and has {locked}; the job waits for one to end."),
    "not_before": message("It is scheduled to start in {in_seconds}."),
    "retry": message("It failed and will be retried in {in_seconds}."),
    "local_lane": message(
        "It belongs to a crawl in a terminal, not to the workers; continue it with `shoal crawl --resume`."
    ),
    "offered": message(
        "It is offered to node {node}; if it is not taken within {offer_seconds}, any worker may take it."
    ),
    "host_busy": message(
        "{host} may be requested again in {host_busy_seconds}; {ahead} of its jobs are ahead of this one."
    ),
    "no_renderer": message("It needs a browser, and nobody runs such jobs: start a worker on a machine with Chromium."),
    "no_worker": message("No worker is running such jobs; start one that leases from the lane {lane}."),
    "in_line": message("{ahead} jobs are ahead of it; {running} of its kind are running."),
    "lease_over": message("The lease of {holder} is over; the janitor returns the job to its lane."),
    "to_be_killed": message("{holder} is running it and was told to kill it."),
    "worked_on": message("{holder} is running it; the lease expires in {lease_seconds} unless it is renewed."),
}
ENDED: Final = {
    JobState.DONE: message("It is done."),
    JobState.FAILED: message("Its last attempt failed. It is a dead letter until somebody retries it."),
    JobState.EXPIRED: message("Its workers were lost too often. It is a dead letter until somebody retries it."),
    JobState.CANCELLED: message("It was cancelled."),
}


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job with the texts of one row."""

    job: Job
    badge: str
    colour: str
    title: str  # its URL, or what it belongs to
    node: str

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
        badge=formats.language(BADGES[job.state]),
        colour=COLOURS.get(job.state, ""),
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


def explained(found: JobExplanation, formats: Formats) -> str:
    """Return why a job is in its state, in the reader's language."""
    language: Language = formats.language
    if found.job.state in TERMINAL:
        return language(ENDED[found.job.state])
    reason = "retry" if found.reason == "not_before" and found.job.attempts else found.reason
    text = REASONS.get(reason)
    if text is None:
        return formats.text(found.sentence, 500)
    facts: Mapping[str, Any] = {"node": found.job.lane.partition("/")[2], **found.facts}
    return formats.text(language(text, **{name: _shown(name, value, formats) for name, value in facts.items()}), 500)


def _shown(name: str, value: Any, formats: Formats) -> str:
    if name.endswith("seconds"):
        return formats.duration(float(value))
    return formats.number(value) if isinstance(value, int | float) else str(value)
