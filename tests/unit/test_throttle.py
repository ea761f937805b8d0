"""The throttle tracker: how responses of hosts and `Retry-After` change the rate of a walker."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.base.clock import FakeClock
from shoal.base.settings import HostSettings
from shoal.egress.exchange import asked_wait, parse_retry_after
from shoal.hosts.throttle import MOST_HOSTS, HostAnswer, HostUpdate, ThrottleTracker

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOST = 7
HOME = "http://example.org"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 3600 ", 3600),
        ("Sun, 15 Nov 2026 12:00:30 GMT", 30),
        ("Sunday, 15-Nov-26 12:00:30 GMT", 30),
        ("Sun Nov 15 12:00:30 2026", 30),
        ("Sun, 15 Nov 2026 12:00:30 -0000", 30),
    ],
)
def test_seconds_and_dates_are_read(text: str, seconds: int) -> None:
    assert parse_retry_after(text, NOW, HOUR) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        ("Sun, 15 Nov 2026 12:00:30 GMT", "Sun, 15 Nov 2026 11:59:30 GMT", 60),
        ("Sun, 15 Nov 2026 12:00:30 GMT", "Sun, 15 Nov 2026 13:00:00 GMT", None),  # already in the past
        ("Sun, 15 Nov 2026 12:00:30 GMT", "today", 30),
        ("Sun, 15 Nov 2026 12:00:30 GMT", None, 30),
        ("120", "Sun, 15 Nov 2026 11:59:30 GMT", 120),
        ("soon", "Sun, 15 Nov 2026 11:59:30 GMT", None),
        (None, "Sun, 15 Nov 2026 11:59:30 GMT", None),
    ],
)
def test_a_retry_after_date_is_relative_to_the_servers_clock(
    text: str | None, date: str | None, seconds: int | None
) -> None:
    asked = asked_wait({"retry-after": text, "date": date}.get)
    assert parse_retry_after(asked, NOW, HOUR) == (None if seconds is None else timedelta(seconds=seconds))


PARTS = st.sampled_from(
    [
        *"0123456789 ,:;-+()",
        "Sun",
        "Nov",
        "2026",
        "99999999999",
        "GMT",
        "EST",
        "+2400",
        "-9999",
        "T",
        "\x00",
        "é",
        "\ud800",
    ]
)


@settings(deadline=None)
@given(st.lists(PARTS, max_size=14).map("".join) | st.lists(PARTS, max_size=9).map(" ".join) | st.text(max_size=40))
def test_any_text_is_a_wait_within_the_limit_or_none(text: str) -> None:
    for asked in (text, asked_wait({"retry-after": text, "date": "Sun, 15 Nov 2026 11:59:30 GMT"}.get)):
        wait = parse_retry_after(asked, NOW, HOUR)
        assert wait is None or timedelta(0) < wait <= HOUR
    asked_wait({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT", "date": text}.get)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "0",
        "-5",
        "+5",
        "1.5",
        "3601",
        "999999999",
        "9" * 5000,
        "٣",
        "banana",
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Sun, 15 Nov 2026 13:00:01 GMT",
        "Sun, 99 Nov 2026 12:00:30 GMT",
        "Sun, 15 Nov 99999 12:00:30 GMT",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "12, 13",
        "\x00",
    ],
)
def test_a_retry_after_that_is_past_too_long_or_unreadable_counts_as_absent(text: str | None) -> None:
    assert parse_retry_after(text, NOW, HOUR) is None


class TrackedHosts:
    """A throttle tracker whose hosts respond as a test says."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.tracker = ThrottleTracker(HostSettings(), self.clock, **settings)

    def answer(self, status: int | None = 200, *, page: int = 1, attempts: int = 0, **rest: Any) -> bool:
        return self.tracker.record(HostAnswer(HOME, HOST, page, attempts, status, **({"latency_seconds": 0.1} | rest)))

    def updates(self) -> HostUpdate | None:
        return self.tracker.updates().get(HOST)


def test_good_responses_are_not_reported() -> None:
    hosts = TrackedHosts()
    assert not hosts.tracker.counts_successes
    hosts.answer()
    assert hosts.updates() is None


def test_a_host_that_asks_us_to_wait_is_held_at_once() -> None:
    hosts = TrackedHosts()
    assert hosts.answer(429)
    assert hosts.tracker.holds(HOST)
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.hold_seconds, news.grows) == (429, 0, True)
    assert (news.shortest_backoff_seconds, news.longest_backoff_seconds) == (2, 60)
    hosts.clock.jump(2.1)
    assert not hosts.tracker.holds(HOST)


