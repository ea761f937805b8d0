"""The data that a crawl collects: pages, links, traps, journal entries, and the reasons why URLs were fetched or
not."""

from typing import Annotated, Any, ClassVar, Self

from msgspec.structs import asdict

from shoal.base.request_form import describe
from shoal.crawl.frontier.explain import UrlExplanation, UrlState
from shoal.crawl.frontier.fates import TrapState
from shoal.pages import page as pages
from shoal.serve.resources.crawl import Crawl
from shoal.serve.resources.resource import Moment, NextLater, NextPage, Resource


class Redirect(Resource, kw_only=True):
    url: Annotated[str, describe("URL that redirected.")]
    status: Annotated[int, describe("Status of the redirect.")]


class PageError(Resource, kw_only=True):
    code: Annotated[str, describe("Stable code of the error.")]
    message: Annotated[str | None, describe("The error in one sentence.")]


class PageRecord(Resource, kw_only=True):
    """The data found at one URL."""

    crawl_id: Annotated[str | None, describe("Crawl that fetched the URL; null for a scrape.")]
    url: Annotated[str, describe("The requested URL.")]
    final_url: Annotated[str | None, describe("URL after redirects.")]
    status: Annotated[int | None, describe("HTTP status of the last response; null if there was none.")]
    depth: Annotated[
        int,
        describe(
            "Number of links on the first path that the crawl found from a seed to the page; 1 for a URL from a"
            " sitemap."
        ),
    ]
    parent: Annotated[str | None, describe("The page on which the URL was first found.")]
    content_type: Annotated[str | None, describe("The Content-Type header as sent.")]
    encoding: Annotated[str | None, describe("Character encoding that was used to decode the page.")]
    bytes: Annotated[int, describe("Size of the body as sent, before content decoding.")]
    title: Annotated[str | None, describe("Title of the page.")]
    description: Annotated[str | None, describe("Meta description.")]
    canonical: Annotated[str | None, describe("Canonical URL, as written in the page or in its Link header.")]
    robots: Annotated[str | None, describe("Robots directives of the page and of the X-Robots-Tag header.")]
    lang: Annotated[str | None, describe("Language of the page.")]
    h1: Annotated[str | None, describe("First heading of level 1.")]
    word_count: Annotated[int | None, describe("Number of words in the visible text.")]
    content_hash: Annotated[str | None, describe("Content hash of the decoded body.")]
    links_internal: Annotated[int | None, describe("Number of distinct pages in scope that the page links to.")]
    links_external: Annotated[int | None, describe("Number of distinct pages out of scope that the page links to.")]
    redirects: Annotated[list[Redirect], describe("The redirects, in order.")]
    fetched_at: Annotated[Moment, describe("When the page was fetched.")]
    duration_ms: Annotated[float | None, describe("Duration of the last request in milliseconds.")]
    attempt: Annotated[int, describe("Number of this attempt.")]
    rendered: Annotated[bool, describe("Whether a browser rendered the page.")]
    render_wait: Annotated[
        pages.RenderWait | None,
        describe(
            "How the wait for the rendered page ended: the page settled, the selector matched, or the time was up."
        ),
    ]
    error: Annotated[
        PageError | None, describe("The error, if there was one; a page can have both a status and an error.")
    ]
    data: Annotated[dict[str, Any] | None, describe("Data extracted by the rule set.")]

    example: ClassVar = {
        "crawl_id": None,
        "url": "https://example.com/about",
        "final_url": "https://example.com/about",
        "status": 200,
        "depth": 1,
        "parent": "https://example.com/",
        "content_type": "text/html; charset=utf-8",
        "encoding": "utf-8",
        "bytes": 5120,
        "title": "About us",
        "description": None,
        "canonical": None,
        "robots": None,
        "lang": "en",
        "h1": "About us",
        "word_count": 310,
        "content_hash": "8f3a1c0b7d2e49566f0a1b2c3d4e5f60",
        "links_internal": 14,
        "links_external": 2,
        "redirects": [],
        "fetched_at": "2026-03-01T09:00:04Z",
        "duration_ms": 84.2,
        "attempt": 1,
        "rendered": False,
        "render_wait": None,
        "error": None,
        "data": None,
    }


class Page(PageRecord, kw_only=True):
    """The record of one fetched URL of a crawl."""

    crawl_id: str
    number: Annotated[int, describe("Number of the page in its crawl, for `/pages/{number}/content`.")]

    example: ClassVar = PageRecord.example | {"crawl_id": Crawl.example["id"], "number": 12}

    @classmethod
    def of(cls, page: pages.Page, crawl_id: str, number: int) -> Self:
        return cls(**page.record(crawl_id), number=number)


