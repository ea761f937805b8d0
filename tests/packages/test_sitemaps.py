"""Sitemaps in a crawl: where they are searched, which URLs they add, what they cost, and how they are reported."""

import asyncio
import gzip

import pytest

from shoal.base.database import Tx
from shoal.base.signals import Signal
from shoal.crawl.crawl import CrawlConfig
from shoal.crawl.engine import results as batch_builder
from shoal.crawl.engine import sitemap_reader
from shoal.crawl.engine.walker_context import SitemapSettled
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.frontier.values import Settlement, WalkerBatch
from shoal.crawl.states import CrawlState
from shoal.crawl.store import FrontierStore
from shoal.process.runners import make_walker
from shoal.queue.job import Fence
from shoal.web.sitemap_fetcher import SMALL_BYTES
from tests.packages.conftest import Answer, Crawler, ScriptedSite, Weighing, altered, html, serving

XML = {"Content-Type": "application/xml"}


def urlset(site: ScriptedSite, *paths: str) -> Answer:
    entries = "".join(f"<url><loc>{path if ':' in path else site.url + path}</loc></url>" for path in paths)
    return 200, XML, f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{entries}</urlset>'


def index(site: ScriptedSite, *paths: str) -> Answer:
    entries = "".join(f"<sitemap><loc>{path if ':' in path else site.url + path}</loc></sitemap>" for path in paths)
    return 200, XML, f"<sitemapindex>{entries}</sitemapindex>"


def with_pages(answers: dict[str, Answer]) -> ScriptedSite:
    """A site of pages without links, whatever their path, and what else is given."""
    return ScriptedSite(lambda path: answers.get(path) or (None if "sitemap" in path else html(path)))


def robots(*lines: str) -> Answer:
    return 200, {"Content-Type": "text/plain"}, "\n".join(lines)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/map", "application/xml"),
        ("/map", "text/xml; charset=utf-8"),
        ("/feed", "application/rss+xml"),
        ("/post-sitemap.xml", "text/plain"),
        ("/sitemaps/1.xml.gz", "application/gzip"),
    ],
)
@pytest.mark.parametrize("sitemap", ["on", "off", "only"])
async def test_a_seed_that_is_a_sitemap_is_read_as_one(crawler: Crawler, path: str, kind: str, sitemap: str) -> None:
    answers: dict[str, Answer] = {}
    site = with_pages(answers)
    async with serving(site):
        text = str(urlset(site, "/a", "/b")[2])
        if kind.startswith("application/rss"):
            items = "".join(f"<item><link>{site.url}/{name}</link></item>" for name in "ab")
            text = f"<rss><channel>{items}</channel></rss>"
        answers[path] = 200, {"Content-Type": kind}, gzip.compress(text.encode()) if path.endswith(".gz") else text
        status = await crawler.crawl(site, path, sitemap=sitemap)
    assert status.counts.pages == 3
    assert not status.failed_seeds


async def test_a_seed_that_is_another_file_is_only_a_page(crawler: Crawler, told: list[SitemapSettled]) -> None:
    site = with_pages({"/a.json": (200, {"Content-Type": "application/json"}, "{}")})
    async with serving(site):
        assert (await crawler.crawl(site, "/a.json")).counts.pages == 1
    assert told == []


@pytest.fixture
def told(crawler: Crawler) -> list[SitemapSettled]:
    found: list[SitemapSettled] = []

    def listen(signal: Signal) -> None:
        if isinstance(signal, SitemapSettled):
            found.append(signal)

    crawler.app.signals.subscribe(listen)
    return found


async def explained(crawler: Crawler, crawl_id: str, url: str) -> UrlExplanation:
    return await crawler.app.frontier_admin.explain(crawl_id, url, 2083)


async def test_urls_that_a_sitemap_lists_are_crawled_at_depth_one(crawler: Crawler, told: list[SitemapSettled]) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = urlset(site, "/a", "/b", "/a", "http://elsewhere.example/x")
        seen = await crawler.crawl(site, sitemap="on")
    pages = await crawler.pages(seen)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert set(pages) == {"/", "a", "b"}
    assert (pages["a"].depth, pages["a"].parent) == (1, f"{site.url}/sitemap.xml")
    assert (seen.counts.pages, seen.counts.errors, seen.counts.skipped) == (3, 0, {"scope": 1})
    assert seen.counts.opened == seen.counts.settled == 4
    assert [(one.how, one.listed, one.problem) for one in told] == [("read", 4, None)]


