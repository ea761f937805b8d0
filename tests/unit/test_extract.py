"""Facts of awkward pages, undeclared encodings, and arbitrary bytes that must not raise."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from shoal.extract.encoding import decode
from shoal.extract.flags import NO_FLAGS, PageFlag
from shoal.extract.page import ExtractOptions, PageFacts, count_words, extract
from shoal.extract.tree import MAX_REPEATED, parse
from tests.support.effort import times

HTML = "text/html; charset=utf-8"


def read(html: str, options: ExtractOptions | None = None) -> PageFacts:
    return extract(html.encode(), HTML, options or ExtractOptions())


def test_a_plain_page_gives_every_fact_of_a_record() -> None:
    facts = read(
        """<!DOCTYPE html><html lang="en-GB"><head><meta charset="utf-8">
        <title> Tea &amp;
          cake </title><meta name="Description" content="All about tea"><meta name=robots content="noindex">
        <meta name="ROBOTS" content="nofollow"><link rel="Canonical" href=" /tea "></head>
        <body><h1>Tea <small>and</small><br>cake</h1><p>One <a href="/a">two</a> three.</p>
        <a href="b.html" rel="noopener NoFollow">four</a></body></html>"""
    )
    assert facts.title == "Tea & cake"
    assert facts.description == "All about tea"
    assert facts.robots == "noindex, nofollow"
    assert facts.canonical == "/tea"
    assert facts.lang == "en-GB"
    assert facts.h1 == "Tea and cake"
    assert facts.word_count == 7
    assert facts.links == ["/a"]
    assert facts.nofollow == ["b.html"]
    assert facts.encoding == "utf-8"
    assert facts.base is None
    assert facts.flags == NO_FLAGS


def test_a_page_that_says_nothing_has_no_facts() -> None:
    facts = read("")
    assert (facts.title, facts.description, facts.canonical, facts.robots) == (None, None, None, None)
    assert (facts.lang, facts.h1, facts.base, facts.word_count, facts.links) == (None, None, None, 0, [])


@pytest.mark.parametrize(
    ("html", "links"),
    [
        ('<script>var t = "<a href=/x>x</a>"</script><a href=/y>', ["/y"]),
        ("<!-- <a href=/x> --><a href=/y>", ["/y"]),
        ("<template><a href=/x></template><a href=/y>", ["/y"]),
        ("<template><template><a href=/x></template></template>", []),
        ("<div><template shadowrootmode=open><a href=/x></template></div>", ["/x"]),
        ("<svg><template><a href=/x></a></template></svg>", ["/x"]),
        ("<noscript><a href=/x></noscript>", ["/x"]),
        ("<head><noscript><a href=/x></noscript></head>", ["/x"]),
        ("<iframe src=/z><a href=/x></iframe>", []),
        ("<textarea><a href=/x></textarea><title><a href=/x></title>", []),
        ("<frameset><frame src=/l><frame src=/r><noframes><a href=/x></noframes></frameset>", ["/l", "/r"]),
        ("<svg><a href=/x>x</a></svg>", ["/x"]),
        ("<map><area href=/x><area></map>", ["/x"]),
        ("<a href=/1>x<a href=/2>y</a>z</a>", ["/1", "/2"]),
        ("<table><a href=/1><tr><td><a href=/2></table>", ["/1", "/2"]),
        ("<a href=/1 href=/2>", ["/1"]),
        ('<a title=">" href=/x>', ["/x"]),
        ("<A HREF=/x>", ["/x"]),
        ("<a/href=/x>", ["/x"]),
        ("<a href>", [""]),
        ("<a name=x>", []),
        ('<a href="/x', []),
        ('<a href="/?a=1&amp;b=2&copy=3">', ["/?a=1&b=2&copy=3"]),
        ('<a href="/x\0y">', ["/x\ufffdy"]),
        ('<a href=" /x\n">', [" /x\n"]),
        ("<link rel=next href=/2><link rel=prev href=/0><link rel=stylesheet href=/c>", ["/2", "/0"]),
        ("<meta http-equiv=Refresh content=\"0; URL='/x'\">", ["/x"]),
        ('<meta http-equiv=refresh content="5;/x ">', ["/x"]),
        ("<meta http-equiv=refresh content=5>", []),
        ("<meta http-equiv=refresh content='url=/x'>", []),
        ("<?php <a href=/x> ?><a href=/y>", ["/y"]),
        ("<<a href=/x>", ["/x"]),
    ],
)
def test_links_are_those_a_visitor_could_follow(html: str, links: list[str]) -> None:
    assert read(html).links == links


@pytest.mark.parametrize(
    ("html", "fact", "expected"),
    [
        ("<svg><title>icon</title></svg>", "title", None),
        ("<svg><title>icon</title></svg><title>page</title>", "title", "page"),
        ("<title></title>", "title", None),
        ("<title>a<b>c</b></title>", "title", "a<b>c</b>"),
        ("<title>one</title><title>two</title>", "title", "one"),
        ("<title>unclosed", "title", "unclosed"),
        ("<title>a\0b</title>", "title", "a\ufffdb"),
        ("<h1></h1><h1>second</h1>", "h1", None),
        ("<h1>a<br>b</h1>", "h1", "a b"),
        ("<meta name=description>", "description", None),
        ("<meta property=description content=x>", "description", None),
        ("<link rel='alternate canonical' href=/x>", "canonical", "/x"),
        (f"<link rel=canonical href='/{'x' * 5000}'>", "canonical", None),
        ("<base href=/b/><base href=/c/>", "base", "/b/"),
        ("<html lang=''>", "lang", None),
        ("<p><html lang=de>", "lang", "de"),
    ],
)
def test_facts_of_awkward_markup(html: str, fact: str, expected: str | None) -> None:
    assert getattr(read(html), fact) == expected


@pytest.mark.parametrize(
    ("html", "count"),
    [
        ("<p>one two", 2),
        ("<ul><li>one<li>two</ul><p>three</p><p>four</p>", 4),
        ("<p>don't stop - <b>go</b>. 3,14 &amp; e-mail", 5),
        ("<p>a&nbsp;b", 2),
        ("<p>один два три", 3),
        ("<title>no</title><script>no no</script><style>no</style><template>no</template><p>yes", 1),
        ("<iframe>no</iframe><noscript>yes</noscript><!-- no -->", 1),
        ("<body>x<script>no</script>y", 2),
        ("<frameset><frame>", 0),
        ("", 0),
    ],
)
def test_words_are_counted_in_the_visible_text(html: str, count: int) -> None:
    assert read(html).word_count == count


@given(st.text(st.sampled_from("ab1é \n\t.-'"), max_size=60))
def test_words_are_what_splitting_finds_except_bare_punctuation(text: str) -> None:
    assert count_words(text.encode()) == sum(any(c.isalnum() for c in word) for word in text.split())


def test_the_text_hash_ignores_markup_and_the_content_hash_does_not() -> None:
    one = read("<p class=a>same <a href=/1>text</a>")
    two = read("<p class=b>same <a href=/2>text</a><script>2</script>")
    assert one.text_hash == two.text_hash
    assert one.content_hash != two.content_hash
    assert one.text_hash != read("<p>other text").text_hash


def test_long_texts_are_cut() -> None:
    facts = read(f"<title>{'word ' * 1000}</title><h1>{'x' * 5000}</h1>", ExtractOptions(max_text=20))
    assert facts.title == "word word word word"
    assert facts.h1 == "x" * 20


def test_more_links_than_the_limit_are_cut_and_flagged() -> None:
    html = "<a href=/f>f</a>" * 8 + "<a href=/n rel=nofollow>n</a>" * 8
    facts = read(html, ExtractOptions(max_links=10))
    assert (len(facts.links), len(facts.nofollow), facts.flags) == (8, 2, PageFlag.LINK_LIMIT)
    assert read(html, ExtractOptions(max_links=16)).flags == NO_FLAGS


def test_a_page_of_too_many_tags_is_read_in_part_and_flagged() -> None:
    facts = read("<title>t</title>" + "<a href=/x>y</a>" * 5000, ExtractOptions(max_tags=1000))
    assert facts.flags == PageFlag.PARSE_LIMIT
    assert facts.title == "t"
    assert 0 < len(facts.links) <= 500


@pytest.mark.parametrize(
    "unit",
    [
        "<font a%>x<p>",
        "<B/%>x<p>",
        "<b a='>%'>x<p>",
        "<i a='>x</i>' %>x<p>",
        '<i a=\x1f"x y=" %>x</i>">x<p>',
        "<b %><p title='</b>'>",
        "<b %><!--</b>-->x<p>",
        "<b %><object></b></object>x<p>",
        "<b %><table></b></table>x<p>",
        "<b %><div><div><div><div><div><div><div><div><div></b><p>",
        "<b %><b %></b>x<p>",
        "<a href=%>x<p>",
    ],
)
@pytest.mark.parametrize("size", [32_000, 100_000])
def test_tags_that_stay_open_are_repeated_within_a_limit(unit: str, size: int) -> None:
    half = "<p>" + "".join(unit.replace("%", f"{number:x}") for number in range(size // len(unit)))[: size // 2]
    document, _ = parse(half + "<p>x" * (size // 8))
    assert len(document.select("*")) < 1.5 * MAX_REPEATED


def test_a_page_with_too_many_open_tags_keeps_its_text_and_links_and_is_flagged() -> None:
    body = "".join(f"<p><font id=n{number}>x <a href=/{number}>y</a>" for number in range(3_000))
    facts = read(body)
    assert facts.flags == PageFlag.FORMATTING_LIMIT
    assert (facts.word_count, len(facts.links)) == (6_000, 3_000)


def test_a_long_link_that_stays_open_is_repeated_within_a_limit() -> None:
    html = f"<a href=/first>x</a><p><a href='/{'x' * 100_000}'>" + "<p>y" * 25_000
    facts = read(html)
    assert facts.flags == PageFlag.LINK_LIMIT
    assert facts.links[0] == "/first"
    assert sum(map(len, facts.links)) < 5 * len(html)


@pytest.mark.parametrize(
    "unit",
    [
        "<p><b id=%>x</b> <i class='a b' data-x=\"%\">y</i>",
        "<p><strong id=%><a href='/%'>x <img src=y></a></strong><code id=%><span class=z>x</span></code>",
        "<p><b><i>x</i></b><font size=2><p>y</p></font>",
        "<li><B>x<LI><font color=red>y<em>",  # never closed
    ],
)
def test_ordinary_formatting_is_within_the_limit(unit: str) -> None:
    html = "".join(unit.replace("%", str(number)) for number in range(4_000))
    assert read(html).flags == NO_FLAGS


@pytest.mark.parametrize(
    "more", ["word " * 3_000_000, "é" * 5_000_000, "\U0001f600" * 3_000_000], ids=lambda more: more[0]
)
def test_a_page_of_too_many_bytes_is_read_in_part_and_flagged(more: str) -> None:
    facts = read(f"<title>t</title><a href=/x>y</a>{more}<a href=/after>z</a>")
    assert (facts.flags, facts.title, facts.links) == (PageFlag.PARSE_LIMIT, "t", ["/x"])


@pytest.mark.parametrize("text", ["日本語のテキストです。", "Größe und Maß, Äpfel ", "\U0001f600"])
@pytest.mark.parametrize("ascii_before", [0, 5_000, 400_000])
def test_the_encoding_of_a_long_page_is_found_in_a_part_of_it(text: str, ascii_before: int) -> None:
    html = "<p>" + "." * ascii_before + text * 40_000
    assert decode(html.encode(), "text/html") == (html, "utf-8", NO_FLAGS)


def test_a_guess_at_a_long_page_takes_ordinary_time() -> None:
    body = b"<p>" + b"caf\xe9 cr\xe8me " * 500_000
    assert decode(body, "text/html")[1:] == ("windows-1252", PageFlag.ENCODING_GUESSED)


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 100_000,
        "<table><tr><td>" * 30_000,
        "<b><p>" * 30_000,
        "<p>" + "".join(f"<font a{number}>" for number in range(600)) + "<p>x" * 200_000,
        "<b " * 300_000 + ">",
        "<b" + " x" * 500_000 + "<i>" * 2_000,
        "<b><span a=b>" * 100_000,
        "<b>" + "<span a=b>" * 100_000,
        "<ul><li>" * 50_000,
        "<template>" * 50_000 + "</template>" * 50_000,
        "<p " + " ".join(f"a{number}=1" for number in range(100_000)) + ">",
        "".join(f"<hTmL a{number}=1><body b{number}>" for number in range(10_000)),
        "<!--" * 100_000 + "-->",
        "&notit;&#x110000;&#xd800;&#0;" * 20_000,
        "<title>" + " x" * 500_000 + "</title>",
        f"<a href='{'x' * 1_000_000}'></a>",
        f"<meta http-equiv=refresh content='{'1' * 500_000}'>",
        f"<meta http-equiv=refresh content='1{' ' * 500_000}!'>",
        f"<meta http-equiv=refresh content='0; {'url=' * 200_000}'>",
        f"<p>{'a' * 1_000_000}!",
    ],
    ids=lambda html: html[:16],
)
def test_a_hostile_page_is_read_in_ordinary_time(html: str) -> None:
    facts = read(html + "<a href=/after>after</a>")
    assert "/after" in facts.links


FAR_DOWN = b"<!doctype html><title>x</title><!--" + b"x" * 1_100 + b"-->"


@pytest.mark.parametrize(
    ("start", "body", "encoding"),
    [
        (FAR_DOWN, b"<meta charset=iso-8859-2>\xb3", "iso-8859-2"),
        (FAR_DOWN, b'<META http-equiv="Content-Type" content="text/html; charset=koi8-r">\xc1', "koi8-r"),
        (FAR_DOWN, b"<meta charset=windows-1252>\xc3\xa9", "windows-1252"),  # also valid UTF-8
        (FAR_DOWN, b"<meta charset=windows-1251>ascii", "windows-1251"),
        (FAR_DOWN, b"<meta charset=utf-16>\xc3\xa9", "utf-8"),
        (FAR_DOWN, b"<meta charset=x-user-defined>\xe9", "windows-1252"),
        (FAR_DOWN, b"<meta charset=klingon><meta charset=koi8-r>\xc1", "koi8-r"),
        (FAR_DOWN, b"<!-- <meta charset=koi8-r> -->\xc3\xa9", "utf-8"),
        (FAR_DOWN, b"<script>'<meta charset=koi8-r>'</script>\xc3\xa9", "utf-8"),
        (b"<script charset=utf-8></script>" + FAR_DOWN, b"<meta charset=koi8-r>\xc1", "koi8-r"),
        (b"<meta charset=koi8-r>" + FAR_DOWN, b"<meta charset=iso-8859-2>\xb3", "koi8-r"),
        (b"<meta charset=utf-8>" + FAR_DOWN, b"<meta charset=iso-8859-2>\xc3\xa9", "utf-8"),
        (b"<meta charset=windows-1252>", b"ascii", "windows-1252"),
        (b"<meta charset=UTF-8>", b"ascii", "utf-8"),
        (b"", b"ascii about a charset", "utf-8"),
    ],
)
def test_a_meta_far_down_counts_when_nothing_else_declares_an_encoding(
    start: bytes, body: bytes, encoding: str
) -> None:
    _, found, flags = decode(start + body, "text/html")
    assert (found, flags & PageFlag.ENCODING_GUESSED) == (encoding, NO_FLAGS)
    assert decode(start + body, "text/html; charset=big5")[1] == "big5"


@pytest.mark.parametrize(
    ("body", "content_type", "text", "encoding", "flags"),
    [
        ("é".encode(), HTML, "é", "utf-8", NO_FLAGS),
        ("é".encode(), "text/html", "é", "utf-8", NO_FLAGS),
        (b"plain", "text/html", "plain", "utf-8", NO_FLAGS),
        (b"\xef\xbb\xbf\xc3\xa9", "text/html; charset=latin1", "é", "utf-8", NO_FLAGS),
        ("é".encode("utf-16"), HTML, "é", "utf-16le", NO_FLAGS),
        (b"\xfe\xff\x00a", HTML, "a", "utf-16be", NO_FLAGS),
        ("<p>é".encode("utf-16-le"), "text/html", "<p>é", "utf-16le", PageFlag.ENCODING_GUESSED),
        (b"\xe9", "text/html; charset=ISO-8859-1", "é", "windows-1252", NO_FLAGS),
        (b"\x80", "text/html;charset='latin1'", "€", "windows-1252", NO_FLAGS),
        ("日本".encode("shift_jis"), "text/html; charset=x-sjis", "日本", "shift_jis", NO_FLAGS),
        (b"<meta charset=koi8-r>\xc1", None, "<meta charset=koi8-r>а", "koi8-r", NO_FLAGS),  # noqa: RUF001
        (b"<meta charset=koi8-r>\xc3\xa9", HTML, "<meta charset=koi8-r>é", "utf-8", NO_FLAGS),
        (b"caf\xe9 cr\xe8me", "text/html", "café crème", "windows-1252", PageFlag.ENCODING_GUESSED),
        (b"a\xffb", HTML, "a\ufffdb", "utf-8", PageFlag.ENCODING_ERRORS),
        (b"+ADw-", "text/html; charset=utf-7", "+ADw-", "utf-8", PageFlag.ENCODING_UNKNOWN),
        ("é".encode(), "text/html; charset=x-\0", "é", "utf-8", PageFlag.ENCODING_UNKNOWN),
        ("é".encode(), "text/html; charset=" + "u" * 10_000, "é", "utf-8", PageFlag.ENCODING_UNKNOWN),
        (b"616263", "text/html; charset=hex", "616263", "utf-8", PageFlag.ENCODING_UNKNOWN),
    ],
)
def test_the_encoding_is_decided_by_mark_then_header_then_meta_then_guess(
    body: bytes, content_type: str | None, text: str, encoding: str, flags: PageFlag
) -> None:
    assert decode(body, content_type) == (text, encoding, flags)


@pytest.mark.parametrize(
    ("body", "content_type", "parsed"),
    [
        (b"<title>x</title>", "text/html", True),
        (b"<title>x</title>", "TEXT/HTML ; charset=utf-8", True),
        (b"<title>x</title>", "application/xhtml+xml", True),
        (b"\xef\xbb\xbf\n <title>x</title>", None, True),
        (b"<title>x</title>", "", True),
        (b"title", None, False),
        (b"<title>x</title>", "text/plain", False),
        (b"<title>x</title>", "x" * 100_000, False),
        (b"%PDF-1.7", "text/html", False),
        (b"PK\x03\x04", "text/html", False),
        (b"\x7fELF", "text/html", False),
    ],
)
def test_only_html_is_parsed(body: bytes, content_type: str | None, parsed: bool) -> None:
    facts = extract(body, content_type)
    assert (facts.flags == PageFlag.NOT_HTML) is not parsed
    assert (facts.title == "x") is parsed
    assert len(facts.content_hash) == 32


TAGS = st.sampled_from(
    [
        *("a", "area", "base", "body", "form", "frame", "frameset", "h1", "head", "html", "iframe", "li", "link"),
        *("math", "meta", "noscript", "option", "p", "script", "select", "style", "svg", "table", "td", "template"),
        *("textarea", "title", "tr"),
    ]
)
ATTRIBUTES = st.sampled_from(
    [
        *("", "/", " a b", " href=/x", " href='\0'", " href='", " rel=nofollow", " rel=canonical", " lang=é"),
        *(" name=robots content=x", " http-equiv=refresh content='0;/r'", " shadowrootmode=open", " src=/s"),
        *(" charset=utf-16", " charset=x"),
    ]
)
MARKUP = st.one_of(
    st.builds("<{}{}>".format, TAGS, ATTRIBUTES),
    TAGS.map("</{}>".format),
    st.sampled_from(
        ["<!--", "-->", "<![CDATA[", "]]>", "<?", "<!doctype html>", "&#0;", "&#xd800;", "&amp", "<", "\0"]
    ),
    st.text(max_size=8).map(lambda text: text.encode(errors="replace").decode()),
)
BODIES = st.binary(max_size=200) | st.lists(MARKUP, max_size=30).map(lambda parts: "".join(parts).encode())
LABELS = st.sampled_from(
    [
        *("utf-8", "utf-7", "utf-16", "utf-16be", "latin1", "gb18030", "big5", "euc-jp", "iso-2022-jp", "shift_jis"),
        *("euc-kr", "replacement", "x-user-defined", "hz-gb-2312", "rot13", "idna", "punycode", "unicode_escape"),
        *("", "\0", "é"),
    ]
)
CONTENT_TYPES = st.none() | LABELS.map("text/html; charset={}".format) | st.text(max_size=30)


@settings(max_examples=times(200))
@given(BODIES, CONTENT_TYPES)
@example(b"\xff\xfe\x00\xd8", None)
@example(b"\x1b$B", "text/html; charset=iso-2022-jp")
def test_foreign_bytes_never_raise_and_facts_can_always_be_stored(body: bytes, content_type: str | None) -> None:
    facts = extract(body, content_type, ExtractOptions(max_links=5, max_text=10))
    texts = [value for value in astuple(facts) if isinstance(value, str)] + facts.links + facts.nofollow
    assert not any("\0" in text for text in texts)
    assert all(text.encode() is not None for text in texts)
    assert extract(body, content_type, ExtractOptions(max_links=5, max_text=10)) == facts
