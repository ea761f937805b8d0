"""A policy as lists show it: what it fetches, how often, and how fresh it is."""

from dataclasses import dataclass

from shoal.base.text import redact_url
from shoal.plan.policy import Policy, PolicyState
from shoal.serve.console.format import Formats


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy with the texts of one row."""

    policy: Policy
    title: str
    more: int  # further seeds
    schedule: str
    state: PolicyState
    is_stale: bool
    staleness: float

    @property
    def id(self) -> str:
        return self.policy.id


def row_of(policy: Policy, now: int, formats: Formats) -> PolicyRow:
    """`now`: the store's time."""
    form, language = policy.form, formats.language
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
        state=policy.state(now),
        is_stale=staleness > 1.0,
        staleness=staleness,
    )
