"""Parse the text that a rule found into a typed value; None if it cannot be parsed."""

import math
import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Final

from ada_url import join_url

LONGEST_NUMBER: Final = 60
LONGEST_INT: Final = 19  # characters: fits into 64 bits, for stores and JSON parsers

# Thousands separated by a space or an apostrophe; dots and commas are ambiguous and resolved later.
_NUMBER: Final = re.compile(r"[-+\u2212]?(?:\d{1,3}(?:[\s'\u2019]\d{3})++(?!\d)(?:[.,]\d+)?|[.,]?\d[\d.,]*+)", re.ASCII)
_SCIENTIFIC: Final = re.compile(r"\s*[-+]?\d{1,30}(?:\.\d{1,30})?[eE][-+]?\d{1,3}\s*", re.ASCII)
_MARK: Final = re.compile(r"[.,]")
_GROUPS: Final = re.compile(r"['\u2019\s]")
_TRUE: Final = frozenset({"true", "yes", "on", "1", "y"})
_FALSE: Final = frozenset({"false", "no", "off", "0", "n"})


def read_int(text: str) -> int | None:
    """Return the first number in the text if it is an integer, as in `1.234.567`, `1,234` and `12 pieces`."""
    written = _plain_number(text, three_are_thousands=True)
    if written is None:
        return None
    whole, _, fraction = written.partition(".")
    if fraction.strip("0") or len(whole) >= LONGEST_INT:
        return None
    return int(whole) if whole.strip("-+") else 0


def read_float(text: str) -> float | None:
    """Return the first number in the text, as in `1,234.5`, `1.234,5` and `€ 12,50`."""
    written = _plain_number(text, three_are_thousands=False)
    number = math.nan if written is None else float(written)
    return number if math.isfinite(number) else None


def _plain_number(text: str, *, three_are_thousands: bool) -> str | None:
    """Return the first number in plain decimal notation."""
    if len(text) < LONGEST_NUMBER and _SCIENTIFIC.fullmatch(text):
        return f"{Decimal(text.strip()):f}"
    found = _NUMBER.search(text)
    if found is None or len(found[0]) > LONGEST_NUMBER:
        return None
    digits = _GROUPS.sub("", found[0]).replace("\N{MINUS SIGN}", "-").rstrip(".,")
    mark = _decimal_mark(digits, three_are_thousands)
    whole, _, fraction = digits.rpartition(mark) if mark else (digits, "", "")
    first, *groups = _MARK.split(whole)
    if any(len(group) != 3 for group in groups):  # 1.2.3 is a version
        return None
    return f"{first}{''.join(groups)}.{fraction}" if mark else first + "".join(groups)


def _decimal_mark(digits: str, three_are_thousands: bool) -> str | None:
    """Return the decimal separator: the last of `.` and `,`, unless it occurs more than once. A lone comma before three
    digits separates thousands; a lone dot does so only if an integer is wanted."""
    last = max(digits.rfind("."), digits.rfind(","))
    if last < 0:
        return None
    mark = digits[last]
    if digits.count(mark) > 1:
        return None
    lone = digits.count(".") + digits.count(",") == 1
    if lone and len(digits) - last - 1 == 3 and (mark == "," or three_are_thousands):
        return None
    return mark


def read_bool(text: str) -> bool | None:
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def read_date(text: str, form: str | None = None) -> str | None:
    """Return a date, or a date with time, in ISO 8601."""
    written = text.strip()[:LONGEST_NUMBER]
    ways: tuple[Callable[[str], datetime], ...] = (datetime.fromisoformat, parsedate_to_datetime)
    if form is not None:
        ways = (lambda text: datetime.strptime(text, form),)  # noqa: DTZ007 - the time zone is the text's, or none
    for way in ways:
        try:
            found = way(written)
        except (ValueError, TypeError, IndexError, OverflowError, re.error):
            continue
        plain = found.time() == datetime.min.time() and found.tzinfo is None and ":" not in written
        return found.date().isoformat() if plain else found.isoformat()
    return None


def read_url(text: str, base: str) -> str | None:
    """Return the absolute URL, resolved against the page's base."""
    try:
        return join_url(base, text.strip()) if text.strip() else None
    except ValueError:
        return None
