"""Bots that die, are slow or send false results, and a correct one. They call the bot API in this process, each through
a separate gateway with its token. `Days` records which false results were accepted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from starlette.types import ASGIApp, Message

from shoal.access.token import Caller, TokenScope
from shoal.app import App
from shoal.base.ids import JobId
from shoal.page_jobs.result import Result, ResultDelivery, Status
from shoal.queue.job import Fence
from shoal.serve.application import application
from shoal.serve.authentication import InProcessAuthenticator
from shoal.serve.bots import MOST_JOBS, BotApi
from shoal.serve.endpoint import routes_of
from tests.contract.conftest import Bench

if TYPE_CHECKING:
    from tests.contract.two_days import Days

AWAY = 503


def bots_of(app: App) -> BotApi:
    """The bot API of this app."""
    return BotApi(app.page_jobs.bots, app.clock, app.settings.bots.max_result_bytes)


def gateway_of(bench: Bench, api: BotApi, token: str) -> ASGIApp:
    caller = Caller(who=token, scopes=frozenset({TokenScope.BOT}))
    return application(routes_of([api], api.max_body), bench.clock, bench.signals, InProcessAuthenticator(caller))


async def post(gateway: ASGIApp, path: str, body: object) -> tuple[int, Any]:
    """One request, and its answer."""
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": path, "query_string": b"", "headers": []}
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": orjson.dumps(body), "more_body": False}

    async def send(message: Message) -> None:
        said.append(dict(message))

    await gateway(scope, receive, send)
    return said[0]["status"], orjson.loads(said[1]["body"])


@dataclass(frozen=True)
class HeldLease:
    """A lease that a bot holds."""

    fence: Fence
    until: int


class Bot:
    """Pulls jobs and pushes a correct result for each, as an honest bot does."""

    def __init__(self, days: "Days", token: str, most: int) -> None:
        self.days = days
        self.gateway, self.sure_gateway = (gateway_of(days.bench, api, token) for api in (days.api, days.sure_api))
        self.most = most
        self.held: list[HeldLease] = []

    async def pull(self) -> None:
        """Pull as many as it may hold; leases granted in a lost response expire."""
        for most in _parts(self.most):
            wanted = {"bot_id": type(self).__name__, "capabilities": ["http", "js"], "max": most}
            status, said = await post(self.gateway, "/bot/v1/jobs/pull", wanted)
            if status == AWAY:
                return
            assert status == 200, said
            self.held += [_held(job, self.days.now) for job in said["jobs"]]
            if len(said["jobs"]) < most:
                return

    async def push(self) -> None:
        held, self.held = self.held, []
        answers = [self.days.answer(one.fence) for one in held]
        states = await self.send(answers)
        if states is None:  # it is unknown whether they arrived, so send them again
            states = await self.send(answers, surely=True)
        assert states is not None
        self.days.accepted += [one for one, state in zip(answers, states, strict=True) if state is not None]
        self.days.lost += sum(state is None for state in states)

    async def send(self, answers: list[ResultDelivery], *, surely: bool = False) -> list[str | None] | None:
        gateway, states = self.sure_gateway if surely else self.gateway, list[str | None]()
        for first in range(0, len(answers), MOST_JOBS):
            results = [_item(one) for one in answers[first : first + MOST_JOBS]]
            status, said = await post(gateway, "/bot/v1/results", {"results": results})
            if status == AWAY:
                return None
            assert status == 200, said
            states += [_state(one) for one in said["results"]]
        return states

    async def beat(self, fence: Fence) -> bool:
        """Return whether the result was accepted."""
        path = f"/bot/v1/jobs/{fence.job_id}/heartbeat"
        status, said = await post(self.sure_gateway, path, {"epoch": fence.epoch})
        assert status in (200, 409), said
        return status == 200 and not said["cancelled"]


class Mortal(Bot):
    """Stands for a bot that crashes: it dies with whatever it holds, every time."""

    async def push(self) -> None:
        self.held.clear()


class Slow(Bot):
    """Pushes its results only after its leases have expired."""

    async def push(self) -> None:
        late = [one for one in self.held if one.until < self.days.now]
        self.held = [one for one in self.held if one.until >= self.days.now]
        states = await self.send([self.days.answer(one.fence) for one in late], surely=True)
        assert states is not None
        self.days.believed += [state for state in states if state is not None]
        self.days.late += len(late)


class Liar(Bot):
    """Stands for a hostile or broken bot: it sends false ids and grants before the true ones, and a different result
    after them."""

    async def push(self) -> None:
        mine = list(self.held)
        await self._lie([Fence(one.fence.job_id, epoch) for one in mine for epoch in self._wrong(one.fence.epoch)])
        await self._lie([one.fence for bot in self.days.bots for one in bot.held if bot is not self])
        await self._lie([Fence(JobId("job_nobody"), 1), Fence(JobId("' OR 1=1 --"), 1), Fence(JobId("."), 0)])
        await super().push()
        await self._lie([one.fence for one in mine])
        beats = [await self.beat(one.fence) for one in mine]
        self.days.believed += ["a heartbeat for a job that has ended" for believed in beats if believed]

    def _wrong(self, epoch: int) -> Iterator[int]:
        yield from (epoch - 1, epoch + 1, -epoch, 2**62)

    async def _lie(self, fences: list[Fence]) -> None:
        lies = [ResultDelivery(one, result_of(Status.SUCCESS, self.days.now, f"a lie {one.epoch}")) for one in fences]
        states = await self.send(lies, surely=True)
        assert states is not None
        self.days.lies += len(lies)
        self.days.believed += [f"{lie.fence}: {state}" for lie, state in zip(lies, states, strict=True) if state]


def result_of(status: Status, at: int, html_hash: str | None = None) -> Result:
    error = ("http_500", "It was answered 500.") if status is Status.FAIL else (None, None)
    return Result(status, "", at, data={"price": 1}, error_code=error[0], error_message=error[1], html_hash=html_hash)


def _parts(count: int) -> Iterator[int]:
    for first in range(0, count, MOST_JOBS):
        yield min(MOST_JOBS, count - first)


def _held(job: dict[str, Any], now: int) -> HeldLease:
    lease = job["lease"]
    return HeldLease(Fence(JobId(job["job_id"]), lease["epoch"]), now + round(lease["ttl_seconds"] * 1e6))


def _item(one: ResultDelivery) -> dict[str, Any]:
    told = one.result.event_data()
    meta = told["meta"]
    return {
        "job_id": one.fence.job_id,
        "epoch": one.fence.epoch,
        "status": told["status"],
        "data": told["data"],
        "meta": {"error": meta["error"], "html_hash": meta["html_hash"]},
    }


def _state(item: dict[str, Any]) -> str | None:
    assert (item["status"], item.get("code")) in ((200, None), (409, "lease_lost"))
    return item.get("state")
