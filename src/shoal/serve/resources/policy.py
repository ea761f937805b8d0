"""Policies, and the signals and rules that change the priority of their jobs."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Self

from shoal.base.request_form import describe
from shoal.base.text import message, redact_url
from shoal.plan import policy as plan
from shoal.plan.importer import ImportSummary
from shoal.plan.priority import PriorityRule as StoredRule
from shoal.serve.resources.resource import Moment, NextPage, Resource, Verb

POLICY_FORM: dict[str, Any] = {
    "url": "https://shop.example.com/item/17",
    "frequency": "6h",
    "priority_base": 60,
    "labels": {"team": "prices"},
    "rule_set": {"fields": {"price": {"css": ".price", "type": "float", "required": True}}},
}


class Freshness(Resource, kw_only=True):
    age_seconds: Annotated[int | None, describe("Seconds since the last success; null if there was none.")]
    stale: Annotated[
        bool,
        describe(
            "Whether the last success is older than one interval of `frequency`, or, with `cron`, older than the last"
            " scheduled time."
        ),
    ]


class Policy(Resource, kw_only=True):
    """A policy and its status."""

    id: Annotated[str, describe("Id of the policy.")]
    url: Annotated[str | None, describe("Page to fetch; null if the policy crawls a site.")]
    seeds: Annotated[list[str], describe("URLs from which a site is crawled; empty if the policy fetches one page.")]
    frequency: Annotated[str | None, describe("Interval between runs; null if `cron` is set.")]
    cron: Annotated[str | None, describe("Schedule as a cron expression; null if `frequency` is set.")]
    timezone: Annotated[str, describe("Time zone of `cron` and `windows`.")]
    windows: Annotated[list[str], describe("Time windows in which runs may start.")]
    jitter: Annotated[str, describe("Maximum random delay of each run.")]
    priority_base: Annotated[int, describe("Base priority from 0 to 100; higher runs first.")]
    crawl_config: Annotated[dict[str, Any], describe("Fetch or crawl options; secrets are masked.")]
    rules: Annotated[dict[str, Any] | None, describe("Rule set with the data to extract from each page.")]
    rule_set: Annotated[dict[str, Any] | None, describe("Older name of `rules`, with the same value.")]
    lock_ttl: Annotated[str, describe("Time after which the lease of a bot expires without a heartbeat.")]
    retries: Annotated[int, describe("Maximum number of retries.")]
    max_retry: Annotated[int, describe("Older name of `retries`, with the same value.")]
    queue: Annotated[
        str | None,
        describe(
            "Capability that a bot or worker needs: `http`, `js` or `special`. If null, it is `js` "
            "for pages that need a browser, and `http` otherwise."
        ),
    ]
    overlap: Annotated[
        str,
        describe("What to do when a run is due while the previous run is still active: `skip`, `queue` or `replace`."),
    ]
    adaptive: Annotated[dict[str, str] | None, describe("Bounds of the adaptive frequency.")]
    not_after: Annotated[Moment | None, describe("No run starts after this time.")]
    labels: dict[str, str]
    project: str
    enabled: Annotated[bool, describe("Whether runs of the policy are scheduled.")]
    next_run_at: Annotated[
        Moment | None, describe("Time of the next run; null if the policy is disabled or has ended.")
    ]
    last_run_at: Annotated[Moment | None, describe("Time of the last run.")]
    last_success_at: Annotated[Moment | None, describe("Time of the last success.")]
    live_job_id: Annotated[str | None, describe("The page job of this policy that is waiting or running.")]
    last_crawl_id: Annotated[str | None, describe("The last crawl of a site policy.")]
    freshness: Annotated[Freshness, describe("Age of the last success.")]
    created_at: Moment

    example: ClassVar = {
        "id": "pol_01hr2v8k3m4n5p6q",
        "seeds": [],
        "cron": None,
        "timezone": "UTC",
        "windows": [],
        "jitter": "0s",
        "crawl_config": {},
        "lock_ttl": "10m",
        "retries": 3,
        "max_retry": 3,
        "queue": None,
        "overlap": "skip",
        "adaptive": None,
        "not_after": None,
        "project": "default",
        "enabled": True,
        **POLICY_FORM,
        "rules": POLICY_FORM["rule_set"],
        "next_run_at": "2026-03-01T15:00:00Z",
        "last_run_at": "2026-03-01T09:00:00Z",
        "last_success_at": "2026-03-01T09:00:02Z",
        "live_job_id": None,
        "last_crawl_id": None,
        "freshness": {"age_seconds": 1800, "stale": False},
        "created_at": "2026-02-01T09:00:00Z",
    }

    @classmethod
    def of(cls, policy: plan.Policy, now: int) -> Self:
        """Build the resource from a policy, without secrets. The freshness is computed for `now`, in store time."""
        form, last = policy.form, policy.last_success_at
        shown = form.plain() | {
            "crawl_config": plan.shown_options(form.crawl_config),
            "url": None if form.url is None else redact_url(form.url),
            "rules": form.rule_set,
            "retries": form.max_retry,
        }
        age_seconds = None if last is None else round((now - last) / 1e6)
        freshness = Freshness(age_seconds=age_seconds, stale=policy.staleness(now) > 1.0)
        return super().of(policy, **shown, last_crawl_id=policy.live_crawl, freshness=freshness)


class PolicyList(Resource, kw_only=True):
    items: list[Policy]
    next: NextPage

    example: ClassVar = {"items": [Policy.example], "next": None}


class PolicyRun(Resource, kw_only=True):
    """The job or crawl of a policy that was run now."""

    job_id: Annotated[str | None, describe("The job, if the policy fetches one page.")]
    crawl_id: Annotated[str | None, describe("The crawl, if the policy crawls a site.")]
    duplicate: Annotated[
        bool, describe("True if the policy was already running; then the id belongs to the active run.")
    ]


class Boost(Resource, kw_only=True):
    """A temporary change of priority."""

    subject: Annotated[str, describe("`url:URL` or `label:NAME=VALUE`.")]
    boost: Annotated[float, describe("Points added to the priority; a negative number lowers the priority.")]
    until: Annotated[Moment, describe("When the change ends.")]


class PriorityRule(Resource, kw_only=True):
    """A rule that contributes to the priority of a policy's jobs."""

    fact: Annotated[str, describe("Input of the rule: importance, staleness, error_rate, signal or overdue_seconds.")]
    per: Annotated[float, describe("Points per unit of `fact`.")]
    limit: Annotated[float, describe("Maximum number of points that this rule may add or subtract.")]
    most: Annotated[float, describe("Older name of `limit`, with the same value.")]

    @classmethod
    def of(cls, rule: StoredRule) -> Self:
        return super().of(rule, limit=rule.most)


class PriorityRuleList(Resource, kw_only=True):
    items: list[PriorityRule]


class InvalidLine(Resource, kw_only=True):
    line: Annotated[int, describe("Line number.")]
    problem: Annotated[str, describe("What is wrong with the line.")]


class PoliciesImported(Resource, kw_only=True):
    """The outcome of an import."""

    made: Annotated[int, describe("Number of policies created.")]
    bad: Annotated[int, describe("Number of invalid lines.")]
    problems: Annotated[list[InvalidLine], describe("The first hundred invalid lines.")]

    @classmethod
    def of(cls, summary: ImportSummary) -> Self:
        problems = [InvalidLine(line=line, problem=problem) for line, problem in summary.problems]
        return super().of(summary, problems=problems)


VERBS: Final[Mapping[str, Verb]] = {
    "run": Verb(message("Run now"), message("The policy is running; its schedule does not change.")),
    "enable": Verb(message("Enable"), message("The policy is enabled.")),
    "disable": Verb(message("Disable"), message("The policy is disabled; a run in progress continues.")),
    "remove": Verb(
        message("Remove"),
        message("The policy was removed."),
        message("Remove this policy?"),
        message("A run in progress continues. This cannot be undone."),
    ),
}
