"""REST for crawls."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.routing import Route

from shoal.base.errors import InvalidInput, TooLarge
from shoal.base.form import Form
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.crawls import Crawls, Seen
from shoal.crawl.states import CrawlState
from shoal.serve.problems import Json

F = TypeVar("F", bound=Form)
MOST_ITEMS = 200


class CrawlRoutes:
    """`/api/v1/crawls`."""

    def __init__(self, crawls: Crawls, max_body: int) -> None:
        self._crawls = crawls
        self._max_body = max_body

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/crawls", self.create, methods=["POST"]),
            Route("/api/v1/crawls", self.list, methods=["GET"]),
            Route("/api/v1/crawls/{crawl_id}", self.show, methods=["GET"]),
        ]

    async def create(self, request: Request) -> Json:
        config = parse(CrawlConfig, await read_body(request, self._max_body))
        crawl = await self._crawls.submit(config)
        seen = await self._crawls.get(crawl.id)
        location = str(request.app.url_path_for("show", crawl_id=crawl.id))
        return Json(answer(seen), status_code=202, headers={"Location": location})

    async def list(self, request: Request) -> Json:
        query = request.query_params
        limit = _limit(query.get("limit"))
        state = _state(query.get("state"))
        found = await self._crawls.newest(after=_after(query.get("cursor")), limit=limit + 1, state=state)
        more = found[limit - 1].crawl.number if len(found) > limit else None
        return Json(
            {
                "items": [answer(seen) for seen in found[:limit]],
                "next": None if more is None else _cursor(more),
            }
        )

    async def show(self, request: Request) -> Json:
        crawl_id = request.path_params["crawl_id"]
        held = [host.answer() for host in await self._crawls.held_hosts(crawl_id)]
        return Json(answer(await self._crawls.get(crawl_id)) | {"held_hosts": held})


def answer(seen: Seen) -> dict[str, Any]:
    return seen.answer()


async def read_body(request: Request, limit: int) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise TooLarge("the body", f"{limit} bytes", "send less")
    return body


def parse(form: type[F], body: bytes) -> F:
    try:
        values = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput("the body", f"is not JSON ({error})", "send one JSON object") from None
    if not isinstance(values, dict):
        raise InvalidInput("the body", "is not a JSON object", "send one JSON object")
    return form.read(values)


def _limit(text: str | None) -> int:
    if text is None:
        return 50
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= MOST_ITEMS:
        raise InvalidInput("limit", f"{text[:50]!r} is not a number from 1 to {MOST_ITEMS}", "correct it")
    return int(text)


def _state(text: str | None) -> str | None:
    if text is not None and text not in set(CrawlState):
        raise InvalidInput("state", f"{text[:50]!r} is not a state", f"use one of {', '.join(CrawlState)}")
    return text


def _cursor(number: int) -> str:
    return urlsafe_b64encode(str(number).encode()).decode().rstrip("=")


def _after(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        number = int(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")) if len(cursor) < 20 else -1
    except ValueError:
        number = -1
    if not 0 <= number < 2**31:
        raise InvalidInput("cursor", "is not one that a list gave", "take it from `next` of the last answer")
    return number
