"""The links of a page with their texts: all kinds, bounded, and robust against any content."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.extract.links import LONGEST_TEXT, MOST, WrittenLink, WrittenLinks, pack_links, read_links, unpack_links
from shoal.extract.tree import Source
from tests.support.patience import with_load

PIECES = """
<a href=/x rel=nofollow>|<img src=/i alt=''>|<img>|</a>|<area href=/m alt=map>|<link rel=alternate hreflang=de href=/de>
<form action=>|<object data=1>|&#xD800;|<frameset>|<frame src=/f>|<meta http-equiv=refresh content=0;url=/r>|text|<svg>
<base href=//x>|<link rel=canonical href>|<script src=/s>|</script>|<template>|</template>|<iframe src=/e title=t>
"""
SOUP = st.lists(st.sampled_from(re.split(r"[|\n]", PIECES)), max_size=40).map("".join)


def read(html: str) -> WrittenLinks:
    return read_links(Source("http://example.org/", html.encode(errors="surrogatepass"), "text/html").document)


def test_every_kind_of_link_is_read_in_document_order() -> None:
    found = read(
        """<base href="/b/"><link rel=canonical href="/c"><link rel="alternate" hreflang="de-AT" href="/de">
        <link rel=stylesheet href=/s.css><link rel=next href=/2><link rel=preconnect href=//cdn.example>
        <meta http-equiv=refresh content="5; url=/later"><script src=/app.js></script><script>inline</script>
        <a href=" /x " rel="noopener NoFollow">a  <b>link</b></a><a href=/y><img src=/p.png alt="a cup"></a>
        <a name=top>no link</a><a href="mailto:a@example.org">mail</a><a href="JavaScript:void 0">js</a>
        <map><area href=/north alt=North></map><img src="data:image/png;base64,AAAA">
        <iframe src="//else.example/" title=Film></iframe><form action=/search></form><video src=/v.mp4></video>"""
    )
    assert found.base == "/b/"
    assert found.links == [
        WrittenLink("canonical", "/c", "", "canonical"),
        WrittenLink("hreflang", "/de", "de-AT", "alternate"),
        WrittenLink("style", "/s.css", "", "stylesheet"),
        WrittenLink("link", "/2", "", "next"),
        WrittenLink("refresh", "/later"),
        WrittenLink("script", "/app.js"),
        WrittenLink("a", "/x", "a link", "noopener NoFollow"),
        WrittenLink("a", "/y", "a cup"),
        WrittenLink("img", "/p.png", "a cup"),
        WrittenLink("area", "/north", "North"),
        WrittenLink("iframe", "//else.example/", "Film"),
        WrittenLink("form", "/search"),
        WrittenLink("media", "/v.mp4"),
    ]
    assert not found.is_cut


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<b>Amber Bay</b><span>Shallow and warm</span>", "Amber Bay Shallow and warm"),
        ("<div>Amber Bay</div>Shallow", "Amber Bay Shallow"),
        ("Amber Bay<p>Shallow</p>", "Amber Bay Shallow"),
        ("Amber Bay<br>Shallow", "Amber Bay Shallow"),
        ("<span><b>Amber</b></span><i><u>Bay</u></i>", "Amber Bay"),
        ("<b>Amber</b><!-- and --><i>Bay</i>", "Amber Bay"),
        ("<b>A</b>mber <i>B</i>ay", "Amber Bay"),
        ("Amber <b>Bay</b>s", "Amber Bays"),
        ("<b>Amber Bay</b><span>, shallow</span>", "Amber Bay, shallow"),
        ("<b>Amber</b> <i>Bay</i>", "Amber Bay"),
    ],
)
def test_texts_that_a_browser_shows_apart_are_separate_words(html: str, text: str) -> None:
    [link] = read(f"<a href=/x>{html}</a>").links
    assert link.text == text


def test_links_and_texts_are_bounded_and_it_is_reported() -> None:
    text = "tea " * 1_900_000
    found = read(f"<a href=/long>{text}</a><a href='/{'u' * 9_000}'>too long</a>" + "<a href=/x>x</a>" * MOST)
    assert len(found.links) == MOST
    assert found.is_cut
    assert found.links[0].text == text[:LONGEST_TEXT].rstrip()
    assert len(pack_links(found)) < 10_000


@given(SOUP)
@settings(max_examples=200, deadline=with_load(1) * 1000)
def test_whatever_the_page_is_its_links_are_packed_and_unpacked(html: str) -> None:
    found = read(html)
    assert unpack_links(pack_links(found)) == found


def test_a_lone_surrogate_is_replaced() -> None:
    packed = pack_links(WrittenLinks(None, [WrittenLink("a", "/x", "a\ud800b")]))
    assert unpack_links(packed).links == [WrittenLink("a", "/x", "a?b")]


@pytest.mark.parametrize("blob", [b"", b"x", b"x\x9c", pack_links(WrittenLinks())[:-9]])
def test_anything_else_is_refused(blob: bytes) -> None:
    with pytest.raises(ValueError, match="packed links"):
        unpack_links(blob)
