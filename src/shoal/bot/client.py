"""HTTP client for the bot API: pull, heartbeat, result. It does not interpret jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson

from shoal import __version__
from shoal.base.clock import Clock
from shoal.base.errors import BackendUnavailable, BadConfig, from_problem
from shoal.base.url import UrlRefusal, canonical
from shoal.egress import AddressRule, Egress, Limits, Request, Response, endpoint

ANSWERS = timedelta(seconds=30)  # seconds; allowed response time beyond the requested wait


@dataclass(frozen=True, slots=True)
class BotJob:
    """One URL to fetch, with the lease of the job."""

    id: str
    url: str
    priority: int
    headers: Mapping[str, str]
    js_required: bool
    timeout_hint: float | None
    rule_set: dict[str, Any] | None
    epoch: int
    ttl_seconds: float
    proxy: str | None = None  # label of the proxy
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "BotJob":
        config, lease = data["crawl_config"], data["lease"]
        return cls(
            id=data["job_id"],
            url=data["url"],
            priority=data["priority"],
            headers=config.get("headers") or {},
            js_required=bool(config.get("js_required")),
            timeout_hint=config.get("timeout_hint"),
            rule_set=data.get("rule_set"),
            epoch=lease["epoch"],
            ttl_seconds=lease["ttl_seconds"],
            proxy=config.get("proxy"),
            raw=data,
        )


class BotClient:
    """A client for one server with one token."""

    def __init__(self, server: str, token: str, clock: Clock) -> None:
        url = canonical(server)
        if isinstance(url, UrlRefusal):
            raise BadConfig("--server", url.problem, "write it as https://shoal.example.com")
        self._base = url.rstrip("/")
        self._token = token
        self._egress = Egress(AddressRule(named=frozenset([endpoint(url)])), clock=clock)

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    async def pull(self, bot_id: str, capabilities: Sequence[str], most: int, wait_seconds: float) -> list[BotJob]:
        """Lease up to `most` jobs; return an empty list if none arrives within `wait_seconds`."""
        body = {"bot_id": bot_id, "capabilities": list(capabilities), "max": most, "wait_seconds": wait_seconds}
        answer = await self._ask("/bot/v1/jobs/pull", body, timedelta(seconds=wait_seconds))
        return [BotJob.of(data) for data in answer["jobs"]]

    async def heartbeat(self, job: BotJob) -> bool:
        """Renew the lease of a job; return False if the job was cancelled. Raise `LeaseLost` if this bot no longer
        holds the lease."""
        answer = await self._ask(f"/bot/v1/jobs/{job.id}/heartbeat", {"epoch": job.epoch})
        return not answer["cancelled"]

    async def push(self, job: BotJob, result: Mapping[str, Any]) -> str:
        """Deliver a result and return the new state of the job. Raise `LeaseLost` if the result came too late."""
        answer = await self._ask(f"/bot/v1/jobs/{job.id}/result", {"epoch": job.epoch, **result})
        return str(answer["state"])

    def close(self) -> None:
        self._egress.close()

    async def _ask(self, path: str, body: Mapping[str, Any], wait: timedelta = timedelta(0)) -> dict[str, Any]:
        return _read(await self.send(path, orjson.dumps(body), wait), self._base)

    async def send(self, path: str, body: bytes, wait: timedelta = timedelta(0), token: str | None = None) -> Response:
        """Send one raw request, optionally with a different token."""
        shown = self._token if token is None else token
        login = (("Authorization", f"Bearer {shown}"),) if shown else ()
        headers = (*login, ("Content-Type", "application/json"), ("User-Agent", f"Shoal-bot/{__version__}"))
        limits = Limits(total_timeout=wait + ANSWERS, idle_timeout=wait + ANSWERS, max_body_bytes=64_000_000)
        request = Request(f"{self._base}{path}", "POST", headers, body, limits)
        outcome = await self._egress.fetch(request)
        if not isinstance(outcome, Response):
            raise BackendUnavailable(self._base, outcome.message.rstrip("."), "check that it is running")
        return outcome


def _read(response: Response, base: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(response.raw)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise BackendUnavailable(base, f"its response ({response.status}) is not from Shoal", "check the address")
    if response.status >= 400:
        raise from_problem(answer, response.status)
    return answer
