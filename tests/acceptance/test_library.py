"""`async for page in shoal.crawl(…)`: a program's own crawl, against a real site and a real store."""

import asyncio
import gc
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import shoal
from shoal.base.errors import InvalidInput, NotAllowed, NotFound, NothingCrawled
from tests.support import ledger
from tests.support.ledger import Expected
from tests.support.servers import free_port
from tests.support.site import PAGES, Site

ID = "mine"
DEEP = 50
MANY = 2000
AHEAD = 1000  # pages that a crawl may be ahead of its reader, including those in the window and in flight

pytestmark = pytest.mark.usefixtures("bare_environment")


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def state_of(store_url: str, crawl_id: str = ID) -> tuple[str, str | None]:
    crawl = ledger.read(store_url, crawl_id).crawl
    return crawl["state"], crawl["state_reason"]


async def until(condition: Callable[[], bool]) -> None:
    """Let background tasks run until a condition holds."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.to_thread(lambda: None)


def wait_for_silence(site: Site) -> None:
    """Wait until the site has received no request for a second."""
    with suppress(AssertionError):
        while site.wait_for_visit(site.visits[-1].at, 1.0):
            pass


async def test_three_lines_crawl_a_site(site: Site, store_url: str) -> None:
    urls = Counter()
    async for page in shoal.crawl(site.address, depth=DEEP, speed="max", store=store_url, id=ID):
        urls[page.url] += 1
    assert urls == Counter(site.urls)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


async def test_the_hourly_statistics_count_the_pages(site: Site, sqlite_url: str) -> None:
    assert len([page async for page in shoal.crawl(site.address, max_pages=3, speed="max", store=sqlite_url)]) == 3
    async with shoal.crawl(site.address, max_pages=9, speed="max", store=sqlite_url, id=ID) as left_early:
        await anext(aiter(left_early))
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as store:
        [(counted,)] = store.execute("SELECT sum(amount) FROM job_hour WHERE kind = 'pages'")
        [(stored,)] = store.execute("SELECT count(*) FROM page")
    assert counted == stored > 3


async def test_pages_are_typed_and_the_run_says_what_it_came_to(site: Site, sqlite_url: str) -> None:
    run = shoal.crawl(site.address, max_pages=3, speed="max", store=sqlite_url)
    assert (run.id, run.state, run.counts, run.cut_off) == (None, None, None, None)
    pages = [page async for page in run]
    assert all(isinstance(page, shoal.Page) for page in pages)
    assert (pages[0].url, pages[0].status, pages[0].title, pages[0].error) == (site.address, 200, "Page 0", None)
    assert run.id is not None
    assert run.state == "completed"
    assert run.counts is not None
    assert run.counts.pages == len(pages) == 3
    assert run.cut_off == [f"{run.counts.queued} URLs still queued when `max_pages=3` was reached"]
    assert [page async for page in run] == []  # iterating again after the end yields nothing


async def test_the_default_store_is_that_of_the_command_line(site: Site, tmp_path: Path) -> None:
    async for _ in shoal.crawl(site.address, max_pages=1, id=ID):
        pass
    assert state_of(f"sqlite:///{tmp_path}/.local/share/shoal/shoal.db") == ("completed", "max_pages")


async def test_leaving_the_block_pauses_and_resume_gives_every_page_once(site: Site, store_url: str) -> None:
    async with shoal.crawl(site.address, depth=DEEP, speed="max", store=store_url, id=ID) as pages:
        async for _ in pages:
            break
    assert pages.state == "paused"
    assert state_of(store_url) == ("paused", "interrupted")
    urls = [page.url async for page in shoal.crawl(resume=ID, store=store_url)]
    assert Counter(urls) == Counter(site.urls)
    assert ledger.check(store_url, ID, Expected(urls=site.urls)) == []


async def test_breaking_out_of_the_loop_pauses_in_the_background(site: Site, sqlite_url: str) -> None:
    async for _ in shoal.crawl(site.address, depth=DEEP, speed="max", store=sqlite_url, id=ID):
        break
    gc.collect()
    await until(lambda: state_of(sqlite_url)[0] == "paused")


def test_breaking_out_as_the_last_thing_of_a_program_pauses_too(site: Site, sqlite_url: str) -> None:
    async def program() -> None:
        async for _ in shoal.crawl(site.address, depth=DEEP, speed="max", store=sqlite_url, id=ID):
            break

    asyncio.run(program())
    assert state_of(sqlite_url) == ("paused", "interrupted")
    books = ledger.read(sqlite_url, ID)
    assert ledger.violations(books, Expected(state="paused")) == []
    assert [row for row in books.frontier if row["job_id"] or row["crashes"]] == []


async def test_an_error_of_the_reader_pauses_and_stays_the_error(site: Site, sqlite_url: str) -> None:
    async def stumble() -> None:
        async with shoal.crawl(site.address, depth=DEEP, speed="max", store=sqlite_url, id=ID) as pages:
            async for page in pages:
                raise KeyError(page.url)

    with pytest.raises(KeyError):
        await stumble()
    assert state_of(sqlite_url) == ("paused", "interrupted")


async def test_a_slow_reader_holds_the_crawl_back(sqlite_url: str) -> None:
    with Site(pages=MANY) as site:
        async with shoal.crawl(site.address, depth=DEEP, speed="max", store=sqlite_url, id=ID) as pages:
            await anext(pages)
            await asyncio.to_thread(wait_for_silence, site)
            assert site.pages_asked < AHEAD
            rest = [page.url async for page in pages]
        assert len(set(rest)) == len(rest) == MANY - 1


async def test_a_completed_crawl_gives_its_pages_again(site: Site, sqlite_url: str) -> None:
    first = [page async for page in shoal.crawl(site.address, max_pages=9, speed="max", store=sqlite_url, id=ID)]
    visits = len(site.visits)
    again = [page async for page in shoal.crawl(resume=ID, store=sqlite_url)]
    assert {page.url: page for page in again} == {page.url: page for page in first}
    assert len(site.visits) == visits


async def test_a_crawl_that_another_has_is_refused(site: Site, sqlite_url: str) -> None:
    async with shoal.crawl(site.address, depth=DEEP, speed="normal", store=sqlite_url, id=ID):
        with pytest.raises(NotAllowed, match="another process"):
            await anext(shoal.crawl(resume=ID, store=sqlite_url))
    assert state_of(sqlite_url) == ("paused", "interrupted")


async def test_a_seed_that_does_not_answer_gives_its_record_and_then_an_error(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_PAGE_ATTEMPTS", "1")
    run = shoal.crawl(f"http://127.0.0.1:{free_port()}/", robots="ignore", store=sqlite_url)
    page = await anext(run)
    assert page.status is None
    assert page.error is not None
    with pytest.raises(NothingCrawled):
        await anext(run)


async def test_seeds_of_strangers_reach_no_private_address(site: Site, sqlite_url: str) -> None:
    with pytest.raises(InvalidInput, match="is not allowed"):
        await anext(shoal.crawl(site.address, store=sqlite_url, trust_seeds=False))


async def test_a_resumed_crawl_takes_the_options_that_can_be_changed(site: Site, sqlite_url: str) -> None:
    async with shoal.crawl(site.address, id=ID, store=sqlite_url, speed="slow", max_pages=9) as run:
        await anext(run)
    urls = [page.url async for page in shoal.crawl(resume="last", store=sqlite_url, speed="max", max_pages=12)]
    assert len(urls) == len(set(urls)) == 12
    with pytest.raises(InvalidInput, match=r"^scope is not a known field"):
        shoal.crawl(resume=ID, store=sqlite_url, scope="any")


async def test_a_crawl_that_nobody_knows_cannot_be_resumed(sqlite_url: str) -> None:
    with pytest.raises(NotFound):
        await anext(shoal.crawl(resume="nobody", store=sqlite_url))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dept": 2}, "nearest one is depth"),
        ({"depth": -1}, "depth cannot be"),
        ({"include": ["("]}, "not a regular expression"),
        ({"id": "a b"}, "is not a valid id"),
        ({"resume": "x"}, "cannot be combined with seeds"),
    ],
)
def test_a_wrong_option_is_refused_at_once_by_its_name(options: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        shoal.crawl("http://a.example/", **options)


def test_a_seed_is_needed_and_judged_at_once() -> None:
    with pytest.raises(InvalidInput, match="at least one URL"):
        shoal.crawl()
    with pytest.raises(InvalidInput, match="scheme"):
        shoal.crawl("ftp://a.example/")


def test_the_whole_site_is_what_the_tests_count_on(site: Site) -> None:
    assert len(site.urls) == PAGES
