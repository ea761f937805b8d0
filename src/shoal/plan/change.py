"""Partial updates of a policy: fields that are not given keep their values, including secrets."""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shoal.base.request_form import Form, describe
from shoal.plan.policy import (
    Adaptive,
    Capability,
    Cron,
    Importance,
    Labels,
    Moment,
    Name,
    Overlap,
    PolicyForm,
    Seeds,
    Span,
    Text,
    Tries,
    Windows,
    Zone,
)


class PolicyChange(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A partial update. Setting `frequency` clears `cron` and vice versa; `null` clears an optional field."""

    url: Annotated[Text | UnsetType | None, describe("Page to fetch, instead of seeds.")] = UNSET
    seeds: Annotated[Seeds | UnsetType, describe("URLs from which to crawl a site.")] = UNSET
    frequency: Annotated[Span | UnsetType | None, describe("Interval between runs, such as 6h, 24h or 7d.")] = UNSET
    cron: Annotated[Cron | UnsetType | None, describe("Schedule as a cron expression.")] = UNSET
    timezone: Annotated[Zone | UnsetType, describe("Time zone of cron and windows.")] = UNSET
    windows: Annotated[Windows | UnsetType, describe("Time windows in which runs may start.")] = UNSET
    jitter: Annotated[Span | UnsetType, describe("Maximum random delay of each run.")] = UNSET
    priority_base: Annotated[Importance | UnsetType, describe("Base priority from 0 to 100.")] = UNSET
    crawl_config: Annotated[dict[str, Any] | UnsetType, describe("Fetch or crawl options; replaces all of them.")] = (
        UNSET
    )
    rule_set: Annotated[
        dict[str, Any] | UnsetType | None, describe("Rule set with the data to extract from the page.")
    ] = UNSET
    lock_ttl: Annotated[Span | UnsetType, describe("Lease duration of a bot's job.")] = UNSET
    max_retry: Annotated[Tries | UnsetType, describe("Maximum number of retries.")] = UNSET
    queue: Annotated[Capability | UnsetType | None, describe("Capability that a bot or worker needs.")] = UNSET
    overlap: Annotated[Overlap | UnsetType, describe("What to do when a run is due while the last one is active.")] = (
        UNSET
    )
    adaptive: Annotated[Adaptive | UnsetType | None, describe("Bounds of the adaptive frequency.")] = UNSET
    not_after: Annotated[Moment | UnsetType | None, describe("No run starts after this time.")] = UNSET
    labels: Annotated[Labels | UnsetType, describe("Labels as name and value; replaces all of them.")] = UNSET
    project: Annotated[Name | UnsetType, describe("Project that the policy belongs to.")] = UNSET
    enabled: Annotated[bool | UnsetType, describe("False: keep the policy, but do not run it.")] = UNSET

    unquoted: ClassVar = PolicyForm.unquoted
    checks: ClassVar = PolicyForm.checks

    def applied(self, form: PolicyForm) -> PolicyForm:
        given = {name: value for name, value in asdict(self).items() if value is not UNSET}
        for one, other in (("cron", "frequency"), ("frequency", "cron")):
            if given.get(one) is not None:
                given.setdefault(other, None)
        return replace(form, **given)
