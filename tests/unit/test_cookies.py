"""The cookie jar: what RFC 6265 lets a site set, where it goes back to, and how much is kept."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.base.clock import FakeClock
from shoal.base.url import Url
from shoal.web.crawl_headers import (
    LONGEST,
    LONGEST_HEADER,
    MOST,
    MOST_PER_HOST,
    Cookie,
    CookieJar,
    read_cookie,
    read_date,
)

HOST = Url("https://shop.example.co.uk/dir/page")
PLAIN = Url("http://shop.example.co.uk/dir/page")


def jar_with(*fields: str, url: Url = HOST, clock: FakeClock | None = None) -> CookieJar:
    jar = CookieJar(clock or FakeClock())
    jar.take(url, fields)
    return jar


def at(path: str, host: str = "shop.example.co.uk", scheme: str = "https") -> Url:
    return Url(f"{scheme}://{host}{path}")


@pytest.mark.parametrize(
    ("field", "url", "sent"),
    [
        ("a=1", at("/dir/x"), "a=1"),
        ("a=1", at("/dir"), "a=1"),
        ("a=1", at("/dirty"), ""),
        ("a=1", at("/other"), ""),
        ("a=1; Path=/", at("/other"), "a=1"),
        ("a=1; Path=relative", at("/dir/x"), "a=1"),
        ("a=1; Path=/x", at("/x?q=/y"), "a=1"),
        ("a=1; Path=/x/", at("/x"), ""),
        ("a=1; Path=/", at("/", host="www.shop.example.co.uk"), ""),
        ("a=1; Path=/; Domain=.example.co.uk", at("/", host="other.example.co.uk"), "a=1"),
        ("a=1; Path=/; Domain=EXAMPLE.co.uk", at("/", host="example.co.uk"), "a=1"),
        ("a=1; Path=/; Domain=example.co.uk", at("/", host="badexample.co.uk"), ""),
        ("a=1; Path=/; Domain=shop.example.co.uk", at("/", host="www.shop.example.co.uk"), "a=1"),
        ("a=1; Path=/; secure", at("/", scheme="http"), ""),
        ("a=1; Path=/; Secure", at("/"), "a=1"),
        ("a = \t1 ; Path = / ; HttpOnly; SameSite=Lax", at("/"), "a=1"),
        ("a=b=c==; Path=/", at("/"), "a=b=c=="),
        ('a={"x":1,"y":"z"}; Path=/', at("/"), 'a={"x":1,"y":"z"}'),
        ("a=; Path=/", at("/"), "a="),
        ("__Host-a=1; Secure; Path=/", at("/"), "__Host-a=1"),
    ],
)
def test_a_cookie_goes_back_to_where_it_is_for(field: str, url: Url, sent: str) -> None:
    assert jar_with(field).header(url) == sent


@pytest.mark.parametrize(
    "field",
    [
        "",
        "novalue",
        "=1",
        " =1; Path=/",
        "a=1; Domain=co.uk",
        "a=1; Domain=uk",
        "a=1; Domain=other.example.co.uk",
        "a=1; Domain=p.example.co.uk",
        "a=\x00; Path=/",
        "a=1\r\nb: 2",
        "a=" + "x" * LONGEST,
        "__Secure-a=1; Path=/",
        "__Host-a=1; Secure; Path=/; Domain=shop.example.co.uk",
        "__host-a=1; Secure; Path=/x",
        "a=1; Max-Age=0",
        "a=1; Max-Age=-5; Expires=Thu, 01 Jan 2099 00:00:00 GMT",
        "a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT",
    ],
)
def test_a_cookie_that_breaks_a_rule_is_not_kept(field: str) -> None:
    assert not jar_with(field)


def test_a_secure_cookie_is_neither_set_nor_replaced_without_encryption() -> None:
    jar = jar_with("a=good; Secure; Path=/")
    jar.take(PLAIN, ["a=evil; Path=/", "b=1; Secure; Path=/"])
    assert jar.header(HOST) == "a=good"


@pytest.mark.parametrize(
    ("host", "domain"), [("127.0.0.1", "127.0.0.1"), ("[::1]", "[::1]"), ("localhost", "localhost")]
)
def test_an_address_or_a_suffix_may_set_cookies_for_itself_alone(host: str, domain: str) -> None:
    jar = jar_with(f"a=1; Domain={domain}", url=Url(f"http://{host}/"))
    assert jar.header(Url(f"http://{host}:8080/")) == "a=1"
    assert jar.header(Url(f"http://x.{host}/")) == ""


def test_the_last_of_two_attributes_counts_and_a_newer_cookie_replaces_the_older() -> None:
    jar = jar_with("a=1; Path=/x; Path=/", "a=2; Path=/")
    assert (jar.header(at("/")), len(jar)) == ("a=2", 1)


def test_longer_paths_come_first_then_older_cookies() -> None:
    jar = jar_with("a=1; Path=/", "b=2; Path=/", "c=3; Path=/x", "a=4; Path=/")
    assert jar.header(at("/x")) == "c=3; a=4; b=2"


def test_a_cookie_ends_when_its_time_has_come_by_our_clock() -> None:
    clock = FakeClock()
    jar = jar_with("a=1; Path=/; Max-Age=60", "b=2; Path=/; Expires=Thu, 01 Jan 2026 00:02:00 GMT", clock=clock)
    assert jar.header(at("/")) == "a=1; b=2"
    clock.jump(60)
    assert jar.header(at("/")) == "b=2"
    clock.jump(60)
    assert jar.header(at("/")) == ""


def test_a_site_takes_a_cookie_back() -> None:
    jar = jar_with("a=1; Path=/")
    jar.take(HOST, ["a=; Path=/; Max-Age=0"])
    assert not jar


def test_text_beyond_ascii_goes_back_as_it_came() -> None:
    as_read = "a=ü; Path=/".encode().decode("latin-1")
    assert jar_with(as_read).header(at("/")) == "a=ü"
    assert jar_with("a=\xff; Path=/").header(at("/")) == "a=\xff"


def test_the_cookies_of_a_host_are_limited_and_the_oldest_is_removed_first() -> None:
    jar = jar_with("short=1; Max-Age=60", *(f"c{number}=1" for number in range(MOST_PER_HOST)))
    assert len(jar) == MOST_PER_HOST
    assert "short=1" not in jar.header(HOST)
    assert "c0=1" in jar.header(HOST)


def test_an_expired_cookie_goes_before_an_older_one() -> None:
    clock = FakeClock()
    jar = jar_with("old=1", "short=1; Max-Age=60", *(f"c{n}=1" for n in range(MOST_PER_HOST - 2)), clock=clock)
    clock.jump(61)
    jar.take(HOST, ["new=1"])
    assert "old=1" in jar.header(HOST)


def test_the_cookies_of_a_crawl_are_limited_over_all_hosts() -> None:
    jar = CookieJar(FakeClock())
    for host in range(MOST // MOST_PER_HOST + 2):
        jar.take(Url(f"http://h{host}.example/"), [f"c{number}=1" for number in range(MOST_PER_HOST)])
    assert len(jar) == MOST
    assert jar.header(Url("http://h0.example/")) == ""


def test_cookies_set_by_sites_never_push_out_configured_ones() -> None:
    jar = CookieJar(FakeClock(), [Cookie("mine", "1", "shop.example.co.uk")])
    jar.take(HOST, ["mine=2; Path=/"])  # the site may change its value
    jar.take(HOST, [f"c{number}=1; Path=/" for number in range(2 * MOST_PER_HOST)])
    for host in range(MOST // MOST_PER_HOST + 2):
        jar.take(Url(f"http://h{host}.example/"), [f"c{number}=1" for number in range(MOST_PER_HOST)])
    assert jar.header(HOST) == "mine=2"
    assert len(jar) == MOST + 1


def test_a_full_jar_lets_the_oldest_go_and_a_new_value_does_not_make_one_younger() -> None:
    jar = CookieJar(FakeClock())
    for number in range(MOST):
        jar.take(Url(f"http://h{number}.example/"), ["c=1"])
    jar.take(Url("http://h0.example/"), ["c=2"])  # it stays the oldest
    jar.take(Url("http://new.example/"), ["c=1"])
    assert jar.header(Url("http://h0.example/")) == ""
    assert jar.header(Url("http://h1.example/")) == "c=1"


def test_a_request_carries_no_more_than_servers_take() -> None:
    jar = jar_with(*(f"c{number}={'x' * 1000}" for number in range(20)))
    assert LONGEST_HEADER - 1100 < len(jar.header(HOST)) <= LONGEST_HEADER


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("Wed, 09 Jun 2027 10:18:14 GMT", (2027, 6, 9, 10, 18, 14)),
        ("Wednesday, 09-Jun-27 10:18:14 GMT", (2027, 6, 9, 10, 18, 14)),
        ("Wed Jun  9 10:18:14 2027", (2027, 6, 9, 10, 18, 14)),
        ("9 JUNE 1999 1:2:3", (1999, 6, 9, 1, 2, 3)),
        ("09-Jun-70 10:18:14", (1970, 6, 9, 10, 18, 14)),
        ("Wed, 31 Feb 2027 10:18:14 GMT", None),
        ("Wed, 09 Jun 2027 25:18:14 GMT", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_dates_are_read_as_servers_write_them(text: str, moment: tuple[int, ...] | None) -> None:
    assert read_date(text) == (datetime(*moment, tzinfo=UTC) if moment else None)  # type: ignore[arg-type, misc]


@given(st.text(), st.sampled_from(["http://a.example/", "https://[::1]:8080/x?y", "http://127.0.0.1/a/b"]))
def test_foreign_text_never_raises(text: str, url: str) -> None:
    jar = CookieJar(FakeClock())
    jar.take(Url(url), [text, f"a={text}", f"a=1; Expires={text}; Domain={text}; Path={text}; Max-Age={text}"])
    assert "\n" not in jar.header(Url(url))
    read_cookie(text, Url(url), 0)
