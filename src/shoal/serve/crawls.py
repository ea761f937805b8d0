"""REST for crawls: make, list, show, change, move, remove. What they found, and their lines, are other groups'."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

from msgspec import Meta, field
from starlette.responses import Response

from shoal.access.audit_hook import no_audit
from shoal.access.idempotency import Idempotency
from shoal.access.scopes import TokenScope
from shoal.base.errors import AlreadyExists, InvalidInput, NotFound, StateConflict
from shoal.base.ids import CrawlId
from shoal.base.request_form import Form, describe
from shoal.base.text import shorten
from shoal.crawl.crawl import CrawlConfig, Name
from shoal.crawl.frontier.admin import FrontierAdmin
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.crawls import Crawls, CrawlStatus
from shoal.crawl.lifecycle.failed_urls import FailedUrls
from shoal.crawl.states import CrawlState
from shoal.serve import examples, schemas
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.idempotency import respond_once
from shoal.serve.pagination import Paging, cursor_of, cut, number_of
from shoal.serve.problems import Json

LAST_CRAWL = 2**31 - 1  # the largest number that a crawl can have
Labels = Annotated[list[Annotated[str, Meta(max_length=601)]], Meta(max_length=64)]
Pattern = Annotated[str, Meta(min_length=1, max_length=10_000)]


class CrawlListQuery(Paging, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: Annotated[CrawlState | None, describe("Only crawls in this state.")] = None
    project: Annotated[Name | None, describe("Only crawls of this project.")] = None
    label: Annotated[Labels, describe("Only crawls with this label, as `name=value`. Repeatable.")] = field(
        default_factory=list
    )
    after: Annotated[Name | None, describe("Only crawls that are older than this one, by its id.")] = None


class RetryCrawlForm(FailedUrls, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing given: the crawl goes on with what it still has. Else failed URLs are fetched again."""

    all: Annotated[bool, describe("All failed URLs that the other fields fit.")] = False


class StopForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    force: Annotated[bool, describe("Kill walkers that do not leave in time.")] = False


