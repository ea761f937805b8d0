"""Explains the fate of a URL in words. Pure code: the caller passes the crawl and the stored data of the URL."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from msgspec import structs

from shoal.base.clock import moment
from shoal.base.text import Sentence, joined, message
from shoal.base.url import Url, UrlRefusal, canonical, hostname, origin, registrable_domain
from shoal.crawl.crawl import BUDGETS, Crawl, CrawlConfig
from shoal.crawl.frontier.admin_store import UrlFacts, Waiting
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.traps import is_area, pattern_of
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord
from shoal.crawl.scope import MAX_REPEATS, MAX_SEGMENTS, CrawlScope, seeds_of
from shoal.crawl.states import LABELS as LABELS_OF_CRAWLS
from shoal.crawl.states import TERMINAL, CrawlState
from shoal.crawl.url_patterns import matching
from shoal.extract.flags import names_of
from shoal.pages.page import Page

MOST_BORDERS = 5
MOST_QUOTED = 20  # maximum number of patterns in a sentence
MOST_HOPS = 20  # maximum number of a page's redirects in a sentence


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
    """The explanation of a URL's fate: a state, a reason with a stable name, a sentence, and the values that they are
    based on."""

    url: str
    state: UrlState
    reason: str | None
    sentence: Sentence
    facts: dict[str, Any] = field(default_factory=dict)


def explain_refusal(text: str, refusal: UrlRefusal) -> UrlExplanation:
    words = message("It cannot be crawled: it {problem}.")
    sentence = Sentence(words, {"problem": Sentence(refusal.problem)})
    return UrlExplanation(text, UrlState.REFUSED, refusal.code, sentence)


def explain_url(crawl: Crawl, url: Url, facts: UrlFacts | None) -> UrlExplanation:
    """Explain the fate of the URL in this crawl."""
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
        return UrlExplanation(url, UrlState.SKIPPED, facts.fate.word, skipped_by(crawl.config, url, facts.fate))
    return _settled(url, facts)


def found_in_sitemap(explanation: UrlExplanation, sitemap: str) -> UrlExplanation:
    """Add to an explanation that a sitemap led to the URL."""
    found = Sentence(message("It was found in the sitemap {sitemap}."), {"sitemap": sitemap})
    sentence = joined([explanation.sentence, found])
    return replace(explanation, sentence=sentence, facts=explanation.facts | {"sitemap": sitemap})


def explained_by_previous(explanation: UrlExplanation, earlier: Crawl, then: UrlExplanation) -> UrlExplanation:
    """Add the explanation from an earlier crawl for a URL that this crawl never saw."""
    what = structs.replace(then.sentence, is_clause=True)
    if then.state is UrlState.SKIPPED:
        what = Sentence(message("it was skipped: {reason}"), {"reason": then.sentence})
    unread = Sentence(message("The crawl has not found it; the links of unchanged pages were not read again."))
    recrawled = Sentence(
        message("In crawl {crawl}, which this crawl repeats, {what}"), {"crawl": earlier.id, "what": what}
    )
    sentence = joined([unread, recrawled])
    known = {"earlier_crawl": earlier.id, "earlier_state": then.state.value, "earlier_reason": then.reason}
    return replace(explanation, sentence=sentence, facts=explanation.facts | known)


def _redirected_to(crawl: Crawl, url: Url, target: RedirectTarget, source: UrlFacts | None) -> UrlExplanation:
    """Explain a URL that has no page record because a different URL redirects to it."""
    via, facts = Url(target.via), dict[str, Any](via=target.via)
    if target.fate.skipped:
        redirects = Sentence(message("{url} redirects to it."), {"url": via})
        sentence = joined([redirects, skipped_by(crawl.config, url, target.fate)])
        return UrlExplanation(url, UrlState.SKIPPED, target.fate.word, sentence, facts)
    there = explain_url(crawl, via, source)
    facts |= {name: value for name, value in there.facts.items() if name not in ("parent", "kind")}
    values = {"url": via, "there": there.sentence}
    if there.state in (UrlState.WAITING, UrlState.TAKEN):
        words = message("{url} redirects to it, and the target is fetched under that URL. {there}")
        return UrlExplanation(url, there.state, "redirect", Sentence(words, values), facts)
    if target.fate is Fate.FAILED:
        words = message("It was requested via {url}, which redirects to it: {there}")
        return UrlExplanation(url, UrlState.FAILED, there.reason or "redirect", Sentence(words, values), facts)
    words = message("It was fetched via {url}, which redirects to it and has the page record. {there}")
    sentence, onward = Sentence(words, values), _onward(url, source)
    if onward is not None:
        facts |= {"status": onward[0], "redirects_to": onward[1]}
        words = message("It answered {status} and redirects to {url}.")
        sentence = joined([Sentence(words, {"status": onward[0], "url": onward[1]}), sentence])
    return UrlExplanation(url, UrlState.FETCHED, "redirect", sentence, facts)


def _onward(url: Url, source: UrlFacts | None) -> tuple[int, str] | None:
    """Return the status and the target of a URL that is a hop in the redirects of a different URL's page."""
    page = None if source is None else source.page
    if page is None:
        return None
    hops = [*page.redirects, {"url": page.final_url or ""}]
    for hop, following in pairwise(hops):
        if hop["url"] == url or canonical(hop["url"]) == url:
            return hop["status"], following["url"]
    return None


