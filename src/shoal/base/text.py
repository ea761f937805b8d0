"""Functions that shorten texts, redact them and make them safe to show or store; and sentences to be translated."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from msgspec import Struct, field

HIDDEN: Final = "***"
LONGEST: Final = 4096
DEEPEST: Final = 100  # levels of a JSON value; orjson can serialize 254
_LONGEST_SECRET: Final = 4400
_LONGEST_NAME: Final = 100

# Characters that move the cursor, end a line, change the text direction, are invisible, or cannot be encoded. The
# two joiners of emoji and of several scripts (U+200C, U+200D) only change the shape of characters and are kept.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_INVISIBLE_IN_LINES = rf"(?![\n\t]|\r\n){_INVISIBLE.pattern}"

_QUOTED = r"""(?:"(?:\\.|[^"\\\r\n])*|'(?:\\.|[^'\\\r\n])*|[^\r\n]*)"""
_PART = r"(?:api[_-]?key|apikey|token|password|passwd|pwd|secret|signature|credentials?)"
_SECRET_WORDS = rf"(?:[\w-]{{0,40}}{_PART}|sig|key|auth)"
_SECRET_NAME = re.compile(rf"(?i){_SECRET_WORDS}|(?:proxy-|proxy_)?authorization|(?:set-|set_)?cookies?")
# The placeholder `user:password` in messages of Shoal, which is not redacted.
_EXAMPLE = r"(?!\[?user:password@[^\s@]*(?:\s|$))"
_SECRETS = (  # not compiled here, because most processes have nothing to redact; `re` caches the patterns
    # Headers: alone, in a header dump, or in a printed dictionary.
    (
        rf"""(?i)((?:authorization|(?<![\w-])(?:set-)?cookie|x-api-key)["']?\s{{0,9}}[:=]\s{{0,9}}){_QUOTED}""",
        rf"\g<1>{HIDDEN}",
    ),
    (r"(?i)\b(bearer\s{1,9})[\w.~+/=-]{6,}", rf"\g<1>{HIDDEN}"),
    # Our own tokens and webhook secrets, anywhere.
    (r"(shl_|whsec_)[\w+/=-]+", rf"\g<1>{HIDDEN}"),
    # First: user name and password in a URL. Second: passwords that contain `/`, `?` or `#`; a port is not redacted.
    (rf"""(://){_EXAMPLE}[^\s/?#"'<>\\]*@""", rf"\g<1>{HIDDEN}@"),
    (
        rf"""(://){_EXAMPLE}[^\s/?#@:]{{0,256}}:(?![0-9]{{1,5}}(?:[/?#\s"'<>]|$))[^\s"'<>]{{0,4096}}@""",
        rf"\g<1>{HIDDEN}@",
    ),
    # First: name=value in a query, a form or a connection string. Second: "name": "value".
    (rf"""(?i)(?<![\w-])({_SECRET_WORDS}=)[^\s&#"'<>]+""", rf"\g<1>{HIDDEN}"),
    (
        rf"""(?i)(?<![\w-])({_SECRET_WORDS}["']\s{{0,9}}:\s{{0,9}}){_QUOTED}""",
        rf"\g<1>{HIDDEN}",
    ),
)


def nearest(name: str, known: Iterable[str], *, similarity: float = 0.5) -> str | None:
    """Return the known name that is most similar to this name; None if no name reaches `similarity`, a difflib
    ratio."""
    from difflib import get_close_matches

    if len(name) > _LONGEST_NAME:  # comparing megabytes would take seconds, and none of our names is that long
        return None
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=similarity)), None)


def names_a_secret(name: str) -> bool:
    """Return whether a value with this name must never be shown."""
    return _SECRET_NAME.fullmatch(name) is not None


def visible(text: str) -> str:
    """Return the text on one line, with every character that could deceive a reader or a terminal made visible."""
    return _INVISIBLE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures ␀ … ␟
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def escaped(text: str) -> str:
    """Write the characters that `visible` would replace as JSON escapes. For text of several lines, such as JSON lines:
    a terminal then shows equivalent JSON. Line ends and tabs are kept."""
    return re.sub(_INVISIBLE_IN_LINES, _as_json, text)


def _as_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def encodable(value: Any) -> Any:
    """Return a JSON value with each lone surrogate in its strings replaced by a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [encodable(part) for part in value]
    if isinstance(value, dict):
        return {name: encodable(part) for name, part in value.items()}
    return value


def storable(text: str) -> str:
    """Return a text that can be stored: without NULs, which PostgreSQL rejects, and with a replacement for each lone
    surrogate, which cannot be encoded."""
    return text if text.isascii() and "\0" not in text else str(encodable(text)).replace("\0", "")


def json_of(value: Any, option: int | None = None) -> bytes:
    """Serialize a value to JSON, whatever its strings contain. `encodable` is slow and therefore only applied if
    needed."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(encodable(value), option=option)


