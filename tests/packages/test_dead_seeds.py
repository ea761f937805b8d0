"""Seeds that give no page: how soon that is known, the page record, and the failed seeds of the crawl."""

import asyncio

import pytest
from msgspec import to_builtins

from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.journal_messages import JournalEntry, JournalLevel
from shoal.crawl.lifecycle.crawl_status import CrawlStatus
from shoal.crawl.states import CrawlState
from shoal.pages.page import Page
from shoal.pages.store import PageStore
from shoal.serve.resources.crawl import Crawl
from tests.packages.conftest import Crawler, ScriptedSite, html, serving
from tests.support.servers import free_port


async def crawl_of(crawler: Crawler, *seeds: str, **options: str) -> tuple[CrawlStatus, dict[str, Page]]:
    config = CrawlConfig(seeds=list(seeds), **{"speed": "max", **options})  # type: ignore[arg-type]
    crawl = await crawler.app.crawls.submit(config, named=list(seeds))
    await crawler.walk(crawl)
    seen = await crawler.app.crawls.get(crawl.id)
    rows = await crawler.app.database.read(lambda tx: PageStore().after(tx, crawl.number, 0, 100))
    return seen, {page.url: page for _, page in rows}


@pytest.mark.parametrize("robots", ["obey", "ignore"])
@pytest.mark.parametrize(
    ("seed", "code", "words"),
    [
        ("http://127.0.0.1:{free}/", "connect_error", "The server refused the connection."),
        ("https://127.0.0.1:{site}/", "tls_error", "The TLS connection failed."),
        ("http://no-such-name.invalid/", "dns_error", "The host name could not be resolved."),
    ],
)
async def test_a_lone_seed_that_cannot_be_reached_is_not_tried_again(
    crawler: Crawler, robots: str, seed: str, code: str, words: str
) -> None:
    async def speak_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(speak_no_tls, "127.0.0.1", 0) as server:
        seed = seed.format(free=free_port(), site=server.sockets[0].getsockname()[1])
        seen, pages = await crawl_of(crawler, seed, robots=robots)
    page = pages[seed]
    assert (page.attempt, page.error_code, page.error_message) == (1, code, words)
    assert (seen.crawl.state, seen.counts.responses["none"]) == (CrawlState.FAILED, 1)
    assert seen.why_no_seed == f"{seed}: {words.rstrip('.')}"


async def test_one_of_several_seeds_is_tried_again(crawler: Crawler) -> None:
    dead = f"http://127.0.0.1:{free_port()}/"
    async with serving(ScriptedSite(lambda path: html("home"))) as site:
        seen, pages = await crawl_of(crawler, dead, f"{site.url}/", robots="ignore", sitemap="off")
    assert (pages[dead].attempt, seen.failed_seeds) == (4, ())


async def test_a_lone_seed_that_answers_with_500_keeps_its_retries(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: (500, {}, ""))) as site:
        seen = await crawler.crawl(site)
        assert site.times("/") == 4
    assert (seen.crawl.state, seen.counts.errors) == (CrawlState.COMPLETED, 0)
    assert seen.counts.responses == {"2xx": 0, "3xx": 0, "4xx": 0, "5xx": 1, "none": 0}
    assert seen.why_no_seed == f"{site.url}/ answered 500"


async def test_a_link_that_cannot_be_reached_is_tried_again_in_a_crawl_of_one_seed(crawler: Crawler) -> None:
    dead = f"http://127.0.0.1:{free_port()}/"
    async with serving(ScriptedSite(lambda path: html("home", dead) if path == "/" else None)) as site:
        config = CrawlConfig(seeds=[f"{site.url}/"], speed="max", sitemap="off", scope="any", robots="ignore")
        crawl = await crawler.app.crawls.submit(config, named=[f"{site.url}/", dead])
        await crawler.walk(crawl)
    rows = await crawler.app.database.read(lambda tx: PageStore().after(tx, crawl.number, 0, 10))
    assert {page.url: page.attempt for _, page in rows} == {f"{site.url}/": 1, dead: 4}


