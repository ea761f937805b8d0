"""The bot API over HTTP, from the bot's side: pull, heartbeat, result. Knows nothing of what a job means."""

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

ANSWERS = timedelta(seconds=30)  # how long the server may take beyond what it was asked to wait


@dataclass(frozen=True, slots=True)
class BotJob:
    """One URL to fetch, and how long the right to do so lasts."""

    id: str
    url: str
    priority: int
    headers: Mapping[str, str]
    js_required: bool
    timeout_hint: float | None
    rule_set: dict[str, Any] | None
    epoch: int
    ttl_seconds: float
    proxy: str | None = None  # the label of one
    raw: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "BotJob":
        config, lease = told["crawl_config"], told["lease"]
        return cls(
            id=told["job_id"],
            url=told["url"],
            priority=told["priority"],
            headers=config.get("headers") or {},
            js_required=bool(config.get("js_required")),
            timeout_hint=config.get("timeout_hint"),
            rule_set=told.get("rule_set"),
            epoch=lease["epoch"],
            ttl_seconds=lease["ttl_seconds"],
            proxy=config.get("proxy"),
            raw=told,
        )


class BotClient:
    """One server, one token."""

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
        """Up to so many jobs; none if there are none for so long."""
        wish = {"bot_id": bot_id, "capabilities": list(capabilities), "max": most, "wait_seconds": wait_seconds}
        answer = await self._ask("/bot/v1/jobs/pull", wish, timedelta(seconds=wait_seconds))
        return [BotJob.of(told) for told in answer["jobs"]]

    async def heartbeat(self, job: BotJob) -> bool:
        """Hold the job for one more term; False if it was cancelled. Raises `LeaseLost` if it is somebody else's."""
        answer = await self._ask(f"/bot/v1/jobs/{job.id}/heartbeat", {"epoch": job.epoch})
        return not answer["cancelled"]

    async def push(self, job: BotJob, result: Mapping[str, Any]) -> str:
        """Bring a result home; the state that the job goes to. Raises `LeaseLost` if it came too late."""
        answer = await self._ask(f"/bot/v1/jobs/{job.id}/result", {"epoch": job.epoch, **result})
        return str(answer["state"])

    def close(self) -> None:
        self._egress.close()

    async def _ask(self, path: str, body: Mapping[str, Any], wait: timedelta = timedelta(0)) -> dict[str, Any]:
        return _read(await self.send(path, orjson.dumps(body), wait), self._base)

    async def send(self, path: str, body: bytes, wait: timedelta = timedelta(0), token: str | None = None) -> Response:
        """One request as it is, with another token if one is given."""
        shown = self._token if token is None else token
        login = (("Authorization", f"Bearer {shown}"),) if shown else ()
        headers = (*login, ("Content-Type", "application/json"), ("User-Agent", f"Shoal-bot/{__version__}"))
        limits = Limits(total_timeout=wait + ANSWERS, idle_timeout=wait + ANSWERS, max_body_bytes=64_000_000)
        request = Request(f"{self._base}{path}", "POST", headers, body, limits)
        outcome = await self._egress.fetch(request)
        if not isinstance(outcome, Response):
            raise BackendUnavailable(self._base, outcome.message.rstrip("."), "check that it runs")
        return outcome


def _read(response: Response, base: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(response.raw)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise BackendUnavailable(base, f"its answer ({response.status}) is not Shoal's", "check the address")
    if response.status >= 400:
        raise from_problem(answer, response.status)
    return answer
