"""Texts in the reader's language: journal entries, explanations of URLs, page errors, and reasons of verdicts."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from shoal.audit.verdict import REASONS as GATE_REASONS
from shoal.base.text import LONGEST, Sentence, message
from shoal.crawl.crawl import TRAP
from shoal.crawl.frontier.explain import UrlExplanation
from shoal.crawl.journal_messages import JournalEntry, sentence_of
from shoal.crawl.states import CrawlState
from shoal.pages.page import Page
from shoal.queue.reasons import PAGE_ERRORS
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


def page_error(code: str | None, written: str | None, formats: Formats) -> str:
    """Return why a page failed: the message in its record, or in other languages, the description of its code."""
    described = PAGE_ERRORS.get(code or "")
    if formats.language.code == ENGLISH.code or described is None:
        return formats.text(written or "", LONGEST)
    text = formats.language(described)
    return f"{text[:1].upper()}{text[1:]}."


def gate_reason(reason: str, formats: Formats) -> str:
    """Return the translated reason of a verdict, or the stored English reason if it has no translation."""
    return formats.sentence(_recognized(reason, GATE_REASONS), LONGEST)


def _recognized(text: str, known: Iterable[str]) -> Sentence:
    """Return an English text as one of the known texts and its values."""
    for one in known:
        if found := _pattern(one).fullmatch(text):
            return Sentence(one, found.groupdict())
    return Sentence(text)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern of a text. Only its last value may contain spaces."""
    parts = re.split("[{}]", text)  # words and names of values alternate
    parts[::2] = [re.escape(words) for words in parts[::2]]
    parts[1::2] = [f"(?P<{name}>[^ ]+)" for name in parts[1:-2:2]] + [f"(?P<{parts[-2]}>.+)"]
    return re.compile("".join(parts), re.DOTALL)


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
