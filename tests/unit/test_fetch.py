"""The outcome of a fetch: when a body is read, and that every response leads to an outcome."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from ipaddress import ip_network

import pytest

from shoal.base.clock import SystemClock
from shoal.base.url import Url
from shoal.egress import AddressRule, Egress, Limits
from shoal.extract.page import ExtractOptions
from shoal.web.crawl_headers import CookieJar, CrawlHeaders
from shoal.web.page_fetcher import Fetched, PageFetcher
from shoal.web.sitemap_fetcher import SMALL_BYTES, FetchedSitemap, SitemapFetcher
from tests.support.bad_http_server import BadServer, bad_server, reply
from tests.support.recorder import Told

HTML = ("Content-Type", "text/html")
PAGE = b"<title>here</title><a href=/x>x</a>"


def headers() -> CrawlHeaders:
    return CrawlHeaders((("User-Agent", "Shoal"),), CookieJar(SystemClock()))


@pytest.fixture
async def server() -> AsyncIterator[BadServer]:
    async with bad_server() as server:
        yield server


@pytest.fixture
async def fetcher() -> AsyncIterator[PageFetcher]:
    egress = Egress(AddressRule(allow=(ip_network("127.0.0.0/8"),)))
    yield PageFetcher(egress, headers(), Limits(), ExtractOptions())
    egress.close()


async def fetch(fetcher: PageFetcher, server: BadServer, path: str = "/") -> Fetched:
    told: Told[Fetched] = Told()
    fetcher.submit(Url(f"http://127.0.0.1:{server.port}{path}"), told)
    return (await told.at_least(1))[0]


@pytest.mark.parametrize(
    ("content_type", "body", "title"),
    [
        ("text/html", PAGE, "here"),
        ("APPLICATION/xhtml+xml ; q=1", PAGE, "here"),
        (None, PAGE, "here"),
        ("", b"\xef\xbb\xbf \n" + PAGE, "here"),
        (None, b"just words", None),
        (None, b"\x7fELF" + PAGE, None),
        ("text/html", b"PK\x03\x04" + PAGE, None),
        ("text/html", b"\x7fELF" + PAGE, None),
        ("text/html", b"%PDF-1.7" + PAGE, None),
        ("image/png", PAGE, None),
    ],
)
async def test_a_body_is_read_when_it_says_or_shows_that_it_is_html(
    fetcher: PageFetcher, server: BadServer, content_type: str | None, body: bytes, title: str | None
) -> None:
    server.answer("/", reply(200, body, [] if content_type is None else [("Content-Type", content_type)]))
    fetched = await fetch(fetcher, server)
    assert (fetched.status, fetched.failure, fetched.bytes) == (200, None, len(body))
    assert (fetched.facts.title if fetched.facts else None) == title


async def test_a_content_type_of_great_length_is_kept_in_part(fetcher: PageFetcher, server: BadServer) -> None:
    server.answer("/", reply(200, PAGE, [("Content-Type", "text/html; charset=" + "u" * 10_000)]))
    fetched = await fetch(fetcher, server)
    assert (len(fetched.content_type or ""), fetched.facts and fetched.facts.title) == (300, "here")


async def test_the_body_of_a_redirect_that_leads_nowhere_is_not_decoded(
    fetcher: PageFetcher, server: BadServer
) -> None:
    bomb = gzip.compress(bytes(40_000_000))
    server.answer("/", reply(302, bomb, [("Content-Type", "text/html"), ("Content-Encoding", "gzip")]))
    fetched = await fetch(fetcher, server)
    assert (fetched.status, fetched.failure, fetched.facts) == (302, None, None)


async def test_a_bomb_in_an_error_page_is_a_failure_that_keeps_the_status(
    fetcher: PageFetcher, server: BadServer
) -> None:
    bomb = gzip.compress(bytes(40_000_000))
    server.answer("/", reply(404, bomb, [("Content-Type", "text/html"), ("Content-Encoding", "gzip")]))
    fetched = await fetch(fetcher, server)
    assert fetched.failure is not None
    assert (fetched.status, fetched.failure.code, fetched.retryable) == (404, "decompressed_too_large", False)


async def test_a_page_that_nobody_foresaw_is_a_failure_and_not_lost(server: BadServer) -> None:
    egress = Egress(AddressRule(allow=(ip_network("127.0.0.0/8"),)))
    fetcher = PageFetcher(egress, headers(), Limits(), None)  # type: ignore[arg-type]  # without limits reading must raise
    server.answer("/", reply(200, PAGE, [("Content-Type", "text/html")]))
    fetched = await fetch(fetcher, server)
    assert fetched.failure is not None
    assert (fetched.failure.code, fetched.retryable) == ("unexpected", False)
    egress.close()


async def test_a_sitemap_that_nobody_foresaw_is_a_failure_and_not_lost(server: BadServer) -> None:
    egress = Egress(AddressRule())
    fetcher = SitemapFetcher(egress, headers(), Limits(), None)  # type: ignore[arg-type]  # telling a refusal must raise
    told: Told[FetchedSitemap] = Told()
    fetcher.submit(Url(f"http://127.0.0.1:{server.port}/sitemap.xml"), told)
    async with asyncio.timeout(60):
        [fetched] = await told.at_least(1)
    assert fetched.failure is not None
    assert (fetched.failure.code, fetched.retryable) == ("unexpected", False)
    egress.close()


@pytest.mark.parametrize(
    ("etag", "kept"),
    [
        ('"abc"', '"abc"'),
        ('W/"abc"', 'W/"abc"'),
        ("", None),
        ("x" * 30_000, None),
        ('"caf\u00e9"', None),
        ("a\tb", None),
    ],
)
async def test_only_what_could_be_sent_back_is_kept_of_a_validator(
    fetcher: PageFetcher, server: BadServer, etag: str, kept: str | None
) -> None:
    server.answer(
        "/", reply(200, PAGE, [("Content-Type", "text/html"), ("ETag", etag), ("Last-Modified", "x" * 9_999)])
    )
    fetched = await fetch(fetcher, server)
    assert (fetched.etag, fetched.last_modified) == (kept, None)


class LargeSitemaps:
    """A server of large sitemaps. Each is requested twice; the server knows how many are read completely at the same
    time."""

    def __init__(self) -> None:
        self.asked: set[bytes] = set()
        self.read_now = self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b"<urlset><url><loc>http://a.example/</loc></url><!--" + b"x" * 4 * SMALL_BYTES + b"--></urlset>"
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            is_second = path in self.asked
            self.asked.add(path)
            self.read_now += is_second
            self.most = max(self.most, self.read_now)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/xml\r\nConnection: close\r\n\r\n" + body)
            await writer.drain()
            self.read_now -= is_second
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def test_large_sitemaps_are_read_one_after_the_other() -> None:
    site = LargeSitemaps()
    server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
    egress = Egress(AddressRule(allow=(ip_network("127.0.0.0/8"),)))
    fetcher = SitemapFetcher(egress, headers(), Limits())
    told: Told[FetchedSitemap] = Told()
    handles = [
        fetcher.submit(Url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/{number}"), told)
        for number in range(4)
    ]
    handles[3].cancel()
    for settled in (2, 3, 4):  # the one that was cancelled is among them
        await told.at_least(settled)
        fetcher.go_on()
    read = await told.at_least(4)
    assert [fetched.sitemap for fetched in read] == [None] * 4  # a waiting body stays compressed
    for fetched in read:
        fetched.open()
    assert sorted(fetched.listed for fetched in read) == [0, 1, 1, 1]
    assert site.most == 1
    egress.close()
    server.close()


@pytest.mark.parametrize(
    ("link", "canonical"),
    [
        ('<https://e.org/c>; rel="canonical"', "https://e.org/c"),
        ("</c?d>; title=x; REL=Canonical", "{site}/c?d"),
        ('</a>; rel="next", </c>; rel="up canonical"', "{site}/c"),
        ('</a>; rel="next"\r\nLink: </c>;rel=canonical', "{site}/c"),
        ('</caf\u00e9>; rel="canonical"', "{site}/caf\u00e9"),
        ('</c>; rel="noncanonical"', None),
        ('</c>; title="canonical"', None),
        ('<http://[>; rel="canonical"', None),
        ("canonical", None),
    ],
)
async def test_headers_may_name_the_canonical_url(
    fetcher: PageFetcher, server: BadServer, link: str, canonical: str | None
) -> None:
    server.answer("/", reply(200, PAGE, [("Link", link), HTML]))
    server.answer("/file", reply(200, b"%PDF-", [("Link", link), ("Content-Type", "application/pdf")]))
    expected = canonical and canonical.format(site=f"http://127.0.0.1:{server.port}")
    page, file = await fetch(fetcher, server), await fetch(fetcher, server, "/file")
    assert page.facts is not None
    assert (page.facts.canonical, file.canonical) == (expected, expected)


async def test_the_pages_own_canonical_url_counts_before_that_of_its_headers(
    fetcher: PageFetcher, server: BadServer
) -> None:
    body = b'<link rel=canonical href="/own">' + PAGE
    server.answer("/", reply(200, body, [("Link", '</header>; rel="canonical"'), HTML]))
    fetched = await fetch(fetcher, server)
    assert fetched.facts is not None
    assert fetched.facts.canonical == "/own"


@pytest.mark.parametrize(
    ("refresh", "target"),
    [
        ("0; url=/next", "{site}/next"),
        ("5;URL='../x'", "{site}/x"),
        ("0, https://e.org/", "https://e.org/"),
        ("30", None),
    ],
)
async def test_a_refresh_header_is_a_link(
    fetcher: PageFetcher, server: BadServer, refresh: str, target: str | None
) -> None:
    body = b'<base href="https://other.example/">' + PAGE
    server.answer("/a/b", reply(200, body, [("Refresh", refresh), HTML]))
    fetched = await fetch(fetcher, server, "/a/b")
    assert fetched.facts is not None
    added = [] if target is None else [target.format(site=f"http://127.0.0.1:{server.port}")]
    assert fetched.facts.links == ["/x", *added]