def test_one_page_that_always_answers_503_holds_nothing_but_itself() -> None:
    hosts = TrackedHosts()
    for attempts in range(5):
        assert not hosts.answer(503, attempts=attempts, retry_after="120")
        assert not hosts.tracker.holds(HOST)
        news = hosts.updates()
        assert news is not None
        # For the store, which also gets the reports of others.
        assert (news.status, news.refused, news.hold_seconds) == (0, [1], 120)
        hosts.clock.jump(1)


def test_three_pages_that_answer_503_within_a_minute_hold_their_host() -> None:
    hosts = TrackedHosts()
    assert not hosts.answer(503, page=1)
    hosts.clock.jump(30)
    assert not hosts.answer(503, page=2, retry_after="600")
    hosts.clock.jump(29)
    assert hosts.answer(503, page=3)
    assert hosts.tracker.holds(HOST)
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.refused, news.hold_seconds) == (503, [1, 2, 3], 600)


def test_pages_that_answered_503_longer_ago_do_not_count() -> None:
    hosts = TrackedHosts()
    for page in range(1, 9):
        assert not hosts.answer(503, page=page)
        hosts.clock.jump(31)
    assert not hosts.tracker.holds(HOST)


def test_a_503_to_one_page_during_a_hold_does_not_lengthen_it() -> None:
    hosts = TrackedHosts()
    hosts.answer(429, retry_after="60")
    hosts.updates()
    assert not hosts.answer(503, page=2, retry_after="600")
    assert hosts.tracker.held_seconds(HOST) <= 60
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.refused) == (0, [2])


def test_a_good_answer_before_what_is_refused_is_not_lost() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.updates()
    hosts.clock.jump(3)
    hosts.answer(503, page=2)
    hosts.answer(200, page=3)
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.recovered, news.refused, news.shortest_backoff_seconds) == (0, True, [2], 2)


def test_only_so_many_hosts_are_remembered_by_what_they_refused() -> None:
    hosts = TrackedHosts()
    for host in range(MOST_HOSTS + 1):
        for page in (1, 2):
            hosts.tracker.record(HostAnswer(HOME, HOST + host, page, 0, 503, 0.1))
    assert not hosts.answer(503, page=3)  # the oldest host was forgotten
    assert hosts.tracker.record(HostAnswer(HOME, HOST + MOST_HOSTS, 3, 0, 503, 0.1))


def test_the_wait_that_it_asks_for_holds_it() -> None:
    hosts = TrackedHosts()
    hosts.answer(429, retry_after="600")
    hosts.clock.jump(599)
    assert hosts.tracker.holds(HOST)
    news = hosts.updates()
    assert news is not None
    assert (news.hold_seconds, news.grows) == (600, False)


def test_a_response_to_a_request_sent_before_the_hold_changes_nothing() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    assert not hosts.answer(429, page=2)
    hosts.answer(200, page=3)
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.recovered) == (429, False)
    assert hosts.tracker.holds(HOST)


def test_a_longer_retry_after_during_a_hold_applies() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.updates()
    assert hosts.answer(429, page=2, retry_after="30")
    hosts.clock.jump(29)
    assert hosts.tracker.holds(HOST)
    news = hosts.updates()
    assert news is not None
    assert news.hold_seconds == 30


def test_the_first_good_response_after_a_hold_is_reported_once() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.updates()
    hosts.clock.jump(3)
    hosts.answer(200)
    news = hosts.updates()
    assert news is not None
    assert news.recovered
    assert not hosts.tracker.counts_successes
    hosts.answer(200)
    assert hosts.updates() is None


def test_a_good_answer_before_the_next_complaint_is_not_lost() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.updates()
    hosts.clock.jump(3)
    hosts.answer(200)
    hosts.answer(429, page=2)
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.recovered, news.grows) == (429, True, True)


def test_a_server_error_is_not_a_good_answer() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.updates()
    hosts.clock.jump(3)
    hosts.answer(500)
    assert hosts.updates() is None
    assert hosts.tracker.counts_successes


def test_a_recovering_host_has_recovered_after_a_good_response() -> None:
    hosts = TrackedHosts()
    hosts.tracker.expect_recovery(HOST)
    hosts.answer(200)
    news = hosts.updates()
    assert news is not None
    assert news.recovered


