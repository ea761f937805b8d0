"""The REST API over a real store and a real server: responses, errors and readiness."""

from pathlib import Path

from shoal.crawl.crawl import CrawlConfig
from shoal.process.runners import make_walker
from tests.support.api import ServedApi, served_api
from tests.support.full_disk import stuff
from tests.support.servers import PostgresServer, free_port


async def test_a_running_crawl_names_the_nodes_that_run_it(api: ServedApi) -> None:
    _, made = await api.ask("/api/v1/crawls", {"seeds": ["http://127.0.0.1:9/"], "workers": 3})
    assert made["node_ids"] == []
    await api.app.queue.lease("node-b/71", ["crawl"], ["shared"], 1)
    await api.app.queue.lease("node-a/72", ["crawl"], ["shared"], 1)
    _, seen = await api.ask(f"/api/v1/crawls/{made['id']}")
    assert (seen["node_ids"], seen["error"]) == (["node-a", "node-b"], None)


async def test_a_failed_crawl_says_why_in_the_words_of_its_seed(store_url: str) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}/"
    async with served_api(store_url, SHOAL_PAGE_ATTEMPTS="1") as api:
        _, made = await api.ask("/api/v1/crawls", {"seeds": [nowhere], "robots": "ignore"})
        crawl = (await api.app.crawls.get(made["id"])).crawl
        while (await api.app.crawls.get(crawl.id)).crawl.state == "queued":
            [lease] = await api.app.queue.lease("test", ["crawl"], ["shared"], 1)
            await make_walker(api.app, crawl, lease.fence, lambda: True).run()
        _, seen = await api.ask(f"/api/v1/crawls/{crawl.id}")
    assert (seen["state"], seen["state_reason"]) == ("failed", "no_seed_gave_a_page")
    assert seen["error"]["code"] == "no_seed_gave_a_page"
    assert seen["error"]["message"].startswith(nowhere)


async def test_a_crawl_whose_job_is_a_dead_letter_says_what_became_of_its_worker(api: ServedApi) -> None:
    config = CrawlConfig(seeds=["http://127.0.0.1:9/"], hooks=["deadly"])
    crawl = await api.app.crawls.submit(config, named=config.seeds)
    for _ in range(4):  # each dies while it loads the hook
        [lease] = await api.app.queue.lease("test", ["crawl"], ["shared"], 1)
        await api.app.queue.recovery.lose(lease, "its child was killed by SIGKILL")
    _, seen = await api.ask(f"/api/v1/crawls/{crawl.id}")
    assert (seen["state"], seen["error"]) == (
        "failed",
        {"code": "poison", "message": "its child was killed by SIGKILL"},
    )


async def test_it_is_ready_while_its_store_takes_what_is_written(api: ServedApi) -> None:
    assert await api.ask("/readyz") == (200, {"status": "ok", "store": "ok"})


async def test_it_is_not_ready_while_its_disk_is_full(small_disk: Path) -> None:
    async with served_api(f"sqlite:///{small_disk}/shoal.db") as api:
        stuffing = small_disk / "stuffing"
        stuff(stuffing)
        assert await until_full(api) == "storage_full"
        stuffing.unlink()
        assert (await api.ask_whether_ready())[0] == 200


async def until_full(api: ServedApi) -> str:
    """Probe until the space that the WAL had reserved is used up; return the response."""
    while True:
        status, said = await api.ask_whether_ready()
        if status == 503:
            return str(said["store"])


async def test_it_is_not_ready_while_its_store_is_away(own_postgres: PostgresServer) -> None:
    async with served_api(own_postgres.url) as api:
        assert (await api.ask_whether_ready())[0] == 200
        own_postgres.stop("immediate")
        assert (await api.ask("/readyz"))[0] == 200  # the result is cached for a moment
        status, said = await api.ask_whether_ready()
        assert (status, said["store"]) == (503, "backend_unavailable")
        own_postgres.start()
        assert (await api.ask_whether_ready())[0] == 200