def _sitemap(url: Url, fate: Fate, record: SitemapRecord) -> UrlExplanation:
    facts: dict[str, Any] = {
        "kind": "sitemap",
        "status": record.status,
        "listed": record.listed,
        "problem": record.problem,
        "fetched_at": moment(record.fetched_at),
    }
    urls = Sentence(message("{count} URL"), {"count": record.listed}, message("{count} URLs"))
    values = {"time": facts["fetched_at"], "urls": urls, "problem": record.problem}
    if fate is Fate.FAILED:
        words = message("It was requested as a sitemap at {time}, and {problem}.")
        return UrlExplanation(url, UrlState.FAILED, "sitemap", Sentence(words, values), facts)
    words = message("It was read as a sitemap at {time} and listed {urls}.")
    if record.problem:
        words = message("It was read as a sitemap at {time} and listed {urls}, but {problem}.")
    return UrlExplanation(url, UrlState.FETCHED, "sitemap", Sentence(words, values), facts)


def _never_seen(crawl: Crawl, url: Url) -> Sentence:
    sentence = Sentence(message("The crawl has not found it: it is not a seed, and no page read so far links to it."))
    if crawl.config.recrawl_of:
        words = message(
            "The crawl has not found it: it is not a seed, and no page read so far links to it; the links of unchanged "
            "pages were not read again."
        )
        sentence = Sentence(words)
    judged = CrawlScope(crawl.config, seeds_of(crawl.config)).judge(url, 0)
    if judged is Fate.OPEN:
        return sentence
    return joined([sentence, Sentence(message("It would be skipped.")), skipped_by(crawl.config, url, judged)])


def _open(crawl: Crawl, url: Url, waiting: Waiting | None) -> UrlExplanation:
    facts = {} if waiting is None else _open_facts(waiting)
    if crawl.state in TERMINAL:
        reason = "budget" if crawl.state_reason in BUDGETS else crawl.state.value
        ended = Sentence(LABELS_OF_CRAWLS[crawl.state], is_clause=True)
        if crawl.state_reason:
            ended = joined([ended, Sentence(crawl.state_reason)], ", ")
        sentence = Sentence(message("It was still queued when the crawl ended ({state})."), {"state": ended})
        return UrlExplanation(url, UrlState.SKIPPED, reason, sentence, facts)
    if waiting is not None and waiting.taken_by is not None:
        words = message("A walker has taken it: it is being fetched, and is queued again if that walker is lost.")
        return UrlExplanation(url, UrlState.TAKEN, None, _redirects(waiting, Sentence(words)), facts)
    reason = _why_waiting(crawl, waiting)
    return UrlExplanation(url, UrlState.WAITING, reason, _redirects(waiting, _waits(crawl, waiting, reason)), facts)


def _redirects(waiting: Waiting | None, sentence: Sentence) -> Sentence:
    """Add, in front of the sentence, the redirect target that an open page has reached so far."""
    if waiting is None or waiting.kept.redirects_to is None:
        return sentence
    words = message("It redirects to {url}, which is fetched in its place.")
    if waiting.kept.awaits_target:
        words = message(
            "It redirects to {url}, which another URL is already requesting; the result decides what is recorded here."
        )
    return joined([Sentence(words, {"url": waiting.kept.redirects_to}), sentence])