class PageList(Resource, kw_only=True):
    items: list[Page]
    next: NextLater

    example: ClassVar = {"items": [Page.example], "next": "MTIw"}


class PageLink(Resource, kw_only=True, rename={"source": "from", "target": "to"}):
    """A link from a page to a URL."""

    source: Annotated[str, describe("URL of the page, as in its record.")]
    target: Annotated[str, describe("Canonical form of the URL that the page links to.")]
    text: Annotated[
        str | None, describe("Text of the link or of the image in it; null if the crawl does not store it.")
    ]
    rel: Annotated[str | None, describe("The attribute `rel`; null if the crawl does not store it.")]
    nofollow: Annotated[bool, describe("Whether the link, or its whole page, is marked nofollow.")]
    kind: Annotated[str | None, describe("Kind of the link; null if the crawl does not store it.")]
    status: Annotated[
        int | None, describe("Status in the page record of the target; null if the target has no record or no status.")
    ]
    error: Annotated[str | None, describe("Error code in the page record of the target, if there is one.")]

    example: ClassVar = {
        "from": "https://example.com/",
        "to": "https://example.com/about",
        "text": "About us",
        "rel": "",
        "nofollow": False,
        "kind": "a",
        "status": 200,
        "error": None,
    }


class PageLinkList(Resource, kw_only=True):
    items: list[PageLink]
    next: NextLater
    stored: Annotated[bool, describe("Whether the crawl stores text, rel and kind of links (option `links`).")]

    example: ClassVar = {"items": [PageLink.example], "next": "MTIuMA", "stored": True}


class Trap(Resource, kw_only=True):
    """A URL pattern whose pages repeat the same content."""

    pattern: Annotated[str, describe("The URL pattern.")]
    state: TrapState
    sample: Annotated[str, describe("A URL that matches the pattern.")]
    count: Annotated[int, describe("Number of quarantined URLs.")]

    example: ClassVar = {
        "pattern": "https://example.com/calendar?month=&year=",
        "state": "quarantined",
        "sample": "https://example.com/calendar?month=7&year=2093",
        "count": 240,
    }


class TrapList(Resource, kw_only=True):
    items: list[Trap]
    next: NextPage

    example: ClassVar = {"items": [Trap.example], "next": None}


class TrapReleased(Resource, kw_only=True):
    """A URL pattern after its release from quarantine."""

    crawl_id: str
    pattern: Annotated[str, describe("The URL pattern.")]
    released: Annotated[int, describe("Number of URLs that are queued again.")]

    example: ClassVar = {"crawl_id": Crawl.example["id"], "pattern": Trap.example["pattern"], "released": 240}


class JournalEntry(Resource, kw_only=True):
    """An entry of a crawl's journal. Further fields depend on the event."""

    timestamp: Annotated[Moment, describe("When it happened.")]
    level: Annotated[str, describe("info, warning or error.")]
    event: Annotated[str, describe("Stable name of the event.")]
    msg: Annotated[str, describe("Human-readable message.")]
    crawl_id: str
    number: Annotated[int, describe("Position in the journal.")]

    example: ClassVar = {
        "timestamp": "2026-03-01T09:00:07Z",
        "level": "info",
        "event": "depth_finished",
        "msg": "Depth 1 finished",
        "crawl_id": Crawl.example["id"],
        "number": 12,
    }


class JournalEntryList(Resource, kw_only=True):
    items: list[JournalEntry]
    next: NextLater

    example: ClassVar = {"items": [JournalEntry.example], "next": "MTI"}


class UrlExplained(Resource, kw_only=True):
    """The state of a URL in a crawl, and the reason. Further fields depend on the reason."""

    open_fields: ClassVar = True
    crawl_id: str
    url: Annotated[str, describe("The URL in canonical form.")]
    state: UrlState
    reason: Annotated[str | None, describe("Stable name of the reason, if there is one.")]
    explanation: Annotated[str, describe("The reason in one sentence.")]

    example: ClassVar = {
        "crawl_id": Crawl.example["id"],
        "url": "https://example.com/calendar/2031",
        "state": "skipped",
        "reason": "excluded",
        "explanation": "It matches the exclude pattern `/calendar/`.",
    }

    @classmethod
    def with_facts(cls, crawl_id: str, found: UrlExplanation) -> dict[str, Any]:
        """Return the fields of the explanation with the details of its reason."""
        return asdict(cls.of(found, crawl_id=crawl_id, explanation=str(found.sentence))) | found.facts
