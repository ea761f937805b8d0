"""The built-in analyzers on a real crawl of a site with every defect planted, and of its clean twin."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shoal.audit.analysis import AnalysisOptions
from shoal.audit.analyzers.speed import Speed
from shoal.audit.codes import CODES
from shoal.audit.gate import read_gate
from shoal.audit.states import AnalysisState
from shoal.audit.verdict import Outcome
from shoal.egress.ca_bundle import machine_ca_file
from shoal.runners import analysis_runner
from tests.packages.conftest import Answer, Crawler, ScriptedSite, html
from tests.packages.conftest import serving as plain
from tests.support.audit_site import PLANTED, clean_site, planted_site

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


async def found_on(crawler: Crawler, site: ScriptedSite) -> dict[str, list[str]]:
    """Crawl and analyze a site; return the paths of the findings by code."""
    await crawler.crawl(site, analyze=True, sitemap="on", depth=6)
    [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
    await (await analysis_runner(crawler.app, lease, lambda: True)).run()
    analyses = crawler.app.audit.analyses
    [analysis] = await analyses.newest()
    assert analysis.state is AnalysisState.SUCCESS
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


async def test_without_details_only_the_analyzers_that_need_them_fail(crawler: Crawler) -> None:
    async with plain(ScriptedSite(lambda path: html("A page", "/gone") if path == "/" else None)) as site:
        seen = await crawler.crawl(site)
    analyses = crawler.app.audit.analyses
    analysis = await analyses.submit(seen.crawl.id, AnalysisOptions())
    [lease] = await crawler.app.queue.lease("test", ["analysis"], ["shared"], 1)
    await (await analysis_runner(crawler.app, lease, lambda: True)).run()
    outcomes = {one.analyzer: one.error for one in await analyses.outcomes(analysis.id)}
    assert outcomes["links"] is None
    assert outcomes["headings"] == "The crawl stored no page details; crawl again with the option analyze."
    assert "broken_link" in {count.code for count in await analyses.counts(analysis.id)}
