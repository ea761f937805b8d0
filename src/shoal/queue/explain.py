"""Explain in words why a job is in its state. A pure function of the job, its queue position and its quota."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from shoal.base.clock import from_micros
from shoal.base.text import Sentence, message
from shoal.hosts.rate import AHEAD_SECONDS
from shoal.queue.job import JS, LOCAL, NODE, Job, JobDispatch, is_private
from shoal.queue.job_admin_store import QueuePosition
from shoal.queue.reasons import REASONS
from shoal.queue.states import JobState

QUOTA = message("{scope} is limited to {most} running jobs and has {locked}; the job waits for one to end.")
RETRY = message("It failed ({error}) and will be retried in {wait}.")
SCHEDULED = message("It is scheduled to start in {wait}.")
LOCAL_LANE = message("It belongs to `shoal crawl`, not to the workers; continue it with `shoal crawl --resume`.")
OFFERED = message("It is offered to node {node}; if it is not taken within {left}, any worker may take it.")
HOST_BUSY = (
    message("{host} may be requested again in {wait}, and {count} of its jobs is ahead of this one."),
    message("{host} may be requested again in {wait}, and {count} of its jobs are ahead of this one."),
)
MAY_RENDER = (
    message("It needs a browser; {count} connected node can render, and may take it."),
    message("It needs a browser; {count} connected nodes can render, and may take it."),
)
NO_RENDERER = message(
    "It needs a browser, no connected node has one, and nobody runs such jobs: start a worker on a machine with "
    "Chromium or with RENDERER_URL, or a bot with `js`."
)
NO_WORKER = message(
    "No worker is running {kind} jobs that need {capability}; start one that leases from the {lane} lane."
)
AHEAD = (
    message("{count} job is ahead of it; {running} {kind} jobs that need {capability} are running."),
    message("{count} jobs are ahead of it; {running} {kind} jobs that need {capability} are running."),
)
NEXT = message("It is next; {running} {kind} jobs that need {capability} are running.")
LEASE_OVER = message("The lease of {holder} expired {left} ago; the janitor returns the job to its lane.")
TO_BE_KILLED = message("{holder} is running it and was told to kill it.")
WORKED_ON = message("{holder} is running it; the lease expires in {left} unless renewed.")
SINCE = message("It is {state} since {at}{error}{again}.")
RUN_AGAIN = message("; run it again with `shoal jobs retry {id}`")
ENDED = {
    JobState.DONE: message("done"),
    JobState.FAILED: message("failed"),
    JobState.EXPIRED: message("expired"),
    JobState.CANCELLED: message("cancelled"),
}


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """The state of a job and why: a reason with a stable name, a sentence, and the facts behind it."""

    job: Job
    reason: str
    sentence: Sentence
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
        allowed = Sentence(message("any number of")) if most is None else most
        says = Sentence(QUOTA, {"scope": job.parked, "most": allowed, "locked": locked})
        return JobExplanation(job, "quota", says, {"scope": job.parked, "most": most, "locked": locked})
    if job.not_before > position.now:
        wait = timedelta(microseconds=job.not_before - position.now)
        says = Sentence(RETRY if job.attempts else SCHEDULED, {"error": job.error, "wait": wait})
        return JobExplanation(job, "not_before", says, {"in_seconds": wait.total_seconds()})
    if job.lane.startswith(LOCAL):
        return JobExplanation(job, "local_lane", Sentence(LOCAL_LANE), {"lane": job.lane})
    if dispatch is not None and dispatch.offered_until is not None:
        left = timedelta(microseconds=dispatch.offered_until - position.now)
        says = Sentence(OFFERED, {"node": job.lane.removeprefix(NODE), "left": max(left, timedelta(0))})
        facts = {
            "lane": job.lane,
            "offered_session": dispatch.offered_session,
            "offer_seconds": left.total_seconds(),
        }
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
        wait = timedelta(seconds=position.host_busy_seconds)
        says = _counted(HOST_BUSY, position.ahead, {"host": position.host, "wait": wait})
        return JobExplanation(job, "host_busy", says, facts)
    if job.capability == JS:
        facts["renderers"] = position.renderers
    if job.capability == JS and not position.locked:
        if not position.renderers:
            return JobExplanation(job, "no_renderer", Sentence(NO_RENDERER), facts)
        return JobExplanation(job, "in_line", _counted(MAY_RENDER, position.renderers, {}), facts)
    like: dict[str, Any] = {"kind": job.kind, "capability": job.capability}
    if not position.locked:
        return JobExplanation(job, "no_worker", Sentence(NO_WORKER, like | {"lane": job.lane}), facts)
    like |= {"running": position.locked}
    says = _counted(AHEAD, position.ahead, like) if position.ahead else Sentence(NEXT, like)
    return JobExplanation(job, "in_line", says, facts)


def _counted(forms: tuple[str, str], count: int, values: dict[str, Any]) -> Sentence:
    one, other = forms
    return Sentence(one, values | {"count": count}, other)


def _locked(job: Job, position: QueuePosition) -> JobExplanation:
    left = timedelta(microseconds=(job.lease_until or 0) - position.now)
    facts = {"holder": job.lease_holder, "lease_seconds": left.total_seconds(), "epoch": job.lease_epoch}
    if left < timedelta(0):
        reason, text = "lease_over", LEASE_OVER
    else:
        reason, text = ("to_be_killed", TO_BE_KILLED) if job.kill_at is not None else ("worked_on", WORKED_ON)
    return JobExplanation(job, reason, Sentence(text, {"holder": job.lease_holder, "left": abs(left)}), facts)


def _ended(job: Job) -> JobExplanation:
    state = Sentence(ENDED[job.state])
    if job.state_reason:
        reason = REASONS.get(job.state_reason)
        state = Sentence(
            "{state} ({reason})", {"state": state, "reason": Sentence(reason) if reason else job.state_reason}
        )
    error = f": {job.error.rstrip('.')}" if job.error and job.state is not JobState.DONE else ""
    again = Sentence(RUN_AGAIN, {"id": job.id}) if job.state in (JobState.FAILED, JobState.EXPIRED) else ""
    values = {"state": state, "at": from_micros(job.finished_at or 0), "error": error, "again": again}
    facts = {"attempts": job.attempts, "crash_count": job.crash_count, "error": job.error}
    return JobExplanation(job, job.state_reason or job.state.value, Sentence(SINCE, values), facts)
