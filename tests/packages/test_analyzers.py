"""The built-in analyzers on a real crawl of a site with every defect planted, and of its clean twin."""

import asyncio
import sqlite3
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.app import opened
from shoal.audit import loader
from shoal.audit.analysis import Analysis, AnalysisOptions
from shoal.audit.analyzers.responses import Speed
from shoal.audit.codes import CODES
from shoal.audit.gate import read_gate
from shoal.audit.reports.ci import to_sarif
from shoal.audit.reports.html import to_html
from shoal.audit.reports.report import load_report
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.base.signals import Signals
from shoal.egress.curl import machine_ca_file
from shoal.process.runners import analysis_runner, make_prober
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html, settings_for
from tests.packages.conftest import serving as plain
from tests.support.audit_site import PLANTED, clean_site, planted_site, words

TLS = Path(__file__).parent.parent / "support" / "tls"


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Trust the certificate of the site, which is served over https: some defects exist only there."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "loopback_authority.pem"))
    machine_ca_file.cache_clear()
    yield
    machine_ca_file.cache_clear()


class SecureSite(ScriptedSite):
    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(answers: Callable[[str], dict[str, Answer]]) -> AsyncIterator[SecureSite]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "loopback.pem")
    found: dict[str, Answer] = {}
    site = SecureSite(found.get)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await site.serve(reader, writer)
        except Silent:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    site.port = server.sockets[0].getsockname()[1]
    found |= answers(site.url)
    site.robots = found["/robots.txt"]

    def script(path: str) -> Answer | None:
        answer = found.get(path)
        if answer is not None and answer[0] == 0:
            raise Silent
        return answer

    site.script = script
    try:
        yield site
    finally:
        server.close()


class Silent(Exception):
    """The site closes the connection without an answer."""


async def analyzed(crawler: Crawler, site: ScriptedSite, *paths: str, **config: Any) -> Analysis:
    """Crawl and analyze a site."""
    await crawler.crawl(site, *paths, analyze=True, sitemap="on", depth=6, **config)
    return await analyzed_now(crawler)


