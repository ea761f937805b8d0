"""Estimate the cost of an XPath expression on a page in advance, because it cannot be interrupted. Pure.

Two costs grow faster than the page: elements that are visited again for each ancestor, and the text built from each of
them. Both are multiplied by the depth of the page, once for each `//`; the limits allow about half a second.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from turbohtml import Node

MOST_LOOKS: Final = 4_000_000  # element visits
MOST_TEXT: Final = 500_000_000  # characters
DEPTHS: Final = (4, 8, 16, 24, 32, 48, 64)
_MOST_DESCENTS: Final = 2  # steps without a predicate [ ] remove duplicates before the next step
_BUILT: Final = 8  # cost of building a text, relative to reading it

_DESCENT: Final = re.compile(r"//|descendant(?:-or-self)?\s*::")
# Attributes, literals, numbers: tests that do not read an element's content.
_OWN: Final = re.compile(r"(?:\s*+(?:@[\w:-]++|''|\d++|!?=|,|\)|(?:contains|starts-with|not|and|or)\b\s*+\(?))*+\s*+")
_PLACE: Final = re.compile(r"(?:last|position)\s*+\(\s*+\)")
_PREDICATE: Final = re.compile(r"\[[^][]*\]")


class Cost(NamedTuple):
    """The cost of an expression: its `//` steps, and the predicates that read the content of elements."""

    descents: int
    looks: int
    texts: int

    def allows(self, tags: int, characters: int, depth: int) -> bool:
        """Return whether a page of this size may be searched."""
        around = depth ** min(max(1, self.descents), _MOST_DESCENTS) if self.looks else 1
        return tags * around * self.looks <= MOST_LOOKS and characters * around * self.texts <= MOST_TEXT


def looks_inside(predicate: str) -> bool:
    """Return whether a predicate reads more than the attributes and the position of an element."""
    return not _OWN.fullmatch(_PLACE.sub("1", predicate))


@lru_cache(maxsize=1_000)
def cost_of(bare: str) -> Cost:
    """Return the cost of an expression whose literals were removed."""
    path, predicates = bare, []
    while found := _PREDICATE.findall(path):
        predicates += found
        path = _PREDICATE.sub("", path)
    deep = [one for one in predicates if looks_inside(one[1:-1])]
    built = sum(one.count(",") for one in deep if "concat" in one)
    return Cost(len(_DESCENT.findall(path)), len(deep), len(deep) + _BUILT * built)


def depth_of(document: Node) -> int:
    """Return the approximate nesting depth, rounded up to one of `DEPTHS`; above the last one, that plus one."""
    for depth, chain in zip(DEPTHS, _CHAINS, strict=True):
        if document.select_one(chain) is None:
            return depth
    return DEPTHS[-1] + 1


_CHAINS: Final = [" > ".join("*" * (depth + 1)) for depth in DEPTHS]
