"""The details of a page stored for analyses: complete, bounded, and robust against any content."""

import re
import time
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.extract.details import (
    DEEPEST,
    LONGEST_URL,
    MOST,
    Alternate,
    Details,
    Heading,
    Image,
    Resource,
    SetCookie,
    packed,
    read_details,
    unpacked,
)
from shoal.extract.fingerprint import fingerprint, sketch, word_pairs
from shoal.extract.links import LONGEST_TEXT
from shoal.extract.tree import Source

HTML = "text/html; charset=utf-8"
PIECES = """
<a href=/x rel=nofollow>|<img src=/i alt=''>|<img>|<h1>|</h1>|<h6>|<link rel=alternate hreflang=de href=/de>|<title>
<script type=application/ld+json>|{"a":[|]}|</script>|<svg>|</svg>|<template>|</template>|<math>|<table>
<div itemscope itemprop=a itemref='b c'>|<p id=b itemprop=c>|<div typeof=s:P property=n vocab=x>|<base href=//x>|</body>
<form action=>|<object data=1>|&#xD800;|<frameset>|<meta name=a content>|text
"""
SOUP = st.lists(st.sampled_from(re.split(r"[|\n]", PIECES)), max_size=40).map("".join)


def read(html: str, headers: Sequence[tuple[str, str]] = ()) -> Details:
    return read_details(Source("http://example.org/", html.encode(), HTML, headers=headers))


def test_the_details_of_a_page_are_kept_as_written() -> None:
    details = read(
        """<!DOCTYPE html><title>One</title><title>Two</title><base href="/b/"><link rel=canonical href="/c">
        <link rel="alternate" hreflang="de-AT" href="/de"><link rel="shortcut icon" href="/i.ico">
        <link rel=stylesheet href=/s.css integrity=sha384-x><meta name=Viewport content="width=device-width">
        <meta property=og:title content="A title"><h1>Tea <b>and</b>
        cake</h1><h3>Cups</h3><a href=" /x " rel="noopener nofollow">a  link</a>
        <a href=/y><img src=/p.png alt="a cup"></a>
        <a name=top>no link</a><img src=/q.png alt="" width=3 height=4 loading=lazy><img srcset="/r.png 2x">
        <script src=/app.js></script><iframe src="//else.example/"></iframe><form action="http://post.example/"></form>"""
    )
    assert details.doctype
    assert (details.titles, details.base, details.canonicals) == (["One", "Two"], "/b/", ["/c"])
    assert details.hreflang == [Alternate("de-AT", "/de")]
    assert details.metas == {"viewport": "width=device-width", "og:title": "A title"}
    assert details.headings == [Heading(1, "Tea and cake"), Heading(3, "Cups")]
    assert details.images == [
        Image("/p.png", "a cup"),
        Image("/q.png", "", "3", "4", "lazy"),
        Image("/r.png 2x", None),
    ]
    assert details.resources == [
        Resource("icon", "/i.ico"),
        Resource("stylesheet", "/s.css", integrity=True),
        Resource("script", "/app.js"),
        Resource("iframe", "//else.example/"),
        Resource("form", "http://post.example/"),
    ]
    assert details.cut == []


def test_structured_data_is_kept_and_what_cannot_be_read_is_reported() -> None:
    details = read(
        """<script type="application/ld+json">{"@type": "Product", "name": "Tea"}</script>
        <script type="Application/LD+JSON; charset=utf-8">[1, 2]</script>
        <script type="application/ld+json">{"name": "Tea",}</script>
        <div itemscope itemtype="https://schema.org/Person"><b itemprop=name>Ann</b>
        <div itemprop=home itemscope><i itemprop=city>Graz</i></div></div>
        <div vocab="https://schema.org/" typeof=Event><b property=name>Fair</b></div>"""
    )
    assert details.json_ld == [{"@type": "Product", "name": "Tea"}, [1, 2]]
    [error] = details.json_ld_errors
    assert "line 1 column" in error
    home = {"type": [], "properties": {"city": ["Graz"]}}
    assert details.microdata == [
        {"type": ["https://schema.org/Person"], "properties": {"name": ["Ann"], "home": [home]}}
    ]
    assert details.rdfa == [{"type": ["https://schema.org/Event"], "properties": {"https://schema.org/name": ["Fair"]}}]


def test_headers_and_the_flags_of_cookies_are_kept_but_no_value_of_a_cookie() -> None:
    details = read(
        "",
        [
            ("Server", "x"),
            ("X-Robots-Tag", "noindex"),
            ("x-robots-tag", "nofollow"),
            ("X-Own-Token", "hidden"),
            ("Set-Cookie", "sid=hidden; Secure; HttpOnly; SameSite=Lax; Max-Age=60; Domain=Example.org"),
            ("Set-Cookie", "plain"),
        ],
    )
    assert details.headers == {"server": "x", "x-robots-tag": "noindex, nofollow"}
    assert details.cookies == [SetCookie("sid", True, True, "lax", True, "example.org"), SetCookie("plain")]
    assert b"hidden" not in repr(details).encode()