class ReleaseForm(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[Pattern, describe("The pattern, as the list of traps has it.")]


class ExplainQuery(Form, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: Annotated[Pattern, describe("The URL, as it stands on a page.")]


class CrawlApi:
    """`/api/v1/crawls`. `longest_url`: characters of a URL that crawls take."""

    def __init__(self, crawls: Crawls, archivist: FrontierAdmin, once: Idempotency, longest_url: int) -> None:
        self._crawls = crawls
        self._archivist = archivist
        self._once = once
        self._longest_url = longest_url

    @endpoint(
        "POST",
        "/api/v1/crawls",
        scope=TokenScope.WRITE,
        summary="Start a crawl.",
        body=CrawlConfig,
        status=202,
        answer=schemas.Crawl,
        response_example=examples.NEW_CRAWL,
        request_example={"seeds": ["https://example.com/"], "depth": 2, "max_pages": 500, "labels": {"team": "search"}},
        once=True,
    )
    async def create_crawl(self, ask: EndpointRequest[CrawlConfig, Nothing]) -> Response:
        """It is stored and waits for a worker when the answer comes; with `start: false` it waits for its start."""
        return await respond_once(self._once, ask, "crl", lambda crawl_id: self._make(ask.body, crawl_id))

    @endpoint(
        "GET",
        "/api/v1/crawls",
        scope=TokenScope.READ,
        summary="List crawls, the newest first.",
        query=CrawlListQuery,
        answer=schemas.CrawlList,
        response_example={"items": [examples.CRAWL], "next": "MTI"},
        problems=[NotFound],
    )
    async def list_crawls(self, ask: EndpointRequest[Nothing, CrawlListQuery]) -> Json:
        query = ask.query
        after = None if query.after is None else (await self._crawls.get(query.after)).crawl.number
        found = await self._crawls.newest(
            after=number_of(query.cursor, LAST_CRAWL) or after,
            limit=query.limit + 1,
            state=query.state,
            project=query.project,
            labels=labels_of(query.label),
        )
        return Json(cut(found, query.limit, CrawlStatus.answer, lambda seen: cursor_of(str(seen.crawl.number))))

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.READ,
        summary="Show one crawl.",
        answer=schemas.CrawlDetail,
        response_example=examples.CRAWL | {"held_hosts": [examples.HELD_HOST], "failed_seeds": []},
        problems=[NotFound],
    )
    async def show_crawl(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        crawl_id = ask.part("crawl_id")
        seen = await self._crawls.get(crawl_id)
        held = await self._crawls.held_hosts(crawl_id)
        failed = [seed.answer() for seed in seen.failed_seeds]
        return Json(seen.answer() | {"held_hosts": [host.answer() for host in held], "failed_seeds": failed})

    @endpoint(
        "PATCH",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.WRITE,
        summary="Give a crawl other limits, filters or pace while it lives.",
        body=CrawlChange,
        needs_body=True,
        answer=schemas.Crawl,
        response_example=examples.CRAWL,
        request_example={"max_pages": 2000, "exclude": ["/calendar/"], "speed": "slow"},
        problems=[NotFound, StateConflict],
    )
    async def change_crawl(self, ask: EndpointRequest[CrawlChange, Nothing]) -> Json:
        """What is not named stays as it is; `null` takes a limit away. Its walkers go by it from their next commit."""
        return Json((await self._crawls.change(ask.part("crawl_id"), ask.body)).answer())

    @endpoint(
        "DELETE",
        "/api/v1/crawls/{crawl_id}",
        scope=TokenScope.ADMIN,
        summary="Remove a crawl that has ended.",
        act="crawl.removed",
        status=204,
        problems=[NotFound, StateConflict],
    )
    async def remove_crawl(self, ask: EndpointRequest[Nothing, Nothing]) -> Response:
        """Its pages, URLs and kept bodies go with it."""
        await self._archivist.erase(ask.part("crawl_id"), noting=ask.note)
        return Response(status_code=204)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/start",
        scope=TokenScope.WRITE,
        summary="Start a crawl that was only stored.",
        status=202,
        answer=schemas.Crawl,
        response_example=examples.NEW_CRAWL,
        problems=[NotFound, StateConflict],
    )
    async def start_crawl(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return await self._moved(ask.part("crawl_id"), self._crawls.start)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/pause",
        scope=TokenScope.WRITE,
        summary="Pause a crawl.",
        status=202,
        answer=schemas.Crawl,
        response_example=examples.CRAWL | {"state": "pausing", "state_reason": "asked"},
        problems=[NotFound, StateConflict],
    )
    async def pause_crawl(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """Its walkers settle what they have first; then it is `paused`."""
        return await self._moved(ask.part("crawl_id"), self._crawls.pause)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/resume",
        scope=TokenScope.WRITE,
        summary="Let workers go on with a paused crawl.",
        status=202,
        answer=schemas.Crawl,
        response_example=examples.CRAWL | {"state": "queued", "node_ids": []},
        problems=[NotFound, StateConflict],
    )
    async def resume_crawl(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        return await self._moved(ask.part("crawl_id"), self._crawls.resume)

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/stop",
        scope=TokenScope.WRITE,
        summary="Stop a crawl for good.",
        act="crawl.stopped_by_force",
        body=StopForm,
        status=202,
        answer=schemas.Crawl,
        response_example=examples.CRAWL | {"state": "stopping", "state_reason": "asked"},
        request_example={"force": False},
        problems=[NotFound, StateConflict],
    )
    async def stop_crawl(self, ask: EndpointRequest[StopForm, Nothing]) -> Json:
        """Its walkers settle what they have first; then it is `stopped`. Stopping it again changes nothing. By force:
        who has not settled after `SHOAL_FORCE_GRACE` is killed."""
        force = ask.body.force
        noting = ask.note if force else no_audit
        return await self._moved(
            ask.part("crawl_id"), lambda crawl_id: self._crawls.stop(crawl_id, force=force, noting=noting)
        )

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/retry",
        scope=TokenScope.WRITE,
        summary="Fetch failed URLs again, or let workers go on with a failed crawl.",
        body=RetryCrawlForm,
        status=202,
        answer=schemas.CrawlRetried,
        response_example=examples.CRAWL | {"state": "queued", "node_ids": [], "retried": 12},
        request_example={"status": ["5xx"], "error": ["timeout"], "limit": 1000},
        problems=[NotFound, StateConflict],
    )
    async def retry_crawl(self, ask: EndpointRequest[RetryCrawlForm, Nothing]) -> Json:
        """With a field: those URLs wait again, also of a crawl that has completed. Without: a crawl that failed goes on
        with what it still has."""
        crawl_id = ask.part("crawl_id")
        if ask.body == RetryCrawlForm():
            return await self._moved(crawl_id, self._crawls.retry)
        retried = await self._crawls.retry_these(crawl_id, ask.body)
        return Json((await self._crawls.get(crawl_id)).answer() | {"retried": retried}, status_code=202)

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/explain",
        scope=TokenScope.READ,
        summary="Explain what became of a URL.",
        query=ExplainQuery,
        answer=schemas.UrlExplained,
        response_example=examples.URL_EXPLAINED,
        problems=[NotFound],
    )
    async def explain_url(self, ask: EndpointRequest[Nothing, ExplainQuery]) -> Json:
        """Fetched, failed, waiting, skipped, refused or never seen, and why."""
        crawl_id = ask.part("crawl_id")
        said = await self._archivist.explain(crawl_id, ask.query.url, self._longest_url)
        return Json({"crawl_id": crawl_id} | said.answer())

    @endpoint(
        "GET",
        "/api/v1/crawls/{crawl_id}/traps",
        scope=TokenScope.READ,
        summary="List the patterns that were ever quarantined.",
        answer=schemas.TrapList,
        response_example={"items": [examples.TRAP], "next": None},
        problems=[NotFound],
    )
    async def list_traps(self, ask: EndpointRequest[Nothing, Nothing]) -> Json:
        """All of them at once; `next` is always null."""
        traps = await self._crawls.traps(ask.part("crawl_id"))
        items = [
            {"pattern": trap.pattern, "state": trap.state, "sample": trap.sample, "count": trap.count} for trap in traps
        ]
        return Json({"items": items, "next": None})

    @endpoint(
        "POST",
        "/api/v1/crawls/{crawl_id}/release",
        scope=TokenScope.WRITE,
        summary="Release a pattern from quarantine.",
        body=ReleaseForm,
        answer=schemas.Released,
        response_example={"crawl_id": examples.CRAWL["id"], "pattern": examples.TRAP["pattern"], "released": 240},
        request_example={"pattern": examples.TRAP["pattern"]},
        problems=[NotFound, StateConflict],
    )
    async def release_trap(self, ask: EndpointRequest[ReleaseForm, Nothing]) -> Json:
        """Its URLs wait again, and it is not caught a second time."""
        crawl_id, pattern = ask.part("crawl_id"), ask.body.pattern
        freed = await self._crawls.release(crawl_id, pattern)
        return Json({"crawl_id": crawl_id, "pattern": pattern, "released": freed})

    async def _make(self, config: CrawlConfig, crawl_id: str) -> Json:
        with suppress(AlreadyExists):  # by a request with the same key: there is no other way to this id
            await self._crawls.submit(config, crawl_id=CrawlId(crawl_id))
        seen = await self._crawls.get(crawl_id)
        return Json(seen.answer(), status_code=202, headers={"Location": f"/api/v1/crawls/{crawl_id}"})

    async def _moved(self, crawl_id: str, verb: Callable[[str], Awaitable[CrawlState]]) -> Json:
        await verb(crawl_id)
        return Json((await self._crawls.get(crawl_id)).answer(), status_code=202)


def labels_of(words: list[str]) -> dict[str, str]:
    """Labels as they are looked for: `name=value` each."""
    found: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not name or not sign:
            raise InvalidInput("label", f"{shorten(word)!r} is no label", "write it as name=value")
        if found.setdefault(name, value) != value:
            raise InvalidInput("label", f"{shorten(name)!r} cannot have two values", "name one of them")
    return found
