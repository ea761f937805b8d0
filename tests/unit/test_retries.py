"""Retries of failed fetches: which, how often, and after how long."""

import pytest

from shoal.egress import Failure, Headers, Response
from shoal.egress.address import AddressRefusal
from shoal.egress.curl import explain, refused, too_large
from shoal.egress.exchange import Limits, Outcome
from shoal.web.page_fetcher import JITTER, LONGEST_WAIT_SECONDS, Fetched, Retries, may_be_html

URL = "http://a.example/"
FOUR = Retries(4, 1.0, jitter=lambda: 0)
TOO_SLOW = explain(28, "Operation timed out after 60000 milliseconds", URL, verify_result=0)


def answered(status: int) -> Fetched:
    return Fetched(URL, 0.1, status=status)


def failed(outcome: Outcome | bytes) -> Fetched:
    assert isinstance(outcome, Failure)
    return Fetched(URL, 0.1, failure=outcome)


def curl_said(number: int, words: str = "", verify_result: int = 0) -> Fetched:
    return failed(explain(number, words, URL, verify_result=verify_result))


def encoded(encoding: str, raw: bytes) -> Fetched:
    head = Headers(f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\n\r\n".encode())
    return failed(Response(URL, 200, head, raw, "", 0.1).body())


def tries(fetched: Fetched) -> int:
    """Return the number of attempts for a page that always ends like this."""
    return 1 + sum(FOUR.retry_in_seconds(failed_before, fetched) is not None for failed_before in range(10))


@pytest.mark.parametrize("status", [408, 429, 500, 501, 502, 503, 504, 507, 520, 599])
def test_a_server_error_is_retried_three_times(status: int) -> None:
    assert tries(answered(status)) == 4


def test_a_503_is_retried_after_its_retry_after() -> None:
    asking = Retries(4, 1.0, jitter=lambda: 0, asked_seconds=float)
    refused = Fetched(URL, 0.1, status=503, retry_after="120")
    assert asking.retry_in_seconds(0, refused) == 120
    assert asking.retry_in_seconds(3, refused) is None
    assert asking.retry_in_seconds(2, Fetched(URL, 0.1, status=503, retry_after="2")) == 4  # our own wait is longer
    assert asking.retry_in_seconds(0, Fetched(URL, 0.1, status=429, retry_after="120")) == 1  # its host is held


@pytest.mark.parametrize("status", [200, 204, 301, 304, 400, 401, 403, 404, 405, 410, 418, 421, 451, 600, 999])
def test_other_status_codes_are_not_retried(status: int) -> None:
    assert tries(answered(status)) == 1


@pytest.mark.parametrize(
    "fetched",
    [
        curl_said(6),
        curl_said(7),
        curl_said(18),
        curl_said(35),
        curl_said(52),
        curl_said(55),
        curl_said(56),
        curl_said(28, "Connection timed out"),
        curl_said(28, "Operation too slow"),
        curl_said(97),
    ],
)
def test_a_network_error_is_retried_three_times(fetched: Fetched) -> None:
    assert tries(fetched) == 4


def test_a_timeout_is_retried_once() -> None:
    assert tries(failed(TOO_SLOW)) == 2
    assert FOUR.retry_in_seconds(1, failed(TOO_SLOW)) is None
    assert FOUR.retry_in_seconds(1, answered(500)) is not None


@pytest.mark.parametrize(
    "fetched",
    [
        failed(refused(AddressRefusal("address_not_public", "10.0.0.1"), URL)),
        failed(refused(AddressRefusal("self_connection", "here"), URL)),
        failed(refused(AddressRefusal("port_not_allowed", "22"), URL)),
        curl_said(60, "certificate", 10),
        curl_said(60, "certificate", 18),
        curl_said(60, "certificate", 20),
        curl_said(60, "subject name does not match"),
        failed(too_large("", URL, Limits(), status=200, announced=0)),
        curl_said(100),
        curl_said(1),
        curl_said(3),
        curl_said(8),
        encoded("gzip", b"not gzip"),
        encoded(",".join(["gzip"] * 20), b"x"),
    ],
)
def test_permanent_failures_are_not_retried(fetched: Fetched) -> None:
    assert tries(fetched) == 1


def test_a_server_error_with_an_undecodable_body_is_retried() -> None:
    fetched = encoded("gzip", b"not gzip")
    fetched.status = 500
    assert tries(fetched) == 4


def test_each_wait_doubles_and_jitter_only_adds() -> None:
    assert [FOUR.retry_in_seconds(before, answered(500)) for before in range(3)] == [1, 2, 4]
    latest = Retries(4, 1.0, jitter=lambda: 1)
    assert latest.retry_in_seconds(1, answered(500)) == 2 * (1 + JITTER)
    retries = Retries(20, 1.0, jitter=lambda: 0)
    assert retries.retry_in_seconds(18, answered(500)) == LONGEST_WAIT_SECONDS


@pytest.mark.parametrize(
    ("content_type", "looked_into"),
    [
        (None, True),
        ("", True),
        ("text/html", True),
        (" Text/HTML ; charset=utf-8", True),
        ("application/xhtml+xml", True),
        ("application/pdf", False),
        ("text/plain", False),
        ("image/svg+xml", False),
        ("application/json", False),
    ],
)
def test_only_content_that_may_be_html_is_parsed(content_type: str | None, looked_into: bool) -> None:
    assert may_be_html(content_type) is looked_into