async def analyzed_now(crawler: Crawler) -> Analysis:
    """Run the analysis that waits."""
    [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
    await (await analysis_runner(crawler.app, lease, lambda: True)).run()
    [analysis] = await crawler.app.audit.analyses.newest()
    assert analysis.state is AnalysisState.SUCCESS
    return analysis


async def found_on(crawler: Crawler, site: ScriptedSite, *paths: str) -> dict[str, list[str]]:
    """Crawl and analyze a site; return the paths of the findings by code."""
    analyses, analysis = crawler.app.audit.analyses, await analyzed(crawler, site, *paths)
    failed = {one.analyzer: one.error for one in await analyses.outcomes(analysis.id) if one.error is not None}
    assert failed == {}
    found: dict[str, list[str]] = {}
    for _, finding in await analyses.findings(analysis.id):
        split = urlsplit(finding.page or "")
        found.setdefault(finding.code, []).append(split.path + (f"?{split.query}" if split.query else ""))
    assert {code: len(paths) for code, paths in found.items()} == {
        count.code: count.count for count in await analyses.counts(analysis.id)
    }
    return found


async def test_every_planted_defect_is_found_and_nothing_else(crawler: Crawler) -> None:
    async with serving(planted_site) as site:
        found = await found_on(crawler, site)
    expected = {code: sorted(paths) for code, paths in PLANTED.items() if paths}
    assert {code: sorted(paths) for code, paths in found.items()} == expected


async def test_nothing_is_found_on_the_clean_twin(crawler: Crawler) -> None:
    async with serving(clean_site) as site:
        assert await found_on(crawler, site) == {}


def test_every_code_is_planted() -> None:
    assert PLANTED.keys() | {"llms_txt_invalid"} == CODES.keys()


async def test_depth_is_clicks_from_the_seeds_though_a_sitemap_lists_every_page(crawler: Crawler) -> None:
    """A chain of pages, one of which redirects to the next, and a page that only the sitemap lists."""
    answers: dict[str, Answer] = {f"/{step}": html(f"Step {step}", f"/{step + 1}") for step in range(1, 7)}
    answers |= {"/": html("Start", "/1"), "/7": html("The end"), "/alone": html("Alone")}
    answers["/3"] = 301, {"Location": "/4"}, ""
    async with plain(ScriptedSite(answers.get)) as site:
        entries = "".join(f"<url><loc>{site.url}{path}</loc></url>" for path in answers)
        answers["/sitemap.xml"] = 200, {"Content-Type": "application/xml"}, f"<urlset>{entries}</urlset>"
        analysis = await analyzed(crawler, site)
    deep = await crawler.app.audit.analyses.findings(analysis.id, code="page_too_deep")
    assert sorted(finding.evidence["clicks"] for _, finding in deep) == [5, 6]
    assert analysis.metrics is not None
    assert analysis.metrics["max_depth"] == 6
    assert analysis.summary is not None
    levels = {row["depth"]: row["2xx"] for row in analysis.summary["status_by_depth"]}
    assert levels == {0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1, None: 1}


def declaring(canonical: str, *alternates: str, links: tuple[str, ...] = ()) -> Answer:
    """A page that declares a canonical URL and language versions."""
    head = "".join(f'<link rel="alternate" hreflang="de" href="{url}">' for url in alternates)
    body = f'<!doctype html><title>A page of one</title><link rel="canonical" href="{canonical}">{head}<h1>One</h1>'
    return 200, {"Content-Type": "text/html"}, body + "".join(f'<a href="{link}">x</a>' for link in links)


@pytest.mark.exhaustive
async def test_canonical_and_hreflang_targets_that_were_not_crawled_are_asked_for(crawler: Crawler) -> None:
    other_answers = {"/good": html("Good"), "/moved": (301, {"Location": "/good"}, ""), "/busy": (503, {}, "")}
    other = ScriptedSite(other_answers.get, robots=(200, {}, "User-agent: *\nDisallow: /private"))
    answers: dict[str, Answer] = {}
    async with plain(ScriptedSite(answers.get)) as site, plain(other):
        targets = {"/1": "/gone", "/2": "/good", "/3": "/moved", "/4": "/private", "/5": "/busy"}
        answers |= {path: declaring(other.url + target) for path, target in targets.items()}
        answers["/6"] = declaring("/6", f"{other.url}/gone", f"{other.url}/good", f"{other.url}/moved")
        answers["/"] = declaring("/", links=(*targets, "/6"))
        analysis = await analyzed(crawler, site, named=[other])
    analyses = crawler.app.audit.analyses
    broken, moved, broken_lang = [
        [(urlsplit(one.page or "").path, one.evidence) for _, one in await analyses.findings(analysis.id, code=code)]
        for code in ("canonical_broken", "canonical_redirect", "hreflang_broken")
    ]
    assert broken == [("/1", {"canonical": f"{other.url}/gone", "status": 404})]
    assert moved == [("/3", {"canonical": f"{other.url}/moved", "status": 200})]
    assert broken_lang == [("/6", {"hreflang": f"de {other.url}/gone"})]
    asked = list(zip(other.methods, other.asked, strict=True))
    assert asked.count(("HEAD", "/gone")) == asked.count(("GET", "/gone")) == 1, "once for both"
    assert ("GET", "/moved") not in asked
    assert other.times("/private") == 0
    assert analysis.summary is not None
    assert analysis.summary["not_checked"]["targets"] == 2, "what robots.txt forbids, and what the server refuses"


@pytest.mark.exhaustive
async def test_targets_beyond_the_limit_or_the_time_count_as_not_checked(
    crawler: Crawler, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Answer] = {}
    async with plain(ScriptedSite(answers.get)) as site, plain(ScriptedSite(lambda path: None)) as other:
        answers |= {f"/{place}": declaring(f"{other.url}/{place}") for place in range(5)}
        answers["/"] = declaring("/", links=tuple(answers))
        monkeypatch.setattr(loader, "MOST_ASKED", 1)
        first = await analyzed(crawler, site, named=[other])
        monkeypatch.setattr(loader, "LONGEST_ASKING", timedelta(0))
        second = await crawler.app.audit.analyses.submit(first.crawl_id, AnalysisOptions())
        [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
        await (await analysis_runner(crawler.app, lease, lambda: True)).run()
    second = await crawler.app.audit.analyses.get(second.id)
    shown = [((one.metrics or {})["canonical_broken"], (one.summary or {})["not_checked"]) for one in (first, second)]
    assert [(found, unchecked["targets"]) for found, unchecked in shown] == [(1, 4), (0, 5)]
    assert [unchecked["probes"] for _, unchecked in shown] == [1, 2], "of /llms.txt and a path that does not exist"


async def test_a_slow_host_keeps_no_probe_of_another_waiting_and_ends_in_time(crawler: Crawler) -> None:
    progress: list[int] = []

    async def count() -> None:
        progress.append(len(quick.asked))

    async with (
        plain(ScriptedSite(lambda path: None, seconds=30)) as slow,
        plain(ScriptedSite(lambda path: None)) as quick,
    ):
        crawl = await crawler.submit(slow, named=[quick])
        prober = make_prober(crawler.app, crawl)
        try:
            urls = [f"{slow.url}/llms.txt", f"{quick.url}/llms.txt"]
            answers = await asyncio.wait_for(prober.probe(urls, timedelta(seconds=1.2), count), 20)
        finally:
            prober.close()
    assert {url: answer.status for url, answer in answers.items()} == {f"{quick.url}/llms.txt": 404}
    assert len(progress) >= 2, "a run that waits is not stalled"


WORDS = "We looked for it everywhere on this site and it is not here any more"


def not_found(path: str) -> Answer:
    return html("Sorry - Acme", text=f"{WORDS}: {path}")


@pytest.mark.parametrize("status", [200, 404])
async def test_a_page_is_a_soft_404_if_it_is_what_a_random_path_shows(crawler: Crawler, status: int) -> None:
    answers = {
        "/": html("Start", "/widget-404", "/how-to", "/old"),
        "/widget-404": html("Widget 404", text="A very good widget for every house"),
        "/how-to": html("How to fix 404 errors", text="Find the link and mend it"),
        "/old": not_found("/old"),
    }
    async with plain(ScriptedSite(lambda path: answers.get(path) or (status, *not_found(path)[1:]))) as site:
        found = await found_on(crawler, site)
    assert found["soft_404"] == ["/old"]
    assert sorted(found["soft_404_title"]) == ["/how-to", "/widget-404"]


async def test_a_site_that_shows_its_start_page_for_every_path_has_no_soft_404(crawler: Crawler) -> None:
    page = html("An application", "/a", "/b", text="Please switch scripts on to use this application")
    async with plain(ScriptedSite(lambda path: None if path.endswith(".xml") else page)) as site:
        assert "soft_404" not in await found_on(crawler, site)


@pytest.mark.parametrize("status", [200, 404])
async def test_the_start_page_is_no_soft_404_if_the_crawl_began_elsewhere(crawler: Crawler, status: int) -> None:
    start = html("Acme", "/blog", text="Everything that a house needs and more")
    answers = {"/": start, "/blog": html("Blog", "/", "/gone", text="What is new this week in our shop")}

    def answer(path: str) -> Answer | None:
        return None if path.endswith(".xml") else answers.get(path) or (status, *start[1:])

    async with plain(ScriptedSite(answer)) as site:
        assert "soft_404" not in await found_on(crawler, site, "/blog")


async def verdict_of(crawler: Crawler, site: ScriptedSite, seconds_later: float) -> tuple[Outcome, list[str]]:
    """Crawl a slow page, and judge it when an answer takes another time; return the verdict and what was slow."""
    site.seconds = 0.3
    seen = await crawler.crawl(site, analyze=False)
    site.seconds = seconds_later
    rules = [{"metric": "max_response_ms", "op": "<", "threshold": 200}]
    analyses = crawler.app.audit.analyses
    analysis = await analyses.submit(seen.crawl.id, AnalysisOptions(read_gate({"rules": rules, "fail": ["slow_page"]})))
    [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
    run = await analysis_runner(crawler.app, lease, lambda: True)
    run.analyzers = [Speed(200)]
    await run.run()
    done = await analyses.get(analysis.id)
    assert done.verdict is not None
    return done.verdict.outcome, [finding.code for _, finding in await analyses.findings(analysis.id)]


async def test_a_slow_page_is_measured_again_before_it_fails_the_gate(crawler: Crawler) -> None:
    async with plain(ScriptedSite(lambda path: html("A page", text="Words.") if path == "/" else None)) as site:
        assert await verdict_of(crawler, site, 0.0) == (Outcome.PASSED, [])
        assert site.times("/") == 2
        assert await verdict_of(crawler, site, 0.3) == (Outcome.FAILED, ["slow_page"])


async def test_an_llms_txt_that_is_a_web_page_is_reported(crawler: Crawler) -> None:
    async with serving(lambda base: clean_site(base) | {"/llms.txt": html("Not found")}) as site:
        assert await found_on(crawler, site) == {"llms_txt_invalid": ["/llms.txt"]}


async def test_without_details_the_analyzers_that_need_them_are_skipped(crawler: Crawler) -> None:
    async with plain(ScriptedSite(lambda path: html("A page", "/gone") if path == "/" else None)) as site:
        seen = await crawler.crawl(site)
    analyses = crawler.app.audit.analyses
    analysis = await analyses.submit(seen.crawl.id, AnalysisOptions())
    [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
    await (await analysis_runner(crawler.app, lease, lambda: True)).run()
    assert (await analyses.get(analysis.id)).state is AnalysisState.SUCCESS
    outcomes = {one.analyzer: (one.error, one.skipped) for one in await analyses.outcomes(analysis.id)}
    assert outcomes["links"] == (None, None)
    assert outcomes["headings"] == (None, "The crawl stored no page details; crawl again with the option analyze.")
    assert "broken_link" in {count.code for count in await analyses.counts(analysis.id)}


async def test_only_pages_with_the_same_text_are_duplicates_and_near_duplicates_share_most_of_it(
    crawler: Crawler,
) -> None:
    """Products of one template: their simhashes are often the same, and so are the lengths of their texts."""
    template = words("template", 300)
    texts = {f"/product-{number}": f"{template} {words(f'p{number}', 3)}" for number in range(40)}
    texts |= {f"/other-{number}": f"{template} {words(f'o{number}', 150)}" for number in range(10)}
    texts["/copy"] = texts["/product-7"]

    def answer(path: str) -> Answer | None:
        return html("A page", *texts, text="Links.") if path == "/" else html("", text=texts[path])

    async with plain(ScriptedSite(lambda path: answer(path) if path == "/" or path in texts else None)) as site:
        analysis = await analyzed(crawler, site)
    found = [finding for _, finding in await crawler.app.audit.analyses.findings(analysis.id)]
    paths = {code: {urlsplit(one.page or "").path for one in found if one.code == code} for code in CODES}
    assert paths["content_duplicate"] == {"/product-7", "/copy"}
    assert len(paths["content_near_duplicate"]) > 30
    assert all(path.startswith("/product-") for path in paths["content_near_duplicate"])
    assert all(one.evidence["same_percent"] >= 90 for one in found if one.code == "content_near_duplicate")


async def test_pages_stored_before_there_was_a_hash_of_their_text_are_not_compared(
    sqlite_url: str, tmp_path: Path
) -> None:
    copies = {path: html("A copy", text=words("copy")) for path in ("/a", "/b")}
    pages = {"/": html("", *copies, text=words("home")), **copies}
    async with opened(settings_for(sqlite_url, tmp_path), Signals()) as app, plain(ScriptedSite(pages.get)) as site:
        crawler = Crawler(app)
        await crawler.crawl(site, analyze=True)
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("UPDATE page SET text_hash = NULL")
        analysis = await analyzed_now(crawler)
        codes = {count.code for count in await app.audit.analyses.counts(analysis.id)}
    assert not codes & {"content_duplicate", "content_near_duplicate"}
    assert (analysis.summary or {})["not_checked"]["texts"] == 3


async def test_what_was_not_checked_is_counted(crawler: Crawler) -> None:
    parts = (
        '<a href="https://elsewhere.example/">x</a><a href="/b#part">x</a><img src=/i alt=x><img src=/j alt=x>'
        '<link rel=stylesheet href="/s.css"><script src="/s.js"></script><iframe src=/f></iframe><video src=/v></video>'
    )
    page = 200, {"Content-Type": "text/html"}, f"<!doctype html><title>A page</title><a href='/a'>a</a>{parts}"
    async with plain(ScriptedSite(lambda path: page if path in ("/", "/a") else None)) as site:
        await crawler.crawl(site, analyze=True, max_pages=2)
        report = await load_report(crawler.app.audit.analyses, (await analyzed_now(crawler)).id, 10)
    assert (report.analysis.summary or {})["not_checked"] == {
        "external_links": 2,
        "uncrawled_links": 2,
        "fragments": None,
        "images": 4,
        "styles": 2,
        "scripts": 2,
        "frames": 2,
        "media": 2,
    }
    assert report.not_checked.startswith(
        "links to other sites (2), links to pages that were not crawled (2), #fragments"
    )
    assert all(report.not_checked in text for text in (to_html(report), to_sarif(report)))
