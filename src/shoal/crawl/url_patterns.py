"""The patterns of the options `include` and `exclude`: regular expressions that are matched in linear time.

The patterns run in RE2, which has no look-around and no back-references. An unsupported pattern is rejected, and the
error says how to fix it. Most patterns are plain text, such as `/private/` or `\\.pdf$`. If a crawl has only a few
plain-text patterns, they are compared without a regex engine.
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shoal.base.text import shorten

if TYPE_CHECKING:
    from re2 import Options

MOST_CHARACTERS: Final = 100_000  # limit for all patterns of a field together
MOST_WORK: Final = 10_000  # limit for all patterns of a field that are not plain text: see `_work`
MOST_COMPARED: Final = 8  # maximum number of plain-text patterns that are compared one by one; RE2 is faster for more

_CHECK_MEMORY: Final = 1 << 20  # limit for checking one pattern: about 16,000 instructions
_MEMORY: Final = 1 << 24  # limit for all patterns, including the states that are cached between URLs
_CLASS_WORK: Final = 100  # cost of parsing a Unicode class, even if it compiles to nothing
_PLAIN: Final = re.compile(r"(\^?)((?:[\w /:=&,;~%@#!'\"<>-]|\\[^\w\s])++)(\$?)", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)")
_LOOK_AROUND: Final = "remove the look-around, and put what must not match into exclude"
_FIXES: Final = (
    ("invalid perl operator: (?=", _LOOK_AROUND),
    ("invalid perl operator: (?!", _LOOK_AROUND),
    ("invalid perl operator: (?<", _LOOK_AROUND),
    ("invalid named capture", _LOOK_AROUND),
    ("invalid perl operator", "leave it out, or write it as RE2 does"),
    ("invalid escape sequence: \\Z", "write \\z for the end"),
    ("invalid escape sequence", "remove back-references, and escape only punctuation"),
    ("bad repetition operator", "use a single repetition operator: *, + or ?"),
    ("invalid repetition size", "keep repetitions at 1000 or below"),
    ("pattern too large", "shorten the repetitions"),
)


class UrlPatterns:
    """A set of patterns, which matches a URL if one of its patterns does. All patterns are searched in one pass."""

    __slots__ = ("_ends", "_search", "_starts", "_texts", "_whole")

    def __init__(self, patterns: Sequence[str]) -> None:
        plain = {pattern: found for pattern in patterns if (found := _PLAIN.fullmatch(pattern))}
        if len(plain) > MOST_COMPARED:
            plain = {}
        texts = [(found[1], _ESCAPE.sub(r"\1", found[2]), found[3]) for found in plain.values()]
        self._texts = tuple(text for start, text, end in texts if not start and not end)
        self._starts = tuple(text for start, text, end in texts if start and not end)
        self._ends = tuple(text for start, text, end in texts if end and not start)
        self._whole = tuple(text for start, text, end in texts if start and end)
        rest = [pattern for pattern in patterns if pattern not in plain]
        self._search = _searcher("|".join(f"(?:{pattern})" for pattern in rest)) if rest else None

    def match(self, url: str) -> bool:
        """Return whether one of the patterns is found in the URL."""
        for text in self._texts:
            if text in url:
                return True
        if self._starts and url.startswith(self._starts):
            return True
        if self._ends and url.endswith(self._ends):
            return True
        if self._search is None:
            return url in self._whole
        encoded = url.encode()
        return self._search(encoded, 0, len(encoded))[0][0] >= 0 or url in self._whole


def matching(patterns: Sequence[str], url: str) -> list[str]:
    """Return the patterns that are found in the URL."""
    return [pattern for pattern in patterns if UrlPatterns([pattern]).match(url)]


def check_patterns(patterns: list[str]) -> list[str]:
    """Return the patterns if they are valid. Otherwise the `ValueError` names the rejected pattern, the reason and,
    after a semicolon, the fix."""
    if sum(map(len, patterns)) > MOST_CHARACTERS:
        raise ValueError(f"has more than {MOST_CHARACTERS:,} characters in total; remove or shorten patterns")
    work = 0
    for pattern in patterns:
        if not _PLAIN.fullmatch(pattern):
            work += _work(pattern)
            if work > MOST_WORK:
                raise ValueError(
                    f"becomes too expensive with the pattern {shorten(pattern)!r}; "
                    "shorten repetitions, or use plain text such as /private/ where possible"
                )
    return patterns


def _work(pattern: str) -> int:
    """Return what a pattern costs at most for each character of a URL: the number of its compiled instructions. The
    parsing cost is added, because a group that is repeated zero times compiles to nothing."""
    size: int = _compiled(pattern, _CHECK_MEMORY).ProgramSize()
    return size + len(pattern) + _CLASS_WORK * pattern.lower().count(r"\p")


def _searcher(pattern: str) -> Callable[[bytes, int, int], list[tuple[int, int]]]:
    from re2 import _re2  # the public wrapper takes longer than the search itself

    return partial(_compiled(pattern, _MEMORY).Match, _re2.RE2.Anchor.UNANCHORED)


def _compiled(pattern: str, memory: int) -> Any:
    from re2 import _re2

    regex = _re2.RE2(pattern.encode("utf-8", "replace"), _options(memory))
    if not regex.ok():
        reason = regex.error().decode("utf-8", "replace")
        fix = next((fix for start, fix in _FIXES if reason.startswith(start)), "correct it")
        raise ValueError(f"{shorten(pattern)!r} is not a regular expression of RE2 ({shorten(reason)}); {fix}")
    return regex


def _options(memory: int) -> "Options":
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    return options
