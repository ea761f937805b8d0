"""The journal of a crawl and the explanations of its URLs, each of them, in another language than English."""

import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec.structs import replace

from shoal.base.ids import JobId
from shoal.base.text import Sentence
from shoal.base.url import Url, UrlRefusal
from shoal.crawl import journal_messages as messages
from shoal.crawl import states
from shoal.crawl.crawl import Counts
from shoal.crawl.frontier import explain
from shoal.crawl.frontier.admin_store import KeptUrl, UrlFacts, Waiting
from shoal.crawl.frontier.explain import UrlExplanation, explain_url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import RedirectTarget, SitemapRecord
from shoal.crawl.journal_messages import JournalEntry, sentence_of
from shoal.crawl.lifecycle.change import CrawlChange
from shoal.crawl.lifecycle.failed_urls import FailedSeed
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.hosts.throttle import HostUpdate
from shoal.pages.page import Page
from shoal.queue.job import Fence
from shoal.queue.states import GrantEnd, JobState, Move
from shoal.serve.console.format import Formats, languages
from shoal.serve.console.texts import text_of
from shoal.web.page_fetcher import RedirectChain, RedirectStep
from tests.unit.test_console_messages import marked
from tests.unit.test_explain import AT, SITE, URL, crawl_of

FRENCH = Formats(languages()["fr"], AT)
PLACES = re.compile(r"{\w+}")
JOB = JobId("job_1")
TURN = UrlFacts(Fate.OPEN, Waiting(KeptUrl(URL, 2, target=f"{SITE}/b")))


def entries() -> Iterator[JournalEntry]:
    """Yield each entry that a journal can have."""
    for local in (True, False):
        yield messages.submitted(crawl_of(CrawlState.QUEUED), local=local)
    yield messages.submitted(crawl_of(CrawlState.PENDING), local=False)
    for before in CrawlState:
        for state in CrawlState:
            yield messages.moved(crawl_of(before), states.CrawlMove(state, "asked"), None)
    yield messages.moved(replace(crawl_of(), started_at=AT), states.run(), None)
    responses: Any = {"2xx": 1, "3xx": 3, "4xx": 1, "5xx": 0, "none": 2}
    counts = Counts(pages=5, errors=2, responses=responses, not_modified=2, skipped={"scope": 3, "trap": 1})
    for state in states.TERMINAL:
        yield messages.moved(crawl_of(), states.CrawlMove(state, "max_pages"), counts)
    yield messages.forced(timedelta(seconds=2.5))
    for name in CrawlChange.__struct_fields__:
        yield messages.changed({name: None})
    yield messages.changed({"include": ["a", "b"], "max_pages": 1200, "delay_seconds": 0.5, "speed": "slow"})
    for count in (1, 1200):
        yield from (messages.reopened(count), messages.frontier_rebuilt(count), messages.found(count))
        yield messages.released("/a/0", count)
    yield messages.limit_reached(Move(JOB, 1, JobState.PENDING, GrantEnd.RELEASED, "max_pages"))
    for end in GrantEnd:
        for to in (JobState.PENDING, JobState.FAILED):
            if entry := messages.walker_moved(Move(JOB, 1, to, end, "worker_lost", "no memory")):
                yield entry
    yield messages.taken_up(JOB)
    yield from messages.depths_finished(-1, 0)
    yield messages.seed_failed(FailedSeed(SITE, status=404))
    yield messages.seed_failed(FailedSeed(SITE, None, "robots", "skipped (robots)"))
    yield messages.seed_failed(FailedSeed(SITE, None, "dns_error", "no such host"))
    yield messages.more_seeds_failed()
    yield messages.held(HostUpdate(SITE, 429), 3)
    yield from (messages.trapped(pattern, URL) for pattern in ("/a/0", "/a/*"))


def explanations() -> Iterator[UrlExplanation]:
    """Yield an explanation with each text that one can have."""
    for refusal in UrlRefusal:
        yield explain.explain_refusal("x", refusal)
    many = [f"https://{place}.test/" for place in range(8)]
    for scope in ("page", "prefix", "host", "domain"):
        for options in ({"seeds": many}, {}):
            yield explain_url(crawl_of(scope=scope, **options), URL, UrlFacts(Fate.SKIPPED_SCOPE))
    patterns = [f"b{place}" for place in range(30)]
    for fate in (fate for fate in Fate if fate.skipped):
        for depth in (1, 2, None):
            crawl = crawl_of(depth=depth, exclude=["a", *patterns], include=patterns)
            yield explain_url(crawl, URL, UrlFacts(fate))
    yield explain_url(crawl_of(), Url("https://elsewhere.test/"), None)
    yield from (*of_waiting(), *of_settled())


def of_waiting() -> Iterator[UrlExplanation]:
    kept = KeptUrl(URL, 2, attempts=1, due=AT)
    held = UrlFacts(Fate.OPEN, Waiting(kept, held=HeldHost(SITE, AT, 429)))
    taken = UrlFacts(Fate.OPEN, Waiting(KeptUrl(URL, 2), Fence(JOB, 3)))
    apart = Page(url=URL, depth=2, fetched_at=AT, attempt=1, status=302, final_url=f"{SITE}/b")
    chain = RedirectChain((RedirectStep(URL, 302, 7),), page=apart)
    awaiting = UrlFacts(Fate.OPEN, Waiting(KeptUrl(URL, 2, target=Url(f"{SITE}/b"), chain=chain)))
    for state in CrawlState:
        for waiting in (UrlFacts(Fate.OPEN), UrlFacts(Fate.OPEN, Waiting(kept)), held, TURN, taken, awaiting):
            yield explain_url(crawl_of(state, "max_pages"), URL, waiting)


