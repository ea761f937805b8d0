"""The client of a render service (`shoal renderer`)."""

from datetime import timedelta
from typing import Final

from msgspec import DecodeError, ValidationError, json

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, BadConfig, CallerError, TimeError, from_problem
from shoal.base.settings import RenderSettings
from shoal.base.url import UrlRefusal, canonical
from shoal.egress import AddressRule, Egress, Failure, Limits, Request, Response, endpoint
from shoal.egress.exchange import parse_retry_after
from shoal.render.renderer import RenderAnswer, RenderedPage, RenderRequest

BEYOND: Final = timedelta(seconds=60)  # for the queue of the service, and to send the answer
LARGEST_ANSWER: Final = 256_000_000
FIX: Final = "check that it is running and that RENDERER_URL is correct"


class RemoteRenderer:
    """Renders pages on a service that the operator named."""

    browsers = active = 0  # in this process

    def __init__(self, settings: RenderSettings, clock: Clock) -> None:
        url = canonical(settings.url)
        if isinstance(url, UrlRefusal):
            raise BadConfig("RENDERER_URL", url.problem, "write it as http://renderer:3000")
        self._base = url.rstrip("/")
        self._clock = clock
        login = (("Authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self._headers = (*login, ("Content-Type", "application/json"), ("User-Agent", f"Shoal/{__version__}"))
        wait = settings.timeout + BEYOND
        self._limits = Limits(total_timeout=wait, idle_timeout=wait, max_body_bytes=LARGEST_ANSWER)
        self._egress = Egress(AddressRule(named=frozenset([endpoint(url)])), clock=clock)

    async def render(self, request: RenderRequest) -> RenderedPage | Failure:
        answer = await self._post("/render", json.encode(request))
        if answer.failure is not None:
            return answer.failure
        if answer.page is None:
            raise BackendUnavailable("the renderer", "its answer has no page", FIX)
        return answer.page

    async def restart(self) -> None:
        await self._post("/restart", b"{}")

    def abort(self) -> None:
        self._egress.close()

    async def close(self) -> None:
        self._egress.close()

    async def _post(self, path: str, body: bytes) -> RenderAnswer:
        outcome = await self._egress.fetch(Request(f"{self._base}{path}", "POST", self._headers, body, self._limits))
        if not isinstance(outcome, Response):
            raise BackendUnavailable("the renderer", outcome.message.rstrip("."), FIX)
        if outcome.status >= 400:
            raise self._refusal(outcome)
        if outcome.status == 204:
            return RenderAnswer()
        try:
            return json.decode(outcome.raw, type=RenderAnswer)
        except (DecodeError, ValidationError):
            raise BackendUnavailable("the renderer", "its answer is not from a renderer", FIX) from None

    def _refusal(self, response: Response) -> Exception:
        """Return the error of the service. Errors that are not the page's fault are temporary, so the page is
        retried."""
        try:
            problem = json.decode(response.raw, type=dict[str, object])
        except DecodeError:
            problem = {}
        error = from_problem(problem, response.status)
        asked = parse_retry_after(response.headers.get("retry-after"), self._clock.now(), timedelta(hours=1))
        if isinstance(error, TimeError):
            if asked is not None:
                error.facts["retry_after_seconds"] = asked.total_seconds()
            return error
        if isinstance(error, CallerError) and response.status in (401, 403):
            return BadConfig("SHOAL_RENDERER_TOKEN", "was refused by the renderer", "set it to the renderer's token")
        return BackendUnavailable("the renderer", error.message.rstrip("."), FIX)
