"""Shapes of regular expressions that can take more than linear time in Python's `re`, found by reading them.

Rough on purpose: it knows sequences, alternatives and repetitions of sets of characters, and suspects everything
that it cannot prove harmless.
"""

import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterator
from typing import Any

MANY = 16  # more repetitions than this count as unbounded
SAMPLE = [chr(code) for code in (*range(0x180), 0x2019, 0x2028, 0x212A, 0xFEFF, 0xFFFD, 0x1F600)]

Item = tuple[Any, Any]
Chars = frozenset[str]
_ALL = frozenset(SAMPLE)
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)
_ZERO_WIDTH = (sre.AT, sre.ASSERT, sre.ASSERT_NOT)


def suspicions(pattern: "re.Pattern[Any]") -> list[str]:
    """Describe why a pattern may backtrack; return an empty list if it is provably linear from each starting
    position."""
    text = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    return list(dict.fromkeys(_in_sequence(list(parser.parse(text, flags & ~re.DEBUG)), flags)))


def _in_sequence(items: list[Item], flags: int) -> Iterator[str]:
    items = list(_flat(items))
    for place, item in enumerate(items):
        yield from _in_item(item, flags)
        if not _is_unbounded(item):
            continue
        if _meets(_chars([item], flags), items[place + 1 :], flags):
            yield "two repetitions in a row match the same characters"


def _meets(chars: Chars, items: list[Item], flags: int) -> bool:
    """Return whether a repetition of these characters can run into another one of the same, in what follows it."""
    for item in _flat(items):
        op, value = item
        if _is_unbounded(item) and chars & _chars([item], flags):
            return True
        bodies = value[1] if op is sre.BRANCH else [value[2]] if op in _REPEATS else []
        if not _is_unbounded(item) and any(_meets(chars, list(body), flags) for body in bodies):
            return True
        if _is_mandatory(item) and not chars & _first(item, flags):
            return False
    return False


def _in_item(item: Item, flags: int) -> Iterator[str]:
    op, value = item
    if op in (*_REPEATS, sre.POSSESSIVE_REPEAT):
        body = list(_flat(list(value[2])))
        yield from _in_sequence(body, flags)
        if op is not sre.POSSESSIVE_REPEAT and _is_unbounded(item) and not _is_one(body):
            if any(_is_unbounded(inner) for inner in body) and not _is_separated(body, flags):
                yield "a repetition within a repetition"
            if any(inner is sre.BRANCH and not _are_apart(value[1], flags) for inner, value in body):
                yield "alternatives within a repetition begin alike"
    elif op is sre.BRANCH:
        for branch in value[1]:
            yield from _in_sequence(list(branch), flags)
    elif op in (sre.ASSERT, sre.ASSERT_NOT):
        yield from _in_sequence(list(value[1]), flags)
    elif op is sre.ATOMIC_GROUP:
        yield from _in_sequence(list(value), flags)
    elif op in (sre.GROUPREF, sre.GROUPREF_EXISTS):
        yield "a back-reference"


def _flat(items: list[Item]) -> Iterator[Item]:
    for op, value in items:
        if op is sre.SUBPATTERN:
            yield from _flat(list(value[3]))
        else:
            yield op, value


def _is_unbounded(item: Item) -> bool:
    op, value = item
    return op in _REPEATS and (value[1] is sre.MAXREPEAT or value[1] >= MANY) and value[0] != value[1]


def _is_one(body: list[Item]) -> bool:
    return len(body) == 1 and body[0][0] in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY)


def _is_mandatory(item: Item) -> bool:
    op, value = item
    if op in (*_REPEATS, sre.POSSESSIVE_REPEAT):
        return bool(value[0] >= 1 and any(map(_is_mandatory, _flat(list(value[2])))))
    if op is sre.BRANCH:
        return all(any(map(_is_mandatory, _flat(list(branch)))) for branch in value[1])
    return op not in _ZERO_WIDTH


def _is_separated(body: list[Item], flags: int) -> bool:
    """Return whether each round begins with a character that nothing else in it can match: then rounds cannot be cut
    anew."""
    head, *rest = body
    return head[0] in (sre.LITERAL, sre.IN) and not _chars([head], flags) & _chars(rest, flags)


def _are_apart(branches: list[Any], flags: int) -> bool:
    seen: Chars = frozenset()
    for branch in branches:
        items = list(_flat(list(branch)))
        if not items or seen & _first(items[0], flags):
            return False
        seen |= _first(items[0], flags)
    return True


def _first(item: Item, flags: int) -> Chars:
    """The characters that an item can begin with."""
    op, value = item
    if op in (*_REPEATS, sre.POSSESSIVE_REPEAT):
        return _beginning(list(value[2]), flags)
    if op is sre.BRANCH:
        return frozenset().union(*(_beginning(list(branch), flags) for branch in value[1]))
    return _chars([item], flags)


def _beginning(items: list[Item], flags: int) -> Chars:
    found: Chars = frozenset()
    for item in _flat(items):
        found |= _first(item, flags)
        if _is_mandatory(item):
            return found
    return found or _ALL


def _chars(items: list[Item], flags: int) -> Chars:
    """The characters that some part of the items can match."""
    found: Chars = frozenset()
    for op, value in _flat(items):
        if op in (*_REPEATS, sre.POSSESSIVE_REPEAT):
            found |= _chars(list(value[2]), flags)
        elif op is sre.BRANCH:
            found = found.union(*(_chars(list(branch), flags) for branch in value[1]))
        elif op in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
            found |= _matched(op, value, flags)
        elif op not in _ZERO_WIDTH:
            return _ALL
    return found


def _matched(op: Any, value: Any, flags: int) -> Chars:
    fold = str.lower if flags & re.IGNORECASE else str
    if op is sre.ANY:
        return _ALL if flags & re.DOTALL else _ALL - {"\n"}
    if op is sre.LITERAL:
        return frozenset(char for char in SAMPLE if fold(char) == fold(chr(value))) or frozenset(chr(value))
    if op is sre.NOT_LITERAL:
        return _ALL - {chr(value)}
    negated = value[0][0] is sre.NEGATE
    found = frozenset(char for char in SAMPLE if any(_is_in(part, char, flags) for part in value[negated:]))
    if flags & re.IGNORECASE:
        found = frozenset(char for char in SAMPLE if {char, char.lower(), char.upper()} & found)
    return _ALL - found if negated else found


def _is_in(part: Item, char: str, flags: int) -> bool:
    op, value = part
    if op is sre.LITERAL:
        return char == chr(value)
    if op is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    name = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).removeprefix("CATEGORY_").removeprefix("NOT_")]
    return bool(re.match(name, char, flags & re.ASCII)) is ("NOT_" not in str(value))
