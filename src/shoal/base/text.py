"""Untrusted text made safe to show: control characters visible, secrets hidden, length bounded.

For log lines, error sentences and tables. HTML, CSV and other formats that quote in their own way escape by
themselves.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import orjson

HIDDEN: Final = "***"
LONGEST: Final = 4096
_LONGEST_SECRET: Final = 4400
_LONGEST_NAME: Final = 100

# What moves the cursor, ends a line, turns the direction of writing, is invisible, or cannot be encoded. The
# two joiners of emoji and of several scripts (U+200C, U+200D) change nothing but shape and stay.
_INVISIBLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_INVISIBLE_IN_LINES = re.compile(rf"(?![\n\t]|\r\n){_INVISIBLE.pattern}")

_QUOTED = r"""(?:"(?:\\.|[^"\\\r\n])*|'(?:\\.|[^'\\\r\n])*|[^\r\n]*)"""
_PART = r"(?:api[_-]?key|apikey|token|password|passwd|pwd|secret|signature|credentials?)"
_SECRET_WORDS = rf"(?:[\w-]{{0,40}}{_PART}|sig|key|auth)"
_SECRET_NAME = re.compile(rf"(?i){_SECRET_WORDS}|(?:proxy-|proxy_)?authorization|(?:set-|set_)?cookies?")
# What our own advice has in the place of a name and a password.
_EXAMPLE = r"(?!\[?user:password@[^\s@]*(?:\s|$))"
_SECRETS: tuple[tuple[re.Pattern[str], str], ...] = (
    # Headers, alone, in a dump of headers, or in a dictionary that somebody printed.
    (
        re.compile(
            rf"""(?i)((?:authorization|(?<![\w-])(?:set-)?cookie|x-api-key)["']?\s{{0,9}}[:=]\s{{0,9}}){_QUOTED}"""
        ),
        rf"\g<1>{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s{1,9})[\w.~+/=-]{6,}"), rf"\g<1>{HIDDEN}"),
    # Our own tokens and webhook secrets, wherever they stand.
    (re.compile(r"(shl_|whsec_)[\w+/=-]+"), rf"\g<1>{HIDDEN}"),
    # Name and password in an address; then those whose password has a / ? or # in it (a port is no password).
    (re.compile(rf"""(://){_EXAMPLE}[^\s/?#"'<>\\]*@"""), rf"\g<1>{HIDDEN}@"),
    (
        re.compile(rf"""(://){_EXAMPLE}[^\s/?#@:]{{0,256}}:(?![0-9]{{1,5}}(?:[/?#\s"'<>]|$))[^\s"'<>]{{0,4096}}@"""),
        rf"\g<1>{HIDDEN}@",
    ),
    # name=value in a query, a form or a connection string, and "name": "value".
    (re.compile(rf"""(?i)(?<![\w-])({_SECRET_WORDS}=)[^\s&#"'<>]+"""), rf"\g<1>{HIDDEN}"),
    (
        re.compile(rf"""(?i)(?<![\w-])({_SECRET_WORDS}["']\s{{0,9}}:\s{{0,9}}){_QUOTED}"""),
        rf"\g<1>{HIDDEN}",
    ),
)


def nearest(name: str, known: Iterable[str], *, likeness: float = 0.5) -> str | None:
    """Return the known name that is most like this one; None if none is, by difflib's ratio."""
    from difflib import get_close_matches

    if len(name) > _LONGEST_NAME:  # comparing megabytes would take seconds, and no name of ours is that long
        return None
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def names_a_secret(name: str) -> bool:
    """Whether what is kept under this name must never be shown."""
    return _SECRET_NAME.fullmatch(name) is not None


def visible(text: str) -> str:
    """The text on one line, with every character that could fool a reader or a terminal written out."""
    return _INVISIBLE.sub(_written_out, text)


def _written_out(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures ␀ … ␟
    return "␡" if code == 0x7F else f"<U+{code:04X}>"


def escaped(text: str) -> str:
    """Text of several lines, such as JSON lines, with those characters written as JSON writes them: what a terminal
    shows is still the same JSON. Ends of lines and tabs stay."""
    return _INVISIBLE_IN_LINES.sub(_as_json, text)


def _as_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def encodable(value: Any) -> Any:
    """A value as JSON has them, with a question mark for each half of a surrogate pair in its texts."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [encodable(part) for part in value]
    if isinstance(value, dict):
        return {name: encodable(part) for name, part in value.items()}
    return value


def json_of(value: Any, option: int | None = None) -> bytes:
    """A value as JSON that can be stored, whatever its texts hold: `encodable`, where that is needed."""
    try:
        return orjson.dumps(value, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(encodable(value), option=option)


def has_nul(value: Any) -> bool:
    """Whether a text in a value, as JSON has them, has a NUL in it, which not every store keeps."""
    waiting = [value]  # not by recursion: values may be nested more deeply than Python's stack is
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


def redact(text: str) -> str:
    """The text without credentials: headers, our tokens, passwords in addresses, secret parameters."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text


def clean(text: str, longest: int = LONGEST) -> str:
    """Redacted, visible and bounded: what may be written to a log or a terminal."""
    read = 4 * longest + _LONGEST_SECRET  # redaction may shorten it, and takes longer than its share on long texts
    over = len(text) > read
    safe = redact(text[:read])
    if over:  # what the cut split in two could be half of a secret
        safe = safe[:-_LONGEST_SECRET]
    safe = visible(safe)
    return safe if len(safe) <= longest and not over else safe[:longest] + "…"


def shorten(value: object, longest: int = 60) -> str:
    """A value somebody gave, to be quoted in a sentence."""
    return clean(str(value), longest)


def redact_url(url: str) -> str:
    """An address of ours without its password; the name stays, so that one can tell which account it is."""
    head, mark, rest = url.partition("://")
    if not mark:
        return HIDDEN if "@" in url else redact(url)
    userinfo, at, address = rest.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    if re.search(r"[/?#@]", userinfo):  # where the name ends cannot be told, so more is hidden than needed
        user, colon = HIDDEN, ""
    return f"{head}://{user}{':' + HIDDEN if colon else ''}{at}{redact(address)}"


def plural(count: int, noun: str, plural: str | None = None) -> str:
    """`1 page`, `2 pages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