async def test_seeds_failed_only_if_all_of_them_did(crawler: Crawler) -> None:
    robots = (200, {}, "User-agent: *\nDisallow: /secret")
    known = {"/good": html("good"), "/gone": (404, {}, ""), "/other": (410, {}, "")}
    async with serving(ScriptedSite(known.get, robots=robots)) as site:
        none = await crawler.crawl(site, "/gone", "/other", "/secret")
        some = await crawler.crawl(site, "/gone", "/good")
    assert [(seed.url.removeprefix(site.url), seed.status) for seed in none.failed_seeds] == [
        ("/gone", 404), ("/other", 410), ("/secret", None),
    ]  # fmt: skip
    assert none.crawl.state is CrawlState.COMPLETED
    assert some.failed_seeds == ()


async def test_a_crawl_counts_its_pages_by_the_class_of_their_status(crawler: Crawler) -> None:
    answers = {
        "/": html("home", "/missing", "/broken", "/moved", "/here"),
        "/broken": (500, {}, ""),
        "/moved": (302, {"Location": "/here"}, ""),
        "/here": html("here"),
    }
    async with serving(ScriptedSite(answers.get)) as site:
        seen = await crawler.crawl(site)
    counts = seen.counts
    assert (counts.responses["4xx"], counts.responses["5xx"], counts.responses["none"]) == (1, 1, 0)
    assert sum(counts.responses.values()) == counts.pages
    assert to_builtins(Crawl.of(seen).responses) == counts.responses
    assert counts.errors == 0


async def test_seeds_that_failed_beside_others_are_named_while_the_crawl_runs_and_when_it_has_ended(
    crawler: Crawler,
) -> None:
    robots = (200, {}, "User-agent: *\nDisallow: /secret")
    known = {"/good": html("good"), "/listed": html("listed")}
    async with serving(ScriptedSite(known.get, robots=robots)) as site:
        listed = "".join(f"<url><loc>{site.url}{path}</loc></url>" for path in ("/listed", "/gone-too"))
        known["/sitemap.xml"] = (200, {}, f"<urlset>{listed}</urlset>")
        seen = await crawler.crawl(site, "/gone", "/good", "/secret", sitemap="on")
        alone = await crawler.crawl(site, "/gone", sitemap="on")
    assert [(seed.url.removeprefix(site.url), seed.status) for seed in seen.dead_seeds] == [
        ("/gone", 404),
        ("/secret", None),
    ]
    assert seen.which_seeds_failed.startswith(
        f"2 of 3 failed: {site.url}/gone answered 404; {site.url}/secret: robots.txt"
    )
    assert (len(alone.failed_seeds), alone.dead_seeds) == (1, ())
    assert (alone.counts.responses["2xx"], alone.counts.responses["4xx"]) == (1, 2), "it goes on with the sitemap"
    assert [(line.level, line.message) for line in await seed_lines(crawler, alone)] == [
        (JournalLevel.WARNING, f"Seed {site.url}/gone answered 404")
    ]
    assert len(await seed_lines(crawler, seen)) == 2


async def test_of_hundreds_of_failed_seeds_the_first_are_named_and_the_rest_is_counted(crawler: Crawler) -> None:
    async with serving(ScriptedSite({"/good": html("good")}.get)) as site:
        seen = await crawler.crawl(site, "/good", *(f"/{number}" for number in range(250)))
    assert len(seen.dead_seeds) == 250
    assert seen.which_seeds_failed.startswith("250 of 251 failed: ")
    assert seen.which_seeds_failed.endswith("; and 247 more")
    *named, last = await seed_lines(crawler, seen)
    assert len(named) == 3
    assert last.message == "More seeds failed; they are counted when the crawl has ended"


async def seed_lines(crawler: Crawler, seen: CrawlStatus) -> list[JournalEntry]:
    entries = [one.entry for one in await crawler.app.crawls.journal.entries(seen.crawl.id)]
    return [entry for entry in entries if entry.event in ("seed_failed", "more_seeds_failed")]
