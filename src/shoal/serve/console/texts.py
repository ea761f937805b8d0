"""Texts about crawls in the reader's language: journal entries, and what became of a URL."""

from collections.abc import Mapping
from typing import Any, Final

from shoal.base.text import LONGEST, message
from shoal.crawl.crawl import TRAP
from shoal.crawl.frontier.explain import UrlExplanation, UrlState
from shoal.crawl.frontier.fates import SKIPS
from shoal.crawl.journal_messages import WORDS, JournalEntry, sentence_of
from shoal.crawl.states import LABELS, CrawlState, reason_text
from shoal.pages.page import Page
from shoal.serve.console.crawl_rows import quarantine_text
from shoal.serve.console.format import ENGLISH, Formats

SEED_FAILED: Final = message("Seed {url} failed ({cause})")


def text_of(entry: JournalEntry, formats: Formats) -> str:
    """Return the message of an entry; in English if it has no translation."""
    language = formats.language
    if language.code == ENGLISH.code:
        return entry.message
    try:
        return _translated(entry, formats)
    except (KeyError, TypeError, ValueError):  # an entry of another version, with other facts
        return entry.message


def _translated(entry: JournalEntry, formats: Formats) -> str:
    language = formats.language
    if entry.event == "seed_failed":  # its message has the error in words, which is not translated
        return language(SEED_FAILED, **entry.facts)
    if entry.event in WORDS:
        return formats.sentence(sentence_of(entry.event, entry.facts), LONGEST)
    if entry.event.startswith("crawl_") and "pages" in entry.facts:
        return _end(entry, formats)
    plain, _, rest = entry.message.partition(" (")
    if plain not in language.texts:
        return entry.message
    reason = _reason(entry.facts, formats) if rest else ""
    return f"{language(plain)} ({reason})" if reason else language(plain)


def _end(entry: JournalEntry, formats: Formats) -> str:
    language, facts, state = formats.language, entry.facts, CrawlState(entry.event.removeprefix("crawl_"))
    pages = language.plural("{count} page", "{count} pages", int(facts["pages"]))
    errors = language.plural("{count} error", "{count} errors", int(facts["errors"]))
    reason = _reason(facts, formats)
    held = facts.get("skipped", {}).get(TRAP, 0)
    left = f". {quarantine_text(held, state, language)}" if held else ""
    return f"{language(LABELS[state])}: {pages}, {errors}" + (f" ({reason})" if reason else "") + left


def _reason(facts: dict[str, Any], formats: Formats) -> str:
    return formats.language(reason_text(facts.get("reason")))


SENTENCES: Final = {
    UrlState.REFUSED: message("It cannot be crawled."),
    UrlState.NEVER_SEEN: message("The crawl has not found it: it is not a seed, and no page read so far links to it."),
    UrlState.WAITING: message("It is waiting for its turn."),
    UrlState.TAKEN: message("A walker has taken it: it is being fetched."),
    UrlState.QUARANTINED: message("It is in quarantine as a crawler trap."),
}
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


def why(explained: UrlExplanation, formats: Formats) -> str:
    """Return why a URL was fetched or not. English has the most precise sentences; they name patterns and limits."""
    language, facts = formats.language, explained.facts
    if language.code == ENGLISH.code:
        return explained.sentence
    if explained.state in SENTENCES:
        return language(SENTENCES[explained.state])
    if explained.state is UrlState.SKIPPED:
        reason = explained.reason or ""
        return language("It was skipped: {reason}.", reason=language(SKIPS.get(reason, reason)))
    tries = language.plural("{count} attempt", "{count} attempts", facts.get("attempts") or 1)
    if explained.state is UrlState.FAILED:
        return language("It failed after {tries}: {error}", tries=tries, error=facts.get("error") or explained.reason)
    return language("It was fetched with status {status}, after {tries}.", status=facts.get("status"), tries=tries)


def origin(page: Page, formats: Formats, *, is_linked: bool) -> str:
    """Return how the crawl came to a page: along a link on its parent, or because its parent, a sitemap, lists it."""
    language = formats.language
    if is_linked:
        return language("A link on {url} led to it, at depth {depth}.", url=page.parent, depth=page.depth)
    return language("It is a seed.") if page.depth == 0 else language("A sitemap lists it.")


def facts_of(explained: UrlExplanation, formats: Formats) -> list[tuple[str, str]]:
    """Return the facts behind an explanation, with their names."""
    found = {name: value for name, value in explained.facts.items() if value not in (None, "")}
    if hops := found.get("redirects"):
        found["redirects"] = ", ".join(f"{hop['url']} ({hop['status']})" for hop in hops)
    return [(formats.language(FACTS.get(name, name)), formats.text(value, 500)) for name, value in found.items()]