def _quarantined(url: Url, pattern: str, waiting: Waiting | None) -> UrlExplanation:
    words = message(
        "It is in quarantine as a crawler trap: pages of the pattern {pattern} repeat each other, or lead to ever more "
        "pages."
    )
    if is_area(pattern):
        words = message(
            "It is in quarantine as a crawler trap: pages of the pattern {pattern} only lead to ever more pages."
        )
    known = {} if waiting is None else {"depth": waiting.kept.depth, "parent": waiting.parent_url}
    return UrlExplanation(
        url, UrlState.QUARANTINED, "trap", Sentence(words, {"pattern": pattern}), {"pattern": pattern, **known}
    )


def _why_waiting(crawl: Crawl, waiting: Waiting | None) -> str:
    if crawl.state is not CrawlState.RUNNING:
        return crawl.state.value
    if waiting is not None and waiting.held is not None:
        return "host_held"
    return "retry" if waiting is not None and waiting.kept.attempts else "turn"


def _waits(crawl: Crawl, waiting: Waiting | None, reason: str) -> Sentence:
    if reason == "host_held":
        assert waiting is not None
        assert waiting.held is not None
        words = message("Its host answered {status}, so it is on hold: no request before {time}.")
        return Sentence(words, {"status": waiting.held.status, "time": moment(waiting.held.until)})
    if reason == "retry":
        assert waiting is not None
        values = {"time": moment(waiting.kept.due), "tries": _tries(waiting.kept.attempts)}
        return Sentence(message("It is waiting for a retry, not before {time}, after {tries}."), values)
    return Sentence(WAITS[reason], {"crawl": crawl.id})


WAITS = {
    "turn": message("It is waiting for its turn: URLs near the seeds come first, and each host has a rate limit."),
    CrawlState.PENDING: message("It is waiting: the crawl is pending."),
    CrawlState.QUEUED: message("It is waiting: the crawl is queued, and no worker has started it."),
    CrawlState.PAUSING: message("It is waiting: the crawl is pausing. Resume it with `shoal crawls resume {crawl}`."),
    CrawlState.PAUSED: message("It is waiting: the crawl is paused. Resume it with `shoal crawls resume {crawl}`."),
    CrawlState.STOPPING: message("It is waiting: the crawl is stopping."),
}


def _tries(count: int) -> Sentence:
    return Sentence(message("{count} attempt"), {"count": count}, message("{count} attempts"))


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
    if waiting.kept.redirects_to is not None:
        facts["redirects_to"] = waiting.kept.redirects_to
    if waiting.held is not None:
        facts["host_held_until"], facts["host_status"] = moment(waiting.held.until), waiting.held.status
    if waiting.taken_by is not None:
        facts["job_id"], facts["epoch"] = waiting.taken_by.job_id, waiting.taken_by.epoch
    return facts


def _settled(url: Url, facts: UrlFacts) -> UrlExplanation:
    state = UrlState.FETCHED if facts.fate is Fate.FETCHED else UrlState.FAILED
    page = facts.page
    if page is None:
        words = message("It was fetched; the page has no record.")
        if state is UrlState.FAILED:
            words = message("It failed; the page has no record.")
        return UrlExplanation(url, state, None, Sentence(words))
    known: dict[str, Any] = {
        "depth": page.depth,
        "parent": page.parent,
        "status": page.status,
        "final_url": page.final_url,
    }
    known |= {"content_type": page.content_type, "bytes": page.bytes, "attempts": page.attempt}
    known |= {"fetched_at": moment(page.fetched_at), "error": page.error_message}
    if page.redirects:
        known["redirects"] = page.redirects
    if page.flags:
        known["flags"] = ", ".join(names_of(page.flags))
    values = {"tries": _tries(page.attempt), "time": known["fetched_at"], "status": page.status, "url": page.final_url}
    if state is UrlState.FAILED:
        values["why"] = Sentence(message("unknown reason"))
        if page.error_code:
            values["why"] = f"{page.error_code}: {page.error_message}"
        sentence = Sentence(message("It failed after {tries} ({why})."), values)
        return UrlExplanation(url, state, page.error_code, sentence, known)
    sentence = Sentence(message("It was fetched at {time} with status {status}, after {tries}."), values)
    if page.redirects and page.answered_at != page.final_url:
        words = message("It redirects to {url}, which is listed separately.")
        sentence = joined([sentence, Sentence(words, values)])
    elif page.redirects:
        sentence = joined([sentence, _hops(page)])
    return UrlExplanation(url, state, page.error_code, sentence, known)


