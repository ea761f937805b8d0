"""A webhook, its deliveries and their states, and the signature of a request."""

import base64
import binascii
import hashlib
import hmac
import os
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from msgspec import field

from shoal.base.request_form import Form, describe
from shoal.base.text import message
from shoal.base.url import UrlRefusal, canonical
from shoal.events.event import TYPES

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # length of a secret in bytes, as in the Standard Webhooks specification
FIX = f"give {PREFIX} and {SHORTEST} to {LONGEST} bytes in base64, or omit it to have one generated"


def new_secret() -> str:
    return PREFIX + base64.b64encode(os.urandom(32)).decode()


def check_secret(text: str) -> str:
    """Return the secret if it is valid; otherwise raise `ValueError` with the end of a sentence."""
    if not SHORTEST <= len(_key(text)) <= LONGEST:
        raise ValueError(f"is not a secret; {FIX}")
    return text


def sign(secrets: list[str], event_id: str, seconds: int, body: bytes) -> str:
    """Return the `webhook-signature` of a body: one signature for each secret that is valid now."""
    signed = b"%s.%d.%s" % (event_id.encode(), seconds, body)
    marks = [hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets]
    return " ".join(f"v1,{base64.b64encode(mark).decode()}" for mark in marks)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


WAITS = tuple(
    timedelta(seconds=seconds)
    for seconds in (5, 30, 120, 600, 1800, 3600, 2 * 3600, 4 * 3600, 6 * 3600, 8 * 3600)  # a day in total
)
JITTER = 0.2


def check_url(text: str) -> str:
    url = canonical(text)
    if isinstance(url, UrlRefusal):
        raise ValueError(f"{url.problem}; use an http or https URL")
    return url


def check_events(wanted: list[str]) -> list[str]:
    """Check event names; `crawl.*` matches all names that start with `crawl.`."""
    for name in wanted:
        known = any(kind.startswith(name[:-1]) for kind in TYPES) if name.endswith(".*") else name in TYPES
        if not known:
            raise ValueError(
                f"has {name[:50]!r}, which is not an event type; use {', '.join(TYPES)}, or a prefix such as crawl.*"
            )
    return sorted(set(wanted))


Address = Annotated[str, describe("URL to which events are sent with POST.", max_length=2083)]
Wanted = Annotated[
    list[str], describe("Event types to send, such as `crawl.completed` or `crawl.*`; empty for all.", max_length=50)
]


class NewWebhook(Form, frozen=True, kw_only=True):
    """The request to create a webhook."""

    url: Address
    events: Wanted = field(default_factory=list)
    secret: (
        Annotated[str, describe("Secret that signs the deliveries; generated if omitted.", max_length=200)] | None
    ) = None

    checks: ClassVar = {
        "url": check_url,
        "events": check_events,
        "secret": lambda text: None if text is None else check_secret(text),
    }
    unquoted = frozenset({"secret"})


class WebhookChange(Form, frozen=True, kw_only=True):
    """The changes to a webhook."""

    url: Address | None = None
    events: Wanted | None = None
    enabled: Annotated[bool, describe("False: keep the webhook and its events, but send nothing.")] | None = None

    checks: ClassVar = {
        "url": lambda text: None if text is None else check_url(text),
        "events": lambda wanted: None if wanted is None else check_events(wanted),
    }


class DeliveryState(StrEnum):
    WAITING = "waiting"  # will be sent at `next_at`, for the first time or as a retry
    DELIVERED = "delivered"  # answered with 2xx
    DEAD = "dead"  # the last attempt failed; can be replayed


class WebhookState(StrEnum):
    ENABLED = "enabled"
    FAILING = "failing"  # enabled, but every recent delivery has failed
    DISABLED = "disabled"

    @classmethod
    def of(cls, *, enabled: bool, failing: bool) -> Self:
        return cls.DISABLED if not enabled else cls.FAILING if failing else cls.ENABLED


LABELS = {
    WebhookState.ENABLED: message("Enabled"),
    WebhookState.FAILING: message("Failing"),
    WebhookState.DISABLED: message("Disabled"),
}
DELIVERY_LABELS = {
    DeliveryState.WAITING: message("Waiting"),
    DeliveryState.DELIVERED: message("Delivered"),
    DeliveryState.DEAD: message("Given up"),
}


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of events. Until `old_until`, requests are also signed with `old_secret`, which may contain several
    secrets, separated by spaces."""

    id: str
    url: str
    events: tuple[str, ...]
    secret: str
    old_secret: str | None = None
    old_until: int | None = None
    enabled: bool = True
    reason: str | None = None  # why it is disabled
    cursor: int = 0  # the last event that was examined for its queue
    failing_since: int | None = None
    held_until: int = 0  # the receiver asked us to send nothing before this time; 0 if it did not ask
    created_at: int = 0

    @property
    def state(self) -> WebhookState:
        return WebhookState.of(enabled=self.enabled, failing=self.failing_since is not None)

    def wants(self, kind: str) -> bool:
        return not self.events or any(
            kind.startswith(name[:-1]) if name.endswith(".*") else kind == name for name in self.events
        )

    def secrets(self, now: int) -> list[str]:
        """Return the valid secrets, newest first."""
        old = (self.old_secret or "").split() if (self.old_until or 0) > now else []
        return [self.secret, *old]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivery of one event to one webhook."""

    webhook: str
    sequence: int
    state: DeliveryState
    attempts: int
    next_at: int
    status: int | None
    error: str | None
    event_id: str
    event_type: str
