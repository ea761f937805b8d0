"""`shoal.bot`, `shoal bot` and `shoal bot verify` against a real server and a real site."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from shoal.base.clock import SystemClock
from shoal.base.errors import Unauthenticated, UsageError
from shoal.base.ids import JobId
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.bot import Bot, Found, Job, JobFailed
from shoal.bot.client import BotClient
from shoal.bot.conformance import ConformanceRun
from shoal.bot.fetcher import BotFetcher
from shoal.page_jobs.store import ResultStore
from shoal.queue.states import JobState
from tests.support.api import ServedApi, served_api
from tests.support.bad_http_server import bad_server, reply
from tests.support.controller import served_controller
from tests.support.page_jobs import add_page_jobs
from tests.support.patience import PATIENCE_SECONDS, in_time
from tests.support.site import Site

HERE = "127.0.0.0/8"
LEASE = {"epoch": 1, "ttl_seconds": 600.0}


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[ServedApi]:
    async with served_api(sqlite_url, SHOAL_PAGE_SPEED="max") as api:
        yield api


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(pages=3) as site:
        yield site


def settings() -> Settings:
    return load({"SHOAL_ALLOW_NETWORKS": HERE}, env={}).settings


def bot_at(api: ServedApi, **more: Any) -> Bot:
    fetcher = BotFetcher(settings(), SystemClock())
    return Bot(f"http://127.0.0.1:{api.port}", name="b1", fetcher=fetcher, wait_seconds=2, **more)


async def until_ended(api: Any, job_ids: list[JobId], working: "asyncio.Task[Any]") -> list[JobState]:
    """Wait until the bot that works on these jobs has ended them."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not working.done():
            states = [(await api.app.job_admin.get(job_id)).state for job_id in job_ids]
            if not {JobState.PENDING, JobState.LOCKED} & set(states):
                return states
            await api.app.clock.sleep(0.02)
    raise AssertionError(f"the bot ended too early: {working.result()!r}")


async def result_of(api: Any, job_id: JobId) -> Any:
    [stored] = await api.app.database.read(lambda tx: ResultStore().of_job(tx, job_id))
    return stored.result


async def test_a_bot_fetches_and_brings_its_results_home(api: ServedApi, site: Site) -> None:
    bot = bot_at(api)

    @bot.on_job
    async def look(job: Job) -> dict[str, Any]:
        page = await bot.fetch(job)
        return {"length": len(page.text), "status": page.status}

    working = asyncio.create_task(bot.serve())
    ids = await add_page_jobs(api.app, site.url(0), site.url(1))
    assert await until_ended(api, ids, working) == [JobState.DONE] * 2
    bot.stop()
    await in_time(working)
    result = await result_of(api, ids[0])
    assert (result.data["status"], result.data["length"] > 50) == (200, True)
    assert result.url == site.url(0)


async def test_a_bot_with_free_capacity_pulls_again(api: ServedApi) -> None:
    bot = bot_at(api, concurrency=150)

    @bot.on_job
    async def look(job: Job) -> None:
        return None

    working = asyncio.create_task(bot.serve())
    ids = await add_page_jobs(api.app, "https://a.example/")
    assert await until_ended(api, ids, working) == [JobState.DONE]
    bot.stop()
    await in_time(working)


async def test_a_bot_that_does_not_know_the_proxy_of_a_job_fetches_nothing(api: ServedApi, site: Site) -> None:
    bot = bot_at(api)
    bot.on_job(bot.fetch)
    working = asyncio.create_task(bot.serve())
    [job_id] = await add_page_jobs(api.app, site.url(0), payload={"crawl_config": {"proxy": "eu"}}, max_attempts=1)
    assert await until_ended(api, [job_id], working) == [JobState.FAILED]
    bot.stop()
    await in_time(working)
    assert (await result_of(api, job_id)).error_code == "unknown_proxy"
    assert site.pages_asked == 0
    job = Job.of({"job_id": job_id, "url": site.url(0), "priority": 1, "crawl_config": {"proxy": "eu"}, "lease": LEASE})
    with pytest.raises(JobFailed, match="SHOAL_PROXIES"):
        await bot.fetcher.data(job)


async def test_the_headers_of_a_job_are_shown_to_no_other_host_that_its_page_leads_to() -> None:
    fetcher = BotFetcher(settings(), SystemClock())
    async with bad_server() as here, bad_server() as there:
        for server in (here, there):
            server.answer("/robots.txt", reply(404))
        here.answer("/page", reply(302, b"", [("Location", f"http://127.0.0.1:{there.port}/page")]))
        there.answer("/page", reply(200, b"found"))
        config = {"headers": {"X-Api-Key": "sesame", "Accept-Language": "de"}}
        url = f"http://127.0.0.1:{here.port}/page"
        page = await fetcher.page(
            Job.of({"job_id": "j", "url": url, "priority": 1, "crawl_config": config, "lease": LEASE})
        )
        fetcher.close()
        [first], [last] = ([one for one in server.asked if one.target == "/page"] for server in (here, there))
    assert page.text == "found"
    assert first.headers["x-api-key"] == "sesame"
    assert "x-api-key" not in last.headers
    assert last.headers["accept-language"] == "de"


async def test_an_exception_of_a_handler_is_the_error_of_its_job(api: ServedApi) -> None:
    bot = bot_at(api)

    @bot.on_job
    async def look(job: Job) -> None:
        if job.url.endswith("/a"):
            raise JobFailed("out_of_stock", "Nothing there.")
        raise ZeroDivisionError("by hand")

    ids = await add_page_jobs(api.app, "https://example.org/a", "https://example.com/b", max_attempts=1)
    working = asyncio.create_task(bot.serve())
    assert await until_ended(api, ids, working) == [JobState.FAILED] * 2
    bot.stop()
    await in_time(working)
    errors = [(await result_of(api, job_id)).error for job_id in ids]
    assert errors[0] == {"code": "out_of_stock", "message": "Nothing there."}
    assert errors[1] == {"code": "ZeroDivisionError", "message": "by hand"}


