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

    url: Annotated[Text | UnsetType | None, describe("The page to fetch again and again.")] = UNSET
    seeds: Annotated[Seeds | UnsetType, describe("Where a crawl of a site begins.")] = UNSET
    frequency: Annotated[Span | UnsetType | None, describe("How often: 6h, 24h, 7d.")] = UNSET
    cron: Annotated[Cron | UnsetType | None, describe("When, as cron has it.")] = UNSET
    timezone: Annotated[Zone | UnsetType, describe("The time zone of cron and windows.")] = UNSET
    windows: Annotated[Windows | UnsetType, describe("When runs may begin.")] = UNSET
    jitter: Annotated[Span | UnsetType, describe("Begin up to so much later.")] = UNSET
    priority_base: Annotated[Importance | UnsetType, describe("How important it is.")] = UNSET
    crawl_config: Annotated[dict[str, Any] | UnsetType, describe("How it is fetched; all of it.")] = UNSET
    rule_set: Annotated[dict[str, Any] | UnsetType | None, describe("Which data to take from the page.")] = UNSET
    lock_ttl: Annotated[Span | UnsetType, describe("How long a bot has for a job.")] = UNSET
    max_retry: Annotated[Tries | UnsetType, describe("Tries after the first one.")] = UNSET
    queue: Annotated[Capability | UnsetType | None, describe("What its bot must be able to do.")] = UNSET
    overlap: Annotated[Overlap | UnsetType, describe("When it is due while its last run still lives.")] = UNSET
    adaptive: Annotated[Adaptive | UnsetType | None, describe("Frequencies between which it moves by itself.")] = UNSET
    not_after: Annotated[Moment | UnsetType | None, describe("No run begins after this moment.")] = UNSET
    labels: Annotated[Labels | UnsetType, describe("Words of your own; all of them.")] = UNSET
    project: Annotated[Name | UnsetType, describe("What it is filed under.")] = UNSET
    enabled: Annotated[bool | UnsetType, describe("False: kept, but not run.")] = UNSET

    unquoted: ClassVar = PolicyForm.unquoted
    checks: ClassVar = PolicyForm.checks

    def applied(self, form: PolicyForm) -> PolicyForm:
        given = {name: value for name, value in asdict(self).items() if value is not UNSET}
        for one, other in (("cron", "frequency"), ("frequency", "cron")):
            if given.get(one) is not None:
                given.setdefault(other, None)
        return replace(form, **given)
