"""Headers as they were sent, and bodies read through their encodings."""

import gzip

from hypothesis import given
from hypothesis import strategies as st

from shoal.egress import Failure, Headers, Limits, Response

BLOCK = (
    b"HTTP/1.1 200 All right\r\n"
    b"Content-Type: text/html; charset=utf-8\r\n"
    b"SET-COOKIE: a=1\r\n"
    b"Empty:\r\n"
    b"X-Folded: one\r\n  two\r\n\tthree\r\n"
    b"set-cookie:b=2\r\n"
    b"X-Latin: caf\xe9\r\n"
    b"\r\n"
)


def response(block: bytes = BLOCK, raw: bytes = b"") -> Response:
    return Response("http://site.test/", 200, Headers(block), raw, "192.0.2.1", 0.1)


def test_a_field_is_found_whatever_the_case_of_its_name() -> None:
    headers = Headers(BLOCK)
    assert headers.get("content-type") == "text/html; charset=utf-8"
    assert headers.get("Content-TYPE") == "text/html; charset=utf-8"
    assert headers.get("type") is None
    assert headers.get("empty") == ""


def test_a_repeated_field_keeps_all_its_values_in_order() -> None:
    assert Headers(BLOCK).all("Set-Cookie") == ("a=1", "b=2")


def test_a_folded_field_is_one_value() -> None:
    assert Headers(BLOCK).get("x-folded") == "one two three"
    assert ("X-Folded", "one two three") in Headers(BLOCK).pairs()


def test_pairs_keep_names_as_sent_in_order() -> None:
    names = [name for name, _ in Headers(BLOCK).pairs()]
    assert names == ["Content-Type", "SET-COOKIE", "Empty", "X-Folded", "set-cookie", "X-Latin"]


def test_bytes_outside_ascii_are_kept() -> None:
    assert Headers(BLOCK).get("x-latin") == "café"
    assert Headers(BLOCK).get("x-ünknown") is None


def test_a_value_is_never_taken_for_a_field() -> None:
    assert Headers(b"HTTP/1.1 200 OK\r\nA: location: nowhere\r\n\r\n").get("location") is None


def test_the_status_line_gives_version_and_reason() -> None:
    assert response().http_version == "1.1"
    assert response().reason == "All right"
    assert response(b"HTTP/2 200 \r\n\r\n").http_version == "2"
    assert response(b"HTTP/2 200 \r\n\r\n").reason == ""


def test_a_body_is_read_through_all_its_encodings() -> None:
    block = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip\r\n\r\n"
    assert response(block, gzip.compress(gzip.compress(b"text"))).body() == b"text"
    assert response(raw=b"as it is").body() == b"as it is"


def test_a_body_over_the_limit_is_a_failure_with_its_url() -> None:
    block = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    outcome = response(block, gzip.compress(bytes(1000))).body(Limits(max_decoded_bytes=999))
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.url, outcome.retryable) == (
        "decompressed_too_large",
        "http://site.test/",
        False,
    )


def test_only_refusals_by_rule_are_blocked() -> None:
    assert Failure("address_not_public", "", False).is_blocked
    assert not Failure("connect_timeout", "", True).is_blocked


@given(st.binary(max_size=400), st.text(max_size=20))
def test_foreign_headers_never_raise(block: bytes, name: str) -> None:
    headers = Headers(b"HTTP/1.1 200 OK\r\n" + block)
    assert (headers.get(name) is None) == (headers.all(name) == ())
    assert all(isinstance(value, str) for pair in headers.pairs() for value in pair)