def of_settled() -> Iterator[UrlExplanation]:
    unseen = explain_url(crawl_of(recrawl_of="crl_0"), URL, None)
    yield unseen
    fetched = Page(url=URL, depth=1, fetched_at=AT, attempt=2, status=200, final_url=f"{SITE}/b")
    redirects = [{"url": URL, "status": 301}]
    moved = Page(url=URL, depth=1, fetched_at=AT, attempt=1, status=200, final_url=f"{SITE}/b", redirects=redirects)
    apart = Page(url=URL, depth=1, fetched_at=AT, attempt=1, status=301, final_url=f"{SITE}/b", redirects=redirects)
    far = replace(moved, redirects=redirects * (explain.MOST_HOPS + 1))
    failed = Page(url=URL, depth=1, fetched_at=AT, attempt=3, error_code="dns_error", error_message="no such host")
    unknown = Page(url=URL, depth=1, fetched_at=AT, attempt=3)
    settled = [UrlFacts(Fate.FETCHED, page=page) for page in (None, fetched, moved, apart, far)]
    settled += [UrlFacts(Fate.FAILED, page=page) for page in (None, failed, unknown)]
    settled += [UrlFacts(Fate.QUARANTINED, trap=trap) for trap in (None, f"{SITE}/*")]
    for listed, problem in ((1, None), (2, "is cut off")):
        record = SitemapRecord(URL, AT, 200, listed, problem)
        settled += [UrlFacts(fate, sitemap=record) for fate in (Fate.FETCHED, Fate.FAILED)]
    for facts in settled:
        there = explain_url(crawl_of(), URL, facts)
        yield there
        yield explain.found_in_sitemap(there, f"{SITE}/sitemap.xml")
        yield explain.explained_by_previous(unseen, crawl_of(), there)
    skipped = explain_url(crawl_of(), URL, UrlFacts(Fate.SKIPPED_ROBOTS))
    yield explain.explained_by_previous(unseen, crawl_of(), skipped)
    sources = [(Fate.FETCHED, settled[1]), (Fate.FETCHED, settled[2]), (Fate.FAILED, settled[-3])]
    for fate, source in (*sources, (Fate.OPEN, TURN), (Fate(16), TURN)):
        yield explain_url(crawl_of(), URL, UrlFacts(fate, target=RedirectTarget(URL, SITE + "/", fate), source=source))


def texts_of(said: Sentence) -> Iterator[str]:
    """Yield the texts of a sentence and of those inside it."""
    yield said.text
    if said.other is not None:
        yield said.other
    for value in said.values.values():
        if isinstance(value, Sentence):
            yield from texts_of(value)


def untranslated(said: Sentence, known: set[str]) -> list[str]:
    """Return the texts that have words and no translation; `known`: words that are names."""
    texts = {text for text in texts_of(said) if re.search(r"[a-z]{2}", PLACES.sub("", text))}
    return sorted(texts - set(FRENCH.language.texts) - known)


def texts_in(module: ModuleType) -> set[str]:
    return marked(Path(inspect.getfile(module)), {"message"})


def test_every_journal_entry_is_translated() -> None:
    reached, events = set[str](), set[str]()
    for entry in entries():
        said = sentence_of(entry)
        assert untranslated(said, {"2xx {count}", "3xx {count}", "4xx {count}", "5xx {count}"}) == [], entry
        assert FRENCH.sentence(said, 4096) in text_of(entry, FRENCH), entry
        reached |= {*texts_of(said)}
        events.add(entry.event)
    assert texts_in(messages) - reached == set()
    assert events == {*messages.WORDS, "seed_failed", "crawl_changed", *(f"crawl_{state}" for state in CrawlState)}


def test_every_event_says_the_same_in_its_message_and_its_sentence() -> None:
    for entry in entries():
        said = str(sentence_of(entry))
        if entry.event == "seed_failed" and not entry.message.endswith("404"):
            continue  # the message has the error in words
        assert entry.message.lower().startswith(said.lower()), entry


def test_every_explanation_of_a_url_is_translated() -> None:
    reached = {*explain.LABELS.values()}
    for explained in explanations():
        assert untranslated(explained.sentence, {"max_pages"}) == [], explained
        assert FRENCH.sentence(explained.sentence) != str(explained.sentence)
        reached |= {*texts_of(explained.sentence)}
    assert texts_in(explain) - reached == set()


def test_a_clause_begins_with_a_small_letter_in_every_language() -> None:
    there = explain_url(crawl_of(), URL, UrlFacts(Fate.FETCHED))
    said = explain.explained_by_previous(explain_url(crawl_of(), URL, None), crawl_of(), there).sentence
    assert str(said).endswith("In crawl crl_1, which this crawl repeats, it was fetched; the page has no record.")
    assert FRENCH.sentence(said).endswith("que celui-ci reprend, elle a été récupérée ; la page n'est pas enregistrée.")
