"""A policy as lists show it: what it fetches, how often, and how fresh it is."""

from dataclasses import dataclass
from typing import Final

from shoal.base.text import redact_url
from shoal.plan.policy import Policy
from shoal.serve.console.format import Formats
from shoal.serve.console.messages import message

STATES: Final = {
    "disabled": ("", message("Disabled")),
    "over": ("", message("Over")),
    "active": ("running", message("Active")),
    "late": ("failed", message("Late")),
    "due": ("queued", message("Due")),
    "planned": ("good", message("Planned")),
}


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy with the texts of one row."""

    policy: Policy
    title: str
    more: int  # further seeds
    schedule: str
    state: str
    colour: str
    badge: str
    is_stale: bool
    staleness: float

    @property
    def id(self) -> str:
        return self.policy.id


def row_of(policy: Policy, now: int, late: int, formats: Formats) -> PolicyRow:
    """`now`: the store's time; `late`: microseconds after which a policy that is due is late."""
    form, language = policy.form, formats.language
    state = _state(policy, now, late)
    colour, badge = STATES[state]
    targets = [form.url] if form.url is not None else form.seeds
    every = policy.form.frequency
    schedule = language("every {interval}", interval=every) if every else f"{form.cron} {form.timezone}"
    if policy.frequency_now is not None:
        schedule += f" ({language('now {interval}', interval=formats.duration(policy.frequency_now.total_seconds()))})"
    staleness = policy.staleness(now)
    return PolicyRow(
        policy=policy,
        title=formats.text(redact_url(targets[0])),
        more=len(targets) - 1,
        schedule=formats.text(schedule, 120),
        state=state,
        colour=colour,
        badge=language(badge),
        is_stale=staleness > 1.0,
        staleness=staleness,
    )


def _state(policy: Policy, now: int, late: int) -> str:
    if not policy.enabled:
        return "disabled"
    if policy.live_job_id is not None:
        return "active"
    if policy.next_run_at is None:
        return "over"
    if policy.next_run_at <= now:
        return "late" if policy.next_run_at <= now - late else "due"
    return "planned"
