"""Reduce the tree of a page to the elements whose text is part of a given text, such as the text that a different
extractor found. The reduced tree has the formatting of the page, which the text lacks."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from turbohtml import Document, Element, Node, Text

MOST_COMPARED: Final = 1_000_000_000  # number of characters of the text times number of blocks of the page
BLOCKS: Final = frozenset({
    "address", "article", "aside", "blockquote", "body", "caption", "center", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "li",
    "main", "menu", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td", "tfoot", "th", "thead",
    "tr", "ul",
})  # fmt: skip
_CELLS: Final = frozenset({"td", "th"})
_LONGEST_ROW: Final = 500  # characters of a table row that is compared as a whole; a longer one is part of a layout
_WORD: Final = re.compile(r"\w+")
_BETWEEN_WORDS: Final = {code: None for code in range(128) if not _WORD.match(chr(code))}  # sixty times as fast as re
_SHORT: Final = 25  # characters up to which a block must be a whole line; a longer block may be a part of a line
_PIECE: Final = 40  # characters that are compared if a block is not in the text as a whole
_FOUND: Final = 0.6  # share of a block that must be found
_MOST: Final = 0.8  # share of the text that an element must have, so that the search continues inside it
_UNDIVIDED: Final = frozenset({"li", "p", "pre", "table", "tr"})

_Block = tuple[Element, list[Text]]


def reduced(document: Document, found: str) -> Element | None:
    """Remove everything from the tree that is not in the text `found`; return the element with the rest, None if
    nothing is left."""
    body = document.find("body")
    if body is None:
        return None
    whole, lines = _squeezed(found), {_squeezed(line) for line in found.splitlines()}
    blocks = list(_blocks(body))
    if len(blocks) * len(whole) > MOST_COMPARED:
        return None
    kept = [_is_found(nodes, whole, lines) for _, nodes in blocks]
    _keep_code_between(blocks, kept)
    lengths = _lengths(block for block, is_kept in zip(blocks, kept, strict=True) if is_kept)
    if body not in lengths:
        return None
    root = _narrowed(body, lengths)
    for (block, nodes), is_kept in zip(blocks, kept, strict=True):
        if not is_kept:
            _drop(block, nodes, root, lengths)
    for link in root.find_all("a"):
        if not link.text.strip() and link.find("img") is None:
            link.decompose()
    return root


def _lengths(blocks: Iterable[_Block]) -> dict[Node, int]:
    """Return the length of the text in each of these blocks and in each of their ancestors."""
    lengths: dict[Node, int] = {}
    for block, nodes in blocks:
        length = sum(len(node.data) for node in nodes)
        for element in (block, *block.ancestors):
            lengths[element] = lengths.get(element, 0) + length
    return lengths


def _blocks(body: Element) -> Iterator[_Block]:
    """Yield the elements that directly contain text, with their text nodes. The cells of a short row are one block."""
    found: dict[Element, list[Text]] = {}
    block_of: dict[Element, Element] = {}
    for node in body.descendants:
        if not isinstance(node, Text) or not node.data.strip():
            continue
        parent = node.parent
        if not isinstance(parent, Element):
            continue
        block = block_of.get(parent)
        if block is None:
            block = block_of[parent] = _block_of(parent, body)
        found.setdefault(block, []).append(node)
    yield from found.items()


def _block_of(element: Element, body: Element) -> Element:
    for one in (element, *element.ancestors):
        if isinstance(one, Element) and one.tag in BLOCKS:
            row = one.closest("tr") if one.tag in _CELLS else None
            return one if row is None or len(row.text) > _LONGEST_ROW else row
    return body


def _squeezed(text: str) -> str:
    text = text.lower()
    return text.translate(_BETWEEN_WORDS) if text.isascii() else "".join(_WORD.findall(text))


def _is_found(nodes: list[Text], whole: str, lines: set[str]) -> bool:
    """Return whether most of a block is in the text, ignoring white space and punctuation between words."""
    block = _squeezed("".join(node.data for node in nodes))
    if len(block) < _SHORT:
        return block in lines
    if block in whole:
        return True
    found = 0
    for part in (_squeezed(node.data) for node in nodes):
        if part in whole:
            found += len(part) if len(part) >= _SHORT else 0
        else:
            pieces = range(0, len(part) - _PIECE, _PIECE)
            found += sum(_PIECE for start in pieces if part[start : start + _PIECE] in whole)
    return found >= _FOUND * len(block)


def _keep_code_between(blocks: list[_Block], kept: list[bool]) -> None:
    """Also keep code blocks between kept blocks, because a text without its examples is incomplete."""
    if True not in kept:
        return
    last = len(kept) - 1 - kept[::-1].index(True)
    for place in range(kept.index(True), last):
        kept[place] = kept[place] or blocks[place][0].tag == "pre"


def _narrowed(body: Element, lengths: dict[Node, int]) -> Element:
    """Return the smallest element with most of the text: text outside of this element only repeats the text or
    advertises other texts."""
    root, enough = body, _MOST * lengths[body]
    while True:
        inner = next((one for one in root.children if isinstance(one, Element) and lengths.get(one, 0) >= enough), None)
        if inner is None or inner.tag in _UNDIVIDED:
            return root
        root = inner


def _drop(block: Element, nodes: list[Text], root: Element, lengths: dict[Node, int]) -> None:
    """Remove a block, with all elements around it that contain no kept text, such as pictures of other articles."""
    if block in lengths:
        for node in nodes:
            node.decompose()
        return
    top = block
    for element in block.ancestors:
        if not isinstance(element, Element) or element in lengths or element == root:
            break
        top = element
    top.decompose()
