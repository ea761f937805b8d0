"""REST endpoints for scrapes: one page and its content, fetched by a worker while the caller waits."""

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from shoal.access.idempotency import Idempotency
from shoal.access.token import TokenScope
from shoal.base.errors import NoWorker
from shoal.page_jobs import scrapes
from shoal.page_jobs.scrapes import Scrapes
from shoal.page_jobs.spec import ScrapeConfig
from shoal.serve.endpoint import EndpointRequest, Nothing, endpoint
from shoal.serve.expensive_reads import unless_gone
from shoal.serve.problems import Json
from shoal.serve.requests import LOCATION, id_once, key_of
from shoal.serve.resources.scrape import Scrape


class ScrapeApi:
    """`/api/v1/scrape`."""

    def __init__(self, scrapes: Scrapes, idempotency: Idempotency) -> None:
        self._scrapes = scrapes
        self._idempotency = idempotency

    @endpoint(
        "POST",
        "/api/v1/scrape",
        scope=TokenScope.WRITE,
        summary="Fetch one page and return its content.",
        body=ScrapeConfig,
        response=Scrape,
        accepted=Scrape,
        request_example={"url": "https://example.com/about", "formats": ["markdown", "links"], "timeout_seconds": 20},
        problems=[NoWorker],
        idempotency_key=True,
    )
    async def scrape_page(self, request: EndpointRequest[ScrapeConfig, Nothing]) -> Response:
        """A worker fetches the page, before other page jobs, as robots.txt and the rate limit of its host allow. A page
        that cannot be fetched is a result, too: `page.error` says why. If there is no result within `timeout_seconds`,
        the response is 202, and `Location` names where it will be; a request with the same `Idempotency-Key` waits for
        it again. If no worker takes the page within five seconds, it is cancelled, and the error is `no_worker`."""
        async with id_once(self._idempotency, request, "job") as new:
            await self._scrapes.start(request.body, new.subject)
            return _response(await self._wait(request, new.subject))

    @endpoint(
        "GET",
        "/api/v1/scrape/{scrape_id}",
        scope=TokenScope.READ,
        summary="Show a scrape, with the page and its content once it has ended.",
        response=Scrape,
        accepted=Scrape,
    )
    async def show_scrape(self, request: EndpointRequest[Nothing, Nothing]) -> Response:
        """The response is 202 until it has ended. Results are kept for `SHOAL_RESULT_RETENTION`."""
        return _response(await self._scrapes.get(request.path_param("scrape_id")))

    async def _wait(self, request: EndpointRequest[ScrapeConfig, Nothing], scrape_id: str) -> scrapes.Scrape:
        """Wait for the result. If the client leaves and has no key to ask again, the page need not be fetched."""
        try:
            return await unless_gone(request.http, self._scrapes.wait(scrape_id, request.body.timeout_seconds))
        except ClientDisconnect:
            if key_of(request) is None:
                await self._scrapes.withdraw(scrape_id)
            raise


def _response(scrape: scrapes.Scrape) -> Response:
    status, headers = (200, {}) if scrape.has_ended else (202, {LOCATION: f"/api/v1/scrape/{scrape.id}"})
    return Response(Scrape.written(scrape), status, headers, Json.media_type)
