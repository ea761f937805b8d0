"""The result of a scrape: the record of the page, and its content in the requested formats."""

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from shoal.base.clock import from_micros
from shoal.base.errors import TimeError
from shoal.base.parsing import show_size
from shoal.base.text import json_of
from shoal.base.url import DEFAULT_RULES, Canonicalizer, Url, UrlRefusal, origin
from shoal.egress import Failure, Limits
from shoal.extract.converter import Converter, UnconvertedPage
from shoal.extract.encoding import with_encoded_queries
from shoal.extract.page import PageFacts
from shoal.page_jobs.spec import ScrapeFormat
from shoal.pages.bodies import source_from
from shoal.pages.page import Page
from shoal.web.page_fetcher import Fetched
from shoal.web.page_record import facts_to_page, response_to_page


def document_of(url: str, fetched: Fetched, at: int) -> dict[str, Any]:
    """Return the record of a page, without content. It belongs to no crawl."""
    page = Page(url=url, depth=0, fetched_at=at, attempt=1)
    response_to_page(fetched, page)
    if fetched.facts is not None:
        facts_to_page(fetched, fetched.facts, page)
        _count_links(fetched.facts, page)
    return document(page)


def _count_links(facts: PageFacts, page: Page) -> None:
    """Count the links of a page in the way in which a crawl of its host counts them."""
    urls = Canonicalizer(DEFAULT_RULES)
    final = urls.canonical(page.final_url or page.url)
    if isinstance(final, UrlRefusal):
        return
    written = with_encoded_queries(facts.links, facts.encoding) if facts.encoding != "utf-8" else facts.links
    found = {url for url in urls.resolve(urls.base(final, facts.base), written) if isinstance(url, str)}
    ours = (f"{origin(Url(page.url))}/", f"{origin(final)}/")
    page.links_internal = sum(url.startswith(ours) for url in found)
    page.links_external = len(found) - page.links_internal


def document(page: Page) -> dict[str, Any]:
    """Return the fields of a scrape that describe its page, as the API shows them."""
    record = page.record(None) | {"fetched_at": from_micros(page.fetched_at).isoformat().replace("+00:00", "Z")}
    return {"page": record, "content": {}, "is_cut": False}


async def add_content(
    document: dict[str, Any],
    formats: Sequence[ScrapeFormat],
    fetched: Fetched,
    screenshot: bytes | None,
    limits: Limits,
    most: int,
    converter: Converter,
) -> Failure | None:
    """Add the content of a fetched page; if that fails, add the error to the page record and return the failure."""
    record: dict[str, Any] = document["page"]
    captured = fetched.captured[0]
    source = await asyncio.to_thread(source_from, captured.response, captured.rendered or None, limits)
    if isinstance(source, Failure):
        problem = source
    else:
        wanted = [name for name in formats if name != "screenshot"]
        page = UnconvertedPage(source.url, source.body, source.content_type, wanted, record["robots"], as_json=True)
        try:
            converted = await converter.convert(page)
        except TimeError as error:
            problem = Failure("content_failed", error.message, retryable=False, url=source.url)
        else:
            found = converted.content | {"json": json_of(record)}
            if screenshot is not None:
                found["screenshot"] = await asyncio.to_thread(lambda: json_of(b64encode(screenshot).decode()))
            content = {name: orjson.Fragment(found[name]) for name in formats if name in found}
            size = sum(len(name) + len(found[name]) for name in content)
            if size <= most:
                document.update(content=content, is_cut=converted.is_cut)
                return None
            message = (
                f"The content is {show_size(size)} large, more than {show_size(most)}; request fewer formats, or "
                "ask the operator to raise SHOAL_MAX_RESULT."
            )
            problem = Failure("content_too_large", message, retryable=False, url=source.url)
    record["error"] = {"code": problem.code, "message": problem.message}
    return problem
