"""What an XPath expression may cost on a page, guessed before it is tried: nobody can stop it once it runs. Pure.

Two things grow faster than the page: elements that are looked at again for each element around them, and the text that
each of these elements is made of. Both grow with the depth of the page, once for each `//`; the limits are what takes
about half a second.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from turbohtml import Node

MOST_LOOKS: Final = 4_000_000  # at elements
MOST_TEXT: Final = 500_000_000  # characters
DEPTHS: Final = (4, 8, 16, 24, 32, 48, 64)
_MOST_DESCENTS: Final = 2  # without [ ] what was found twice is dropped before the next step
_BUILT: Final = 8  # as long takes the building of a text as the reading of one

_DESCENT: Final = re.compile(r"//|descendant(?:-or-self)?\s*::")
# Attributes, literals, numbers: what an element says itself, without its content.
_OWN: Final = re.compile(r"(?:\s*+(?:@[\w:-]++|''|\d++|!?=|,|\)|(?:contains|starts-with|not|and|or)\b\s*+\(?))*+\s*+")
_PLACE: Final = re.compile(r"(?:last|position)\s*+\(\s*+\)")
_PREDICATE: Final = re.compile(r"\[[^][]*\]")


class Cost(NamedTuple):
    """Of an expression: on how many levels it goes down, and how often it looks into what it finds there."""

    descents: int
    looks: int
    texts: int

    def allows(self, tags: int, characters: int, depth: int) -> bool:
        """Whether a page of this size may be searched."""
        around = depth ** min(max(1, self.descents), _MOST_DESCENTS) if self.looks else 1
        return tags * around * self.looks <= MOST_LOOKS and characters * around * self.texts <= MOST_TEXT


def looks_inside(predicate: str) -> bool:
    """Whether it looks at more than the attributes and the place of an element."""
    return not _OWN.fullmatch(_PLACE.sub("1", predicate))


@lru_cache(maxsize=1_000)
def cost_of(bare: str) -> Cost:
    """The cost of an expression without its literals."""
    path, predicates = bare, []
    while found := _PREDICATE.findall(path):
        predicates += found
        path = _PREDICATE.sub("", path)
    deep = [one for one in predicates if looks_inside(one[1:-1])]
    built = sum(one.count(",") for one in deep if "concat" in one)
    return Cost(len(_DESCENT.findall(path)), len(deep), len(deep) + _BUILT * built)


def depth_of(document: Node) -> int:
    """How deep elements stand within elements, about; more than the last of `DEPTHS` is one more than that."""
    for depth, chain in zip(DEPTHS, _CHAINS, strict=True):
        if document.select_one(chain) is None:
            return depth
    return DEPTHS[-1] + 1


_CHAINS: Final = [" > ".join("*" * (depth + 1)) for depth in DEPTHS]
