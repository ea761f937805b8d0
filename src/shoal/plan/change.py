"""What of a policy shall be different: any of its fields; what is not named stays as it is, secrets too."""

from typing import Annotated, Any, ClassVar

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from shoal.base.form import Form, says
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
    """Another frequency takes the place of cron, and the other way round. `null` takes away what may be absent."""

    url: Annotated[Text | UnsetType | None, says("The page to fetch again and again.")] = UNSET
    seeds: Annotated[Seeds | UnsetType, says("Where a crawl of a site begins.")] = UNSET
    frequency: Annotated[Span | UnsetType | None, says("How often: 6h, 24h, 7d.")] = UNSET
    cron: Annotated[Cron | UnsetType | None, says("When, as cron has it.")] = UNSET
    timezone: Annotated[Zone | UnsetType, says("The time zone of cron and windows.")] = UNSET
    windows: Annotated[Windows | UnsetType, says("When runs may begin.")] = UNSET
    jitter: Annotated[Span | UnsetType, says("Begin up to so much later.")] = UNSET
    priority_base: Annotated[Importance | UnsetType, says("How important it is.")] = UNSET
    crawl_config: Annotated[dict[str, Any] | UnsetType, says("How it is fetched; all of it.")] = UNSET
    rule_set: Annotated[dict[str, Any] | UnsetType | None, says("Which data to take from the page.")] = UNSET
    lock_ttl: Annotated[Span | UnsetType, says("How long a bot has for a job.")] = UNSET
    max_retry: Annotated[Tries | UnsetType, says("Tries after the first one.")] = UNSET
    queue: Annotated[Capability | UnsetType | None, says("What its bot must be able to do.")] = UNSET
    overlap: Annotated[Overlap | UnsetType, says("When it is due while its last run still lives.")] = UNSET
    adaptive: Annotated[Adaptive | UnsetType | None, says("Frequencies between which it moves by itself.")] = UNSET
    not_after: Annotated[Moment | UnsetType | None, says("No run begins after this moment.")] = UNSET
    labels: Annotated[Labels | UnsetType, says("Words of your own; all of them.")] = UNSET
    project: Annotated[Name | UnsetType, says("What it is filed under.")] = UNSET
    enabled: Annotated[bool | UnsetType, says("False: kept, but not run.")] = UNSET

    unquoted: ClassVar = PolicyForm.unquoted
    checks: ClassVar = PolicyForm.checks

    def applied(self, form: PolicyForm) -> PolicyForm:
        said = {name: value for name, value in asdict(self).items() if value is not UNSET}
        for one, other in (("cron", "frequency"), ("frequency", "cron")):
            if said.get(one) is not None:
                said.setdefault(other, None)
        return replace(form, **said)
