"""The `Retry-After` field: how long a server asks us to wait. Pure. What cannot be read counts as absent."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_SECONDS = re.compile(r"[0-9]{1,10}")


def asked_wait(header: Callable[[str], str | None]) -> str | None:
    """The field of a response. A date is counted from the server's own `Date`, if it says one: whether our clock is
    right then does not matter."""
    text, sent_at = header("retry-after"), header("date")
    if text is None or sent_at is None or _SECONDS.fullmatch(text.strip()):
        return text
    sent = _date(sent_at)
    wait = None if sent is None else _until(text, sent)
    return text if wait is None else str(max(0, int(wait.total_seconds())))


def parse_retry_after(text: str | None, now: datetime, longest: timedelta) -> timedelta | None:
    """How long to wait: seconds, or until a date. None without a field, and for one that is unreadable, past, or longer
    than we are willing to wait."""
    if text is None:
        return None
    wait = _seconds(text) if _SECONDS.fullmatch(text.strip()) else _until(text, now)
    return wait if wait is not None and timedelta(0) < wait <= longest else None


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=int(text))


def _until(text: str, now: datetime) -> timedelta | None:
    date = _date(text)
    return None if date is None else date - now


def _date(text: str) -> datetime | None:
    from email.utils import parsedate_to_datetime  # slow to import, seldom used

    try:
        date = parsedate_to_datetime(text)
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
