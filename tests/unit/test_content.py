"""The content of a page in each format."""

import pytest

from shoal.base.errors import InvalidInput
from shoal.base.url import UrlRules
from shoal.extract.content import Content, content_as
from shoal.extract.links import Link
from shoal.extract.tree import Source

PAGE = """<html><head><title>Carp</title><base href="/pond/"><link rel="canonical" href="carp"></head>
<body><nav><a href="/">Home</a> <a href="/all">All</a></nav>
<main><h1>Carp</h1><p>A <b>carp</b> is a fish, and <a href="koi?utm_source=x" rel="nofollow">koi</a> are carps.</p>
<img src="/carp.png" alt="A carp"></main></body></html>"""
AT = "https://fish.example/fish/carp"


def content(body: str | bytes = PAGE, kind: str | None = "text/html", **options: object) -> Content:
    return Content(Source(AT, body if isinstance(body, bytes) else body.encode(), kind), **options)  # type: ignore[arg-type]


def test_a_page_has_html_text_markdown_and_what_selectors_find() -> None:
    carp = content()
    assert carp.html == PAGE
    assert carp.text == "Carp\n\nA carp is a fish, and koi are carps."
    assert "# Carp\n\nA **carp** is a fish, and [koi](https://fish.example/pond/koi?utm_source=x)" in carp.markdown
    assert [one.text for one in carp.css("main b")] == ["carp"]
    assert carp.xpath("//img/@alt") == ["A carp"]
    assert carp.xpath("count(//a)") == 3
    assert not carp.is_cut


def test_links_are_absolute_and_normalized_as_in_the_crawl() -> None:
    links = {link.text: link for link in content().links}
    assert links["koi"] == Link("https://fish.example/pond/koi", "koi", "nofollow", nofollow=True, kind="a")  # type: ignore[arg-type]
    assert links["A carp"].kind == "img"
    assert links["Home"].nofollow is False
    kept = content(rules=UrlRules(tracking=())).links
    assert "https://fish.example/pond/koi?utm_source=x" in [link.url for link in kept]
    assert all(link.nofollow for link in content(robots="noindex, nofollow").links)


def test_queries_of_links_are_encoded_as_the_page_is() -> None:
    page = content('<a href="?q=café">x</a>'.encode("cp1252"), "text/html; charset=windows-1252")
    assert page.links[0].url == f"{AT}?q=caf%E9"


def test_text_that_is_not_html_is_returned_as_it_is_and_other_files_have_none() -> None:
    for kind in ("text/plain", "text/markdown; charset=utf-8", "application/ld+json", "application/xml"):
        plain = content("# déjà vu <b>", kind)
        assert plain.text == plain.markdown == plain.html == "# déjà vu <b>"
        assert plain.links == []
    picture = content(b"\x89PNG\r\n\x1a\n\x00\xff", "image/png")
    assert (picture.text, picture.markdown, picture.links) == ("", "", [])


def test_json_is_read_whatever_the_type_says_and_refused_clearly() -> None:
    assert content(b'\xef\xbb\xbf{"name": "carpe \xc3\xa0 miroir"}', "text/plain").json() == {"name": "carpe à miroir"}
    with pytest.raises(InvalidInput, match=r"fish/carp is not JSON .*its content type is text/html\); read its html"):
        content().json()
    with pytest.raises(InvalidInput, match="is not JSON"):
        content("[" * 100_000, "application/json").json()


@pytest.mark.parametrize(
    ("way", "written", "problem"),
    [
        ("css", "a[", r"selector is 'a\[', which is not a CSS selector \(.+\); correct it"),
        ("xpath", "//[", r"expression is '//\[', which is not an XPath expression \(.+\); correct it"),
        ("xpath", "nothing()", "unknown function 'nothing'"),
    ],
)
def test_what_is_not_a_selector_is_refused(way: str, written: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        getattr(content(), way)(written)


@pytest.mark.parametrize("kind", ["text/html", "text/plain"])
def test_a_text_of_ten_megabytes_is_cut_and_says_so(kind: str) -> None:
    long = content("carp " * 2_000_000, kind)
    assert long.is_cut
    assert long.text.startswith("carp carp")
    assert 1_999_000 < len(long.text) <= 8_000_000


def test_a_page_of_too_many_elements_or_links_is_cut_and_says_so() -> None:
    assert content("<i>x" * 500_001).is_cut
    many = content("<a href=/x>x</a>" * 10_001)
    assert many.is_cut
    assert len(many.links) == 10_000


def test_the_same_content_in_each_format() -> None:
    carp = content()
    assert content_as("markdown", carp, {}) == carp.markdown
    assert content_as("html", carp, {}) == PAGE
    assert content_as("text", carp, {}) == carp.text
    assert content_as("json", carp, {"url": AT}) == {"url": AT}
    assert content_as("links", carp, {})[1] == {
        "url": "https://fish.example/",
        "text": "Home",
        "rel": "",
        "nofollow": False,
        "kind": "a",
    }


def test_a_page_is_cut_only_for_the_formats_that_lack_something() -> None:
    content = Content(Source(AT, b"<main><p>Carp</p></main>" + b'<a href="/koi">koi</a>' * 10_001, "text/html"))
    assert content.is_cut
    assert content.lacks_rest(["markdown", "links"])
    assert not content.lacks_rest(["html", "markdown", "text"])
