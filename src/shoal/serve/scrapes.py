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
        """A worker fetches the page before other page jobs, within the limits of robots.txt and the rate limit of the
        host. If the page cannot be fetched, the response is 200, and `page.error` has the reason. If there is no result
        within `timeout_seconds`, the status is 202, and `Location` has the path of the scrape; a request with the same
        `Idempotency-Key` waits again for the same result. If no worker starts the job within five seconds, the job is
        cancelled, and the error is `no_worker`."""
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
        """The status is 202 until the scrape has ended. Results are kept for `SHOAL_RESULT_RETENTION`."""
        return _response(await self._scrapes.get(request.path_param("scrape_id")))

    async def _wait(self, request: EndpointRequest[ScrapeConfig, Nothing], scrape_id: str) -> scrapes.Scrape:
        """Wait for the result. If the client disconnects and has no idempotency key to get the result later, cancel the
        scrape."""
        try:
            return await unless_gone(request.http, self._scrapes.wait(scrape_id, request.body.timeout_seconds))
        except ClientDisconnect:
            if key_of(request) is None:
                await self._scrapes.withdraw(scrape_id)
            raise


def _response(scrape: scrapes.Scrape) -> Response:
    status, headers = (200, {}) if scrape.has_ended else (202, {LOCATION: f"/api/v1/scrape/{scrape.id}"})
    return Response(Scrape.written(scrape), status, headers, Json.media_type)
