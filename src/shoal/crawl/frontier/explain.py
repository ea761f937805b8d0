"""Explain in words what became of a URL. Pure code: it gets the crawl and what the store knows about the URL."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from shoal.base.clock import moment
from shoal.base.text import message, plural
from shoal.base.url import Url, UrlRefusal, hostname, origin, registrable_domain
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.engine.budget import BUDGETS
from shoal.crawl.frontier.admin_store import UrlFacts, Waiting
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import is_area, pattern_of
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord
from shoal.crawl.scope import MAX_REPEATS, MAX_SEGMENTS, CrawlScope, seeds_of
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.url_patterns import matching
from shoal.extract.flags import names_of

MOST_BORDERS = 5
MOST_QUOTED = 20  # patterns
UNREAD = "the links of unchanged pages were not read again"


class UrlState(StrEnum):
    """The state of a URL as the API and the CLI show it."""

    REFUSED = "refused"  # not a URL that a crawl can fetch
    NEVER_SEEN = "never_seen"
    WAITING = "waiting"
    TAKEN = "taken"
    FETCHED = "fetched"
    FAILED = "failed"
    QUARANTINED = "quarantined"
    SKIPPED = "skipped"


LABELS = {
    UrlState.REFUSED: message("Refused"),
    UrlState.NEVER_SEEN: message("Not found yet"),
    UrlState.WAITING: message("Waiting"),
    UrlState.TAKEN: message("Being fetched"),
    UrlState.FETCHED: message("Fetched"),
    UrlState.FAILED: message("Failed"),
    UrlState.QUARANTINED: message("In quarantine"),
    UrlState.SKIPPED: message("Skipped"),
}


@dataclass(frozen=True, slots=True)
class UrlExplanation:
    """The explanation of a URL's fate: a state, a reason with a stable name, a sentence, and the facts behind them."""

    url: str
    state: UrlState
    reason: str | None
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)


def explain_refusal(text: str, refusal: UrlRefusal) -> UrlExplanation:
    return UrlExplanation(text, UrlState.REFUSED, refusal.code, f"It cannot be crawled: it {refusal.problem}.")


def explain_url(crawl: Crawl, url: Url, facts: UrlFacts | None) -> UrlExplanation:
    """Explain what became of the URL in this crawl."""
    if facts is None:
        return UrlExplanation(url, UrlState.NEVER_SEEN, None, _never_seen(crawl, url))
    if facts.target is not None:
        return _redirected_to(crawl, url, facts.target, facts.source)
    if facts.fate is Fate.OPEN:
        return _open(crawl, url, facts.waiting)
    if facts.fate is Fate.QUARANTINED:
        return _quarantined(url, facts.trap or pattern_of(url), facts.waiting)
    if facts.sitemap is not None:
        return _sitemap(url, facts.fate, facts.sitemap)
    if facts.fate.skipped:
        return UrlExplanation(url, UrlState.SKIPPED, facts.fate.word, _skipped(crawl.config, url, facts.fate))
    return _settled(url, facts)


def found_in_sitemap(explanation: UrlExplanation, sitemap: str) -> UrlExplanation:
    """Say that a sitemap led to the URL."""
    sentence = f"{explanation.sentence} It was found in the sitemap {sitemap}."
    return replace(explanation, sentence=sentence, facts=explanation.facts | {"sitemap": sitemap})


def explained_by_previous(explanation: UrlExplanation, earlier: Crawl, then: UrlExplanation) -> UrlExplanation:
    """Say what an earlier crawl knows about a URL that this one never saw."""
    what = (
        "it was skipped: " + then.sentence
        if then.state is UrlState.SKIPPED
        else then.sentence[:1].lower() + then.sentence[1:]
    )
    sentence = f"The crawl has not found it; {UNREAD}. In crawl {earlier.id}, which this one recrawls, {what}"
    known = {"earlier_crawl": earlier.id, "earlier_state": then.state.value, "earlier_reason": then.reason}
    return replace(explanation, sentence=sentence, facts=explanation.facts | known)


def _redirected_to(crawl: Crawl, url: Url, target: RedirectTarget, source: UrlFacts | None) -> UrlExplanation:
    """Explain a URL that another one redirects to, and which therefore has no page of its own."""
    via, facts = Url(target.via), {"via": target.via}
    if target.fate.skipped:
        sentence = f"{via} redirects to it. {_skipped(crawl.config, url, target.fate)}"
        return UrlExplanation(url, UrlState.SKIPPED, target.fate.word, sentence, facts)
    there = explain_url(crawl, via, source)
    facts |= {name: value for name, value in there.facts.items() if name not in ("parent", "kind")}
    if there.state in (UrlState.WAITING, UrlState.TAKEN):
        sentence = f"{via} redirects to it, and the target is fetched under that URL. {there.sentence}"
        return UrlExplanation(url, there.state, "redirect", sentence, facts)
    if target.fate is Fate.FAILED:
        sentence = f"It was requested via {via}, which redirects to it: {there.sentence}"
        return UrlExplanation(url, UrlState.FAILED, there.reason or "redirect", sentence, facts)
    sentence = f"It was fetched via {via}, which redirects to it and has the page record. {there.sentence}"
    return UrlExplanation(url, UrlState.FETCHED, "redirect", sentence, facts)


