"""Explain in words why a job is in its state. A pure function of the job, its queue position and its quota."""

from dataclasses import dataclass, field
from typing import Any

import orjson

from shoal.base.clock import from_micros
from shoal.base.text import plural
from shoal.hosts.rate import AHEAD_SECONDS
from shoal.queue.job import JS, LOCAL, NODE, Job, JobDispatch, is_private
from shoal.queue.job_admin_store import QueuePosition
from shoal.queue.states import JobState


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The state of a job and why: a reason with a stable name, a sentence, and the facts behind it."""

    job: Job
    reason: str
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


def explain(
    job: Job,
    position: QueuePosition,
    usage: tuple[int, int | None] | None,
    dispatch: JobDispatch | None = None,
) -> JobExplanation:
    """Explain a job. `usage`: for the quota key that a parked job waits for, how many jobs are locked and the limit.
    `dispatch`: why it is in its lane; None: its lane was not chosen by the dispatcher."""
    if job.state is JobState.PENDING:
        found = _waiting(job, position, usage, dispatch)
    else:
        found = _locked(job, position) if job.state is JobState.LOCKED else _ended(job)
    if dispatch is not None and dispatch.decision is not None:
        found.facts["dispatch"] = _dispatch(job, dispatch, position.now)
    return found


def _dispatch(job: Job, dispatch: JobDispatch, now: int) -> dict[str, Any]:
    """Return the decision of the dispatcher, its best candidates, and what became of the offer."""
    decision = orjson.loads(dispatch.decision or "{}")
    names = ("node_id", "score", "skipped")
    decision["candidates"] = [dict(zip(names, one, strict=True)) for one in decision.get("candidates", ())]
    if dispatch.offered_until is not None:
        decision |= {"outcome": "offered", "offer_seconds": (dispatch.offered_until - now) / 1e6}
    elif decision.get("node_id") is None:
        decision["outcome"] = "shared"
    elif is_private(dispatch.lane):
        decision["outcome"] = "taken"
    else:
        grants = 0 if job.state is JobState.PENDING else 1  # if the node never leased it
        decision["outcome"] = "spilled_over" if job.lease_epoch == grants else "returned"
    return dict(decision)


def _waiting(
    job: Job, position: QueuePosition, usage: tuple[int, int | None] | None, dispatch: JobDispatch | None
) -> JobExplanation:
    if job.parked is not None and usage is not None:
        locked, most = usage
        allowed = "any number" if most is None else most
        says = f"{job.parked} is limited to {allowed} running jobs and has {locked}; the job waits for one to end."
        return JobExplanation(job, "quota", says, {"scope": job.parked, "most": most, "locked": locked})
    if job.not_before > position.now:
        seconds = (job.not_before - position.now) / 1e6
        why = f"it failed ({job.error}) and will be retried" if job.attempts else "it is scheduled to start"
        return JobExplanation(job, "not_before", f"{why} in {seconds:.0f} s.".capitalize(), {"in_seconds": seconds})
    if job.lane.startswith(LOCAL):
        says = "It belongs to `shoal crawl`, not to the workers; continue it with `shoal crawl --resume`."
        return JobExplanation(job, "local_lane", says, {"lane": job.lane})
    if dispatch is not None and dispatch.offered_until is not None:
        node, left = job.lane.removeprefix(NODE), (dispatch.offered_until - position.now) / 1e6
        says = f"It is offered to node {node}; if it is not taken within {max(left, 0):.0f} s, any worker may take it."
        facts = {"lane": job.lane, "offered_session": dispatch.offered_session, "offer_seconds": left}
        return JobExplanation(job, "offered", says, facts)
    return _in_line(job, position)


def _in_line(job: Job, position: QueuePosition) -> JobExplanation:
    facts: dict[str, Any] = {
        "ahead": position.ahead,
        "running": position.locked,
        "lane": job.lane,
        "priority": job.priority,
        "waited_seconds": (position.now - job.line_at) / 1e6,
    }
    if position.host is not None:
        facts |= {"host": position.host, "host_busy_seconds": position.host_busy_seconds}
    if position.host_busy_seconds > AHEAD_SECONDS:
        before = f"{position.ahead} of its jobs {'is' if position.ahead == 1 else 'are'} ahead of this one"
        says = f"{position.host} may be requested again in {position.host_busy_seconds:.0f} s, and {before}."
        return JobExplanation(job, "host_busy", says, facts)
    like = f"{job.kind} jobs that need {job.capability}"
    if job.capability == JS:
        facts["renderers"] = position.renderers
    if job.capability == JS and not position.locked:
        if position.renderers:
            says = f"It needs a browser; {plural(position.renderers, 'connected node')} can render, and may take it."
            return JobExplanation(job, "in_line", says, facts)
        says = (
            "It needs a browser, no connected node has one, and nobody runs such jobs: start a worker on a machine "
            "with Chromium or with RENDERER_URL, or a bot with `js`."
        )
        return JobExplanation(job, "no_renderer", says, facts)
    if not position.locked:
        says = f"No worker is running {like}; start one that leases from the {job.lane} lane."
        return JobExplanation(job, "no_worker", says, facts)
    stand = (
        f"{plural(position.ahead, 'job')} {'is' if position.ahead == 1 else 'are'} ahead of it"
        if position.ahead
        else "It is next"
    )
    return JobExplanation(job, "in_line", f"{stand}; {position.locked} {like} are running.", facts)


def _locked(job: Job, position: QueuePosition) -> JobExplanation:
    left = ((job.lease_until or 0) - position.now) / 1e6
    facts = {"holder": job.lease_holder, "lease_seconds": left, "epoch": job.lease_epoch}
    if left < 0:
        says = f"The lease of {job.lease_holder} expired {-left:.0f} s ago; the janitor returns the job to its lane."
        return JobExplanation(job, "lease_over", says, facts)
    if job.kill_at is not None:
        return JobExplanation(job, "to_be_killed", f"{job.lease_holder} is running it and was told to kill it.", facts)
    return JobExplanation(
        job, "worked_on", f"{job.lease_holder} is running it; the lease expires in {left:.0f} s unless renewed.", facts
    )


def _ended(job: Job) -> JobExplanation:
    at = from_micros(job.finished_at or 0).isoformat(timespec="seconds").replace("+00:00", "Z")
    why = f" ({job.state_reason})" if job.state_reason else ""
    error = f": {job.error.rstrip('.')}" if job.error and job.state is not JobState.DONE else ""
    tail = (
        f"; run it again with `shoal jobs retry {job.id}`" if job.state in (JobState.FAILED, JobState.EXPIRED) else ""
    )
    facts = {"attempts": job.attempts, "crash_count": job.crash_count, "error": job.error}
    return JobExplanation(
        job, job.state_reason or job.state.value, f"It is {job.state.value}{why} since {at}{error}{tail}.", facts
    )
