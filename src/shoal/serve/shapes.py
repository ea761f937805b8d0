"""The shapes of answers: for the OpenAPI document, for clients made from it, and for the tests that hold us to it."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from shoal.base.form import says
from shoal.crawl.states import CrawlState

Moment = Annotated[datetime, Meta(tz=True)]


class Crawl(Struct, kw_only=True):
    """A crawl, and what it has done so far."""

    id: str
    state: CrawlState
    state_reason: Annotated[str | None, says("Why it is in this state.")]
    seeds: list[str]
    project: str
    labels: dict[str, str]
    priority: int
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    pages: Annotated[int, says("URLs that gave an HTTP answer.")]
    errors: Annotated[int, says("URLs that gave none, or one that cannot be used.")]
    queued: Annotated[int, says("URLs that wait or are under way.")]
    skipped: Annotated[dict[str, int], says("URLs that were not asked for, by the reason.")]
    bytes: int
    not_modified: int
    bytes_saved: int
    depth_reached: int
    config: Annotated[dict[str, Any], says("The options that it was made with; secrets are hidden.")]
    node_ids: Annotated[list[str], says("Who walks it now.")]
    error: Annotated["CrawlError | None", says("Why it failed, if it did.")]


class CrawlError(Struct, kw_only=True):
    code: str | None
    message: str


class CrawlDetail(Crawl, kw_only=True):
    """A crawl with what it waits for."""

    held_hosts: Annotated[list["HeldHost"], says("Hosts that asked us to wait, where something of it waits.")]


class HeldHost(Struct, kw_only=True):
    origin: str
    held_until: Moment
    status: int


class CrawlList(Struct, kw_only=True):
    items: list[Crawl]
    next: Annotated[str | None, says("The cursor of the next page; null on the last one.")]


class Health(Struct, kw_only=True):
    status: str
    version: str


class Readiness(Struct, kw_only=True):
    """`detail` says what is wrong, or limps."""

    status: str
    store: str
    detail: str | UnsetType = UNSET
