"""The main text of pages: found on the page and rendered with absolute links, from any bytes."""

import sys
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.extract.main_text import MainText, _trafilatura, main_text
from shoal.extract.text_match import _squeezed
from shoal.extract.tree import Source

STORY = "<p>" + "A sentence about tea, which is long enough to be a part of a story. " * 6 + "</p>"


@pytest.fixture(params=["trafilatura", "built in"], autouse=True)
def extractor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything here holds with the extra and without it."""
    if request.param == "built in":
        monkeypatch.setitem(sys.modules, "trafilatura", None)
    _trafilatura.cache_clear()
    assert (_trafilatura() is None) == (request.param == "built in")
    yield
    _trafilatura.cache_clear()


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


def documentation(*blocks: str) -> str:
    """Return the Markdown of a page of documentation with a menu of links, these blocks, and text around them."""
    menu = "".join(f'<div class="item"><a href="/{name}">Chapter {name}</a></div>' for name in "abcdefgh")
    body = "".join(f"{block}{STORY.replace('tea', f'kind {number}')}" for number, block in enumerate(blocks))
    found = read(f'<div id="left">{menu}</div><div role="main"><h1>Guide</h1>{STORY}{body}</div><div>© 2026</div>')
    return found.markdown


def test_a_menu_of_plain_blocks_is_left_out() -> None:
    assert "Chapter" not in documentation("")


@pytest.mark.parametrize(
    "heading",
    [
        '<h2>Requests<a class="headerlink" href="#requests" title="Permalink to this heading">¶</a></h2>',
        '<h2 id="requests"><a class="anchor" href="#requests"><svg><path/></svg></a>Requests</h2>',
        '<h2><a href="#requests">Requests</a></h2>',
        '<h2>Requests <a class="hash-link" href="http://example.org/a/b.html#requests" aria-label="Link">#</a></h2>',
        '<h2><a name="requests"></a>Requests<a href="#requests"></a></h2>',
    ],
)
def test_headings_have_no_permalinks(heading: str) -> None:
    assert "\n## Requests\n" in documentation(heading)


@pytest.mark.parametrize(
    ("block", "language"),
    [
        ('<div class="highlight-python notranslate"><div class="highlight"><pre>{}</pre></div></div>', "python"),
        ('<div class="highlight-default notranslate"><div class="highlight"><pre>{}</pre></div></div>', ""),
        ('<div class="language-yaml highlight"><pre><span></span><code>{}</code></pre></div>', "yaml"),
        ('<div class="highlight highlight-source-shell"><pre>{}</pre></div>', "shell"),
        ('<div class="language-ruby highlighter-rouge"><div class="highlight"><pre>{}</pre></div></div>', "ruby"),
        ('<div class="highlight"><pre tabindex="0"><code data-lang="go">{}</code></pre></div>', "go"),
        ('<pre class="prism-code language-ts"><code>{}</code></pre>', "ts"),
        ('<pre><code class="hljs lang-c++">{}</code></pre>', "c++"),
        ('<div class="sourceCode"><pre class="sourceCode haskell"><code>{}</code></pre></div>', "haskell"),
        ('<pre class="brush: js; toolbar: false">{}</pre>', "js"),
        ("<pre>{}</pre>", ""),
    ],
)
def test_code_keeps_the_language_that_its_wrapper_names(block: str, language: str) -> None:
    code = '<span class="k">first</span> = 1 &lt; 2\n\nsecond_line_of_the_example()'
    assert f"```{language}\nfirst = 1 < 2\n\nsecond_line_of_the_example()\n```" in documentation(block.format(code))


@pytest.mark.parametrize(
    "block",
    [
        '<div class="highlight-python"><table class="highlighttable"><tr><td class="linenos"><div class="linenodiv">'
        '<pre>1\n2</pre></div></td><td class="code"><div><pre>{}</pre></div></td></tr></table></div>',
        '<div class="language-python highlight"><table class="highlighttable"><tbody><tr><td class="linenos"><pre>'
        '<span class="normal">1</span>\n<span class="normal">2</span></pre></td><td class="code"><pre><code>{}</code>'
        "</pre></td></tr></tbody></table></div>",
        '<pre class="language-python"><code><span class="linenos">1</span>{}</code></pre>',
        '<table class="lntable"><tr><td><pre>1\n2\n</pre></td><td><pre><code class="language-python">{}</code></pre>'
        "</td></tr></table>",
    ],
)
def test_line_numbers_are_no_part_of_the_code(block: str) -> None:
    found = documentation(block.format("first_line_of_the_example()\nsecond_line_of_the_example()"))
    assert "```python\nfirst_line_of_the_example()\nsecond_line_of_the_example()\n```" in found
    assert "|" not in found


def test_lines_of_code_that_are_elements_stay_lines() -> None:
    lines = '<div class="token-line">first_line()<br></div><div class="token-line">second_line()</div>'
    assert "first_line()\nsecond_line()" in documentation(f"<pre>{lines}</pre>").replace("\n\n", "\n")


@pytest.mark.parametrize(
    "tabs",
    [
        '<div class="tabbed-set"><input type="radio"><div class="tabbed-labels"><label>Linux</label><label>Mac</label>'
        '</div><div class="tabbed-content"><div class="tabbed-block">{0}</div><div class="tabbed-block">{1}</div></div>'
        "</div>",
        '<div class="sd-tab-set"><input><label class="sd-tab-label">Linux</label><div class="sd-tab-content">{0}</div>'
        '<input><label class="sd-tab-label">Mac</label><div class="sd-tab-content">{1}</div></div>',
        '<div><ul role="tablist"><li role="tab">Linux</li><li role="tab">Mac</li></ul><div><div role="tabpanel">{0}'
        '</div><div role="tabpanel" hidden>{1}</div></div></div>',
    ],
)
def test_captions_of_tabs_stand_before_their_panels(tabs: str) -> None:
    panels = [f"<pre>install it on {name} with its package manager</pre>" for name in ("Linux", "Mac")]
    found = documentation(tabs.format(*panels))
    assert "LinuxMac" not in found
    assert found.index("**Linux**") < found.index("on Linux") < found.index("**Mac**") < found.index("on Mac")


def test_raised_and_lowered_text_stays_so() -> None:
    formula = "<p>The energy of a mass is E = mc<sup>2</sup>, and water is H<sub>2</sub>O, as every child knows.</p>"
    assert "E = mc<sup>2</sup>, and water is H<sub>2</sub>O, as" in documentation(formula)


def test_an_index_of_links_is_not_taken_for_a_menu() -> None:
    entries = "".join(f"<li><a href='/{number}'>The entry of the glossary, number {number}</a>" for number in range(30))
    assert "number 29" in read(f"<main><h1>Index</h1><ul>{entries}</ul></main>").markdown


def test_a_table_keeps_its_rows() -> None:
    rows = "".join(f"<tr><td>Tea {number}</td><td>{number} cups</td></tr>" for number in range(5))
    found = documentation(f"<table><tr><th>Kind</th><th>Cups</th></tr>{rows}</table>")
    assert "| Kind | Cups |\n| --- | --- |\n| Tea 0 | 0 cups |" in found
    assert "| Tea 4 | 4 cups |" in found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "html",
    [
        "<table><tr><td>1</td><td><pre>x y</pre>" * 3_000,
        "<pre>" * 20_000,
        "<pre>" + "<div>" * 20_000,
        "<div class=menu>words " * 5_000,
        "<ul role=tablist><li role=tab>x</li></ul><div role=tabpanel>y</div>" * 3_000,
        "<label>x</label><div>y</div>" * 5_000,
        "<p>Words of a paragraph, each of them long enough.</p>" * 5_000,
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


def test_texts_are_compared_without_what_is_between_their_words() -> None:
    assert _squeezed("It's: a B_2!\n") == "itsab_2"
    assert _squeezed("It's: a B_2, là!\n") == "itsab_2là"
