"""The fate of a URL and where it was found, in the reader's language."""

from collections.abc import Mapping
from typing import Final

from shoal.crawl.frontier.explain import UrlExplanation, UrlState
from shoal.pages.page import Page
from shoal.serve.console.format import Formats
from shoal.serve.console.messages import ENGLISH, message

STATES: Final = {
    UrlState.REFUSED: ("failed", message("Refused")),
    UrlState.NEVER_SEEN: ("", message("Not found yet")),
    UrlState.WAITING: ("queued", message("Waiting")),
    UrlState.TAKEN: ("running", message("Being fetched")),
    UrlState.FETCHED: ("completed", message("Fetched")),
    UrlState.FAILED: ("failed", message("Failed")),
    UrlState.QUARANTINED: ("warning", message("In quarantine")),
    UrlState.SKIPPED: ("", message("Skipped")),
}
SENTENCES: Final = {
    UrlState.REFUSED: message("It cannot be crawled."),
    UrlState.NEVER_SEEN: message("The crawl has not found it: it is not a seed, and no page read so far links to it."),
    UrlState.WAITING: message("It is waiting for its turn."),
    UrlState.TAKEN: message("A walker has taken it: it is being fetched."),
    UrlState.QUARANTINED: message("It is in quarantine as a crawler trap."),
}
SKIPS: Final = {
    "depth": message("deeper than the limit"),
    "scope": message("outside the scope"),
    "excluded": message("excluded by a pattern"),
    "not_included": message("not included by a pattern"),
    "robots": message("disallowed by robots.txt"),
    "nofollow": message("marked nofollow"),
    "url_too_long": message("URL too long"),
    "scheme": message("not http or https"),
    "credentials": message("URL with a password"),
    "control_characters": message("URL with control characters"),
    "backslash": message("URL with a backslash"),
    "invalid_url": message("not a valid URL"),
    "repeating_path": message("a path that repeats itself"),
    "too_many_segments": message("a path with too many segments"),
    "host_budget": message("page limit of the host"),
    "not_in_sitemap": message("not in a sitemap"),
}
FACTS: Final[Mapping[str, str]] = {
    "attempts": message("Attempts"),
    "bytes": message("Size"),
    "content_type": message("Content type"),
    "depth": message("Depth"),
    "error": message("Error"),
    "fetched_at": message("Fetched"),
    "final_url": message("Final URL"),
    "parent": message("Linked from"),
    "pattern": message("Pattern"),
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


def origin(page: Page, formats: Formats) -> str:
    """Return how the crawl came to a page."""
    language = formats.language
    if page.parent is not None:
        away = language.plural("{count} link from a seed", "{count} links from a seed", page.depth)
        return language("A link on {url} led to it, {away}.", url=page.parent, away=away)
    return language("It is a seed.") if page.depth == 0 else language("A sitemap lists it.")


def facts_of(explained: UrlExplanation, formats: Formats) -> list[tuple[str, str]]:
    """Return the facts behind an explanation, with their names."""
    found = {name: value for name, value in explained.facts.items() if value not in (None, "")}
    return [(formats.language(FACTS.get(name, name)), formats.text(value, 500)) for name, value in found.items()]
