"""Prepare a page for Markdown: remove permalinks, write code blocks with their language and without line numbers, and
put the captions of tabs beside their panels. This changes the tree."""

import re
from collections.abc import Iterator
from html import escape
from itertools import islice
from typing import Final

from turbohtml import Document, Element, Text

LONGEST_CODE: Final = 500_000  # characters of a code block that is rewritten
MOST_BLOCKS: Final = 5_000  # code blocks, or tabs, of a page
MOST_TABLES: Final = 300
MOST_CELLS: Final = 2  # cells with text in `<pre>`: the line numbers, and the code
MOST_SIBLINGS: Final = 10  # elements between tabs and their panels

_NEVER_SHOWN: Final = (
    "script, style, noscript, template, iframe, object, button, select, textarea, input:not([type=checkbox]), dialog, "
    "svg"
)
_HEADINGS: Final = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_PERMALINKS: Final = frozenset({"", "#", "¶", "§", "\N{LINK SYMBOL}", "\N{ANCHOR}", "\N{INFINITY}"})
_LINE_NUMBERS: Final = (
    ".linenos, .lineno, .linenumber, .line-number, .line-numbers-rows, .ln, .lnt, .gutter, .hljs-ln-numbers"
)
_NUMBERS: Final = re.compile(r"[\s\d]*")
_LANGUAGE: Final = re.compile(
    r"(?:^|\s)(?:language-|lang-|highlight-source-|highlight-|brush:\s*)([\w+#.-]{1,30})(?=[\s;]|$)", re.ASCII
)
_PANDOC: Final = re.compile(r"(?:^|\s)sourceCode\s+([\w+#.-]{1,30})", re.ASCII)
_NO_LANGUAGE: Final = frozenset({"default", "none", "text", "plain", "plaintext", "txt", "code", "block"})
_TAB_LISTS: Final = "[role=tablist], .tabbed-labels"
_PANELS: Final = "[role=tabpanel], .tabbed-block"
_WRAPPERS: Final = 3  # elements around a code block that may name its language


def tidy(document: Document) -> None:
    """Remove or rewrite elements that would look bad as Markdown."""
    for element in document.select(_NEVER_SHOWN):
        element.decompose()
    _remove_permalinks(document)
    _unwrap_line_numbers(document)
    for block in document.select("pre")[:MOST_BLOCKS]:
        _rewrite_code(block)
    _label_panels(document)


def _remove_permalinks(document: Document) -> None:
    """Remove links without a text, and signs (such as ¶) that only link to their own heading; unlink headings that link
    to themselves."""
    for link in document.select("a"):
        text, target = link.text.strip(), link.attr("href") or ""
        if text in _PERMALINKS and ("#" in target or not text) and link.select_one("img") is None:
            link.decompose()
        elif target.startswith("#") and any(one.tag in _HEADINGS for one in _around(link, _WRAPPERS)):
            link.unwrap()


def _unwrap_line_numbers(document: Document) -> None:
    """Replace tables that show line numbers beside a code block with the code block."""
    for table in document.select("table")[:MOST_TABLES]:
        blocks = table.select("pre")
        if not 0 < len(blocks) <= MOST_CELLS or table.find("table") is not None:
            continue
        code = [block for block in blocks if not _NUMBERS.fullmatch(block.text)]
        if len(code) != 1:
            continue
        beside = [cell for cell in table.select("td, th")[:MOST_BLOCKS] if code[0] not in cell.select("pre")]
        if beside and all(_NUMBERS.fullmatch(cell.text) for cell in beside):
            table.replace_with(code[0].extract())


def _rewrite_code(block: Element) -> None:
    """Write a code block as `<pre><code class="language-…">` with only its text inside."""
    if block.find("pre") is not None:
        return
    for numbers in block.select(_LINE_NUMBERS):
        numbers.decompose()
    for line_break in block.select("br"):
        line_break.replace_with(Text("\n"))
    for line in block.select("div"):
        last = line.children[-1] if line.children else None
        if not isinstance(last, Text) or not last.data.endswith("\n"):
            line.append(Text("\n"))
    text, language = block.text, language_of(block)
    if len(text) <= LONGEST_CODE:
        named = f' class="language-{escape(language)}"' if language else ""
        block.set_inner_html(f"<code{named}>{escape(text, quote=False)}</code>")


def language_of(block: Element) -> str | None:
    """Return the language that is named by a code block, by the code element in it, or by a wrapper around it."""
    code = block.select_one("code")
    for element in (*(() if code is None else (code,)), block, *_around(block, _WRAPPERS)):
        declared = element.attr("data-lang") or element.attr("data-language") or ""
        classes = element.attr("class") or ""
        found = _LANGUAGE.search(f"language-{declared}") or _LANGUAGE.search(classes) or _PANDOC.search(classes)
        if found is not None and found[1].lower() not in _NO_LANGUAGE:
            return found[1]
    return None


def _label_panels(document: Document) -> None:
    """Put the caption of each tab before its panel, in bold, because captions side by side would read as one long
    word."""
    for tabs in document.select(_TAB_LISTS)[:MOST_BLOCKS]:
        captions = tabs.select("[role=tab]") or tabs.select("label")
        around = next(_around(tabs, 1), tabs)
        panels = _panels_after(tabs) or _panels_after(around)
        for caption, panel in zip(captions, panels if len(panels) == len(captions) else (), strict=False):
            _label(panel, caption)
    for caption in document.select("label, [role=tab]")[:MOST_BLOCKS]:
        beside = next(_elements_after(caption), None)
        if beside is not None and beside.tag == "div" and caption.tag == "label":
            _label(beside, caption)
        else:
            caption.insert_after(Text(" "))


def _panels_after(tabs: Element) -> list[Element]:
    panels: list[Element] = []
    for element in islice(_elements_after(tabs), MOST_SIBLINGS):
        if element.matches(_TAB_LISTS):
            break
        panels += [element] if element.matches(_PANELS) else element.select(_PANELS)
    return panels


def _elements_after(element: Element) -> Iterator[Element]:
    return (one for one in element.next_siblings if isinstance(one, Element))


def _label(panel: Element, caption: Element) -> None:
    text = " ".join(caption.text.split())
    caption.decompose()
    panel.attrs.pop("hidden", None)  # the panel is hidden only until its tab is chosen
    if text:
        panel.insert_adjacent_html("beforebegin", f"<p><strong>{escape(text)}</strong></p>")


def _around(element: Element, most: int) -> Iterator[Element]:
    """Yield the ancestors of an element, from the inside."""
    parent = element.parent
    for _ in range(most):
        if not isinstance(parent, Element):
            return
        yield parent
        parent = parent.parent
