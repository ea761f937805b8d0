"""Explanations of URLs: the text for every fate, and the `explain` command."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal.app import opened
from shoal.base.clock import from_micros, to_micros
from shoal.base.ids import CrawlId, JobId
from shoal.base.settings_loader import load
from shoal.base.url import Url, UrlRefusal
from shoal.cli.main import main
from shoal.crawl.crawl import Crawl, CrawlConfig
from shoal.crawl.frontier.admin_store import KeptUrl, UrlFacts, Waiting
from shoal.crawl.frontier.explain import PLAIN, UrlExplanation, UrlState, explain_refusal, explain_url
from shoal.crawl.frontier.fates import Fate
from shoal.crawl.frontier.values import NewUrl, key_of
from shoal.crawl.states import CrawlState
from shoal.hosts.rate import HeldHost
from shoal.pages.page import Page
from shoal.queue.job import Fence

SITE = "https://example.org"
URL = Url(f"{SITE}/a/7")
AT = to_micros(datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC))


def crawl_of(state: CrawlState = CrawlState.RUNNING, reason: str | None = None, **options: Any) -> Crawl:
    config = CrawlConfig(**{"seeds": [f"{SITE}/docs/"], **options})
    return Crawl(1, 7, CrawlId("crl_1"), state, reason, "default", config, frozenset(), 50, 0, None, None)


def asked(facts: UrlFacts | None, crawl: Crawl | None = None, url: Url = URL) -> UrlExplanation:
    return explain_url(crawl or crawl_of(), url, facts)


def waiting(**facts: Any) -> UrlFacts:
    return UrlFacts(Fate.OPEN, Waiting(KeptUrl(URL, 2, **facts), parent_url=f"{SITE}/"))


def test_a_url_whose_host_is_held_is_reported_with_the_answer_and_the_end() -> None:
    kept = KeptUrl(URL, 2, attempts=1, due=AT)
    said = asked(UrlFacts(Fate.OPEN, Waiting(kept, held=HeldHost(SITE, AT, 429))))
    assert (said.state, said.reason) == (UrlState.WAITING, "host_held")
    assert str(said.sentence) == "Its host answered 429, so it is on hold: no request before 2026-02-03T04:05:06Z."
    assert (said.facts["host_held_until"], said.facts["host_status"]) == (from_micros(AT), 429)


def test_every_skip_has_words_of_its_own() -> None:
    for fate in (fate for fate in Fate if fate.skipped):
        said = asked(UrlFacts(fate), crawl_of(exclude=["a"], include=["b"]))
        assert (said.state, said.reason) == (UrlState.SKIPPED, fate.word)
        assert f"({fate.word})" not in str(said.sentence), fate
        assert str(said.sentence).endswith("."), fate


def test_no_two_plain_skips_are_reported_alike() -> None:
    assert len(set(PLAIN.values())) == len(PLAIN)


def test_a_page_that_was_too_far_away_is_reported_with_the_limit() -> None:
    said = asked(UrlFacts(Fate.SKIPPED_DEPTH), crawl_of(depth=2))
    assert (
        str(said.sentence) == "Each path on which it was found has more than 2 links, which is the crawl's depth limit."
    )


@pytest.mark.parametrize(
    ("scope", "inside"),
    [
        ("page", "only https://example.org/docs/, and"),
        ("prefix", "only URLs that begin with https://example.org/docs/, and"),
        ("host", "only https://example.org, and"),
        ("domain", "only example.org and its subdomains, and"),
    ],
)
def test_a_url_out_of_scope_is_reported_with_what_is_inside(scope: str, inside: str) -> None:
    said = asked(UrlFacts(Fate.SKIPPED_SCOPE), crawl_of(scope=scope))
    assert f"`{scope}`: {inside} the targets of redirected seeds" in str(said.sentence)


def test_a_long_list_of_seeds_is_cut() -> None:
    seeds = [f"https://{place}.test/" for place in range(8)]
    assert "only https://4.test, and 3 more" in str(asked(UrlFacts(Fate.SKIPPED_SCOPE), crawl_of(seeds=seeds)).sentence)


def test_an_excluded_url_is_reported_with_the_pattern_that_matched() -> None:
    crawl = crawl_of(exclude=[r"/b/", r"/a/\d+$"])
    assert str(asked(UrlFacts(Fate.SKIPPED_EXCLUDED), crawl).sentence) == r"It matches the exclude pattern `/a/\d+$`."


def test_an_unseen_url_is_explained_with_its_expected_fate() -> None:
    said = asked(None)
    assert (said.state, said.reason) == (UrlState.NEVER_SEEN, None)
    assert "would be skipped" not in str(said.sentence)
    assert "would be skipped" in str(asked(None, url=Url("https://elsewhere.test/")).sentence)


def test_a_text_that_is_not_a_url_is_reported_why() -> None:
    said = explain_refusal("mailto:me", UrlRefusal.SCHEME_NOT_ALLOWED)
    assert (said.state, said.reason) == (UrlState.REFUSED, "scheme_not_allowed")
    assert str(said.sentence) == "It cannot be crawled: it has a scheme other than http and https."


def test_a_waiting_url_is_reported_with_what_it_waits_for() -> None:
    assert asked(waiting()).reason == "turn"
    retry = asked(waiting(due=AT, attempts=2))
    assert retry.reason == "retry"
    assert "not before 2026-02-03T04:05:06Z, after 2 attempts" in str(retry.sentence)
    paused = asked(waiting(), crawl_of(CrawlState.PAUSED, "asked"))
    assert paused.reason == "paused"
    assert "`shoal crawls resume crl_1`" in str(paused.sentence)
    assert asked(waiting(), crawl_of(CrawlState.QUEUED)).reason == "queued"


def test_a_taken_url_is_reported_with_its_holder() -> None:
    facts = UrlFacts(Fate.OPEN, Waiting(KeptUrl(URL, 2), Fence(JobId("job_1"), 3)))
    said = asked(facts)
    assert said.state is UrlState.TAKEN
    assert (said.facts["job_id"], said.facts["epoch"]) == ("job_1", 3)


def test_a_url_that_waited_when_a_budget_ended_the_crawl_was_skipped_by_it() -> None:
    said = asked(waiting(), crawl_of(CrawlState.COMPLETED, "max_pages"))
    assert (said.state, said.reason) == (UrlState.SKIPPED, "budget")
    assert "completed, max_pages" in str(said.sentence)
    assert asked(waiting(), crawl_of(CrawlState.STOPPED, "asked")).reason == "stopped"


def test_a_quarantined_url_is_reported_with_its_pattern() -> None:
    said = asked(UrlFacts(Fate.QUARANTINED, Waiting(KeptUrl(URL, 1, Fate.QUARANTINED))))
    assert (said.state, said.facts["pattern"]) == (UrlState.QUARANTINED, f"{SITE}/a/0")


def test_a_fetched_page_is_reported_with_its_status_and_a_failed_one_with_its_code() -> None:
    page = Page(url=URL, depth=1, fetched_at=AT, attempt=1, status=404)
    fetched = asked(UrlFacts(Fate.FETCHED, page=page))
    assert str(fetched.sentence) == "It was fetched at 2026-02-03T04:05:06Z with status 404, after 1 attempt."
    assert fetched.facts["status"] == 404
    page = Page(url=URL, depth=1, fetched_at=AT, attempt=3, error_code="dns", error_message="no such host")
    failed = asked(UrlFacts(Fate.FAILED, page=page))
    assert (failed.state, failed.reason) == (UrlState.FAILED, "dns")
    assert str(failed.sentence) == "It failed after 3 attempts (dns: no such host)."
    assert "no record" in str(asked(UrlFacts(Fate.FETCHED)).sentence)


@pytest.fixture
def crawl(default_store: None) -> Crawl:
    """A crawl in the default store, with one URL that waits and one that was skipped."""
    return asyncio.run(_stored())


async def _stored() -> Crawl:
    async with opened(load().settings) as app:
        crawl = await app.crawls.submit(CrawlConfig(seeds=[f"{SITE}/"], depth=1), crawl_id=CrawlId("mine"))
        deep = Url(f"{SITE}/deep")

        async def add(tx: Any) -> None:
            await app.crawls.add_urls(tx, crawl, [NewUrl(*key_of(deep, crawl.key_seed), deep, 2, Fate.SKIPPED_DEPTH)])

        await app.database.run(add)
        return crawl


def test_the_command_says_it_in_words(crawl: Crawl, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "url", "mine", f"{SITE}/deep#top"]) == 0
    said = capsys.readouterr().out
    assert f"URL    {SITE}/deep\n" in said
    assert "State  skipped (depth)\n" in said
    assert "more than 1 link, which is" in said


def test_the_command_says_it_as_json(crawl: Crawl, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "url", "mine", SITE, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["crawl_id"], said["url"], said["state"], said["reason"]) == ("mine", f"{SITE}/", "waiting", "queued")
    assert (said["depth"], said["due_at"], said["attempts"]) == (0, None, 0)


def test_nonsense_is_refused_and_not_explained(crawl: Crawl, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "url", "mine", "no url at all"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "URL 'no url at all' is not an absolute http or https URL; write it as http" in said.err
    assert main(["explain", "url", "mine", "mailto:me@example.org"]) == 0  # a link that was seen and not taken


def test_a_crawl_that_does_not_exist_is_not_explained(crawl: Crawl, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "url", "other", SITE]) == 5
    assert 'crawl "other" does not exist' in capsys.readouterr().err
