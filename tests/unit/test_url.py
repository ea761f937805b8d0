"""Canonical URLs: one form per address, rejections with a reason, and a fast path equal to the slow one."""

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.base.url import (
    Canonicalizer,
    Url,
    UrlRefusal,
    UrlRules,
    authority,
    canonical,
    hostname,
    origin,
    registrable_domain,
)
from tests.support.effort import times

SORTED = UrlRules(sort_query=True)
AS_IT_IS = UrlRules(tracking=(), session=())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("http://example.org", "http://example.org/"),
        ("HTTP://EXAMPLE.org:80/", "http://example.org/"),
        ("https://example.org:443/a", "https://example.org/a"),
        ("http://example.org:443/a", "http://example.org:443/a"),
        ("http://example.org:/a", "http://example.org/a"),
        ("http://example.org./a", "http://example.org/a"),
        ("http://example.org.:8080/a", "http://example.org:8080/a"),
        ("http://example.org/a#top", "http://example.org/a"),
        ("http://example.org/a #top", "http://example.org/a%20"),
        (" \n http://example.org/a \t", "http://example.org/a"),
        ("http://example.org/a/./b/../c", "http://example.org/a/c"),
        ("http://example.org/%2e%2e/a/%2E/b", "http://example.org/a/b"),
        ("http://example.org/../../a", "http://example.org/a"),
        ("http://example.org/a?", "http://example.org/a"),
        ("http://example.org?q=1", "http://example.org/?q=1"),
        ("http://example.org/a b?c d", "http://example.org/a%20b?c%20d"),
        ("http://example.org/é?ü=ß", "http://example.org/%C3%A9?%C3%BC=%C3%9F"),
        ("http://example.org/%ff%fe/%/%zz", "http://example.org/%ff%fe/%/%zz"),
        ("http://example.org/%0d%0aHost:x", "http://example.org/%0d%0aHost:x"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://аpple.com/", "http://xn--pple-43d.com/"),  # noqa: RUF001 - the first letter is Cyrillic
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.1/", "http://127.0.0.1/"),
        ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://①②⑦.⓪.⓪.①/", "http://127.0.0.1/"),
        ("http://0x7f.1../", "http://127.0.0.1/"),
        ("http://[::FFFF:7f00:1]:8080/", "http://[::ffff:7f00:1]:8080/"),
        ("http://@example.org/", "http://example.org/"),
        ("http://example.org/a?b\\c", "http://example.org/a?b\\c"),
    ],
)
def test_different_writings_of_an_address_become_one(written: str, expected: str) -> None:
    assert canonical(written) == expected


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", UrlRefusal.INVALID_URL),
        ("   ", UrlRefusal.INVALID_URL),
        ("example.org/a", UrlRefusal.INVALID_URL),
        ("//example.org/x", UrlRefusal.INVALID_URL),
        ("http://", UrlRefusal.INVALID_URL),
        ("http:///x", UrlRefusal.INVALID_URL),
        ("http:example.org", UrlRefusal.INVALID_URL),
        ("http://./", UrlRefusal.INVALID_URL),
        ("http://a..b/", UrlRefusal.INVALID_URL),
        ("http://xn--/", UrlRefusal.INVALID_URL),
        ("http://xn--a.com/", UrlRefusal.INVALID_URL),
        ("http://exa mple.org/", UrlRefusal.INVALID_URL),
        ("http://example.org:65536/", UrlRefusal.INVALID_URL),
        ("http://example.org:abc/", UrlRefusal.INVALID_URL),
        ("http://example.org/\ud800", UrlRefusal.INVALID_URL),
        ("http://256.1.1.1/", UrlRefusal.INVALID_URL),
        ("http://[fe80::1%25eth0]/", UrlRefusal.INVALID_URL),
        ("http://[::1", UrlRefusal.INVALID_URL),
        ("http://example.org:-1/", UrlRefusal.INVALID_URL),
        ("http://example.org%00.test/", UrlRefusal.INVALID_URL),
        ("http://example.org%2f@127.0.0.1/", UrlRefusal.CREDENTIALS_IN_URL),
        ("mailto:me@example.org", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("javascript:alert('\\n')", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("data:text/html," + "x" * 5000, UrlRefusal.SCHEME_NOT_ALLOWED),
        ("file:///etc/passwd", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("ftp://example.org/", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("view-source:http://example.org/", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("source:file:///etc/passwd", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("file:/etc/passwd", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("gopher://127.0.0.1:6379/_x", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("chrome://settings", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("blob:http://example.org/1", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("http://user:secret@example.org/", UrlRefusal.CREDENTIALS_IN_URL),
        ("http://example.org@127.0.0.1/", UrlRefusal.CREDENTIALS_IN_URL),
        ("http://a@b@c/", UrlRefusal.CREDENTIALS_IN_URL),
        ("http://exa\tmple.org/", UrlRefusal.CONTROL_CHARACTERS),
        ("http://example.org/a\r\nHost: b", UrlRefusal.CONTROL_CHARACTERS),
        ("http://example.org/\x00", UrlRefusal.CONTROL_CHARACTERS),
        ("http://example.org/\x7f", UrlRefusal.CONTROL_CHARACTERS),
        ("http://169.254.169.254:8888\\@example.org/", UrlRefusal.BACKSLASH_IN_URL),
        ("http://example.org/a\\b", UrlRefusal.BACKSLASH_IN_URL),
        ("http://example.org/" + "a" * 2065, UrlRefusal.URL_TOO_LONG),
        ("http://example.org/" + "é" * 1000, UrlRefusal.URL_TOO_LONG),
        ("http://example.org/" + "a" * 10_000_000, UrlRefusal.URL_TOO_LONG),
        ("http://" + "a" * 64 + ".org/", UrlRefusal.HOST_TOO_LONG),
        ("http://" + "a." * 126 + "org/", UrlRefusal.HOST_TOO_LONG),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(written: str, reason: UrlRefusal) -> None:
    assert canonical(written) is reason


def test_a_url_of_exactly_the_limit_is_taken() -> None:
    url = "http://example.org/" + "a" * 2064
    assert len(url) == 2083
    assert canonical(url) == url


def test_the_limit_can_be_set() -> None:
    assert canonical("http://example.org/abc", UrlRules(max_length=20)) is UrlRefusal.URL_TOO_LONG


def test_every_refusal_has_a_code_and_words_and_fits_in_a_byte() -> None:
    assert UrlRefusal.URL_TOO_LONG.code == "url_too_long"
    assert all(refusal.problem and 0 < refusal < 256 for refusal in UrlRefusal)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("http://h/?utm_source=a&utm_campaign=b", "http://h/"),
        ("http://h/?id=1&UTM_Source=a&x=2", "http://h/?id=1&x=2"),
        ("http://h/?gclid=1&fbclid=2&q=3", "http://h/?q=3"),
        ("http://h/?gclid&q=3", "http://h/?q=3"),
        ("http://h/?q=gclid&r=utm_source=1", "http://h/?q=gclid&r=utm_source=1"),
        ("http://h/?gclid2=1&xsid=2&sidx=3", "http://h/?gclid2=1&xsid=2&sidx=3"),
        ("http://h/?PHPSESSID=f00&a=1", "http://h/?a=1"),
        ("http://h/?a=1&sid=f00", "http://h/?a=1"),
        ("http://h/a;jsessionid=1A2B?x=1", "http://h/a?x=1"),
        ("http://h/a;JSESSIONID=1A2B/b;v=1", "http://h/a/b;v=1"),
        ("http://h/a/..;jsessionid=1/b", "http://h/b"),
        ("http://h/a/.;jsessionid=1/b", "http://h/a/b"),
        ("http://h/a?x=1&&y=2&", "http://h/a?x=1&&y=2&"),
    ],
)
def test_tracking_and_session_parameters_are_removed(written: str, expected: str) -> None:
    assert canonical(written) == expected


def test_the_list_of_removed_parameters_is_configurable() -> None:
    url = "http://h/a;jsessionid=1?utm_source=a&ref=b&Campaign_x=1"
    assert canonical(url, AS_IT_IS) == url
    assert canonical(url, UrlRules(tracking=("REF", "campaign_*"))) == "http://h/a?utm_source=a"


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (UrlRules(drop=("ref",)), "http://h/a;ref=1?from_x=2&sid2=3"),
        (UrlRules(drop=("REF", "from_*")), "http://h/a;ref=1?sid2=3"),
        (UrlRules(drop=("*",)), "http://h/a;ref=1"),
        (UrlRules(drop=("*",), keep=("Ref",)), "http://h/a;ref=1?ref=1"),
        (UrlRules(keep=("utm_*", "sid")), "http://h/a;ref=1;sid=9?utm_a=0&ref=1&from_x=2&sid=4&sid2=3"),
        (UrlRules(keep=("utm_ab", "si*")), "http://h/a;ref=1;sid=9?ref=1&from_x=2&sid=4&sid2=3"),
        (UrlRules(keep=("*",)), "http://h/a;ref=1;sid=9?utm_a=0&ref=1&from_x=2&sid=4&sid2=3"),
    ],
)
def test_parameters_of_ones_own_are_dropped_and_kept(rules: UrlRules, expected: str) -> None:
    assert canonical("http://h/a;ref=1;sid=9?utm_a=0&ref=1&from_x=2&sid=4&sid2=3", rules) == expected


@pytest.mark.parametrize("written", ["http://h/?a;b=1&c/d=2&=3&&e", "http://h/?", "http://h/?&&"])
def test_a_lone_star_drops_the_whole_query_whatever_is_in_it(written: str) -> None:
    assert canonical(written, UrlRules(drop=("*",))) == "http://h/"


def test_a_query_is_sorted_by_name_only_when_asked() -> None:
    url = "http://h/?b=2&a=2&a=1&c"
    assert canonical(url) == url
    assert canonical(url, SORTED) == "http://h/?a=2&a=1&b=2&c"


def test_parts_of_a_canonical_url() -> None:
    url = Url("https://example.org:8443/a/b?c=//d")
    assert (origin(url), authority(url), hostname(url)) == (
        "https://example.org:8443",
        "example.org:8443",
        "example.org",
    )
    assert origin(Url("http://a/")) == "http://a"
    assert hostname(Url("http://[::1]/")) == hostname(Url("http://[::1]:80/")) == "[::1]"


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("example.org", "example.org"),
        ("www.shop.example.co.uk", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("localhost", "localhost"),
        ("a.b.unknowntld", "b.unknowntld"),
        ("www.xn--85x722f.xn--55qx5d.cn", "xn--85x722f.xn--55qx5d.cn"),
        ("me.github.io", "me.github.io"),
        ("10.1.2.3", "10.1.2.3"),
        ("[2001:db8::1]", "[2001:db8::1]"),
    ],
)
def test_the_registrable_domain(host: str, domain: str) -> None:
    assert registrable_domain(host) == domain


BASE = Url("http://example.org/shop/list/index.html?page=2")


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("/a/b.html", "http://example.org/a/b.html"),
        ("/", "http://example.org/"),
        ("p1.html", "http://example.org/shop/list/p1.html"),
        ("./p1.html", "http://example.org/shop/list/p1.html"),
        ("../x/", "http://example.org/shop/x/"),
        ("../../../../x", "http://example.org/x"),
        ("../", "http://example.org/shop/"),
        ("..", "http://example.org/shop/"),
        (".", "http://example.org/shop/list/"),
        ("../?a=1#b", "http://example.org/shop/?a=1"),
        ("", "http://example.org/shop/list/index.html?page=2"),
        ("#top", "http://example.org/shop/list/index.html?page=2"),
        ("?page=3", "http://example.org/shop/list/index.html?page=3"),
        ("//other.example/x", "http://other.example/x"),
        ("///other.example/x", "http://other.example/x"),
        ("http:next.html", "http://example.org/shop/list/next.html"),
        ("https://other.example", "https://other.example/"),
        ("HTTPS://Other.example/A", "https://other.example/A"),
        ("/a//b/", "http://example.org/a//b/"),
        ("/a/../b", "http://example.org/b"),
        ("/.well-known/x", "http://example.org/.well-known/x"),
        ("/a?utm_medium=x&b=1", "http://example.org/a?b=1"),
        ("/a;sid=1", "http://example.org/a"),
        (" /a\n", "http://example.org/a"),
        ("/a?q='1'", "http://example.org/a?q=%271%27"),
        ("/a'b", "http://example.org/a'b"),
        ("a:b", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("./a:b", "http://example.org/shop/list/a:b"),
        ("tel:+155", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("http:///x", UrlRefusal.INVALID_URL),
        ("/a\nb", "http://example.org/ab"),
        ("pa\tge\r\n.html?a\tb", "http://example.org/shop/list/page.html?ab"),
        ("java\nscript:alert(1)", UrlRefusal.SCHEME_NOT_ALLOWED),
        ("/a\x00b", UrlRefusal.CONTROL_CHARACTERS),
        ("a\\b\\c.html", "http://example.org/shop/list/a/b/c.html"),
        ("\\a\\..\\b", "http://example.org/b"),
        ("/a?b\\c", "http://example.org/a?b\\c"),
        ("/a#b\\c", "http://example.org/a"),
        ("\\\\other.example\\x", "http://other.example/x"),
        ("http:\\\\other.example\\x", "http://other.example/x"),
        ("http://127.0.0.1\\@other.example/", UrlRefusal.BACKSLASH_IN_URL),
        ("\\\\127.0.0.1\\@other.example/", UrlRefusal.BACKSLASH_IN_URL),
        ("/" + "a" * 3000, UrlRefusal.URL_TOO_LONG),
        ("../" * 700 + "x", UrlRefusal.URL_TOO_LONG),
        ("//user@other.example/", UrlRefusal.CREDENTIALS_IN_URL),
    ],
)
def test_links_are_resolved_as_a_browser_does(href: str, expected: str | UrlRefusal) -> None:
    canonicalizer = Canonicalizer()
    first, again = canonicalizer.resolve(BASE, [href]), canonicalizer.resolve(BASE, [href])
    assert first == again == [expected]


def test_a_base_element_moves_relative_links_and_a_bad_one_does_not() -> None:
    canonicalizer = Canonicalizer()
    moved = canonicalizer.base(BASE, "/other/")
    assert canonicalizer.resolve(moved, ["x", "/y"]) == ["http://example.org/other/x", "http://example.org/y"]
    assert canonicalizer.base(BASE, "data:,x") == canonicalizer.base(BASE, None) == BASE


def test_links_of_one_page_do_not_change_how_those_of_another_are_resolved() -> None:
    canonicalizer = Canonicalizer()
    hrefs = ["a", "../a", "?q", "/a", "//x/a", "http:a", "#", ""]
    pages = [Url("http://h/p/q"), Url("https://h/p/q"), Url("http://h/r/s/t"), Url("http://h:81/p/q")]
    for page in pages + pages:
        assert canonicalizer.resolve(page, hrefs) == Canonicalizer().resolve(page, hrefs)


def test_the_caches_stay_bounded() -> None:
    canonicalizer = Canonicalizer()
    proven = {f"http://h{page % 7}/{page}/{link}" for page in range(1500) for link in range(60)}
    for page in range(1500):
        hrefs = [f"/{page}/{link}" for link in range(60)] * 2 + [f"http://h{page}/", "/a#" + "x" * 10_000]
        canonicalizer.resolve(Url(f"http://h{page % 7}/"), hrefs, proven)
    kept = [href for links in canonicalizer._links.values() for href in links]
    assert len(kept) + len(canonicalizer._origins) < 35_000
    assert max(map(len, kept)) <= 512


# Texts made of parts that URL parsers disagree about; purely random text would hardly ever contain them.
PIECES = st.sampled_from(
    [
        *"aB1./?#&=;:@%[]{}|^`'\"<>~!$()*+,-_é中ß\u00ad①\\\t\n\x00\x7f\ud800",
        *("..", "//", "../", "./", "%2e", "%2E", "%00", "%zz", "%41", ".html", "index/"),
        *("http:", "https:", "http://", "https://", "HTTP://", "ftp:", "user@", "//h", "h.", "xn--", "xn--a"),
        *("127.1", "0x7f", "256", ":80", ":443", ":8080", ":0"),
        *("sid=", "sid=1", ";sid=1", "utm_a=1", "UTM_", "gclid", ";jsessionid=1"),
    ]
)
SOUP = st.lists(PIECES, max_size=12).map("".join)
WORD = st.text("ab1-._~%", min_size=1, max_size=4)
STRUCTURED = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "/", "../", "../../", "./", "http://h/", "http://other.example/", "https://h:8080/", "//h/"]),
    st.lists(WORD, max_size=4).map("/".join),
    st.sampled_from(["", "?", "?a=1", "?b=1&a=2", "?utm_x=1", "?a=1&sid=2", "?a='", "/?x", ";sid=1", ";v=1"]),
    st.sampled_from(["", "#", "#a b", "#\n", "/", "//"]),
)
HREFS = st.lists(SOUP | STRUCTURED | st.text(max_size=20), max_size=6)
NAMES = st.lists(
    st.sampled_from(["*", "a", "A*", "b", "s*", "sid", "SID", "utm_*", "utm_a", "%c3%a9", "1"]), max_size=3
)
RULES = st.builds(
    UrlRules,
    max_length=st.sampled_from([2083, 40]),
    tracking=st.just(UrlRules().tracking) | NAMES.map(tuple),
    session=st.just(UrlRules().session) | NAMES.map(tuple),
    drop=NAMES.map(tuple),
    keep=NAMES.map(tuple),
    sort_query=st.booleans(),
)
PAGES = st.one_of(STRUCTURED, SOUP.map("http://h/{}".format), SOUP.map("http://{}".format))


@settings(max_examples=times(200))
@given(PAGES | SOUP | st.text(), RULES)
@example("http://h/.;sid=1/", UrlRules())
@example("http://h/a;;sid=1sid=2", UrlRules())
@example("http://0x7f.1../", UrlRules())
def test_a_canonical_url_is_its_own_canonical_form(text: str, rules: UrlRules) -> None:
    url = canonical(text, rules)
    if not isinstance(url, UrlRefusal):
        assert canonical(url, rules) == url
        assert url.isascii()
        assert len(url) <= rules.max_length
        assert hostname(url).strip(".") == hostname(url) != ""


AUTHORITIES = st.lists(
    st.sampled_from([*"a1.:@/\\#?%[]", "127.0.0.1", "0x7f", "[::1]", "site.test", "%40", "%2f", ":80", "①", "。"]),
    max_size=8,
).map("".join)


@settings(max_examples=times(200), deadline=None)
@given(AUTHORITIES.map("http://{}".format) | PAGES, RULES)
@example("http://site.test@127.0.0.1/", UrlRules())
@example("http://127.0.0.1#@site.test/", UrlRules())
@example("http://site.test。127.1/", UrlRules())
def test_every_parser_reads_the_same_host_out_of_a_canonical_url(text: str, rules: UrlRules) -> None:
    url = canonical(text, rules)
    if not isinstance(url, UrlRefusal):
        other = urlsplit(url)  # a different parser: two parsers that disagree can be used to bypass a filter
        assert other.netloc == authority(url)
        assert other.hostname == hostname(url).strip("[]")
        assert (other.username, other.password, other.scheme in ("http", "https")) == (None, None, True)


@settings(max_examples=times(200))
@given(PAGES, HREFS, RULES)
def test_the_fast_way_equals_the_parser(page: str, hrefs: list[str], rules: UrlRules) -> None:
    canonicalizer = Canonicalizer(rules)
    base = canonical(page, rules)
    if isinstance(base, UrlRefusal):
        base = Url("http://h/b/c")
    slow = [canonicalizer._parse(href, base) for href in hrefs]
    assert canonicalizer.resolve(base, hrefs) == slow
    assert canonicalizer.resolve(base, hrefs) == slow
    for url in slow:
        assert isinstance(url, UrlRefusal) or canonical(url, rules) == url


@settings(max_examples=times(200))
@given(PAGES, HREFS, HREFS, RULES)
@example("http://h/a/b", ["//x/y", "http:c", "..//x/y", "./http:c"], ["/.//x/y", "./http:c"], UrlRules())
def test_the_fast_path_is_used_only_for_links_that_it_reads_correctly(
    page: str, hrefs: list[str], others: list[str], rules: UrlRules
) -> None:
    canonicalizer = Canonicalizer(rules)
    base = canonical(page, rules)
    if isinstance(base, UrlRefusal):
        base = Url("http://h/b/c")
    known = [canonicalizer._parse(href, base) for href in [*others, *hrefs]]
    proven = {url for url in known if isinstance(url, str)}
    slow = [canonicalizer._parse(href, base) for href in hrefs]
    assert canonicalizer.resolve(base, hrefs, proven) == slow
    assert canonicalizer.resolve(base, hrefs, proven) == slow
