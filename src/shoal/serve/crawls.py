"""REST endpoints for crawls: create, list, show, change, control, remove."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, field
from starlette.responses import Response

from shoal.access.audit_log import AuditHook
from shoal.access.idempotency import Idempotency
from shoal.access.token import TokenScope
from shoal.audit.gates import Gates
from shoal.base.errors import AlreadyExists, InvalidInput, NotFound, StateConflict
from shoal.base.ids import CrawlId
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.crawl.crawl import MOST_SEEDS, CrawlConfig, Name, Text
from shoal.crawl.frontier.admin import CrawlRemovals, FrontierAdmin
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawls import Crawls
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.serve.endpoint import EndpointRequest, Nothing, always, endpoint
from shoal.serve.problems import Json
from shoal.serve.requests import Paging, number_of, page_of, respond_once
from shoal.serve.resources.crawl import NEW_CRAWL, Crawl, CrawlDetail, CrawlList, CrawlRemoval, CrawlRetried
from shoal.serve.resources.page import Trap, TrapList, TrapReleased, UrlExplained

REMOVE_SECONDS = 10.0  # after this time, a removal continues after the response
LAST_CRAWL = 2**31 - 1  # the largest number that a crawl can have
Labels = Annotated[list[Annotated[str, Meta(max_length=601)]], Meta(max_length=64)]
Pattern = Annotated[str, Meta(min_length=1, max_length=10_000)]


class CrawlListQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[CrawlState | None, describe("Only crawls in this state.")] = None
    project: Annotated[Name | None, describe("Only crawls of this project.")] = None
    label: Annotated[Labels, describe("Only crawls with this label, as `name=value`. Repeatable.")] = field(
        default_factory=list
    )
    after: Annotated[Name | None, describe("Only crawls older than the crawl with this id.")] = None


class RetryCrawlForm(FailedUrls, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The failed URLs to fetch again. If no field is set, a failed crawl continues with its queue."""

    all: Annotated[bool, describe("All failed URLs that match the other fields.")] = False


class StopForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, describe("Kill workers that do not stop in time.")] = False


class ReleaseForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[Pattern, describe("The pattern, as shown in the list of traps.")]


class SeedsForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seeds: Annotated[list[Text], describe("More URLs to start from.", min_length=1, max_length=MOST_SEEDS)]

    raw = frozenset({"seeds"})  # validated one by one; errors name the index


class ExplainQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[Pattern, describe("The URL, as written on a page.")]


