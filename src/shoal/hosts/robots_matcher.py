"""Matches paths against robots.txt rules as in RFC 9309 §2.2.2: octet by octet, with `*` and a final `$` special.

Rules and paths are normalized first. An escaped printable character is decoded, except `/` and `%`, which mean
something else unescaped; everything that is not printable ASCII is escaped. Nothing else is changed. A rule with a `%`
that does not start an escape, such as `/*%`, is compared with the URL as it was written.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DECODED: Final = frozenset(_PRINTABLE) - frozenset("/%")
_ESCAPE: Final = re.compile(r"%([0-9A-Fa-f]{2})")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BEYOND_ASCII: Final = re.compile(r"(?:%[89A-F][0-9A-F])++")
_LOST: Final = "\ufffd"  # replaces a byte that was not valid UTF-8 in the file

Meaning = TypeVar("Meaning")


def _normal(path: str) -> str:
    return _ESCAPE.sub(lambda found: _plain(found, _DECODED), _ascii(path))


def _written(path: str) -> str:
    return _ESCAPE.sub(lambda found: _plain(found, _UNRESERVED), _ascii(path))


def _readable(path: str) -> str:
    """Normalize a path, with a replacement character for each byte that is not UTF-8, as in a decoded file."""
    return _BEYOND_ASCII.sub(
        lambda found: bytes.fromhex(found[0].replace("%", "")).decode("utf-8", "replace"), _normal(path)
    )


def _ascii(path: str) -> str:
    return path if path.isascii() and path.isprintable() and " " not in path else quote(path, safe=_PRINTABLE)


def _plain(escape: "re.Match[str]", decoded: frozenset[str]) -> str:
    sign = chr(int(escape[1], 16))
    return sign if sign in decoded else escape[0].upper()


class _Pattern(NamedTuple):
    """The pattern of one rule: the texts between its `*`, in order."""

    first: str
    middle: list[str]
    last: str | None  # None: there is no `*`
    ends: bool  # whether it must match up to the end of the URL
    form: Callable[[str], str]
    length: int

    @classmethod
    def of(cls, path: str) -> "_Pattern":
        ends = path.endswith("$")
        written = path.removesuffix("$")
        form = _written if _BARE_PERCENT.search(written) else _readable if _LOST in written else _normal
        first, *rest = [form(part) for part in re.split(r"\*+", written)]
        length = len(first) + sum(map(len, rest)) + len(rest) + ends
        return cls(first, rest[:-1], rest[-1] if rest else None, ends, form, length)

    @property
    def prefix(self) -> str | None:
        """The prefix, if the pattern is a plain prefix; otherwise None."""
        return self.first if self.last is None and not self.ends and self.form is _normal else None

    def matches(self, path: str) -> bool:
        first, middle, last, ends, _, _ = self
        if not path.startswith(first):
            return False
        at = len(first)
        if last is None:
            return not ends or len(path) == at
        for part in middle:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return len(path) - len(last) >= at and path.endswith(last) if ends else path.find(last, at) >= 0


class RuleMatcher(Generic[Meaning]):
    """Finds the longest rule that matches a path; of two equally long ones, the one that allows it."""

    def __init__(self, rules: Iterable[tuple[str, bool, Meaning]]) -> None:
        """Take rules as (path, whether it allows, the caller's value for it)."""
        patterns = [(_Pattern.of(path), allows, rule) for path, allows, rule in rules]
        self._all = sorted(patterns, key=lambda one: (one[0].length, one[1]), reverse=True)
        self._special = [one for one in self._all if one[0].prefix is None]
        self._prefixes = tuple(one[0].prefix for one in self._all if one[0].prefix is not None)

    def find(self, path: str) -> Meaning | None:
        """Return the rule that decides on a path, which starts with `/` and includes the query."""
        forms: dict[Callable[[str], str], str] = {}
        if "%" in path or not path.isascii():
            forms[_normal] = _normal(path)
        # Most paths match none of the plain prefixes, and one comparison checks all of them.
        candidates = self._all if forms.get(_normal, path).startswith(self._prefixes) else self._special
        for pattern, _, rule in candidates:
            text = forms.get(pattern.form)
            if text is None:
                text = forms[pattern.form] = pattern.form(path)
            if pattern.matches(text):
                return rule
        return None