def _sitemap(url: Url, fate: Fate, record: SitemapRecord) -> UrlExplanation:
    facts: dict[str, Any] = {
        "kind": "sitemap",
        "status": record.status,
        "listed": record.listed,
        "problem": record.problem,
    }
    facts["fetched_at"] = moment(record.fetched_at)
    if fate is Fate.FAILED:
        sentence = f"It was requested as a sitemap at {_at(record.fetched_at)}, and {record.problem}."
        return UrlExplanation(url, UrlState.FAILED, "sitemap", sentence, facts)
    but = f", but {record.problem}" if record.problem else ""
    sentence = f"It was read as a sitemap at {_at(record.fetched_at)} and listed {plural(record.listed, 'URL')}{but}."
    return UrlExplanation(url, UrlState.FETCHED, "sitemap", sentence, facts)


def _never_seen(crawl: Crawl, url: Url) -> str:
    sentence = "The crawl has not found it: it is not a seed, and no page read so far links to it"
    sentence += f"; {UNREAD}." if crawl.config.recrawl_of else "."
    judged = CrawlScope(crawl.config, seeds_of(crawl.config)).judge(url, 0)
    return sentence if judged is Fate.OPEN else f"{sentence} It would be skipped. {_skipped(crawl.config, url, judged)}"


def _open(crawl: Crawl, url: Url, waiting: Waiting | None) -> UrlExplanation:
    facts = {} if waiting is None else _open_facts(waiting)
    if crawl.state in TERMINAL:
        reason = "budget" if crawl.state_reason in BUDGETS else crawl.state.value
        why = f", {crawl.state_reason}" if crawl.state_reason else ""
        sentence = f"It was still queued when the crawl ended ({crawl.state}{why})."
        return UrlExplanation(url, UrlState.SKIPPED, reason, sentence, facts)
    if waiting is not None and waiting.taken_by is not None:
        sentence = "A walker has taken it: it is being fetched, and is queued again if that walker is lost."
        return UrlExplanation(url, UrlState.TAKEN, None, _redirects(waiting) + sentence, facts)
    sentence = _redirects(waiting) + _waits(crawl, waiting)
    return UrlExplanation(url, UrlState.WAITING, _why_waiting(crawl, waiting), sentence, facts)


def _redirects(waiting: Waiting | None) -> str:
    """Say where a page that is still open has redirected to so far."""
    target = None if waiting is None else waiting.kept.target
    return f"It redirects to {target}, which is fetched in its place. " if target is not None else ""


def _quarantined(url: Url, pattern: str, waiting: Waiting | None) -> UrlExplanation:
    why = "only lead to ever more pages" if is_area(pattern) else "repeat each other, or lead to ever more pages"
    sentence = f"It is in quarantine as a crawler trap: pages of the pattern {pattern} {why}."
    known = {} if waiting is None else {"depth": waiting.kept.depth, "parent": waiting.parent_url}
    return UrlExplanation(url, UrlState.QUARANTINED, "trap", sentence, {"pattern": pattern, **known})


def _why_waiting(crawl: Crawl, waiting: Waiting | None) -> str:
    if crawl.state is not CrawlState.RUNNING:
        return crawl.state.value
    if waiting is not None and waiting.held is not None:
        return "host_held"
    return "retry" if waiting is not None and waiting.kept.attempts else "turn"


def _waits(crawl: Crawl, waiting: Waiting | None) -> str:
    match _why_waiting(crawl, waiting):
        case "host_held":
            assert waiting is not None
            assert waiting.held is not None
            until = _at(waiting.held.until)
            return f"Its host answered {waiting.held.status}, so it is on hold: no request before {until}."
        case "retry":
            assert waiting is not None
            tries, due = plural(waiting.kept.attempts, "attempt"), _at(waiting.kept.due)
            return f"It is waiting for a retry, not before {due}, after {tries}."
        case "turn":
            return "It is waiting for its turn: URLs near the seeds come first, and each host has a rate limit."
        case CrawlState.PAUSED | CrawlState.PAUSING:
            return f"It is waiting: the crawl is {crawl.state}. Resume it with `shoal crawls resume {crawl.id}`."
        case CrawlState.QUEUED:
            return "It is waiting: the crawl is queued, and no worker has started it."
        case state:
            return f"It is waiting: the crawl is {state}."


def _open_facts(waiting: Waiting) -> dict[str, Any]:
    facts = {
        "kind": waiting.kept.kind.name.lower(),
        "depth": waiting.kept.depth,
        "parent": waiting.parent_url,
        "attempts": waiting.kept.attempts,
        "crashes": waiting.kept.crashes,
        "due_at": moment(waiting.kept.due or None),
        "host_ready_at": moment(waiting.host_ready_at or None),
    }
    if waiting.kept.target is not None:
        facts["redirects_to"] = waiting.kept.target
    if waiting.held is not None:
        facts["host_held_until"], facts["host_status"] = moment(waiting.held.until), waiting.held.status
    if waiting.taken_by is not None:
        facts["job_id"], facts["epoch"] = waiting.taken_by.job_id, waiting.taken_by.epoch
    return facts