async def test_a_host_without_a_sitemap_costs_one_request_and_no_error(
    crawler: Crawler, told: list[SitemapSettled]
) -> None:
    async with serving(with_pages({"/": html("home", "/a", "/b")})) as site:
        seen = await crawler.crawl(site, sitemap="on")
    assert sorted(site.asked) == ["/", "/a", "/b", "/robots.txt", "/sitemap.xml"]
    assert (seen.counts.pages, seen.counts.errors, seen.counts.skipped) == (3, 0, {})
    assert [one.how for one in told] == ["absent"]


@pytest.mark.parametrize(
    "config", [{"sitemap": "off"}, {"sitemap": "on", "depth": 0}, {"sitemap": "on", "scope": "page"}]
)
async def test_no_sitemap_is_requested_if_none_of_its_urls_could_be_crawled(
    crawler: Crawler, config: dict[str, object]
) -> None:
    async with serving(with_pages({})) as site:
        await crawler.crawl(site, **config)
    assert sorted(site.asked) == ["/", "/robots.txt"]


async def test_sitemaps_that_robots_txt_names_are_read(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        site.robots = robots(f"Sitemap: {site.url}/maps/1.xml", f"Sitemap: {site.url}/maps/2.txt", "Sitemap: nonsense")
        answers["/maps/1.xml"] = urlset(site, "/a")
        answers["/maps/2.txt"] = (200, {}, f"{site.url}/b\n{site.url}/c\n")
        seen = await crawler.crawl(site, sitemap="on")
    assert set(await crawler.pages(seen)) == {"/", "a", "b", "c"}


async def test_a_sitemap_on_another_host_may_list_the_urls_of_the_crawl(crawler: Crawler) -> None:
    async with serving(with_pages({})) as site:
        other = ScriptedSite(
            lambda path: urlset(site, "/a", "http://elsewhere.example/x") if path == "/s.xml" else None
        )
        async with serving(other):
            site.robots = robots(f"Sitemap: {other.url}/s.xml")
            crawl = await crawler.app.crawls.submit(
                config_of(site, sitemap="on"), named=[f"{site.url}/", f"{other.url}/"]
            )
            await crawler.walk(crawl)
            seen = await crawler.app.crawls.get(crawl.id)
    assert set(await crawler.pages(seen)) == {"/", "a"}
    assert other.times("/s.xml") == 1
    assert other.times("/sitemap.xml") == 0


def config_of(site: ScriptedSite, **options: object) -> CrawlConfig:
    return CrawlConfig(**{"seeds": [f"{site.url}/"], "speed": "max", **options})


async def test_an_index_leads_to_its_sitemaps_gzipped_or_not(crawler: Crawler, told: list[SitemapSettled]) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = index(site, "/sitemap-1.xml", "/sitemap-2.xml.gz", "http://elsewhere.example/s.xml")
        answers["/sitemap-1.xml"] = urlset(site, "/a")
        packed = gzip.compress(str(urlset(site, "/b")[2]).encode())
        answers["/sitemap-2.xml.gz"] = (200, {"Content-Type": "application/x-gzip"}, packed)
        seen = await crawler.crawl(site, sitemap="on")
    pages = await crawler.pages(seen)
    assert {path: page.depth for path, page in pages.items()} == {"/": 0, "a": 1, "b": 1}
    assert sorted(one.listed for one in told) == [1, 1, 3]
    assert seen.counts.skipped == {"scope": 1}


async def test_a_body_that_the_server_gzips_is_read(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        packed = gzip.compress(str(urlset(site, "/a")[2]).encode())
        answers["/sitemap.xml"] = (200, XML | {"Content-Encoding": "gzip"}, packed)
        seen = await crawler.crawl(site, sitemap="on")
    assert set(await crawler.pages(seen)) == {"/", "a"}


async def test_an_endless_chain_of_sitemap_indexes_is_cut_off(crawler: Crawler) -> None:
    async with serving(ScriptedSite(lambda path: None)) as site:

        def endless(path: str) -> Answer:
            return index(site, f"{path}x", path, "/sitemap.xml") if "sitemap" in path else html(path)

        site.script = endless
        seen = await crawler.crawl(site, sitemap="on")
    assert seen.crawl.state is CrawlState.COMPLETED
    assert len([path for path in site.asked if "sitemap" in path]) == 4
    assert seen.counts.skipped == {"depth": 1}


async def test_the_sitemaps_of_an_index_wait_for_the_pages_that_are_known(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = index(site, *(f"/sitemap-{number}.xml" for number in range(300)))
        for number in range(300):
            answers[f"/sitemap-{number}.xml"] = urlset(site, *(f"/{number}/{page}" for page in range(5)))
        seen = await crawler.crawl(site, sitemap="on", max_pages=200)
    assert seen.counts.pages == 200
    assert len([path for path in site.asked if path.startswith("/sitemap-")]) < 150  # about as many as one commit takes


@pytest.mark.parametrize("sitemap", ["on", "only"])
async def test_filters_robots_and_scope_hold_for_what_sitemaps_list(crawler: Crawler, sitemap: str) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        site.robots = robots("User-agent: *", "Disallow: /private", f"Sitemap: {site.url}/private/sitemap.xml")
        answers["/private/sitemap.xml"] = urlset(site, "/a", "/private/b", "/c.pdf", "/x/y/x/y/x/y/x/y/x", "ftp://x/")
        seen = await crawler.crawl(site, sitemap=sitemap, exclude=[r"\.pdf$"])
    assert set(await crawler.pages(seen)) == {"/", "a"}
    assert seen.counts.skipped == {"robots": 1, "excluded": 1, "repeating_path": 1}


async def test_only_sitemaps_means_that_no_link_is_followed(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {"/": html("home", "/a", "/linked"), "/a": html("a", "/linked", "/deep")}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = urlset(site, "/a", "/b", "/linked-not")
        seen = await crawler.crawl(site, sitemap="only")
        said = await explained(crawler, seen.crawl.id, f"{site.url}/deep")
    assert set(await crawler.pages(seen)) == {"/", "a", "b", "linked-not"}
    assert seen.counts.skipped == {"not_in_sitemap": 2}
    assert str(said.sentence) == "Only URLs in sitemaps are fetched, and no sitemap read so far lists it."


async def test_a_link_that_was_passed_over_opens_when_a_sitemap_lists_it(crawler: Crawler) -> None:
    pages = [f"/{number}" for number in range(30)]
    answers: dict[str, Answer] = {"/": html("home", *pages)}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = index(site, "/sitemap-1.xml")
        answers["/sitemap-1.xml"] = urlset(site, *pages)
        seen = await crawler.crawl(site, sitemap="only")
    assert seen.counts.pages == 31
    assert {reason: count for reason, count in seen.counts.skipped.items() if count} == {}


async def test_a_host_that_a_seed_redirects_to_has_its_sitemap_read(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as there:
        answers["/sitemap.xml"] = urlset(there, "/a")
        async with serving(ScriptedSite(lambda path: (301, {"Location": f"{there.url}/"}, ""))) as here:
            crawl = await crawler.app.crawls.submit(
                config_of(here, sitemap="on"), named=[f"{here.url}/", f"{there.url}/"]
            )
            await crawler.walk(crawl)
            seen = await crawler.app.crawls.get(crawl.id)
    assert set(await crawler.pages(seen)) == {"/", "a"}


async def test_with_robots_ignored_sitemaps_are_still_looked_for(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        site.robots = robots("User-agent: *", "Disallow: /", f"Sitemap: {site.url}/other-sitemap.xml")
        answers["/sitemap.xml"] = urlset(site, "/a")
        seen = await crawler.crawl(site, sitemap="on", robots="ignore")
    assert set(await crawler.pages(seen)) == {"/", "a"}
    assert site.times("/robots.txt") == site.times("/other-sitemap.xml") == 0


async def test_a_guess_that_robots_txt_forbids_is_not_made(crawler: Crawler) -> None:
    async with serving(with_pages({"/sitemap.xml": (200, XML, "<urlset/>")})) as site:
        site.robots = robots("User-agent: *", "Disallow: /sitemap")
        seen = await crawler.crawl(site, sitemap="on")
    assert site.times("/sitemap.xml") == 0
    assert seen.counts.skipped == {"robots": 1}


async def test_a_sitemap_that_robots_txt_names_is_no_guess_even_at_the_guessed_address(
    crawler: Crawler, told: list[SitemapSettled]
) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        site.robots = robots("User-agent: *", "Disallow: /sitemap", f"Sitemap: {site.url}/sitemap.xml")
        answers["/sitemap.xml"] = urlset(site, "/a")
        seen = await crawler.crawl(site, sitemap="on")
        assert set(await crawler.pages(seen)) == {"/", "a"}
        answers["/sitemap.xml"] = (404, {}, "")
        await crawler.crawl(site, sitemap="on")
    assert site.times("/sitemap.xml") == 2
    assert [one.how for one in told] == ["read", "failed"]


@pytest.mark.parametrize(
    ("answer", "how", "problem"),
    [
        ((404, {}, ""), "failed", "could not be fetched (the server answered 404)"),
        (html("not found"), "failed", "is an HTML page, not a sitemap"),
        ((200, XML, "<!DOCTYPE x><urlset/>"), "failed", "has a document type declaration"),
        ((200, XML, "<urlset><url><loc>{}/a</loc></url><oops"), "partly", "is not valid XML in line 1"),
    ],
)
async def test_a_named_sitemap_that_cannot_be_read_is_reported_and_is_not_a_page(
    crawler: Crawler, told: list[SitemapSettled], answer: Answer, how: str, problem: str
) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        site.robots = robots(f"Sitemap: {site.url}/named-sitemap.xml")
        answers["/named-sitemap.xml"] = (answer[0], answer[1], str(answer[2]).replace("{}", site.url))
        seen = await crawler.crawl(site, sitemap="on")
        said = await explained(crawler, seen.crawl.id, f"{site.url}/named-sitemap.xml")
    assert (seen.counts.errors, seen.counts.queued) == (0, 0)
    assert set(await crawler.pages(seen)) == ({"/", "a"} if how == "partly" else {"/"})
    [named] = [one for one in told if one.url.endswith("named-sitemap.xml")]
    assert named.how == how
    assert named.problem is not None
    assert named.problem.startswith(problem)
    assert (said.state, said.reason) == ("fetched" if how == "partly" else "failed", "sitemap")
    assert problem in str(said.sentence)


async def test_a_sitemap_is_tried_again_like_a_page(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {"/sitemap.xml": (503, {"Retry-After": "0"}, "")}
    async with serving(with_pages(answers)) as site:

        def recovers(path: str) -> Answer | None:
            if path == "/sitemap.xml" and site.times(path) > 1:
                return urlset(site, "/a")
            return answers.get(path) or html(path)

        site.script = recovers
        seen = await crawler.crawl(site, sitemap="on")
    assert set(await crawler.pages(seen)) == {"/", "a"}
    assert site.times("/sitemap.xml") == 2


async def test_a_url_may_be_a_page_and_a_sitemap(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = urlset(site, "/sitemap.xml", "/a")
        answers["/"] = html("home", "/sitemap.xml")
        seen = await crawler.crawl(site, sitemap="on")
    assert set(await crawler.pages(seen)) == {"/", "a", "sitemap.xml"}
    assert site.times("/sitemap.xml") == 2


async def test_explain_names_the_sitemap_in_which_a_url_was_found(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = urlset(site, "/a")
        crawl = await crawler.submit(site, sitemap="on", max_pages=1)
        await crawler.walk(crawl)
        never = await explained(crawler, crawl.id, f"{site.url}/sitemap.xml")
        assert never.state == "skipped"  # the budget was spent before its turn
        seen = await crawler.crawl(site, sitemap="on")
        said = await explained(crawler, seen.crawl.id, f"{site.url}/a")
        itself = await explained(crawler, seen.crawl.id, f"{site.url}/sitemap.xml")
    assert str(said.sentence).endswith(f"It was found in the sitemap {site.url}/sitemap.xml.")
    assert said.facts["sitemap"] == f"{site.url}/sitemap.xml"
    assert str(itself.sentence).startswith("It was read as a sitemap at ")
    assert str(itself.sentence).endswith(" and listed 1 URL.")


async def test_sitemaps_that_are_read_one_after_the_other_are_all_read(crawler: Crawler) -> None:
    padding = f"<!--{'x' * SMALL_BYTES}-->"
    site = with_pages({})
    async with serving(site):
        names = [f"/sitemap{number}.xml" for number in range(3)]
        site.robots = robots(*(f"Sitemap: {site.url}{name}" for name in names))
        large = {}
        for name in names:
            status, said, body = urlset(site, f"/of{name}")
            large[name] = (status, said, str(body) + padding)
        site.script = lambda path: large.get(path) or (None if path == "/sitemap.xml" else html(path))
        seen = await crawler.crawl(site, sitemap="on")
    assert {f"of{name}" for name in names} <= (await crawler.pages(seen)).keys()
    assert [site.times(name) for name in names] == [2, 2, 2]


async def test_a_large_sitemap_is_opened_in_the_commit_that_settles_it(crawler: Crawler) -> None:
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = (200, {}, "\n".join(f"{site.url}/{number}" for number in range(20_000)))
        crawl = await crawler.submit(site, sitemap="on", max_pages=20)
        await crawler.walk(crawl)
        seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.crawl.state_reason, seen.counts.pages) == ("max_pages", 20)
    assert seen.counts.opened == 20_002


@pytest.mark.parametrize("sitemap", ["off", "only"])
async def test_where_a_seed_redirected_to_is_known_to_the_next_walker(crawler: Crawler, sitemap: str) -> None:
    answers: dict[str, Answer] = {"/": html("home", "/a"), "/a": html("a", "/b")}
    async with serving(with_pages(answers)) as there:
        answers["/sitemap.xml"] = urlset(there, "/a", "/b")
        async with serving(ScriptedSite(lambda path: (301, {"Location": f"{there.url}/"}, ""))) as here:
            config = config_of(here, sitemap=sitemap, concurrency=1)
            crawl = await crawler.app.crawls.submit(config, named=[f"{here.url}/", f"{there.url}/"])
            there.late["/a"] = "never"
            walking = asyncio.create_task(crawler.walk(crawl))
            await there.until(lambda: there.times("/a") > 0, walking)
            await crawler.app.crawls.pause(crawl.id)
            assert await walking == "paused"
            there.late.clear()
            await crawler.app.crawls.resume(crawl.id)
            await crawler.walk(crawl)
            seen = await crawler.app.crawls.get(crawl.id)
    assert seen.crawl.state is CrawlState.COMPLETED
    assert set(await crawler.pages(seen)) == {"/", "a", "b"}


async def test_where_a_seed_redirected_to_is_known_to_all_walkers(crawler: Crawler) -> None:
    def tree(path: str) -> Answer:
        deep = path.count("/")
        return html(path, *(f"{path}/{deep}{child}" for child in "ab")) if deep < 5 else html(path)

    async with (
        serving(ScriptedSite(lambda path: tree(path.rstrip("/")))) as there,
        serving(ScriptedSite(lambda path: (301, {"Location": f"{there.url}/"}, ""))) as here,
    ):
        config = config_of(here, sitemap="off", workers=3, depth=9)
        crawl = await crawler.app.crawls.submit(config, named=[f"{here.url}/", f"{there.url}/"])
        await asyncio.gather(*[crawler.walk(crawl) for _ in range(3)])
        seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.crawl.state, seen.counts.pages, seen.counts.skipped) == (CrawlState.COMPLETED, 63, {})


class Fatal(Weighing):
    """A frontier that cancels its walker after a number of commits with URLs."""

    def __init__(self, frontier: FrontierStore, commits: int) -> None:
        super().__init__(frontier)
        self._commits = commits
        self.walking: asyncio.Task[str] | None = None

    async def settle(self, tx: Tx, crawl: int, fence: Fence, batch: WalkerBatch, *, leaves: bool) -> Settlement:
        settlement = await super().settle(tx, crawl, fence, batch, leaves=leaves)
        if self.walking is not None and sum(weight >= 50 for weight in self.weights) == self._commits:
            self.walking.get_loop().call_soon_threadsafe(self.walking.cancel)
        return settlement


async def test_a_large_sitemap_goes_into_several_commits_and_a_kill_between_them_loses_nothing(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_builder, "MOST_URLS", 50)
    monkeypatch.setattr(sitemap_reader, "MOST_AT_ONCE", 20)
    answers: dict[str, Answer] = {}
    async with serving(with_pages(answers)) as site:
        answers["/sitemap.xml"] = urlset(site, *(f"/{number}" for number in range(400)))
        crawl = await crawler.submit(site, sitemap="only", exclude=["/[0-9]*[1-9]$"])
        [lease] = await crawler.app.queue.lease("test", ["crawl"], ["shared"], 1)
        fatal = Fatal(crawler.app.stores.frontiers.sql, 3)
        app = altered(crawler.app, frontier=fatal)
        fatal.walking = asyncio.create_task(make_walker(app, crawl, lease.fence, lambda: True).run())
        with pytest.raises(asyncio.CancelledError):
            await fatal.walking
        found = await crawler.app.crawls.get(crawl.id)
        assert 0 < found.counts.skipped["excluded"] < 360
        assert await make_walker(crawler.app, crawl, lease.fence, lambda: True).run() == "drained"
    seen = await crawler.app.crawls.get(crawl.id)
    assert (seen.counts.pages, seen.counts.skipped) == (41, {"excluded": 360})
    assert max(fatal.weights) < 50 + 20
    assert site.times("/sitemap.xml") == 2