@pytest.mark.parametrize("given", [{1, 2}, "x" * 10_500_000], ids=["no JSON", "too large"])
async def test_a_result_that_is_refused_fails_its_job_at_once(api: ServedApi, given: Any) -> None:
    bot = bot_at(api)

    @bot.on_job
    async def look(job: Job) -> Any:
        return given

    working = asyncio.create_task(bot.serve())
    ids = await add_page_jobs(api.app, "https://a.example/", max_attempts=1)
    assert await until_ended(api, ids, working) == [JobState.FAILED]
    bot.stop()
    await in_time(working)
    assert (await result_of(api, ids[0])).error_code == "result_refused"


async def test_a_bot_that_stops_finishes_what_it_has(api: ServedApi) -> None:
    bot, begun, go_on = bot_at(api, concurrency=1), asyncio.Event(), asyncio.Event()

    @bot.on_job
    async def look(job: Job) -> Found:
        begun.set()
        await go_on.wait()
        return Found("raw text", html_hash="abc")

    first, second = await add_page_jobs(api.app, "https://example.org/", "https://example.com/")
    working = asyncio.create_task(bot.serve())
    async with asyncio.timeout(60):
        await begun.wait()
        bot.stop()
        go_on.set()
        await working
    states = {(await api.app.job_admin.get(job_id)).state for job_id in (first, second)}
    assert states == {JobState.DONE, JobState.PENDING}
    assert bot.done == 1


async def test_a_ctrl_c_that_comes_twice_lets_a_bot_finish_what_it_has(api: ServedApi) -> None:
    """The terminal sends it to the process, and a launcher passes it on."""
    bot, begun, go_on = bot_at(api, concurrency=1), asyncio.Event(), asyncio.Event()

    @bot.on_job
    async def look(job: Job) -> Found:
        begun.set()
        await go_on.wait()
        return Found("raw text", html_hash="abc")

    [job_id] = await add_page_jobs(api.app, "https://example.org/")
    working = asyncio.create_task(bot._run_with_signals())
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(60):
            await begun.wait()
            for _ in range(2):
                stopped = loop.create_future()
                loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
                loop.call_later(0.01, stopped.set_result, None)
                await stopped
            go_on.set()
            await working
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
    assert (await api.app.job_admin.get(job_id)).state is JobState.DONE


async def test_a_bot_stops_working_on_a_job_that_was_cancelled(api: ServedApi) -> None:
    told: list[str] = []
    bot, dropped = bot_at(api, tell=told.append), asyncio.Event()

    @bot.on_job
    async def look(job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()

    [job_id] = await add_page_jobs(api.app, "https://example.org/", lock_ttl=timedelta(seconds=0.3))
    working = asyncio.create_task(bot.serve())
    async with asyncio.timeout(60):
        while (await api.app.job_admin.get(job_id)).state is not JobState.LOCKED:
            await api.app.clock.sleep(0.02)
        await api.app.job_admin.cancel(job_id)
        await dropped.wait()
    bot.stop()
    await in_time(working)
    assert any("or the job was cancelled" in line for line in told)


async def test_a_wrong_token_ends_a_bot_in_words(sqlite_url: str) -> None:
    async with served_controller(sqlite_url) as shop:
        await shop.token("admin")
        fetcher = BotFetcher(settings(), SystemClock())
        bot = Bot(f"http://127.0.0.1:{shop.port}", "shl_nobody", fetcher=fetcher)
        bot.on_job(fetcher.data)
        with pytest.raises(Unauthenticated):
            await bot.serve()


async def test_verify_finds_nothing_wrong_with_us(sqlite_url: str) -> None:
    async with served_controller(sqlite_url, SHOAL_PAGE_SPEED="max") as shop:
        token = await shop.token("bot")
        wire = BotClient(f"http://127.0.0.1:{shop.port}", token, SystemClock())
        try:
            with pytest.raises(UsageError, match="3 waiting jobs are needed"):
                await ConformanceRun(wire, "special").run()
            await add_page_jobs(shop.app, *[f"https://h{number}.example/" for number in range(3)], capability="special")
            checks = await ConformanceRun(wire, "special").run()
        finally:
            wire.close()
        assert [one.problem for one in checks if not one.holds] == []
        assert len(checks) >= 10


async def test_verify_says_what_is_wrong_with_another_server() -> None:
    gone, asked = asyncio.Event(), []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that accepts every request."""
        job = {"job_id": "j", "url": "https://a.example/", "lease": {"epoch": 1, "ttl_seconds": 9}}
        body = json.dumps({"jobs": [job], "state": "done", "ttl_seconds": 9, "cancelled": False}).encode()
        with suppress(asyncio.IncompleteReadError):  # the client closed the connection
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
                asked.append(json.loads(await reader.readexactly(int(length.split(b":")[1]))))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()
        gone.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    wire = BotClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "", SystemClock())
    try:
        checks = await ConformanceRun(wire).run()
    finally:
        wire.close()
        async with asyncio.timeout(60):
            await gone.wait()
        server.close()
        await server.wait_closed()
    assert [one["max"] for one in asked[:3]] == [3, 2, 1], "it keeps none that it does not need"
    wrong = {one.rule for one in checks if not one.holds}
    assert "a pulled job has exactly the documented fields" in wrong
    assert "a heartbeat or result with a wrong epoch gets 409 lease_lost" in wrong
    assert "a batch has a status for each item" in wrong
