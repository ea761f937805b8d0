"""The store goes away under two controllers: callers are told when to retry, and no confirmed request is lost."""

import asyncio
from collections.abc import Sized
from functools import partial

import pytest

from shoal.app import opened
from tests.support.api import ServedApi, listening, served_api
from tests.support.http_client import HttpAnswer
from tests.support.patience import in_time, wait_until
from tests.support.servers import PostgresServer

CRAWLS = "/api/v1/crawls"
BODY = {"seeds": ["http://127.0.0.1:9/"]}
QUICK = {"SHOAL_DATABASE_TIMEOUT": "5s"}
OUTAGES = 3


async def test_every_endpoint_says_that_the_store_is_away_and_when_to_come_again(own_postgres: PostgresServer) -> None:
    async with served_api(own_postgres.url, **QUICK) as api:
        crawl_id = (await api.ask(CRAWLS, BODY))[1]["id"]
        own_postgres.stop("immediate")
        for method, path, body in (
            ("POST", CRAWLS, BODY),
            ("GET", CRAWLS, None),
            ("GET", f"{CRAWLS}/{crawl_id}", None),
            ("PATCH", f"{CRAWLS}/{crawl_id}", {"depth": 1}),
            ("POST", f"{CRAWLS}/{crawl_id}/stop", None),
            ("GET", f"{CRAWLS}/{crawl_id}/events", None),
            ("DELETE", f"{CRAWLS}/{crawl_id}", None),
        ):
            answered = await api.send(method, path, body)
            assert (answered.status, answered.json["code"]) == (503, "backend_unavailable"), path
            assert int(answered.headers["retry-after"]) > 0
        assert (await api.ask("/healthz"))[0] == 200
        own_postgres.start()
        assert (await api.ask(f"{CRAWLS}/{crawl_id}"))[1]["state"] == "queued", "nothing of it was done"


@pytest.mark.exhaustive
async def test_crawls_accepted_before_during_and_after_outages_exist_once(own_postgres: PostgresServer) -> None:
    asked: set[str] = set()
    accepted: dict[str, str] = {}
    refused: list[HttpAnswer] = []
    over, answered_again = asyncio.Event(), asyncio.Event()

    async def client(name: str, controllers: list[ServedApi]) -> None:
        """Requests one crawl after the other, each until it is accepted, alternating between the controllers."""
        turn = 0
        while not over.is_set():
            key = f"{name}-{turn}"
            asked.add(key)
            while key not in accepted:
                answered = await controllers[turn % 2].send("POST", CRAWLS, BODY, {"Idempotency-Key": key})
                if answered.status == 202:
                    accepted[key] = answered.json["id"]
                else:
                    refused.append(answered)
                    controllers = controllers[::-1]
                answered_again.set()
            turn += 1

    def reached(answers: Sized, count: int) -> bool:
        return len(answers) >= count

    async with served_api(own_postgres.url, **QUICK) as one, opened(one.app.settings) as app, listening(app) as two:
        clients = [asyncio.create_task(client(f"client-{n}", [one, two])) for n in range(4)]
        for outage in range(OUTAGES):
            await wait_until(partial(reached, accepted, len(accepted) + 5), answered_again, *clients)
            before = len(refused)
            await asyncio.to_thread(own_postgres.stop, "immediate")
            await wait_until(partial(reached, refused, before + 2 + outage), answered_again, *clients)
            await asyncio.to_thread(own_postgres.start)
        await wait_until(partial(reached, accepted, len(accepted) + 5), answered_again, *clients)
        over.set()
        await in_time(asyncio.gather(*clients))
        stored = [crawl.crawl.id for crawl in await one.app.crawls.newest(limit=10_000)]
    assert sorted(stored) == sorted(accepted.values())
    assert set(accepted) == asked
    assert {answered.status for answered in refused} == {503}
    assert all("retry-after" in answered.headers for answered in refused)
