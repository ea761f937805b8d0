"""Headers, cookies and proxy of a crawl: invalid ones are rejected, and secrets are never shown."""

from typing import Any

import pytest

from shoal.base.clock import FakeClock
from shoal.base.errors import InvalidInput
from shoal.base.url import Url
from shoal.cli.options import FLAGS, flag_of
from shoal.crawl.crawl import CrawlConfig, shown_config
from shoal.crawl.credentials import cookies_for, hidden, hides
from shoal.egress.exchange import LONGEST_HEADER, MOST_HEADERS, split
from shoal.process.crawl_request import read_config
from shoal.web.crawl_headers import CookieJar, CrawlHeaders, seed_origins

SEED = "https://a.example/"
SECRET = "hunter2"


def config(**options: Any) -> CrawlConfig:
    return read_config({"seeds": [SEED], **options}, flag_of)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"headers": {"Host": "x"}}, "--header must not set 'Host': name the host in the seed"),
        ({"headers": {"content-length": "1"}}, "must not set 'content-length': Shoal sets it"),
        ({"headers": {"User-Agent": "x"}}, "--user-agent"),
        ({"headers": {"If-None-Match": "x"}}, "in recrawls"),
        ({"headers": {"X": f"{SECRET}\r\nEvil: 1"}}, "have control characters in the value of 'X'"),
        ({"headers": {"X": f"{SECRET}\x00"}}, "contains a NUL character"),
        ({"headers": {"X": f"{SECRET}\ud800"}}, "unpaired surrogate"),
        ({"headers": {"X Y": SECRET}}, "have an invalid name: 'X Y'"),
        ({"headers": {"": SECRET}}, "have an invalid name"),
        ({"headers": {"X\n": SECRET}}, "have an invalid name"),
        ({"headers": {"X": "1", "x": "2"}}, "name 'x' twice"),
        ({"headers": {"X": SECRET * (LONGEST_HEADER // 6)}}, "longer than 4096"),
        ({"headers": {"X": SECRET * 10_000}}, "is not valid"),
        ({"headers": {f"X{n}": "1" for n in range(MOST_HEADERS + 1)}}, "must not be more than 50"),
        ({"headers": {"X": [SECRET]}}, r"--header\[\.\.\.\] is not valid"),
        ({"cookies": [{"name": "a", "value": f"{SECRET};b=2"}]}, r"cookies\[0\] must not contain control"),
        ({"cookies": [{"name": "a", "value": f"{SECRET}\n"}]}, "must not contain control"),
        ({"cookies": [{"name": "a=b"}]}, "must have a name without ="),
        ({"cookies": [{"value": SECRET}]}, r"cookies\[0\] has no field name; give it"),
        ({"cookies": [{"name": "a", "domain": "co.uk"}]}, "must not have a public suffix"),
        ({"cookies": [{"name": "a", "domain": "a b"}]}, "must have a host name such as example.com"),
        ({"cookies": [{"name": "a", "domain": "a.example:80"}]}, "must have a host name such as example.com"),
        ({"cookies": [{"name": "a", "path": "x"}]}, "must have a path that begins with /"),
        ({"cookies": [{"name": f"a{n}"} for n in range(MOST_HEADERS + 1)]}, "is not valid"),
        ({"proxy": f"ftp://me:{SECRET}@h"}, "--proxy is not a proxy URL: write it as http://"),
        ({"proxy": f"me:{SECRET}@h:1"}, "is not a proxy URL"),
        ({"proxy": f"http://me:{SECRET}@h\r\n:1"}, "must be one word of printable text"),
        ({"proxy": "http://h:99999"}, "is not a proxy URL"),
    ],
)
def test_a_header_cookie_or_proxy_that_cannot_be_sent_is_refused_without_its_value(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        config(**options)
    assert SECRET not in caught.value.message


def test_flags_become_headers_and_a_proxy() -> None:
    assert FLAGS["headers"].value(("X-A: 1", "Accept:text/html")) == {"X-A": "1", "Accept": "text/html"}
    assert FLAGS["proxy"].value("http://h:1") == "http://h:1"
    with pytest.raises(InvalidInput, match="--header names 'X' twice"):
        FLAGS["headers"].value(("X: 1", "X: 2"))
    with pytest.raises(InvalidInput, match="--header has a value that is not a header; write it as NAME: VALUE"):
        FLAGS["headers"].value((SECRET,))


def test_the_options_are_shown_without_secrets() -> None:
    given = config(
        headers={"Authorization": f"Bearer {SECRET}", "X-Mine": SECRET, "Accept-Language": "de"},
        cookies=[{"name": "sid", "value": SECRET}],
        proxy=f"http://me:{SECRET}@proxy.example:3128",
    )
    shown = shown_config(given)
    assert SECRET not in str(shown)
    assert shown["headers"] == {"Authorization": "***", "X-Mine": "***", "Accept-Language": "de"}
    assert shown["cookies"][0]["name"] == "sid"
    assert shown["proxy"] == "http://me:***@proxy.example:3128"


def test_redacted_values_differ_from_real_ones() -> None:
    for options in ({"headers": {"X": "1"}}, {"cookies": [{"name": "a"}]}, {"proxy": "http://me:pw@h:1"}):
        real = config(**options).plain()
        assert not hides(real)
        assert hides(hidden(real))
    plain = config(headers={"Accept": "x"}, proxy="http://h:1").plain()
    assert hidden(plain) == plain


def headers(given: dict[str, str], *seeds: str, cookies: list[dict[str, Any]] | None = None) -> CrawlHeaders:
    public, secret = split(given)
    urls = [Url(seed) for seed in seeds]
    jar = CookieJar(FakeClock(), cookies_for(config(cookies=cookies or []).cookies, urls))
    return CrawlHeaders(public, jar, secret, seed_origins(urls))


def test_only_the_origins_of_the_seeds_see_a_header_that_may_be_a_secret() -> None:
    sent = headers({"Accept": "x", "X-Mine": SECRET, "Cookie": "c=1"}, "http://a.example/x", "https://b.example:8443/")
    for home in ("http://a.example/", "https://a.example/y", "https://b.example:8443/"):
        assert dict(sent.to(Url(home))) == {"Accept": "x", "X-Mine": SECRET, "Cookie": "c=1"}
    for away in (
        "http://www.a.example/",
        "http://a.example:8080/",
        "https://b.example/",
        "http://b.example:8443/",
        "http://c.example/",
    ):
        assert dict(sent.to(Url(away))) == {"Accept": "x"}


def test_equal_headers_are_one_object_so_that_a_handle_keeps_them() -> None:
    plain = headers({"Accept": "x"}, "http://a.example/")
    assert plain.to(Url("http://a.example/")) is plain.to(Url("http://b.example/"))
    cookied = headers({"X": "1"}, "http://a.example/", cookies=[{"name": "a", "value": "1"}])
    assert cookied.to(Url("http://a.example/1")) is cookied.to(Url("http://a.example/2"))


def test_given_cookies_go_to_the_seeds_hosts_or_their_domain() -> None:
    given = [{"name": "own", "value": "1"}, {"name": "all", "value": "2", "domain": ".a.example"}]
    sent = headers({}, "https://www.a.example/", cookies=given)
    assert dict(sent.to(Url("https://www.a.example/")))["Cookie"] == "own=1; all=2"
    assert dict(sent.to(Url("http://www.a.example/")))["Cookie"] == "all=2"
    assert dict(sent.to(Url("https://b.a.example/")))["Cookie"] == "all=2"
    assert sent.to(Url("https://b.example/")) == ()


def test_a_cookie_header_and_the_jar_are_one_header() -> None:
    sent = headers({"Cookie": "c=1"}, "https://a.example/", cookies=[{"name": "a", "value": "2"}])
    assert sent.to(Url("https://a.example/")) == (("Cookie", "c=1; a=2"),)