class CrawlApi:
    """`/api/v1/crawls`. `longest_url` is the maximum length of a URL in characters."""

    def __init__(
        self,
        crawls: Crawls,
        frontier: FrontierAdmin,
        removals: CrawlRemovals,
        idempotency: Idempotency,
        longest_url: int,
        gates: Gates,
    ) -> None:
        self._crawls = crawls
        self._gates = gates
        self._frontier = frontier
        self._removals = removals
        self._idempotency = idempotency
        self._longest_url = longest_url

    @endpoint(
        "POST",
        "/api/v1/crawls",
        scope=TokenScope.WRITE,
        summary="Start a crawl.",
        body=CrawlConfig,
        status=202,
        response=Crawl,
        response_example=NEW_CRAWL,
        request_example={"seeds": ["https://example.com/"], "depth": 2, "max_pages": 500, "labels": {"team": "search"}},
        idempotency_key=True,
    )
    async def create_crawl(self, request: EndpointRequest[CrawlConfig, Nothing]) -> Response:
        """By the time the response is sent, the crawl has been stored and queued; with `start: false`, it is only
        stored."""
        return await respond_once(
            self._idempotency, request, "crl", lambda new: self._create(request.body, new.subject, request.audit)
        )

    @endpoint(
        "GET",
        "/api/v1/crawls",
        scope=TokenScope.READ,
        summary="List crawls, newest first.",
        query=CrawlListQuery,
        response=CrawlList,
        problems=[NotFound],
    )
    async def list_crawls(self, request: EndpointRequest[Nothing, CrawlListQuery]) -> CrawlList:
        query = request.query
        after = None if query.after is None else (await self._crawls.get(query.after)).crawl.number
        found = await self._crawls.newest(
            after=number_of(query.cursor, LAST_CRAWL) or after,
            limit=query.limit + 1,
            state=query.state,
            project=query.project,
            labels=labels_of(query.label),
        )
        crawls, more = page_of(found, query.limit, lambda status: status.crawl.number)
        return CrawlList(items=[Crawl.of(one) for one in crawls], next=more)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.READ,
        summary="Show a crawl.",
        response=CrawlDetail,
    )
    async def show_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> CrawlDetail:
        crawl_id = request.path_param("crawl_id")
        status = await self._crawls.get(crawl_id)
        return CrawlDetail.with_hosts(status, await self._crawls.held_hosts(crawl_id))

    @endpoint(
        "PATCH",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.WRITE,
        summary="Change the limits, filters or speed of a crawl while it runs.",
        body=CrawlChange,
        needs_body=True,
        response=Crawl,
        request_example={"max_pages": 2000, "exclude": ["/calendar/"], "speed": "slow"},
        problems=[StateConflict],
    )
    async def change_crawl(self, request: EndpointRequest[CrawlChange, Nothing]) -> Crawl:
        """Fields that are absent do not change; `null` removes a limit. Workers apply the change after their next
        commit."""
        return Crawl.of(await self._crawls.change(request.path_param("crawl_id"), request.body, audit=request.audit))

    @endpoint(
        "DELETE",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.ADMIN,
        summary="Remove a crawl that has ended.",
        status=204,
        accepted=CrawlRemoval,
        problems=[StateConflict],
    )
    async def remove_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """Its pages, URLs and stored bodies are removed too. If the removal takes longer than ten seconds, the status
        is 202 and the removal continues; `removed` is the number of rows removed so far. To wait for the end of the
        removal, repeat the request until the status is 204 or 404."""
        crawl_id = request.path_param("crawl_id")
        removed = await self._removals.remove(crawl_id, REMOVE_SECONDS, request.audit)
        if removed is None:
            return Response(status_code=204)
        return Json(CrawlRemoval(crawl_id=crawl_id, removed=removed), 202)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/seeds",
        scope=TokenScope.WRITE,
        summary="Add seeds to a crawl that was created with `start: false`.",
        body=SeedsForm,
        needs_body=True,
        response=Crawl,
        response_example=NEW_CRAWL | {"state": "pending"},
        request_example={"seeds": ["https://example.com/a", "https://example.com/b"]},
        problems=[StateConflict],
    )
    async def add_seeds(self, request: EndpointRequest[SeedsForm, Nothing]) -> Crawl:
        """A crawl can have any number of seeds; start it once you have added them. Seeds that the crawl already has are
        ignored. Added seeds that do not change the scope are not listed in `seeds`; `config.more_seeds` counts them."""
        crawl_id = request.path_param("crawl_id")
        await self._crawls.add_seeds(crawl_id, request.body.seeds)
        return Crawl.of(await self._crawls.get(crawl_id))

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/start",
        scope=TokenScope.WRITE,
        summary="Start a crawl that was created with `start: false`.",
        status=202,
        response=Crawl,
        response_example=NEW_CRAWL,
        problems=[StateConflict],
    )
    async def start_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> Crawl:
        return await self._moved(request.path_param("crawl_id"), self._crawls.start)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/pause",
        scope=TokenScope.WRITE,
        summary="Pause a crawl.",
        status=202,
        response=Crawl,
        response_example=Crawl.example | {"state": "pausing", "state_reason": "asked"},
        problems=[StateConflict],
    )
    async def pause_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> Crawl:
        """Workers finish the URLs in flight first; then the crawl is `paused`."""
        return await self._moved(request.path_param("crawl_id"), self._crawls.pause)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/resume",
        scope=TokenScope.WRITE,
        summary="Resume a paused crawl.",
        status=202,
        response=Crawl,
        response_example=Crawl.example | {"state": "queued", "node_ids": []},
        problems=[StateConflict],
    )
    async def resume_crawl(self, request: EndpointRequest[Nothing, Nothing]) -> Crawl:
        return await self._moved(request.path_param("crawl_id"), self._crawls.resume)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/stop",
        scope=TokenScope.WRITE,
        summary="Stop a crawl permanently.",
        body=StopForm,
        status=202,
        response=Crawl,
        response_example=Crawl.example | {"state": "stopping", "state_reason": "asked"},
        request_example={"force": False},
        problems=[StateConflict],
    )
    async def stop_crawl(self, request: EndpointRequest[StopForm, Nothing]) -> Crawl:
        """Workers finish the URLs in flight first; then the crawl is `stopped`. Stopping a stopped crawl changes
        nothing. With `force`, workers that have not finished after `SHOAL_FORCE_GRACE` are killed."""
        force, audit = request.body.force, request.audit
        return await self._moved(
            request.path_param("crawl_id"), lambda crawl_id: self._crawls.stop(crawl_id, force=force, audit=audit)
        )

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/retry",
        scope=TokenScope.WRITE,
        summary="Retry failed URLs, or continue a failed crawl.",
        body=RetryCrawlForm,
        status=202,
        response=CrawlRetried,
        request_example={"status": ["5xx"], "error": ["timeout"], "limit": 1000},
        problems=[StateConflict],
    )
    async def retry_crawl(self, request: EndpointRequest[RetryCrawlForm, Nothing]) -> Crawl:
        """If any field is set, the failed URLs that match are queued again, even if the crawl has completed. If no
        field is set, a failed crawl continues with its queue."""
        crawl_id = request.path_param("crawl_id")
        if request.body == RetryCrawlForm():
            return await self._moved(crawl_id, lambda one: self._crawls.retry(one, audit=request.audit))
        retried = await self._crawls.retry_these(crawl_id, request.body, audit=request.audit)
        return CrawlRetried.of(await self._crawls.get(crawl_id), retried=retried)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/explain",
        scope=TokenScope.READ,
        summary="Explain what happened to a URL.",
        query=ExplainQuery,
        response=UrlExplained,
        expensive=always,
    )
    async def explain_url(self, request: EndpointRequest[Nothing, ExplainQuery]) -> dict[str, Any]:
        """The response shows what happened to the URL (fetched, failed, waiting, skipped, refused or never seen), and
        why."""
        crawl_id = request.path_param("crawl_id")
        explanation = await self._frontier.explain(crawl_id, request.query.url, self._longest_url)
        return UrlExplained.with_facts(crawl_id, explanation)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/traps",
        scope=TokenScope.READ,
        summary="List the URL patterns that were quarantined as crawler traps.",
        response=TrapList,
    )
    async def list_traps(self, request: EndpointRequest[Nothing, Nothing]) -> TrapList:
        """The list is complete, including released patterns; `next` is always null."""
        traps = await self._crawls.traps(request.path_param("crawl_id"))
        return TrapList(items=[Trap.of(one) for one in traps], next=None)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/release",
        scope=TokenScope.WRITE,
        summary="Release a URL pattern from quarantine.",
        body=ReleaseForm,
        response=TrapReleased,
        request_example={"pattern": Trap.example["pattern"]},
        problems=[StateConflict],
    )
    async def release_trap(self, request: EndpointRequest[ReleaseForm, Nothing]) -> TrapReleased:
        """The URLs are queued again, and the pattern will not be quarantined a second time. If the crawl has completed,
        it is queued again to fetch these URLs."""
        crawl_id, pattern = request.path_param("crawl_id"), request.body.pattern
        released = await self._crawls.release(crawl_id, pattern, audit=request.audit)
        return TrapReleased(crawl_id=crawl_id, pattern=pattern, released=released)

    async def _create(self, config: CrawlConfig, crawl_id: str, audit: AuditHook) -> Json:
        if config.gate is not None:
            await self._gates.check(config.gate)
        with suppress(AlreadyExists):  # the id is new, or a request with the same idempotency key created the crawl
            await self._crawls.submit(config, crawl_id=CrawlId(crawl_id), audit=audit)
        crawl = Crawl.of(await self._crawls.get(crawl_id))
        return Json(crawl, 202, {"Location": f"/api/v1/crawls/{crawl_id}"})

    async def _moved(self, crawl_id: str, verb: Callable[[str], Awaitable[CrawlState]]) -> Crawl:
        await verb(crawl_id)
        return Crawl.of(await self._crawls.get(crawl_id))


def labels_of(words: list[str]) -> dict[str, str]:
    """Parse labels given as `name=value`."""
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise InvalidInput("label", f"{shorten(word)!r} is not a label", "write it as name=value")
        if found.setdefault(name, value) != value:
            raise InvalidInput("label", f"{shorten(name)!r} cannot have two values", "use only one value")
    return found
