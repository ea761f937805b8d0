"""Copies the results of a fetch to a page record. Links are not handled here, because their meaning depends on the
crawl."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from shoal.egress import Hop
from shoal.extract.page import PageFacts, combined
from shoal.pages.page import Page
from shoal.web.page_fetcher import Fetched

if TYPE_CHECKING:  # few crawls need more than the basic facts
    from shoal.extract.optional_facts import OptionalFacts


def response_to_page(fetched: Fetched, page: Page) -> None:
    """Copy the response or the failure to the page record."""
    page.final_url = fetched.loops_to or fetched.final_url
    page.status = fetched.status
    page.content_type = fetched.content_type
    page.bytes = fetched.bytes
    page.etag = fetched.etag
    page.last_modified = fetched.last_modified
    page.duration_ms = round(fetched.seconds * 1000, 3)
    page.rendered = fetched.rendered
    page.render_wait = fetched.render_wait
    page.robots = fetched.robots
    page.canonical = fetched.canonical
    page.redirects = shown_hops(fetched.redirects)
    if fetched.failure is not None:
        page.error_code = fetched.failure.code
        page.error_message = fetched.failure.message


def facts_to_page(fetched: Fetched, facts: PageFacts, page: Page) -> None:
    """Copy the facts of a page to its record. Response headers may add robots directives."""
    page.encoding = facts.encoding
    page.title = facts.title
    page.description = facts.description
    page.canonical = facts.canonical
    page.robots = combined(facts.robots, fetched.robots) if fetched.robots else facts.robots
    page.lang = facts.lang
    page.h1 = facts.h1
    page.word_count = facts.word_count
    page.content_hash = facts.content_hash
    page.text_hash = facts.text_hash
    page.flags = int(facts.flags)


def further_to_page(further: "OptionalFacts", page: Page) -> None:
    """Copy optional facts to the record. An error in the data becomes the page's error, unless the page already has an
    error."""
    page.data = further.data
    page.fingerprint = further.fingerprint
    page.detail = further.detail
    page.outlinks = further.outlinks
    if page.error_code is None and further.error_code is not None:
        page.error_code = further.error_code
        page.error_message = further.error_message


def shown_hops(hops: Iterable[Hop]) -> list[dict[str, Any]]:
    return [{"url": hop.url, "status": hop.status} for hop in hops]
