"""The main text of pages: found on the page and rendered with absolute links, from any bytes."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.extract.main_text import MainText, main_text
from shoal.extract.tree import Source

STORY = "<p>" + "A sentence about tea, which is long enough to be a part of a story. " * 6 + "</p>"


def read(html: str) -> MainText:
    return main_text(Source("http://example.org/a/b.html", html.encode(), "text/html; charset=utf-8"))


def test_the_main_text_excludes_navigation_and_footers() -> None:
    found = read(
        f"""<title>Tea | Shop</title><meta name=author content="Ann B."><meta property="article:published_time"
        content="2024-05-01"><header>Shop</header><nav><a href=/>menu</a></nav><article><h1>Tea</h1>{STORY}</article>
        <aside>also read</aside><footer>imprint</footer>"""
    )
    assert found.text.startswith("Tea\n\nA sentence about tea")
    assert not [word for word in ("menu", "also read", "imprint", "Shop") if word in found.text]
    assert (found.title, found.author, found.date) == ("Tea", "Ann B.", "2024-05-01")


def test_markdown_has_absolute_links_and_none_that_runs_code() -> None:
    found = read(
        f"""<article><h2>Kinds</h2>{STORY}<ul><li>green<li><b>black</b></ul><p>See <a href="../c?x=1">here</a> or
        <a href="javascript:alert(1)">there</a> <img src=cup.png alt="a cup"></p></article>"""
    )
    assert "## Kinds" in found.markdown
    assert "- green\n- **black**" in found.markdown
    assert "[here](http://example.org/c?x=1) or there" in found.markdown
    assert "![a cup](http://example.org/a/cup.png)" in found.markdown
    assert "javascript" not in found.markdown


def test_a_scrap_is_not_taken_for_the_article_that_the_page_names() -> None:
    parts = "".join(f"<div><div>{STORY}</div></div>" for _ in range(30))
    comment = f"<div class=comments><p>{'I, too, like tea, and coffee, and cake. ' * 40}</p></div>"
    found = read(f"<main><article>{parts}</article></main>{comment}")
    assert found.text.count("A sentence about tea") == 180


def test_a_page_without_an_article_gives_all_that_is_not_around_it() -> None:
    found = read("<nav>menu</nav><table><tr><td>Opening hours<td>9 to 5</table>")
    assert "Opening hours" in found.text
    assert "menu" not in found.text


def test_the_tree_of_the_source_is_left_alone() -> None:
    source = Source("http://example.org/", f"<nav>menu</nav><article>{STORY}<a href=x>y</a></article>".encode(), None)
    before = source.document.html
    main_text(source)
    assert source.document.html == before


@pytest.mark.parametrize(
    "html",
    [
        "<div>" * 50_000,
        "<article>" * 5_000 + "x " * 5_000,
        "<table><tr><td>" * 3_000,
        "<ul><li>x" * 3_000,
        "<b><i>" * 9_000,
    ],
)
def test_pages_made_to_take_for_ever_do_not(html: str) -> None:
    began = time.process_time()
    read(html)
    assert time.process_time() - began < 5


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["http://example.org/", "nothing", ""]))
@example(b"<base href='http://['><a href='http://['>x</a>", "http://example.org/")
@example(b"<base href=x><article><a href=//>y", "")
@example(b"<frameset><frame src=x>", "http://example.org/")
def test_foreign_bytes_raise_nothing(body: bytes, url: str) -> None:
    main_text(Source(url, body, None))