def test_an_answer_that_is_not_html_has_the_details_of_its_headers() -> None:
    details = read_details(
        Source("http://example.org/", b"%PDF", "application/pdf", headers=[("ETag", "1")]), html=False
    )
    assert details == Details(headers={"etag": "1"})


def test_long_lists_and_long_texts_are_cut_and_it_is_reported() -> None:
    many = "<h2>x</h2>" * (MOST + 1) + f"<img src='/{'u' * 9_000}' alt='{'t' * 9_000}'>"
    details = read(many + '<script type="application/ld+json">"' + "j" * 300_000 + '"</script>')
    assert len(details.headings) == MOST
    assert (len(details.images[0].url), len(details.images[0].alt or "")) == (LONGEST_URL, LONGEST_TEXT)
    assert details.cut == ["headings", "json_ld"]


@pytest.mark.parametrize(
    "html",
    [
        "<div itemscope itemref='a0 b0'>"
        + "".join(
            f"<p id={x}{n} itemprop=x itemscope itemref='a{n + 1} b{n + 1}'></p>" for n in range(60) for x in "ab"
        ),
        "<div typeof=a property=b>" * 5_000,
        "<div itemscope itemprop=x>" * 5_000,
        "<a href=x>" * 50_000,
        "<h1><div>" * 250 + "x " * 500_000,
        "<a href=x><object>" * 250 + "x " * 500_000,
        f'<script type="application/ld+json">{"[" * 50_000}</script>',
    ],
    ids=["references", "rdfa", "microdata", "anchors", "headings", "objects", "json"],
)
def test_pages_made_to_take_for_ever_do_not(html: str) -> None:
    began = time.process_time()
    unpacked(packed(read(html)))
    assert time.process_time() - began < 5


def test_items_within_items_end_at_some_depth() -> None:
    details = read("<div itemscope>" + "<div itemprop=a itemscope>" * 100)
    [item] = details.microdata
    depth = 0
    while item["properties"]:
        [item] = item["properties"]["a"]
        depth += 1
    assert depth == DEEPEST


@settings(deadline=None)
@given(st.binary(max_size=400) | SOUP.map(str.encode), st.lists(st.tuples(st.text(max_size=9), st.text(max_size=30))))
@example(b"<svg><title>x</title>", [])
@example(b"<a href>", [("Set-Cookie", ";;=;")])
@example(b'<script type="application/ld+json">"\\ud800"</script>', [("Set-Cookie", "a=\ud800")])
@example(b'<script type="application/ld+json">1e999</script>', [("Link", "\x00")])
def test_foreign_bytes_raise_nothing_and_come_back_from_the_store(body: bytes, headers: list[tuple[str, str]]) -> None:
    headers = [("set-cookie" if len(name) > 5 else name, value) for name, value in headers]
    details = read_details(Source("http://example.org/", body, None, headers=headers))
    assert unpacked(packed(unpacked(packed(details)))) == unpacked(packed(details))


def simhash(text: str) -> int | None:
    return fingerprint(word_pairs(text))


def test_sketches_differ_as_much_as_their_texts() -> None:
    words = [f"word{number}" for number in range(400)]
    one, same, half, apart = (
        sketch(word_pairs(" ".join(some)))
        for some in (words, words + words, words[:200] + words[:0:-2], [f"other{number}" for number in range(400)])
    )
    alike = [sum(mine == theirs for mine, theirs in zip(one, other, strict=True)) for other in (same, half, apart)]
    assert len(one) == 128
    assert alike[0] > 110
    assert 20 < alike[1] < 70
    assert alike[2] < 5


def test_a_text_that_changed_a_little_has_nearly_the_same_fingerprint() -> None:
    text = " ".join(f"word{n % 97} and{n % 31}" for n in range(1_000))
    one, other = simhash(text), simhash(text.replace("word5 ", "other ", 3))
    apart = simhash(" ".join(f"entirely{n % 89} different{n % 53}" for n in range(1_000)))
    assert one is not None
    assert other is not None
    assert apart is not None
    assert one == simhash(text.upper())
    near, far = (((one ^ another) % 2**64).bit_count() for another in (other, apart))
    assert 0 < near <= 3 < 10 < far
    assert -(2**63) <= one < 2**63


def test_a_text_of_one_word_has_no_fingerprint() -> None:
    assert simhash("word") is None
    assert simhash(" ") is None


@settings(deadline=None)
@given(st.binary(max_size=60) | st.sampled_from([b"[]", b"{}", b"7", b'{"headings": 3}', b" " * 9]).map(zlib.compress))
def test_bytes_that_are_not_details_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not a packed details record"):
        unpacked(data)