def test_a_page_that_failed_before_does_not_lengthen_the_back_off() -> None:
    """A page that always answers 429 says little about its host if other pages get normal responses."""
    hosts = TrackedHosts()
    hosts.answer(429, attempts=1)
    news = hosts.updates()
    assert news is not None
    assert not news.grows


def test_a_page_that_keeps_failing_with_its_host_lengthens_the_back_off() -> None:
    hosts = TrackedHosts()
    for attempts in range(3):
        hosts.answer(429, attempts=attempts)
        news = hosts.updates()
        assert news is not None
        assert news.grows
        hosts.clock.jump(3)


def test_the_store_says_how_long_a_hold_really_is() -> None:
    hosts = TrackedHosts()
    hosts.answer(429)
    hosts.tracker.learn({HOST: 32.0})
    hosts.clock.jump(31)
    assert hosts.tracker.holds(HOST)
    hosts.clock.jump(1)
    assert not hosts.tracker.holds(HOST)


def test_an_update_that_was_not_stored_is_sent_again() -> None:
    hosts = TrackedHosts()
    hosts.answer(429, retry_after="600")
    hosts.updates()
    hosts.tracker.forget()
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.hold_seconds) == (429, 600)
    hosts.tracker.learn({HOST: 600.0})
    hosts.tracker.forget()
    assert hosts.updates() is None


@pytest.mark.parametrize(
    ("first", "second", "status", "hold", "recovered"),
    [
        ({"status": 429, "retry_after": "600"}, {"status": 503, "retry_after": "60"}, 429, 600, False),
        ({"status": 503, "retry_after": "60"}, {"status": 429, "retry_after": "600"}, 429, 600, False),
        ({"status": 503, "retry_after": "600"}, {"status": 503, "page": 2}, 0, 600, False),
        ({"status": 503, "retry_after": "600"}, {"status": 200}, 0, 600, False),
        ({"status": 429, "retry_after": "600"}, {"status": 200, "latency_seconds": 9.0}, 429, 600, False),
        ({"status": 429}, {"status": 200, "later": 3.0}, 0, 0, True),
        ({"status": 200, "wary": True}, {"status": 429, "retry_after": "60"}, 429, 60, True),
    ],
)
def test_an_update_that_was_not_stored_is_merged_with_later_ones(
    first: dict[str, Any], second: dict[str, Any], status: int, hold: int, recovered: bool
) -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    if first.pop("wary", False):
        hosts.tracker.expect_recovery(HOST)
    hosts.answer(**first)
    hosts.updates()
    hosts.clock.jump(second.pop("later", 0.0))
    hosts.answer(**second)
    hosts.tracker.forget()
    news = hosts.updates()
    assert news is not None
    assert (news.status, news.hold_seconds, news.recovered) == (status, hold, recovered)


def test_the_latency_of_a_host_is_reported_when_it_becomes_slow_and_when_it_recovers() -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    told = []
    for seconds in [0.2] * 5 + [4.0] * 10 + [0.2] * 20:
        hosts.answer(200, latency_seconds=seconds)
        news = hosts.updates()
        if news is not None:
            told.append(news.latency_seconds or 0.0)
    assert told[-1] == 0
    assert 3 < max(told) <= 4
    assert len(told) < 8


def test_the_latency_of_a_fast_host_is_never_reported() -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    for number in range(100):
        hosts.answer(200, latency_seconds=0.01 * number)
        assert hosts.updates() is None


def test_only_so_many_hosts_are_remembered_whether_they_are_slow_or_not() -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    hosts.answer(200, latency_seconds=5.0)
    assert hosts.updates() is not None
    for other in range(MOST_HOSTS):
        hosts.tracker.record(HostAnswer(HOME, HOST + 1 + other, 1, 0, 200, 0.1))
    hosts.answer(200, latency_seconds=5.0)
    assert hosts.updates() is not None  # as if it had never been reported


def test_no_answer_in_time_counts_as_a_slow_one() -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    hosts.answer(None, latency_seconds=0.0, error="total_timeout")
    news = hosts.updates()
    assert news is not None
    assert news.latency_seconds == 10.0


def test_a_host_that_stays_slow_is_reported_again_before_the_store_forgets() -> None:
    hosts = TrackedHosts(latency_factor=1.0, delay_seconds=1.0)
    hosts.answer(200, latency_seconds=5.0)
    assert hosts.updates() is not None
    hosts.clock.jump(100)
    hosts.answer(200, latency_seconds=5.0)
    assert hosts.updates() is None
    hosts.clock.jump(250)
    hosts.answer(200, latency_seconds=5.0)
    assert hosts.updates() is not None