def has_nul(value: Any) -> bool:
    """Return whether a string in a JSON value contains a NUL, which not every store can hold."""
    waiting = [value]  # no recursion: values may be nested more deeply than Python's stack allows
    while waiting:
        part = waiting.pop()
        if isinstance(part, str) and "\0" in part:
            return True
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return False


def is_nested_too_deeply(value: Any) -> bool:
    """Return whether a JSON value has more than `DEEPEST` levels. A document that contains such a value might not be
    serializable."""
    level = [value]
    for _ in range(DEEPEST):
        containers = [part for part in level if isinstance(part, dict | list)]
        level = [part for one in containers for part in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return any(isinstance(part, dict | list) for part in level)


def redact(text: str) -> str:
    """Redact credentials: headers, our tokens, passwords in URLs, secret parameters."""
    for pattern, shown in _SECRETS:
        text = re.sub(pattern, shown, text)
    return text


def clean(text: str, longest: int = LONGEST) -> str:
    """Make text safe for a log or a terminal: redacted, visible and bounded."""
    read = (
        4 * longest + _LONGEST_SECRET
    )  # more than `longest`, because redaction may shorten the text; not the whole text, because redaction is slow
    over = len(text) > read
    safe = redact(text[:read])
    if over:  # the cut may have split a secret in two
        safe = safe[:-_LONGEST_SECRET]
    safe = visible(safe)
    return safe if len(safe) <= longest and not over else safe[:longest] + "…"


def shorten(value: object, longest: int = 60) -> str:
    """Return a user's value, shortened and safe to quote in a sentence."""
    return clean(str(value), longest)


def redact_url(url: str) -> str:
    """Redact the password in one of our URLs; the user name is kept to identify the account."""
    head, mark, rest = url.partition("://")
    if not mark:
        return HIDDEN if "@" in url else redact(url)
    userinfo, at, address = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if re.search(r"[/?#@]", userinfo):  # the end of the user name is ambiguous, so hide more than needed
        user, colon = HIDDEN, ""
    return f"{head}://{user}{':' + HIDDEN if colon else ''}{at}{redact(address)}"


def plural(count: int, noun: str, plural: str | None = None) -> str:
    """Format a count with its noun: `1 page`, `2 pages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def message(text: str) -> str:
    """Mark a text that is translated later, where it is shown."""
    return text


class Share(float):
    """A share of a whole, shown in percent."""


class Sentence(Struct, frozen=True):
    """A text with placeholders such as `{node}`, and their values: texts, counts, shares, durations (`timedelta`),
    times (`datetime`) or other sentences. `str` returns the sentence in English. The console translates the text and
    formats the values for the language of its user. `other`: the text if `{count}` requires the plural. `is_clause`:
    the sentence is part of a larger one, so its first letter is lower-case."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)
    other: str | None = None
    is_clause: bool = False

    def __str__(self) -> str:
        text = self.text if self.other is None or self.values["count"] == 1 else self.other
        values = {name: _in_english(value) for name, value in self.values.items()}
        return self.cased(text.format(**values) if values else text)

    def cased(self, text: str) -> str:
        """Return the text, which may be translated, with a lower-case first letter if this sentence is a clause."""
        return text[:1].lower() + text[1:] if self.is_clause else text


def joined(parts: Iterable[Sentence], separator: str = " ") -> Sentence:
    """Join sentences, or parts of a sentence, to one sentence in this order."""
    values = {f"part{place}": part for place, part in enumerate(parts)}
    return Sentence(separator.join(f"{{{name}}}" for name in values), values)


def in_percent(share: float) -> tuple[float, int]:
    """Return a share in percent, and the number of decimal places to show. Only *all* is shown as 100 %, and only
    *none* as 0 %; other shares are never rounded to these."""
    if 0.995 <= share < 1:
        return min(99.9, 100 * share), 1
    return (max(0.1, 100 * share), 1) if 0 < share < 0.1 else (100 * share, 0)


def _in_english(value: Any) -> str:
    match value:
        case Share():
            shown, digits = in_percent(value)
            return f"{shown:.{digits}f}%"
        case int():
            return f"{value:,}"
        case timedelta():
            return f"{value.total_seconds():.0f} s"
        case datetime():
            return value.isoformat(timespec="seconds").replace("+00:00", "Z")
        case _:
            return str(value)