def _settled(url: Url, facts: UrlFacts) -> UrlExplanation:
    state = UrlState.FETCHED if facts.fate is Fate.FETCHED else UrlState.FAILED
    page = facts.page
    if page is None:
        return UrlExplanation(url, state, None, f"It was {state}; the page has no record.")
    known: dict[str, Any] = {
        "depth": page.depth,
        "parent": page.parent,
        "status": page.status,
        "final_url": page.final_url,
    }
    known |= {"content_type": page.content_type, "bytes": page.bytes, "attempts": page.attempt}
    known |= {"fetched_at": moment(page.fetched_at), "error": page.error_message}
    if page.flags:
        known["flags"] = ", ".join(names_of(page.flags))
    tries = plural(page.attempt, "attempt")
    if state is UrlState.FAILED:
        why = f"{page.error_code}: {page.error_message}" if page.error_code else "unknown reason"
        return UrlExplanation(url, state, page.error_code, f"It failed after {tries} ({why}).", known)
    sentence = f"It was fetched at {_at(page.fetched_at)} with status {page.status}, after {tries}."
    if page.redirects and page.answered_at != page.final_url:
        sentence += f" It redirects to {page.final_url}, which is listed separately."
    elif page.redirects:
        sentence += f" It redirects to {page.final_url}."
    return UrlExplanation(url, state, page.error_code, sentence, known)


def _at(micros: int) -> str:
    when = moment(micros)
    assert when is not None
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


def _skipped(config: CrawlConfig, url: Url, fate: Fate) -> str:
    match fate:
        case Fate.SKIPPED_DEPTH:
            if config.depth is None:
                return "Each path on which it was found had more links than the depth limit, which was removed since."
            limit = plural(config.depth, "link")
            return f"Each path on which it was found has more than {limit}, which is the crawl's depth limit."
        case Fate.SKIPPED_SCOPE:
            return f"It is outside the crawl's scope `{config.scope}`: {_border(config)}."
        case Fate.SKIPPED_EXCLUDED:
            return f"It matches the exclude pattern {_quoted(matching(config.exclude, url) or config.exclude)}."
        case Fate.SKIPPED_NOT_INCLUDED:
            return f"It matches none of the include patterns {_quoted(config.include)}."
        case Fate.SKIPPED_REPEATING_PATH:
            return f"A segment of its path occurs more than {MAX_REPEATS} times; such paths are usually endless."
        case Fate.SKIPPED_TOO_MANY_SEGMENTS:
            return f"Its path has more than {MAX_SEGMENTS} segments; such paths are usually endless."
        case _:
            return PLAIN.get(fate, f"It was skipped ({fate.word}).")


PLAIN = {
    Fate.SKIPPED_ROBOTS: "The robots.txt of its host forbids it.",
    Fate.SKIPPED_NOFOLLOW: "Every page that links to it uses nofollow.",
    Fate.SKIPPED_URL_TOO_LONG: "It is longer than the limit (SHOAL_MAX_URL).",
    Fate.SKIPPED_SCHEME: "Its scheme is not http or https.",
    Fate.SKIPPED_CREDENTIALS: "It contains a user name or a password.",
    Fate.SKIPPED_CONTROL_CHARACTERS: "It contains control characters.",
    Fate.SKIPPED_BACKSLASH: "It contains a backslash.",
    Fate.SKIPPED_INVALID_URL: "It is not a valid URL.",
    Fate.SKIPPED_NOT_IN_SITEMAP: "Only URLs in sitemaps are fetched, and no sitemap read so far lists it.",
    Fate.SKIPPED_HOST_BUDGET: "The crawl has reached its maximum number of pages for this host.",
}


def _border(config: CrawlConfig) -> str:
    seeds = seeds_of(config)
    match config.scope:
        case "page":
            inside = [f"only {seed}" for seed in seeds]
        case "prefix":
            inside = [f"only URLs that begin with {seed.partition('?')[0].rpartition('/')[0]}/" for seed in seeds]
        case "domain":
            inside = [f"only {registrable_domain(hostname(seed))} and its subdomains" for seed in seeds]
        case _:
            inside = [f"only {origin(seed)}" for seed in seeds]
    distinct = list(dict.fromkeys(inside))
    more = f", and {len(distinct) - MOST_BORDERS} more" if len(distinct) > MOST_BORDERS else ""
    return f"{', '.join(distinct[:MOST_BORDERS])}{more}, and the targets of redirected seeds, are in scope"


def _quoted(patterns: list[str]) -> str:
    more = f" and {len(patterns) - MOST_QUOTED} more" if len(patterns) > MOST_QUOTED else ""
    return ", ".join(f"`{pattern}`" for pattern in patterns[:MOST_QUOTED]) + more