def _hops(page: Page) -> Sentence:
    """Describe the redirects of a page, with the status of each hop and of the final URL."""
    hops = " → ".join(f"{hop['url']} ({hop['status']})" for hop in page.redirects[:MOST_HOPS])
    values = {"url": page.final_url, "status": page.status, "hops": hops, "more": len(page.redirects) - MOST_HOPS}
    if len(page.redirects) > MOST_HOPS:
        return Sentence(message("It redirects to {url}: {hops} → {more} more → {url} ({status})."), values)
    return Sentence(message("It redirects to {url}: {hops} → {url} ({status})."), values)


def skipped_by(config: CrawlConfig, url: Url, fate: Fate) -> Sentence:
    """Return the rule because of which a URL was skipped."""
    match fate:
        case Fate.SKIPPED_DEPTH:
            if config.depth is None:
                return Sentence(
                    message(
                        "Each path on which it was found had more links than the depth limit, which has been removed "
                        "since."
                    )
                )
            one, other = (
                message(
                    "Each path on which it was found has more than {count} link, which is the crawl's depth limit."
                ),
                message(
                    "Each path on which it was found has more than {count} links, which is the crawl's depth limit."
                ),
            )
            return Sentence(one, {"count": config.depth}, other)
        case Fate.SKIPPED_SCOPE:
            outside = Sentence(message("It is outside the crawl's scope `{scope}`:"), {"scope": config.scope})
            words = message("{only}, and the targets of redirected seeds, are in scope.")
            return joined([outside, Sentence(words, {"only": _border(config)})])
        case Fate.SKIPPED_EXCLUDED:
            patterns = _quoted(matching(config.exclude, url) or config.exclude)
            return Sentence(message("It matches the exclude pattern {patterns}."), {"patterns": patterns})
        case Fate.SKIPPED_NOT_INCLUDED:
            words = message("It matches none of the include patterns {patterns}.")
            return Sentence(words, {"patterns": _quoted(config.include)})
        case Fate.SKIPPED_REPEATING_PATH:
            words = message("A segment of its path occurs more than {limit} times; such paths are usually endless.")
            return Sentence(words, {"limit": MAX_REPEATS})
        case Fate.SKIPPED_TOO_MANY_SEGMENTS:
            words = message("Its path has more than {limit} segments; such paths are usually endless.")
            return Sentence(words, {"limit": MAX_SEGMENTS})
        case _:
            return Sentence(PLAIN[fate])


PLAIN = {
    Fate.SKIPPED_ROBOTS: message("The robots.txt of its host forbids it."),
    Fate.SKIPPED_NOFOLLOW: message("Every page that links to it uses nofollow."),
    Fate.SKIPPED_URL_TOO_LONG: message("It is longer than the limit (SHOAL_MAX_URL)."),
    Fate.SKIPPED_SCHEME: message("Its scheme is not http or https."),
    Fate.SKIPPED_CREDENTIALS: message("It contains a user name or a password."),
    Fate.SKIPPED_CONTROL_CHARACTERS: message("It contains control characters."),
    Fate.SKIPPED_BACKSLASH: message("It contains a backslash."),
    Fate.SKIPPED_INVALID_URL: message("It is not a valid URL."),
    Fate.SKIPPED_NOT_IN_SITEMAP: message("Only URLs in sitemaps are fetched, and no sitemap read so far lists it."),
    Fate.SKIPPED_HOST_BUDGET: message("The crawl has reached its maximum number of pages for this host."),
}


def _border(config: CrawlConfig) -> Sentence:
    seeds, inside = seeds_of(config), list[str]()
    match config.scope:
        case "page":
            words, inside = message("only {url}"), [*seeds]
        case "prefix":
            words = message("only URLs that begin with {url}")
            inside = [seed.partition("?")[0].rpartition("/")[0] + "/" for seed in seeds]
        case "domain":
            words = message("only {url} and its subdomains")
            inside = [registrable_domain(hostname(seed)) for seed in seeds]
        case _:
            words, inside = message("only {url}"), [origin(seed) for seed in seeds]
    distinct = list(dict.fromkeys(inside))
    listed = joined([Sentence(words, {"url": one}) for one in distinct[:MOST_BORDERS]], ", ")
    if len(distinct) <= MOST_BORDERS:
        return listed
    return Sentence(message("{listed}, and {more} more"), {"listed": listed, "more": len(distinct) - MOST_BORDERS})


def _quoted(patterns: list[str]) -> Sentence:
    listed = Sentence("{listed}", {"listed": ", ".join(f"`{pattern}`" for pattern in patterns[:MOST_QUOTED])})
    if len(patterns) <= MOST_QUOTED:
        return listed
    return Sentence(message("{listed} and {more} more"), {"listed": listed, "more": len(patterns) - MOST_QUOTED})
