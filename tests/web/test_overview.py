"""The overview: it leads on an empty store, and shows first what matters now."""

import shlex

import pytest

from shoal.base.settings_loader import load
from shoal.queue import states
from shoal.queue.job import LeaseRequest
from shoal.queue.presence import WorkerPresence
from shoal.serve.console.overview import Sample
from shoal.serve.console.worker_watch import start_command
from tests.support.controller import ServedController
from tests.support.plain_browser import PlainBrowser

SEEDS = b'{"seeds": ["https://example.com/"]}'


async def note_a_worker(shop: ServedController) -> None:
    await WorkerPresence(shop.app.database, lambda: True).run_once()
    await shop.app.console.worker_watch.run_once()


async def test_an_empty_store_leads_to_the_first_crawl(shop: ServedController, visitor: PlainBrowser) -> None:
    page = await visitor.get("/")
    assert "No worker is running" in page.text
    command = f"shoal worker --store {shop.app.settings.database.url}"
    assert f"<code>{command}</code>" in page.html.replace(' id="worker-command"', "")
    assert 'http-equiv="refresh"' not in page.html  # it would empty the form
    await note_a_worker(shop)
    page = await visitor.get("/")
    assert "A worker is running." in page.text
    assert command not in page.text
    crawl = await visitor.post("/crawls/new", {"seeds": "https://example.com/"})
    assert "Waiting for a worker…" in crawl.text
    page = await visitor.get("/")
    assert "Start a worker" not in page.text
    assert crawl.path in page.html


async def test_a_viewer_of_an_empty_store_is_told_what_it_may_not_do(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    await visitor.sign_in(await shop.token("viewer"))
    page = await visitor.get("/")
    assert "No worker is running" in page.text
    assert "shoal worker" not in page.text
    assert "Your token may only read; it may not start crawls." in page.text


async def test_pages_with_work_that_waits_say_that_no_worker_is_running(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    crawl = (await shop.ask(method="POST", body=SEEDS)).json["id"]
    paths = ("/", "/crawls", f"/crawls/{crawl}", "/jobs")
    await shop.app.console.worker_watch.run_once()
    assert "Failing Nothing" in (await visitor.get("/")).text
    for path in paths:
        assert "No worker is running, so waiting jobs do not start." in (await visitor.get(path)).text, path
    await note_a_worker(shop)
    for path in paths:
        assert "No worker is running" not in (await visitor.get(path)).text, path
    reader = PlainBrowser(shop.port)
    await reader.sign_in(await shop.token("viewer"))
    assert "shoal worker" not in (await reader.get("/")).text


async def test_what_is_failing_stands_in_front_with_a_link(shop: ServedController, visitor: PlainBrowser) -> None:
    await shop.ask("/api/v1/jobs", method="POST", body=b'{"urls": ["https://example.com/"]}')
    [lease] = (await shop.app.queue.finish_and_lease([], LeaseRequest("crawler-1/7", ["page"]), 1)).leases
    failed = states.fail(lease.fence.job_id, lease.fence.epoch, "no route to host")
    await shop.app.queue.finish_and_lease([failed], LeaseRequest("crawler-1/7", ["crawl"]), 1)
    page = await visitor.get("/")
    assert "Failing 1 failed job" in page.text
    assert '<a href="/jobs?q=state:dead">1 failed job</a>' in page.html


async def test_the_rate_has_a_time_axis_and_a_scale_without_its_spikes(
    shop: ServedController, visitor: PlainBrowser
) -> None:
    await shop.ask(method="POST", body=SEEDS)
    shop.app.console.rates.samples.extend([Sample(50, 0, 5.0)] * 100 + [Sample(50_000, 0, 5.0)])
    page = await visitor.get("/")
    assert "max 10,000.0 pages/s" in page.text
    assert "15 7.5 0" in page.text  # pages per second
    assert "8 min ago 6 min ago 4 min ago 2 min ago now" in page.text.replace("\N{NO-BREAK SPACE}", " ")
    assert page.html.count('class="cut"') == 1


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({}, "shoal worker"),
        ({"DATABASE_URL": "sqlite:////data/a b.db"}, "shoal worker --store 'sqlite:////data/a b.db'"),
        (
            {"DATABASE_URL": "postgresql://crawl:secret@db/shoal", "GRPC_ENABLED": "true"},
            "GRPC_ANALYZER_ADDR=127.0.0.1:50051 shoal worker --store 'postgresql://crawl:***@db/shoal'",
        ),
    ],
)
def test_the_command_starts_a_worker_on_the_same_store(settings: dict[str, str], command: str) -> None:
    assert start_command(load(settings).settings) == command
    assert shlex.split(command)
