"""Many policies, events and bots: one pass of the scheduler over many policies, the delivery of events to a receiver,
and bots that pull and push over HTTP. Everything runs in this process, on the real store; every commit waits for the
disk."""

import asyncio
import time
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httptools
import orjson
import uvloop

from bench.frontier import Store, opened_store
from bench.report import Cell, Report
from shoal.app import App, opened
from shoal.base.database import Tx
from shoal.base.ids import JobId, new_id
from shoal.base.service import Chore
from shoal.base.settings import Settings
from shoal.base.settings_loader import load
from shoal.events.event import Event, append_events
from shoal.events.webhook import NewWebhook
from shoal.plan.policies import new_policy
from shoal.plan.policy import PolicyForm
from shoal.plan.store import PolicyStore
from shoal.queue.job import NewJob
from tests.support.api import listening
from tests.support.bad_http_server import bad_server, reply
from tests.support.programs import ServerUnavailable

Post = Callable[[str, object], Awaitable[dict[str, Any]]]

POLICIES, FEW_POLICIES = 1_000_000, 20_000
DUE = 100  # one policy in this many is due
EVENTS, FEW_EVENTS = 10_000, 500
PAIRS, FEW_PAIRS = {1: 2_000, 20: 20_000}, {1: 50, 20: 400}
BOTS = (1, 16)  # concurrent bots: the commits of several bots are flushed to disk together
AT_ONCE = 1_000
ABOUT = (
    "One pass of the scheduler creates the jobs of all due policies; one policy in a hundred is due. Each event is "
    "appended, numbered, put into a webhook's queue and delivered to a receiver in this process. Bots pull jobs over "
    "HTTP and push their results; the batch is the number of jobs in one request. The CPU time is the time of this "
    "process, which includes the client and the receiver."
)


def run(options: Namespace) -> Report:
    """Measure plans, events and bots on each driver."""
    report = Report("plan", ABOUT)
    passes = report.table("One pass of the scheduler", "store", "policies", "jobs created", "seconds", "CPU seconds")
    events = report.table("Events", "store", "events", "appended per second", "delivered per second", "CPU µs")
    bots = report.table("Bots", "store", "bots", "batch", "calls per second", "jobs per second", "CPU µs per job")
    for driver in options.drivers:
        try:
            with opened_store(driver) as store:
                report.versions.append(store.version)
                uvloop.run(measured(store, options.short, (passes.rows, events.rows, bots.rows)))
        except ServerUnavailable as error:
            print(f"{driver} is not measured: {error}")
    return report


async def measured(store: Store, short: bool, rows: tuple[list[list[Cell]], ...]) -> None:
    async with opened(settings_of(store), upgrade=True) as app:
        rows[1].append([store.name, *await tell(app, FEW_EVENTS if short else EVENTS)])
        for batch, count in (FEW_PAIRS if short else PAIRS).items():
            for bots in BOTS:
                rows[2].append([store.name, bots, batch, *await pull_and_push(app, bots, batch, count)])
        rows[0].append([store.name, *await schedule(app, FEW_POLICIES if short else POLICIES)])


async def schedule(app: App, count: int) -> list[Cell]:
    """Create policies: one in a hundred is due now, the others are due in a year."""
    far = PolicyForm.read({"url": "http://example.org/", "frequency": "366d"})
    store = PolicyStore()
    now = app.clock.micros()
    for first in range(0, count, AT_ONCE):
        times = [now + (place % DUE > 0) * 10**13 for place in range(first, first + AT_ONCE)]
        policies = [new_policy(far, at) for at in times]
        await app.database.run(partial(store.insert, policies=policies))
    before = await app.database.read(lambda tx: app.queue.lanes.page_backlog(tx, "http", count))
    wall, cpu = await timed(lambda: to_the_end(app.plan.scheduler))
    made = await app.database.read(lambda tx: app.queue.lanes.page_backlog(tx, "http", count)) - before
    return [count, made, wall, cpu]


async def tell(app: App, count: int) -> list[Cell]:
    """Append events, one commit each, then deliver all of them to a receiver."""
    async with bad_server() as server:
        server.answer("/hook", reply(204, b""))
        await app.events.webhooks.make(NewWebhook(url=f"http://127.0.0.1:{server.port}/hook"))

        async def append() -> None:
            for place in range(count):
                event = Event("crawl.job.completed", f"job_{place}", {"url": "http://example.org/", "data": {"a": 1}})
                await app.database.run(partial(keep, event))

        told, told_cpu = await timed(append)
        courier = app.chores.courier

        async def bring() -> None:
            await to_the_end(app.chores.forwarder)
            await courier.run_once()
            await server.until_asked(count)

        brought, brought_cpu = await timed(bring)
        await courier.rest()
        await courier.close()
    return [count, count / told, count / brought, (told_cpu + brought_cpu) / count * 1e6]


async def keep(event: Event, tx: Tx) -> None:
    await append_events(tx, event)


async def pull_and_push(app: App, bots: int, batch: int, count: int) -> list[Cell]:
    jobs = [
        NewJob(
            JobId(new_id("job")),
            "page",
            None,
            payload=orjson.dumps({"url": f"http://h{place % 500}.example/{place}"}).decode(),
            host=f"http://h{place % 500}.example",
        )
        for place in range(count)
    ]
    for first in range(0, count, AT_ONCE):
        await app.queue.enqueue(jobs[first : first + AT_ONCE])
    async with listening(app) as api, AsyncExitStack() as lines:
        posts = [await lines.enter_async_context(line_to(api.port)) for _ in range(bots)]
        left = Counter(jobs=count)

        async def be_bot(post: Post) -> None:
            while left["jobs"] > 0:
                left["jobs"] -= batch
                pulled = (await post("/bot/v1/jobs/pull", {"bot_id": "bench", "max": batch}))["jobs"]
                assert len(pulled) == batch
                results = [
                    {"job_id": one["job_id"], "epoch": one["lease"]["epoch"], "status": "success", "data": {"a": 1}}
                    for one in pulled
                ]
                if batch == 1:
                    job_id = results[0].pop("job_id")
                    await post(f"/bot/v1/jobs/{job_id}/result", results[0])
                else:
                    await post("/bot/v1/results", {"results": results})

        async def work() -> None:
            await asyncio.gather(*map(be_bot, posts))

        wall, cpu = await timed(work)
    return [2 * count / batch / wall, count / wall, cpu / count * 1e6]


class _Answer:
    """The callbacks of the HTTP response parser."""

    def __init__(self) -> None:
        self.body = b""
        self.done = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.done = True


@asynccontextmanager
async def line_to(port: int) -> AsyncIterator[Post]:
    """One connection that stays open, with as little client CPU time as possible."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def post(path: str, body: object) -> dict[str, Any]:
        sent = orjson.dumps(body)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.done:
            parser.feed_data(await reader.read(1 << 20))
        assert parser.get_status_code() == 200, answer.body
        found: dict[str, Any] = orjson.loads(answer.body)
        return found

    try:
        yield post
    finally:
        writer.close()


async def to_the_end(chore: Chore) -> None:
    while (await chore.run_once()).again_in is not None:
        pass


async def timed(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    return time.perf_counter() - wall, time.process_time() - cpu


def settings_of(store: Store) -> Settings:
    free = {
        "SHOAL_ALLOW_NETWORKS": "127.0.0.0/8",
        "SHOAL_SCHEDULE_BACKLOG": "1000000",
        "SHOAL_PAGE_SPEED": "max",
        "SHOAL_BOT_PULLS": "1000000",
    }
    return load({"DATABASE_URL": store.url, **free}).settings
