"""Texts about crawls in the reader's language: journal entries, and explanations of URLs."""

from collections.abc import Mapping
from typing import Final

from shoal.base.text import LONGEST, message
from shoal.crawl.crawl import TRAP
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.journal_messages import JournalEntry, sentence_of
from shoal.crawl.states import CrawlState
from shoal.pages.page import Page
from shoal.serve.console.crawl_rows import quarantine_text
from shoal.serve.console.format import ENGLISH, Formats


def text_of(entry: JournalEntry, formats: Formats) -> str:
    """Return the translated message of an entry, or its English message if it has no translation."""
    if formats.language.code == ENGLISH.code:
        return entry.message
    try:
        words = formats.sentence(sentence_of(entry), LONGEST)
    except (KeyError, TypeError, ValueError):  # an entry of a different version, with different fields
        return entry.message
    held = entry.facts.get("skipped", {}).get(TRAP, 0) if "pages" in entry.facts else 0
    state = entry.event.removeprefix("crawl_")
    return f"{words}. {quarantine_text(held, CrawlState(state), formats.language)}" if held else words


FACTS: Final[Mapping[str, str]] = {
    "attempts": message("Attempts"),
    "bytes": message("Size"),
    "content_type": message("Content type"),
    "depth": message("Found at depth"),
    "error": message("Error"),
    "fetched_at": message("Fetched"),
    "final_url": message("Final URL"),
    "parent": message("Linked from"),
    "pattern": message("Pattern"),
    "redirects": message("Redirects"),
    "redirects_to": message("Redirects to"),
    "sitemap": message("Sitemap"),
    "status": message("Status"),
    "via": message("Redirected from"),
}


def origin(page: Page, formats: Formats, *, is_linked: bool) -> str:
    """Return a sentence on how the crawl found a page: by a link on its parent page, or in its parent sitemap."""
    language = formats.language
    if is_linked:
        return language("It was found by a link on {url}, at depth {depth}.", url=page.parent, depth=page.depth)
    return language("It is a seed.") if page.depth == 0 else language("A sitemap lists it.")


def facts_of(explained: UrlExplanation, formats: Formats) -> list[tuple[str, str]]:
    """Return the details of an explanation with their labels."""
    found = {name: value for name, value in explained.facts.items() if value not in (None, "")}
    if hops := found.get("redirects"):
        found["redirects"] = ", ".join(f"{hop['url']} ({hop['status']})" for hop in hops)
    return [(formats.language(FACTS.get(name, name)), formats.text(value, 500)) for name, value in found.items()]
